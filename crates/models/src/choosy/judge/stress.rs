//! The conditions that a good initiator must bear, beyond the published ones.
//!
//! Owns: their scenarios. Never: an entrant.
//! Invariant: every scenario can be run by every model ([`Scenario::check`]).

use super::published::Configuration;
use super::trial::{Span, Trial};
use crate::storage::{Arrivals, Placement, Scenario, Sizes, Slow};
use segue_types::Nanos;

/// A row of the matrix: its trial has the one span `all`.
#[derive(Clone, PartialEq, Debug)]
pub struct Stress {
    /// Which kind: `hot`, `slow`, `stagger`, `mixed`, `open`.
    pub kind: &'static str,
    /// What is done, in words.
    pub about: String,
    /// The configuration it changes.
    pub chunk_bytes: u64,
    /// Its drives, MiB/s.
    pub drive_mbps: u64,
    /// The run.
    pub trial: Trial,
}

impl Stress {
    /// Users' data that comes per second, GB/s (1e9 bytes); `None` in a closed loop.
    pub fn offered_gb_per_s(&self) -> Option<f64> {
        match self.trial.scenario.arrivals {
            Arrivals::Closed { .. } => None,
            Arrivals::Open { load_permille } => {
                Some(self.trial.scenario.capacity_bytes_per_s() as f64 * load_permille as f64 / 1e12)
            }
        }
    }
}

const LOADS_PERMILLE: [u64; 5] = [600, 700, 800, 900, 950];

/// All rows: each stress on each of the configurations, mixed sizes on those of 1 MiB. The runs are at most as long as the
/// configurations' steady ones, of which they keep the warm-up.
pub fn matrix(configurations: &[Configuration]) -> Vec<Stress> {
    let mut rows = Vec::new();
    for configuration in configurations {
        let scenario = configuration.scenario();
        let mut add = |kind, about: String, scenario| rows.push(stress(configuration, kind, about, scenario));
        for (groups, permille) in [(1, 300), (3, 700)] {
            let about = format!("{}% of chunks on {groups} of 10 groups", permille / 10);
            add("hot", about, Scenario { placement: Placement::Hot { groups, permille }, ..scenario.clone() });
        }
        for (slow, permille) in [(1, 250), (10, 500)] {
            let about = format!("{slow} of 90 drives at {}% of their rate", permille / 10);
            let slow = (0..slow).map(|n| Slow { target: n * scenario.group_targets, permille }).collect();
            add("slow", about, Scenario { slow, ..scenario.clone() });
        }
        let stagger_ns = configuration.cold_ns / 4;
        let arrivals = Arrivals::Closed { stagger_ns };
        let about = format!("starts spread over {} us", stagger_ns / 1_000);
        add("stagger", about, Scenario { arrivals, ..scenario.clone() });
        for load_permille in LOADS_PERMILLE {
            let arrivals = Arrivals::Open { load_permille };
            let about = format!("Poisson arrivals at {}% of the capacity", load_permille / 10);
            add("open", about, Scenario { arrivals, ..scenario.clone() });
        }
    }
    for configuration in configurations.iter().filter(|c| c.chunk_bytes == 1 << 20) {
        let scenario = Scenario { sizes: Sizes::Powers(4 << 10, 16 << 20), ..configuration.scenario() };
        rows.push(stress(configuration, "mixed", "sizes of 4 KiB to 16 MiB".into(), scenario.clone()));
        let open = Scenario { arrivals: Arrivals::Open { load_permille: 500 }, ..scenario };
        rows.push(stress(configuration, "mixed", "4 KiB to 16 MiB, Poisson arrivals at 50%".into(), open));
    }
    rows
}

fn stress(configuration: &Configuration, kind: &'static str, about: String, scenario: Scenario) -> Stress {
    // From rest, a staggered start is looked at from its first chunk on: it is about that start.
    let warm_up_ns: Nanos = if kind == "stagger" { 0 } else { configuration.warm_up_ns };
    let until_ns = configuration.steady_ns.min(configuration.warm_up_ns + configuration.cold_ns * 2);
    let span = Span { name: "all", from_ns: warm_up_ns, until_ns, censored: false };
    // 16 MiB take longer.
    let drain_ns = configuration.drain_ns * if kind == "mixed" { 3 } else { 1 };
    let scenario = Scenario { run_ns: until_ns + drain_ns, warm_up_ns, ..scenario };
    let (chunk_bytes, drive_mbps) = (configuration.chunk_bytes, configuration.drive_mbps);
    Stress { kind, about, chunk_bytes, drive_mbps, trial: Trial { scenario, spans: vec![span] } }
}
