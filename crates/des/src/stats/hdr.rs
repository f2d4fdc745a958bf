//! Quantiles of any number of values in bounded memory.
//!
//! Owns: a histogram of growing range. Never: keeps values.
//! Invariant: a quantile is at most [`Hdr::RELATIVE_ERROR`] above or below the exact one; count, mean and maximum are exact.

use super::exact::{Quantiles, WHOLE_PPM};
use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

/// A histogram with three significant digits.
#[derive(Clone, PartialEq, Debug)]
pub struct Hdr {
    histogram: Histogram<u64>,
    sum: u128,
    max: u64,
}

impl Default for Hdr {
    fn default() -> Self {
        Hdr::new()
    }
}

impl Hdr {
    /// The error of a quantile over the exact quantile.
    pub const RELATIVE_ERROR: f64 = 1e-3;

    /// Of nothing.
    pub fn new() -> Hdr {
        Hdr { histogram: Histogram::new(3).expect("three digits are allowed"), sum: 0, max: 0 }
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.histogram.record(value).expect("the range grows by itself");
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Adds all that another has seen.
    pub fn merge(&mut self, other: &Hdr) {
        self.histogram.add(&other.histogram).expect("the range grows by itself");
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Values seen.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Their mean; 0 of none.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count().max(1) as f64
    }

    /// About the least value that at least `ppm` parts per million do not exceed; 0 of none.
    pub fn quantile(&self, ppm: u32) -> u64 {
        assert!(ppm <= WHOLE_PPM, "{ppm} parts of a million");
        self.histogram.value_at_quantile(f64::from(ppm) / f64::from(WHOLE_PPM)).min(self.max)
    }

    /// The largest; 0 of none.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The usual figures.
    pub fn figures(&self) -> Quantiles {
        Quantiles::of(self.count(), self.mean(), self.max, |ppm| self.quantile(ppm))
    }
}

impl Serialize for Hdr {
    /// As [`Quantiles`].
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.figures().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Exact, P50, P90, P95, P99, P999};
    use crate::{Chance, Dist};

    #[test]
    fn model_within_the_stated_error_of_exact_quantiles() {
        let mut chance = Chance::new(6);
        let sizes = Dist::LogUniform { low: 1, high: 1 << 40 };
        let (mut values, mut hdr, mut half) = (Vec::new(), Hdr::new(), Hdr::new());
        for n in 0..50_000 {
            let value = sizes.draw(&mut chance);
            values.push(value);
            if n % 2 == 0 { &mut hdr } else { &mut half }.add(value);
        }
        hdr.merge(&half);
        let exact = Exact::new(values);
        for ppm in [0, 1_000, P50, P90, P95, P99, P999, WHOLE_PPM] {
            let (about, truth) = (hdr.quantile(ppm) as f64, exact.quantile(ppm) as f64);
            assert!((about - truth).abs() <= truth * Hdr::RELATIVE_ERROR, "{ppm}: {about}, not {truth}");
        }
        assert_eq!((hdr.count(), hdr.max()), (exact.count(), exact.max()));
        assert!((hdr.mean() / exact.mean() - 1.0).abs() < 1e-12);
        assert_eq!(Hdr::new().figures(), Quantiles::default());
        // Every value is taken.
        hdr.add(0);
        hdr.add(u64::MAX);
        assert_eq!((hdr.max(), hdr.quantile(0), hdr.count()), (u64::MAX, 0, exact.count() + 2));
    }
}
