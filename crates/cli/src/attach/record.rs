//! The state directory of an attachment: who runs it and what it is made of.
//!
//! Owns: `/run/segue/attach/NAME/` with its lock, record, log, socket and FUSE directory. Never: takes down a live daemon's
//! things.
//! Invariant: the lock is held exactly as long as the daemon lives, so a pid that was reused fools nobody.
//!
//! A daemon that was killed leaves its mount and FUSE directory behind, both failing every access; [`clean_up`] removes them.

use super::options::{AttachError, NodeAddr};
use super::{filesystem, fuse, loopdev};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What is written down about an attachment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Its name on this machine.
    pub name: String,
    /// The volume.
    pub volume: String,
    /// Where the node is.
    pub node: NodeAddr,
    /// The daemon.
    pub pid: u32,
    /// The block device.
    pub device: PathBuf,
    /// Where it is mounted.
    pub mount: Option<PathBuf>,
    /// True when attached for reading only.
    pub read_only: bool,
    /// Size of the device, bytes.
    pub size_bytes: u64,
    /// True when the daemon acquired the lease, so that detaching releases it.
    pub owns_lease: bool,
    /// Since when, milliseconds of Unix time.
    pub since_unix_ms: u64,
}

/// The paths inside one attachment's state directory.
#[derive(Debug, Clone)]
pub struct StateDir {
    /// The directory.
    pub dir: PathBuf,
}

impl StateDir {
    /// The directory of the attachment `name`.
    pub fn of(state_dir: &Path, name: &str) -> StateDir {
        StateDir { dir: state_dir.join(name) }
    }

    /// Held by the daemon while it lives.
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// The record.
    pub fn record(&self) -> PathBuf {
        self.dir.join("attachment.json")
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// The daemon's log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Where the FUSE mount is.
    pub fn fuse(&self) -> PathBuf {
        self.dir.join("fuse")
    }

    /// Writes the record, whole or not at all.
    ///
    /// # Errors
    /// [`AttachError::System`].
    pub fn write(&self, record: &Record) -> Result<(), AttachError> {
        let (path, fresh) = (self.record(), self.dir.join("attachment.json.new"));
        let text = serde_json::to_vec_pretty(record).expect("a record is plain data");
        let written = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &path));
        written.map_err(|source| AttachError::System { action: "write", path, source })
    }

    /// Reads the record; None while the daemon has not got that far.
    pub fn read(&self) -> Option<Record> {
        serde_json::from_slice(&std::fs::read(self.record()).ok()?).ok()
    }

    /// True while its daemon lives.
    pub fn is_alive(&self) -> bool {
        let Ok(file) = File::open(self.lock()) else { return false };
        Flock::lock(file, FlockArg::LockSharedNonblock).is_err()
    }
}

/// Makes and locks the state directory for `name`, cleaning up after a dead daemon of that name. None: the name is in use.
///
/// # Errors
/// [`AttachError::System`].
pub fn claim(state_dir: &Path, name: &str) -> Result<Option<(StateDir, Flock<File>)>, AttachError> {
    let system = |action: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source: std::io::Error| AttachError::System { action, path, source }
    };
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(state_dir).map_err(system("make", state_dir))?;
    let state = StateDir::of(state_dir, name);
    for _ in 0..16 {
        private.create(&state.dir).map_err(system("make", &state.dir))?;
        let path = state.lock();
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = match opened {
            Ok(file) => file,
            // Another removed the directory just now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(system("open", &path)(source)),
        };
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
        if !path.exists() {
            continue;
        }
        if state.record().exists() || state.fuse().exists() {
            take_remains(&state);
        }
        return Ok(Some((state, lock)));
    }
    Ok(None)
}

/// Takes down what a dead daemon left: its mount, its loop device, its FUSE mount.
fn take_remains(state: &StateDir) {
    tracing::info!(dir = %state.dir.display(), "taking down what a dead daemon left");
    // The device may be another's by now: only what still stands on our file is ours.
    let ours =
        |device: &Path| loopdev::backing_file(device).is_some_and(|file| Path::new(&file).starts_with(state.fuse()));
    if let Some(record) = state.read().filter(|record| ours(&record.device))
        && let Some(mount) = &record.mount
        && filesystem::mounts_of(&record.device).iter().any(|on| Path::new(on) == mount)
    {
        filesystem::shut_down(mount);
        let _ = fuse::umount_lazily(mount);
    }
    loopdev::free_all_under(&state.fuse());
    let _ = fuse::umount_lazily(&state.fuse());
    let _ = std::fs::remove_file(state.record());
    let _ = std::fs::remove_dir(state.fuse());
}

/// Removes the directory of an attachment that is down.
pub fn remove(state: &StateDir) {
    let _ = fuse::umount_lazily(&state.fuse());
    // Only files of ours are in it, and the (now empty) FUSE directory: never follow into a mount.
    for path in [state.socket(), state.record(), state.log(), state.dir.join("attachment.json.new"), state.lock()] {
        let _ = std::fs::remove_file(path);
    }
    let _ = std::fs::remove_dir(state.fuse());
    let _ = std::fs::remove_dir(&state.dir);
}

/// Takes down what is left of a dead daemon's attachment. False: its daemon lives, so it was left alone.
///
/// # Errors
/// [`AttachError::System`].
pub fn clean_up(state_dir: &Path, name: &str) -> Result<bool, AttachError> {
    let Some((state, _lock)) = claim(state_dir, name)? else { return Ok(false) };
    remove(&state);
    Ok(true)
}

/// All attachments of a machine, by name.
pub fn list(state_dir: &Path) -> Vec<(StateDir, Record)> {
    let Ok(entries) = std::fs::read_dir(state_dir) else { return Vec::new() };
    let mut all: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let state = StateDir { dir: entry.path() };
            state.read().map(|record| (state, record))
        })
        .collect();
    all.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    all
}
