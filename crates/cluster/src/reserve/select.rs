//! Which bids an initiator accepts.
//!
//! Owns: the choice among the bids of one round. Never: the limit of waiting; that is decided afterwards.
//! Invariant: chosen windows lie inside their bids, are in order and do not overlap.

use super::links::Links;
use super::message::{Bid, COPIES_MAX, Window};
use segue_types::Nanos;

/// Chosen bids, by their places in the list, trimmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// The places; only the first `count` count.
    pub places: [u8; COPIES_MAX],
    /// How many.
    pub count: u8,
}

/// Chooses up to `wanted`, at most [`COPIES_MAX`], of bids that are sorted by their beginnings, and trims the chosen
/// windows to `use_ns`, which is the window less the propagation time.
///
/// The earliest is always chosen; others when they begin where the one before ends: not later than one message takes, and
/// not so early that less than `use_ns` of them is left. When none follows the earliest, an idle target's wider bid that begins
/// within two messages of it takes its place.
///
/// # Panics
/// When there are no bids.
pub fn choose(bids: &mut [Bid], wanted: u32, use_ns: Nanos, links: &Links) -> Choice {
    assert!(!bids.is_empty() && wanted as usize <= COPIES_MAX);
    let mut choice = Choice { places: [0; COPIES_MAX], count: 1 };
    while u32::from(choice.count) < wanted {
        let last = usize::from(choice.places[usize::from(choice.count) - 1]);
        let from_ns = bids[last].window.left_ns + use_ns;
        let Some(place) = follower(bids, last + 1, from_ns, use_ns, links) else { break };
        let window = &mut bids[place].window;
        window.left_ns = window.left_ns.max(from_ns);
        choice.places[usize::from(choice.count)] = place as u8;
        choice.count += 1;
    }
    if choice.count == 1 {
        let first = bids[0].window;
        let wider = |bid: &Bid| bid.window.length_ns() > first.length_ns();
        let near = |bid: &Bid| bid.window.left_ns - first.left_ns < 2 * links.message_ns();
        if let Some(place) = bids[1..].iter().position(wider).filter(|n| near(&bids[n + 1])) {
            choice.places[0] = place as u8 + 1;
        }
    }
    for place in &choice.places[..usize::from(choice.count)] {
        trim(&mut bids[usize::from(*place)].window, use_ns);
    }
    choice
}

fn follower(bids: &[Bid], first: usize, from_ns: Nanos, use_ns: Nanos, links: &Links) -> Option<usize> {
    for (place, bid) in bids.iter().enumerate().skip(first) {
        if bid.window.left_ns > from_ns + links.message_ns() {
            return None;
        }
        if bid.window.right_ns - use_ns >= from_ns {
            return Some(place);
        }
    }
    None
}

fn trim(window: &mut Window, use_ns: Nanos) {
    window.right_ns = window.right_ns.min(window.left_ns + use_ns);
}
