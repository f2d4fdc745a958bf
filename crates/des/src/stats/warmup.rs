//! Where a run stops warming up.
//!
//! Owns: the MSER-5 rule (White 1997, "An effective truncation heuristic for bias reduction in simulation output",
//! Simulation 69(6); in batches of five: Spratt 1998, White, Cobb and Spratt 2000). Never: cuts; it says where to.
//! Invariant: a point in the last half is refused, for then the run was too short to know.

use serde::Serialize;
use std::fmt;

/// Values per batch.
const BATCH: usize = 5;
/// The statistic of so few batches at the end is chance alone.
const BATCHES_LEFT: usize = 5;

/// How much of the beginning to leave out.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Truncation {
    /// Values to leave out, a multiple of five.
    pub values: usize,
    /// All values.
    pub of: usize,
    /// Mean of the rest.
    pub mean: f64,
}

/// Why no point was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WarmUpError {
    /// The best point is in the last half: run longer.
    TooShort {
        /// Values given.
        values: usize,
    },
    /// Fewer than 100 values.
    TooFew {
        /// Values given.
        values: usize,
    },
}

impl fmt::Display for WarmUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WarmUpError::TooShort { values } => write!(f, "no steady state within {values} values: run longer"),
            WarmUpError::TooFew { values } => write!(f, "{values} values are too few to see a warm-up"),
        }
    }
}

impl std::error::Error for WarmUpError {}

/// The truncation that makes the standard error of the rest's mean least.
///
/// # Errors
/// [`WarmUpError`]: run longer, or take finer buckets.
pub fn mser5(values: &[f64]) -> Result<Truncation, WarmUpError> {
    if values.len() < 100 {
        return Err(WarmUpError::TooFew { values: values.len() });
    }
    let batches: Vec<f64> = values.chunks_exact(BATCH).map(|b| b.iter().sum::<f64>() / BATCH as f64).collect();
    // From the end on: mean and squares of batches[d..] (Welford), so that each d costs one step.
    let (mut mean, mut squares) = (0.0, 0.0);
    let mut best = (f64::INFINITY, 0, 0.0);
    for (d, value) in batches.iter().enumerate().rev() {
        let count = (batches.len() - d) as f64;
        let off = value - mean;
        mean += off / count;
        squares += off * (value - mean);
        let statistic = squares / (count * count);
        if batches.len() - d >= BATCHES_LEFT && statistic <= best.0 {
            best = (statistic, d, mean);
        }
    }
    let (_, d, mean) = best;
    if d * 2 > batches.len() {
        return Err(WarmUpError::TooShort { values: values.len() });
    }
    Ok(Truncation { values: d * BATCH, of: values.len(), mean })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    /// A start-up that dies away over `decay` values, then noise around 100.
    fn run(start: f64, decay: usize, count: usize, seed: u64) -> Vec<f64> {
        let mut chance = Chance::new(seed);
        let bias = |i: usize| if i < decay { start * (decay - i) as f64 / decay as f64 } else { 0.0 };
        (0..count).map(|i| 80.0 + bias(i) + chance.below(41) as f64).collect()
    }

    #[test]
    fn a_start_up_is_cut_and_a_steady_run_is_left() {
        for seed in 0..20 {
            let cut = mser5(&run(300.0, 200, 2_000, seed)).unwrap();
            assert!((150..=400).contains(&cut.values), "{cut:?}");
            assert!((cut.mean - 100.0).abs() < 3.0, "{cut:?}");
            let steady = mser5(&run(0.0, 0, 2_000, seed)).unwrap();
            assert!(steady.values <= 1_000 && (steady.mean - 100.0).abs() < 3.0, "{steady:?}");
        }
    }

    #[test]
    fn a_run_that_never_settles_is_refused() {
        let rising: Vec<f64> = (0..500).map(f64::from).collect();
        assert_eq!(mser5(&rising), Err(WarmUpError::TooShort { values: 500 }));
        assert_eq!(mser5(&run(300.0, 900, 1_000, 1)), Err(WarmUpError::TooShort { values: 1_000 }));
        assert_eq!(mser5(&[1.0; 99]), Err(WarmUpError::TooFew { values: 99 }));
    }

    #[test]
    fn model_the_rule_as_it_is_written() {
        for seed in 0..30 {
            let values = run(100.0, 50, 300, seed);
            let batches: Vec<f64> = values.chunks_exact(5).map(|b| b.iter().sum::<f64>() / 5.0).collect();
            let statistic = |d: usize| {
                let rest = &batches[d..];
                let mean = rest.iter().sum::<f64>() / rest.len() as f64;
                rest.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (rest.len() * rest.len()) as f64
            };
            let naive = (0..=batches.len() - 5).min_by(|a, b| statistic(*a).total_cmp(&statistic(*b))).unwrap();
            match mser5(&values) {
                Ok(cut) => assert_eq!(cut.values, naive * 5),
                Err(_) => assert!(naive * 2 > batches.len()),
            }
        }
    }
}
