//! Scrub: reads every block of every layer in the background and compares it with its checksum.
//!
//! Owns: how far it is. Never: repairs, or delays clients by more than a few reads.
//! Invariant: a block that is overwritten while it is being checked is not reported.

use super::data::BLOCK;
use super::map::Look;
use super::slots::{IoUse, OpSlot, Ops, Work};
use super::{Engine, Halt};
use crate::crc::data_crc;
use crate::entry::{Entry, FANOUT};
use crate::mem::{Buf, Mem};
use crate::op::{AdminReply, IoKind, Out};
use segue_types::{BLOCK_BYTES, LayerId, TaskKind};

/// Blocks read at a time.
pub(crate) const SCRUB_BLOCKS: usize = 64;

/// A run of blocks being read: index of its first block in `entries`, and length.
#[derive(Clone, Copy, Default)]
struct Run {
    first: usize,
    count: usize,
}

/// The scrub.
pub(crate) struct Scrub {
    op: u32,
    buf: Buf,
    running: bool,
    parked: bool,
    layer: LayerId,
    leaf: u64,
    /// The leaf being checked: its first block and the entries not yet read begin at `next`.
    entries: Vec<Entry>,
    next: usize,
    runs: Vec<Run>,
    in_flight: usize,
    era: u64,
    done: u64,
    total: u64,
    errors: u64,
}

impl Scrub {
    pub(crate) fn new(ops: &mut Ops, buf: Buf) -> Scrub {
        let op = ops.take(OpSlot::background(Work::Scrub));
        Scrub {
            op,
            buf,
            running: false,
            parked: false,
            layer: LayerId(0),
            leaf: 0,
            entries: Vec::with_capacity(FANOUT as usize),
            next: 0,
            runs: Vec::with_capacity(SCRUB_BLOCKS),
            in_flight: 0,
            era: 0,
            done: 0,
            total: 0,
            errors: 0,
        }
    }

    pub(crate) fn release(&mut self, mem: &mut Mem) {
        mem.free(self.buf);
    }

    pub(crate) fn runnable(&self) -> bool {
        self.running && !self.parked && self.in_flight == 0
    }

    /// Begun and not over.
    pub(crate) fn is_on(&self) -> bool {
        self.running
    }

    pub(crate) fn unpark(&mut self) {
        self.parked = false;
    }

    /// A map page did not match: count it and go on behind the leaf.
    pub(crate) fn page_failed(&mut self) {
        self.parked = false;
        self.errors += 1;
        self.leaf += 1;
    }
}

impl Engine {
    pub(crate) fn start_scrub(&mut self) {
        if self.scrub.running {
            return;
        }
        let total = self.catalog.layers.values().map(|l| l.blocks).sum();
        let s = &mut self.scrub;
        (s.running, s.parked, s.layer, s.leaf, s.next) = (true, false, LayerId(0), 0, 0);
        (s.done, s.total, s.errors) = (0, total, 0);
        s.entries.clear();
    }

    pub(crate) fn scrub_status(&self) -> AdminReply {
        let s = &self.scrub;
        AdminReply::Scrub {
            running: s.running,
            blocks_done: s.done,
            blocks_total: s.total.max(s.done),
            errors: s.errors,
        }
    }

    pub(crate) fn run_scrub(&mut self, mem: &mut Mem, out: &mut Out) {
        if !self.scrub.runnable() {
            return;
        }
        if let Err(halt) = self.scrub_step(mem, out) {
            self.scrub.parked = true;
            let op = self.scrub.op;
            self.park(op, halt, out);
        }
    }

