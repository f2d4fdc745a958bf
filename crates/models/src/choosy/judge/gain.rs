//! Gains of one entrant over another, with intervals.
//!
//! Owns: the pairing by seed. Never: a run.
//! Invariant: an interval contains its gain; equal entrants gain exactly nothing.

use super::trial::{Run, Sample};
use crate::summary::mean;
use segue_des::stats::P99;
use serde::Serialize;

/// By how much a figure is lower than the other entrant's, percent, with its 95 % interval over seeds (Student's t).
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Gain {
    /// Percent: 7.0 means 7 % lower.
    pub gain: f64,
    /// Lower end of the interval.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
    /// Seeds.
    pub seeds: usize,
}

/// A figure that gains are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// The mean latency.
    Mean,
    /// The 99th percentile.
    P99,
    /// The slowest chunk.
    Max,
}

impl Figure {
    fn of(self, sample: &Sample) -> f64 {
        let latencies_ns = &sample.latencies_ns;
        match self {
            Figure::Mean => latencies_ns.mean(),
            Figure::P99 => latencies_ns.quantile(P99) as f64,
            Figure::Max => latencies_ns.max() as f64,
        }
    }
}

/// Gains seed by seed, percent; a seed whose base has no chunk gives none.
fn gains(figure: Figure, base: &[Run], of: &[Run], span: usize) -> Vec<f64> {
    assert_eq!(base.len(), of.len(), "gains are made seed by seed");
    let pairs = base.iter().zip(of).map(|(b, o)| (&b.samples[span], &o.samples[span]));
    let known = pairs.filter(|(b, o)| b.latencies_ns.count() > 0 && o.latencies_ns.count() > 0);
    known.map(|(b, o)| 100.0 * (1.0 - figure.of(o) / figure.of(b))).collect()
}

fn over_seeds(gains: &[f64]) -> Gain {
    let mean = mean(gains);
    Gain { gain: mean.mean, lo: mean.low, hi: mean.high, seeds: mean.runs }
}

/// How much lower `figure` of a span is in `of` than in `base`; both hold the runs of the same seeds in the same order.
///
/// # Panics
/// When the numbers of runs differ, or no seed has a chunk in the span.
pub fn cut(figure: Figure, base: &[Run], of: &[Run], span: usize) -> Gain {
    over_seeds(&gains(figure, base, of, span))
}

/// How much lower the mean latency of a span is in `of` than in `base`.
///
/// # Panics
/// As [`cut`].
pub fn gain(base: &[Run], of: &[Run], span: usize) -> Gain {
    cut(Figure::Mean, base, of, span)
}

/// The mean over several trials of the gains of one seed, and its interval over seeds: `(base, of, span)` for each trial.
///
/// # Panics
/// When there is no trial, a trial has another number of seeds, or a seed has no chunk.
pub fn average(figure: Figure, trials: &[(&[Run], &[Run], usize)]) -> Gain {
    let all: Vec<Vec<f64>> = trials.iter().map(|(base, of, span)| gains(figure, base, of, *span)).collect();
    let seeds = all.first().map_or(0, Vec::len);
    assert!(all.iter().all(|one| one.len() == seeds), "every trial has every seed");
    let of_seed = |n: usize| all.iter().map(|one| one[n]).sum::<f64>() / all.len() as f64;
    over_seeds(&(0..seeds).map(of_seed).collect::<Vec<_>>())
}
