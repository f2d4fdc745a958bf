//! The monitor: the loop that feeds the race with what happens and carries out what it orders.
//!
//! Owns: the threads of one protected application, its lock, its endpoint, and its status file. Never: decides.
//! Invariant: one monitor per application and machine (its lock), and every order of the race is answered once.

use super::app::App;
use super::clock::now_ns;
use super::endpoint::Endpoint;
use super::node::{Node, NodeError};
use super::place::{Down, Instance, Place};
use super::probe::{Cut, Outcome};
use super::timeline::{Listener, Timeline};
use crate::exit::{ExitCode, fail};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Pid;
use segue_failover::note::{Note, Slot, Stage};
use segue_failover::race::{Answer, Command, Event, Failure, Mark, Mode, OpId, Order, Out, Race, View};
use segue_failover::suspicion::{Seen, Suspicion, Verdict, Why};
use segue_types::{LeaseId, Nanos};
use serde::Serialize;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How often silence is judged and storage is looked at.
const TICK: Duration = Duration::from_millis(20);
/// How often the status file is written when nothing changes.
const STATUS_EVERY_NS: u64 = 1_000_000_000;

/// What a monitor reports to whom.
#[derive(Default)]
pub struct Options {
    /// Called with each entry of the timeline, in order; must not block for long.
    pub on_entry: Option<Listener>,
}

/// What is left when a monitor ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopHow {
    /// The application keeps running, and another monitor can take over. Clients lose the endpoint.
    LeaveRunning,
    /// The application is stopped in order, its volumes are detached and free.
    StopApp,
}

/// How things are, as `segue failover status` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, serde::Deserialize)]
pub struct Status {
    /// The application.
    pub app: String,
    /// The monitor's process.
    pub pid: u32,
    /// `serving`, `suspected`, `super`, `recovering`, `collapse`, `dropping`, `fencing`, `starting`, `looking`.
    pub state: String,
    /// Slot that has the right to serve.
    pub seat: Option<String>,
    /// True while it serves, is not suspected, and nothing is left over from a failover.
    pub calm: bool,
    /// `speculative`, `reds`, `oracle`.
    pub mode: String,
    /// Where clients connect.
    pub endpoint: String,
    /// Clients connected, waiting, and cut by moves so far.
    pub clients_open: u64,
    /// Clients waiting for an instance.
    pub clients_held: u64,
    /// Connections cut by moves so far.
    pub clients_cut: u64,
    /// Backups started in the last 24 hours (by this monitor), and ever.
    pub backups_last_day: u64,
    /// Backups started since the application's note was begun.
    pub backups_started: u64,
    /// CPU time of backups that did not come to serve, ms.
    pub wasted_cpu_ms: u64,
    /// Children promoted.
    pub promotions: u64,
    /// Children dropped.
    pub drops: u64,
    /// Fences without a race.
    pub fences: u64,
    /// Milliseconds of Unix time when this was written.
    pub unix_ms: u64,
}

enum Msg {
    Op(Event),
    Seen { watch: u64, outcome: Outcome, at: Nanos },
    Tell(Order),
    Stop,
}

struct Shared {
    status: Mutex<Status>,
    changed: Condvar,
    places: [Arc<Place>; 2],
    timeline: Timeline,
    node: Node,
    app: Arc<App>,
}

