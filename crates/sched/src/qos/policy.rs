//! What every policy answers, and the plainest one: order of arrival.
//!
//! Owns: the interface between the drive's machine and its policies. Never: limits; those are kept before a policy is asked.
//! Invariant: a policy picks only slots that were made ready and are not gone since.

use super::cost::Charge;
use super::queue::Item;
use super::tree::Tree;
use segue_types::{Nanos, Share};

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pick {
    /// The first request of this slot.
    Slot(usize),
    /// Nobody's before this time.
    At(Nanos),
    /// Nobody is ready.
    Nobody,
}

pub(super) trait Policy: Send {
    /// A slot was opened or its settings changed.
    fn set(&mut self, slot: usize, share: &Share, now: Nanos);
    /// A slot was closed; it was gone before.
    fn close(&mut self, slot: usize, now: Nanos);
    /// What the drive can do, cost units per second; 0 when nobody knows.
    fn set_capacity(&mut self, _cost_per_s: u64) {}
    /// A slot has a request that its limits let pass.
    fn ready(&mut self, slot: usize, head: &Item, now: Nanos);
    /// It has none any more.
    fn gone(&mut self, slot: usize);
    /// Whose turn it is. Asked again before `passed`, it may answer otherwise only because time passed.
    fn pick(&mut self, now: Nanos) -> Pick;
    /// The one picked finds no room; may this slot, which is ready and has nothing at the drive, pass in its place? It
    /// does when the answer is true.
    fn pick_instead(&mut self, _slot: usize) -> bool {
        false
    }
    /// The head of the slot just picked goes to the drive. Its next is `next`, if its limits let that pass.
    fn passed(&mut self, slot: usize, charge: &Charge, next: Option<&Item>, now: Nanos);
    /// A request passes while nobody waits. False when it must wait for its turn all the same.
    fn direct(&mut self, slot: usize, charge: &Charge, now: Nanos) -> bool;
    /// A request cost more than was charged when it passed.
    fn extra(&mut self, _slot: usize, _cost: u64) {}
    /// True when the last pick was for a reservation.
    fn was_reserved(&self) -> bool {
        false
    }
}

/// In order of arrival, whoever asked.
pub(super) struct Fifo {
    heads: Tree,
}

impl Fifo {
    pub(super) fn new(slots: usize) -> Fifo {
        Fifo { heads: Tree::new(slots) }
    }
}

impl Policy for Fifo {
    fn set(&mut self, _: usize, _: &Share, _: Nanos) {}

    fn close(&mut self, _: usize, _: Nanos) {}

    fn ready(&mut self, slot: usize, head: &Item, _: Nanos) {
        self.heads.set(slot, head.sequence);
    }

    fn gone(&mut self, slot: usize) {
        self.heads.remove(slot);
    }

    fn pick(&mut self, _: Nanos) -> Pick {
        self.heads.first().map_or(Pick::Nobody, |(slot, _)| Pick::Slot(slot))
    }

    fn passed(&mut self, slot: usize, _: &Charge, next: Option<&Item>, _: Nanos) {
        match next {
            Some(item) => self.heads.set(slot, item.sequence),
            None => self.heads.remove(slot),
        }
    }

    fn direct(&mut self, _: usize, _: &Charge, _: Nanos) -> bool {
        true
    }
}
