//! The rows of the paper's table, the larger machines, and the paper's figures beside them.
//!
//! Owns: which setups are run and what the paper says of each. Never: runs one.
//! Invariant: a key names one row, for ever: it is part of the JSON's schema.

use super::setup::Setup;
use super::workload::{CACHE_STANDARD, SPARSE, Workload};
use segue_sched::rcs::{Overflow, Policy};
use segue_types::Nanos;

/// Throughput and response time of one path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cell {
    /// Thousands of I/Os per second.
    pub kiops: f64,
    /// Mean response, milliseconds.
    pub response_ms: f64,
}

/// One row: run without faults (good path) and with them (bad path).
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Its name in results.
    pub key: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What is run; `faults` is set by the path.
    pub setup: Setup,
    /// The paper's good path.
    pub paper_good: Option<Cell>,
    /// The paper's bad path.
    pub paper_bad: Option<Cell>,
    /// Most seeds worth their time.
    pub seeds_max: u64,
}

const fn cell(kiops: f64, response_ms: f64) -> Option<Cell> {
    Some(Cell { kiops, response_ms })
}

/// The table: the paper's rows first, then what bears on how they are read, then 256 cores. `measure_ns` is the
/// simulated and counted time of a row on 8 cores.
pub fn rows(measure_ns: Nanos) -> Vec<Row> {
    let base = Setup { measure_ns, warm_up_ns: measure_ns.min(500_000_000), ..Setup::default() };
    let dynamic = Setup { policy: Policy::Dynamic, ..base };
    let saturated = Workload { channel_ns: 0, ..CACHE_STANDARD };
    let row = |key, title, setup| Row { key, title, setup, paper_good: None, paper_bad: None, seeds_max: u64::MAX };
    let big = Setup { copies: 32, warm_up_ns: measure_ns.min(200_000_000), measure_ns: measure_ns / 10, ..dynamic };
    vec![
        Row {
            paper_good: cell(107.0, 13.3),
            paper_bad: cell(87.8, 16.6),
            ..row("performance", "performance-oriented", base)
        },
        Row {
            paper_good: cell(105.0, 13.5),
            paper_bad: cell(105.0, 13.5),
            ..row("dynamic", "dynamic, 16 groups", dynamic)
        },
        Row { paper_good: cell(106.0, 13.6), ..row("dynamic_4", "dynamic, 4 groups", Setup { groups: 4, ..dynamic }) },
        row("dynamic_1", "dynamic, 1 group", Setup { groups: 1, ..dynamic }),
        Row {
            paper_bad: cell(104.0, 13.6),
            ..row("proactive_only", "dynamic, proactive only", Setup { reactive: false, ..dynamic })
        },
        Row {
            paper_good: cell(69.9, 21.7),
            paper_bad: cell(69.9, 21.7),
            ..row("partial_dynamic", "partial dynamic", Setup { policy: Policy::PartialDynamic, ..base })
        },
        Row {
            paper_good: cell(44.6, 34.1),
            paper_bad: cell(40.4, 37.1),
            ..row("static", "static", Setup { policy: Policy::Static, ..base })
        },
        row(
            "dynamic_fewest_held",
            "dynamic, bounds as a preference",
            Setup { overflow: Overflow::FewestHeld, ..dynamic },
        ),
        row("dynamic_self_set", "dynamic, bounds set themselves", Setup { self_set: true, ..dynamic }),
        row("performance_saturated", "performance-oriented, channels never limit", Setup { work: saturated, ..base }),
        row("dynamic_saturated", "dynamic, channels never limit", Setup { work: saturated, ..dynamic }),
        row("performance_sparse", "performance-oriented, sparse", Setup { work: SPARSE, ..base }),
        row("dynamic_sparse", "dynamic, sparse", Setup { work: SPARSE, ..dynamic }),
        row(
            "partial_dynamic_sparse",
            "partial dynamic, sparse",
            Setup { policy: Policy::PartialDynamic, work: SPARSE, ..base },
        ),
        Row { seeds_max: 3, ..row("dynamic_256", "dynamic, 256 cores", big) },
    ]
}

/// One cell of the larger machines and longer recoveries.
#[derive(Clone, PartialEq, Debug)]
pub struct Larger {
    /// Its policy's name in results: `performance`, `dynamic` or `proactive_only`.
    pub policy: &'static str,
    /// Mean time to clean up, milliseconds.
    pub recovery_ms: u64,
    /// What is run on the bad path.
    pub setup: Setup,
}

/// Tasks of the larger machines are this much longer and fewer.
const GRAIN: u32 = 10;

/// What the paper only expects: 16, 64 and 256 cores, recoveries of 20 ms, 200 ms and 2 s. Each copy of the 8-way's work
/// brings its own groups and hosts; all copies share all cores. Faults are rarer as recoveries get longer, so that
/// the time spent in recoveries stays what it is at 20 ms. `measure_ns_min` is simulated and counted at least, and eight
/// recoveries.
pub fn larger(cores: &[u16], recoveries_ms: &[u64], measure_ns_min: Nanos) -> Vec<Larger> {
    let mut all = Vec::new();
    let warm_up_ns = measure_ns_min.clamp(100_000_000, 500_000_000);
    let base = Setup { work: CACHE_STANDARD.coarser(GRAIN), warm_up_ns, ..Setup::default() };
    let dynamic = Setup { policy: Policy::Dynamic, ..base };
    for (policy, setup) in
        [("performance", base), ("dynamic", dynamic), ("proactive_only", Setup { reactive: false, ..dynamic })]
    {
        for cores in cores {
            for recovery_ms in recoveries_ms {
                let setup = Setup {
                    copies: cores / super::CORES,
                    recovery_ns: recovery_ms * 1_000_000,
                    dispatches_per_fault: super::DISPATCHES_PER_FAULT / u64::from(GRAIN) * recovery_ms / 20,
                    measure_ns: (8 * recovery_ms * 1_000_000).max(measure_ns_min),
                    ..setup
                };
                all.push(Larger { policy, recovery_ms: *recovery_ms, setup });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_the_papers_rows_are_there() {
        let rows = rows(1);
        let mut keys: Vec<_> = rows.iter().map(|r| r.key).collect();
        for key in ["performance", "dynamic", "partial_dynamic", "static", "dynamic_256"] {
            assert!(keys.contains(&key), "{key}");
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), rows.len());
        assert_eq!(rows.iter().filter(|r| r.paper_bad.is_some()).count(), 5);
    }

    #[test]
    fn rows_share_one_workload() {
        for row in rows(1).iter().filter(|r| !r.key.contains("sparse") && !r.key.contains("saturated")) {
            assert_eq!(row.setup.work, CACHE_STANDARD, "{}", row.key);
            assert_eq!(row.setup.dispatches_per_fault, 10_000, "{}", row.key);
        }
    }
}
