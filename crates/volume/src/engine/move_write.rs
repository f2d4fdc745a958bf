//! Writing chunks of a moving volume into its hidden copy.
//!
//! Owns: the life of a chunk: write, read back, compare, install. Never: trusts bytes that were not read back.
//! Invariant: a block enters the map only after the drive returned it and it matched the source's checksum.

use super::commit::Waiter;
use super::data::BLOCK;
use super::slots::{IoUse, OpSlot, Ops, Work};
use super::{Engine, Halt};
use crate::cache::PageKey;
use crate::crc::data_crc;
use crate::entry::{Entry, FANOUT};
use crate::journal::put_map;
use crate::mem::{Buf, Mem};
use crate::moving::{END_BLOCK, Moving, Stage};
use crate::op::{AdminError, AdminReply, CHUNK_BLOCKS, Chunk, IoKind, MoveOp, Out, Tag};
use segue_types::{BLOCK_BYTES, LayerId, MoveId};
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Allocating,
    Writing,
    ReadingBack,
    Installing,
    Punching,
}

/// The chunk being written.
struct Job {
    tag: Tag,
    id: MoveId,
    round: u32,
    chunk: Chunk,
    durable: bool,
    step: Step,
    /// Where each block is written; those from `installed` on are not in the map yet.
    entries: Vec<Entry>,
    installed: usize,
    /// The hole being punched, and how many of its blocks are.
    hole: usize,
    punched: u64,
    ios: u32,
    errno: i32,
}

/// A move's copy is whole up to a block of a round, once the record of this number is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reached {
    sequence: u64,
    id: MoveId,
    round: u32,
    cursor: u64,
}

/// The writer: one chunk at a time.
pub(crate) struct MoveWrite {
    op: u32,
    buf: Buf,
    job: Option<Job>,
    /// Oldest first; the volume's record names only what was durable when it was journaled. A record may turn out to
    /// be on the drive without the data it speaks of, and then a cursor in it would skip that data.
    reached: VecDeque<Reached>,
}

impl MoveWrite {
    pub(crate) fn new(ops: &mut Ops, buf: Buf) -> MoveWrite {
        MoveWrite {
            op: ops.take(OpSlot::background(Work::MoveWrite)),
            buf,
            job: None,
            reached: VecDeque::with_capacity(64),
        }
    }

    /// The operation in progress, for the engine that takes over.
    pub(crate) fn take_over(&mut self) -> Option<(Tag, MoveOp)> {
        let again = |j: Job| (j.tag, MoveOp::Write { id: j.id, round: j.round, chunk: j.chunk, durable: j.durable });
        self.job.take().map(again)
    }

    /// How far the copy is in memory, and so, once an engine took over, on the drive.
    pub(crate) fn reached(&self) -> Option<Reached> {
        self.reached.back().map(|r| Reached { sequence: 0, ..*r })
    }

    pub(crate) fn restore(&mut self, reached: Option<Reached>) {
        self.reached.extend(reached);
    }

    pub(crate) fn release(&mut self, mem: &mut Mem) {
        mem.free(self.buf);
    }
}

impl Engine {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn start_move_write(
        &mut self,
        tag: Tag,
        id: MoveId,
        round: u32,
        chunk: Chunk,
        durable: bool,
        mem: &mut Mem,
        out: &mut Out,
    ) {
        if self.move_write.job.is_some() {
            return out.admin.push((tag, Err(AdminError::Conflict("another chunk is being written"))));
        }
        let n = chunk.pieces.len();
        assert!(n <= CHUNK_BLOCKS && chunk.data.len() == n * BLOCK, "a chunk has a block for each piece");
        mem.get_mut(self.move_write.buf.part(0, n * BLOCK)).copy_from_slice(&chunk.data);
        self.move_write.job = Some(Job {
            tag,
            id,
            round,
            chunk,
            durable,
            step: Step::Allocating,
            entries: Vec::with_capacity(n),
            installed: 0,
            hole: 0,
            punched: 0,
            ios: 0,
            errno: 0,
        });
        self.run_move_write(mem, out);
    }

    /// Carries the chunk on, as far as pages and room allow.
    pub(crate) fn run_move_write(&mut self, mem: &mut Mem, out: &mut Out) {
        let Some(job) = self.move_write.job.as_ref() else { return };
        let step = job.step;
        if self.poisoned.is_some() {
            return self.fail_move_write(AdminError::Poisoned, out);
        }
        let Some((_, layer, moving)) = self.incoming_head(job.id) else {
            return self.fail_move_write(AdminError::Conflict("this pool expects no such move"), out);
        };
        // The source goes to the next round only when all of this one is here, durably; the record may be behind.
        let now = self.move_write.reached.back().filter(|r| r.id == job.id).map_or(moving.round, |r| r.round);
        if job.round < now {
            return self.fail_move_write(AdminError::Conflict("this round of the move is over"), out);
        }
        let done = match step {
            Step::Allocating => self.move_allocate(mem, out),
            Step::Installing => self.move_install(layer, mem, out),
            Step::Punching => self.move_punch(layer, mem, out),
            Step::Writing | Step::ReadingBack => return,
        };
        if let Err(halt) = done {
            let op = self.move_write.op;
            self.park(op, halt, out);
        }
    }

