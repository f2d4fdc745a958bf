//! Distributions of sizes and times, drawn in integers.
//!
//! Owns: how each is drawn. Never: asks the platform for a logarithm, a power or a float.
//! Invariant: one stream and one distribution give one sequence, on every machine and build.

use crate::Chance;
use serde::Serialize;
use std::fmt;

/// A distribution of whole numbers (nanoseconds, bytes).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dist {
    /// Always this.
    Constant(u64),
    /// Uniform in `low..=high`.
    Uniform {
        /// Least value.
        low: u64,
        /// Largest value.
        high: u64,
    },
    /// Exponential with this mean, rounded down; at most 40 means.
    Exponential {
        /// Mean.
        mean: u64,
    },
    /// Exponential with one of two means: mostly short, sometimes long. Its variance exceeds the exponential's.
    Hyperexponential {
        /// Mean of the short ones.
        short_mean: u64,
        /// Mean of the long ones.
        long_mean: u64,
        /// How many of 1,000 are long.
        long_permille: u64,
    },
    /// `x` in `low..=high` with a probability in proportion to `1 / x`: as many in 4..8 as in 512..1024.
    LogUniform {
        /// Least value, at least 1.
        low: u64,
        /// Largest value.
        high: u64,
    },
    /// Pareto above `low` with exponent `alpha_permille / 1000`, cut at `high` by drawing again.
    Pareto {
        /// Least value, at least 1.
        low: u64,
        /// Largest value, at least `2 * low`.
        high: u64,
        /// Exponent in thousandths, 100..=100,000: the share above `x` is `(low / x)^alpha`.
        alpha_permille: u64,
    },
    /// Nearly normal (the sum of 12 uniform draws; within 6 deviations), never below 0.
    Normal {
        /// Mean.
        mean: u64,
        /// Standard deviation.
        deviation: u64,
    },
    /// Some values with their weights.
    Weighted(Weighted),
    /// What was measured, given by quantiles.
    Empirical(Empirical),
}

/// Why a distribution cannot be drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DistError {
    /// There is no value, or all weights are 0, or they sum to more than 64 bits.
    NoWeight,
    /// A low end is above its high end, or quantile points do not ascend.
    NotAscending,
    /// Quantile points do not begin at 0 and end at 1,000,000 parts per million.
    NotWhole,
    /// A share, an exponent or a size is out of the range that its field states.
    OutOfRange,
}

impl fmt::Display for DistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DistError::NoWeight => "no value has a weight",
            DistError::NotAscending => "values do not ascend",
            DistError::NotWhole => "quantiles do not span 0 to 1000000 parts per million",
            DistError::OutOfRange => "a parameter is out of its range",
        })
    }
}

impl std::error::Error for DistError {}

impl Dist {
    /// Says whether [`Dist::draw`] may be called.
    ///
    /// # Errors
    /// The parameter's fault.
    pub const fn check(&self) -> Result<(), DistError> {
        let (ascending, in_range) = match *self {
            Dist::Uniform { low, high } => (low <= high, high.wrapping_sub(low) < u64::MAX),
            Dist::LogUniform { low, high } => (low <= high, low >= 1),
            Dist::Hyperexponential { long_permille, .. } => (true, long_permille <= 1_000),
            Dist::Pareto { low, high, alpha_permille } => {
                (low <= high, low >= 1 && high / 2 >= low && alpha_permille >= 100 && alpha_permille <= 100_000)
            }
            _ => (true, true),
        };
        match (ascending, in_range) {
            (false, _) => Err(DistError::NotAscending),
            (_, false) => Err(DistError::OutOfRange),
            _ => Ok(()),
        }
    }

