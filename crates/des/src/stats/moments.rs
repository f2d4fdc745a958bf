//! Count, mean, variance and skew of a stream of numbers.
//!
//! Owns: the running sums (Welford 1962; Chan, Golub and LeVeque 1979 for merging). Never: keeps a value.
//! Invariant: merging two halves gives what the whole gives, but for rounding.

use serde::Serialize;

/// Running moments.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(into = "MomentsRow")]
pub struct Moments {
    count: u64,
    mean: f64,
    /// Sums of the second and third powers of the distance from the mean.
    second: f64,
    third: f64,
    low: f64,
    high: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Moments::new()
    }
}

impl Moments {
    /// Of nothing.
    pub const fn new() -> Moments {
        Moments { count: 0, mean: 0.0, second: 0.0, third: 0.0, low: f64::INFINITY, high: f64::NEG_INFINITY }
    }

    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        let one = Moments { count: 1, mean: value, second: 0.0, third: 0.0, low: value, high: value };
        self.merge(&one);
    }

    /// Adds all that another has seen.
    pub fn merge(&mut self, other: &Moments) {
        if other.count == 0 {
            return;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let n = a + b;
        let apart = other.mean - self.mean;
        self.third += other.third
            + apart * apart * apart * a * b * (a - b) / (n * n)
            + 3.0 * apart * (a * other.second - b * self.second) / n;
        self.second += other.second + apart * apart * a * b / n;
        self.mean += apart * b / n;
        self.count += other.count;
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
    }

    /// Values seen.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 of nothing.
    pub const fn mean(&self) -> f64 {
        self.mean
    }

    /// The variance of what they are a sample of (divisor `count - 1`); 0 of fewer than two.
    pub fn variance(&self) -> f64 {
        if self.count < 2 { 0.0 } else { self.second / (self.count - 1) as f64 }
    }

    /// The square root of the variance.
    pub fn deviation(&self) -> f64 {
        self.variance().sqrt()
    }

    /// The third moment about the mean over the cube of the deviation, both of the sample; 0 when all are equal.
    pub fn skew(&self) -> f64 {
        if self.second == 0.0 {
            return 0.0;
        }
        let n = self.count as f64;
        n.sqrt() * self.third / (self.second * self.second.sqrt())
    }

    /// The least value; `None` of nothing.
    pub fn low(&self) -> Option<f64> {
        (self.count > 0).then_some(self.low)
    }

    /// The largest value; `None` of nothing.
    pub fn high(&self) -> Option<f64> {
        (self.count > 0).then_some(self.high)
    }
}

impl FromIterator<f64> for Moments {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Moments {
        let mut moments = Moments::new();
        values.into_iter().for_each(|value| moments.add(value));
        moments
    }
}

/// [`Moments`] as figures.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MomentsRow {
    /// Values seen.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// Skew.
    pub skew: f64,
    /// Least value.
    pub low: Option<f64>,
    /// Largest value.
    pub high: Option<f64>,
}

impl From<Moments> for MomentsRow {
    fn from(m: Moments) -> MomentsRow {
        let (low, high) = (m.low(), m.high());
        MomentsRow { count: m.count, mean: m.mean, deviation: m.deviation(), skew: m.skew(), low, high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
    }

    #[test]
    fn known_values() {
        let m: Moments = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().collect();
        assert_eq!((m.count(), m.mean(), m.low(), m.high()), (8, 5.0, Some(2.0), Some(9.0)));
        assert!(near(m.variance(), 32.0 / 7.0) && near(m.skew(), 5.25 / 8.0), "{m:?}");
        assert_eq!((Moments::new().low(), Moments::new().variance(), Moments::new().skew()), (None, 0.0, 0.0));
    }

    #[test]
    fn model_two_passes_agree_however_the_values_are_split() {
        let mut chance = Chance::new(4);
        for _ in 0..50 {
            let count = chance.between(2, 300) as usize;
            // Far from 0, where the textbook formula loses its digits.
            let values: Vec<f64> = (0..count).map(|_| 1e9 + chance.exponential(1_000) as f64).collect();
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let power = |p: i32| values.iter().map(|v| (v - mean).powi(p)).sum::<f64>();
            let cut = chance.below(values.len() as u64 + 1) as usize;
            let mut split: Moments = values[..cut].iter().copied().collect();
            split.merge(&values[cut..].iter().copied().collect());
            let whole: Moments = values.iter().copied().collect();
            for m in [split, whole] {
                assert!(near(m.mean(), mean), "{} {mean}", m.mean());
                assert!((m.variance() / (power(2) / (n - 1.0)) - 1.0).abs() < 1e-6);
                let skew = (power(3) / n) / (power(2) / n).powf(1.5);
                assert!((m.skew() - skew).abs() < 1e-5, "{} {skew}", m.skew());
            }
        }
    }
}
