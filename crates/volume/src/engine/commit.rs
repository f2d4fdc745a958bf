//! Group commit: pending changes become one journal record and one drive flush.
//!
//! Owns: the log of pending changes, the journal's head and tail, who waits for durability. Never: changes the map.
//! Invariant: records become durable in order, and a waiter is answered only when its record and all before it are.

use super::Engine;
use super::slots::IoUse;
use crate::catalog::Volume;
use crate::journal::{Change, HEADER_BYTES, Header, put_change};
use crate::layout::RECORD_BYTES_MAX;
use crate::mem::{Buf, Mem};
use crate::op::{AdminError, AdminReply, IoKind, Out, Tag};
use crate::superposition::Phase;
use segue_types::{BLOCK_BYTES, IoStatus, Nanos, SuperId, TaskKind, VolumeId};
use std::collections::VecDeque;

/// Pending changes older than this are committed even if nobody waits.
const COMMIT_AFTER_NS: Nanos = 1_000_000_000;
/// Most bytes of pending changes; one record must hold them.
const LOG_BYTES_MAX: usize = RECORD_BYTES_MAX as usize - HEADER_BYTES;
/// Pending bytes at which changes of blocks wait for a commit; above it is room for administrative changes and
/// for the marks of races, which cannot wait.
const LOG_BYTES_BLOCKS: usize = 96 << 10;
/// Pending bytes at which administrative changes wait.
const LOG_BYTES_ADMIN: usize = 128 << 10;
/// Pending bytes that start a commit even if nobody waits.
const LOG_BYTES_COMMIT: usize = LOG_BYTES_BLOCKS / 2;
const RECORD_BLOCKS_MAX: u64 = RECORD_BYTES_MAX / BLOCK_BYTES;

/// Changes that are in the map but not durable in the journal. Whatever becomes of the rest of the engine, this is
/// what its acknowledged changes are found in.
pub(crate) struct Log {
    bytes: Vec<u8>,
    /// Changes of the record on its way.
    flying: Vec<u8>,
    /// Number of the record that `bytes` will be.
    record: u64,
    first_at: Nanos,
}

