//! Command windows: how many commands a writer has under way with a target.
//!
//! Owns: the windows, what waits for a place, and the answers of links and drives that take everything. Never: what a command does.
//! Invariant: a window never has more commands under way than its size.
//!
//! The loop of `storage` knows initiators with one chunk each. A window of n commands is n such sources here; a chunk takes any free place
//! of its window. Outcomes name the window, not the source.

use super::common::BUFFER_BYTES;
use crate::storage::{ChunkId, Outcome, Scenario, Sizes};
use segue_des::{Chance, Class, Link, Sent, Served};
use segue_types::Nanos;
use std::collections::VecDeque;

struct Window {
    size: u32,
    under_way: u32,
    waiting: VecDeque<ChunkId>,
}

/// The windows of a run.
pub(super) struct Commands {
    windows: Vec<Window>,
    /// Window of each source.
    of_source: Vec<u32>,
}

impl Commands {
    /// Windows of these sizes.
    pub(super) fn new(sizes: impl Iterator<Item = u32>) -> Commands {
        let window = |size| Window { size, under_way: 0, waiting: VecDeque::new() };
        let windows: Vec<Window> = sizes.map(window).collect();
        let of_source = (0u32..).zip(&windows).flat_map(|(n, w)| std::iter::repeat_n(n, w.size as usize)).collect();
        Commands { windows, of_source }
    }

    /// The scenario with a source for each place of each window, and one copy of each chunk.
    pub(super) fn scenario(&self, scenario: &Scenario) -> Scenario {
        Scenario { initiators: self.of_source.len() as u32, copies: 1, ..scenario.clone() }
    }

    /// The window of a source.
    pub(super) fn window(&self, source: u32) -> u32 {
        self.of_source[source as usize]
    }

    /// A chunk comes: true when it may go at once; else it waits.
    pub(super) fn arrive(&mut self, source: u32, chunk: ChunkId) -> bool {
        let window = &mut self.windows[self.of_source[source as usize] as usize];
        let free = window.under_way < window.size;
        if free {
            window.under_way += 1;
        } else {
            window.waiting.push_back(chunk);
        }
        free
    }

    /// A command ended: the chunk that takes its place, if one waits.
    pub(super) fn done(&mut self, window: u32) -> Option<ChunkId> {
        let window = &mut self.windows[window as usize];
        let next = window.waiting.pop_front();
        window.under_way -= u32::from(next.is_none());
        next
    }

    /// Names windows in place of sources.
    pub(super) fn relabel(&self, mut outcome: Outcome) -> Outcome {
        let chunks = outcome.done.iter_mut().map(|d| &mut d.chunk);
        for chunk in chunks.chain(outcome.pending.iter_mut().map(|p| &mut p.chunk)) {
            chunk.initiator = self.of_source[chunk.initiator as usize];
        }
        outcome
    }
}

/// When a command is there that a link takes at once, nanoseconds: a control message and the data.
pub(super) fn command_ns(
    link: &mut Link,
    now: Nanos,
    (control_bytes, bytes): (u64, u64),
    chance: &mut Chance,
) -> Nanos {
    link.send(now, control_bytes, Class::Control, chance);
    arrival_ns(link.send(now, bytes, Class::Data, chance))
}

/// When data is there, nanoseconds.
pub(super) fn arrival_ns(sent: Sent) -> Nanos {
    match sent {
        Sent::Sent { arrives_ns, .. } => arrives_ns,
        lost => unreachable!("a link without bound, loss and cuts: {lost:?}"),
    }
}

/// When a drive answers and when it is done with the medium, nanoseconds.
pub(super) fn served(served: Served) -> (Nanos, Nanos) {
    match served {
        Served::Done { ack_ns, medium_ns } => (ack_ns, medium_ns),
        failed => unreachable!("a drive without bound and faults: {failed:?}"),
    }
}

/// What a drive's buffer holds, bytes.
pub(super) fn buffer_bytes(chunk_bytes: u64) -> u64 {
    BUFFER_BYTES.max(2 * chunk_bytes)
}

/// The largest chunk of a scenario, bytes.
pub(super) fn largest_bytes(scenario: &Scenario) -> u64 {
    match scenario.sizes {
        Sizes::Fixed(bytes) => bytes,
        Sizes::Powers(_, max) => max,
    }
}
