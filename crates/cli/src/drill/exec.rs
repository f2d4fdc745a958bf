//! One drill from beginning to end: load, fault, measurement, verification.
//!
//! Owns: the order of a drill's steps and when each is over. Never: decides a failover; it only tells an oracle the truth.
//! Invariant: the monitor it started is shut down on every way out; whether the application is left running is the caller's.

use super::db::{Kind, Session, Target};
use super::fault::{Fault, Injected, Victim};
use super::ledger::{Contents, Ledger};
use super::load::{Load, LoadOptions};
use super::load_cmd::{patient, unix_ms};
use super::report::{Mark, Observed, Report, Setup};
use super::{bank, verify};
use crate::exit::{ExitCode, fail};
use crate::failover::{App, Entry, Mode, Monitor, Options, Order, StopHow, now_ns};
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest wait for the application to serve before the drill.
const SERVING_LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for the service to come back.
const RETURN_LIMIT: Duration = Duration::from_secs(180);
/// How long the load goes on after the service came back.
const TAIL: Duration = Duration::from_secs(2);
/// A service whose last commit is younger than this is there.
const FRESH_NS: u64 = 500_000_000;
const POLL: Duration = Duration::from_millis(20);

/// What to drill.
#[derive(Clone)]
pub struct Plan {
    /// The application.
    pub app: App,
    /// How to fail over.
    pub mode: Mode,
    /// What to do to the primary.
    pub fault: Fault,
    /// How long a `heal` stalls.
    pub heal_after: Duration,
    /// How long a recovery takes, for an oracle to compare with; `None`: the oracle waits for every `heal`.
    pub recovery_expected: Option<Duration>,
    /// The load.
    pub load: LoadOptions,
    /// Inject the fault once a recovery has this many bytes of log to redo; 0: after `load_for`.
    pub backlog_bytes: u64,
    /// Inject the fault after this long at the latest.
    pub load_for: Duration,
}

/// Hears lines of the live timeline: seconds after the fault (`None` before it) and words.
pub type Say = Arc<dyn Fn(Option<f64>, &str) + Send + Sync>;

/// What a drill runs with.
pub struct Stage<'a> {
    /// Where ledgers go.
    pub dir: &'a Path,
    /// The live timeline.
    pub say: Say,
    /// Ends the drill early (Ctrl-C).
    pub interrupted: &'a AtomicBool,
    /// How the application is left.
    pub leave: StopHow,
}

