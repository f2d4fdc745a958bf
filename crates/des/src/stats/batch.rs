//! An interval from one long run, by means of batches that do not overlap.
//!
//! Owns: the batching and the check that it was coarse enough. Never: cuts a warm-up; see [`super::mser5`].
//! Invariant: every batch has the same length; at most one batch's worth of values at the end is left out, and counted.

use super::mean::{Mean, mean};
use serde::Serialize;

/// The means of batches.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Batches {
    /// Their mean and its 95 % interval; `runs` is the number of batches.
    pub mean: Mean,
    /// Correlation of neighbouring batch means, -1..=1. Well above 0, the batches are too short and the interval too
    /// narrow.
    pub neighbours: f64,
    /// Values at the end that did not fill a batch.
    pub left_out: usize,
}

/// Divides a stationary sequence into `batches` batches.
///
/// # Panics
/// With fewer than two batches or fewer values than batches.
pub fn batch_means(values: &[f64], batches: usize) -> Batches {
    assert!(batches >= 2 && values.len() >= batches, "{} values in {batches} batches", values.len());
    let size = values.len() / batches;
    let means: Vec<f64> =
        values.chunks_exact(size).take(batches).map(|batch| batch.iter().sum::<f64>() / size as f64).collect();
    let all = mean(&means);
    let off: Vec<f64> = means.iter().map(|m| m - all.mean).collect();
    let spread: f64 = off.iter().map(|o| o * o).sum();
    let beside: f64 = off.windows(2).map(|w| w[0] * w[1]).sum();
    let neighbours = if spread == 0.0 { 0.0 } else { beside / spread };
    Batches { mean: all, neighbours, left_out: values.len() - size * batches }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    /// Values that remember `keep` of their past: mean 100.
    fn remembering(keep: f64, count: usize, seed: u64) -> Vec<f64> {
        let mut chance = Chance::new(seed);
        let mut value = 100.0;
        let next = |_| {
            value = keep * value + (1.0 - keep) * chance.below(201) as f64;
            value
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn long_batches_make_honest_intervals_and_short_ones_are_noticed() {
        let inside = |count, batches| {
            let hits =
                (0..200).filter(|seed| batch_means(&remembering(0.9, count, *seed), batches).mean.contains(100.0));
            hits.count()
        };
        assert!(inside(6_000, 20) >= 180, "{}", inside(6_000, 20));
        // Batches of two values of a sequence that remembers twenty.
        assert!(inside(6_000, 3_000) < 120, "{}", inside(6_000, 3_000));
        assert!(batch_means(&remembering(0.9, 6_000, 1), 20).neighbours < 0.4);
        assert!(batch_means(&remembering(0.9, 6_000, 1), 3_000).neighbours > 0.7);
    }

    #[test]
    fn what_fills_no_batch_is_counted() {
        let batches = batch_means(&[1.0, 1.0, 3.0, 3.0, 99.0], 2);
        assert_eq!((batches.mean.mean, batches.left_out, batches.mean.runs), (2.0, 1, 2));
        assert_eq!(batch_means(&[5.0; 10], 5).neighbours, 0.0);
    }
}