    fn move_job(&mut self) -> &mut Job {
        self.move_write.job.as_mut().expect("a chunk is being written")
    }

    fn move_allocate(&mut self, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        let count = self.move_job().chunk.pieces.len() as u64;
        if count == 0 {
            self.move_job().step = Step::Punching;
            let id = self.move_job().id;
            let (_, layer, _) = self.incoming_head(id).expect("looked up before");
            return self.move_punch(layer, mem, out);
        }
        if self.alloc.free() < count + self.reserve_blocks {
            if self.space.pending_blocks() > 0 {
                self.commit.want();
                self.ckpt.want_if(self.space.waits_for_checkpoint());
                return Err(Halt::Stall);
            }
            self.fail_move_write(AdminError::NoSpace, out);
            return Ok(());
        }
        let generation = self.next_generation;
        self.next_generation += 1;
        let mut entries = std::mem::take(&mut self.move_job().entries);
        while (entries.len() as u64) < count {
            let (at, run) = self.alloc.take_run(count - entries.len() as u64).expect("room was checked");
            for i in 0..run {
                let block = self.move_job().chunk.pieces[entries.len()].block;
                let bytes = mem.get(self.move_write.buf.part(entries.len() * BLOCK, BLOCK));
                let crc = data_crc(generation, block, bytes);
                entries.push(Entry::pointer(at + i, generation, crc));
            }
        }
        self.move_job().entries = entries;
        self.move_job().step = Step::Writing;
        self.move_submit(|offset, buf| IoKind::Write { offset, buf }, out);
        Ok(())
    }

    /// One I/O for each run of the chunk's blocks on the drive.
    fn move_submit(&mut self, kind: fn(u64, Buf) -> IoKind, out: &mut Out) {
        let entries = std::mem::take(&mut self.move_job().entries);
        let mut first = 0;
        while first < entries.len() {
            let start = entries[first].block();
            let run = entries[first..].iter().zip(start..).take_while(|(e, at)| e.block() == *at).count();
            let buf = self.move_write.buf.part(first * BLOCK, run * BLOCK);
            self.submit(IoUse::MoveWrite, kind(start * BLOCK_BYTES, buf), out);
            self.move_job().ios += 1;
            first += run;
        }
        self.move_job().entries = entries;
    }

    pub(crate) fn move_write_io_done(&mut self, errno: i32, mem: &mut Mem, out: &mut Out) {
        let job = self.move_write.job.as_mut().expect("its I/O is in flight");
        job.ios -= 1;
        job.errno = if job.errno == 0 { errno } else { job.errno };
        if job.ios > 0 {
            return;
        }
        if job.errno != 0 {
            return self.fail_move_write(AdminError::Corrupt, out);
        }
        let used = job.entries.len() * BLOCK;
        match job.step {
            Step::Writing => {
                job.step = Step::ReadingBack;
                // What is compared must have come from the drive.
                mem.get_mut(self.move_write.buf.part(0, used)).fill(0);
                self.move_submit(|offset, buf| IoKind::Read { offset, buf }, out);
            }
            Step::ReadingBack => {
                job.step = Step::Installing;
                match self.came_whole(mem, out) {
                    true => self.run_move_write(mem, out),
                    false => self.fail_move_write(AdminError::Corrupt, out),
                }
            }
            _ => unreachable!("no I/O is out in this step"),
        }
    }

    /// Compares what the drive returned with the source's checksums.
    fn came_whole(&mut self, mem: &mut Mem, out: &mut Out) -> bool {
        let job = self.move_write.job.as_ref().expect("a chunk is being written");
        for (i, piece) in job.chunk.pieces.iter().enumerate() {
            let bytes = mem.get(self.move_write.buf.part(i * BLOCK, BLOCK));
            let found = data_crc(piece.generation, piece.block, bytes);
            if found != piece.crc32c {
                let (entry, block) = (job.entries[i], piece.block);
                self.data_alarm(LayerId(0), entry, block, found, out);
                return false;
            }
        }
        true
    }

