//! Drives: what a pool lives on.
//!
//! Owns: how a drive is named, opened and locked. Never: knows what the bytes mean.
//! Invariant: a file or device that is open here is locked, so no second process opens the same pool.

mod file;
mod memory;
mod modelled;
mod shared;

pub(crate) use file::discard_range;
pub use file::{FileDrive, create_sparse};
pub use memory::MemoryDrive;
pub use modelled::{DriveTiming, ModelledDrive};
pub(crate) use shared::Seat;
pub use shared::{SharedDrive, SharedOpenError};

use segue_volume::device::BlockDev;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Smallest drive that can be opened, bytes.
pub const MIN_DRIVE_BYTES: u64 = 1 << 20;

/// Where a pool lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveSpec {
    /// A regular file or a block device.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// A drive whose slices are pools of their own.
    Shared(Arc<SharedDrive>),
    /// Anonymous memory of this process; gone when it ends. Backed only where written.
    Memory {
        /// Its size, bytes.
        bytes: u64,
    },
    /// Memory that takes the time of a drive.
    Modelled {
        /// Its size, bytes.
        bytes: u64,
        /// Its service times.
        timing: DriveTiming,
    },
}

/// Why a drive could not be opened or made. Each message names what to do.
#[derive(Debug, thiserror::Error)]
pub enum DriveOpenError {
    /// The path could not be opened or created.
    #[error("cannot open the drive; check the path and its permissions. path=`{}`", .path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another process, or another pool of this one, has it open.
    #[error("the drive is in use by another pool; stop the other node first. path=`{}`", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The path is a directory, a pipe, or something else that is no drive.
    #[error("not a regular file or block device. path=`{}`", .path.display())]
    NotADrive {
        /// The path.
        path: PathBuf,
    },
    /// The drive has fewer than [`MIN_DRIVE_BYTES`].
    #[error("the drive is too small, it needs 1 MiB at least. bytes=`{bytes}`")]
    TooSmall {
        /// What it has.
        bytes: u64,
    },
    /// The address space for a memory drive could not be had.
    #[error("no address space for a memory drive of this size. bytes=`{bytes}`")]
    NoAddressSpace {
        /// What was asked.
        bytes: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// An open drive of either kind.
pub enum Drive {
    /// A file or block device.
    File(FileDrive),
    /// Anonymous memory.
    Memory(MemoryDrive),
    /// Anonymous memory with service times.
    Modelled(ModelledDrive),
}

impl Drive {
    /// Opens what the spec names, and locks it.
    ///
    /// # Errors
    /// [`DriveOpenError`] names the cause and what to do.
    pub fn open(spec: &DriveSpec) -> Result<Drive, DriveOpenError> {
        match spec {
            DriveSpec::File { path } => FileDrive::open(path).map(Drive::File),
            DriveSpec::Shared(drive) => drive.file().map(Drive::File),
            DriveSpec::Memory { bytes } => MemoryDrive::new(*bytes).map(Drive::Memory),
            DriveSpec::Modelled { bytes, timing } => ModelledDrive::new(*bytes, *timing).map(Drive::Modelled),
        }
    }

    /// The drive as the blocking interface, for format, open and check.
    pub fn block_dev(&mut self) -> &mut dyn BlockDev {
        match self {
            Drive::File(drive) => drive,
            Drive::Memory(drive) => drive,
            Drive::Modelled(drive) => &mut drive.memory,
        }
    }

    /// True when I/O bypasses the page cache (always for memory).
    pub fn is_direct(&self) -> bool {
        match self {
            Drive::File(drive) => drive.is_direct(),
            Drive::Memory(_) | Drive::Modelled(_) => true,
        }
    }
}
