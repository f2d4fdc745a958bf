//! Means over independent runs with their intervals.
//!
//! Owns: Student's t and the arithmetic of pairs. Never: drops a run.
//! Invariant: an interval contains its mean.

use serde::Serialize;

/// A mean over runs of different seeds with its interval (Student's t; the width is 0 for one run). 95 % unless it was
/// made by [`mean_at`].
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

impl Mean {
    /// Whether the interval contains `value`.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Half the width of the interval.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// How sure an interval is: in this share of experiments it contains the truth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub enum Confidence {
    /// 95 %.
    #[default]
    #[serde(rename = "0.95")]
    P95,
    /// 99 %.
    #[serde(rename = "0.99")]
    P99,
    /// 99.9 %.
    #[serde(rename = "0.999")]
    P999,
}

/// Two-sided quantiles of Student's t for 1 to 30 degrees of freedom: 95 %, 99 %, 99.9 %.
const T: [[f64; 30]; 3] = [
    [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ],
    [
        63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
        2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
    ],
    [
        636.619, 31.599, 12.924, 8.610, 6.869, 5.959, 5.408, 5.041, 4.781, 4.587, 4.437, 4.318, 4.221, 4.140, 4.073,
        4.015, 3.965, 3.922, 3.883, 3.850, 3.819, 3.792, 3.768, 3.745, 3.725, 3.707, 3.690, 3.674, 3.659, 3.646,
    ],
];
/// The same of the normal distribution.
const Z: [f64; 3] = [1.959964, 2.575829, 3.290527];

impl Confidence {
    /// The share, 0..1.
    pub const fn share(self) -> f64 {
        [0.95, 0.99, 0.999][self as usize]
    }

    /// The two-sided quantile of Student's t. Above 30 degrees of freedom by Cornish and Fisher's expansion, within
    /// 0.0001.
    ///
    /// # Panics
    /// Without a degree of freedom.
    pub fn t(self, degrees: usize) -> f64 {
        assert!(degrees > 0, "one value has no spread");
        if let Some(t) = T[self as usize].get(degrees - 1) {
            return *t;
        }
        let (z, v) = (Z[self as usize], degrees as f64);
        let (z3, z5) = (z * z * z, z * z * z * z * z);
        let third = 3.0 * z5 * z * z + 19.0 * z5 + 17.0 * z3 - 15.0 * z;
        z + (z3 + z) / (4.0 * v) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v) + third / (384.0 * v * v * v)
    }
}

/// The mean of `values` with its 95 % interval.
///
/// # Panics
/// When there are none.
pub fn mean(values: &[f64]) -> Mean {
    mean_at(Confidence::P95, values)
}

/// The mean of `values` with an interval of this confidence.
///
/// # Panics
/// When there are none.
pub fn mean_at(confidence: Confidence, values: &[f64]) -> Mean {
    assert!(!values.is_empty(), "a mean of nothing");
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let half = match values.len() {
        1 => 0.0,
        runs => {
            let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
            confidence.t(runs - 1) * (variance / n).sqrt()
        }
    };
    Mean { mean, low: mean - half, high: mean + half, runs: values.len() }
}

/// The mean of `numerator[i] / denominator[i]`: both come from the same seed.
///
/// # Panics
/// When the lengths differ or are 0.
pub fn mean_ratio(numerator: &[f64], denominator: &[f64]) -> Mean {
    pairs(numerator, denominator, |a, b| a / b)
}

/// The mean of `left[i] - right[i]`: both come from the same seed, so what a seed does to both falls out.
///
/// # Panics
/// When the lengths differ or are 0.
pub fn mean_difference(left: &[f64], right: &[f64]) -> Mean {
    pairs(left, right, |a, b| a - b)
}

fn pairs(left: &[f64], right: &[f64], of: fn(f64, f64) -> f64) -> Mean {
    assert_eq!(left.len(), right.len(), "pairs are made seed by seed");
    mean(&left.iter().zip(right).map(|(a, b)| of(*a, *b)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chance, Dist};

    #[test]
    fn intervals_are_students() {
        let m = mean(&[1.0, 2.0, 3.0]);
        assert_eq!(m.mean, 2.0);
        // t(2) = 4.303, s / sqrt(3) = 0.57735.
        assert!((m.high - 2.0 - 2.4843).abs() < 1e-3 && (m.low + m.high - 4.0).abs() < 1e-12);
        assert_eq!(mean(&[7.0]), Mean { mean: 7.0, low: 7.0, high: 7.0, runs: 1 });
        assert_eq!(mean_ratio(&[2.0, 30.0], &[1.0, 10.0]).mean, 2.5);
        assert_eq!(mean_difference(&[2.0, 30.0], &[1.0, 10.0]).mean, 10.5);
        assert!(mean(&[1.0; 99]).high == 1.0);
    }

    #[test]
    fn quantiles_of_t_go_on_beyond_the_table() {
        // Known values at 31, 60 and 100 degrees of freedom.
        let known = [
            (Confidence::P95, [2.0395, 2.0003, 1.9840]),
            (Confidence::P99, [2.7440, 2.6603, 2.6259]),
            (Confidence::P999, [3.6335, 3.4602, 3.3905]),
        ];
        for (confidence, values) in known {
            for (degrees, t) in [31, 60, 100].into_iter().zip(values) {
                assert!((confidence.t(degrees) - t).abs() < 2e-4, "{confidence:?}, {degrees}");
            }
            assert!((1..200).all(|d| confidence.t(d) > confidence.t(d + 1)), "{confidence:?}");
        }
    }

    #[test]
    fn intervals_contain_the_truth_as_often_as_they_say() {
        let mut chance = Chance::new(9);
        let normal = Dist::Normal { mean: 10_000, deviation: 1_000 };
        for confidence in [Confidence::P95, Confidence::P99] {
            let hits = (0..2_000).filter(|_| {
                let runs: Vec<f64> = (0..8).map(|_| normal.draw(&mut chance) as f64).collect();
                mean_at(confidence, &runs).contains(10_000.0)
            });
            let share = hits.count() as f64 / 2_000.0;
            assert!((share - confidence.share()).abs() < 0.015, "{confidence:?}: {share}");
        }
    }
}
