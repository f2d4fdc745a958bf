//! The figures of a configuration, from all its runs.
//!
//! Owns: which runs and chunks a figure is made of. Never: drops a chunk that was in flight at the end; such are counted.
//! Invariant: finished and pending chunks together are all that arrived.

use super::run::{Results, Run};
use segue_models::storage::Scenario;
use segue_models::summary::{Mean, mean};
use serde::Serialize;
use std::collections::BTreeMap;

/// Quantiles that are shown, in hundred thousandths.
pub const QUANTILES: [(&str, u64); 4] = [("p50", 50_000), ("p90", 90_000), ("p99", 99_000), ("p99.9", 99_900)];

/// A configuration's figures. Latencies and throughput are of chunks that came after the warm-up.
#[derive(Serialize, Debug)]
pub struct Figures {
    /// Chunks written, of all runs.
    pub done: u64,
    /// Chunks not written when their run ended, of all runs.
    pub in_flight: u64,
    /// Latencies; `None` when no chunk that counts was written.
    pub latency_ns: Option<Latency>,
    /// Users' data (one copy), bytes per second.
    pub bytes_per_s: Mean,
    /// Events of all runs.
    pub events: u64,
    /// Events per second of wall time of one thread.
    pub events_per_s: f64,
    /// The protocol's own counts per run.
    pub counters: BTreeMap<&'static str, Mean>,
    /// Each seed.
    pub seeds: Vec<Seed>,
}

/// Latencies, nanoseconds.
#[derive(Serialize, Debug)]
pub struct Latency {
    /// Chunks that count and were written, of all runs.
    pub chunks: usize,
    /// Mean over the seeds' means.
    pub mean: Mean,
    /// Quantiles of all runs' chunks together.
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
    /// The seeds' own quantiles, summarised over seeds.
    pub over_seeds: BTreeMap<&'static str, Mean>,
}

/// One run.
#[derive(Serialize, Debug)]
pub struct Seed {
    pub seed: u64,
    /// Hash of all events, hexadecimal.
    pub trace: String,
    pub done: usize,
    pub in_flight: usize,
    pub events: u64,
    pub mean_ns: Option<f64>,
}

/// The value of rank `q / 100000` of sorted values, none of them left out.
fn quantile(sorted: &[u64], q: u64) -> u64 {
    let rank = (sorted.len() as u64 * q).div_ceil(100_000).max(1);
    sorted[rank as usize - 1]
}

fn average(values: &[u64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().map(|v| *v as f64).sum::<f64>() / values.len() as f64)
}

impl Figures {
    /// Of all runs of a configuration.
    pub fn of(results: &Results) -> Figures {
        let (scenario, runs) = (&results.configuration.scenario, &results.runs);
        let events = runs.iter().map(|r| r.outcome.events).sum();
        let wall_s: f64 = runs.iter().map(|r| r.wall_s).sum();
        let rates: Vec<f64> = runs.iter().map(|r| r.outcome.bytes_per_s(scenario)).collect();
        Figures {
            done: runs.iter().map(|r| r.outcome.done.len() as u64).sum(),
            in_flight: runs.iter().map(|r| r.outcome.pending.len() as u64).sum(),
            latency_ns: latency(scenario, runs),
            bytes_per_s: mean(&rates),
            events,
            events_per_s: events as f64 / wall_s.max(1e-9),
            counters: counters(runs),
            seeds: runs.iter().map(|run| seed(scenario, run)).collect(),
        }
    }
}

fn latency(scenario: &Scenario, runs: &[Run]) -> Option<Latency> {
    let mut of_runs: Vec<Vec<u64>> = runs.iter().map(|r| r.outcome.latencies_ns(scenario)).collect();
    of_runs.retain(|latencies| !latencies.is_empty());
    if of_runs.is_empty() {
        return None;
    }
    of_runs.iter_mut().for_each(|latencies| latencies.sort_unstable());
    let means: Vec<f64> = of_runs.iter().filter_map(|l| average(l)).collect();
    let over = |(name, q): (&'static str, u64)| {
        (name, mean(&of_runs.iter().map(|l| quantile(l, q) as f64).collect::<Vec<_>>()))
    };
    let mut all = of_runs.concat();
    all.sort_unstable();
    let [p50, p90, p99, p999] = QUANTILES.map(|(_, q)| quantile(&all, q));
    let max = quantile(&all, 100_000);
    let over_seeds = QUANTILES.into_iter().map(over).collect();
    Some(Latency { chunks: all.len(), mean: mean(&means), p50, p90, p99, p999, max, over_seeds })
}

fn counters(runs: &[Run]) -> BTreeMap<&'static str, Mean> {
    let names = runs.iter().flat_map(|r| r.outcome.counters.iter().map(|(name, _)| *name));
    let of = |name| mean(&runs.iter().map(|r| r.outcome.counter(name) as f64).collect::<Vec<_>>());
    names.map(|name| (name, of(name))).collect()
}

fn seed(scenario: &Scenario, run: &Run) -> Seed {
    Seed {
        seed: run.seed,
        trace: format!("{:016x}", run.outcome.trace),
        done: run.outcome.done.len(),
        in_flight: run.outcome.pending.len(),
        events: run.outcome.events,
        mean_ns: average(&run.outcome.latencies_ns(scenario)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run::tests::stubbed;

    #[test]
    fn figures_are_what_the_runs_gave() {
        let figures = Figures::of(&stubbed(&["warm_up=10us"], 3, 1).unwrap()[0]);
        assert_eq!((figures.done, figures.in_flight, figures.events), (300, 3, 300));
        let latency = figures.latency_ns.unwrap();
        // Chunks 10 to 99 of each seed: 11,000 to 100,000 ns, and the seed.
        assert_eq!((latency.chunks, latency.p50, latency.max), (270, 55_003, 100_003));
        assert!((latency.mean.mean - 55_502.0).abs() < 1e-6 && latency.mean.runs == 3);
        // Students t of 1, 2, 3.
        assert!((latency.mean.high - latency.mean.mean - 2.4843).abs() < 1e-3);
        assert_eq!(latency.over_seeds["p99"].mean, 100_002.0);
        assert_eq!(figures.counters["rounds"].mean, 200.0);
        assert_eq!(figures.seeds[1].trace, format!("{:016x}", 2 ^ 1_000));
    }

    #[test]
    fn no_chunk_is_no_figure() {
        let figures = Figures::of(&stubbed(&["warm_up=9ms"], 2, 1).unwrap()[0]);
        assert!(figures.latency_ns.is_none() && figures.done == 200);
    }
}
