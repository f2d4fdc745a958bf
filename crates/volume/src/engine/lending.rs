//! Leases of a shared drive's extents: what this slice may allocate from, taken ahead of need and given back.
//!
//! Owns: which extents are leased, when more are wanted and which go back. Never: decides between slices (see `home`).
//! Invariant: an extent is used only after its lease is durable, and the home gets it back only after its return is.
//!
//! So the journals of all slices together say who owns what, and a crash leaks nothing: what no journal claims is free.
//! The idea of caches in front of a shared heap, refilled and returned in batches, is that of Hoard (ASPLOS 2000) and
//! tcmalloc, which Decibel (NSDI 2017) names for its device partitions.

use super::Engine;
use super::commit::Waiter;
use crate::alloc::Alloc;
use crate::codec::{Malformed, Reader, Writer};
use crate::journal::Change;
use crate::layout::Layout;
use crate::op::Out;
use segue_types::{BLOCK_BYTES, Nanos};
use std::ops::Range;

/// Pause between two questions of a slice that got nothing.
const ASK_AGAIN_NS: Nanos = 20_000_000;
/// How long writes wait for other slices to give back what they do not need, before they fail for want of space.
const PATIENCE_NS: Nanos = 500_000_000;
/// Pause between two looks for extents to give back that nobody asked for.
const LOOK_AGAIN_NS: Nanos = 1_000_000_000;
/// Most extents in one change of the journal's log, so that it always has room.
const BATCH_MAX: u64 = 16;

/// The leases of one slice.
pub(crate) struct Lending {
    layout: Layout,
    /// By extent: leased as of the journal's log.
    leased: Vec<bool>,
    /// Leased in the log, not yet durable: their blocks are still marked taken.
    arriving: Vec<u32>,
    /// Fewer free blocks than this above the reserve: ask. More than `high`: give back.
    low_blocks: u64,
    high_blocks: u64,
    batch: u64,
    asked_at: Nanos,
    /// When free extents were last looked for without need.
    looked_at: Nanos,
    /// The last question got nothing.
    refused: bool,
    /// Since when writes have waited in vain; 0: none has.
    dry_since: Nanos,
}

impl Lending {
    pub(crate) fn new(layout: Layout) -> Lending {
        let extent = layout.extent_blocks();
        let batch = (layout.extents() / (16 * layout.slices)).clamp(1, BATCH_MAX);
        Lending {
            layout,
            leased: vec![false; layout.extents() as usize],
            arriving: Vec::with_capacity(BATCH_MAX as usize),
            low_blocks: batch.div_ceil(2) * extent,
            high_blocks: 4 * batch * extent,
            batch,
            asked_at: 0,
            looked_at: 0,
            refused: false,
            dry_since: 0,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for chunk in self.leased.chunks(64) {
            out.put_u64(chunk.iter().enumerate().fold(0, |word, (bit, leased)| word | u64::from(*leased) << bit));
        }
    }

    /// Bytes that [`Lending::encode`] writes.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.leased.len().div_ceil(64) * 8
    }

    pub(crate) fn decode(&mut self, r: &mut Reader<'_>) -> Result<(), Malformed> {
        for chunk in self.leased.chunks_mut(64) {
            let word = r.u64()?;
            for (bit, leased) in chunk.iter_mut().enumerate() {
                *leased = word >> bit & 1 == 1;
            }
        }
        Ok(())
    }

    /// Closes every extent that is not leased. Call after the bitmap's pages were loaded.
    pub(crate) fn close_off(&self, alloc: &mut Alloc) {
        for extent in (0..self.leased.len()).filter(|extent| !self.leased[*extent]) {
            alloc.close_extent(extent as u64);
        }
    }

    /// True when the block is of an extent that this slice has.
    pub(crate) fn covers(&self, block: u64) -> bool {
        self.leased[((block - self.layout.data_start()) / self.layout.extent_blocks()) as usize]
    }

    /// The extents that this slice has.
    pub(crate) fn extents(&self) -> Vec<u32> {
        (0..self.leased.len() as u32).filter(|extent| self.leased[*extent as usize]).collect()
    }

    /// Blocks that are marked taken only until their lease is durable: free as far as a checkpoint is concerned.
    pub(crate) fn limbo(&self, limbo: &mut Vec<u64>) {
        limbo.extend(self.arriving.iter().flat_map(|extent| self.layout.extent(u64::from(*extent))));
    }

    /// True while a write that finds no space had better wait.
    pub(crate) fn may_come(&self, now: Nanos) -> bool {
        let patient = self.dry_since == 0 || now - self.dry_since < PATIENCE_NS;
        // A refusal of long ago says nothing of now.
        patient || !self.arriving.is_empty() || now >= self.asked_at + ASK_AGAIN_NS
    }
}

impl Engine {
    /// Extents leased, of a slice of a shared drive; `None` for an undivided pool.
    pub fn leased_extents(&self) -> Option<Vec<u32>> {
        self.lending.as_ref().map(Lending::extents)
    }

    /// How many extents the drive has, for the home of the free ones.
    pub fn extents(&self) -> u64 {
        self.layout.extents()
    }

