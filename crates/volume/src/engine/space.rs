//! When a freed block may be used again.
//!
//! Owns: the queues between "no longer in the map" and "free in the bitmap". Never: allocates a block.
//! Invariant: a block is reused only after the change that freed it is durable and no read that may still want it is in flight.

use crate::alloc::Alloc;
use std::collections::VecDeque;

/// Blocks freed by one commit.
struct Batch {
    era: u64,
    blocks: Vec<u64>,
}

/// The queues.
pub(crate) struct Space {
    /// Freed since the last commit began.
    fresh: Vec<u64>,
    /// Freed by the commit in flight.
    committing: Vec<u64>,
    /// Freed durably; wait for readers of their era.
    batches: VecDeque<Batch>,
    /// Vectors to use again.
    spare: Vec<Vec<u64>>,
    /// Reads in flight per era, from `first_era` on; the last is today's.
    readers: VecDeque<u32>,
    first_era: u64,
    /// Places of map pages that the last checkpoint still needs: freed since the last cut, and before it.
    pages_fresh: Vec<u64>,
    pages_cut: Vec<u64>,
}

impl Space {
    pub(crate) fn new() -> Space {
        Space {
            fresh: Vec::with_capacity(4096),
            committing: Vec::with_capacity(4096),
            batches: VecDeque::with_capacity(64),
            spare: Vec::with_capacity(64),
            readers: VecDeque::from([0]),
            first_era: 0,
            pages_fresh: Vec::new(),
            pages_cut: Vec::new(),
        }
    }

    /// A data block left the map.
    pub(crate) fn free_data(&mut self, block: u64) {
        self.fresh.push(block);
    }

    /// A map page's place is no longer needed once the next checkpoint is complete.
    pub(crate) fn free_page(&mut self, block: u64) {
        self.pages_fresh.push(block);
    }

    /// The same during the cut itself: the checkpoint being made no longer needs the place.
    pub(crate) fn free_page_now(&mut self, block: u64) {
        self.pages_cut.push(block);
    }

    /// A read of data begins; returns its era.
    pub(crate) fn read_begins(&mut self) -> u64 {
        *self.readers.back_mut().expect("there is always an era") += 1;
        self.first_era + self.readers.len() as u64 - 1
    }

    /// A read ends.
    pub(crate) fn read_ends(&mut self, era: u64, alloc: &mut Alloc) {
        self.readers[(era - self.first_era) as usize] -= 1;
        self.drain(alloc);
    }

    /// A commit begins: what is fresh belongs to it.
    pub(crate) fn commit_begins(&mut self) {
        assert!(self.committing.is_empty(), "one commit at a time");
        std::mem::swap(&mut self.fresh, &mut self.committing);
    }

    /// The commit is durable.
    pub(crate) fn commit_durable(&mut self, alloc: &mut Alloc) {
        if self.committing.is_empty() {
            return;
        }
        let empty = self.spare.pop().unwrap_or_default();
        let blocks = std::mem::replace(&mut self.committing, empty);
        let era = self.first_era + self.readers.len() as u64 - 1;
        self.batches.push_back(Batch { era, blocks });
        self.readers.push_back(0);
        self.drain(alloc);
    }

    /// While the journal is replayed nothing reads and everything is durable, but blocks freed by its unconfirmed
    /// tail must stay until the checkpoint that ends the replay.
    pub(crate) fn replayed(&mut self, confirmed: bool, alloc: &mut Alloc) {
        if confirmed {
            self.fresh.drain(..).for_each(|b| alloc.clear(b));
        } else {
            self.pages_fresh.append(&mut self.fresh);
        }
    }

    /// A checkpoint cuts: pages freed so far are not part of it.
    pub(crate) fn cut(&mut self) {
        self.pages_cut.append(&mut self.pages_fresh);
    }

    /// The checkpoint is complete.
    pub(crate) fn checkpointed(&mut self, alloc: &mut Alloc) {
        self.pages_cut.drain(..).for_each(|b| alloc.clear(b));
    }

    /// Every block that is taken in memory but must be free in the bitmap of the checkpoint being written.
    pub(crate) fn limbo(&self, out: &mut Vec<u64>) {
        out.extend_from_slice(&self.fresh);
        out.extend_from_slice(&self.committing);
        self.batches.iter().for_each(|b| out.extend_from_slice(&b.blocks));
        out.extend_from_slice(&self.pages_cut);
    }

    /// Places of map pages freed since the last cut.
    pub(crate) fn pages_waiting(&self, out: &mut Vec<u64>) {
        out.extend_from_slice(&self.pages_fresh);
    }

    /// Blocks on their way to be free.
    pub(crate) fn pending_blocks(&self) -> u64 {
        let batched: usize = self.batches.iter().map(|b| b.blocks.len()).sum();
        (self.fresh.len() + self.committing.len() + batched + self.pages_fresh.len() + self.pages_cut.len()) as u64
    }

    /// True when only a checkpoint can make space.
    pub(crate) fn waits_for_checkpoint(&self) -> bool {
        !self.pages_fresh.is_empty() || !self.pages_cut.is_empty()
    }

    fn drain(&mut self, alloc: &mut Alloc) {
        while self.readers.len() > 1 && self.readers[0] == 0 {
            self.readers.pop_front();
            self.first_era += 1;
        }
        while self.batches.front().is_some_and(|b| b.era < self.first_era) {
            let mut batch = self.batches.pop_front().expect("just seen");
            batch.blocks.drain(..).for_each(|b| alloc.clear(b));
            self.spare.push(batch.blocks);
        }
    }
}