/// A running monitor. Dropping it leaves the application running.
pub struct Monitor {
    messages: Sender<Msg>,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Monitor {
    /// Takes over the application: starts it if nothing was ever started, goes on where the last monitor stopped if not.
    ///
    /// # Errors
    /// Another monitor runs (exit code 5), the node does not answer (11), the endpoint's address is taken (10), the
    /// volume's note is somebody else's (7).
    pub fn start(app: App, options: Options) -> anyhow::Result<Monitor> {
        let app = Arc::new(app);
        let lock = lock(&app)?;
        let timeline = Timeline::new(options.on_entry);
        let node = Node::new(&app);
        let note = node.look()?.note;
        let note: Note = note.parse().map_err(|error| fail(ExitCode::Conflict, format!("{error}")))?;
        let places = [Arc::new(Place::new(&app, 0, &timeline)?), Arc::new(Place::new(&app, 1, &timeline)?)];
        let endpoint = Endpoint::open(app.endpoint.listen, app.endpoint.hold, app.endpoint.clients_max)
            .map_err(|error| fail(ExitCode::Io, format!("cannot listen on {}: {error}", app.endpoint.listen)))?;
        let status = Mutex::new(Status::default());
        let shared = Arc::new(Shared { status, changed: Condvar::new(), places, timeline, node, app: app.clone() });
        let (messages, inbox) = channel();
        let driver = Driver {
            race: Race::resume(app.race, note, now_ns()),
            out: Out::default(),
            shared: shared.clone(),
            endpoint,
            messages: messages.clone(),
            watch: None,
            watches: 0,
            status_at: 0,
            _lock: lock,
        };
        let thread = std::thread::Builder::new().name("monitor".into()).spawn(move || driver.run(&inbox))?;
        Ok(Monitor { messages, shared, thread: Some(thread) })
    }

    /// Waits until an instance serves; false when `limit` passed first.
    pub fn wait_serving(&self, limit: Duration) -> bool {
        self.wait(limit, |status| status.state == "serving")
    }

    /// Waits for a condition on the status; false when `limit` passed first.
    pub fn wait(&self, limit: Duration, condition: impl Fn(&Status) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut status = self.shared.status.lock().expect("nothing panics while holding it");
        while !condition(&status) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_over() {
                return false;
            }
            let step = left.min(Duration::from_millis(200));
            status = self.shared.changed.wait_timeout(status, step).expect("nothing panics while holding it").0;
        }
        true
    }

    /// True when its thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }

    /// How things are.
    pub fn status(&self) -> Status {
        self.shared.status.lock().expect("nothing panics while holding it").clone()
    }

    /// The timeline; shared and live. Drills add their own entries to it.
    pub fn timeline(&self) -> &Timeline {
        &self.shared.timeline
    }

    /// The instance that has the right to serve, if there is one.
    pub fn seat(&self) -> Option<Instance> {
        let status = self.status();
        let index = match status.seat.as_deref()? {
            "a" => 0,
            _ => 1,
        };
        Some(self.shared.places[index].instance())
    }

    /// Says what an oracle knows (mode `oracle` only).
    pub fn tell(&self, order: Order) {
        let _ = self.messages.send(Msg::Tell(order));
    }

    /// Ends the monitor.
    ///
    /// # Errors
    /// With [`StopHow::StopApp`], what could not be stopped or given up.
    pub fn shut_down(mut self, how: StopHow) -> anyhow::Result<()> {
        self.join();
        if how == StopHow::StopApp { take_down(&self.shared.app) } else { Ok(()) }
    }

    fn join(&mut self) {
        let _ = self.messages.send(Msg::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.join();
    }
}

/// Takes the lock that makes this the only monitor of the application here.
pub fn lock(app: &App) -> anyhow::Result<Flock<File>> {
    DirBuilder::new().recursive(true).mode(0o711).create(&app.run_dir)?;
    let path = app.run_dir.join("monitor.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
        fail(ExitCode::Busy, format!("another monitor protects {} here; see `segue failover status`", app.name))
    })
}

/// Who holds a lock on the file, as the system itself says.
pub fn lock_holder(path: &Path) -> Option<Pid> {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata(path).ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|line| line.contains("FLOCK") && line.contains(&format!(":{inode} ")))?;
    // "1: FLOCK  ADVISORY  WRITE 1234 00:2f:5678 0 EOF"
    line.split_whitespace().nth(4)?.parse().ok().map(Pid::from_raw).filter(|pid| pid.as_raw() > 1)
}

