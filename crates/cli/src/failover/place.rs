//! An instance in a slot: attachments, mounts, processes, readiness; and taking all of it down again.
//!
//! Owns: one slot's directory and everything started for it. Never: decides when; never asks the node for a lease.
//! Invariant: a start that was issued before a stop of the same slot leaves nothing behind once that stop has returned.

use super::app::{App, VolumeSpec};
use super::clock;
use super::probe::{Cut, Outcome, Probe, Target};
use super::process::{self, Family, Group, Process, Spawn};
use super::timeline::Timeline;
use crate::attach::{AttachOptions, Attachment, FsKind, LeaseChoice};
use crate::out::chain;
use anyhow::Context;
use nix::mount::MsFlags;
use nix::unistd::{User, chown};
use segue_types::LeaseId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Names of the places: the two slots, and that of rehearsals.
const NAMES: [&str; 3] = ["a", "b", "r"];
/// Pause between two looks whether an instance is ready.
const READY_PAUSE: Duration = Duration::from_millis(20);
/// How long killed processes may take to go.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// A slot of an application on this machine.
pub struct Place {
    app: Arc<App>,
    index: usize,
    dir: PathBuf,
    user: User,
    timeline: Timeline,
    /// Only one start or stop works on the slot at a time.
    busy: Mutex<()>,
    /// Grows with every stop; a start whose ticket is older gives up.
    stops: AtomicU64,
    /// Ends the probe of a start that waits for readiness.
    waiting: Mutex<Option<Cut>>,
}

/// The right to start, until the next stop.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u64);

/// What is written down about an instance, so that another monitor finds it.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Record {
    leases: Vec<String>,
    leader: Option<Process>,
}

/// An instance, for drills that break it and for people who look.
#[derive(Clone)]
pub struct Instance {
    /// `a`, `b` or `r`.
    pub slot: &'static str,
    /// Its processes, if one was started.
    pub family: Option<Family>,
    /// Its attachments, one per volume.
    pub attachments: Vec<Attachment>,
    /// Its log.
    pub log: PathBuf,
}

/// How to take an instance down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Down {
    /// At once; nothing more reaches the node. For losers and children.
    Cut,
    /// In order: the stop signal, unmount, write back.
    InOrder,
}

impl Place {
    /// The place `index` (0, 1: slots a and b; 2: rehearsals).
    ///
    /// # Errors
    /// The user does not exist.
    pub fn new(app: &Arc<App>, index: usize, timeline: &Timeline) -> anyhow::Result<Place> {
        Ok(Place {
            app: app.clone(),
            index,
            dir: app.run_dir.join(NAMES[index]),
            user: process::user(&app.instance.user)?,
            timeline: timeline.clone(),
            busy: Mutex::new(()),
            stops: AtomicU64::new(0),
            waiting: Mutex::new(None),
        })
    }

    /// Its private port.
    pub fn port(&self) -> u16 {
        self.app.instance.ports[self.index]
    }