    /// The next value.
    ///
    /// # Panics
    /// When [`Dist::check`] complains.
    pub fn draw(&self, chance: &mut Chance) -> u64 {
        match self {
            Dist::Constant(value) => *value,
            Dist::Uniform { low, high } => chance.between(*low, *high),
            Dist::Exponential { mean } => chance.exponential(*mean),
            Dist::Hyperexponential { short_mean, long_mean, long_permille } => {
                let long = chance.odds(*long_permille, 1_000);
                chance.exponential(if long { *long_mean } else { *short_mean })
            }
            Dist::LogUniform { low, high } => log_uniform(*low, *high, chance),
            Dist::Pareto { low, high, alpha_permille } => pareto(*low, *high, *alpha_permille, chance),
            Dist::Normal { mean, deviation } => normal(*mean, *deviation, chance),
            Dist::Weighted(weighted) => weighted.draw(chance),
            Dist::Empirical(empirical) => empirical.draw(chance),
        }
    }
}

/// Values drawn in proportion to their weights; a draw costs the logarithm of their number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Weighted {
    values: Vec<u64>,
    /// Sums of the weights so far.
    sums: Vec<u64>,
}

impl Weighted {
    /// From `(value, weight)`.
    ///
    /// # Errors
    /// [`DistError::NoWeight`].
    pub fn new(of: &[(u64, u64)]) -> Result<Weighted, DistError> {
        let mut sum = 0u64;
        let mut sums = Vec::with_capacity(of.len());
        for (_, weight) in of {
            sum = sum.checked_add(*weight).ok_or(DistError::NoWeight)?;
            sums.push(sum);
        }
        if sum == 0 {
            return Err(DistError::NoWeight);
        }
        Ok(Weighted { values: of.iter().map(|(value, _)| *value).collect(), sums })
    }

    /// The next value.
    pub fn draw(&self, chance: &mut Chance) -> u64 {
        let drawn = chance.below(*self.sums.last().expect("made with a value"));
        self.values[self.sums.partition_point(|sum| *sum <= drawn)]
    }
}

/// A distribution given by points of its quantile function, straight lines between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Empirical {
    points: Vec<(u32, u64)>,
}

/// One, in the parts of [`Empirical`].
const WHOLE_PPM: u32 = 1_000_000;

impl Empirical {
    /// From `(parts per million, value)`, such as `(990_000, p99)`: parts ascend from 0 (the minimum) to 1,000,000 (the
    /// maximum), values do not fall.
    ///
    /// # Errors
    /// [`DistError::NotWhole`], [`DistError::NotAscending`].
    pub fn new(points: &[(u32, u64)]) -> Result<Empirical, DistError> {
        if points.first().is_none_or(|p| p.0 != 0) || points.last().is_none_or(|p| p.0 != WHOLE_PPM) {
            return Err(DistError::NotWhole);
        }
        if points.windows(2).any(|w| w[0].0 >= w[1].0 || w[0].1 > w[1].1) {
            return Err(DistError::NotAscending);
        }
        Ok(Empirical { points: points.to_vec() })
    }

    /// The value below which this part lies; `part` is in parts per million times 2^32.
    fn at(&self, part: u64) -> u64 {
        let next = self.points.partition_point(|(ppm, _)| u64::from(*ppm) << 32 <= part).min(self.points.len() - 1);
        let ((ppm0, low), (ppm1, high)) = (self.points[next - 1], self.points[next]);
        let (from, to) = (u64::from(ppm0) << 32, u64::from(ppm1) << 32);
        low + (u128::from(high - low) * u128::from(part - from) / u128::from(to - from)) as u64
    }

    /// The next value.
    pub fn draw(&self, chance: &mut Chance) -> u64 {
        self.at(((u128::from(chance.bits()) * u128::from(WHOLE_PPM)) >> 32) as u64)
    }
}

/// Within an octave nearly uniform, then accepted in proportion to `1 / x`.
fn log_uniform(low: u64, high: u64, chance: &mut Chance) -> u64 {
    assert!(1 <= low && low <= high, "log-uniform from {low} to {high}");
    if high / 2 < low {
        loop {
            let x = chance.between(low, high);
            if chance.odds(low, x) {
                return x;
            }
        }
    }
    loop {
        let octave = 1u64 << chance.between(u64::from(low.ilog2()), u64::from(high.ilog2()));
        let x = octave + chance.below(octave);
        if (low..=high).contains(&x) && chance.odds(octave, x) {
            return x;
        }
    }
}

