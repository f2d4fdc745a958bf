//! Reading a frozen round of a moving volume, a chunk at a time.
//!
//! Owns: the search for blocks of the round, their reads, and the comparison with the map's checksums. Never: changes the map.
//! Invariant: a chunk's bytes are those the map vouches for, or the read fails and says so.

use super::data::BLOCK;
use super::map::{LEAVES_MAX, Look};
use super::slots::{IoUse, OpSlot, Ops, Work};
use super::{Engine, Halt};
use crate::crc::data_crc;
use crate::entry::{Entry, FANOUT};
use crate::mem::{Buf, Mem};
use crate::move_op::CHUNK_HOLES;
use crate::moving::{END_BLOCK, Stage};
use crate::op::{AdminError, AdminReply, CHUNK_BLOCKS, Chunk, IoKind, MoveOp, MoveReply, Out, Piece, Tag};
use segue_types::{BLOCK_BYTES, LayerId, MoveId};
use std::sync::Arc;

/// Leaves looked through in one turn, so that clients wait at most for these.
const LEAVES_PER_TURN: usize = 8;

/// The chunk being made.
struct Job {
    tag: Tag,
    id: MoveId,
    round: u32,
    from: u64,
    chunk: Chunk,
    entries: Vec<Entry>,
    /// Reads in flight, the first error, and the era they began in; 0 reads: still searching.
    reads: u32,
    errno: i32,
    era: u64,
}

/// The reader: one chunk at a time.
pub(crate) struct MoveRead {
    op: u32,
    buf: Buf,
    parked: bool,
    job: Option<Job>,
    /// The leaf looked at, seen through the layers of the round.
    leaf: [Entry; FANOUT as usize],
}

impl MoveRead {
    pub(crate) fn new(ops: &mut Ops, buf: Buf) -> MoveRead {
        let op = ops.take(OpSlot::background(Work::MoveRead));
        MoveRead { op, buf, parked: false, job: None, leaf: [Entry::ABSENT; FANOUT as usize] }
    }

    pub(crate) fn release(&mut self, mem: &mut Mem) {
        mem.free(self.buf);
    }

    /// The operation in progress, for the engine that takes over.
    pub(crate) fn take_over(&mut self) -> Option<(Tag, MoveOp)> {
        let again = |j: Job| (j.tag, MoveOp::Read { id: j.id, round: j.round, from_block: j.from });
        self.job.take().map(again)
    }

    pub(crate) fn runnable(&self) -> bool {
        !self.parked && self.job.as_ref().is_some_and(|j| j.reads == 0)
    }
}

impl Engine {
    pub(crate) fn start_move_read(
        &mut self,
        tag: Tag,
        id: MoveId,
        round: u32,
        from: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) {
        if self.move_read.job.is_some() {
            return out.admin.push((tag, Err(AdminError::Conflict("another chunk is being read"))));
        }
        let chunk = Chunk { pieces: Vec::new(), holes: Vec::new(), data: Arc::default(), next_block: from };
        let entries = Vec::with_capacity(CHUNK_BLOCKS);
        self.move_read.job = Some(Job { tag, id, round, from, chunk, entries, reads: 0, errno: 0, era: 0 });
        self.run_move_read(mem, out);
    }

    /// Searches on.
    pub(crate) fn run_move_read(&mut self, mem: &mut Mem, out: &mut Out) {
        self.move_read.parked = false;
        if !self.move_read.runnable() {
            return;
        }
        for _ in 0..LEAVES_PER_TURN {
            match self.move_read_step(mem, out) {
                Ok(true) => {}
                Ok(false) => return,
                Err(halt) => {
                    self.move_read.parked = true;
                    let op = self.move_read.op;
                    return self.park(op, halt, out);
                }
            }
        }
    }

    /// Looks at the next leaf. `false`: the search is over.
    fn move_read_step(&mut self, mem: &mut Mem, out: &mut Out) -> Result<bool, Halt> {
        if self.poisoned.is_some() {
            self.fail_move_read(AdminError::Poisoned, out);
            return Ok(false);
        }
        let job = self.move_read.job.as_ref().expect("a chunk is being made");
        let round = match self.find_move(job.id).filter(|(_, m)| m.round == job.round).map(|(_, m)| m.stage) {
            Some(Stage::Leaving { frozen, base } | Stage::Sealed { frozen, base }) => Some((frozen, base)),
            _ => None,
        };
        let Some((frozen, base)) = round else {
            self.fail_move_read(AdminError::Conflict("this round of the move is over"), out);
            return Ok(false);
        };
        let from = job.chunk.next_block;
        let leaf = from / FANOUT;
        if from == END_BLOCK || leaf >= LEAVES_MAX {
            self.move_read_submit(END_BLOCK, out);
            return Ok(false);
        }
        let missing = self.see_leaf(frozen, base, leaf, mem, out)?;
        let job = self.move_read.job.as_mut().expect("a chunk is being made");
        if missing > 0 {
            job.chunk.next_block = leaf.saturating_add(missing).min(LEAVES_MAX) * FANOUT;
            return Ok(true);
        }
        let seen = &self.move_read.leaf;
        for index in from % FANOUT..FANOUT {
            let (entry, block) = (seen[index as usize], leaf * FANOUT + index);
            if entry.is_pointer() {
                if job.entries.len() == CHUNK_BLOCKS {
                    self.move_read_submit(block, out);
                    return Ok(false);
                }
                job.entries.push(entry);
                job.chunk.pieces.push(Piece { block, generation: entry.generation(), crc32c: entry.crc() });
            } else if entry.is_hole() && base.is_some() {
                let full = job.chunk.holes.len() == CHUNK_HOLES;
                match job.chunk.holes.last_mut() {
                    Some((first, count)) if *first + *count == block => *count += 1,
                    _ if full => {
                        self.move_read_submit(block, out);
                        return Ok(false);
                    }
                    _ => job.chunk.holes.push((block, 1)),
                }
            }
        }
        job.chunk.next_block = (leaf + 1) * FANOUT;
        Ok(true)
    }

