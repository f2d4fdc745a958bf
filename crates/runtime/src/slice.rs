//! The engine of one slice of a shared drive, with its dealings with the home of free extents.
//!
//! Owns: carrying the engine's wishes to the home and the home's answers back. Never: decides who gets what.
//! Invariant: after a step no wish is left over; what the engine has, the home knows.

use crate::drive::{DriveSpec, Seat, SharedDrive};
use crate::engine::open_slice;
use crate::options::{OpenFailure, PoolSpec};
use crate::pool::{Machine, Revived, Wreck};
use segue_types::{Nanos, TaskKind};
use segue_volume::device::BlockDev;
use segue_volume::engine::{Engine, EngineOptions, Restarted, Salvage};
use segue_volume::fault::Faults;
use segue_volume::mem::Mem;
use segue_volume::op::{Event, Out, Tag, Ticket};
use std::sync::Arc;

/// The engine of a slice.
struct Slice {
    engine: Engine,
    seat: Seat,
}

impl Slice {
    /// Brings what was given back home, and what is wanted from there.
    #[cold]
    fn trade(&mut self, now: Nanos, mem: &mut Mem, out: &mut Out) {
        while out.want_extents > 0 || !out.returned.is_empty() {
            if !out.returned.is_empty() {
                self.seat.put_back(&out.returned);
                out.returned.clear();
            }
            let wanted = std::mem::take(&mut out.want_extents);
            if wanted > 0 {
                let extents = self.seat.lend(wanted);
                self.engine.step(now, Event::Lend { extents }, mem, out);
            }
        }
    }
}

impl Machine for Slice {
    fn step(&mut self, now: Nanos, event: Event, mem: &mut Mem, out: &mut Out) {
        self.engine.step(now, event, mem, out);
        if out.want_extents > 0 || !out.returned.is_empty() {
            self.trade(now, mem, out);
        }
    }

    fn release(self: Box<Self>, mem: &mut Mem) {
        self.engine.release(mem);
    }

    fn recover(&mut self, mem: &mut Mem, out: &mut Out) -> bool {
        self.engine.recover(mem, out)
    }

    fn suspect(&self) -> (TaskKind, Option<Tag>) {
        self.engine.suspect()
    }

    fn wreck(mut self: Box<Self>, out: &mut Out) -> Option<Box<dyn Wreck>> {
        self.engine.take_back(out);
        Some(Box::new(SliceWreck { salvage: self.engine.salvage(), seat: self.seat.clone() }))
    }

    fn set_faults(&mut self, faults: Faults) {
        self.engine.set_faults(faults);
    }
}

struct SliceWreck {
    salvage: Salvage,
    seat: Seat,
}

impl Wreck for SliceWreck {
    fn io_ended(&mut self, ticket: Ticket, errno: i32) {
        self.salvage.io_ended(ticket, errno);
    }

    fn revive(self: Box<Self>, dev: &mut dyn BlockDev, mem: &mut Mem) -> Result<Revived, OpenFailure> {
        let SliceWreck { salvage, seat } = *self;
        let Restarted { engine, done, admin, admin_again, alarms, .. } = Engine::restart(dev, mem, salvage)?;
        // What the failed engine was lent and had not journaled goes home.
        seat.claim(&engine)?;
        Ok(Revived { machine: Box::new(Slice { engine, seat }), done, admin, admin_again, alarms })
    }
}

impl PoolSpec {
    /// One slice of a shared drive. Nothing is lent to any slice before all of them are open.
    ///
    /// # Panics
    /// When the drive has no such slice.
    pub fn slice(name: &str, drive: &Arc<SharedDrive>, slice: u16, options: EngineOptions) -> PoolSpec {
        assert!(slice < drive.slices(), "the drive has {} slices", drive.slices());
        let seat = Seat { drive: drive.clone(), slice };
        let open = Box::new(move |dev: &mut dyn BlockDev, mem: &mut Mem| {
            let engine = open_slice(dev, mem, &options, u64::from(seat.slice))?;
            if let Err(error) = seat.claim(&engine) {
                engine.release(mem);
                return Err(error.into());
            }
            Ok(Box::new(Slice { engine, seat }) as Box<dyn Machine>)
        });
        PoolSpec { name: name.to_owned(), drive: DriveSpec::Shared(drive.clone()), open }
    }
}
