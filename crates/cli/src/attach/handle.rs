//! The handle of an attachment, for this program's own use: the failover driver and the commands.
//!
//! Owns: starting a daemon, finding running ones, and asking them. Never: touches a device itself, unless its daemon is dead.
//! Invariant: dropping a handle changes nothing; attachments outlive the process that made them.

use super::control::{self, Answer, AttachStatus, Command};
use super::options::{AttachError, AttachOptions};
use super::record::{self, Record, StateDir};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The hidden command that runs a daemon.
pub const DAEMON_COMMAND: &str = "attach-daemon";

/// How long a daemon may take for what needs neither node nor disk.
const QUICK: Duration = Duration::from_secs(10);
/// How long taking down may take beyond the waits that the timeout bounds.
const SLOW: Duration = Duration::from_secs(600);

/// An attachment that stands. All calls block; all may be made from any thread.
#[derive(Debug, Clone)]
pub struct Attachment {
    state: StateDir,
    record: Record,
}

impl Attachment {
    /// Attaches a volume: starts the daemon and returns when the device (and the mount, if one was asked for) is ready.
    ///
    /// # Errors
    /// [`AttachError::Setup`] with the daemon's own words; by then it has undone what it had done. Others before it began.
    pub fn attach(options: &AttachOptions) -> Result<Attachment, AttachError> {
        options.check()?;
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("segue"));
        let spawn = |source| AttachError::Spawn { program: program.clone(), source };
        let mut child = std::process::Command::new(&program)
            .arg(DAEMON_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(spawn)?;
        let text = serde_json::to_vec(options).expect("options are plain data");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        stdin.write_all(&text).map_err(spawn)?;
        drop(stdin);
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut line);
        // It has forked the daemon and ended.
        child.wait().map_err(spawn)?;
        read.map_err(spawn)?;
        let setup =
            |message: String, exit_code| AttachError::Setup { volume: options.volume.clone(), message, exit_code };
        let internal = crate::exit::ExitCode::Internal as u8;
        let answer: Answer =
            serde_json::from_str(&line).map_err(|_| setup("its daemon ended without a word".to_owned(), internal))?;
        if !answer.ok {
            return Err(setup(answer.message, answer.exit_code));
        }
        let state = StateDir::of(&options.state_dir, &answer.message);
        let record = state.read().ok_or_else(|| setup("its daemon is gone again".to_owned(), internal))?;
        Ok(Attachment { state, record })
    }

    /// Finds an attachment by its name or, where none has that name, by volume, device or mount directory.
    ///
    /// # Errors
    /// [`AttachError::NotFound`], [`AttachError::Ambiguous`].
    pub fn find(state_dir: &Path, what: &str) -> Result<Attachment, AttachError> {
        let path = std::fs::canonicalize(what).unwrap_or_else(|_| PathBuf::from(what));
        let all = Attachment::list(state_dir);
        if let Some(one) = all.iter().find(|one| one.record.name == what) {
            return Ok(one.clone());
        }
        let matching = |one: &&Attachment| {
            one.record.volume == what || one.record.device == path || one.record.mount.as_ref() == Some(&path)
        };
        let found: Vec<_> = all.iter().filter(matching).collect();
        match found[..] {
            [one] => Ok(one.clone()),
            [] => Err(AttachError::NotFound { what: what.to_owned() }),
            _ => {
                let names: Vec<_> = found.iter().map(|one| one.record.name.as_str()).collect();
                Err(AttachError::Ambiguous { what: what.to_owned(), names: names.join(", ") })
            }
        }
    }

    /// All attachments of this machine, dead daemons' included, by name.
    pub fn list(state_dir: &Path) -> Vec<Attachment> {
        record::list(state_dir).into_iter().map(|(state, record)| Attachment { state, record }).collect()
    }

    /// Its name on this machine.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// The block device.
    pub fn device(&self) -> &Path {
        &self.record.device
    }

    /// Where its file system is mounted, if it is.
    pub fn mount_dir(&self) -> Option<&Path> {
        self.record.mount.as_deref()
    }

    /// What it is made of.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The daemon's log.
    pub fn log(&self) -> PathBuf {
        self.state.log()
    }

    /// True while its daemon lives.
    pub fn is_alive(&self) -> bool {
        self.state.is_alive()
    }

    fn ask(&self, command: Command, limit: Duration) -> Result<Answer, AttachError> {
        let answer = control::ask(&self.state.socket(), command, limit).map_err(|source| AttachError::NoDaemon {
            name: self.record.name.clone(),
            pid: self.record.pid,
            source,
        })?;
        if answer.ok {
            return Ok(answer);
        }
        let (name, message) = (self.record.name.clone(), answer.message);
        Err(AttachError::Command { name, command: command.name(), message })
    }

    /// How it fares.
    ///
    /// # Errors
    /// [`AttachError::NoDaemon`]: detach with force to take its remains down.
    pub fn status(&self) -> Result<AttachStatus, AttachError> {
        let gone = || AttachError::NotFound { what: self.record.name.clone() };
        self.ask(Command::Status, QUICK)?.status.ok_or_else(gone)
    }

    /// Takes it down: unmounts, writes back, frees the device, gives back a lease it acquired.
    ///
    /// Without `force` anything in the way (a file in use, a node that does not take the data) is an error, and the
    /// attachment still stands. With `force` nothing stops it: a node that is up still gets what is dirty; a node that is
    /// not, does not; a daemon that does not answer is killed and its remains are taken down.
    ///
    /// # Errors
    /// [`AttachError::Command`] with what is in the way; [`AttachError::NoDaemon`] without force.
    pub fn detach(&self, force: bool) -> Result<(), AttachError> {
        if !self.is_alive() {
            return self.clean_up();
        }
        match self.ask(Command::Detach { force }, if force { QUICK * 6 } else { SLOW }) {
            Ok(_) => {}
            Err(AttachError::NoDaemon { .. }) if force => {
                self.kill();
                return self.clean_up();
            }
            Err(error) => return Err(error),
        }
        self.wait_gone();
        Ok(())
    }

    fn clean_up(&self) -> Result<(), AttachError> {
        let state_dir = self.state.dir.parent().unwrap_or(Path::new("/"));
        record::clean_up(state_dir, &self.record.name)?;
        Ok(())
    }

    /// Kills a daemon that does not answer. The lock it holds proves that the process is still the same.
    fn kill(&self) {
        if self.is_alive() {
            let pid = nix::unistd::Pid::from_raw(self.record.pid as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            self.wait_gone();
        }
    }

    /// The daemon ends once the kernel has let go of everything: soon, unless a process still uses it.
    fn wait_gone(&self) {
        let began = Instant::now();
        while self.is_alive() && began.elapsed() < QUICK {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Cuts it off as if this machine had lost power with its kernel and its page cache: when this returns, nothing more
    /// will ever reach the node, every access fails with EIO, the mount is out of the name space, and the loop device is
    /// free as soon as no process has a file open on it. A lease is not given back: a dead machine cannot.
    ///
    /// # Errors
    /// [`AttachError::NoDaemon`]: it is dead already, and with it its connections.
    pub fn cut(&self) -> Result<(), AttachError> {
        self.ask(Command::Cut, SLOW).map(drop)
    }

    /// Stops talking to the node without dropping anything: requests wait, at most the timeout, then fail with EIO.
    ///
    /// # Errors
    /// [`AttachError::NoDaemon`].
    pub fn partition(&self) -> Result<(), AttachError> {
        self.ask(Command::Partition, QUICK).map(drop)
    }

    /// Talks to the node again, on the same connections where no request has been failed meanwhile.
    ///
    /// # Errors
    /// [`AttachError::NoDaemon`].
    pub fn heal(&self) -> Result<(), AttachError> {
        self.ask(Command::Heal, QUICK).map(drop)
    }
}
