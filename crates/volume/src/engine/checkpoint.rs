//! Checkpoints: the map, bitmap and records written out, so that the journal before them is no longer needed.
//!
//! Owns: the cut and the order of writes up to the superblock. Never: blocks requests while it writes.
//! Invariant: nothing the last complete checkpoint refers to is overwritten before the next one is complete.

use super::Engine;
use super::slots::{IoUse, Stage};
use crate::cache::{PageState, TOP_LEVEL};
use crate::codec::Writer;
use crate::crc::{page_crc, plain_crc};
use crate::entry::{Entry, page_is_empty};
use crate::layout::{BITS_PER_PAGE, Superblock};
use crate::mem::{Buf, Mem};
use crate::op::{AdminError, AdminReply, IoKind, Out, Tag};
use segue_types::{BLOCK_BYTES, TaskKind};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Writes in flight at a time, so that clients' I/O is not queued behind a burst.
const WRITES_MAX: usize = 32;
/// Bytes of the staging buffer.
pub(crate) const STAGE_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Pages,
    Bitmap,
    /// The journal must be durable up to everything the bitmap pages tell.
    Confirm,
    Root,
    RootFlush,
    Superblock,
    SuperblockFlush,
}

/// Where a bitmap page lies and its checksum. A page never written is all free and has no copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BitmapPage {
    pub(crate) written: bool,
    pub(crate) copy: u8,
    pub(crate) crc: u32,
}

/// The checkpoint in progress, and what the last one left.
pub(crate) struct Checkpoint {
    wanted: bool,
    phase: Phase,
    /// The phase that was last seen to begin.
    entered: Phase,
    /// Pages to write: slot, buffer, block.
    queue: Vec<(u32, Buf, u64)>,
    next: usize,
    in_flight: usize,
    stage: Buf,
    blob: Vec<u8>,
    blob_written: usize,
    bitmap_next: u64,
    pub(crate) table: Vec<BitmapPage>,
    limbo: Vec<u64>,
    used_at_cut: u64,
    confirm: u64,
    /// The valid superblock, and the one being made.
    pub(crate) current: Superblock,
    making: Superblock,
    /// Admin operations that wait for the next complete checkpoint that begins after they came, or for this one.
    waiting_next: Vec<Tag>,
    waiting: Vec<Tag>,
    pub(crate) complete: u64,
}

impl Checkpoint {
    pub(crate) fn new(stage: Buf, current: Superblock, table: Vec<BitmapPage>) -> Checkpoint {
        Checkpoint {
            wanted: false,
            phase: Phase::Idle,
            entered: Phase::Idle,
            queue: Vec::new(),
            next: 0,
            in_flight: 0,
            stage,
            blob: Vec::new(),
            blob_written: 0,
            bitmap_next: 0,
            table,
            limbo: Vec::new(),
            used_at_cut: 0,
            confirm: 0,
            current,
            making: current,
            waiting_next: Vec::new(),
            waiting: Vec::new(),
            complete: 0,
        }
    }

    pub(crate) fn release(&mut self, mem: &mut Mem) {
        mem.free(self.stage);
    }

    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    pub(crate) fn want_if(&mut self, wanted: bool) {
        self.wanted |= wanted;
    }

    pub(crate) fn want_for(&mut self, tag: Tag) {
        self.wanted = true;
        self.waiting_next.push(tag);
    }

