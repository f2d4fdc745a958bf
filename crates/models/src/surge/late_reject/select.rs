//! Which bids an initiator takes for its next copies.
//!
//! Owns: SURGE's choice (m8, m9): the earliest window, and those that can follow it at once. Never: whether to wait that long.
//! Invariant: what is taken is inside what was bid, and in order of time without overlap.

use segue_types::Nanos;

/// A bid, as the initiator got it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    pub target: u32,
    pub left_ns: Nanos,
    pub right_ns: Nanos,
    pub made_ns: Nanos,
    /// The target took it back.
    pub rejected: bool,
}

/// Leaves in `offers`, which are in order, the ones that are taken: at most `wanted`, each trimmed to `taken_ns`. Two transfers
/// follow each other at once when at most `gap_ns` is between them.
pub(super) fn select(offers: &mut Vec<Offer>, wanted: usize, taken_ns: Nanos, gap_ns: Nanos) {
    offers.retain(|o| !o.rejected);
    let Some(first) = offers.first().copied() else { return };
    let mut taken = [first; 8];
    let mut count = 1;
    let mut end = first.left_ns + taken_ns;
    while count < wanted {
        let Some(next) = follow(&offers[1..], &taken[1..count], end, taken_ns, gap_ns) else { break };
        end = next.left_ns + taken_ns;
        taken[count] = next;
        count += 1;
    }
    if count == 1 {
        // A wider window is an idle target's.
        let width = |o: &Offer| o.right_ns - o.left_ns;
        let idle = |o: &&Offer| width(o) > width(&first) && o.left_ns - first.left_ns < 2 * gap_ns;
        taken[0] = offers[1..].iter().find(idle).copied().unwrap_or(first);
    }
    offers.clear();
    offers.extend(taken[..count].iter().map(|o| Offer { right_ns: o.left_ns + taken_ns, ..*o }));
}

/// The first of `offers`, not yet `taken`, that can begin at `end` or at most `gap_ns` later.
fn follow(offers: &[Offer], taken: &[Offer], end: Nanos, taken_ns: Nanos, gap_ns: Nanos) -> Option<Offer> {
    let near = offers.iter().take_while(|o| o.left_ns <= end + gap_ns || taken.iter().any(|t| t.target == o.target));
    let mut fits =
        near.filter(|o| !taken.iter().any(|t| t.target == o.target)).filter(|o| o.right_ns >= end + taken_ns);
    fits.next().map(|o| Offer { left_ns: o.left_ns.max(end), ..*o })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(windows: &[(Nanos, Nanos)]) -> Vec<Offer> {
        let offer = |(n, (left_ns, right_ns)): (usize, &(Nanos, Nanos))| Offer {
            target: n as u32,
            left_ns: *left_ns,
            right_ns: *right_ns,
            made_ns: 0,
            rejected: false,
        };
        windows.iter().enumerate().map(offer).collect()
    }

    fn taken(windows: &[(Nanos, Nanos)], wanted: usize) -> Vec<(u32, Nanos, Nanos)> {
        let mut offers = offers(windows);
        select(&mut offers, wanted, 100, 10);
        offers.iter().map(|o| (o.target, o.left_ns, o.right_ns)).collect()
    }

    #[test]
    fn windows_that_follow_are_taken_together() {
        assert_eq!(taken(&[(0, 101), (99, 201), (208, 310)], 3), [(0, 0, 100), (1, 100, 200), (2, 208, 308)]);
        assert_eq!(taken(&[(0, 101), (99, 201), (208, 310)], 2), [(0, 0, 100), (1, 100, 200)]);
        assert_eq!(taken(&[(0, 101), (50, 151), (111, 212)], 3), [(0, 0, 100)], "too short, then too far");
    }

    #[test]
    fn an_idle_target_is_better_than_the_first() {
        assert_eq!(taken(&[(0, 101), (0, 101), (19, 122)], 3), [(2, 19, 119)]);
        assert_eq!(taken(&[(0, 101), (20, 123)], 3), [(0, 0, 100)], "too late");
        let mut all = offers(&[(0, 101), (5, 106)]);
        all[0].rejected = true;
        select(&mut all, 3, 100, 10);
        assert_eq!((all.len(), all[0].target), (1, 1));
        let mut none = offers(&[(0, 101)]);
        none[0].rejected = true;
        select(&mut none, 3, 100, 10);
        assert!(none.is_empty());
    }
}
