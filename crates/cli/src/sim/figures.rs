//! The figures of a configuration, from all its runs.
//!
//! Owns: which runs and chunks a figure is made of. Never: drops a chunk that was in flight at the end; such are counted.
//! Invariant: finished and pending chunks together are all that arrived.

use super::run::{Results, Run};
use super::warmup::WarmUp;
use segue_models::stats::{Estimate, Exact, Lives, Mean, P50, P90, P99, P999, Quantiles, mean};
use segue_models::storage::Scenario;
use serde::Serialize;
use std::collections::BTreeMap;

/// A configuration's figures. Latencies and throughput are of chunks that came after the warm-up.
#[derive(Serialize, Debug)]
pub struct Figures {
    pub warm_up: WarmUp,
    /// Chunks written, of all runs.
    pub done: u64,
    /// Chunks not written when their run ended, of all runs.
    pub in_flight: u64,
    /// Latencies; `None` when no chunk that counts was written.
    pub latency: Option<Latency>,
    /// Users' data (one copy), bytes per second.
    pub bytes_per_s: Mean,
    /// Events of all runs.
    pub events: u64,
    /// Events per second of wall time of one thread, and of its processor time.
    pub events_per_s: f64,
    pub events_per_cpu_s: f64,
    /// The protocol's own counts per run.
    pub counters: BTreeMap<&'static str, Mean>,
    /// Each seed.
    pub seeds: Vec<Seed>,
}

/// Latencies, nanoseconds, of chunks that came after the warm-up.
#[derive(Serialize, Debug)]
pub struct Latency {
    /// Mean of the written chunks, over the seeds' means.
    pub mean_ns: Mean,
    /// Mean with the chunks in flight accounted for (Kaplan and Meier), over the seeds' means.
    pub estimate_mean_ns: Mean,
    /// Written chunks of all runs together.
    pub naive: Quantiles,
    /// With the chunks in flight accounted for, all runs together.
    pub estimate: Estimate,
    /// Chunks that count and were in flight, and the age of the oldest.
    pub in_flight: u64,
    pub oldest_in_flight_ns: u64,
    /// The seeds' own quantiles of written chunks, summarised over seeds.
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
    /// Of written chunks after the warm-up.
    pub mean_ns: Option<f64>,
    pub wall_s: f64,
    pub cpu_s: f64,
}

impl Figures {
    /// Of all runs of a configuration.
    pub fn of(results: &Results) -> Figures {
        let (scenario, runs) = (&results.configuration.scenario, &results.runs);
        let events = runs.iter().map(|r| r.outcome.events).sum();
        let wall_s: f64 = runs.iter().map(|r| r.wall_s).sum();
        let cpu_s: f64 = runs.iter().map(|r| r.cpu_s).sum();
        let rates: Vec<f64> = runs.iter().map(|r| r.outcome.bytes_per_s(scenario)).collect();
        Figures {
            warm_up: results.warm_up.clone(),
            done: runs.iter().map(|r| r.outcome.done.len() as u64).sum(),
            in_flight: runs.iter().map(|r| r.outcome.pending.len() as u64).sum(),
            latency: latency(scenario, runs),
            bytes_per_s: mean(&rates),
            events,
            events_per_s: events as f64 / wall_s.max(1e-9),
            events_per_cpu_s: events as f64 / cpu_s.max(1e-9),
            counters: counters(runs),
            seeds: runs.iter().map(|run| seed(scenario, run)).collect(),
        }
    }
}

/// Durations and ages of a run's chunks after the warm-up.
fn lives(scenario: &Scenario, run: &Run) -> Lives {
    Lives { finished_ns: run.outcome.latencies_ns(scenario), in_flight_ns: run.outcome.pending_ns(scenario) }
}

