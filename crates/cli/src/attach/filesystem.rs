//! File systems on an attached device: is there one, make one, mount it, let go of it.
//!
//! Owns: probing by magic numbers, `mkfs`, `mount`, `umount`, and the shutdown of a file system that must die at once.
//! Never: makes a file system on a device that has anything on it.
//! Invariant: what could not be read is not blank.

use super::options::FsKind;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// What is on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A file system attach knows.
    Known(FsKind),
    /// Something else: not ours to overwrite.
    Foreign,
    /// Nothing but zeroes where file systems, partition tables and volume managers put their marks.
    Blank,
}

/// Bytes at the head of a device that must all be zero for it to count as blank.
const PROBE_BYTES: usize = 128 << 10;

/// Why a file system could not be made or mounted.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The device could not be read.
    #[error("cannot read the device")]
    Read(#[source] io::Error),
    /// Nothing is on it and nothing was to be made.
    #[error("the device has no file system; say which to make with --fs ext4 or --fs xfs")]
    Blank,
    /// There is something on it that attach does not know.
    #[error("the device holds something that is neither ext4 nor XFS; attach without --mount and look at it")]
    Foreign,
    /// It has another file system than the one asked for.
    #[error("the device already has {found}; leave --fs {asked} away to mount that", found = .found.name(), asked = .asked.name())]
    Other {
        /// What it has.
        found: FsKind,
        /// What was asked for.
        asked: FsKind,
    },
    /// The device is read-only.
    #[error("the device has no file system and is attached read-only, so none can be made")]
    ReadOnly,
    /// `mkfs` is missing.
    #[error("cannot run mkfs.{kind}; install e2fsprogs or xfsprogs", kind = .kind.name())]
    NoMkfs {
        /// Which.
        kind: FsKind,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `mkfs` failed; its own words are in the daemon's log.
    #[error("mkfs.{kind} failed: {words}", kind = .kind.name())]
    Mkfs {
        /// Which.
        kind: FsKind,
        /// The last line it said.
        words: String,
    },
    /// The kernel refused the mount.
    #[error("cannot mount the {kind} file system; the kernel's log says why", kind = .kind.name())]
    Mount {
        /// Which.
        kind: FsKind,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The mount directory could not be made.
    #[error("cannot make the mount directory")]
    MakeDir(#[source] io::Error),
}

/// Looks at a device without the page cache.
///
/// # Errors
/// [`FsError::Read`].
pub fn probe(device: &Path) -> Result<Content, FsError> {
    let file = File::open(device).map_err(FsError::Read)?;
    let mut head = vec![0; PROBE_BYTES];
    let mut filled = 0;
    while filled < head.len() {
        match file.read_at(&mut head[filled..], filled as u64).map_err(FsError::Read)? {
            0 => break,
            bytes => filled += bytes,
        }
    }
    let ext = head[1024 + 56..1024 + 58] == [0x53, 0xef];
    Ok(match &head[..4] {
        b"XFSB" => Content::Known(FsKind::Xfs),
        _ if ext => Content::Known(FsKind::Ext4),
        _ if head.iter().all(|&byte| byte == 0) => Content::Blank,
        _ => Content::Foreign,
    })
}

/// Finds the file system to mount, making `wanted` when the device is blank.
///
/// # Errors
/// [`FsError`] says what is in the way.
pub fn find_or_make(device: &Path, wanted: Option<FsKind>, read_only: bool) -> Result<FsKind, FsError> {
    match (probe(device)?, wanted) {
        (Content::Known(found), Some(asked)) if found != asked => Err(FsError::Other { found, asked }),
        (Content::Known(found), _) => Ok(found),
        (Content::Foreign, _) => Err(FsError::Foreign),
        (Content::Blank, None) => Err(FsError::Blank),
        (Content::Blank, Some(_)) if read_only => Err(FsError::ReadOnly),
        (Content::Blank, Some(kind)) => make(device, kind).map(|()| kind),
    }
}

fn make(device: &Path, kind: FsKind) -> Result<(), FsError> {
    let options: &[&str] = match kind {
        // The volume is thin and reads as zero: no need to write empty inode tables, now or later.
        FsKind::Ext4 => &["-q", "-E", "lazy_itable_init=1,assume_storage_prezeroed=1"],
        FsKind::Xfs => &["-q"],
    };
    let run = |options: &[&str]| {
        let mut command = Command::new(format!("mkfs.{}", kind.name()));
        command
            .args(options)
            .arg(device)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| FsError::NoMkfs { kind, source })
    };
    let mut output = run(options)?;
    if !output.status.success() && kind == FsKind::Ext4 {
        // Before e2fsprogs 1.47 there is no assume_storage_prezeroed.
        output = run(&["-q", "-F"])?;
    }
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    tracing::error!(mkfs = %text.trim(), "mkfs failed");
    let words = text.trim().lines().last().unwrap_or("it said nothing").to_owned();
    Err(FsError::Mkfs { kind, words })
}

/// Mounts `device` on `dir`, which is made when missing.
///
/// # Errors
/// [`FsError::Mount`], [`FsError::MakeDir`].
pub fn mount(device: &Path, dir: &Path, kind: FsKind, read_only: bool) -> Result<(), FsError> {
    std::fs::create_dir_all(dir).map_err(FsError::MakeDir)?;
    let mut flags = nix::mount::MsFlags::MS_NOATIME;
    if read_only {
        flags |= nix::mount::MsFlags::MS_RDONLY;
    }
    // A copy of a mounted volume (the child of a super, a clone) has the same UUID; XFS would refuse it beside its parent.
    // Read-only, neither may write to replay its log.
    let data = match (kind, read_only) {
        (FsKind::Xfs, false) => "nouuid",
        (FsKind::Xfs, true) => "nouuid,norecovery",
        (FsKind::Ext4, false) => "",
        (FsKind::Ext4, true) => "noload",
    };
    let result = nix::mount::mount(Some(device), dir, Some(kind.name()), flags, Some(data));
    result.map_err(|error| FsError::Mount { kind, source: error.into() })
}

/// Unmounts `dir` after writing back what is dirty.
///
/// # Errors
/// The system's; EBUSY: a process has a file or its working directory there.
pub fn umount(dir: &Path) -> io::Result<()> {
    Ok(nix::mount::umount2(dir, nix::mount::MntFlags::UMOUNT_NOFOLLOW)?)
}

/// Stops the file system under `dir` at once: nothing more is written, every access fails with EIO.
pub fn shut_down(dir: &Path) {
    /// `_IOR('X', 125, __u32)`, the same for ext4 and XFS.
    const FS_IOC_SHUTDOWN: libc::Ioctl = 0x8004_587d;
    const NO_LOG_FLUSH: u32 = 2;
    let opened = File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC).open(dir);
    let Ok(file) = opened else { return };
    // SAFETY: the call reads a 32-bit number that lives across it. A file system that cannot is fine: its device fails.
    if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_SHUTDOWN, &NO_LOG_FLUSH) } != 0 {
        tracing::warn!(error = %io::Error::last_os_error(), "the file system cannot be shut down; its device fails instead");
    }
}

/// Directories that a device is mounted on.
pub fn mounts_of(device: &Path) -> Vec<String> {
    mounts().filter(|(what, _)| Path::new(what) == device).map(|(_, on)| on).collect()
}

fn mounts() -> impl Iterator<Item = (String, String)> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let unescape = |word: &str| word.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
    let lines: Vec<_> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((unescape(words.next()?), unescape(words.next()?)))
        })
        .collect();
    lines.into_iter()
}
