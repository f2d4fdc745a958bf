//! A drive that several pools share: its slices, each on a core of its own, and the home of its free extents.
//!
//! Owns: the open drive, the home behind a lock, and how a slice that is short has the others give back. Never: does a slice's I/O.
//! Invariant: the lock is held only to hand extents over, a batch at a time; no I/O waits for it.

use super::{DriveOpenError, FileDrive};
use segue_volume::engine::{Engine, OpenError};
use segue_volume::home::{Home, LeasedTwice};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Asks a slice to give back what it does not need.
pub(crate) type Shrink = Box<dyn Fn() + Send>;

/// A drive with one slice or more.
pub struct SharedDrive {
    path: PathBuf,
    file: FileDrive,
    slices: u16,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Made when the first slice is opened: the engine knows how many extents there are.
    home: Option<Home>,
    extent_bytes: u64,
    shrinks: Vec<(u16, Shrink)>,
}

/// Why a drive cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum SharedOpenError {
    /// The drive.
    #[error(transparent)]
    Drive(#[from] DriveOpenError),
    /// There is no pool on it, or it is damaged.
    #[error(transparent)]
    Pool(#[from] OpenError),
}

impl SharedDrive {
    /// Opens a formatted drive, locks it, and reads how many slices it has.
    ///
    /// # Errors
    /// [`SharedOpenError`].
    pub fn open(path: &Path) -> Result<Arc<SharedDrive>, SharedOpenError> {
        let mut file = FileDrive::open(path)?;
        let slices = Engine::slices(&mut file)? as u16;
        let inner = Mutex::new(Inner { home: None, extent_bytes: 0, shrinks: Vec::new() });
        Ok(Arc::new(SharedDrive { path: path.to_owned(), file, slices, inner }))
    }

    /// Slices of the drive.
    pub fn slices(&self) -> u16 {
        self.slices
    }

    /// Bytes in extents that no slice has leased; 0 on an undivided drive.
    pub fn home_free_bytes(&self) -> u64 {
        let inner = self.lock();
        inner.home.as_ref().map_or(0, |home| u64::from(home.free()) * inner.extent_bytes)
    }

    /// How a slice is asked to give back what it does not need; called with the home's lock held, so it must be short
    /// and must not come back here.
    pub(crate) fn on_pressure(&self, slice: u16, shrink: Shrink) {
        let mut inner = self.lock();
        inner.shrinks.retain(|(other, _)| *other != slice);
        inner.shrinks.push((slice, shrink));
    }

    pub(super) fn file(&self) -> Result<FileDrive, DriveOpenError> {
        self.file.again().map_err(|source| DriveOpenError::Open { path: self.path.clone(), source })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedDrive").field("path", &self.path).field("slices", &self.slices).finish_non_exhaustive()
    }
}

impl PartialEq for SharedDrive {
    fn eq(&self, other: &SharedDrive) -> bool {
        self.path == other.path
    }
}

impl Eq for SharedDrive {}

/// A slice's seat at the home.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) drive: Arc<SharedDrive>,
    pub(crate) slice: u16,
}

impl Seat {
    /// Tells what the slice has, as its journal says.
    pub(crate) fn claim(&self, engine: &Engine) -> Result<(), LeasedTwice> {
        let leased = engine.leased_extents().unwrap_or_default();
        let slices = self.drive.slices;
        let mut inner = self.drive.lock();
        let extent = engine.extent_range(0);
        inner.extent_bytes = extent.end - extent.start;
        let home = inner.home.get_or_insert_with(|| Home::new(engine.extents() as u32, slices));
        home.claim(self.slice, &leased)
    }

    /// Gives extents back.
    pub(crate) fn put_back(&self, extents: &[u32]) {
        self.drive.lock().home.as_mut().expect("the slice has claimed").put_back(self.slice, extents);
    }

    /// Asks for extents. When there are none, the other slices are asked to give back what they do not need.
    pub(crate) fn lend(&self, wanted: u32) -> Vec<u32> {
        let mut inner = self.drive.lock();
        let home = inner.home.as_mut().expect("the slice has claimed");
        let extents = home.lend(self.slice, wanted);
        if home.is_short() {
            inner.shrinks.iter().filter(|(slice, _)| *slice != self.slice).for_each(|(_, shrink)| shrink());
        }
        extents
    }
}
