//! A regular file or block device as a drive.
//!
//! Owns: the open descriptor, its lock, and the blocking I/O on it. Never: caches; that is the engine's job.
//! Invariant: offsets and lengths reach the kernel as whole 4 KiB blocks, so direct I/O never fails for alignment.

use super::{DriveOpenError, MIN_DRIVE_BYTES};
use segue_volume::device::{BlockDev, DriveError};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
const BLKDISCARD: libc::c_ulong = 0x1277;

/// A file or block device, opened for reading and writing, with direct I/O where the file system allows it.
#[derive(Debug)]
pub struct FileDrive {
    file: File,
    capacity_bytes: u64,
    direct: bool,
    block_device: bool,
}

impl FileDrive {
    /// Opens and locks the drive. Tries direct I/O first and falls back to the page cache when refused.
    ///
    /// # Errors
    /// [`DriveOpenError`] names the cause and what to do.
    pub fn open(path: &Path) -> Result<FileDrive, DriveOpenError> {
        let open = |flags: i32| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let failed = |source| DriveOpenError::Open { path: path.to_owned(), source };
        let plain = open(libc::O_CLOEXEC | libc::O_NONBLOCK).map_err(failed)?;
        let meta = plain.metadata().map_err(failed)?;
        let block_device = meta.file_type().is_block_device();
        if !block_device && !meta.is_file() {
            return Err(DriveOpenError::NotADrive { path: path.to_owned() });
        }
        let bytes = if block_device { device_bytes(&plain).map_err(failed)? } else { meta.len() };
        if bytes < MIN_DRIVE_BYTES {
            return Err(DriveOpenError::TooSmall { bytes });
        }
        let (file, direct) = match open(libc::O_CLOEXEC | libc::O_DIRECT) {
            Ok(file) => (file, true),
            Err(_) => (open(libc::O_CLOEXEC).map_err(failed)?, false),
        };
        lock(&file).map_err(|source| match source.raw_os_error() {
            Some(libc::EWOULDBLOCK) => DriveOpenError::InUse { path: path.to_owned() },
            _ => failed(source),
        })?;
        Ok(FileDrive { file, capacity_bytes: bytes & !4095, direct, block_device })
    }

    /// The same open drive once more. The lock is held until the last of them is closed.
    ///
    /// # Errors
    /// The system's: it has no descriptor left.
    pub fn again(&self) -> io::Result<FileDrive> {
        let FileDrive { capacity_bytes, direct, block_device, .. } = *self;
        Ok(FileDrive { file: self.file.try_clone()?, capacity_bytes, direct, block_device })
    }

    /// True when I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// True for a block device.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// The descriptor, for asynchronous I/O while this value lives.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl BlockDev for FileDrive {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.file.read_exact_at(buf, offset).map_err(drive_error)
    }

    fn write(&mut self, offset: u64, buf: &[u8]) -> Result<(), DriveError> {
        self.file.write_all_at(buf, offset).map_err(drive_error)
    }

    fn flush(&mut self) -> Result<(), DriveError> {
        self.file.sync_data().map_err(drive_error)
    }
}

/// Makes a new sparse file of this size for a pool. Refuses to touch a file that exists.
///
/// # Errors
/// [`DriveOpenError::Open`] when the file exists or cannot be made, [`DriveOpenError::TooSmall`].
pub fn create_sparse(path: &Path, bytes: u64) -> Result<(), DriveOpenError> {
    if bytes < MIN_DRIVE_BYTES {
        return Err(DriveOpenError::TooSmall { bytes });
    }
    let make = || -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(bytes)?;
        file.sync_all()
    };
    make().map_err(|source| DriveOpenError::Open { path: path.to_owned(), source })
}

/// Gives a range back to the file system or device: a hint, so failing is fine. Returns an errno, 0 on success.
pub(crate) fn discard_range(fd: RawFd, block_device: bool, offset: u64, len: u64) -> i32 {
    let result = if block_device {
        let range: [u64; 2] = [offset, len];
        unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) }
    } else {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        unsafe { libc::fallocate(fd, mode, offset as libc::off_t, len as libc::off_t) }
    };
    if result == 0 { 0 } else { errno_of(&io::Error::last_os_error()) }
}

fn device_bytes(file: &File) -> io::Result<u64> {
    let mut bytes = 0u64;
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) } {
        0 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes the drive's lock. A node that was killed holds it until the kernel has ended its last request, a moment after
/// its process is gone: that is waited for, so that a restart right after a crash works.
fn lock(file: &File) -> io::Result<()> {
    let begun = std::time::Instant::now();
    loop {
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if begun.elapsed() >= LOCK_PATIENCE {
            return Err(error);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// How long a drive that another holds is waited for.
const LOCK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

fn drive_error(error: io::Error) -> DriveError {
    DriveError { errno: errno_of(&error) }
}

pub(crate) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conform_a_file_drive_is_exclusive_and_keeps_what_it_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("drive");
        create_sparse(&path, 8 << 20).unwrap();
        assert!(create_sparse(&path, 8 << 20).is_err());
        let mut drive = FileDrive::open(&path).unwrap();
        assert_eq!(drive.capacity_bytes(), 8 << 20);
        assert!(matches!(FileDrive::open(&path), Err(DriveOpenError::InUse { .. })));
        let mut mem = segue_volume::mem::Mem::new(1 << 20);
        let buf = mem.alloc(8192).unwrap();
        mem.get_mut(buf).fill(7);
        drive.write(4096, mem.get(buf)).unwrap();
        drive.flush().unwrap();
        mem.get_mut(buf).fill(0);
        drive.read(4096, mem.get_mut(buf)).unwrap();
        assert!(mem.get(buf).iter().all(|b| *b == 7));
        assert_eq!(discard_range(drive.fd(), false, 4096, 4096), 0);
        drive.read(4096, mem.get_mut(buf)).unwrap();
        assert_eq!((mem.get(buf)[0], mem.get(buf)[4096]), (0, 7));
        drop(drive);
        FileDrive::open(&path).unwrap();
    }

    #[test]
    fn conform_what_is_no_drive_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(FileDrive::open(dir.path()).is_err());
        assert!(FileDrive::open(&dir.path().join("none")).is_err());
        let small = dir.path().join("small");
        std::fs::write(&small, [0; 512]).unwrap();
        assert!(matches!(FileDrive::open(&small), Err(DriveOpenError::TooSmall { bytes: 512 })));
    }
}
