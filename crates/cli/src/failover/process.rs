//! An instance's processes: started as an unprivileged user, found again after a restart, signalled together.
//!
//! Owns: the instance's session, its control group where the system has one, and the search for every process of it.
//! Never: decides what to start or stop.
//! Invariant: a pid is used only together with the start time of its process, so that a pid that was given to another
//! process is never signalled.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, User};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What to run.
pub struct Spawn<'a> {
    /// A command for `/bin/sh -c`.
    pub command: &'a str,
    /// As whom.
    pub user: &'a User,
    /// Its environment, whole.
    pub env: &'a BTreeMap<String, String>,
    /// Where its output goes (appended).
    pub log: &'a Path,
    /// The control group to put it in, if there are any.
    pub group: Option<&'a Group>,
}

/// A process, by pid and start time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// When it started, clock ticks since boot.
    pub start_ticks: u64,
}

/// Looks up a user.
///
/// # Errors
/// No such user, or the user is root while an unprivileged one is needed.
pub fn user(name: &str) -> anyhow::Result<User> {
    let user = User::from_name(name)?.ok_or_else(|| anyhow::anyhow!("there is no user `{name}` on this machine"))?;
    anyhow::ensure!(!user.uid.is_root(), "instance.user must not be root");
    Ok(user)
}

