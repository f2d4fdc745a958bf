//! What a run gave.
//!
//! Owns: every chunk's latency, finished or not, and the counters. Never: a chunk dropped from the account.
//! Invariant: finished and pending chunks together are all that arrived.

use super::chunks::Chunk;
use super::scenario::Scenario;
use segue_types::Nanos;

/// A chunk that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The chunk.
    pub chunk: Chunk,
    /// From its coming to its last acknowledgement, nanoseconds.
    pub latency_ns: Nanos,
}

/// A chunk that was not written when the run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending {
    /// The chunk.
    pub chunk: Chunk,
    /// Its age then, nanoseconds.
    pub age_ns: Nanos,
}

/// What a run gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// In order of completion.
    pub done: Vec<Done>,
    /// In order of arrival.
    pub pending: Vec<Pending>,
    /// Events handled.
    pub events: u64,
    /// Hash of all events: equal for equal runs.
    pub trace: u64,
    /// The protocol's own counts: renegotiations, control messages, rejections.
    pub counters: Vec<(&'static str, u64)>,
    /// Most events that were scheduled at once.
    pub scheduled_max: usize,
}

impl Outcome {
    /// Latencies of the chunks that came after the warm-up and were written, nanoseconds, in order of completion.
    pub fn latencies_ns(&self, scenario: &Scenario) -> Vec<Nanos> {
        let warm = |d: &&Done| d.chunk.created_ns >= scenario.warm_up_ns;
        self.done.iter().filter(warm).map(|d| d.latency_ns).collect()
    }

    /// Ages of the chunks that came after the warm-up and were not written, nanoseconds.
    pub fn pending_ns(&self, scenario: &Scenario) -> Vec<Nanos> {
        let warm = |p: &&Pending| p.chunk.created_ns >= scenario.warm_up_ns;
        self.pending.iter().filter(warm).map(|p| p.age_ns).collect()
    }

    /// Users' data (one copy) finished after the warm-up, bytes per second.
    pub fn bytes_per_s(&self, scenario: &Scenario) -> f64 {
        let after = |d: &&Done| d.chunk.created_ns + d.latency_ns >= scenario.warm_up_ns;
        let bytes: u64 = self.done.iter().filter(after).map(|d| d.chunk.bytes).sum();
        bytes as f64 * 1e9 / (scenario.run_ns - scenario.warm_up_ns) as f64
    }

    /// A counter by its name; 0 when the protocol has none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| *count)
    }
}