    fn move_install(&mut self, layer: LayerId, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        loop {
            let job = self.move_job();
            let Some(first) = job.chunk.pieces.get(job.installed).map(|p| p.block) else { break };
            let leaf = first / FANOUT;
            let n = job.chunk.pieces[job.installed..].iter().take_while(|p| p.block / FANOUT == leaf).count();
            self.log.room(40 * n + 128).inspect_err(|_| self.commit.want())?;
            let slot = self.page_mut(PageKey { layer, level: 0, index: leaf }, mem, out)?;
            let page = mem.get_mut(self.cache.slot(slot).buf);
            let job = self.move_write.job.as_mut().expect("a chunk is being written");
            let mut fresh = 0;
            for i in job.installed..job.installed + n {
                let (index, entry) = (job.chunk.pieces[i].block % FANOUT, job.entries[i]);
                let old = Entry::get(page, index);
                match old.is_pointer() {
                    true => self.space.free_data(old.block()),
                    false => fresh += 1,
                }
                entry.put(page, index);
                self.alloc.touch(entry.block());
            }
            self.move_log(layer, n);
            self.move_job().installed += n;
            self.count_blocks(layer, fresh);
        }
        self.move_job().step = Step::Punching;
        self.move_punch(layer, mem, out)
    }

    /// Journals the next `n` blocks, runs that lie together in volume and drive as one change.
    fn move_log(&mut self, layer: LayerId, n: usize) {
        let job = self.move_write.job.as_ref().expect("a chunk is being written");
        let (mut at, end) = (job.installed, job.installed + n);
        while at < end {
            let (block, entry) = (job.chunk.pieces[at].block, job.entries[at]);
            let together = |i: &usize| {
                let run = (*i - at) as u64;
                job.chunk.pieces[*i].block == block + run && job.entries[*i].block() == entry.block() + run
            };
            let run = (at..end).take_while(together).count();
            let crcs = job.entries[at..at + run].iter().map(|e| e.crc());
            put_map(self.log.append(self.now), layer, block, entry.block(), entry.generation(), crcs);
            at += run;
        }
    }

    fn move_punch(&mut self, layer: LayerId, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        loop {
            let job = self.move_job();
            let Some((first, count)) = job.chunk.holes.get(job.hole).copied() else { break };
            if job.punched >= count {
                (job.hole, job.punched) = (job.hole + 1, 0);
                continue;
            }
            let block = first + job.punched;
            let n = (count - job.punched).min(FANOUT - block % FANOUT);
            self.log.room(256).inspect_err(|_| self.commit.want())?;
            let skip = self.punch_leaf(layer, block, n, mem, out)?;
            self.move_job().punched += skip.min(count);
        }
        self.move_written(out);
        Ok(())
    }

    /// All of the chunk is in the map.
    fn move_written(&mut self, out: &mut Out) {
        let job = self.move_write.job.as_ref().expect("a chunk was being written");
        let (id, round, cursor) = (job.id, job.round, job.chunk.next_block);
        let (volume, _, moving) = self.incoming_head(id).expect("looked up before");
        if let Some(safe) = self.reached_durably(id)
            && (moving.round != safe.round || moving.stage != (Stage::Incoming { cursor: safe.cursor }))
        {
            let stage = Stage::Incoming { cursor: safe.cursor };
            self.set_moving(volume, Some(Moving { round: safe.round, stage, ..moving }));
        }
        // With nothing pending, all of it is in the record before.
        let sequence = self.commit.next_sequence - u64::from(self.log_is_empty());
        let reached = Reached { sequence, id, round, cursor };
        match self.move_write.reached.back_mut().filter(|r| r.sequence == sequence) {
            Some(last) => *last = reached,
            None => self.move_write.reached.push_back(reached),
        }
        let job = self.move_write.job.take().expect("a chunk was being written");
        match job.durable {
            true => self.wait_for_commit(Waiter::Admin(job.tag, AdminReply::Done), out),
            false => out.admin.push((job.tag, Ok(AdminReply::Done))),
        }
        self.settle(out);
    }

    /// How far the copy is on the drive for certain.
    fn reached_durably(&mut self, id: MoveId) -> Option<Reached> {
        let reached = &mut self.move_write.reached;
        let durable = reached.iter().take_while(|r| r.sequence <= self.commit.durable_sequence).count();
        reached.drain(..durable.saturating_sub(1));
        reached.retain(|r| r.id == id);
        reached.front().copied().filter(|r| r.sequence <= self.commit.durable_sequence)
    }

    /// True when the whole round is here, durably.
    pub(crate) fn is_copied(&mut self, id: MoveId, round: u32) -> bool {
        self.reached_durably(id).is_some_and(|r| r.round == round && r.cursor == END_BLOCK)
    }

    pub(crate) fn fail_move_write(&mut self, error: AdminError, out: &mut Out) {
        let Some(job) = self.move_write.job.take() else { return };
        debug_assert_eq!(job.ios, 0);
        for entry in &job.entries[job.installed..] {
            self.alloc.clear(entry.block());
        }
        out.admin.push((job.tag, Err(error)));
        self.settle(out);
    }
}
