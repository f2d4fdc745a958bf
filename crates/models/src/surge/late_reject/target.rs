//! A target's windows when it may book one twice.
//!
//! Owns: where a window fits, which one may be booked twice, who is rejected late. Never: the messages.
//! Invariant: of two bids for one window at most one is accepted; accepted windows are disjoint.
//!
//! SURGE's sparse queue (m8) with double booking (m9): a window that was bid to one initiator is bid to a second one when there is
//! time to tell it that the first one has taken it: three control messages after the first bid, and two trips.

use crate::storage::{ChunkId, Timing};
use segue_types::Nanos;

/// How far a bid is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Its initiator decides.
    Tentative,
    /// Its initiator sends.
    Accepted,
    /// The other one of its window was accepted; its initiator's decision is still to come.
    Rejected,
}

/// A window for one initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bid {
    pub chunk: ChunkId,
    pub round: u32,
    pub left_ns: Nanos,
    pub right_ns: Nanos,
    /// Its beginning when it was made; two bids for one window have the same.
    pub booked_ns: Nanos,
    pub made_ns: Nanos,
    pub state: State,
}

/// A request for a bid.
pub(super) struct Ask {
    pub chunk: ChunkId,
    pub round: u32,
    /// Not before this, nanoseconds.
    pub left_ns: Nanos,
    /// How long, nanoseconds.
    pub window_ns: Nanos,
    /// How long the target's drive needs it to wait, nanoseconds.
    pub delay_ns: Nanos,
    /// A window fits into a hole when this remains after it, nanoseconds.
    pub gap_ns: Nanos,
}

/// What an acceptance did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Accepted {
    /// The window is the initiator's, by its bid of this round; this other bid for it is rejected.
    Taken(u32, Option<Bid>),
    /// The bid was rejected before; the initiator's acceptance crossed the rejection.
    TooLate,
    /// There is no such bid, or what is taken is not in it.
    Never,
}

/// The bids of a target, by the beginning of their windows, then by age.
#[derive(Default)]
pub(super) struct Bids(Vec<Bid>);

impl Bids {
    /// Makes a bid; true when its window was bid to somebody before.
    pub(super) fn bid(&mut self, timing: &Timing, now: Nanos, ask: &Ask) -> (Bid, bool) {
        let second = if ask.delay_ns == 0 { self.twice(timing, now, ask) } else { None };
        let (left_ns, right_ns) = second.unwrap_or_else(|| self.free(timing, now, ask));
        let bid = Bid {
            chunk: ask.chunk,
            round: ask.round,
            left_ns,
            right_ns,
            booked_ns: left_ns,
            made_ns: now,
            state: State::Tentative,
        };
        let at = self.0.iter().position(|b| (b.booked_ns, b.made_ns) > (left_ns, now)).unwrap_or(self.0.len());
        self.0.insert(at, bid);
        (bid, second.is_some())
    }

    /// The latest tentative window that one initiator knows of, when a second one could be rejected in time.
    fn twice(&self, timing: &Timing, now: Nanos, ask: &Ask) -> Option<(Nanos, Nanos)> {
        let mut end = self.0.len();
        while let Some(at) = end.checked_sub(1) {
            let bid = &self.0[at];
            if at > 0 && self.0[at - 1].booked_ns == bid.booked_ns {
                end -= 2;
                continue;
            }
            if bid.state != State::Tentative {
                end -= 1;
                continue;
            }
            // The first bid must be on its way; a longer second one could run into what follows when the first is cancelled.
            let sent = now - bid.made_ns >= timing.control_ns;
            let rejectable_ns = bid.made_ns + 3 * timing.message_ns() + 2 * timing.trip_ns;
            let right_ns = bid.booked_ns + ask.window_ns;
            let fits = right_ns <= bid.right_ns;
            let in_time = bid.booked_ns >= ask.left_ns.max(rejectable_ns);
            return (sent && in_time && fits).then_some((bid.booked_ns, right_ns));
        }
        None
    }

    /// The first free window.
    fn free(&self, timing: &Timing, now: Nanos, ask: &Ask) -> (Nanos, Nanos) {
        let earliest = now + (2 * timing.control_ns + timing.trip_ns).max(ask.delay_ns);
        let mut left = ask.left_ns.max(earliest);
        for bid in &self.0 {
            if left < bid.left_ns && bid.left_ns - left >= ask.window_ns + ask.gap_ns {
                break;
            }
            left = left.max(bid.right_ns + timing.trip_ns);
        }
        let idle = if self.0.is_empty() && ask.delay_ns == 0 { 2 * timing.trip_ns } else { 0 };
        (left, left + ask.window_ns + idle)
    }