    /// Which slice of how many this is.
    pub fn slice(&self) -> (u64, u64) {
        (self.layout.slice, self.layout.slices)
    }

    /// Where an extent lies on the drive, bytes. All are equally long, but the last may be shorter.
    pub fn extent_range(&self, extent: u32) -> Range<u64> {
        let blocks = self.layout.extent(u64::from(extent));
        blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES
    }

    /// Asks for extents when few blocks are left.
    pub(crate) fn pump_lending(&mut self, out: &mut Out) {
        let Some(lending) = &mut self.lending else { return };
        let quiet = self.poisoned.is_some() || self.closing || self.replaying || !lending.arriving.is_empty();
        if quiet || self.alloc.free() >= self.reserve_blocks + lending.low_blocks {
            return;
        }
        if lending.refused && self.now < lending.asked_at + ASK_AGAIN_NS {
            return;
        }
        lending.asked_at = self.now;
        let short = self.reserve_blocks + lending.low_blocks - self.alloc.free();
        let wanted = short.div_ceil(lending.layout.extent_blocks()).max(lending.batch);
        out.want_extents = wanted.min(4 * BATCH_MAX) as u32;
    }

    /// When a slice that got nothing asks again, if somebody waits for it.
    pub(crate) fn lending_due_at(&self) -> Option<Nanos> {
        let lending = self.lending.as_ref()?;
        let waits = lending.refused && !self.stalled.is_empty() && self.poisoned.is_none();
        waits.then_some(lending.asked_at + ASK_AGAIN_NS)
    }

    /// The home lends. The blocks can be used when the lease is durable.
    pub(crate) fn lent(&mut self, extents: &[u32], out: &mut Out) {
        let Some(lending) = &mut self.lending else { panic!("an undivided pool was lent extents") };
        if extents.is_empty() {
            lending.refused = true;
            if lending.dry_since == 0 && !self.stalled.is_empty() {
                lending.dry_since = self.now.max(1);
            }
            // Whoever has waited too long learns it now.
            self.retry_stalled();
            return;
        }
        (lending.refused, lending.dry_since) = (false, 0);
        for extent in extents {
            let had = std::mem::replace(&mut lending.leased[*extent as usize], true);
            assert!(!had, "extent {extent} was lent twice");
            lending.arriving.push(*extent);
        }
        for (first, count) in runs(extents) {
            self.log_change(&Change::Lease { first, count });
        }
        self.wait_for_commit(Waiter::Leased(extents.to_vec()), out);
    }

    /// The leases of these extents are durable.
    pub(crate) fn lease_durable(&mut self, extents: &[u32]) {
        let lending = self.lending.as_mut().expect("leases are of a shared drive");
        lending.arriving.retain(|extent| !extents.contains(extent));
        for extent in extents {
            self.alloc.open_extent(u64::from(*extent));
        }
        self.retry_stalled();
    }

    /// Gives back whole free extents: down to the mark `high`, or, when another slice is short, all that is not needed.
    pub(crate) fn give_back(&mut self, all: bool, out: &mut Out) {
        let Some(lending) = &mut self.lending else { return };
        if self.poisoned.is_some() || self.closing || !lending.arriving.is_empty() || !self.log.admin_room() {
            return;
        }
        if !all && self.now < lending.looked_at + LOOK_AGAIN_NS {
            return;
        }
        lending.looked_at = self.now;
        let keep = self.reserve_blocks + if all { 0 } else { lending.high_blocks };
        let mut free = self.alloc.free();
        let mut back = Vec::new();
        if free <= keep + if all { 0 } else { lending.layout.extent_blocks() } {
            return;
        }
        // From the end of the drive, so that what is kept stays together.
        for extent in (0..lending.leased.len() as u64).rev() {
            let blocks = lending.layout.extent(extent);
            let count = blocks.end - blocks.start;
            if back.len() as u64 == 4 * BATCH_MAX || free < keep + count {
                break;
            }
            if lending.leased[extent as usize] && self.alloc.taken_in_extent(extent) == 0 {
                lending.leased[extent as usize] = false;
                self.alloc.close_extent(extent);
                free -= count;
                back.push(extent as u32);
            }
        }
        if back.is_empty() {
            return;
        }
        back.reverse();
        for (first, count) in runs(&back) {
            self.log_change(&Change::Return { first, count });
        }
        self.wait_for_commit(Waiter::Returned(back), out);
    }

    /// Replays a lease or a return.
    pub(crate) fn replay_lease(&mut self, first: u32, count: u32, leased: bool) -> bool {
        let Some(lending) = &mut self.lending else { return false };
        let Some(range) = first.checked_add(count).filter(|end| *end as usize <= lending.leased.len()) else {
            return false;
        };
        for extent in first..range {
            lending.leased[extent as usize] = leased;
            match leased {
                true => self.alloc.open_extent(u64::from(extent)),
                false => self.alloc.close_extent(u64::from(extent)),
            }
        }
        true
    }
}

/// Runs of numbers that follow each other, as first and count.
fn runs(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == *number => *count += 1,
            _ => runs.push((*number, 1)),
        }
    }
    runs
}