fn latency(scenario: &Scenario, runs: &[Run]) -> Option<Latency> {
    let mut of_runs: Vec<Lives> = runs.iter().map(|run| lives(scenario, run)).collect();
    of_runs.retain(|lives| !lives.finished_ns.is_empty());
    if of_runs.is_empty() {
        return None;
    }
    let exact: Vec<Exact> = of_runs.iter().map(|lives| Exact::new(lives.finished_ns.clone())).collect();
    let over = |of: &dyn Fn(&Exact) -> f64| mean(&exact.iter().map(of).collect::<Vec<_>>());
    let quantile = |(name, ppm)| (name, over(&|e| e.quantile(ppm) as f64));
    let estimates: Vec<f64> = of_runs.iter().map(|lives| lives.survival().mean().0).collect();
    let mut all = Lives::default();
    of_runs.iter().for_each(|lives| all.merge(lives));
    let report = all.report();
    Some(Latency {
        mean_ns: over(&Exact::mean),
        estimate_mean_ns: mean(&estimates),
        naive: report.naive,
        estimate: report.estimate,
        in_flight: report.in_flight,
        oldest_in_flight_ns: report.oldest_ns,
        over_seeds: [("p50_ns", P50), ("p90_ns", P90), ("p99_ns", P99), ("p999_ns", P999)]
            .into_iter()
            .map(quantile)
            .chain([("max_ns", over(&|e| e.max() as f64))])
            .collect(),
    })
}

fn counters(runs: &[Run]) -> BTreeMap<&'static str, Mean> {
    let names = runs.iter().flat_map(|r| r.outcome.counters.iter().map(|(name, _)| *name));
    let of = |name| mean(&runs.iter().map(|r| r.outcome.counter(name) as f64).collect::<Vec<_>>());
    names.map(|name| (name, of(name))).collect()
}

fn seed(scenario: &Scenario, run: &Run) -> Seed {
    let exact = Exact::new(run.outcome.latencies_ns(scenario));
    Seed {
        seed: run.seed,
        trace: format!("{:016x}", run.outcome.trace),
        done: run.outcome.done.len(),
        in_flight: run.outcome.pending.len(),
        events: run.outcome.events,
        mean_ns: (exact.count() > 0).then(|| exact.mean()),
        wall_s: run.wall_s,
        cpu_s: run.cpu_s,
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
        let latency = figures.latency.unwrap();
        // Chunks 10 to 99 of each seed: 11,000 to 100,000 ns, and the seed.
        assert_eq!((latency.naive.count, latency.naive.p50_ns, latency.naive.max_ns), (270, 55_003, 100_003));
        assert!((latency.mean_ns.mean - 55_502.0).abs() < 1e-6 && latency.mean_ns.runs == 3);
        // Students t of 1, 2, 3.
        assert!((latency.mean_ns.high - latency.mean_ns.mean - 2.4843).abs() < 1e-3);
        assert_eq!(latency.over_seeds["p99_ns"].mean, 100_002.0);
        assert_eq!(figures.counters["rounds"].mean, 200.0);
        assert_eq!(figures.seeds[1].trace, format!("{:016x}", 2 ^ 1_000));
    }

    #[test]
    fn chunks_in_flight_move_the_estimate_and_not_the_naive_figure() {
        let latency = Figures::of(&stubbed(&["age=1ms"], 2, 1).unwrap()[0]).latency.unwrap();
        assert_eq!((latency.in_flight, latency.oldest_in_flight_ns), (2, 1_000_000));
        // One of 101 is older than any that was written.
        let estimate = (100.0 * latency.mean_ns.mean + 1e6) / 101.0;
        assert!((latency.estimate_mean_ns.mean - estimate).abs() < 1.0, "{latency:?}");
        assert!(latency.estimate.mean_is_bound && latency.estimate.p999_ns.is_none());
        assert_eq!(latency.naive.p999_ns, 100_002);
    }

    #[test]
    fn no_chunk_is_no_figure() {
        let figures = Figures::of(&stubbed(&["warm_up=9ms"], 2, 1).unwrap()[0]);
        assert!(figures.latency.is_none() && figures.done == 200);
    }
}
