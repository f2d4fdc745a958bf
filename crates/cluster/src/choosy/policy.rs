//! The settings of the negotiation.
//!
//! Owns: their defaults and limits. Never: a decision.
//! Invariant: the defaults are what won `segue reproduce choosy`; [`Policy::check`] accepts what the machines can do.

use crate::reserve::Links;
use segue_types::Nanos;

/// Most candidates of a write.
pub const CANDIDATES_MAX: usize = 64;
/// Most targets asked in one round.
pub const ASKED_MAX: usize = 64;
/// Most copies of a write.
pub const COPIES_MAX: usize = 8;

/// Most bytes of one copy.
pub const BYTES_MAX: u64 = 1 << 40;
/// Longest setting of the policy that is a time, nanoseconds: a day.
pub const TIMES_MAX_NS: Nanos = 86_400_000_000_000;
/// What is said to be further ahead than this is not believed, nanoseconds (more than two years).
pub(super) const FAR_NS: Nanos = 1 << 56;

/// Which offer is the best.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choose {
    /// The earliest start (Replicast-H).
    Start,
    /// The earliest on the medium.
    Medium,
    /// The least delay of the write: waiting of the own link, and lateness past the write's earliest possible end.
    Deadline,
}

/// How to negotiate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Copies of each write.
    pub copies: u8,
    /// Copies that must be on a medium for the write to be done; the others follow.
    pub quorum: u8,
    /// Targets asked per round, drawn from the candidates.
    pub asked: u8,
    /// Which offer is the best.
    pub choose: Choose,
    /// Ask the rest of the candidates when the best offer is late beyond what is usual.
    pub again: bool,
    /// An offer is held for the asker until it books or releases it, as Replicast-H does.
    pub hold: bool,
    /// All copies are negotiated in one round, not each when the link is about to be free.
    pub together: bool,
    /// Length of a window over the transfer, thousandths.
    pub slack_permille: u16,
    /// Between windows at a target, for clocks that differ, nanoseconds.
    pub guard_ns: Nanos,
    /// How long before the own link is free a copy's round begins, over two round trips, nanoseconds.
    pub ahead_ns: Nanos,
    /// How long over the round trip an answer is waited for, nanoseconds.
    pub patience_ns: Nanos,
    /// How long after its forecast a copy is given up and sent elsewhere, nanoseconds.
    pub overdue_ns: Nanos,
    /// Most writes under way at one initiator.
    pub writes_max: u16,
    /// Most bookings at one target.
    pub bookings_max: u16,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            copies: 3,
            quorum: 3,
            asked: 6,
            choose: Choose::Deadline,
            again: true,
            hold: false,
            together: false,
            slack_permille: 0,
            guard_ns: 1_000,
            ahead_ns: 2_000,
            patience_ns: 50_000,
            overdue_ns: 1_000_000_000,
            writes_max: 64,
            bookings_max: 256,
        }
    }
}

impl Policy {
    /// Whether the machines can do this.
    pub const fn check(&self) -> bool {
        self.copies >= 1
            && self.copies as usize <= COPIES_MAX
            && self.quorum >= 1
            && self.quorum <= self.copies
            && self.asked >= self.copies
            && self.asked as usize <= ASKED_MAX
            && self.slack_permille <= 1_000
            && self.guard_ns <= TIMES_MAX_NS
            && self.ahead_ns <= TIMES_MAX_NS
            && self.patience_ns > 0
            && self.patience_ns <= TIMES_MAX_NS
            && self.overdue_ns > 0
            && self.overdue_ns <= TIMES_MAX_NS
            && self.writes_max >= 1
            && self.bookings_max >= 1
    }

    /// The length of a window for `bytes`, nanoseconds.
    pub fn window_ns(&self, links: &Links, bytes: u64) -> Nanos {
        let transfer = links.transfer_ns(bytes);
        transfer + transfer * Nanos::from(self.slack_permille) / 1_000 + self.guard_ns
    }
}
