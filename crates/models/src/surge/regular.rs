//! A target's windows when data is multicast: the next one begins where the last one ends.
//!
//! Owns: the order of a target's windows, and what becomes of cancelled ones. Never: who asks, or which bids are chosen.
//! Invariant: windows are disjoint and in order; only cancelled ones are given to somebody else.
//!
//! SURGE's `ServerRegBidQueue`. A cancelled window stays while a later one is pending: it is given again, merged with cancelled
//! neighbours, and grows over what an accepted neighbour did not take.

use crate::storage::{ChunkId, Timing};
use segue_types::Nanos;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Tentative,
    Accepted,
    Cancelled,
}

/// A window of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Window {
    /// Whom it is for.
    pub chunk: ChunkId,
    /// The initiator may send from here, nanoseconds.
    pub left_ns: Nanos,
    /// It ends before this, nanoseconds.
    pub right_ns: Nanos,
    /// When it was first made, nanoseconds; it stays when the window is given again.
    pub made_ns: Nanos,
    state: State,
}

/// What is asked for.
pub(super) struct Ask {
    /// For whom.
    pub chunk: ChunkId,
    /// How long, nanoseconds.
    pub window_ns: Nanos,
    /// How much longer the window of a target without others is, nanoseconds.
    pub idle_ns: Nanos,
    /// How long the target's drive needs it to wait, nanoseconds.
    pub delay_ns: Nanos,
}

/// How many pending windows keep a target from giving a cancelled one again, less one (SURGE).
const REUSE_MAX: usize = 3;

/// The windows of a target.
pub(super) struct Regular {
    windows: Vec<Window>,
    narrow_ns: Nanos,
}

impl Regular {
    /// No windows; none that is shorter than `narrow_ns` is worth keeping.
    pub(super) fn new(narrow_ns: Nanos) -> Regular {
        Regular { windows: Vec::with_capacity(16), narrow_ns }
    }

    /// A tentative window.
    pub(super) fn bid(&mut self, timing: &Timing, now: Nanos, ask: &Ask) -> Window {
        self.expire(timing, now);
        let earliest = now + 2 * timing.control_ns + timing.trip_ns;
        if let Some(window) = self.again(earliest, ask) {
            return window;
        }
        let after = self.windows.last().map_or(0, |last| last.right_ns + timing.trip_ns);
        let left_ns = after.max(earliest).max(now + ask.delay_ns);
        let idle = self.windows.is_empty() && ask.delay_ns < ask.idle_ns / 2;
        let right_ns = left_ns + ask.window_ns + if idle { ask.idle_ns } else { 0 };
        let window = Window { chunk: ask.chunk, left_ns, right_ns, made_ns: now, state: State::Tentative };
        self.windows.push(window);
        window
    }

    /// The latest cancelled window, when it is long enough.
    fn again(&mut self, earliest: Nanos, ask: &Ask) -> Option<Window> {
        if ask.delay_ns > 0 || self.windows.len() > REUSE_MAX {
            return None;
        }
        let window = self.windows.iter_mut().rev().find(|w| w.state == State::Cancelled)?;
        if window.right_ns < window.left_ns.max(earliest) + ask.window_ns {
            return None;
        }
        window.state = State::Tentative;
        window.chunk = ask.chunk;
        Some(*window)
    }

    /// A planted bug: the window is that of the one before it.
    #[cfg(test)]
    pub(super) fn double(&mut self, window: Window) -> Window {
        let [.., before, last] = &mut self.windows[..] else { return window };
        (last.left_ns, last.right_ns) = (before.left_ns, before.right_ns);
        *last
    }

    /// Accepts the window of a chunk, trimmed to what is taken of it. False when there is none, or what is taken is not in it.
    pub(super) fn accept(&mut self, timing: &Timing, now: Nanos, chunk: ChunkId, left: Nanos, right: Nanos) -> bool {
        self.expire(timing, now);
        let Some(at) = self.find(chunk, State::Tentative) else { return false };
        let window = &mut self.windows[at];
        if left < window.left_ns || window.right_ns < right {
            return false;
        }
        (window.left_ns, window.right_ns, window.state) = (left, right, State::Accepted);
        let worth = timing.control_ns;
        if let Some(next) = self.windows.get_mut(at + 1).filter(|w| w.state == State::Cancelled) {
            next.left_ns = if next.left_ns > right + worth { right } else { next.left_ns };
        }
        if let Some(last) = at.checked_sub(1).map(|at| &mut self.windows[at]).filter(|w| w.state == State::Cancelled) {
            last.right_ns = if last.right_ns + worth < left { left } else { last.right_ns };
        }
        true
    }