    /// Looks at a leaf through the layers of the round, into `move_read.leaf`. Returns for how many whole leaves from
    /// this one on no layer has anything (0: there is something in this one).
    fn see_leaf(
        &mut self,
        frozen: LayerId,
        base: Option<LayerId>,
        leaf: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<u64, Halt> {
        self.move_read.leaf = [Entry::ABSENT; FANOUT as usize];
        let (mut at, mut missing) = (Some(frozen), u64::MAX);
        while let Some(layer) = at.filter(|id| Some(*id) != base) {
            match self.look_leaf(layer, leaf, mem, out)? {
                Look::Page(slot) => {
                    missing = 0;
                    let page = mem.get(self.cache.slot(slot).buf);
                    for (index, seen) in self.move_read.leaf.iter_mut().enumerate() {
                        if seen.is_absent() {
                            *seen = Entry::get(page, index as u64);
                        }
                    }
                }
                Look::Hole => {
                    missing = 0;
                    for seen in self.move_read.leaf.iter_mut().filter(|e| e.is_absent()) {
                        *seen = Entry::HOLE;
                    }
                    break;
                }
                Look::Nothing(level) => {
                    let leaves = 1u64 << (8 * level);
                    missing = missing.min(leaves - leaf % leaves);
                }
            }
            at = self.catalog.layers.get(&layer).and_then(|l| l.parent);
        }
        Ok(missing)
    }

    /// Reads the blocks that were found.
    fn move_read_submit(&mut self, next_block: u64, out: &mut Out) {
        let job = self.move_read.job.as_mut().expect("a chunk is being made");
        job.chunk.next_block = next_block;
        if job.entries.is_empty() {
            return self.move_read_answer(out);
        }
        // The entries are a picture of this moment: hold on to the blocks until they are read.
        job.era = self.space.read_begins();
        let entries = std::mem::take(&mut job.entries);
        let (mut first, mut reads) = (0, 0);
        while first < entries.len() {
            let start = entries[first].block();
            let run = entries[first..].iter().zip(start..).take_while(|(e, at)| e.block() == *at).count();
            let buf = self.move_read.buf.part(first * BLOCK, run * BLOCK);
            self.submit(IoUse::MoveRead, IoKind::Read { offset: start * BLOCK_BYTES, buf }, out);
            reads += 1;
            first += run;
        }
        let job = self.move_read.job.as_mut().expect("a chunk is being made");
        (job.entries, job.reads) = (entries, reads);
    }

    pub(crate) fn move_read_io_done(&mut self, errno: i32, mem: &mut Mem, out: &mut Out) {
        let job = self.move_read.job.as_mut().expect("its reads are in flight");
        job.reads -= 1;
        job.errno = if job.errno == 0 { errno } else { job.errno };
        if job.reads > 0 {
            return;
        }
        let (failed, era) = (job.errno != 0, job.era);
        let entries = std::mem::take(&mut job.entries);
        let pieces = std::mem::take(&mut job.chunk.pieces);
        self.space.read_ends(era, &mut self.alloc);
        self.retry_stalled();
        if failed {
            return self.fail_move_read(AdminError::Corrupt, out);
        }
        let bytes = self.move_read.buf.part(0, entries.len() * BLOCK);
        for (i, (entry, piece)) in entries.iter().zip(&pieces).enumerate() {
            let found = data_crc(entry.generation(), piece.block, mem.get(bytes.part(i * BLOCK, BLOCK)));
            if found != entry.crc() {
                self.data_alarm(LayerId(0), *entry, piece.block, found, out);
                return self.fail_move_read(AdminError::Corrupt, out);
            }
        }
        let job = self.move_read.job.as_mut().expect("its reads were in flight");
        job.chunk.pieces = pieces;
        job.chunk.data = Arc::new(mem.get(bytes).to_vec());
        self.move_read_answer(out);
    }

    fn move_read_answer(&mut self, out: &mut Out) {
        let job = self.move_read.job.take().expect("a chunk was being made");
        out.admin.push((job.tag, Ok(AdminReply::Move(MoveReply::Chunk(job.chunk)))));
        self.settle(out);
    }

    pub(crate) fn fail_move_read(&mut self, error: AdminError, out: &mut Out) {
        self.move_read.parked = false;
        if let Some(job) = self.move_read.job.take() {
            out.admin.push((job.tag, Err(error)));
            self.settle(out);
        }
    }
}
