//! Where the figures of a run begin.
//!
//! Owns: the choice between what was set, what was given and what MSER-5 finds. Never: cuts without saying so.
//! Invariant: the runs of a configuration are cut at one time, by the creation of chunks, so that slow ones stay in.

use super::run::{Results, Run};
use crate::exit::{ExitCode, fail};
use anyhow::Result;
use segue_models::stats::mser5;
use segue_types::{Nanos, parse_duration_ns};
use serde::Serialize;
use std::str::FromStr;

/// What `--warm-up` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Find it.
    Auto,
    /// This long, nanoseconds.
    Given(Nanos),
}

impl FromStr for Ask {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Ask, &'static str> {
        match text {
            "auto" => Ok(Ask::Auto),
            _ => parse_duration_ns(text).map(Ask::Given).map_err(|_| "auto, or a duration, for example 10ms"),
        }
    }
}

/// Where a cut came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    /// The setting `warm_up`.
    Setting,
    /// `--warm-up DURATION`.
    Given,
    /// MSER-5 on the n-th chunk's latency, averaged over seeds.
    Mser5,
    /// MSER-5 found none; the setting holds.
    NotFound,
}

/// The cut of a configuration.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WarmUp {
    /// Chunks created before this are not in latencies and throughput, nanoseconds.
    pub ns: Nanos,
    pub from: From,
    /// Why none was found.
    pub error: Option<String>,
}

/// Cuts a configuration's runs.
///
/// # Errors
/// When the given time leaves nothing of the run.
pub fn cut(results: &mut Results, ask: Option<Ask>) -> Result<()> {
    let scenario = &mut results.configuration.scenario;
    let warm_up = match ask {
        None => WarmUp { ns: scenario.warm_up_ns, from: From::Setting, error: None },
        Some(Ask::Given(ns)) if ns < scenario.run_ns => WarmUp { ns, from: From::Given, error: None },
        Some(Ask::Given(_)) => {
            return Err(fail(ExitCode::Misuse, "--warm-up takes the whole run; give less, or --set run=DURATION"));
        }
        Some(Ask::Auto) => found(&results.runs, scenario.warm_up_ns),
    };
    scenario.warm_up_ns = warm_up.ns;
    results.warm_up = warm_up;
    Ok(())
}

fn found(runs: &[Run], otherwise_ns: Nanos) -> WarmUp {
    let of_runs: Vec<Vec<(Nanos, Nanos)>> = runs.iter().map(by_creation).collect();
    let shortest = of_runs.iter().map(Vec::len).min().unwrap_or(0);
    // Averaging the n-th chunk over seeds (Welch 1983) leaves less noise for a start-up to hide in.
    let nth = |n: usize| of_runs.iter().map(|run| run[n].1 as f64).sum::<f64>() / of_runs.len() as f64;
    match mser5(&(0..shortest).map(nth).collect::<Vec<_>>()) {
        Ok(truncation) => {
            let ns = of_runs.iter().map(|run| run[truncation.values].0).max().unwrap_or(0);
            WarmUp { ns, from: From::Mser5, error: None }
        }
        Err(error) => WarmUp { ns: otherwise_ns, from: From::NotFound, error: Some(error.to_string()) },
    }
}

/// Written chunks' creation and latency, by creation.
fn by_creation(run: &Run) -> Vec<(Nanos, Nanos)> {
    let mut chunks: Vec<(Nanos, Nanos)> = run.outcome.done.iter().map(|d| (d.chunk.created_ns, d.latency_ns)).collect();
    // Stable: chunks of one moment stay in the order of completion.
    chunks.sort_by_key(|(created, _)| *created);
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run::tests::stubbed;

    #[test]
    fn asked_for_as_people_write_it() {
        assert_eq!("auto".parse(), Ok(Ask::Auto));
        assert_eq!("2ms".parse(), Ok(Ask::Given(2_000_000)));
        assert!("soon".parse::<Ask>().is_err());
    }

    #[test]
    fn a_start_up_is_found_and_growth_is_not_taken_for_one() {
        let cut_of = |settings: &[&str], ask| {
            let mut results = stubbed(settings, 3, 1).unwrap().remove(0);
            cut(&mut results, ask).map(|()| results.warm_up)
        };
        // The stub's latencies grow with each chunk, without end: no steady state.
        let growing = cut_of(&["warm_up=3us"], Some(Ask::Auto)).unwrap();
        assert_eq!((growing.ns, growing.from), (3_000, From::NotFound));
        assert!(growing.error.unwrap().contains("run longer"));
        // Slow for the first 30 of 100 chunks, one created each microsecond.
        let settling = cut_of(&["takes=0ns"], Some(Ask::Auto)).unwrap();
        assert_eq!((settling.ns, settling.from), (30_000, From::Mser5));
        assert_eq!(cut_of(&["warm_up=3us"], None).unwrap().ns, 3_000);
        assert_eq!(cut_of(&[], Some(Ask::Given(7))).unwrap().ns, 7);
        assert!(cut_of(&[], Some(Ask::Given(10_000_000))).is_err());
    }
}