impl Stage<'_> {
    fn check(&self) -> anyhow::Result<()> {
        if self.interrupted.load(Relaxed) {
            return Err(fail(ExitCode::TimedOut, "interrupted"));
        }
        Ok(())
    }

    /// Waits until `done` says so; an error when the time is over or the drill was interrupted.
    fn wait(&self, what: &str, limit: Duration, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let began = Instant::now();
        while !done()? {
            self.check()?;
            if began.elapsed() > limit {
                return Err(fail(ExitCode::TimedOut, format!("{what}: not within {} s", limit.as_secs())));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

/// Where clients of an application's endpoint find its database.
///
/// # Errors
/// The application is not a database that the load knows.
pub fn endpoint_target(app: &App) -> anyhow::Result<Target> {
    use crate::failover::ProbeKind;
    let address = app.endpoint.listen;
    let text = match app.probe.kind {
        ProbeKind::Postgresql => format!("postgres://{}@{address}/{}", app.probe.user, app.probe.database),
        ProbeKind::Mariadb => format!("mysql://root@{address}/segue_drill"),
        _ => {
            return Err(fail(ExitCode::Misuse, "probe.kind names no database; say --database where the load is to go"));
        }
    };
    Target::parse(&text).map_err(|e| fail(ExitCode::Misuse, e.to_string()))
}

/// Runs a drill.
///
/// # Errors
/// Whatever kept it from its end. A drill that ends, however badly, is a report.
pub fn run(plan: &Plan, stage: &Stage<'_>) -> anyhow::Result<Report> {
    let mut app = plan.app.clone();
    app.set_mode(plan.mode);
    // Nanoseconds of the machine's clock at the fault; 0 before it.
    let fault_at = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (say, at) = (Arc::clone(&stage.say), Arc::clone(&fault_at));
    let listener = Box::new(move |entry: &Entry| {
        let fault_ns = at.load(Relaxed);
        let after_s = (fault_ns > 0).then(|| (entry.t_ns as f64 - fault_ns as f64) / 1e9);
        say(after_s, &format!("{} {}", entry.event, entry.detail));
    });
    let monitor = Monitor::start(app, Options { on_entry: Some(listener) })?;
    let outcome = Drill { plan, stage, monitor: &monitor, fault_at: &fault_at }.run();
    let left = monitor.shut_down(if outcome.is_ok() { stage.leave } else { StopHow::StopApp });
    let report = outcome?;
    left.context("shut the monitor down")?;
    Ok(report)
}

struct Drill<'a> {
    plan: &'a Plan,
    stage: &'a Stage<'a>,
    monitor: &'a Monitor,
    fault_at: &'a std::sync::atomic::AtomicU64,
}

impl Drill<'_> {
    fn run(&self) -> anyhow::Result<Report> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        self.stage.wait("the application serves", SERVING_LIMIT, || Ok(self.monitor.status().state == "serving"))?;
        let target = &self.plan.load.target;
        runtime.block_on(prepare(target, self.plan.load.branches)).context("prepare the bank")?;
        let run = unix_ms();
        let (start, start_ns) = (Instant::now(), now_ns());
        let path = self.stage.dir.join(format!("ledger-{run}"));
        let ledger = Ledger::create(&path, run, start).with_context(|| format!("create {}", path.display()))?;
        let ledger = Arc::new(ledger);
        let load = Load::start(self.plan.load.clone(), Arc::clone(&ledger)).context("start the clients")?;
        let backlog_bytes = self.build_backlog(&runtime, &ledger)?;
        let before = self.monitor.seat().context("nothing serves")?.slot;
        let fault_unix_ms = unix_ms();
        self.fault_at.store(now_ns(), Relaxed);
        (self.stage.say)(Some(0.0), &format!("fault {}", self.plan.fault.name()));
        let injected = self.inject()?;
        let fault_ns = injected.at.duration_since(start).as_nanos() as u64;
        self.settle(&ledger, fault_ns)?;
        let end_ns = ledger.now_ns();
        let counts = load.stop();
        drop(injected);
        let contents = ledger.contents();
        self.say_summary(&contents, fault_ns);
        let verdict = runtime.block_on(async {
            drop(patient(target, RETURN_LIMIT).await?);
            Ok::<_, anyhow::Error>(verify::verify(target, run, &contents).await?)
        });
        let failed_over = self.monitor.seat().is_none_or(|seat| seat.slot != before);
        let timeline = self.timeline(start_ns + fault_ns);
        let setup = self.setup(backlog_bytes, fault_unix_ms);
        let observed = Observed { fault_ns, end_ns, failed_over, timeline, counts };
        let report = Report::new(setup, observed, &contents, verdict.context("verify the database")?);
        if report.is_clean() {
            drop(std::fs::remove_file(&path));
        }
        Ok(report)
    }

    /// Lets the load run until the backlog is as large as asked, or the time is over. Gives its size.
    fn build_backlog(&self, runtime: &tokio::runtime::Runtime, ledger: &Ledger) -> anyhow::Result<u64> {
        let Plan { load, backlog_bytes, load_for, .. } = self.plan;
        let mut session = runtime.block_on(patient(&load.target, RETURN_LIMIT))?;
        let began = Instant::now();
        loop {
            let bytes = runtime.block_on(bank::backlog_bytes(&mut session, load.target.kind))?;
            let enough = *backlog_bytes > 0 && bytes >= *backlog_bytes;
            if enough || began.elapsed() >= *load_for {
                let (commits, seconds) = (ledger.acked_count(), began.elapsed().as_secs_f64());
                let words = format!(
                    "load: {commits} commits in {seconds:.1} s, {} of log to redo",
                    crate::out::human_bytes(bytes)
                );
                (self.stage.say)(None, &words);
                return Ok(bytes);
            }
            self.stage.check()?;
            std::thread::sleep(POLL * 5);
        }
    }

    fn inject(&self) -> anyhow::Result<Injected> {
        let seat = self.monitor.seat().context("nothing serves")?;
        let family = seat.family.context("the instance has no processes")?;
        let stop_signal = self.plan.app.instance.stop_signal.signal();
        let victim = Victim { family, attachments: seat.attachments, stop_signal };
        let heal_after = self.plan.heal_after;
        let waits = self.plan.fault == Fault::Heal && self.plan.recovery_expected.is_none_or(|r| heal_after <= r);
        victim.inject(self.plan.fault, heal_after, || {
            if self.plan.mode == Mode::Oracle {
                self.monitor.tell(if waits { Order::Wait } else { Order::FailOver });
            }
        })
    }

    /// Waits until the service is back and stays, and the monitor has nothing more to do.
    fn settle(&self, ledger: &Ledger, fault_ns: u64) -> anyhow::Result<()> {
        let stalled = if self.plan.fault == Fault::Heal { self.plan.heal_after } else { Duration::ZERO };
        // Answers that were on their way at the fault must not pass for a service that is back.
        let not_before_ns = fault_ns + stalled.as_nanos() as u64 + 1_000_000_000;
        let mut good_since: Option<Instant> = None;
        self.stage.wait("the service comes back", RETURN_LIMIT, || {
            let now_ns = ledger.now_ns();
            let fresh = now_ns - ledger.last_ack_ns().min(now_ns) < FRESH_NS;
            if now_ns < not_before_ns || !fresh || !self.monitor.status().calm {
                good_since = None;
                return Ok(false);
            }
            Ok(good_since.get_or_insert_with(Instant::now).elapsed() >= TAIL)
        })
    }

    fn say_summary(&self, contents: &Contents, fault_ns: u64) {
        if let Some(gap) = contents.longest_gap(fault_ns) {
            let after_s = (gap.to_ns - fault_ns) as f64 / 1e9;
            (self.stage.say)(Some(after_s), &format!("first_commit after {:.3} s", gap.length_ns() as f64 / 1e9));
        }
    }

    fn timeline(&self, fault_ns: u64) -> Vec<Mark> {
        let after = |entry: &Entry| (entry.t_ns as f64 - fault_ns as f64) / 1e9;
        let entries = self.monitor.timeline().entries();
        entries.iter().filter(|e| e.t_ns >= fault_ns).map(|e| Mark { event: e.event.clone(), at_s: after(e) }).collect()
    }

    fn setup(&self, backlog_bytes: u64, fault_unix_ms: u64) -> Setup {
        let (mode, timeout_s) = match self.plan.mode {
            Mode::Speculative => ("speculative", 0.0),
            Mode::Reds { timeout_ns } => ("reds", timeout_ns as f64 / 1e9),
            Mode::Oracle => ("oracle", 0.0),
        };
        let fault = self.plan.fault;
        Setup {
            app: self.plan.app.name.clone(),
            mode: mode.into(),
            fault: fault.name().into(),
            timeout_s,
            heal_after_s: (fault == Fault::Heal).then_some(self.plan.heal_after.as_secs_f64()),
            clients: self.plan.load.clients,
            backlog_bytes,
            fault_unix_ms,
        }
    }
}

/// Makes the bank, if there is none, and a checkpoint: every drill begins with the same to redo, which is nothing.
async fn prepare(target: &Target, branches: u64) -> anyhow::Result<()> {
    if target.kind == Kind::Maria {
        let system = Target { database: "mysql".into(), ..target.clone() };
        let mut session = patient(&system, SERVING_LIMIT).await?;
        session.batch(&format!("CREATE DATABASE IF NOT EXISTS {}", target.database), SERVING_LIMIT).await?;
    }
    let mut session: Session = patient(target, SERVING_LIMIT).await?;
    bank::create(&mut session, target.kind, branches).await?;
    bank::checkpoint(&mut session, target.kind).await?;
    Ok(())
}
