//! Reservation, weight and limit together.
//!
//! Owns: two tags per volume, one in time for its reservation and one in virtual time for its share. Never: limits;
//! those hold before a policy is asked.
//! Invariant: reservations that are due pass first; the rest passes by the smallest share tag; an idle volume saves up nothing.
//!
//! After Gulati, Merchant and Varman, "mClock" (OSDI 2010), with tags in cost units and only for the head of a queue,
//! as dmClock has them. A request that passes by weight does not use up the reservation.

use super::cost::{Charge, READ_4K};
use super::policy::{Pick, Policy};
use super::queue::Item;
use super::tree::Tree;
use segue_types::{Nanos, Share};

/// Virtual time of one cost unit at weight 1.
const SCALE: u64 = 1 << 16;
/// Tags are moved back when they come this far.
const REBASE_AT: u64 = 1 << 62;
/// A reservation that was missed is made up for at most this long, ns.
const LAG_NS_MAX: Nanos = 100_000_000;

#[derive(Clone, Copy)]
struct Tags {
    weight: u32,
    /// Cost units per second; 0 for none.
    reserve: u64,
    /// When the reservation's next request is due.
    reserve_at: Nanos,
    /// Where its share in virtual time begins.
    start: u64,
}

pub(super) struct Mclock {
    tags: Vec<Tags>,
    /// Ready volumes by share.
    shares: Tree,
    /// Ready volumes with a reservation, by when it is due.
    reserves: Tree,
    virtual_now: u64,
    reserved: bool,
}

impl Mclock {
    pub(super) fn new(slots: usize) -> Mclock {
        let tags = Tags { weight: 1, reserve: 0, reserve_at: 0, start: 0 };
        Mclock {
            tags: vec![tags; slots],
            shares: Tree::new(slots),
            reserves: Tree::new(slots),
            virtual_now: 0,
            reserved: false,
        }
    }

    fn pay(&mut self, slot: usize, cost: u64) {
        let tags = &mut self.tags[slot];
        tags.start += (cost * SCALE / tags.weight as u64).max(1);
        if tags.start > REBASE_AT {
            self.rebase();
        }
    }

    #[cold]
    fn rebase(&mut self) {
        let back = self.virtual_now;
        self.virtual_now = 0;
        for (slot, tags) in self.tags.iter_mut().enumerate() {
            // Who is further ahead than half of the way is far from its turn in any case.
            tags.start = tags.start.saturating_sub(back).min(REBASE_AT / 2);
            if self.shares.has(slot) {
                self.shares.set(slot, tags.start);
            }
        }
    }

    fn place(&mut self, slot: usize) {
        let tags = &self.tags[slot];
        self.shares.set(slot, tags.start);
        match tags.reserve {
            0 => self.reserves.remove(slot),
            _ => self.reserves.set(slot, tags.reserve_at),
        }
    }
}

impl Policy for Mclock {
    fn set(&mut self, slot: usize, share: &Share, now: Nanos) {
        let tags = &mut self.tags[slot];
        if tags.weight != share.weight {
            // What it is ahead counts by the new weight from now on.
            let ahead = tags.start.saturating_sub(self.virtual_now) as u128 * tags.weight as u128;
            let ahead = (ahead / share.weight as u128).min(REBASE_AT as u128 / 2) as u64;
            tags.start = self.virtual_now + ahead;
            tags.weight = share.weight;
        }
        let reserve = share.reserve_iops.saturating_mul(READ_4K);
        if tags.reserve != reserve {
            tags.reserve = reserve;
            // A debt of an earlier setting is not carried on.
            tags.reserve_at = tags.reserve_at.min(now);
        }
        if self.shares.has(slot) {
            self.place(slot);
        }
    }

    fn close(&mut self, slot: usize, _: Nanos) {
        self.tags[slot] = Tags { weight: 1, reserve: 0, reserve_at: 0, start: 0 };
    }

    fn ready(&mut self, slot: usize, _: &Item, now: Nanos) {
        let tags = &mut self.tags[slot];
        tags.start = tags.start.max(self.virtual_now);
        tags.reserve_at = tags.reserve_at.max(now);
        self.place(slot);
    }

    fn gone(&mut self, slot: usize) {
        self.shares.remove(slot);
        self.reserves.remove(slot);
    }

    fn pick(&mut self, now: Nanos) -> Pick {
        if let Some((slot, due)) = self.reserves.first()
            && due <= now
        {
            self.reserved = true;
            return Pick::Slot(slot);
        }
        self.reserved = false;
        self.shares.first().map_or(Pick::Nobody, |(slot, _)| Pick::Slot(slot))
    }

    fn pick_instead(&mut self, _: usize) -> bool {
        self.reserved = false;
        true
    }

    fn passed(&mut self, slot: usize, charge: &Charge, next: Option<&Item>, now: Nanos) {
        let (_, smallest) = self.shares.first().expect("the picked slot is ready");
        self.virtual_now = self.virtual_now.max(smallest);
        if self.reserved {
            let tags = &mut self.tags[slot];
            let step = (charge.cost as u128 * 1_000_000_000 / tags.reserve.max(1) as u128).min(1 << 40) as u64;
            tags.reserve_at = tags.reserve_at.max(now.saturating_sub(LAG_NS_MAX)) + step;
        }
        self.pay(slot, charge.cost);
        match next {
            Some(_) => self.place(slot),
            None => self.gone(slot),
        }
    }

    fn direct(&mut self, slot: usize, charge: &Charge, _: Nanos) -> bool {
        let start = self.tags[slot].start.max(self.virtual_now);
        self.tags[slot].start = start;
        self.virtual_now = start;
        self.pay(slot, charge.cost);
        true
    }

    fn extra(&mut self, slot: usize, cost: u64) {
        self.tags[slot].start = self.tags[slot].start.max(self.virtual_now);
        self.pay(slot, cost);
        if self.shares.has(slot) {
            self.place(slot);
        }
    }

    fn was_reserved(&self) -> bool {
        self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::{CostModel, Kind};
    use super::*;

    #[test]
    fn shares_hold_across_a_rebase() {
        let mut policy = Mclock::new(2);
        let charge = CostModel::DRIVE.charge(Kind::Read, 4096, true);
        let item = Item { key: 0, charge, arrived: 0, sequence: 0 };
        policy.virtual_now = REBASE_AT - 1_000_000;
        for (slot, weight) in [(0, 100), (1, 300)] {
            policy.set(slot, &Share { weight, ..Share::default() }, 0);
            policy.ready(slot, &item, 0);
        }
        let mut count = [0; 2];
        for _ in 0..4000 {
            let Pick::Slot(slot) = policy.pick(0) else { panic!("somebody is ready") };
            count[slot] += 1;
            policy.passed(slot, &charge, Some(&item), 0);
        }
        assert!(policy.virtual_now < REBASE_AT / 2, "it was moved back");
        assert!((2980..=3020).contains(&count[1]), "{count:?}");
    }
}
