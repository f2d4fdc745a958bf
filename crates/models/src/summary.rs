//! Means over seeds with their intervals.
//!
//! Owns: the arithmetic. Never: drops a run.
//! Invariant: an interval contains its mean.

use serde::Serialize;

/// A mean over runs of different seeds with its 95 % interval (Student's t; the width is 0 for one run).
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Runs.
    pub runs: usize,
}

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The mean of `values`.
///
/// # Panics
/// When there are none.
pub fn mean(values: &[f64]) -> Mean {
    assert!(!values.is_empty(), "a mean of nothing");
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let half = match values.len() {
        1 => 0.0,
        runs => {
            let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
            T[(runs - 2).min(T.len() - 1)] * (variance / n).sqrt()
        }
    };
    Mean { mean, low: mean - half, high: mean + half, runs: values.len() }
}

/// The mean of `numerator[i] / denominator[i]`: both come from the same seed.
///
/// # Panics
/// When the lengths differ or are 0.
pub fn mean_ratio(numerator: &[f64], denominator: &[f64]) -> Mean {
    assert_eq!(numerator.len(), denominator.len(), "ratios are made seed by seed");
    mean(&numerator.iter().zip(denominator).map(|(a, b)| a / b).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        let m = mean(&[1.0, 2.0, 3.0]);
        assert_eq!(m.mean, 2.0);
        // t(2) = 4.303, s / sqrt(3) = 0.57735.
        assert!((m.high - 2.0 - 2.4843).abs() < 1e-3 && (m.low + m.high - 4.0).abs() < 1e-12);
        assert_eq!(mean(&[7.0]), Mean { mean: 7.0, low: 7.0, high: 7.0, runs: 1 });
        assert_eq!(mean_ratio(&[2.0, 30.0], &[1.0, 10.0]).mean, 2.5);
        assert!(mean(&[1.0; 99]).high == 1.0);
    }
}