    fn scrub_step(&mut self, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        self.task_begins(TaskKind::Scrub);
        if self.scrub.next < self.scrub.entries.len() {
            self.scrub_read(out);
            return Ok(());
        }
        if self.scrub.layer == LayerId(0) || !self.catalog.layers.contains_key(&self.scrub.layer) {
            let after = self.scrub.layer;
            let next = self.catalog.layers.keys().find(|id| **id > after).copied();
            let Some(next) = next else {
                self.scrub.running = false;
                return Ok(());
            };
            (self.scrub.layer, self.scrub.leaf) = (next, 0);
        }
        let layer = self.scrub.layer;
        let Some(leaf) = self.next_leaf(layer, self.scrub.leaf, mem, out)? else {
            let next = self.catalog.layers.keys().find(|id| **id > layer).copied();
            match next {
                Some(next) => (self.scrub.layer, self.scrub.leaf) = (next, 0),
                None => self.scrub.running = false,
            }
            return Ok(());
        };
        self.scrub.entries.clear();
        self.scrub.next = 0;
        self.scrub.leaf = leaf;
        if let Look::Page(slot) = self.look_leaf(layer, leaf, mem, out)? {
            let page = mem.get(self.cache.slot(slot).buf);
            self.scrub.entries.extend((0..FANOUT).map(|i| Entry::get(page, i)));
            // The entries are a picture of this moment: hold on to the blocks until the last is read.
            self.scrub.era = self.space.read_begins();
            self.scrub_read(out);
        } else {
            self.scrub.leaf = leaf + 1;
        }
        Ok(())
    }

    /// Submits the next reads of the leaf, or leaves it.
    fn scrub_read(&mut self, out: &mut Out) {
        self.scrub.runs.clear();
        let mut blocks = 0;
        while self.scrub.next < self.scrub.entries.len() && blocks < SCRUB_BLOCKS {
            let first = self.scrub.next;
            let entry = self.scrub.entries[first];
            if !entry.is_pointer() {
                self.scrub.next += 1;
                continue;
            }
            let mut count = 1;
            while blocks + count < SCRUB_BLOCKS
                && self
                    .scrub
                    .entries
                    .get(first + count)
                    .is_some_and(|e| e.is_pointer() && e.block() == entry.block() + count as u64)
            {
                count += 1;
            }
            let buf = self.scrub.buf.part(blocks * BLOCK, count * BLOCK);
            let read = self.scrub.runs.len() as u32;
            self.scrub.runs.push(Run { first, count });
            self.submit(IoUse::Scrub { read }, IoKind::Read { offset: entry.block() * BLOCK_BYTES, buf }, out);
            self.scrub.in_flight += 1;
            self.fault_point(TaskKind::Scrub, "reads half submitted");
            self.scrub.next += count;
            blocks += count;
        }
        if self.scrub.in_flight == 0 {
            self.leave_leaf();
        }
    }

    fn leave_leaf(&mut self) {
        let era = self.scrub.era;
        self.space.read_ends(era, &mut self.alloc);
        self.scrub.entries.clear();
        self.scrub.next = 0;
        self.scrub.leaf += 1;
    }

    pub(crate) fn scrub_io_done(&mut self, read: u32, errno: i32, mem: &mut Mem, out: &mut Out) {
        self.scrub.in_flight -= 1;
        self.fault_point(TaskKind::Scrub, "blocks read");
        let run = self.scrub.runs[read as usize];
        let before: usize = self.scrub.runs[..read as usize].iter().map(|r| r.count).sum();
        for i in 0..run.count {
            let entry = self.scrub.entries[run.first + i];
            let block = self.scrub.leaf * FANOUT + (run.first + i) as u64;
            self.scrub.done += 1;
            if errno != 0 {
                self.scrub.errors += 1;
                continue;
            }
            let found = data_crc(entry.generation(), block, mem.get(self.scrub.buf.part((before + i) * BLOCK, BLOCK)));
            if found != entry.crc() {
                self.scrub.errors += 1;
                let layer = self.scrub.layer;
                self.data_alarm(layer, entry, block, found, out);
            }
        }
        if self.scrub.in_flight == 0 && self.scrub.next >= self.scrub.entries.len() {
            self.leave_leaf();
        }
    }
}