impl Spawn<'_> {
    /// Starts it in a session of its own. It outlives this process.
    ///
    /// # Errors
    /// The log cannot be written, or the system has no more processes.
    pub fn start(&self) -> io::Result<Process> {
        let child = self.command()?.spawn()?;
        let pid = child.id() as i32;
        let start_ticks = Stat::of(pid).map_or(0, |stat| stat.start_ticks);
        reap(child);
        Ok(Process { pid, start_ticks })
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// As [`Spawn::start`]; `Ok(false)` when it ended with another exit code than 0, or was stopped by `go_on`.
    pub fn run(&self, go_on: &dyn Fn() -> bool) -> io::Result<bool> {
        let mut child = self.command()?.spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            if !go_on() {
                // It leads a process group of its own.
                let _ = kill(Pid::from_raw(-(child.id() as i32)), Signal::SIGKILL);
                child.wait()?;
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn command(&self) -> io::Result<Command> {
        let log = OpenOptions::new().create(true).append(true).mode(0o640).open(self.log)?;
        let (uid, gid) = (self.user.uid, self.user.gid);
        let name = CString::new(self.user.name.as_str()).map_err(io::Error::other)?;
        let group = self.group.map(|group| File::options().write(true).open(group.dir.join("cgroup.procs")));
        let group = group.transpose()?;
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(self.command).env_clear().envs(self.env).current_dir("/");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // SAFETY: between fork and exec only system calls are made, on values prepared before the fork.
        unsafe { command.pre_exec(move || enter(uid, gid, &name, group.as_ref())) };
        Ok(command)
    }
}

/// What the new process does before it becomes the command.
fn enter(uid: Uid, gid: Gid, name: &CString, group: Option<&File>) -> io::Result<()> {
    nix::unistd::setsid()?;
    if let Some(group) = group {
        // "0" means the writer itself.
        nix::unistd::write(group, b"0")?;
    }
    // Only root can become another; an instance of one's own user needs no change.
    if Uid::effective() != uid {
        nix::unistd::initgroups(name, gid)?;
        nix::unistd::setgid(gid)?;
        nix::unistd::setuid(uid)?;
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    Ok(())
}

/// Waits for a child in the background, so that it never stays a zombie that looks alive.
fn reap(mut child: std::process::Child) {
    let waiting = std::thread::Builder::new().name("reaper".into()).spawn(move || child.wait());
    drop(waiting);
}

/// A control group (version 2) that holds all processes of one instance, whatever sessions they open.
#[derive(Clone, Debug)]
pub struct Group {
    dir: PathBuf,
}

impl Group {
    /// Makes the group, or finds it; `None` where the system has no writable control groups.
    pub fn open(name: &str) -> Option<Group> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let root = roots.iter().map(Path::new).find(|root| root.join("cgroup.controllers").exists())?;
        let dir = root.join(format!("segue-{name}"));
        match std::fs::create_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
        Some(Group { dir })
    }

    /// Finds the group; `None` when there is none.
    pub fn find(name: &str) -> Option<Group> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let dirs = roots.iter().map(|root| Path::new(root).join(format!("segue-{name}")));
        dirs.into_iter().find(|dir| dir.join("cgroup.procs").exists()).map(|dir| Group { dir })
    }

    fn pids(&self) -> Vec<i32> {
        let text = std::fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// CPU time ever used in the group, ms.
    fn cpu_ms(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.dir.join("cpu.stat")).ok()?;
        let us: u64 = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.parse().ok()?;
        Some(us / 1000)
    }

    fn remove(&self) {
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// What `/proc/PID/stat` says that matters here.
struct Stat {
    state: char,
    parent: i32,
    session: i32,
    cpu_ticks: u64,
    start_ticks: u64,
}

impl Stat {
    fn of(pid: i32) -> Option<Stat> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in parentheses and may contain anything, parentheses too.
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        let number = |i: usize| fields.get(i)?.trim().parse::<u64>().ok();
        Some(Stat {
            state: fields.first()?.chars().next()?,
            parent: number(1)? as i32,
            session: number(3)? as i32,
            // Own time, and that of children that were waited for.
            cpu_ticks: number(11)? + number(12)? + number(13)? + number(14)?,
            start_ticks: number(19)?,
        })
    }

    fn alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

impl Process {
    /// True while it runs (a zombie does not).
    pub fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.alive() && stat.start_ticks == self.start_ticks)
    }

    /// Sends a signal to this process alone.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}

/// All processes of an instance.
#[derive(Clone, Debug)]
pub struct Family {
    /// The process that was started.
    pub leader: Process,
    /// Their control group.
    pub group: Option<Group>,
    /// Where the instance's volumes are mounted: a process that works there belongs to it.
    pub dirs: Vec<PathBuf>,
}

impl Family {
    /// The living members.
    pub fn members(&self) -> Vec<Process> {
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if let Some(stat) = Stat::of(pid).filter(Stat::alive) {
                all.insert(pid, stat);
            }
        }
        let grouped: BTreeSet<i32> = self.group.iter().flat_map(Group::pids).collect();
        let leader_lives = all.get(&self.leader.pid).is_some_and(|stat| stat.start_ticks == self.leader.start_ticks);
        // A session id is a pid: while members of the session live, it is not given to another process.
        let session_is_ours = leader_lives || !all.contains_key(&self.leader.pid);
        let mut family: BTreeSet<i32> = BTreeSet::new();
        for (&pid, stat) in &all {
            let in_session = session_is_ours && stat.session == self.leader.pid;
            if in_session || grouped.contains(&pid) || self.works_here(pid) {
                family.insert(pid);
            }
        }
        // Children open sessions of their own (PostgreSQL's do).
        loop {
            let more: Vec<i32> = all.iter().filter(|(_, s)| family.contains(&s.parent)).map(|(&pid, _)| pid).collect();
            let before = family.len();
            family.extend(more);
            if family.len() == before {
                break;
            }
        }
        let own = std::process::id() as i32;
        family.retain(|&pid| pid != own && pid > 1);
        family.into_iter().map(|pid| Process { pid, start_ticks: all[&pid].start_ticks }).collect()
    }

    fn works_here(&self, pid: i32) -> bool {
        let Ok(dir) = std::fs::read_link(format!("/proc/{pid}/cwd")) else { return false };
        self.dirs.iter().any(|mount| dir.starts_with(mount))
    }

    /// Sends a signal to every member.
    pub fn signal(&self, signal: Signal) {
        for member in self.members() {
            member.signal(signal);
        }
    }

    /// CPU time of the whole instance since it was started, ms: exact with a control group, else that of living members.
    pub fn cpu_ms(&self) -> u64 {
        if let Some(ms) = self.group.as_ref().and_then(Group::cpu_ms) {
            return ms;
        }
        // SAFETY: a call without arguments in memory.
        let per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
        let members = self.members();
        let ticks: u64 = members.iter().filter_map(|member| Stat::of(member.pid)).map(|stat| stat.cpu_ticks).sum();
        ticks * 1000 / per_s
    }

    /// Kills every member, again and again until none is left; false when some are left after `limit` (stuck in the kernel).
    pub fn kill(&self, limit: Duration) -> bool {
        let began = Instant::now();
        loop {
            let members = self.members();
            if members.is_empty() {
                if let Some(group) = &self.group {
                    group.remove();
                }
                return true;
            }
            if began.elapsed() > limit {
                return false;
            }
            members.iter().for_each(|member| member.signal(Signal::SIGKILL));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks the leader to stop in order, then kills what is left after `limit`.
    pub fn stop(&self, signal: Signal, limit: Duration) -> bool {
        let began = Instant::now();
        self.leader.signal(signal);
        while self.leader.is_alive() && began.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        let in_order = !self.leader.is_alive();
        self.kill(Duration::from_secs(10)) && in_order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(command: &str, dir: &Path) -> Family {
        let me = User::from_uid(Uid::effective()).unwrap().unwrap();
        let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
        let log = dir.join("log");
        let spawn = Spawn { command, user: &me, env: &env, log: &log, group: None };
        Family { leader: spawn.start().unwrap(), group: None, dirs: vec![dir.to_owned()] }
    }

    /// Waits for a condition with a bound.
    fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < Duration::from_secs(30), "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn fault_members_that_left_the_session_and_lost_their_parent_are_killed_too() {
        let dir = tempfile::tempdir().unwrap();
        let command = format!("cd {}; setsid sh -c 'sleep 600 & sleep 600' & exec sleep 600", dir.path().display());
        let family = start(&command, dir.path());
        until("four members", || family.members().len() >= 4);
        let members = family.members();
        // The leader first: the others are orphans then.
        family.leader.signal(Signal::SIGKILL);
        until("the leader is gone", || !family.leader.is_alive());
        assert!(!family.members().is_empty());
        assert!(family.kill(Duration::from_secs(20)));
        assert!(members.iter().all(|member| !member.is_alive()));
    }

    #[test]
    fn fault_stopped_instances_are_killed_too() {
        let dir = tempfile::tempdir().unwrap();
        let family = start("sleep 600; true", dir.path());
        until("two members", || family.members().len() >= 2);
        family.signal(Signal::SIGSTOP);
        family.stop(Signal::SIGTERM, Duration::from_millis(20));
        assert!(family.members().is_empty());
    }

    #[test]
    fn model_a_reused_pid_is_not_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let family = start("exec sleep 600", dir.path());
        let stranger = Process { start_ticks: family.leader.start_ticks + 1, ..family.leader };
        stranger.signal(Signal::SIGKILL);
        assert!(!stranger.is_alive() && family.leader.is_alive());
        assert!(family.kill(Duration::from_secs(20)));
    }
}