    pub(crate) fn running(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Takes everybody who waits for a checkpoint.
    pub(crate) fn take_waiters(&mut self) -> impl Iterator<Item = Tag> {
        std::mem::take(&mut self.waiting).into_iter().chain(std::mem::take(&mut self.waiting_next))
    }

    /// It waits for one more record.
    pub(crate) fn confirming(&self) -> bool {
        self.phase == Phase::Confirm
    }

    /// The next commit should cut.
    pub(crate) fn wants_cut(&self) -> bool {
        self.wanted && self.phase == Phase::Idle
    }
}

impl Engine {
    /// Takes the state as of the record just begun. Called in the step that begins the record, so that the pages
    /// hold exactly what the journal holds up to and including it.
    pub(crate) fn cut(&mut self, mem: &mut Mem, out: &mut Out) {
        self.space.cut();
        self.fault_point(TaskKind::Checkpoint, "cut begun");
        self.ckpt.wanted = false;
        self.ckpt.queue.clear();
        self.ckpt.next = 0;
        let dirty = std::mem::take(&mut self.cache.dirty);
        for level in 0..=TOP_LEVEL {
            for slot in &dirty {
                if self.cache.slot(*slot).key.level == level {
                    self.place_page(*slot, mem);
                }
            }
        }
        let mut dirty = dirty;
        dirty.clear();
        self.cache.dirty = dirty;
        self.fault_point(TaskKind::Checkpoint, "pages placed");
        let mut limbo = std::mem::take(&mut self.ckpt.limbo);
        limbo.clear();
        self.space.limbo(&mut limbo);
        if let Some(lending) = &self.lending {
            lending.limbo(&mut limbo);
        }
        limbo.iter().for_each(|b| self.alloc.touch(*b));
        self.ckpt.limbo = limbo;
        self.ckpt.blob.clear();
        self.ckpt.blob.put_u64(self.next_generation);
        self.catalog.encode(&mut self.ckpt.blob);
        if let Some(lending) = &self.lending {
            lending.encode(&mut self.ckpt.blob);
        }
        self.ckpt.used_at_cut = self.commit.used_blocks;
        self.ckpt.making = Superblock {
            sequence: self.ckpt.current.sequence + 1,
            area: 1 - self.ckpt.current.area,
            journal_position: self.commit.position,
            journal_sequence: self.commit.next_sequence,
            cache_pages: self.cache.capacity() as u64,
            ..self.ckpt.current
        };
        let next = std::mem::take(&mut self.ckpt.waiting_next);
        self.ckpt.waiting.extend(next);
        self.ckpt.phase = Phase::Pages;
        self.pump_checkpoint(mem, out);
    }

    /// Gives a dirty page its next place and tells the page above.
    fn place_page(&mut self, slot: u32, mem: &mut Mem) {
        let (key, old, buf) = {
            let s = self.cache.slot(slot);
            debug_assert!(s.state == PageState::Dirty && !s.writing);
            (s.key, s.at, s.buf)
        };
        if old.is_pointer() {
            self.space.free_page_now(old.block());
        }
        let empty = page_is_empty(mem.get(buf));
        let at = if empty {
            Entry::ABSENT
        } else {
            let (block, _) = self.alloc.take_run(1).expect("blocks are reserved for map pages");
            let generation = self.next_generation;
            self.next_generation += 1;
            Entry::pointer(block, generation, page_crc(generation, key.level, key.index, mem.get(buf)))
        };
        if key.level == TOP_LEVEL {
            if let Some(layer) = self.catalog.layers.get_mut(&key.layer) {
                layer.root = at;
            }
        } else {
            let (up, index) = key.up();
            let above = self.cache.find(up).expect("the pages above a dirty page are cached");
            at.put(mem.get_mut(self.cache.slot(above).buf), index);
        }
        let s = self.cache.slot_mut(slot);
        (s.at, s.state) = (at, PageState::Clean);
        if empty {
            self.cache.remove(slot);
        } else {
            s.writing = true;
            self.ckpt.queue.push((slot, buf, at.block()));
        }
    }

    /// Moves the checkpoint on as far as it can go.
    pub(crate) fn pump_checkpoint(&mut self, mem: &mut Mem, out: &mut Out) {
        if self.cache.dirty.len() > self.dirty_max / 2 && !self.replaying {
            self.ckpt.wanted = true;
        }
        if self.poisoned.is_some() {
            self.fail_checkpoint(out);
            return;
        }
        loop {
            let before = self.ckpt.phase;
            if before != self.ckpt.entered {
                // Each phase is a task of its own.
                self.ckpt.entered = before;
                self.task_begins(TaskKind::Checkpoint);
            } else if before != Phase::Idle {
                self.recovery_point(TaskKind::Checkpoint, "between phases");
            }
            match before {
                Phase::Idle | Phase::RootFlush | Phase::SuperblockFlush => {}
                Phase::Superblock => self.write_superblock(mem, out),
                Phase::Pages => self.pump_pages(out),
                Phase::Bitmap => self.pump_bitmap(mem, out),
                Phase::Confirm => self.pump_confirm(),
                Phase::Root => self.pump_root(mem, out),
            }
            if self.ckpt.phase == before {
                break;
            }
        }
    }

