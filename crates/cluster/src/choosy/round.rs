//! One round of asking, offers and bookings.
//!
//! Owns: what a round knows and which offer it likes best. Never: a write's state.
//! Invariant: a target is asked once in a round, and picked at most once at a time.

use super::messages::{NodeId, Offer};
use super::policy::{ASKED_MAX, COPIES_MAX, Choose};
use segue_types::Nanos;

/// A target that was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    pub target: NodeId,
    pub answered: bool,
    /// Usable until it is booked.
    pub offer: Option<Offer>,
}

/// A booking that is not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pick {
    pub target: NodeId,
    /// Which booking of the round.
    pub attempt: u32,
    pub start_ns: Nanos,
    pub end_ns: Nanos,
    pub done_ns: Nanos,
    /// When it was booked.
    pub booked_ns: Nanos,
}

/// What a copy's place is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// When the own link could begin, nanoseconds.
    pub earliest_ns: Nanos,
    /// Length of the window, nanoseconds.
    pub window_ns: Nanos,
    /// Copies still to be sent, this one included.
    pub copies: u64,
    /// Breaks ties, so that initiators do not all like the same target.
    pub salt: u64,
}

/// An offer as the initiator sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Liked {
    pub at: usize,
    pub start_ns: Nanos,
    pub done_ns: Nanos,
    /// What the write loses by it against its own links, nanoseconds.
    pub late_ns: Nanos,
}

/// The round under way.
#[derive(Clone, Debug)]
pub struct Round {
    pub id: u32,
    /// The write's slot.
    pub slot: usize,
    pub asked: [Asked; ASKED_MAX],
    pub asked_n: usize,
    /// Answers that are awaited.
    pub waiting: usize,
    pub picks: [Pick; COPIES_MAX],
    pub picks_n: usize,
    /// Copies to place in it, with those already placed.
    pub want: usize,
    pub placed: usize,
    pub asked_again: bool,
    /// Bookings so far.
    pub attempts: u32,
    /// Somebody made an offer.
    pub offered: bool,
    pub deadline_ns: Nanos,
    pub active: bool,
}

impl Round {
    pub fn idle() -> Round {
        Round {
            id: 0,
            slot: 0,
            asked: [Asked::default(); ASKED_MAX],
            asked_n: 0,
            waiting: 0,
            picks: [Pick::default(); COPIES_MAX],
            picks_n: 0,
            want: 0,
            placed: 0,
            asked_again: false,
            attempts: 0,
            offered: false,
            deadline_ns: 0,
            active: false,
        }
    }

    pub fn begin(&mut self, slot: usize, want: usize) {
        self.id = self.id.wrapping_add(1);
        (self.slot, self.want) = (slot, want);
        (self.asked_n, self.waiting, self.picks_n, self.placed) = (0, 0, 0, 0);
        self.attempts = 0;
        (self.asked_again, self.offered, self.active) = (false, false, true);
    }

    pub fn ask(&mut self, target: NodeId) {
        self.asked[self.asked_n] = Asked { target, answered: false, offer: None };
        self.asked_n += 1;
        self.waiting += 1;
    }

    /// Records an answer; `false` when it was not awaited.
    pub fn answer(&mut self, target: NodeId, offer: Option<Offer>) -> bool {
        let asked = self.asked[..self.asked_n].iter_mut().find(|a| a.target == target && !a.answered);
        match asked {
            Some(asked) => {
                (asked.answered, asked.offer) = (true, offer);
                self.offered |= offer.is_some();
                self.waiting -= 1;
                true
            }
            None => false,
        }
    }

    /// Whether a target's offer is in hand, or booked and not answered yet.
    pub fn has(&self, target: NodeId) -> bool {
        let asked = self.asked[..self.asked_n].iter().any(|a| a.target == target && a.offer.is_some());
        self.active && (asked || self.picks[..self.picks_n].iter().any(|p| p.target == target))
    }

    pub fn pick(&mut self, pick: Pick) {
        self.picks[self.picks_n] = pick;
        self.picks_n += 1;
    }

    /// Takes a pick out that was answered or is given up.
    pub fn unpick(&mut self, target: NodeId) -> Option<Pick> {
        let at = self.picks[..self.picks_n].iter().position(|p| p.target == target)?;
        let pick = self.picks[at];
        self.picks_n -= 1;
        self.picks[at] = self.picks[self.picks_n];
        Some(pick)
    }

    /// Takes out the pick that an answer is to.
    pub fn answered(&mut self, target: NodeId, attempt: u32) -> Option<Pick> {
        let known = |p: &Pick| p.target == target && p.attempt == attempt;
        if self.picks[..self.picks_n].iter().any(known) { self.unpick(target) } else { None }
    }

    /// What can be had of a target that refused.
    pub fn offer_again(&mut self, from: NodeId, offer: Option<Offer>) {
        if let Some(asked) = self.asked[..self.asked_n].iter_mut().find(|a| a.target == from) {
            asked.offer = offer;
        }
    }

    /// The end of the latest pick, nanoseconds.
    pub fn picked_until_ns(&self) -> Nanos {
        self.picks[..self.picks_n].iter().map(|p| p.end_ns).max().unwrap_or(0)
    }

    /// The best offer by a rule.
    pub fn best(&self, choose: Choose, want: &Want) -> Option<Liked> {
        let usable =
            || self.asked[..self.asked_n].iter().enumerate().filter_map(|(at, a)| Some((at, a.target, a.offer?)));
        // What the fastest medium needs after the transfer: nobody's copy can be there sooner.
        let medium = |o: &Offer| o.done_ns.saturating_sub(o.start_ns + want.window_ns);
        let medium_ns = usable().map(|(_, _, o)| medium(&o)).min()?;
        let deadline_ns = want.earliest_ns + want.window_ns * want.copies + medium_ns;
        usable()
            .map(|(at, target, offer)| {
                let start_ns = offer.start_ns.max(want.earliest_ns);
                let done_ns = (offer.done_ns).max(start_ns + want.window_ns + medium_ns);
                let late_ns = (start_ns - want.earliest_ns) + done_ns.saturating_sub(deadline_ns);
                let tie = mix(want.salt ^ u64::from(target));
                let key = match choose {
                    Choose::Start => (start_ns, done_ns, tie),
                    Choose::Medium => (done_ns, start_ns, tie),
                    Choose::Deadline => (late_ns, done_ns, tie),
                };
                (key, Liked { at, start_ns, done_ns, late_ns })
            })
            .min_by_key(|(key, _)| *key)
            .map(|(_, liked)| liked)
    }
}

/// A fixed scrambling of 64 bits (the finisher of splitmix64).
pub const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