    /// The right to start until the next stop. Take it when the start is ordered, not when it begins.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.stops.load(Ordering::SeqCst))
    }

    /// Makes every start with an older ticket fail soon. Call it when the stop is ordered.
    pub fn revoke(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
        if let Some(cut) = self.waiting.lock().expect("nothing panics while holding it").take() {
            cut.cut();
        }
    }

    fn go_on(&self, ticket: Ticket) -> anyhow::Result<()> {
        anyhow::ensure!(self.stops.load(Ordering::SeqCst) == ticket.0, "a stop came in between");
        Ok(())
    }

    /// Attaches, mounts, starts and waits until the instance serves. What was in the slot before goes first, unless it is
    /// an instance with these leases: then only its readiness is waited for.
    ///
    /// # Errors
    /// What failed; whatever was started stays until the next start or stop of the slot.
    pub fn start(&self, leases: &[LeaseId], backup: bool, ticket: Ticket) -> anyhow::Result<()> {
        let _busy = self.busy.lock().expect("a start or stop does not panic");
        self.go_on(ticket)?;
        if self.running() != leases {
            self.take_down(Down::Cut);
            self.make_dirs()?;
            self.attach(leases, backup)?;
            self.go_on(ticket)?;
            self.initialize(backup, ticket)?;
            self.spawn(leases, backup)?;
        }
        self.wait_ready(ticket)
    }

    /// Takes everything in the slot down. Returns CPU time its processes had used, ms.
    pub fn stop(&self, down: Down) -> u64 {
        self.revoke();
        let _busy = self.busy.lock().expect("a start or stop does not panic");
        self.take_down(down)
    }

    /// The leases of the instance whose processes live here; empty when none do.
    pub fn running(&self) -> Vec<LeaseId> {
        let record = self.record();
        let lives = record.leader.is_some_and(|leader| leader.is_alive());
        let leases: Result<Vec<LeaseId>, _> = record.leases.iter().map(|text| text.parse()).collect();
        if lives { leases.unwrap_or_default() } else { Vec::new() }
    }

    /// True when an instance was started here and its leader has ended.
    pub fn has_ended(&self) -> bool {
        self.record().leader.is_some_and(|leader| !leader.is_alive())
    }

    /// What is here.
    pub fn instance(&self) -> Instance {
        let family = self.record().leader.map(|leader| self.family(leader));
        Instance { slot: NAMES[self.index], family, attachments: self.attachments(), log: self.log() }
    }

    /// A probe of the instance here.
    pub fn probe(&self) -> Probe {
        let env = self.env(false);
        let target = Target { env: &env, user: &self.user, port: self.port(), log: self.log() };
        Probe::new(&self.app.probe, &target)
    }

    /// Runs a command as the instance's user with the instance's variables; true when it succeeds. Output: the log.
    pub fn run(&self, command: &str) -> anyhow::Result<bool> {
        let (env, log) = (self.env(true), self.log());
        Ok(Spawn { command, user: &self.user, env: &env, log: &log, group: None }.run(&|| true)?)
    }

    fn take_down(&self, down: Down) -> u64 {
        let family = self.record().leader.map(|leader| self.family(leader));
        let cpu_ms = family.as_ref().map_or(0, Family::cpu_ms);
        let attachments = self.attachments();
        match down {
            Down::InOrder => {
                if let Some(family) = &family {
                    family.stop(self.app.instance.stop_signal.signal(), self.app.instance.stop_timeout);
                }
            }
            Down::Cut => self.cut(family.as_ref(), &attachments),
        }
        for one in &attachments {
            let detached = match down {
                Down::InOrder => one.detach(false).or_else(|_| one.detach(true)),
                Down::Cut => one.detach(true),
            };
            if let Err(error) = detached {
                self.timeline.add("error", format!("detach {}: {}", one.name(), chain(&error)));
            }
        }
        let _ = std::fs::remove_file(self.record_path());
        cpu_ms
    }

    /// Kills the processes and cuts the disks at the same time: a process that waits for its disk cannot even die.
    fn cut(&self, family: Option<&Family>, attachments: &[Attachment]) {
        std::thread::scope(|scope| {
            for one in attachments {
                // A daemon that is gone has cut itself off.
                scope.spawn(move || drop(one.cut()));
            }
            if family.is_some_and(|family| !family.kill(KILL_LIMIT)) {
                self.timeline.add("error", format!("processes of slot {} are stuck in the kernel", NAMES[self.index]));
            }
        });
    }

    fn make_dirs(&self) -> anyhow::Result<()> {
        let open = |dir: &Path| {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o711).create(dir).with_context(|| format!("cannot make {}", dir.display()))
        };
        open(&self.dir)?;
        let sockets = self.socket_dir();
        // Sockets of an earlier instance would be refused at best, and answered by a stranger at worst.
        let _ = std::fs::remove_dir_all(&sockets);
        open(&sockets)?;
        chown(&sockets, Some(self.user.uid), Some(self.user.gid))?;
        std::fs::set_permissions(&sockets, Permissions::from_mode(0o700))?;
        Ok(())
    }

    fn attach(&self, leases: &[LeaseId], backup: bool) -> anyhow::Result<()> {
        let began = Instant::now();
        let results: Vec<_> = std::thread::scope(|scope| {
            let attach = |(i, lease)| scope.spawn(move || Attachment::attach(&self.attach_options(i, lease, backup)));
            let threads: Vec<_> = leases.iter().enumerate().map(attach).collect();
            threads.into_iter().map(|thread| thread.join().expect("attaching does not panic")).collect()
        });
        for result in results {
            result?;
        }
        for (i, volume) in self.app.volumes.iter().enumerate() {
            calm_journal(&self.mount_dir(i), volume)?;
        }
        self.timeline.add("mounted", format!("slot {} in {} ms", NAMES[self.index], began.elapsed().as_millis()));
        Ok(())
    }

    fn attach_options(&self, i: usize, lease: &LeaseId, backup: bool) -> AttachOptions {
        let volume = &self.app.volumes[i];
        let mut options = AttachOptions::new(&volume.name, self.app.nbd.clone(), &self.app.admin);
        options.name = Some(self.attachment_name(i));
        options.lease = LeaseChoice::Given(lease.to_string());
        options.token = volume.token.clone();
        options.mount = Some(self.mount_dir(i));
        // A child without a file system has nothing to recover: making one would hide that.
        options.fs = (!backup).then_some(volume.fs);
        options.state_dir = self.attach_dir();
        options
    }

    /// Makes the data on an empty volume.
    fn initialize(&self, backup: bool, ticket: Ticket) -> anyhow::Result<()> {
        let spec = &self.app.instance;
        let (Some(init), Some(done)) = (&spec.init, &spec.init_done) else { return Ok(()) };
        if self.mount_dir(0).join(done).exists() {
            return Ok(());
        }
        anyhow::ensure!(!backup, "the volume holds no data yet ({} is missing)", done.display());
        for i in 0..self.app.volumes.len() {
            chown(&self.mount_dir(i), Some(self.user.uid), Some(self.user.gid))?;
        }
        self.timeline.add("initializing", format!("slot {}", NAMES[self.index]));
        let (env, log) = (self.env(backup), self.log());
        let spawn = Spawn { command: init, user: &self.user, env: &env, log: &log, group: None };
        let good = spawn.run(&|| self.go_on(ticket).is_ok())?;
        anyhow::ensure!(good, "instance.init failed; see {}", log.display());
        Ok(())
    }

    fn spawn(&self, leases: &[LeaseId], backup: bool) -> anyhow::Result<()> {
        let (env, log) = (self.env(backup), self.log());
        let leases = leases.iter().map(LeaseId::to_string).collect();
        let group = Group::open(&self.group_name());
        let command = &self.app.instance.start;
        let spawn = Spawn { command, user: &self.user, env: &env, log: &log, group: group.as_ref() };
        let leader = spawn.start().context("cannot start the instance")?;
        self.write_record(&Record { leases, leader: Some(leader) })?;
        self.timeline.add("spawned", format!("slot {} pid {}", NAMES[self.index], leader.pid));
        Ok(())
    }

    fn wait_ready(&self, ticket: Ticket) -> anyhow::Result<()> {
        let limit = Duration::from_nanos(self.app.race.recovery_ns_max);
        let began = Instant::now();
        let mut probe = self.probe();
        *self.waiting.lock().expect("nothing panics while holding it") = Some(probe.cutter());
        loop {
            // After the cutter is in place, so that a stop from now on ends the probe.
            self.go_on(ticket)?;
            if probe.ask() == Outcome::Answer {
                self.waiting.lock().expect("nothing panics while holding it").take();
                self.go_on(ticket)?;
                self.timeline.add("ready", format!("slot {} at {} ns", NAMES[self.index], clock::now_ns()));
                return Ok(());
            }
            anyhow::ensure!(!self.has_ended(), "the instance ended before it was ready; see {}", self.log().display());
            anyhow::ensure!(
                began.elapsed() < limit,
                "not ready within race.recovery_max; see {}",
                self.log().display()
            );
            std::thread::sleep(READY_PAUSE);
        }
    }

    fn env(&self, backup: bool) -> BTreeMap<String, String> {
        let app = &self.app;
        let mut env = app.instance.env.clone();
        let mut set = |name: &str, value: String| {
            env.entry(name.to_owned()).or_insert(value);
        };
        set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
        set("HOME", self.user.dir.display().to_string());
        set("USER", self.user.name.clone());
        set("LANG", "C.UTF-8".into());
        set("SEGUE_APP", app.name.clone());
        set("SEGUE_ROLE", if backup { "backup" } else { "primary" }.into());
        set("SEGUE_SLOT", NAMES[self.index].into());
        set("SEGUE_PORT", self.port().to_string());
        set("SEGUE_SOCKET_DIR", self.socket_dir().display().to_string());
        for i in 0..app.volumes.len() {
            let name = if i == 0 { "SEGUE_DATA_DIR".to_owned() } else { format!("SEGUE_DATA_DIR_{}", i + 1) };
            set(&name, self.mount_dir(i).display().to_string());
        }
        env
    }

    fn family(&self, leader: Process) -> Family {
        let dirs = (0..self.app.volumes.len()).map(|i| self.mount_dir(i)).collect();
        Family { leader, group: Group::find(&self.group_name()), dirs }
    }

    fn attachments(&self) -> Vec<Attachment> {
        let names: Vec<String> = (0..self.app.volumes.len()).map(|i| self.attachment_name(i)).collect();
        let all = Attachment::list(&self.attach_dir());
        all.into_iter().filter(|one| names.iter().any(|name| name == one.name())).collect()
    }

    fn attachment_name(&self, i: usize) -> String {
        format!("{}-{}-{i}", self.app.name, NAMES[self.index])
    }

    fn group_name(&self) -> String {
        format!("{}-{}", self.app.name, NAMES[self.index])
    }

    fn attach_dir(&self) -> PathBuf {
        self.app.run_dir.join("attach")
    }

    fn mount_dir(&self, i: usize) -> PathBuf {
        self.dir.join(format!("mnt{i}"))
    }

    fn socket_dir(&self) -> PathBuf {
        self.dir.join("sock")
    }

    fn log(&self) -> PathBuf {
        self.app.run_dir.join(format!("{}.log", NAMES[self.index]))
    }

    fn record_path(&self) -> PathBuf {
        self.dir.join("instance.json")
    }

    fn record(&self) -> Record {
        let bytes = std::fs::read(self.record_path()).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    fn write_record(&self, record: &Record) -> anyhow::Result<()> {
        let fresh = self.dir.join("instance.json.new");
        std::fs::write(&fresh, serde_json::to_vec(record).expect("a record is plain data"))?;
        std::fs::set_permissions(&fresh, Permissions::from_mode(0o600))?;
        std::fs::rename(&fresh, self.record_path()).context("cannot write the instance's record")
    }
}

/// Lets the file system commit its journal on its own initiative less often.
///
/// What an application asks to be durable is durable at once all the same. But a kernel whose application is dead or
/// stopped goes on committing, every such commit is a flush, and every flush keeps the primary: a backup could win only
/// between two of them.
fn calm_journal(dir: &Path, volume: &VolumeSpec) -> anyhow::Result<()> {
    if volume.fs != FsKind::Ext4 {
        return Ok(());
    }
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOATIME;
    let options = format!("commit={}", volume.journal_commit.as_secs());
    nix::mount::mount(None::<&str>, dir, None::<&str>, flags, Some(options.as_str()))
        .with_context(|| format!("cannot set {options} on {}", dir.display()))
}
