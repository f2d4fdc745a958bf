//! The volume engine as what serves a pool.
//!
//! Owns: formatting a drive and opening the engine on it. Never: changes what the engine decides.
//! Invariant: a memory pool is formatted each time it is opened; a file pool never, unless asked.

use crate::chance;
use crate::drive::{Drive, DriveOpenError, DriveSpec};
use crate::options::{OpenFailure, PoolSpec};
use crate::pool::{Machine, Revived, Wreck};
use segue_types::{Nanos, TaskKind};
use segue_volume::device::BlockDev;
use segue_volume::engine::{Engine, EngineOptions, FormatError, FormatOptions, OpenError, Restarted, Salvage};
use segue_volume::fault::Faults;
use segue_volume::mem::Mem;
use segue_volume::op::{Event, Out, Tag, Ticket};

impl Machine for Engine {
    fn step(&mut self, now: Nanos, event: Event, mem: &mut Mem, out: &mut Out) {
        Engine::step(self, now, event, mem, out);
    }

    fn release(self: Box<Self>, mem: &mut Mem) {
        Engine::release(*self, mem);
    }

    fn recover(&mut self, mem: &mut Mem, out: &mut Out) -> bool {
        Engine::recover(self, mem, out)
    }

    fn suspect(&self) -> (TaskKind, Option<Tag>) {
        Engine::suspect(self)
    }

    fn wreck(mut self: Box<Self>, out: &mut Out) -> Option<Box<dyn Wreck>> {
        self.take_back(out);
        Some(Box::new(self.salvage()))
    }

    fn set_faults(&mut self, faults: Faults) {
        Engine::set_faults(self, faults);
    }
}

impl Wreck for Salvage {
    fn io_ended(&mut self, ticket: Ticket, errno: i32) {
        Salvage::io_ended(self, ticket, errno);
    }

    fn revive(self: Box<Self>, dev: &mut dyn BlockDev, mem: &mut Mem) -> Result<Revived, OpenFailure> {
        let Restarted { engine, done, admin, admin_again, alarms, .. } = Engine::restart(dev, mem, *self)?;
        Ok(Revived { machine: Box::new(engine), done, admin, admin_again, alarms })
    }
}

/// A drive was not formatted, or the engine on it not opened.
#[derive(Debug, thiserror::Error)]
pub enum EngineOpenError {
    /// The drive.
    #[error("cannot open the drive")]
    Drive(#[from] DriveOpenError),
    /// The format was refused.
    #[error("cannot format the drive")]
    Format(#[from] FormatError),
    /// There is no pool on the drive, or it is damaged.
    #[error("cannot open the pool on the drive")]
    Open(#[from] OpenError),
    /// The pool's I/O memory has no room for the engine's cache: give it more, or the pool a smaller cache.
    #[error("the pool's cache does not fit its I/O memory; raise mem_bytes. needed=`{needed}` free=`{free}`")]
    NoMemory {
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
}

/// Makes an empty pool on a file or device that exists. `force` overwrites a pool that is there.
///
/// # Errors
/// [`EngineOpenError`]: the drive is in use, too small, or holds a pool already.
pub fn format_drive(spec: &DriveSpec, force: bool) -> Result<(), EngineOpenError> {
    let mut drive = Drive::open(spec)?;
    format(drive.block_dev(), force)
}

fn format(dev: &mut dyn BlockDev, force: bool) -> Result<(), EngineOpenError> {
    let uuid = chance::secret().to_ne_bytes();
    Ok(Engine::format(dev, &FormatOptions { uuid, force })?)
}

fn open(dev: &mut dyn BlockDev, mem: &mut Mem, options: &EngineOptions) -> Result<Engine, EngineOpenError> {
    open_slice(dev, mem, options, 0)
}

/// Opens the engine of one slice of a drive.
pub(crate) fn open_slice(
    dev: &mut dyn BlockDev,
    mem: &mut Mem,
    options: &EngineOptions,
    slice: u64,
) -> Result<Engine, EngineOpenError> {
    let needed = Engine::mem_bytes(options);
    // A part stays free, or there would be nothing to serve clients with.
    let free = (mem.capacity_bytes() - mem.capacity_bytes() / 4).saturating_sub(mem.used_bytes()) as u64;
    if needed > free {
        return Err(EngineOpenError::NoMemory { needed, free });
    }
    Ok(Engine::open_slice(dev, mem, options, slice)?)
}

/// Opens the engine on an open drive; formats it first when it is memory.
pub(crate) fn open_on(drive: &mut Drive, mem: &mut Mem, options: &EngineOptions) -> Result<Engine, EngineOpenError> {
    if matches!(drive, Drive::Memory(_) | Drive::Modelled(_)) {
        format(drive.block_dev(), true)?;
    }
    open(drive.block_dev(), mem, options)
}

impl PoolSpec {
    /// A pool of the volume engine. A file must have been formatted before; memory is formatted now.
    pub fn engine(name: &str, drive: DriveSpec, options: EngineOptions) -> PoolSpec {
        // Named one by one: a kind of drive that is forgotten here must not be formatted.
        let memory = match drive {
            DriveSpec::Memory { .. } | DriveSpec::Modelled { .. } => true,
            DriveSpec::File { .. } | DriveSpec::Shared(_) => false,
        };
        let open = Box::new(move |dev: &mut dyn BlockDev, mem: &mut Mem| {
            if memory {
                format(dev, true)?;
            }
            Ok(Box::new(open(dev, mem, &options)?) as Box<dyn Machine>)
        });
        PoolSpec { name: name.to_owned(), drive, open }
    }
}
