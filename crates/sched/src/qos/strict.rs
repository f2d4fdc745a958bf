//! Strict time sharing: a fixed period, and in it a slice for each volume by its weight.
//!
//! Owns: the slices. Never: gives an idle volume's slice to another; that loss is the price of independence.
//! Invariant: a request passes only in its own volume's slice, and not so late that it would run into the next one.
//!
//! Decibel's strict time sharing (NSDI 2017): each volume has the drive as if alone, for a part of the time.

use super::cost::Charge;
use super::policy::{Pick, Policy};
use super::queue::Item;
use super::tree::Tree;
use segue_types::{Nanos, Share};

/// The period, ns.
const PERIOD_NS: Nanos = 10_000_000;
/// Nothing passes in the last part of a slice: it is left to drain. At most this long, and at most a quarter of it.
const GUARD_NS: Nanos = 300_000;

#[derive(Clone, Copy, Default)]
struct Slice {
    start: Nanos,
    end: Nanos,
}

pub(super) struct Strict {
    weights: Vec<u32>,
    slices: Vec<Slice>,
    ready: Tree,
    /// The slot of the slice that `pick` saw last: the next pick begins there.
    at: usize,
}

impl Strict {
    pub(super) fn new(slots: usize) -> Strict {
        Strict { weights: vec![0; slots], slices: vec![Slice::default(); slots], ready: Tree::new(slots), at: 0 }
    }

    fn cut(&mut self) {
        let sum: u64 = self.weights.iter().map(|w| *w as u64).sum();
        let mut before = 0u64;
        for (slice, weight) in self.slices.iter_mut().zip(&self.weights) {
            let at = |weight: u64| if sum == 0 { 0 } else { (PERIOD_NS as u128 * weight as u128 / sum as u128) as u64 };
            let end = before + *weight as u64;
            *slice = Slice { start: at(before), end: at(end) };
            before = end;
        }
    }

    /// How long until the slot may pass a request; 0 for now.
    fn wait_ns(&self, slot: usize, now: Nanos) -> Nanos {
        let Slice { start, end } = self.slices[slot];
        let guard = GUARD_NS.min((end - start) / 4);
        let position = now % PERIOD_NS;
        if position < start {
            start - position
        } else if position < end - guard {
            0
        } else {
            PERIOD_NS - position + start
        }
    }
}

impl Policy for Strict {
    fn set(&mut self, slot: usize, share: &Share, _: Nanos) {
        if self.weights[slot] != share.weight {
            self.weights[slot] = share.weight;
            self.cut();
        }
    }

    fn close(&mut self, slot: usize, _: Nanos) {
        self.weights[slot] = 0;
        self.cut();
    }

    fn ready(&mut self, slot: usize, _: &Item, _: Nanos) {
        self.ready.set(slot, 0);
    }

    fn gone(&mut self, slot: usize) {
        self.ready.remove(slot);
    }

    fn pick(&mut self, now: Nanos) -> Pick {
        if self.ready.len() == 0 {
            return Pick::Nobody;
        }
        if self.ready.has(self.at) && self.wait_ns(self.at, now) == 0 {
            return Pick::Slot(self.at);
        }
        let waits = (0..self.slices.len()).filter(|slot| self.ready.has(*slot)).map(|s| (self.wait_ns(s, now), s));
        let (wait_ns, slot) = waits.min().expect("somebody is ready");
        if wait_ns > 0 {
            return Pick::At(now + wait_ns);
        }
        self.at = slot;
        Pick::Slot(slot)
    }

    fn pick_instead(&mut self, slot: usize) -> bool {
        slot == self.at
    }

    fn passed(&mut self, slot: usize, _: &Charge, next: Option<&Item>, _: Nanos) {
        if next.is_none() {
            self.ready.remove(slot);
        }
    }

    fn direct(&mut self, slot: usize, _: &Charge, now: Nanos) -> bool {
        self.wait_ns(slot, now) == 0
    }
}
