//! An initiator's negotiation: its copies, its limit, when it asks again.
//!
//! Owns: what has been agreed on for one chunk, and what is next. Never: a message, a target's state.
//! Invariant: copies are on different targets; by default their transfers do not overlap on the initiator's own link.

use super::select::Offer;
use crate::storage::{ChunkId, Timing};
use segue_types::Nanos;

/// An agreed transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Transfer {
    pub target: u32,
    pub round: u32,
    pub left_ns: Nanos,
    pub right_ns: Nanos,
}

/// When to ask for the next copies, and from when on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub at_ns: Nanos,
    pub left_ns: Nanos,
}

/// The state of one initiator.
pub(super) struct Initiator {
    pub chunk: Option<ChunkId>,
    pub round: u32,
    pub offers: Vec<Offer>,
    /// Bids wanted in this round.
    pub wanted: usize,
    /// Targets that rejected late in this round, before the bids were complete.
    pub rejected: Vec<u32>,
    pub transfers: Vec<Transfer>,
    pub started: u32,
    /// When its last control message is out, nanoseconds.
    pub said_ns: Nanos,
    pub plan: Option<Plan>,
    limit_ns: Nanos,
    last_limit_ns: Nanos,
    published: bool,
}

impl Initiator {
    /// Idle. The first limit is three control round trips; SURGE meant that and computed six trips.
    pub(super) fn new(timing: &Timing, published: bool) -> Initiator {
        let limit_ns = if published { 6 * timing.trip_ns } else { 6 * timing.message_ns() };
        Initiator {
            chunk: None,
            round: 0,
            offers: Vec::with_capacity(64),
            wanted: 0,
            rejected: Vec::new(),
            transfers: Vec::with_capacity(8),
            started: 0,
            said_ns: 0,
            plan: None,
            limit_ns,
            last_limit_ns: limit_ns,
            published,
        }
    }

    /// Begins with a chunk.
    pub(super) fn begin(&mut self, now: Nanos, chunk: ChunkId) {
        assert!(self.transfers.is_empty() && self.chunk.is_none(), "one chunk at a time");
        (self.chunk, self.round, self.started) = (Some(chunk), 0, 0);
        (self.limit_ns, self.last_limit_ns) = ((self.limit_ns + self.last_limit_ns) / 2, self.limit_ns);
        self.plan = Some(Plan { at_ns: now, left_ns: now });
    }

    /// From when on its own link is free.
    fn own_ns(&self) -> Nanos {
        if self.published { 0 } else { self.transfers.iter().map(|t| t.right_ns).max().unwrap_or(0) }
    }

    /// A new round begins; from when on windows are wanted.
    pub(super) fn ask(&mut self, plan: Plan) -> Nanos {
        self.round += 1;
        self.offers.clear();
        self.rejected.clear();
        self.plan = None;
        plan.left_ns.max(self.own_ns())
    }

    /// A bid came. True when all are there.
    pub(super) fn offered(&mut self, mut offer: Offer) -> bool {
        offer.rejected |= self.rejected.contains(&offer.target);
        let key = |o: &Offer| (o.left_ns, o.made_ns);
        let at = self.offers.iter().position(|o| key(o) > key(&offer)).unwrap_or(self.offers.len());
        self.offers.insert(at, offer);
        self.offers.len() == self.wanted
    }

    /// Whether the first of the bids is too far to be taken; then the limit is doubled.
    pub(super) fn too_far(&mut self, now: Nanos) -> bool {
        let idle = self.offers[0].left_ns.saturating_sub(now.max(self.own_ns()));
        let limit = if self.published { 2 * self.limit_ns } else { self.limit_ns };
        let far = idle >= limit;
        if far {
            self.limit_ns *= 2;
        }
        far
    }

    /// Plans the next round after the selected bids were taken, or none was.
    pub(super) fn plan_more(&mut self, timing: &Timing, now: Nanos, taken: Option<&Transfer>) {
        let plan = match taken {
            Some(last) => Plan { at_ns: last.left_ns, left_ns: last.right_ns },
            None => Plan { at_ns: now + self.limit_ns / 4, left_ns: now + self.limit_ns / 4 },
        };
        self.plan = Some(self.heard(timing, plan));
    }

    /// Not before all targets have heard the last decision, and any late rejection is back.
    fn heard(&self, timing: &Timing, plan: Plan) -> Plan {
        Plan { at_ns: plan.at_ns.max(self.said_ns + timing.trip_ns + timing.control_ns / 2), ..plan }
    }

    /// A target takes its window back. True when a copy was lost by it and the plan changed.
    pub(super) fn late_reject(&mut self, timing: &Timing, now: Nanos, target: u32, round: u32) -> bool {
        let Some(at) = self.transfers.iter().position(|t| t.target == target && t.round == round) else {
            if round == self.round {
                self.rejected.push(target);
                self.offers.iter_mut().filter(|o| o.target == target).for_each(|o| o.rejected = true);
            }
            return false;
        };
        let lost = self.transfers.remove(at);
        assert!(lost.left_ns > now, "a transfer is rejected before it begins");
        if self.plan.is_some_and(|plan| plan.at_ns < now + timing.control_ns) {
            return false;
        }
        let last = self.transfers.iter().filter(|t| t.round == self.round).map(|t| t.right_ns).max();
        self.plan = Some(self.heard(timing, Plan { at_ns: now, left_ns: last.unwrap_or(now) }));
        true
    }
}