/// `2^(2^-1)`, `2^(2^-2)`, ... times 2^62, by integer square roots.
const ROOTS: [u64; 32] = {
    let mut roots = [0; 32];
    let mut last = 2u128 << 62;
    let mut i = 0;
    while i < roots.len() {
        last = (last << 62).isqrt();
        roots[i] = last as u64;
        i += 1;
    }
    roots
};

/// `log2(e)` times 2^32.
const LOG2_E: u64 = 6_196_328_019;

/// `low * 2^(E / (alpha ln 2))` with `E` exponential.
fn pareto(low: u64, high: u64, alpha_permille: u64, chance: &mut Chance) -> u64 {
    assert!(low >= 1 && high / 2 >= low && (100..=100_000).contains(&alpha_permille), "Pareto {low}..{high}");
    loop {
        let exponent = chance.exponential(LOG2_E * 1_000 / alpha_permille);
        let (whole, part) = (exponent >> 32, exponent as u32);
        if whole > 62 {
            continue;
        }
        // 2^part, times 2^62.
        let mut factor = 1u128 << 62;
        for (i, root) in ROOTS.iter().enumerate() {
            if (part >> (31 - i)) & 1 == 1 {
                factor = (factor * u128::from(*root)) >> 62;
            }
        }
        let x = (u128::from(low) * factor) >> (62 - whole);
        if x <= u128::from(high) {
            return x as u64;
        }
    }
}

