//! The requests of a random life.
//!
//! Owns: which request comes next, where, and what it will have done. Never: judges an answer.
//! Invariant: changes in flight on one version never overlap, so each block has one history.

use super::{Fence, Fly, Flying, Torture};
use crate::sim::content::{SECTOR, SECTORS, fill};
use segue_types::BLOCK_BYTES;
use segue_volume::op::{ObservationRule, Op, Tag};

impl Torture {
    // Requests.

    pub(super) fn pick_att(&mut self) -> Option<usize> {
        if self.flying.len() >= self.plan.depth {
            return None;
        }
        let open: Vec<usize> = (0..self.atts.len()).filter(|a| !self.atts[*a].gone).collect();
        if !open.iter().any(|a| !self.atts[*a].read_only && self.atts[*a].fence == Fence::No) {
            self.get_going();
        }
        if open.is_empty() {
            return None;
        }
        let att = *self.chance.pick(&open);
        // A fenced attachment is asked a few times more and then closed.
        if self.atts[att].fence == Fence::Must && self.chance.odds(3, 4) {
            if self.atts[att].flying == 0 {
                self.detach(att);
            }
            return None;
        }
        Some(att)
    }

    /// Nobody can write: take a lease or attach.
    pub(super) fn get_going(&mut self) {
        let vols: Vec<usize> = self.live_vols().into_iter().filter(|v| !self.vols[*v].snapshot).collect();
        if self.intent.is_some() || vols.is_empty() {
            return;
        }
        let volume = *self.chance.pick(&vols);
        match self.vols[volume].lease {
            None => self.acquire(volume),
            Some(_) => self.attach(volume),
        }
    }

    pub(super) fn att_size(&self, att: usize) -> u64 {
        let (volume, branch) = (&self.vols[self.atts[att].volume], self.atts[att].branch);
        volume.child.as_ref().filter(|c| c.branch == branch).map_or(volume.size, |c| c.size)
    }

    /// A place that other requests like too: near a few borders of the map.
    pub(super) fn place(&mut self, size: u64, blocks: u64) -> u64 {
        let total = size / BLOCK_BYTES;
        let homes = [0, 250, 65_530, 1 << 24, total.saturating_sub(16)];
        let home = match self.plan.scatter && self.chance.odds(1, 2) {
            true => self.chance.below(2_000) * 37 * 256 % total.max(1),
            false => *self.chance.pick(&homes),
        };
        let at = home + self.chance.below(16);
        at.min(total - blocks.min(total))
    }

    pub(super) fn fly(&mut self, att: usize, tag: Tag, what: Flying, observing: bool) {
        let (branch, volume) = (self.atts[att].branch, self.atts[att].volume);
        let observing = observing && self.vols[volume].head == branch;
        let observes = self.vols[volume].race.filter(|_| observing);
        if let Some(race) = observes {
            self.races[race].may = true;
        }
        self.observers += u64::from(observing);
        self.atts[att].flying += 1;
        let after_fence = self.atts[att].fence == Fence::Must;
        self.flying.insert(tag.0, Fly { att, what, after_fence, observing, observes });
    }

    pub(super) fn observers_fly(&self) -> bool {
        self.flying.values().any(|f| f.observing)
    }

    pub(super) fn observes(&self, att: usize, fua: bool) -> bool {
        fua || self.vols[self.atts[att].volume].rule == ObservationRule::Write
    }

    pub(super) fn write(&mut self, part: bool) {
        let part = part && !self.plan.aligned;
        let Some(att) = self.pick_att() else { return };
        let size = self.att_size(att);
        let blocks = if part { 1 + self.chance.below(2) } else { self.chance.between(1, self.plan.blocks_max) };
        let blocks = blocks.min(size / BLOCK_BYTES);
        let first = self.place(size, blocks) * SECTORS as u64;
        let (mut from, mut to) = (first, first + blocks * SECTORS as u64);
        if part {
            from += self.chance.below(SECTORS as u64);
            to -= self.chance.below(SECTORS as u64);
            to = to.max(from + 1);
        }
        let fua = self.chance.odds(1, 8);
        let branch = self.atts[att].branch;
        if !self.free_to_change(branch, from, to) {
            return;
        }
        self.next_write += 1;
        let write = self.next_write;
        let mut data = vec![0; (to - from) as usize * SECTOR];
        for (i, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
            let at = from + i as u64;
            fill(write, at / SECTORS as u64, (at % SECTORS as u64) as usize, sector);
        }
        let id = self.atts[att].id;
        let Some(tag) = self.sim.submit_write(id, from * SECTOR as u64, &data, fua) else { return };
        let cells = self.begin(branch, from, to, write);
        let observes = self.observes(att, fua);
        self.fly(att, tag, Flying::Change { cells, fua, promises: true }, observes);
    }