/// Stops what runs of the application, in order, and gives its volumes up.
///
/// # Errors
/// A monitor runs, or the node does not answer.
pub fn take_down(app: &Arc<App>) -> anyhow::Result<()> {
    let _lock = lock(app)?;
    let node = Node::new(app);
    let timeline = Timeline::default();
    let note: Note = node.look()?.note.parse().map_err(|error| fail(ExitCode::Conflict, format!("{error}")))?;
    for (index, slot) in [Slot::A, Slot::B].into_iter().enumerate() {
        let place = Place::new(app, index, &timeline)?;
        let seat = match &note.stage {
            Stage::Serving(seat) | Stage::Racing { seat, .. } => Some(seat.slot),
            Stage::New | Stage::Fencing { .. } => None,
        };
        place.stop(if seat == Some(slot) { Down::InOrder } else { Down::Cut });
    }
    node.give_up()?;
    node.clear_note()?;
    let _ = std::fs::remove_file(app.run_dir.join("status.json"));
    Ok(())
}

/// The seat under observation.
struct Watch {
    number: u64,
    slot: Slot,
    suspicion: Suspicion,
    prober: Cut,
    /// `/sys/class/block/DEV/stat` of its devices.
    counters: Vec<PathBuf>,
    gone: bool,
    why: Option<Why>,
}

struct Driver {
    race: Race,
    out: Out,
    shared: Arc<Shared>,
    endpoint: Endpoint,
    messages: Sender<Msg>,
    watch: Option<Watch>,
    watches: u64,
    status_at: Nanos,
    _lock: Flock<File>,
}

