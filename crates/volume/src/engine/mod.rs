//! The machine of one pool: requests, admin operations and I/O completions in; I/O, replies and alarms out.
//!
//! Owns: the pool's whole state in memory and the order of its changes. Never: reads a clock or does I/O itself.
//! Invariant: what a reply promises is on the drive, or will read as promised until a power cut and never older than the last flush after one.
//!
//! Reading order: `slots` (what is in flight), `map` (finding and changing map pages), `data` (reads and writes),
//! `punch` (discard and zeroes), `commit` (journal), `checkpoint`, `space` (when freed blocks may be reused), `admin`,
//! `lease`, `race` (super and collapse), `clean` (merge and drop), `scrub`, `moves` (to another pool), `open` (format,
//! open, replay), `recover` (after a panic at a point where the state was whole), `restart` (after any other).

mod access;
mod admin;
mod checkpoint;
mod clean;
mod commit;
mod data;
mod inspect;
pub(crate) mod keys;
mod lease;
mod lending;
mod map;
mod move_read;
mod move_write;
mod moves;
mod open;
mod punch;
mod race;
mod recover;
mod restart;
mod scrub;
mod slots;
mod space;

pub use open::{EngineOptions, FormatError, FormatOptions, OpenError};
pub use restart::{Restarted, Salvage};

use crate::alloc::Alloc;
use crate::cache::{Cache, NIL};
use crate::catalog::Catalog;
use crate::fault::Faults;
use crate::layout::Layout;
use crate::mem::{Buf, Mem};
use crate::op::{Alarm, AlarmKind, Event, IoKind, Out, Reply, Tag};
use recover::Unit;
use segue_types::{IoStatus, Nanos, TaskKind};
use slots::{IoUse, Ios, Ops, Stage, Work};
use std::collections::VecDeque;

/// Why an operation cannot go on now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halt {
    /// A map page is being read into this slot.
    Page(u32),
    /// No room in the cache or journal until a commit or checkpoint ends.
    Stall,
    /// A map page could not be read or did not match its checksum.
    Broken,
}

/// The machine of one pool.
pub struct Engine {
    now: Nanos,
    layout: Layout,
    uuid: [u8; 16],
    alloc: Alloc,
    cache: Cache,
    catalog: Catalog,
    attaches: Vec<lease::Attach>,
    /// Keys of unlocked volumes; attachments refer to their places.
    keys: Vec<Option<keys::Key>>,
    ops: Ops,
    ios: Ios,
    /// Operations to run again in this step.
    ready: VecDeque<u32>,
    /// Operations that wait for room.
    stalled: VecDeque<u32>,
    /// Operations that wait for an overlapping one.
    conflicts: VecDeque<u32>,
    /// Operations in flight that change blocks, and those of them that read before they write.
    mutators: Vec<u32>,
    rmw: Vec<u32>,
    admin_queue: VecDeque<(Tag, crate::op::AdminOp)>,
    log: commit::Log,
    commit: commit::Commit,
    ckpt: checkpoint::Checkpoint,
    space: space::Space,
    /// Leases of extents, when the drive is shared.
    lending: Option<lending::Lending>,
    clean: clean::Clean,
    scrub: scrub::Scrub,
    move_read: move_read::MoveRead,
    move_write: move_write::MoveWrite,
    /// Scratch blocks for unaligned edges.
    scratch: Vec<Buf>,
    /// A run of zeroes to write from.
    zeroes: Buf,
    next_generation: u64,
    /// Most dirty map pages before changes wait for a checkpoint.
    dirty_max: usize,
    /// Blocks kept back for map pages and overwrites, and the part of them for overwrites.
    reserve_blocks: u64,
    overwrite_blocks: u64,
    poisoned: Option<i32>,
    closing: bool,
    replaying: bool,
    integrity_errors: u64,
    /// Bytes of data read only to be written again beside new ones (blocks that a request covers in part).
    bytes_copied: u64,
    /// Map pages that failed to load, so that whoever waited learns it instead of asking again for ever.
    broken_page: Option<crate::cache::PageKey>,
    options: EngineOptions,
    /// Every buffer taken from the region at open; never changed after.
    holdings: Vec<Buf>,
    faults: Faults,
    recover: recover::Recover,
}