    fn fail_checkpoint(&mut self, out: &mut Out) {
        self.ckpt.wanted = false;
        let tags = std::mem::take(&mut self.ckpt.waiting);
        let next = std::mem::take(&mut self.ckpt.waiting_next);
        out.admin.extend(tags.into_iter().chain(next).map(|tag| (tag, Err(AdminError::Poisoned))));
    }

    fn pump_pages(&mut self, out: &mut Out) {
        while self.ckpt.in_flight < WRITES_MAX && self.ckpt.next < self.ckpt.queue.len() {
            let (slot, buf, block) = self.ckpt.queue[self.ckpt.next];
            self.ckpt.next += 1;
            self.ckpt.in_flight += 1;
            self.fault_point(TaskKind::Checkpoint, "pages half submitted");
            self.submit(IoUse::CkptPage { slot, buf }, IoKind::Write { offset: block * BLOCK_BYTES, buf }, out);
        }
        if self.ckpt.in_flight == 0 {
            self.ckpt.phase = Phase::Bitmap;
            self.ckpt.bitmap_next = 0;
        }
    }

    /// Writes the next batch of changed bitmap pages, with blocks in limbo shown as free.
    fn pump_bitmap(&mut self, mem: &mut Mem, out: &mut Out) {
        if self.ckpt.in_flight > 0 {
            return;
        }
        let mut limbo = std::mem::take(&mut self.ckpt.limbo);
        limbo.clear();
        self.space.limbo(&mut limbo);
        self.limbo_in_flight(&mut limbo);
        if let Some(lending) = &self.lending {
            lending.limbo(&mut limbo);
        }
        limbo.sort_unstable();
        let mut staged = 0;
        while staged < STAGE_BYTES / BLOCK {
            let Some(page) = self.alloc.next_dirty(self.ckpt.bitmap_next) else { break };
            self.ckpt.bitmap_next = page + 1;
            let buf = self.ckpt.stage.part(staged * BLOCK, BLOCK);
            let bytes = mem.get_mut(buf);
            self.alloc.take_page(page, bytes);
            let from = limbo.partition_point(|b| *b < page * BITS_PER_PAGE);
            for block in limbo[from..].iter().take_while(|b| **b < (page + 1) * BITS_PER_PAGE) {
                let bit = block % BITS_PER_PAGE;
                bytes[(bit / 8) as usize] &= !(1 << (bit % 8));
            }
            let entry = &mut self.ckpt.table[page as usize];
            *entry = BitmapPage { written: true, copy: 1 - entry.copy, crc: plain_crc(bytes) };
            let offset = self.layout.bitmap_block(page, u64::from(entry.copy)) * BLOCK_BYTES;
            self.fault_point(TaskKind::Checkpoint, "bitmap page staged");
            self.submit(IoUse::Ckpt, IoKind::Write { offset, buf }, out);
            self.ckpt.in_flight += 1;
            staged += 1;
        }
        self.ckpt.limbo = limbo;
        if staged == 0 {
            self.ckpt.confirm = self.commit.next_sequence - u64::from(self.log_is_empty());
            self.commit.want();
            self.ckpt.phase = Phase::Confirm;
        }
    }

    /// Blocks that operations in flight have allocated and not installed.
    fn limbo_in_flight(&self, limbo: &mut Vec<u64>) {
        for op in &self.mutators {
            let o = &self.ops[*op];
            if matches!(o.stage, Stage::Writing | Stage::Installing) {
                limbo.extend(o.entries[o.done as usize..o.count as usize].iter().map(|e| e.block()));
            }
        }
    }