    /// No change in flight in the range, and at its ragged ends a known content.
    pub(super) fn free_to_change(&self, branch: usize, from: u64, to: u64) -> bool {
        let s = SECTORS as u64;
        let ragged = |block: u64| from > block * s || to < (block + 1) * s;
        (from / s..to.div_ceil(s))
            .all(|b| self.branches[branch].is_quiet(b) && (!ragged(b) || self.branches[branch].is_certain(b)))
    }

    pub(super) fn begin(&mut self, branch: usize, from: u64, to: u64, write: u32) -> Vec<(u64, usize)> {
        let s = SECTORS as u64;
        let mut cells = Vec::new();
        for block in from / s..to.div_ceil(s) {
            let state = self.branches[branch].begin(block, |mut marks| {
                for (i, mark) in marks.iter_mut().enumerate() {
                    if (from..to).contains(&(block * s + i as u64)) {
                        *mark = write;
                    }
                }
                marks
            });
            cells.push((block, state));
        }
        cells
    }

    pub(super) fn read(&mut self) {
        let Some(att) = self.pick_att() else { return };
        let size = self.att_size(att);
        let blocks = self.chance.between(1, 12).min(size / BLOCK_BYTES);
        let first = self.place(size, blocks) * SECTORS as u64;
        let (mut from, mut to) = (first, first + blocks * SECTORS as u64);
        if self.chance.odds(1, 4) {
            from += self.chance.below(SECTORS as u64);
            to = (to - self.chance.below(SECTORS as u64)).max(from + 1);
        }
        self.read_range(att, from, to);
    }

    pub(super) fn read_range(&mut self, att: usize, from: u64, to: u64) {
        let branch = self.atts[att].branch;
        let s = SECTORS as u64;
        let lows = (from / s..to.div_ceil(s)).map(|b| self.branches[branch].low(b)).collect();
        let (id, len) = (self.atts[att].id, (to - from) as u32 * SECTOR as u32);
        let Some(tag) = self.sim.submit_read(id, from * SECTOR as u64, len) else { return };
        self.fly(att, tag, Flying::Read { first_sector: from, lows }, false);
    }

    pub(super) fn flush(&mut self) {
        let Some(att) = self.pick_att() else { return };
        let list = self.branches[self.atts[att].branch].acknowledged();
        let tag = self.sim.submit(self.atts[att].id, Op::Flush);
        let observes = self.vols[self.atts[att].volume].rule == ObservationRule::Flush;
        self.fly(att, tag, Flying::Flush { list }, observes && !self.atts[att].read_only);
    }

    pub(super) fn punch(&mut self, discard: bool) {
        let Some(att) = self.pick_att() else { return };
        let size = self.att_size(att);
        let blocks = match self.chance.below(8) {
            0 => self.chance.between(1, 600),
            _ => self.chance.between(1, 8),
        };
        let blocks = blocks.min(size / BLOCK_BYTES);
        let first = self.place(size, blocks) * SECTORS as u64;
        let (mut from, mut to) = (first, first + blocks * SECTORS as u64);
        let ragged = self.chance.odds(1, 4) && !self.plan.aligned;
        if ragged {
            from += self.chance.below(SECTORS as u64);
            to = (to - self.chance.below(SECTORS as u64)).max(from + 1);
        }
        let branch = self.atts[att].branch;
        if !self.free_to_change(branch, from, to) {
            return;
        }
        let (offset, len) = (from * SECTOR as u64, (to - from) * SECTOR as u64);
        let fua = self.chance.odds(1, 8);
        let op = match discard {
            true => Op::Discard { offset, len, fua },
            false => Op::WriteZeroes { offset, len, no_hole: self.chance.odds(1, 3), fua },
        };
        let tag = self.sim.submit(self.atts[att].id, op);
        // A discard that is not of whole blocks leaves the rest as it was, or zeroes it.
        let cells = self.begin(branch, from, to, 0);
        let observes = self.observes(att, fua);
        self.fly(att, tag, Flying::Change { cells, fua, promises: !(discard && ragged) }, observes);
    }

    pub(super) fn block_status(&mut self) {
        let Some(att) = self.pick_att() else { return };
        let size = self.att_size(att);
        let blocks = self.chance.between(1, 2000).min(size / BLOCK_BYTES);
        let first = self.place(size, blocks);
        let branch = &self.branches[self.atts[att].branch];
        let lows = (first..first + blocks).map(|b| (b, branch.low(b))).collect();
        let (offset, len) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
        let tag = self.sim.submit(self.atts[att].id, Op::BlockStatus { offset, len, extents_max: 64 });
        self.fly(att, tag, Flying::Status { offset, len, lows }, false);
    }
}