impl Driver {
    fn run(mut self, inbox: &Receiver<Msg>) {
        self.step(Event::Tick);
        loop {
            let now = now_ns();
            let wake = self.out.wake_at.map_or(TICK, |at| Duration::from_nanos(at.saturating_sub(now)));
            match inbox.recv_timeout(wake.min(TICK)) {
                Ok(Msg::Op(event)) => self.step(event),
                Ok(Msg::Seen { watch, outcome, at }) => self.seen(watch, outcome, at),
                Ok(Msg::Tell(order)) => self.step(Event::Told(order)),
                Ok(Msg::Stop) => break,
                Err(RecvTimeoutError::Timeout) => self.tick(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // A start that is under way must not go on behind a successor's back.
        self.shared.places.iter().for_each(|place| place.revoke());
        self.unwatch();
    }

    fn step(&mut self, event: Event) {
        self.out.clear();
        self.race.step(now_ns(), event, &mut self.out);
        for mark in std::mem::take(&mut self.out.marks) {
            let detail = self.detail(mark);
            self.shared.timeline.add(mark.name(), detail);
        }
        for command in std::mem::take(&mut self.out.commands) {
            self.carry_out(command);
        }
        self.endpoint.pause(self.race.is_suspected());
        self.publish();
    }

    fn detail(&self, mark: Mark) -> String {
        match mark {
            Mark::Suspected => {
                let Some(watch) = &self.watch else { return String::new() };
                let silent_ms = (now_ns() - watch.suspicion.answered_at()) / 1_000_000;
                format!("slot {}: {} for {silent_ms} ms", watch.slot, why_text(watch.why))
            }
            Mark::EndpointMoved => self.race.seat().map_or(String::new(), |seat| format!("to slot {}", seat.slot)),
            _ => String::new(),
        }
    }

    fn carry_out(&mut self, command: Command) {
        let shared = self.shared.clone();
        match command {
            Command::Point { to } => self.point(to),
            Command::SaveNote { op, note } => {
                self.spawn(op, move || shared.node.save_note(&note).map(|()| Answer::Nothing));
            }
            Command::Look { op } => self.spawn(op, move || look(&shared)),
            Command::Super { op } => self.spawn(op, move || {
                shared.node.superpose().map(|(super_id, leases)| Answer::Supered { super_id, leases })
            }),
            Command::Collapse { op, super_id } => {
                self.spawn(op, move || shared.node.collapse(super_id).map(Answer::Collapsed));
            }
            Command::Abort { op, super_id } => {
                self.spawn(op, move || shared.node.abort(super_id).map(|()| Answer::Nothing));
            }
            Command::Fence { op } => self.spawn(op, move || shared.node.fence().map(|()| Answer::Nothing)),
            Command::Acquire { op } => self.spawn(op, move || shared.node.acquire().map(Answer::Acquired)),
            Command::Start { op, slot, leases, backup } => self.start(op, slot, leases, backup),
            Command::Stop { op, slot } => {
                let place = shared.places[slot.index()].clone();
                // Before the thread begins: a start that was ordered earlier must not overtake this.
                place.revoke();
                self.spawn(op, move || Ok(Answer::Stopped { cpu_ms: place.stop(Down::Cut) }));
            }
        }
    }

    fn start(&self, op: OpId, slot: Slot, leases: Vec<LeaseId>, backup: bool) {
        let place = self.shared.places[slot.index()].clone();
        let ticket = place.ticket();
        let (messages, timeline) = (self.messages.clone(), self.shared.timeline.clone());
        let work = move || {
            let event = match place.start(&leases, backup, ticket) {
                Ok(()) => Event::Done { op, answer: Answer::Nothing },
                Err(error) => {
                    timeline.add_once("start_failed", format!("slot {slot}: {error:#}"));
                    Event::Failed { op, failure: Failure::Refused }
                }
            };
            let _ = messages.send(Msg::Op(event));
        };
        thread("start", work);
    }

    /// Runs a question to the node in the background.
    fn spawn(&self, op: OpId, work: impl FnOnce() -> Result<Answer, NodeError> + Send + 'static) {
        let (messages, timeline) = (self.messages.clone(), self.shared.timeline.clone());
        let work = move || {
            let event = match work() {
                Ok(answer) => Event::Done { op, answer },
                Err(error) => {
                    timeline.add_once("error", crate::out::chain(&error));
                    Event::Failed { op, failure: error.failure() }
                }
            };
            let _ = messages.send(Msg::Op(event));
        };
        thread("node", work);
    }

    fn point(&mut self, to: Option<Slot>) {
        self.unwatch();
        self.endpoint.point(to.map(|slot| self.shared.places[slot.index()].port()));
        if let Some(slot) = to {
            self.watch(slot);
        }
    }

    fn unwatch(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.prober.cut();
        }
    }

    fn watch(&mut self, slot: Slot) {
        self.watches += 1;
        let number = self.watches;
        let place = &self.shared.places[slot.index()];
        let mut probe = place.probe();
        let prober = probe.cutter();
        let (messages, interval) = (self.messages.clone(), self.shared.app.probe.interval);
        thread("prober", move || {
            let cut = probe.cutter();
            while !cut.is_done() {
                let outcome = probe.ask();
                let at = now_ns();
                if messages.send(Msg::Seen { watch: number, outcome, at }).is_err() {
                    break;
                }
                std::thread::sleep(interval);
            }
        });
        let device = |one: &crate::attach::Attachment| {
            let name = one.device().file_name()?.to_owned();
            Some(Path::new("/sys/class/block").join(name).join("stat"))
        };
        let counters = place.instance().attachments.iter().filter_map(device).collect();
        let suspicion = Suspicion::new(self.shared.app.suspicion, now_ns());
        self.watch = Some(Watch { number, slot, suspicion, prober, counters, gone: false, why: None });
    }

    fn seen(&mut self, number: u64, outcome: Outcome, at: Nanos) {
        if self.watch.as_ref().is_some_and(|watch| watch.number == number) {
            let seen = if outcome == Outcome::Answer { Seen::Answer } else { Seen::Refusal };
            self.judge(at, seen);
        }
    }

    fn judge(&mut self, at: Nanos, seen: Seen) {
        let Some(watch) = &mut self.watch else { return };
        match watch.suspicion.step(at, seen) {
            // Trust needs an answer: a detector without one trusts only for want of evidence.
            Verdict::Trust if seen == Seen::Answer && self.race.is_suspected() => self.step(Event::Trust),
            Verdict::Trust => {}
            Verdict::Suspect { since, why } => {
                watch.why = Some(why);
                if !self.race.is_suspected() {
                    self.step(Event::Suspect { since });
                }
            }
        }
    }

    fn tick(&mut self) {
        let now = now_ns();
        if let Some(watch) = &mut self.watch {
            let seen = storage_counters(&watch.counters).unwrap_or(Seen::Nothing);
            let ended = !watch.gone && self.shared.places[watch.slot.index()].has_ended();
            watch.gone |= ended;
            if ended {
                self.shared.timeline.add("processes_ended", "");
                self.step(Event::Gone);
            }
            self.judge(now, seen);
        }
        self.step(Event::Tick);
    }

    fn publish(&mut self) {
        let now = now_ns();
        let status = self.status(now);
        let mut shared = self.shared.status.lock().expect("nothing panics while holding it");
        let changed = shared.state != status.state || shared.seat != status.seat || shared.calm != status.calm;
        *shared = status;
        if changed {
            self.shared.changed.notify_all();
        }
        if changed || now >= self.status_at + STATUS_EVERY_NS {
            self.status_at = now;
            let text = serde_json::to_vec(&*shared).expect("a status is plain data");
            let (fresh, path) =
                (self.shared.app.run_dir.join("status.new"), self.shared.app.run_dir.join("status.json"));
            // The file is for people who look; a full disk must not stop a failover.
            let _ = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &path));
        }
    }

