//! A proxy's account of its group: what it has booked, and when it thinks each drive will be done.
//!
//! Owns: the estimates, and the choice by them. Never: a message.
//! Invariant: a booking is in the ledger from its choice to its target's report.

use super::common::queue_chunks;
use crate::storage::{ChunkId, Scenario, Timing};
use segue_des::Chance;
use segue_types::Nanos;

/// What an estimate depends on, beside the ledger.
pub(super) struct View<'a> {
    pub now: Nanos,
    pub timing: &'a Timing,
    pub scenario: &'a Scenario,
    /// Size of the chunk, bytes.
    pub bytes: u64,
    /// The target that is member 0.
    pub first_target: u32,
}

#[derive(Clone, Copy)]
struct Booking {
    chunk: ChunkId,
    right_ns: Nanos,
    drive_ns: Nanos,
}

#[derive(Default)]
struct Member {
    bookings: Vec<Booking>,
    drive_until_ns: Nanos,
}

/// The ledger of a group.
pub(super) struct Ledger {
    members: Vec<Member>,
}

/// When a window could begin at a member, and when it would begin to write, nanoseconds.
struct Estimate {
    left_ns: Nanos,
    writes_ns: Nanos,
}

impl Ledger {
    pub(super) fn new(group_targets: u32) -> Ledger {
        Ledger { members: (0..group_targets).map(|_| Member::default()).collect() }
    }

    /// The members that begin to write first, equal ones told apart at random; and from when on a window is free at all of them.
    pub(super) fn choose(
        &self,
        view: &View<'_>,
        copies: u32,
        chance: &mut Chance,
        published: bool,
    ) -> ([u8; 8], Nanos) {
        let group = self.members.len() as u64;
        let (mut chosen, mut left_ns) = ([0u8; 8], 0);
        for at in 0..copies as usize {
            let from = chance.below(group);
            let free = (from..from + group).map(|n| (n % group) as u8).filter(|n| !chosen[..at].contains(n));
            let estimates = free.map(|n| (n, self.estimate(view, n, published)));
            let (member, estimate) = estimates.min_by_key(|(_, e)| e.writes_ns).expect("a group has that many members");
            chosen[at] = member;
            left_ns = left_ns.max(estimate.left_ns);
        }
        (chosen, left_ns)
    }

    fn estimate(&self, view: &View<'_>, member: u8, published: bool) -> Estimate {
        let state = &self.members[usize::from(member)];
        let trip_ns = view.timing.trip_ns;
        let known = view.now + view.timing.message_ns();
        let left_ns = state.bookings.last().map_or(known, |last| known.max(last.right_ns + trip_ns));
        let came_ns = left_ns + view.timing.transfer_ns(view.bytes) + trip_ns;
        let drive_ns = view.scenario.drive_ns(view.first_target + u32::from(member), view.bytes);
        let allowed = (queue_chunks(view.bytes) - 1) * drive_ns;
        let late = if published { (came_ns - view.now) + allowed } else { allowed };
        let delay_ns = state.drive_until_ns.saturating_sub(came_ns).saturating_sub(late);
        Estimate { left_ns, writes_ns: came_ns.max(state.drive_until_ns) + delay_ns }
    }

    /// Books a window that ends at `right_ns`.
    pub(super) fn book(&mut self, view: &View<'_>, member: u8, chunk: ChunkId, right_ns: Nanos) {
        let drive_ns = view.scenario.drive_ns(view.first_target + u32::from(member), view.bytes);
        let state = &mut self.members[usize::from(member)];
        state.bookings.push(Booking { chunk, right_ns, drive_ns });
        state.drive_until_ns = state.drive_until_ns.max(right_ns) + drive_ns;
    }

    /// A member has a chunk: its booking is over, and its drive is done at `until_ns` but for what is booked still.
    pub(super) fn done(&mut self, member: u8, chunk: ChunkId, until_ns: Nanos) {
        let state = &mut self.members[usize::from(member)];
        let at = state.bookings.iter().position(|b| b.chunk == chunk).expect("what is reported was booked");
        state.bookings.remove(at);
        state.drive_until_ns = state.bookings.iter().fold(until_ns, |until, b| until.max(b.right_ns) + b.drive_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Fabric;

    #[test]
    fn the_earliest_writers_are_chosen_and_booked_after_each_other() {
        let (timing, scenario) = (Fabric::default().timing(), Scenario::default());
        let view = View { now: 0, timing: &timing, scenario: &scenario, bytes: 128 << 10, first_target: 0 };
        let mut ledger = Ledger::new(5);
        for (member, until) in [(0, 900_000), (1, 100_000), (2, 500_000), (3, 300_000), (4, 700_000)] {
            ledger.book(&view, member, ChunkId(member.into()), 1);
            ledger.done(member, ChunkId(member.into()), until);
        }
        let mut chance = Chance::new(1);
        let (chosen, left) = ledger.choose(&view, 3, &mut chance, false);
        assert_eq!((&chosen[..3], left), (&[1, 3, 2][..], 3_424));
        ledger.book(&view, 1, ChunkId(9), 170_000);
        let (chosen, left) = ledger.choose(&view, 3, &mut chance, false);
        assert_eq!((&chosen[..3], left), (&[3, 1, 2][..], 171_000), "booked, it writes 312,500 ns later");
        ledger.done(1, ChunkId(9), 400_000);
        assert_eq!(ledger.choose(&view, 2, &mut chance, false), ([3, 1, 0, 0, 0, 0, 0, 0], 3_424));
    }

    #[test]
    fn equal_members_are_told_apart_at_random() {
        let (timing, scenario) = (Fabric::default().timing(), Scenario::default());
        let view = View { now: 0, timing: &timing, scenario: &scenario, bytes: 128 << 10, first_target: 0 };
        let (ledger, mut chance) = (Ledger::new(9), Chance::new(3));
        let mut seen = [0u32; 9];
        for _ in 0..900 {
            let (chosen, _) = ledger.choose(&view, 3, &mut chance, true);
            chosen[..3].iter().for_each(|member| seen[usize::from(*member)] += 1);
        }
        assert!(seen.iter().all(|n| (200..400).contains(n)), "{seen:?}");
    }
}