impl Engine {
    /// Takes one event and appends what follows from it to `out`. Time never goes backwards.
    pub fn step(&mut self, now: Nanos, event: Event, mem: &mut Mem, out: &mut Out) {
        self.now = self.now.max(now);
        self.settle(out);
        match event {
            Event::Request { tag, attach, op } => {
                self.attach_request_begins(attach);
                let slot = self.ops.take_client(tag, attach, op);
                self.run(slot, mem, out);
            }
            Event::Admin { tag, op } => self.admin_queue.push_back((tag, op)),
            Event::IoDone { ticket, errno } => {
                let used = self.ios.give_back(ticket);
                self.io_done(used, errno, mem, out);
            }
            Event::Lend { extents } => self.lent(&extents, out),
            Event::Shrink => self.give_back(true, out),
            Event::Tick => self.background(mem, out),
        }
        self.settle(out);
        self.pump(mem, out);
        self.recover.step_ended();
    }

    /// Client requests that have not been answered yet.
    pub fn in_flight(&self) -> usize {
        self.ops.clients()
    }

    /// Gives the memory the engine took from `mem` back. Call after `Shutdown` was answered.
    pub fn release(mut self, mem: &mut Mem) {
        self.cache.release(mem);
        self.commit.release(mem);
        self.ckpt.release(mem);
        self.scrub.release(mem);
        self.move_read.release(mem);
        self.move_write.release(mem);
        for buf in self.scratch.drain(..) {
            mem.free(buf);
        }
        mem.free(self.zeroes);
    }

    /// Runs whatever became possible, then starts a commit or moves the checkpoint on.
    fn pump(&mut self, mem: &mut Mem, out: &mut Out) {
        loop {
            while let Some(op) = self.ready.pop_front() {
                self.run(op, mem, out);
                self.settle(out);
            }
            (self.recover.unit, self.recover.task) = (Unit::Other, TaskKind::Admin);
            self.run_admin_queue(mem, out);
            self.recover.task = TaskKind::Checkpoint;
            self.pump_checkpoint(mem, out);
            self.settle(out);
            self.recover.task = TaskKind::Journal;
            self.pump_commit(mem, out);
            self.settle(out);
            if self.ready.is_empty() {
                break;
            }
        }
        self.pump_lending(out);
        out.wake_at = self.wake_at();
    }