impl Log {
    pub(crate) fn new() -> Log {
        let room = || Vec::with_capacity(LOG_BYTES_MAX);
        Log { bytes: room(), flying: room(), record: 0, first_at: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Number of the record being collected. Grows by one with each record that is begun.
    pub(crate) fn record(&self) -> u64 {
        self.record
    }

    /// The first record to be collected after a replay.
    pub(crate) fn begin_at(&mut self, record: u64) {
        self.record = record;
    }

    /// Makes a record of what was collected: from here on its changes are on their way.
    fn fly(&mut self) {
        assert!(self.flying.is_empty(), "one record is on its way at a time");
        std::mem::swap(&mut self.bytes, &mut self.flying);
        self.record += 1;
    }

    /// The record on its way is durable.
    fn landed(&mut self) {
        self.flying.clear();
    }

    /// Takes everything out: the changes on their way, and those collected since.
    pub(crate) fn take(&mut self) -> (Vec<u8>, Vec<u8>) {
        (std::mem::take(&mut self.flying), std::mem::take(&mut self.bytes))
    }

    /// Errs when `bytes` more would not fit into the next record.
    pub(crate) fn room(&self, bytes: usize) -> Result<(), super::Halt> {
        if self.bytes.len() + bytes > LOG_BYTES_BLOCKS { Err(super::Halt::Stall) } else { Ok(()) }
    }

    /// True when an administrative change (at most 64 KiB) fits.
    pub(crate) fn admin_room(&self) -> bool {
        self.bytes.len() <= LOG_BYTES_ADMIN
    }

    /// Where to append a change.
    pub(crate) fn append(&mut self, now: Nanos) -> &mut Vec<u8> {
        if self.bytes.is_empty() {
            self.first_at = now;
        }
        &mut self.bytes
    }
}

/// Who waits for a commit.
pub(crate) enum Waiter {
    /// A client's operation, to be answered Ok.
    Op(u32),
    /// An admin operation, to be answered thus.
    Admin(Tag, AdminReply),
    /// Extents that were lent.
    Leased(Vec<u32>),
    /// Extents that were given back.
    Returned(Vec<u32>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Writing,
    Flushing,
}

/// The journal and the commit in flight.
pub(crate) struct Commit {
    state: State,
    wanted: bool,
    record: Buf,
    /// Number of the next record, of the one in flight, of the last durable one.
    pub(crate) next_sequence: u64,
    pub(crate) durable_sequence: u64,
    /// Block of the journal region where the next record goes; blocks in use behind it.
    pub(crate) position: u64,
    pub(crate) used_blocks: u64,
    waiting: VecDeque<(u64, Waiter)>,
    /// Race phases in the log, and in the record in flight.
    phases: Vec<(VolumeId, SuperId, Phase)>,
    phases_in_flight: Vec<(VolumeId, SuperId, Phase)>,
    pub(crate) commits: u64,
}

impl Commit {
    /// A commit is on its way to the drive and an admin operation waits for it.
    pub(crate) fn answers_admin(&self) -> bool {
        self.state != State::Idle && self.waiting.iter().any(|(_, waiter)| matches!(waiter, Waiter::Admin(..)))
    }

    pub(crate) fn new(record: Buf, position: u64, next_sequence: u64, durable_sequence: u64) -> Commit {
        Commit {
            state: State::Idle,
            wanted: false,
            record,
            next_sequence,
            durable_sequence,
            position,
            used_blocks: 0,
            waiting: VecDeque::with_capacity(1024),
            phases: Vec::new(),
            phases_in_flight: Vec::new(),
            commits: 0,
        }
    }

    pub(crate) fn release(&mut self, mem: &mut Mem) {
        mem.free(self.record);
    }

    /// Somebody needs what is pending to become durable.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    pub(crate) fn idle(&self) -> bool {
        self.state == State::Idle
    }

    /// How many wait.
    pub(crate) fn waiters(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the first `count` of those who wait.
    pub(crate) fn take_waiters(&mut self, count: usize) -> impl Iterator<Item = Waiter> {
        std::mem::take(&mut self.waiting).into_iter().take(count).map(|(_, waiter)| waiter)
    }
}

impl Engine {
    /// Journals an administrative change.
    pub(crate) fn log_change(&mut self, change: &Change) {
        if !self.replaying {
            put_change(self.log.append(self.now), change);
        }
    }

    /// Journals a volume's record as it stands, with its race's phase.
    pub(crate) fn log_volume(&mut self, id: VolumeId) {
        if self.replaying {
            return;
        }
        let volume: Volume = self.catalog.volumes[&id].clone();
        self.fault_point(TaskKind::Admin, "record changed, not logged");
        if let Some(r) = &volume.race
            && r.race.pending().is_some()
        {
            self.commit.phases.push((id, r.race.sid(), r.race.phase()));
        }
        put_change(self.log.append(self.now), &Change::PutVolume(Box::new(volume)));
    }

    /// Answers the waiter when everything pending now is durable; at once when nothing is pending.
    pub(crate) fn wait_for_commit(&mut self, waiter: Waiter, out: &mut Out) {
        if self.poisoned.is_some() {
            self.refuse_waiter(waiter, out);
            return;
        }
        let target = match (self.log.bytes.is_empty(), self.commit.state) {
            (false, _) => self.commit.next_sequence,
            (true, State::Idle) => {
                self.answer_waiter(waiter, out);
                return;
            }
            (true, _) => self.commit.next_sequence - 1,
        };
        self.commit.wanted = true;
        self.commit.waiting.push_back((target, waiter));
    }

    fn answer_waiter(&mut self, waiter: Waiter, out: &mut Out) {
        match waiter {
            Waiter::Op(op) => self.reply(op, IoStatus::Ok, 0, out),
            Waiter::Admin(tag, reply) => out.admin.push((tag, Ok(reply))),
            Waiter::Leased(extents) => self.lease_durable(&extents),
            Waiter::Returned(extents) => out.returned.extend(extents),
        }
    }

    /// Answers everybody whose record is durable; each is settled by itself, so that none is answered twice or never.
    fn answer_durable(&mut self, durable: u64, out: &mut Out) {
        while self.commit.waiting.front().is_some_and(|(sequence, _)| *sequence <= durable) {
            self.fault_point(TaskKind::Journal, "before the answer");
            let (_, waiter) = self.commit.waiting.pop_front().expect("just seen");
            self.answer_waiter(waiter, out);
            self.settle(out);
        }
    }

    fn refuse_waiter(&mut self, waiter: Waiter, out: &mut Out) {
        match waiter {
            Waiter::Op(op) => self.reply(op, IoStatus::Io, 0, out),
            Waiter::Admin(tag, _) => out.admin.push((tag, Err(AdminError::Poisoned))),
            // Nothing is allocated any more, and whether they were given back only the next open can tell.
            Waiter::Leased(_) | Waiter::Returned(_) => {}
        }
    }

    pub(crate) fn fail_commit_waiters(&mut self, out: &mut Out) {
        while let Some((_, waiter)) = self.commit.waiting.pop_front() {
            self.refuse_waiter(waiter, out);
        }
    }

    /// When pending changes must be committed although nobody asks.
    pub(crate) fn commit_due_at(&self) -> Option<Nanos> {
        let due = !self.log.bytes.is_empty() && self.commit.idle() && self.poisoned.is_none();
        due.then_some(self.log.first_at + COMMIT_AFTER_NS)
    }

    /// Starts a commit if one is wanted and possible.
    pub(crate) fn pump_commit(&mut self, mem: &mut Mem, out: &mut Out) {
        if !self.commit.idle() || self.poisoned.is_some() || self.replaying {
            return;
        }
        let cut = self.ckpt.wants_cut();
        if self.log.bytes.is_empty() {
            self.commit.wanted = false;
            if cut {
                // Everything is in the journal already, so the cut needs no record of its own. A pool that crashed
                // with a full journal could not write one when it is opened.
                self.cut(mem, out);
            }
            return;
        }
        let due = self.commit_due_at().is_some_and(|at| at <= self.now);
        if !(self.commit.wanted || cut || due || self.log.bytes.len() >= LOG_BYTES_COMMIT) {
            return;
        }
        self.task_begins(TaskKind::Journal);
        let header = Header {
            uuid: self.uuid,
            sequence: self.commit.next_sequence,
            durable_sequence: self.commit.durable_sequence,
            body_bytes: self.log.bytes.len() as u32,
        };
        let blocks = header.record_bytes() / BLOCK_BYTES;
        let Some((position, waste)) = self.journal_place(blocks) else {
            self.ckpt.want();
            return;
        };
        let record = self.commit.record.part(0, header.record_bytes() as usize);
        let bytes = mem.get_mut(record);
        bytes[HEADER_BYTES..HEADER_BYTES + self.log.bytes.len()].copy_from_slice(&self.log.bytes);
        header.seal(bytes);
        assert_eq!(header.sequence, self.log.record, "the log and the journal count the same records");
        self.log.fly();
        self.fault_point(TaskKind::Journal, "record begun");
        self.space.commit_begins();
        let c = &mut self.commit;
        std::mem::swap(&mut c.phases, &mut c.phases_in_flight);
        (c.state, c.wanted, c.next_sequence) = (State::Writing, false, c.next_sequence + 1);
        (c.position, c.used_blocks) = (position + blocks, c.used_blocks + blocks + waste);
        let offset = (self.layout.journal_start() + position) * BLOCK_BYTES;
        self.submit(IoUse::Record, IoKind::Write { offset, buf: record }, out);
        self.fault_point(TaskKind::Journal, "record submitted");
        if self.commit.used_blocks > self.layout.journal_blocks / 2 {
            self.ckpt.want();
        }
        if cut {
            self.cut(mem, out);
        }
        self.retry_stalled();
    }

    /// Where a record of this many blocks goes, and how many blocks at the region's end are passed over.
    /// `None` when only a checkpoint can make room. The last few records' worth is for the checkpoint: the record
    /// of its cut, and the one that confirms its bitmap.
    fn journal_place(&self, blocks: u64) -> Option<(u64, u64)> {
        let all = self.layout.journal_blocks;
        let (position, waste) = match self.commit.position + blocks <= all {
            true => (self.commit.position, 0),
            false => (0, all - self.commit.position),
        };
        let keep = match (self.ckpt.confirming(), self.ckpt.running() || self.ckpt.wants_cut()) {
            (true, _) => 0,
            (false, true) => 2 * RECORD_BLOCKS_MAX,
            (false, false) => 4 * RECORD_BLOCKS_MAX,
        };
        (self.commit.used_blocks + waste + blocks + keep <= all).then_some((position, waste))
    }

    pub(crate) fn record_written(&mut self, errno: i32, out: &mut Out) {
        if errno != 0 {
            self.commit.state = State::Idle;
            self.poison(errno, out);
            return;
        }
        self.commit.state = State::Flushing;
        self.fault_point(TaskKind::Journal, "record written");
        self.submit(IoUse::CommitFlush, IoKind::Flush, out);
    }

    pub(crate) fn commit_flushed(&mut self, errno: i32, _mem: &mut Mem, out: &mut Out) {
        self.commit.state = State::Idle;
        if errno != 0 {
            self.poison(errno, out);
            return;
        }
        if self.poisoned.is_some() {
            return;
        }
        let durable = self.commit.next_sequence - 1;
        self.commit.durable_sequence = durable;
        self.commit.commits += 1;
        self.log.landed();
        self.fault_point(TaskKind::Journal, "record durable");
        self.space.commit_durable(&mut self.alloc);
        let mut phases = std::mem::take(&mut self.commit.phases_in_flight);
        for (id, sid, phase) in phases.drain(..) {
            self.race_durable(id, sid, phase);
        }
        self.commit.phases_in_flight = phases;
        self.settle(out);
        self.answer_durable(durable, out);
        self.commit.wanted |= !self.commit.waiting.is_empty();
        self.retry_stalled();
    }

    /// True when no change waits to be journaled.
    pub(crate) fn log_is_empty(&self) -> bool {
        self.log.bytes.is_empty()
    }

    /// Bytes of journal that a restart would have to replay.
    pub(crate) fn journal_used_bytes(&self) -> u64 {
        self.commit.used_blocks * BLOCK_BYTES
    }
}
