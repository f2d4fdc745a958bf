//! Quantiles of values that are all kept.
//!
//! Owns: the sorted values. Never: interpolates; a quantile is one of the values.
//! Invariant: no error; a million values take 8 MB. [`super::Hdr`] takes less and says its error.

use serde::{Serialize, Serializer};

/// The median, in parts per million.
pub const P50: u32 = 500_000;
/// 90 %, in parts per million.
pub const P90: u32 = 900_000;
/// 95 %, in parts per million.
pub const P95: u32 = 950_000;
/// 99 %, in parts per million.
pub const P99: u32 = 990_000;
/// 99.9 %, in parts per million.
pub const P999: u32 = 999_000;

/// One million parts.
pub(crate) const WHOLE_PPM: u32 = 1_000_000;

/// Values in ascending order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exact {
    sorted: Vec<u64>,
}

/// The usual figures of latencies, nanoseconds; all 0 when there are none.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Quantiles {
    /// Values.
    pub count: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Half are at most this.
    pub p50_ns: u64,
    /// 90 % are at most this.
    pub p90_ns: u64,
    /// 95 % are at most this.
    pub p95_ns: u64,
    /// 99 % are at most this.
    pub p99_ns: u64,
    /// 99.9 % are at most this.
    pub p999_ns: u64,
    /// The largest.
    pub max_ns: u64,
}

impl Quantiles {
    /// The figures of values of which these three and a quantile, by parts per million, are known.
    pub(super) fn of(count: u64, mean_ns: f64, max_ns: u64, quantile: impl Fn(u32) -> u64) -> Quantiles {
        Quantiles {
            count,
            mean_ns,
            p50_ns: quantile(P50),
            p90_ns: quantile(P90),
            p95_ns: quantile(P95),
            p99_ns: quantile(P99),
            p999_ns: quantile(P999),
            max_ns,
        }
    }
}

impl Exact {
    /// Takes all the values.
    pub fn new(mut values: Vec<u64>) -> Exact {
        values.sort_unstable();
        Exact { sorted: values }
    }

    /// The values, ascending.
    pub fn values(&self) -> &[u64] {
        &self.sorted
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.sorted.len() as u64
    }

    /// Their mean; 0 of none.
    pub fn mean(&self) -> f64 {
        let sum: u128 = self.sorted.iter().map(|v| u128::from(*v)).sum();
        sum as f64 / self.sorted.len().max(1) as f64
    }

    /// The least value that at least `ppm` parts per million of the values do not exceed (nearest rank); 0 of none.
    ///
    /// # Panics
    /// When `ppm` is over a million.
    pub fn quantile(&self, ppm: u32) -> u64 {
        assert!(ppm <= WHOLE_PPM, "{ppm} parts of a million");
        let rank = (self.sorted.len() as u128 * u128::from(ppm)).div_ceil(u128::from(WHOLE_PPM)).max(1);
        self.sorted.get(rank as usize - 1).copied().unwrap_or(0)
    }

    /// The largest; 0 of none.
    pub fn max(&self) -> u64 {
        self.sorted.last().copied().unwrap_or(0)
    }

    /// The share of values of at least `threshold`, 0..=1; 0 of none.
    pub fn share_from(&self, threshold: u64) -> f64 {
        let below = self.sorted.partition_point(|v| *v < threshold);
        (self.sorted.len() - below) as f64 / self.sorted.len().max(1) as f64
    }

    /// The usual figures.
    pub fn figures(&self) -> Quantiles {
        Quantiles::of(self.count(), self.mean(), self.max(), |ppm| self.quantile(ppm))
    }
}

impl Serialize for Exact {
    /// As [`Quantiles`].
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.figures().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    #[test]
    fn known_values() {
        let hundred = Exact::new((1..=100).rev().collect());
        for (ppm, value) in [(0, 1), (10_000, 1), (10_001, 2), (P50, 50), (P99, 99), (P999, 100), (1_000_000, 100)] {
            assert_eq!(hundred.quantile(ppm), value, "{ppm}");
        }
        assert_eq!((hundred.mean(), hundred.share_from(91), hundred.share_from(101)), (50.5, 0.1, 0.0));
        assert_eq!(Exact::new(vec![]).figures(), Quantiles::default());
        assert_eq!(Exact::new(vec![7]).figures().p50_ns, 7);
    }

    #[test]
    fn model_counting_agrees() {
        let mut chance = Chance::new(2);
        for _ in 0..200 {
            let count = chance.between(1, 60);
            let values: Vec<u64> = (0..count).map(|_| chance.below(30)).collect();
            let ppm = chance.below(1_000_001) as u32;
            let enough = |v: &u64| {
                let at_most = values.iter().filter(|w| *w <= v).count() as u64;
                at_most * 1_000_000 >= count * u64::from(ppm)
            };
            let expected = values.iter().copied().filter(enough).min().expect("the largest is enough");
            assert_eq!(Exact::new(values).quantile(ppm), expected);
        }
    }
}