    fn status(&mut self, now: Nanos) -> Status {
        let app = &self.shared.app;
        let counters = self.endpoint.counters();
        let costs = self.race.note().costs;
        Status {
            app: app.name.clone(),
            pid: std::process::id(),
            state: self.race.state().to_owned(),
            seat: self.race.seat().map(|seat| seat.slot.to_string()),
            calm: self.race.is_calm(),
            mode: mode_name(app.race.mode).to_owned(),
            endpoint: self.endpoint.address().to_string(),
            clients_open: counters.open.load(Ordering::Relaxed),
            clients_held: counters.held.load(Ordering::Relaxed),
            clients_cut: counters.cut.load(Ordering::Relaxed),
            backups_last_day: self.race.starts_last_day(now),
            backups_started: costs.backups_started,
            wasted_cpu_ms: costs.wasted_cpu_ms,
            promotions: costs.promotions,
            drops: costs.drops,
            fences: costs.fences,
            unix_ms: super::clock::unix_ms(),
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started.expect("the system has a thread left; without one the monitor cannot keep its promises");
}

fn look(shared: &Shared) -> Result<Answer, NodeError> {
    let look = shared.node.look()?;
    let running = [shared.places[0].running(), shared.places[1].running()];
    Ok(Answer::Looked(View { phase: look.phase, super_id: look.super_id, running }))
}

/// Requests completed and in flight on all devices; `None` when one cannot be read.
fn storage_counters(paths: &[PathBuf]) -> Option<Seen> {
    let (mut completed, mut in_flight) = (0, 0);
    for path in paths {
        let text = std::fs::read_to_string(path).ok()?;
        let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        // Reads, writes, discards and flushes completed; requests in flight.
        completed += fields.first()? + fields.get(4)? + fields.get(11).unwrap_or(&0) + fields.get(15).unwrap_or(&0);
        in_flight += *fields.get(8)? as u32;
    }
    (!paths.is_empty()).then_some(Seen::Storage { completed, in_flight })
}

fn why_text(why: Option<Why>) -> &'static str {
    match why {
        Some(Why::Silence) | None => "no answer",
        Some(Why::Refused) => "probes refused, no answer",
        Some(Why::Storage) => "its storage does not complete requests; last answer before",
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Speculative => "speculative",
        Mode::Reds { .. } => "reds",
        Mode::Oracle => "oracle",
    }
}
