//! How the simulator's cost grows: which runs are timed, and what each may cost.
//!
//! Owns: the rows of `segue sim scale` and their limits. Never: a clock; whoever runs a row times it.
//! Invariant: an event is a message at one receiver, the end of a transfer or of a disk write, an arrival, or a timer.

use super::variant::{Variant, run};
use crate::storage::{Arrivals, Outcome, Progress, Scenario, Sizes, Violation};
use serde::Serialize;

/// Node counts of the growing rows: half of them write, half store.
pub const NODES: &[u32] = &[180, 360, 1_000, 3_000, 10_000];
/// Loads of the rows with open arrivals, thousandths of the capacity.
pub const LOADS_PERMILLE: &[u64] = &[300, 600, 800, 950];
/// Nodes of the rows with open arrivals.
pub const LOADED_NODES: u32 = 1_000;

/// What a run may cost, where a limit is promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Limits {
    /// Wall time, milliseconds.
    pub wall_ms_max: Option<u64>,
    /// Events a second, on one core.
    pub events_per_s_min: Option<u64>,
    /// Resident memory, bytes.
    pub rss_bytes_max: Option<u64>,
}

/// A run to be timed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Initiators and targets together.
    pub nodes: u32,
    /// Open arrivals: thousandths of the capacity; 0: every initiator always has a chunk to write.
    pub load_permille: u64,
    /// The run.
    #[serde(skip)]
    pub scenario: Scenario,
    /// What it may cost.
    pub limits: Limits,
}

/// What is counted in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Counted {
    /// Events that were handled.
    pub events: u64,
    /// Of them, control messages at one receiver each (and those on their way at the end).
    pub control_messages: u64,
    /// Chunks that were written with all their copies.
    pub chunks: u64,
    /// Chunks that were not when the run ended.
    pub pending: u64,
    /// Most events that were scheduled at once.
    pub scheduled_max: u64,
}

impl Case {
    /// Runs it: Replicast-H with renegotiation under the published rules, and all accounts that every run is under.
    ///
    /// # Errors
    /// The first rule that was broken.
    pub fn run(&self, seed: u64, progress: &mut dyn FnMut(Progress)) -> Result<Counted, Violation> {
        Ok(counted(&run(Variant::Published, &self.scenario, seed, progress)?))
    }
}

fn counted(outcome: &Outcome) -> Counted {
    Counted {
        events: outcome.events,
        control_messages: outcome.counter("control_messages"),
        chunks: outcome.done.len() as u64,
        pending: outcome.pending.len() as u64,
        scheduled_max: outcome.scheduled_max as u64,
    }
}

fn writing(initiators: u32, targets: u32) -> Scenario {
    Scenario { initiators, targets, drive_bytes_per_s: 1_000 << 20, ..Scenario::default() }
}

/// The published figure's run: 90 x 90, 1 MiB chunks, drives of 1,000 MiB/s, 40 ms.
pub fn figure() -> Case {
    let scenario = Scenario { sizes: Sizes::Fixed(1 << 20), run_ns: 40_000_000, ..writing(90, 90) };
    let limits = Limits { wall_ms_max: Some(50), events_per_s_min: Some(3_000_000), rss_bytes_max: None };
    Case { name: "figure", nodes: 180, load_permille: 0, scenario, limits }
}

/// So many nodes, half of them writing 128 KiB chunks without a pause for 10 ms.
pub fn grown(nodes: u32) -> Case {
    let limits = match nodes {
        180 => Limits { events_per_s_min: Some(3_000_000), ..Limits::default() },
        10_000 => Limits { wall_ms_max: Some(60_000), rss_bytes_max: Some(4 << 30), ..Limits::default() },
        _ => Limits::default(),
    };
    Case { name: "grown", nodes, load_permille: 0, scenario: writing(nodes / 2, nodes - nodes / 2), limits }
}

/// So many nodes, each of which writes and stores.
pub fn everyone(nodes: u32) -> Case {
    let limits = Limits { wall_ms_max: Some(60_000), rss_bytes_max: Some(4 << 30), ..Limits::default() };
    Case { name: "everyone", nodes, load_permille: 0, scenario: writing(nodes, nodes), limits }
}

/// So many nodes under open arrivals.
pub fn loaded(nodes: u32, load_permille: u64) -> Case {
    let scenario = Scenario { arrivals: Arrivals::Open { load_permille }, ..grown(nodes).scenario };
    Case { name: "loaded", nodes, load_permille, scenario, limits: Limits::default() }
}

/// All rows: the figure, these node counts, loads at [`LOADED_NODES`], and 10,000 nodes that all write and store when that many
/// are asked for.
pub fn cases(nodes: &[u32]) -> Vec<Case> {
    let mut cases = vec![figure()];
    cases.extend(nodes.iter().map(|n| grown(*n)));
    if nodes.contains(&10_000) {
        cases.push(everyone(10_000));
    }
    if nodes.contains(&LOADED_NODES) {
        cases.extend(LOADS_PERMILLE.iter().map(|load| loaded(LOADED_NODES, *load)));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_events_are_real_and_counted() {
        let counted = figure().run(1, &mut |_| {}).expect("no rule is broken");
        assert!((700..900).contains(&counted.chunks), "{counted:?}");
        assert!(counted.events < counted.control_messages * 5 / 4, "nearly all events are messages: {counted:?}");
        // A round takes a request, a bid and a settlement with each of 7 to 9 targets.
        assert!(counted.control_messages / counted.chunks < 120, "{counted:?}");
        assert!(counted.pending <= 90);
        for case in cases(&[180, 1_000, 10_000]) {
            assert_eq!(case.scenario.check(), Ok(()), "{case:?}");
        }
        let tiny = loaded(40, 500).run(1, &mut |_| {}).expect("no rule is broken");
        assert!(tiny.chunks > 0 && tiny.events > 0);
    }
}
