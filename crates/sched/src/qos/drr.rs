//! Deficit round robin: shares by weight, whatever the sizes of the requests.
//!
//! Owns: the ring of ready volumes and their deficits. Never: lets an idle volume save up.
//! Invariant: over any span two volumes that stay ready differ, each by its weight, by one quantum and one request at most.
//!
//! Shreedhar and Varghese, "Efficient fair queueing using deficit round robin" (SIGCOMM 1995). Rounds in which nobody
//! could pass are counted together, so that a small weight and a large request cost no more time than others.

use super::cost::{Charge, READ_4K};
use super::policy::{Pick, Policy};
use super::queue::Item;
use segue_types::{Nanos, Share};

const END: u32 = u32::MAX;
/// The weight that gets one quantum in a round.
const WEIGHT_DEFAULT: u32 = 100;
/// What a volume of the default weight gets in a round: two small reads, so that a round is short.
const QUANTUM: u64 = 2 * READ_4K;

#[derive(Clone, Copy)]
struct Member {
    next: u32,
    prev: u32,
    on: bool,
    /// It had its quantum of this visit.
    visited: bool,
    weight: u32,
    /// What it may still spend, cost units; below zero when it was charged after the fact.
    deficit: i64,
    head_cost: u64,
}

pub(super) struct Drr {
    members: Vec<Member>,
    /// The one whose visit it is.
    turn: u32,
    count: usize,
}

impl Drr {
    pub(super) fn new(slots: usize) -> Drr {
        let member = Member {
            next: END,
            prev: END,
            on: false,
            visited: false,
            weight: WEIGHT_DEFAULT,
            deficit: 0,
            head_cost: 0,
        };
        Drr { members: vec![member; slots], turn: END, count: 0 }
    }

    fn quantum(&self, slot: usize) -> i64 {
        (QUANTUM * self.members[slot].weight as u64 / WEIGHT_DEFAULT as u64).max(1) as i64
    }

    /// Puts a slot at the end of the round.
    fn link(&mut self, slot: usize) {
        let at = slot as u32;
        if self.turn == END {
            self.turn = at;
            (self.members[slot].next, self.members[slot].prev) = (at, at);
        } else {
            let (next, prev) = (self.turn, self.members[self.turn as usize].prev);
            (self.members[slot].next, self.members[slot].prev) = (next, prev);
            self.members[prev as usize].next = at;
            self.members[next as usize].prev = at;
        }
        self.members[slot].on = true;
        self.count += 1;
    }

    fn unlink(&mut self, slot: usize) {
        let Member { next, prev, .. } = self.members[slot];
        self.members[prev as usize].next = next;
        self.members[next as usize].prev = prev;
        if self.turn == slot as u32 {
            self.turn = if next == slot as u32 { END } else { next };
        }
        self.members[slot].on = false;
        self.members[slot].visited = false;
        self.count -= 1;
    }

    /// Rounds that nobody could use are given out at once.
    fn skip_rounds(&mut self) {
        let mut rounds = i64::MAX;
        let mut at = self.turn;
        for _ in 0..self.count {
            let member = &self.members[at as usize];
            let short = member.head_cost as i64 - member.deficit;
            let quantum = self.quantum(at as usize);
            rounds = rounds.min((short + quantum - 1) / quantum);
            at = member.next;
        }
        for _ in 0..self.count {
            let quantum = self.quantum(at as usize);
            self.members[at as usize].deficit += quantum * (rounds - 1).max(0);
            at = self.members[at as usize].next;
        }
    }
}

impl Policy for Drr {
    fn set(&mut self, slot: usize, share: &Share, _: Nanos) {
        self.members[slot].weight = share.weight;
    }

    fn close(&mut self, slot: usize, _: Nanos) {
        self.members[slot].deficit = 0;
    }

    fn ready(&mut self, slot: usize, head: &Item, _: Nanos) {
        self.members[slot].head_cost = head.charge.cost;
        if !self.members[slot].on {
            self.link(slot);
        }
    }

    fn gone(&mut self, slot: usize) {
        if self.members[slot].on {
            self.unlink(slot);
            self.members[slot].deficit = self.members[slot].deficit.min(0);
        }
    }

    fn pick(&mut self, _: Nanos) -> Pick {
        if self.turn == END {
            return Pick::Nobody;
        }
        for visit in 0.. {
            let slot = self.turn as usize;
            if !self.members[slot].visited {
                let quantum = self.quantum(slot);
                let member = &mut self.members[slot];
                member.visited = true;
                member.deficit += quantum;
            }
            if self.members[slot].deficit >= self.members[slot].head_cost as i64 {
                return Pick::Slot(slot);
            }
            self.members[slot].visited = false;
            self.turn = self.members[slot].next;
            if visit == self.count {
                self.skip_rounds();
            }
            assert!(visit <= 3 * self.count + 3, "a round after the skipped ones lets somebody pass");
        }
        unreachable!("the loop ends by a pick")
    }

    fn pick_instead(&mut self, _: usize) -> bool {
        true
    }

    fn passed(&mut self, slot: usize, charge: &Charge, next: Option<&Item>, _: Nanos) {
        self.members[slot].deficit -= charge.cost as i64;
        match next {
            Some(item) => self.members[slot].head_cost = item.charge.cost,
            None => self.gone(slot),
        }
    }

    fn direct(&mut self, _: usize, _: &Charge, _: Nanos) -> bool {
        true
    }

    fn extra(&mut self, slot: usize, cost: u64) {
        self.members[slot].deficit -= cost as i64;
    }
}