    fn pump_confirm(&mut self) {
        if self.commit.durable_sequence >= self.ckpt.confirm {
            self.ckpt.making.durable_sequence = self.commit.durable_sequence;
            for page in &self.ckpt.table {
                self.ckpt.blob.put_u32(page.crc);
                self.ckpt.blob.put_u32(u32::from(page.written) | u32::from(page.copy) << 1);
            }
            self.ckpt.blob_written = 0;
            self.ckpt.phase = Phase::Root;
        } else {
            self.commit.want();
        }
    }

    fn pump_root(&mut self, mem: &mut Mem, out: &mut Out) {
        if self.ckpt.in_flight > 0 {
            return;
        }
        let c = &mut self.ckpt;
        let left = c.blob.len() - c.blob_written;
        if left == 0 {
            c.making.root_bytes = c.blob.len() as u64;
            c.making.root_crc = plain_crc(&c.blob);
            c.phase = Phase::RootFlush;
            c.in_flight = 1;
            self.submit(IoUse::Ckpt, IoKind::Flush, out);
            return;
        }
        assert!(c.blob.len() as u64 <= self.layout.area_blocks * BLOCK_BYTES, "the catalogue outgrew its area");
        let n = left.min(STAGE_BYTES);
        let buf = c.stage.part(0, n.next_multiple_of(BLOCK));
        let bytes = mem.get_mut(buf);
        bytes[..n].copy_from_slice(&c.blob[c.blob_written..c.blob_written + n]);
        bytes[n..].fill(0);
        let offset = self.layout.area_start(c.making.area) * BLOCK_BYTES + c.blob_written as u64;
        c.blob_written += n;
        c.in_flight = 1;
        self.fault_point(TaskKind::Checkpoint, "root staged");
        self.submit(IoUse::Ckpt, IoKind::Write { offset, buf }, out);
    }

    pub(crate) fn ckpt_page_written(&mut self, slot: u32, buf: Buf, errno: i32, out: &mut Out) {
        let s = self.cache.slot_mut(slot);
        if s.buf == buf && s.writing {
            s.writing = false;
        } else {
            self.cache.give_spare(buf);
        }
        self.ckpt_io_done(errno, out);
    }

    pub(crate) fn ckpt_io_done(&mut self, errno: i32, out: &mut Out) {
        self.ckpt.in_flight -= 1;
        if errno != 0 {
            self.poison(errno, out);
            return;
        }
        if self.poisoned.is_some() || self.ckpt.in_flight > 0 {
            return;
        }
        match self.ckpt.phase {
            Phase::RootFlush => self.ckpt.phase = Phase::Superblock,
            Phase::Superblock => {
                self.ckpt.phase = Phase::SuperblockFlush;
                self.ckpt.in_flight = 1;
                self.submit(IoUse::Ckpt, IoKind::Flush, out);
            }
            Phase::SuperblockFlush => self.checkpoint_complete(out),
            _ => {}
        }
    }

    /// Writes the superblock that makes the checkpoint valid.
    fn write_superblock(&mut self, mem: &mut Mem, out: &mut Out) {
        if self.ckpt.in_flight > 0 {
            return;
        }
        let buf = self.ckpt.stage.part(0, BLOCK);
        self.ckpt.making.encode(mem.get_mut(buf));
        self.ckpt.in_flight = 1;
        let offset = self.layout.superblock(self.ckpt.making.sequence % 2) * BLOCK_BYTES;
        self.fault_point(TaskKind::Checkpoint, "superblock made");
        self.submit(IoUse::Ckpt, IoKind::Write { offset, buf }, out);
    }

    fn checkpoint_complete(&mut self, out: &mut Out) {
        self.ckpt.phase = Phase::Idle;
        self.ckpt.current = self.ckpt.making;
        self.fault_point(TaskKind::Checkpoint, "half complete");
        self.ckpt.complete += 1;
        self.commit.used_blocks -= self.ckpt.used_at_cut;
        self.space.checkpointed(&mut self.alloc);
        out.admin.extend(self.ckpt.waiting.drain(..).map(|tag| (tag, Ok(AdminReply::Done))));
        self.retry_stalled();
    }
}