    fn wake_at(&self) -> Option<Nanos> {
        let clean = self.clean.runnable() && !self.commit.answers_admin();
        let background = self.poisoned.is_none() && (clean || self.scrub.runnable());
        if background || self.move_read.runnable() {
            return Some(0);
        }
        match (self.commit_due_at(), self.lending_due_at()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// One turn of background work.
    fn background(&mut self, mem: &mut Mem, out: &mut Out) {
        (self.recover.unit, self.recover.task) = (Unit::Other, TaskKind::Cleanup);
        self.retry_stalled();
        self.run_move_read(mem, out);
        if self.poisoned.is_some() {
            return;
        }
        // Whoever asked for a collapse or an abort is answered before the clean-up that follows from it takes the drive.
        if !self.commit.answers_admin() {
            self.run_cleaning(mem, out);
        }
        self.give_back(false, out);
        self.recover.task = TaskKind::Scrub;
        self.run_scrub(mem, out);
    }

    /// Runs an operation until it ends or must wait.
    fn run(&mut self, op: u32, mem: &mut Mem, out: &mut Out) {
        let result = match self.ops[op].work {
            Work::Client => {
                self.recover.unit = Unit::Run(op);
                self.run_client(op, mem, out)
            }
            Work::Clean => {
                self.clean.unpark();
                return;
            }
            Work::Scrub => {
                self.scrub.unpark();
                return;
            }
            Work::MoveRead => return self.run_move_read(mem, out),
            Work::MoveWrite => return self.run_move_write(mem, out),
        };
        if let Err(halt) = result {
            self.park(op, halt, out);
        }
    }

    /// Puts an operation where the end of what it waits for will find it.
    fn park(&mut self, op: u32, halt: Halt, out: &mut Out) {
        match halt {
            Halt::Page(slot) => {
                let next = std::mem::replace(&mut self.cache.slot_mut(slot).waiters, op);
                self.ops[op].next = next;
            }
            Halt::Stall => self.stalled.push_back(op),
            Halt::Broken => self.fail_parked(op, out),
        }
    }

    fn fail_parked(&mut self, op: u32, out: &mut Out) {
        match self.ops[op].work {
            Work::Client => self.fail_client(op, IoStatus::Io, out),
            Work::Clean => self.clean.fail(),
            Work::Scrub => self.scrub.page_failed(),
            Work::MoveRead => self.fail_move_read(crate::op::AdminError::Corrupt, out),
            Work::MoveWrite => self.fail_move_write(crate::op::AdminError::Corrupt, out),
        }
    }

    /// Wakes everything that waited for room.
    pub(crate) fn retry_stalled(&mut self) {
        self.ready.extend(self.stalled.drain(..));
    }

    fn io_done(&mut self, used: IoUse, errno: i32, mem: &mut Mem, out: &mut Out) {
        if errno != 0 {
            let kind = AlarmKind::Drive { errno };
            out.alarms.push(Alarm { kind, offset: 0, expected_crc32c: 0, found_crc32c: 0, generation: 0 });
        }
        (self.recover.unit, self.recover.task) = (Unit::Other, task_of_io(used));
        match used {
            IoUse::Op(op) => self.op_io_done(op, errno, mem, out),
            IoUse::Page(slot) => self.page_io_done(slot, errno, mem, out),
            IoUse::Record => self.record_written(errno, out),
            IoUse::CommitFlush => self.commit_flushed(errno, mem, out),
            IoUse::CkptPage { slot, buf } => self.ckpt_page_written(slot, buf, errno, out),
            IoUse::Ckpt => self.ckpt_io_done(errno, out),
            IoUse::MoveRead => self.move_read_io_done(errno, mem, out),
            IoUse::MoveWrite => self.move_write_io_done(errno, mem, out),
            IoUse::Scrub { read } => self.scrub_io_done(read, errno, mem, out),
        }
    }

    /// Submits an I/O.
    fn submit(&mut self, used: IoUse, kind: IoKind, out: &mut Out) {
        let ticket = self.ios.take(used);
        out.ios.push(crate::op::Io { ticket, kind });
    }

    /// From now on every change is refused: what the drive holds is no longer known.
    fn poison(&mut self, errno: i32, out: &mut Out) {
        if self.poisoned.is_some() {
            return;
        }
        self.poisoned = Some(errno);
        let kind = AlarmKind::Poisoned { errno };
        out.alarms.push(Alarm { kind, offset: 0, expected_crc32c: 0, found_crc32c: 0, generation: 0 });
        self.fail_commit_waiters(out);
        self.retry_stalled();
    }

    /// Ends a client operation with a reply.
    fn reply(&mut self, op: u32, status: IoStatus, extents: u32, out: &mut Out) {
        let slot = &mut self.ops[op];
        out.replies.push(Reply { tag: slot.tag, status, extents });
        let (mutating, attach) = (slot.mutator, slot.attach);
        self.drop_scratch(op);
        if mutating != NIL {
            self.leave_mutators(op);
        }
        self.attach_request_ended(attach);
        self.ops.give_back(op);
    }

    fn leave_mutators(&mut self, op: u32) {
        let at = std::mem::replace(&mut self.ops[op].mutator, NIL) as usize;
        self.mutators.swap_remove(at);
        if let Some(moved) = self.mutators.get(at) {
            self.ops[*moved].mutator = at as u32;
        }
        self.rmw.retain(|o| *o != op);
        self.ready.extend(self.conflicts.drain(..));
    }

    /// Fails a client operation, giving back what it had allocated and not yet installed.
    fn fail_client(&mut self, op: u32, status: IoStatus, out: &mut Out) {
        debug_assert_eq!(self.ops[op].ios, 0);
        if matches!(self.ops[op].stage, Stage::Writing | Stage::Installing) {
            let (from, to) = (self.ops[op].done as usize, self.ops[op].count as usize);
            for i in from..to {
                let block = self.ops[op].entries[i].block();
                self.alloc.clear(block);
            }
        }
        self.reply(op, status, 0, out);
    }
}

/// Whose work follows from the end of an I/O; a client's operation tells for itself.
fn task_of_io(used: IoUse) -> TaskKind {
    match used {
        IoUse::Op(_) | IoUse::Page(_) => TaskKind::Read,
        IoUse::Record | IoUse::CommitFlush => TaskKind::Journal,
        IoUse::CkptPage { .. } | IoUse::Ckpt => TaskKind::Checkpoint,
        IoUse::Scrub { .. } => TaskKind::Scrub,
        IoUse::MoveRead | IoUse::MoveWrite => TaskKind::Cleanup,
    }
}