/// Twelve uniform draws of 32 bits sum to a variance of one, in units of 2^32.
fn normal(mean: u64, deviation: u64, chance: &mut Chance) -> u64 {
    let mut sum = 0u64;
    for _ in 0..6 {
        let bits = chance.bits();
        sum += (bits >> 32) + (bits & 0xffff_ffff);
    }
    let off = i128::from(sum) - (6 << 32);
    let value = i128::from(mean) + ((i128::from(deviation) * off) >> 32);
    value.clamp(0, i128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Dist> {
        let quantiles = [(0, 10_000), (500_000, 20_000), (990_000, 500_000), (1_000_000, 1_000_000)];
        vec![
            Dist::Constant(7),
            Dist::Uniform { low: 100, high: 199 },
            Dist::Exponential { mean: 1_000_000 },
            Dist::Hyperexponential { short_mean: 1_000, long_mean: 100_000, long_permille: 50 },
            Dist::LogUniform { low: 4_096, high: 16 << 20 },
            Dist::LogUniform { low: 4_095, high: 4_096 },
            Dist::Pareto { low: 1_000, high: 1_000_000_000, alpha_permille: 1_500 },
            Dist::Normal { mean: 10_000, deviation: 1_000 },
            Dist::Weighted(Weighted::new(&[(5, 1), (6, 0), (9, 3)]).unwrap()),
            Dist::Empirical(Empirical::new(&quantiles).unwrap()),
        ]
    }

    fn sample(dist: &Dist, count: usize) -> Vec<u64> {
        let mut chance = Chance::new(5);
        dist.check().unwrap();
        (0..count).map(|_| dist.draw(&mut chance)).collect()
    }

    #[test]
    fn golden_draws_never_change() {
        let draws: Vec<u64> =
            all().iter().map(|dist| sample(dist, 1_000).iter().fold(0, |a, x| a * 31 % (1 << 40) + x)).collect();
        let golden = [
            401622541696,
            300324230267,
            1039605352464,
            569595731147,
            1006669739734,
            451255331543,
            734523014619,
            115672314558,
            625410726024,
            520901638868,
        ];
        assert_eq!(draws, golden);
    }

    /// The share of draws at or below `x`.
    fn share(draws: &[u64], x: u64) -> f64 {
        draws.iter().filter(|d| **d <= x).count() as f64 / draws.len() as f64
    }

    #[test]
    fn shares_are_those_of_the_distribution() {
        // (distribution, value, share at or below it); 100,000 draws know a share within 0.005.
        let dists = all();
        let known = [
            (1, 149, 0.5),
            (2, 1_000_000, 0.63212),
            (2, 3_000_000, 0.95021),
            (3, 1_000, 0.95 * 0.63212 + 0.05 * 0.00995),
            (3, 100_000, 0.95 + 0.05 * 0.63212),
            // log(x / low) / log(high / low), 12 octaves.
            (4, 8_191, 1.0 / 12.0),
            (4, 262_144, 0.5),
            (4, 12_582_912, 11.58496 / 12.0),
            (5, 4_095, 0.5),
            // 1 - (low / x)^1.5
            (6, 2_000, 1.0 - 0.35355),
            (6, 1_500, 1.0 - 0.54433),
            (6, 100_000, 1.0 - 0.001),
            (7, 10_000, 0.5),
            (7, 11_000, 0.84134),
            (7, 8_000, 0.02275),
            (8, 5, 0.25),
            (8, 6, 0.25),
            (9, 15_000, 0.25),
            (9, 20_000, 0.5),
            (9, 500_000, 0.99),
        ];
        for (i, value, expected) in known {
            let got = share(&sample(&dists[i], 100_000), value);
            assert!((got - expected).abs() < 0.006, "{:?} at {value}: {got}, not {expected}", dists[i]);
        }
    }

    #[test]
    fn draws_stay_in_their_range() {
        for (dist, low, high) in [
            (&all()[1], 100, 199),
            (&all()[4], 4_096, 16 << 20),
            (&all()[5], 4_095, 4_096),
            (&all()[6], 1_000, 1_000_000_000),
            (&all()[9], 10_000, 1_000_000),
        ] {
            let draws = sample(dist, 20_000);
            assert!(draws.iter().all(|x| (low..=high).contains(x)), "{dist:?}");
        }
        let edge = Dist::Pareto { low: 1 << 62, high: u64::MAX, alpha_permille: 100 };
        assert!(sample(&edge, 1_000).iter().all(|x| *x >= 1 << 62));
        assert!(sample(&Dist::LogUniform { low: 1, high: u64::MAX }, 1_000).iter().any(|x| *x > 1 << 60));
    }

    #[test]
    fn weighted_agrees_with_the_stream_s_own() {
        let (mut a, mut b) = (Chance::new(3), Chance::new(3));
        let weighted = Weighted::new(&[(0, 3), (1, 0), (2, 5), (3, 1)]).unwrap();
        for _ in 0..1_000 {
            assert_eq!(weighted.draw(&mut a), b.weighted(&[3, 0, 5, 1]) as u64);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Weighted::new(&[]), Err(DistError::NoWeight));
        assert_eq!(Weighted::new(&[(1, 0)]), Err(DistError::NoWeight));
        assert_eq!(Weighted::new(&[(1, u64::MAX), (2, 1)]), Err(DistError::NoWeight));
        assert_eq!(Empirical::new(&[(0, 1)]), Err(DistError::NotWhole));
        assert_eq!(Empirical::new(&[]), Err(DistError::NotWhole));
        assert_eq!(Empirical::new(&[(0, 2), (1_000_000, 1)]), Err(DistError::NotAscending));
        assert_eq!(Empirical::new(&[(0, 2), (0, 3), (1_000_000, 4)]), Err(DistError::NotAscending));
        let bad = [
            Dist::Uniform { low: 2, high: 1 },
            Dist::LogUniform { low: 0, high: 1 },
            Dist::Pareto { low: 2, high: 3, alpha_permille: 1_000 },
            Dist::Pareto { low: 2, high: 9, alpha_permille: 1 },
            Dist::Hyperexponential { short_mean: 1, long_mean: 2, long_permille: 1_001 },
        ];
        for dist in bad {
            assert!(dist.check().is_err(), "{dist:?}");
        }
    }
}
