//! Honest numbers from noisy runs: means within a round, medians over rounds, intervals without assumptions.
//!
//! Owns: the arithmetic. Never: drops a sample.
//! Invariant: an interval contains its median, and ratios are made within one round before anything is summarised.

use serde::Serialize;

/// A median over rounds with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Median {
    /// The middle of the rounds.
    pub median: f64,
    /// Lower end of the interval that covers the true median with at least 95 % (the whole range when there
    /// are fewer than six rounds).
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Rounds.
    pub rounds: usize,
}

/// Arithmetic mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The median of `values` with the order-statistic interval: no distribution is assumed.
///
/// # Panics
/// When there are no values.
pub fn median(values: &[f64]) -> Median {
    assert!(!values.is_empty(), "a median of nothing");
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let middle = if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
    let skip = interval_skip(n);
    Median { median: middle, low: sorted[skip], high: sorted[n - 1 - skip], rounds: n }
}

/// The median of `numerator[i] / denominator[i]`: both come from the same round, so slow spells cancel.
pub fn median_ratio(numerator: &[f64], denominator: &[f64]) -> Median {
    assert_eq!(numerator.len(), denominator.len(), "ratios are made round by round");
    let ratios: Vec<f64> = numerator.iter().zip(denominator).map(|(a, b)| a / b).collect();
    median(&ratios)
}

/// The `p`-quantile (0 to 1) by nearest rank; `values` need not be sorted.
pub fn quantile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n => sorted[((p * n as f64).ceil() as usize).clamp(1, n) - 1],
    }
}

/// How many of the lowest and of the highest of `n` samples lie outside the 95 % interval of the median: the largest `k`
/// for which a fair coin thrown `n` times shows at most `k` heads with a chance of at most 2.5 % (0 if there is none).
fn interval_skip(n: usize) -> usize {
    let mut term = 0.5f64.powi(n as i32);
    let mut below = 0.0;
    for k in 0..n / 2 {
        below += term;
        if below > 0.025 {
            return k.saturating_sub(1);
        }
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    (n - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_intervals() {
        let m = median(&[3.0, 1.0, 2.0]);
        assert_eq!((m.median, m.low, m.high, m.rounds), (2.0, 1.0, 3.0, 3));
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        let m = median(&twenty);
        // The textbook interval of 20 samples: from the 6th to the 15th.
        assert_eq!((m.median, m.low, m.high), (10.5, 6.0, 15.0));
        assert_eq!(median(&[7.0]).median, 7.0);
    }

    #[test]
    fn ratios_pair_rounds() {
        let m = median_ratio(&[2.0, 20.0, 200.0], &[1.0, 10.0, 100.0]);
        assert_eq!((m.median, m.low, m.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn quantiles_by_nearest_rank() {
        let v: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            (quantile(&v, 0.5), quantile(&v, 0.99), quantile(&v, 1.0), quantile(&[], 0.5)),
            (50.0, 99.0, 100.0, 0.0)
        );
        assert_eq!(mean(&v), 50.5);
    }
}