    /// Cancels the window of a chunk. False when there is none.
    pub(super) fn cancel(&mut self, timing: &Timing, now: Nanos, chunk: ChunkId) -> bool {
        self.expire(timing, now);
        let Some(at) = self.find(chunk, State::Tentative) else { return false };
        self.windows[at].state = State::Cancelled;
        if self.windows.get(at + 1).is_some_and(|w| w.state == State::Cancelled) {
            self.windows[at].right_ns = self.windows.remove(at + 1).right_ns;
        }
        if at > 0 && self.windows[at - 1].state == State::Cancelled {
            self.windows[at].left_ns = self.windows[at - 1].left_ns;
            self.windows.remove(at - 1);
        }
        true
    }

    /// The transfer of a chunk is over: its window, which is gone.
    pub(super) fn done(&mut self, chunk: ChunkId) -> Option<Window> {
        self.find(chunk, State::Accepted).map(|at| self.windows.remove(at))
    }

    /// Forgets cancelled windows that nothing follows, and those that are nearly over.
    fn expire(&mut self, timing: &Timing, now: Nanos) {
        while self.windows.last().is_some_and(|w| w.state == State::Cancelled) {
            self.windows.pop();
        }
        let earliest = now + timing.control_ns + timing.trip_ns;
        let narrow = self.narrow_ns;
        self.windows.retain(|w| w.state != State::Cancelled || w.right_ns >= w.left_ns.max(earliest) + narrow);
    }

    fn find(&self, chunk: ChunkId, state: State) -> Option<usize> {
        self.windows.iter().position(|w| w.chunk == chunk && w.state == state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Fabric;

    const W: Nanos = 100_000;

    fn ask(chunk: u32, delay_ns: Nanos) -> Ask {
        Ask { chunk: ChunkId(chunk), window_ns: W, idle_ns: 2 * 70_000, delay_ns }
    }

    #[test]
    fn an_idle_target_bids_wide_and_the_next_follows() {
        let timing = Fabric::default().timing();
        let mut queue = Regular::new(W);
        let first = queue.bid(&timing, 0, &ask(1, 0));
        assert_eq!((first.left_ns, first.right_ns), (5_848, 5_848 + W + 140_000));
        let second = queue.bid(&timing, 10, &ask(2, 0));
        assert_eq!((second.left_ns, second.right_ns), (first.right_ns + 1_000, first.right_ns + 1_000 + W));
        let mut busy = Regular::new(W);
        let far = busy.bid(&timing, 0, &ask(1, 500_000));
        assert_eq!((far.left_ns, far.right_ns), (500_000, 500_000 + W), "a target with a long queue is not idle");
    }

    #[test]
    fn cancelled_windows_are_given_again_merged_and_grow() {
        let timing = Fabric::default().timing();
        let mut queue = Regular::new(W);
        let first = queue.bid(&timing, 0, &ask(1, 0));
        let second = queue.bid(&timing, 0, &ask(2, 0));
        let third = queue.bid(&timing, 0, &ask(3, 0));
        assert!(queue.cancel(&timing, 6_848, ChunkId(1)) && queue.cancel(&timing, 6_848, ChunkId(2)));
        let again = queue.bid(&timing, 7_000, &ask(4, 0));
        assert_eq!((again.left_ns, again.right_ns), (first.left_ns, second.right_ns), "merged and given again");
        assert_eq!(again.made_ns, 0);
        let taken = (third.left_ns + 5_000, third.left_ns + 80_000);
        assert!(!queue.accept(&timing, 8_000, ChunkId(3), third.left_ns - 1, taken.1), "not inside what was bid");
        assert!(queue.cancel(&timing, 8_000, ChunkId(4)));
        assert!(queue.accept(&timing, 8_000, ChunkId(3), taken.0, taken.1));
        let grown = queue.bid(&timing, 8_000, &ask(5, 0));
        assert_eq!((grown.left_ns, grown.right_ns), (first.left_ns, taken.0), "grew to the accepted one");
        assert!(!queue.cancel(&timing, 9_000, ChunkId(3)), "accepted, not tentative");
        assert!(queue.done(ChunkId(3)).is_some() && queue.done(ChunkId(3)).is_none());
        assert!(queue.cancel(&timing, 9_000, ChunkId(5)));
        let fresh = queue.bid(&timing, 9_000, &ask(6, 0));
        assert_eq!(fresh.left_ns, 9_000 + 5_848, "a cancelled window that nothing follows is forgotten");
    }
}
