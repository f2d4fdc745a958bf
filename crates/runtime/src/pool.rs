//! One pool in the real world: an engine, its drive, and the I/O between them.
//!
//! Owns: the engine, the drive, and the order of their conversation. Never: knows who asked.
//! Invariant: every I/O command is handed to the drive once and its end to the engine once.

mod revive;

pub(crate) use revive::Recovery;
pub use revive::{Revived, Wreck};

use crate::core::drive_token;
use crate::drive::{Drive, MemoryDrive};
use crate::io::{Backend, DriveFd, DriveOp};
use revive::{State, Waiting};
use segue_types::{Nanos, TaskKind};
use segue_volume::fault::Faults;
use segue_volume::mem::Mem;
use segue_volume::op::{Event, Io, IoKind, Out, Tag, Ticket};
use std::collections::VecDeque;

/// What serves a pool: the volume engine, or in tests something smaller.
pub trait Machine: Send {
    /// Takes one event and appends to `out` what is to be done. See [`segue_volume::op`].
    fn step(&mut self, now: Nanos, event: Event, mem: &mut Mem, out: &mut Out);
    /// Gives back what it took from `mem`. Called once, at the end, with no I/O in flight.
    fn release(self: Box<Self>, mem: &mut Mem);
    /// A step panicked: carries it on if the state is whole. `false` when it is suspect. May panic again.
    fn recover(&mut self, _mem: &mut Mem, _out: &mut Out) -> bool {
        false
    }
    /// Who was at work when the step panicked.
    fn suspect(&self) -> (TaskKind, Option<Tag>) {
        (TaskKind::Admin, None)
    }
    /// Takes the machine apart after a panic that left it suspect, and takes back from `out` what was not settled.
    /// `None`: it cannot be revived.
    fn wreck(self: Box<Self>, _out: &mut Out) -> Option<Box<dyn Wreck>> {
        None
    }
    /// Lets tasks panic on purpose from now on.
    fn set_faults(&mut self, _faults: Faults) {}
}

/// Does to memory what a command wants of a drive. Returns an errno, 0 on success.
fn carry_out(drive: &mut MemoryDrive, kind: IoKind, mem: &mut Mem) -> i32 {
    match kind {
        IoKind::Read { offset, buf } => drive.read_at(offset, mem.get_mut(buf)),
        IoKind::Write { offset, buf } => drive.write_at(offset, mem.get(buf)),
        IoKind::Flush => 0,
        IoKind::Discard { offset, len } => drive.discard_at(offset, len),
    }
}

/// An open pool.
pub(crate) struct PoolHost {
    state: State,
    waiting: Waiting,
    /// Recoveries that were not told yet.
    pub(crate) recoveries: Vec<Recovery>,
    drive: Drive,
    pub(crate) out: Out,
    /// I/O that ended within the step that asked for it.
    ended: VecDeque<(Ticket, i32)>,
    /// I/O that the kernel has.
    pub(crate) ios_in_flight: usize,
}

impl PoolHost {
    pub(crate) fn new(machine: Box<dyn Machine>, drive: Drive) -> PoolHost {
        PoolHost {
            state: State::Serving(machine),
            waiting: Waiting::new(),
            recoveries: Vec::new(),
            drive,
            out: Out::with_capacity(1024),
            ended: VecDeque::with_capacity(1024),
            ios_in_flight: 0,
        }
    }

    /// `place` is the pool's place on its core. Gives the engine an event, and then all ends of I/O that came at once.
    /// Leaves replies in `out`.
    pub(crate) fn feed(&mut self, now: Nanos, event: Event, mem: &mut Mem, io: &mut dyn Backend, place: usize) {
        self.waiting.note(&event);
        self.step(now, event, mem);
        self.start_all(now, mem, io, place);
        self.revive(now, mem, io, place);
    }

    /// Hands the drive what the machine asked for, and the machine all ends that came at once.
    fn start_all(&mut self, now: Nanos, mem: &mut Mem, io: &mut dyn Backend, place: usize) {
        loop {
            for at in 0..self.out.ios.len() {
                self.start(now, self.out.ios[at], mem, io, place);
            }
            self.out.ios.clear();
            let Some((ticket, errno)) = self.ended.pop_front() else { return };
            self.step(now, Event::IoDone { ticket, errno }, mem);
        }
    }

    /// The kernel ended an I/O of this pool.
    pub(crate) fn io_done(
        &mut self,
        now: Nanos,
        ticket: Ticket,
        result: i32,
        mem: &mut Mem,
        io: &mut dyn Backend,
        place: usize,
    ) {
        self.ios_in_flight -= 1;
        self.feed(now, Event::IoDone { ticket, errno: -result.min(0) }, mem, io, place);
    }

    fn start(&mut self, now: Nanos, command: Io, mem: &mut Mem, io: &mut dyn Backend, place: usize) {
        let errno = match (&mut self.drive, command.kind) {
            (Drive::Memory(drive), kind) => carry_out(drive, kind, mem),
            (Drive::Modelled(drive), kind) => {
                let errno = carry_out(&mut drive.memory, kind, mem);
                return drive.took(now, command.ticket, &kind, errno);
            }
            (Drive::File(file), kind) => {
                let op = match kind {
                    IoKind::Read { offset, buf } => DriveOp::Read { offset, at: mem.addr(buf), len: buf.len() as u32 },
                    IoKind::Write { offset, buf } => {
                        DriveOp::Write { offset, at: mem.addr(buf), len: buf.len() as u32 }
                    }
                    IoKind::Flush => DriveOp::Flush,
                    IoKind::Discard { offset, len } => DriveOp::Discard { offset, len },
                };
                let drive = DriveFd { fd: file.fd(), block_device: file.is_block_device(), place };
                self.ios_in_flight += 1;
                io.drive(drive_token(place) | command.ticket.0 as u64, drive, op);
                return;
            }
        };
        self.ended.push_back((command.ticket, errno));
    }

    /// True when the drive has nothing to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ios_in_flight == 0 && self.next_end().is_none()
    }

    /// When the next command of a modelled drive ends.
    pub(crate) fn next_end(&self) -> Option<Nanos> {
        match &self.drive {
            Drive::Modelled(drive) => drive.next_end(),
            _ => None,
        }
    }

    /// Takes an end of a modelled drive that has come.
    pub(crate) fn pop_end(&mut self, now: Nanos) -> Option<(Ticket, i32)> {
        match &mut self.drive {
            Drive::Modelled(drive) => drive.pop_end(now),
            _ => None,
        }
    }

    /// Ends the pool: its memory goes back, its drive is closed. Only with no I/O in flight.
    pub(crate) fn close(self, mem: &mut Mem) {
        assert!(self.is_quiet(), "a pool is closed while its drive works");
        if let State::Serving(machine) = self.state {
            machine.release(mem);
        }
    }

    /// True when the drive's I/O goes through the kernel.
    pub(crate) fn on_file(&self) -> bool {
        matches!(self.drive, Drive::File(_))
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.drive.is_direct()
    }
}
