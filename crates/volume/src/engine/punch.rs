//! Discards, zeroes, and the blocks that a request covers only in part.
//!
//! Owns: read-merge-write of edges, holes in the map. Never: copies a block that is covered whole.
//! Invariant: bytes outside the request's range keep their value.

use super::data::BLOCK;
use super::map::{LEAVES_MAX, Look};
use super::slots::{IoUse, Stage};
use super::{Engine, Halt};
use crate::cache::PageKey;
use crate::crc::data_crc;
use crate::entry::{Entry, FANOUT};
use crate::journal::put_punch;
use crate::mem::{Buf, Mem};
use crate::op::{IoKind, Op, Out};
use segue_types::{BLOCK_BYTES, LayerId, TaskKind};

/// Blocks written at a time when zeroes must stay allocated.
pub(crate) const ZERO_RUN_BLOCKS: u64 = 16;

impl Engine {
    /// Begins to read the one or two blocks that `offset..end` covers only in part.
    pub(crate) fn read_edges(
        &mut self,
        op: u32,
        offset: u64,
        end: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<(), Halt> {
        let head = match self.bind(self.ops[op].attach) {
            Ok(bound) => bound.head,
            Err(status) => {
                self.reply(op, status, 0, out);
                return Ok(());
            }
        };
        let (first, last) = (offset / BLOCK_BYTES, (end - 1) / BLOCK_BYTES);
        let mut blocks = [first, last];
        let mut edges = 0;
        if !offset.is_multiple_of(BLOCK_BYTES) {
            edges = 1;
        }
        if !end.is_multiple_of(BLOCK_BYTES) && (edges == 0 || last != first) {
            blocks[edges] = last;
            edges += 1;
        }
        for (i, block) in blocks.iter().enumerate().take(edges) {
            let entry = self.resolve(head, *block, mem, out)?;
            self.ops[op].entries[i] = entry;
        }
        if self.scratch.len() < edges {
            return Err(Halt::Stall);
        }
        let mut reads = 0;
        for i in 0..edges {
            let (buf, entry) = (self.scratch.pop().expect("room was checked"), self.ops[op].entries[i]);
            self.ops[op].scratch[i] = buf;
            self.ops[op].edge_live[i] = entry.is_pointer();
            if entry.is_pointer() {
                self.submit(IoUse::Op(op), IoKind::Read { offset: entry.block() * BLOCK_BYTES, buf }, out);
                reads += 1;
            } else {
                mem.get_mut(buf).fill(0);
            }
        }
        let era = self.space.read_begins();
        let slot = &mut self.ops[op];
        (slot.edge_blocks, slot.edges, slot.edge) = (blocks, edges as u8, 0);
        (slot.stage, slot.ios, slot.era) = (Stage::EdgeReading, reads, era);
        if reads == 0 {
            self.space.read_ends(era, &mut self.alloc);
            return self.edges_read(op, mem, out);
        }
        Ok(())
    }

    /// True when every edge block that was read matches its checksum.
    pub(crate) fn edges_good(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> bool {
        for i in 0..self.ops[op].edges as usize {
            let (entry, block) = (self.ops[op].entries[i], self.ops[op].edge_blocks[i]);
            let found = data_crc(entry.generation(), block, mem.get(self.ops[op].scratch[i]));
            if self.ops[op].edge_live[i] && found != entry.crc() {
                let head = self.bind(self.ops[op].attach).map_or(LayerId(0), |b| b.head);
                self.data_alarm(head, entry, block, found, out);
                return false;
            }
            if self.ops[op].edge_live[i] {
                self.decrypt(self.ops[op].attach, block, mem.get_mut(self.ops[op].scratch[i]));
            }
        }
        true
    }

    /// The edges are in memory: merge them into a write, or write them back with their part zeroed.
    pub(crate) fn edges_read(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        match self.ops[op].op {
            Op::Write { offset, len, buf, .. } => {
                let end = offset + u64::from(len);
                let base = offset / BLOCK_BYTES;
                for i in 0..self.ops[op].edges as usize {
                    let (block, from) = (self.ops[op].edge_blocks[i], self.ops[op].scratch[i]);
                    let to = buf.part((block - base) as usize * BLOCK, BLOCK);
                    let (keep_head, keep_tail) = kept(block, offset, end);
                    if self.ops[op].edge_live[i] {
                        self.bytes_copied += (keep_head + BLOCK - keep_tail) as u64;
                    }
                    if keep_head > 0 {
                        mem.copy(from.part(0, keep_head), to.part(0, keep_head));
                    }
                    if keep_tail < BLOCK {
                        mem.copy(from.part(keep_tail, BLOCK - keep_tail), to.part(keep_tail, BLOCK - keep_tail));
                    }
                }
                self.drop_scratch(op);
                self.ops[op].edges_done = true;
                self.ops[op].stage = Stage::Start;
                self.run_client(op, mem, out)
            }
            Op::WriteZeroes { .. } => self.next_edge(op, mem, out),
            _ => unreachable!("only writes and zeroes have edges"),
        }
    }

    /// Gives an operation's scratch blocks back, and wakes who may wait for them.
    pub(crate) fn drop_scratch(&mut self, op: u32) {
        for i in 0..2 {
            let buf = std::mem::replace(&mut self.ops[op].scratch[i], Buf::EMPTY);
            if !buf.is_empty() {
                self.scratch.push(buf);
                self.retry_stalled();
            }
        }
    }

    /// Zeroes to write at most `n` blocks from, and for how many they are enough. An encrypted volume's are encrypted
    /// where they lie, so it gets a block of its own.
    fn zero_run(&mut self, op: u32, n: u64, mem: &mut Mem) -> Result<(Buf, u64), Halt> {
        if self.cipher(self.ops[op].attach).is_none() {
            return Ok((self.zeroes.part(0, n as usize * BLOCK), n));
        }
        if self.ops[op].scratch[0].is_empty() {
            self.ops[op].scratch[0] = self.scratch.pop().ok_or(Halt::Stall)?;
        }
        let block = self.ops[op].scratch[0];
        mem.get_mut(block).fill(0);
        Ok((block, 1))
    }

    /// Writes the next edge block with its part zeroed, or goes on to the whole blocks.
    fn next_edge(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        let Op::WriteZeroes { offset, len, .. } = self.ops[op].op else { unreachable!("only zeroes get here") };
        while self.ops[op].edge < self.ops[op].edges {
            let i = self.ops[op].edge as usize;
            if self.ops[op].edge_live[i] {
                let (block, buf) = (self.ops[op].edge_blocks[i], self.ops[op].scratch[i]);
                let (from, to) = kept(block, offset, offset + len);
                mem.get_mut(buf)[from..to].fill(0);
                self.bytes_copied += (BLOCK - (to - from)) as u64;
                return self.write_blocks(op, block, buf, 1, mem, out);
            }
            self.ops[op].edge += 1;
        }
        self.drop_scratch(op);
        self.ops[op].edges_done = true;
        self.ops[op].stage = Stage::Punching;
        self.punch(op, mem, out)
    }

    /// A block or run of zeroes was written and installed: go on.
    pub(crate) fn zeroes_written(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        if self.ops[op].edges_done {
            self.ops[op].punched += u64::from(self.ops[op].count);
            return self.punch(op, mem, out);
        }
        self.ops[op].edge += 1;
        self.ops[op].stage = Stage::EdgeReading;
        self.next_edge(op, mem, out)
    }

    /// Starts a discard or write-zeroes whose whole blocks are `first..end`.
    pub(crate) fn start_punch(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        let slot = &mut self.ops[op];
        slot.end = slot.end.max(slot.first);
        slot.punched = slot.first;
        let ragged = match slot.op {
            Op::WriteZeroes { offset, len, .. } if len > 0 => {
                let aligned = offset.is_multiple_of(BLOCK_BYTES) && (offset + len).is_multiple_of(BLOCK_BYTES);
                (!aligned).then_some((offset, offset + len))
            }
            _ => None,
        };
        if !self.enter_mutators(op, ragged.is_some()) {
            return Ok(());
        }
        match ragged {
            Some((offset, end)) => self.read_edges(op, offset, end, mem, out),
            None => {
                self.ops[op].edges_done = true;
                self.ops[op].stage = Stage::Punching;
                self.punch(op, mem, out)
            }
        }
    }

    /// Punches on from where it stopped.
    pub(crate) fn punch(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        if !self.ops[op].edges_done {
            return self.next_edge(op, mem, out);
        }
        let keep = matches!(self.ops[op].op, Op::WriteZeroes { no_hole: true, .. });
        while self.ops[op].punched < self.ops[op].end {
            self.recovery_point(TaskKind::Write, "punching");
            let bound = match self.bind(self.ops[op].attach) {
                Ok(bound) if self.poisoned.is_none() => bound,
                other => {
                    let status = other.err().unwrap_or(segue_types::IoStatus::Io);
                    self.reply(op, status, 0, out);
                    return Ok(());
                }
            };
            let (block, end) = (self.ops[op].punched, self.ops[op].end);
            if keep {
                let n = (end - block).min(ZERO_RUN_BLOCKS);
                let (zeroes, n) = self.zero_run(op, n, mem)?;
                return self.write_blocks(op, block, zeroes, n, mem, out);
            }
            let n = (end - block).min(FANOUT - block % FANOUT);
            self.log.room(256).inspect_err(|_| self.commit.want())?;
            let layer = self.target_layer(bound.head, block / FANOUT, mem, out)?;
            // A head that merges still holds leaves that its parent does not know of.
            let reach = match layer == bound.head {
                true => u64::MAX,
                false => self.nothing_here(bound.head, block, mem, out)?.clamp(1, LEAVES_MAX) * FANOUT - block % FANOUT,
            };
            let skip = self.punch_leaf(layer, block, n, mem, out)?.min(reach);
            self.fault_point(TaskKind::Write, "punched and logged");
            self.ops[op].punched = (block + skip).min(end);
        }
        self.applied(op, out)
    }

    /// Makes blocks of one leaf of a layer read as zero. Returns how many blocks from `block` on are known to be
    /// zero now (more than asked when whole parts of the map are missing).
    pub(crate) fn punch_leaf(
        &mut self,
        layer: LayerId,
        block: u64,
        n: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<u64, Halt> {
        let leaf = block / FANOUT;
        let key = PageKey { layer, level: 0, index: leaf };
        let parent = self.catalog.layers.get(&layer).and_then(|l| l.parent);
        let empty = if parent.is_some() { Entry::HOLE } else { Entry::ABSENT };
        let found = self.look_leaf(layer, leaf, mem, out)?;
        match found {
            Look::Hole => return Ok(n),
            Look::Nothing(_) => {
                let below = match parent {
                    Some(parent) => self.leaves_missing(parent, leaf, mem, out)?,
                    None => u64::MAX,
                };
                if below > 0 {
                    let Look::Nothing(level) = found else { unreachable!("matched above") };
                    let leaves = 1u64 << (8 * level);
                    let missing = below.min(leaves - leaf % leaves);
                    return Ok(missing * FANOUT - block % FANOUT);
                }
            }
            Look::Page(_) => {}
        }
        if n == FANOUT {
            let above = self.page_mut(key.up().0, mem, out)?;
            let mut freed = 0;
            if let Look::Page(slot) = self.look_leaf(layer, leaf, mem, out)? {
                freed = self.free_leaf_blocks(slot, mem);
            }
            self.cut_leaf(key, above, empty, mem);
            self.count_blocks(layer, -(freed as i64));
        } else {
            let slot = self.page_mut(key, mem, out)?;
            let page = mem.get_mut(self.cache.slot(slot).buf);
            let mut freed = 0;
            for index in block % FANOUT..block % FANOUT + n {
                let old = Entry::get(page, index);
                if old.is_pointer() {
                    self.space.free_data(old.block());
                    freed += 1;
                }
                empty.put(page, index);
            }
            self.count_blocks(layer, -freed);
        }
        if !self.replaying {
            self.fault_point(TaskKind::Write, "punched, not logged");
            put_punch(self.log.append(self.now), layer, block, n as u32);
        }
        Ok(n)
    }

    /// Gives back every block a leaf points to; the page's entries are left as they are.
    pub(crate) fn free_leaf_blocks(&mut self, slot: u32, mem: &mut Mem) -> u64 {
        let page = mem.get(self.cache.slot(slot).buf);
        let mut freed = 0;
        for index in 0..FANOUT {
            let entry = Entry::get(page, index);
            if entry.is_pointer() {
                self.space.free_data(entry.block());
                freed += 1;
            }
        }
        freed
    }

    /// How many whole leaves from `leaf` on have no page in this layer or any below it.
    pub(crate) fn leaves_missing(
        &mut self,
        layer: LayerId,
        leaf: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<u64, Halt> {
        self.nothing_here(layer, leaf * FANOUT, mem, out)
    }

    pub(crate) fn count_blocks(&mut self, layer: LayerId, change: i64) {
        if let Some(layer) = self.catalog.layers.get_mut(&layer) {
            layer.blocks = layer.blocks.checked_add_signed(change).expect("a layer holds as many blocks as it frees");
        }
    }
}

/// Within `block`, the part that `offset..end` covers, as byte positions in the block.
fn kept(block: u64, offset: u64, end: u64) -> (usize, usize) {
    let start = block * BLOCK_BYTES;
    let from = offset.saturating_sub(start).min(BLOCK_BYTES);
    let to = (end - start).min(BLOCK_BYTES);
    (from as usize, to as usize)
}