    /// The initiator takes `left..right` of its window.
    pub(super) fn accept(&mut self, chunk: ChunkId, left: Nanos, right: Nanos) -> Accepted {
        let Some(at) = self.0.iter().position(|b| b.chunk == chunk) else { return Accepted::Never };
        let bid = self.0[at];
        match bid.state {
            State::Accepted => return Accepted::Never,
            State::Rejected => {
                self.0.remove(at);
                return Accepted::TooLate;
            }
            State::Tentative if left < bid.left_ns || bid.right_ns < right => return Accepted::Never,
            State::Tentative => {}
        }
        let other = |b: &&mut Bid| b.chunk != chunk && b.booked_ns == bid.booked_ns && b.state == State::Tentative;
        let rejected = self.0.iter_mut().find(other).map(|other| {
            other.state = State::Rejected;
            *other
        });
        let bid = &mut self.0[at];
        (bid.left_ns, bid.right_ns, bid.state) = (left, right, State::Accepted);
        Accepted::Taken(bid.round, rejected)
    }

    /// The initiator takes another one: the bid, which is gone.
    pub(super) fn cancel(&mut self, chunk: ChunkId) -> Option<Bid> {
        let at = self.0.iter().position(|b| b.chunk == chunk && b.state != State::Accepted)?;
        Some(self.0.remove(at))
    }

    /// The transfer is over: the bid, which is gone.
    pub(super) fn done(&mut self, chunk: ChunkId) -> Option<Bid> {
        let at = self.0.iter().position(|b| b.chunk == chunk && b.state == State::Accepted)?;
        Some(self.0.remove(at))
    }

    /// Whether the bid of a chunk is rejected.
    pub(super) fn rejected(&self, chunk: ChunkId) -> bool {
        self.0.iter().any(|b| b.chunk == chunk && b.state == State::Rejected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Fabric;

    fn ask(chunk: u32, left_ns: Nanos) -> Ask {
        Ask { chunk: ChunkId(chunk), round: 0, left_ns, window_ns: 100_000, delay_ns: 0, gap_ns: 0 }
    }

    #[test]
    fn a_window_is_bid_twice_only_when_the_second_can_be_rejected() {
        let timing = Fabric::default().timing();
        let mut bids = Bids::default();
        let near = bids.bid(&timing, 0, &ask(1, 0)).0;
        let (after, double) = bids.bid(&timing, 3_000, &ask(2, 0));
        assert!(!double, "the first transfer begins before a rejection is back");
        assert_eq!(after.left_ns, near.right_ns + 1_000);
        let mut bids = Bids::default();
        let far = bids.bid(&timing, 0, &ask(1, 50_000)).0;
        assert!(!bids.bid(&timing, 1_000, &ask(2, 50_000)).1, "the first bid is not out");
        let mut bids = Bids::default();
        bids.bid(&timing, 0, &ask(1, 50_000));
        let (twice, double) = bids.bid(&timing, 3_000, &ask(2, 0));
        assert!(double && twice.left_ns == far.left_ns);
        let (third, double) = bids.bid(&timing, 6_000, &ask(3, 60_000));
        assert!(!double && third.left_ns > twice.right_ns, "not three times");
    }

    #[test]
    fn the_first_acceptance_rejects_the_second_and_a_cancel_leaves_it() {
        let timing = Fabric::default().timing();
        let pair = || {
            let mut bids = Bids::default();
            let bid = bids.bid(&timing, 0, &ask(1, 50_000)).0;
            assert!(bids.bid(&timing, 3_000, &ask(2, 0)).1);
            (bids, bid.left_ns)
        };
        let (mut bids, left) = pair();
        assert_eq!(bids.accept(ChunkId(1), left - 1, left + 90_000), Accepted::Never);
        let Accepted::Taken(0, Some(late)) = bids.accept(ChunkId(1), left, left + 99_000) else { panic!("taken") };
        assert_eq!((late.chunk, late.state), (ChunkId(2), State::Rejected));
        assert!(bids.rejected(ChunkId(2)) && !bids.rejected(ChunkId(1)));
        assert_eq!(bids.accept(ChunkId(2), left, left + 99_000), Accepted::TooLate);
        assert_eq!(bids.accept(ChunkId(2), left, left + 99_000), Accepted::Never);
        assert!(bids.cancel(ChunkId(1)).is_none() && bids.done(ChunkId(1)).is_some());
        let (mut bids, left) = pair();
        assert!(bids.cancel(ChunkId(1)).is_some());
        assert_eq!(bids.accept(ChunkId(2), left, left + 99_000), Accepted::Taken(0, None));
    }
}
