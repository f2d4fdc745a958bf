//! How long something takes, as a distribution.
//!
//! Owns: the shapes and their draws. Never: uses arithmetic that differs between machines.
//! Invariant: a shape without chance draws nothing from the stream.

use crate::Chance;
use segue_types::Nanos;

/// A latency, nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Latency {
    /// Nothing.
    None,
    /// Always the same.
    Constant(Nanos),
    /// Each whole value of the range alike, both ends included.
    Uniform(Nanos, Nanos),
    /// At least `floor_ns`, and exponentially distributed above it.
    Exponential {
        /// The least.
        floor_ns: Nanos,
        /// Mean of what comes on top.
        mean_ns: Nanos,
    },
    /// Measured: `(permille, value)`, both rising, first permille 0 and last 1000; uniform between neighbours.
    Empirical(Vec<(u64, Nanos)>),
}

impl Latency {
    /// A latency from measured quantiles, `(permille, value)`.
    ///
    /// # Panics
    /// When they do not start at 0, end at 1000 and rise.
    pub fn empirical(quantiles: &[(u64, Nanos)]) -> Latency {
        let ends = (quantiles.first().map(|q| q.0), quantiles.last().map(|q| q.0));
        assert_eq!(ends, (Some(0), Some(1000)), "quantiles from 0 to 1000 permille");
        let rise = quantiles.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        assert!(rise, "quantiles rise: {quantiles:?}");
        Latency::Empirical(quantiles.to_vec())
    }

    /// One latency.
    pub fn draw(&self, chance: &mut Chance) -> Nanos {
        match self {
            Latency::None => 0,
            Latency::Constant(ns) => *ns,
            Latency::Uniform(low, high) => chance.between(*low, *high),
            Latency::Exponential { floor_ns, mean_ns } => floor_ns + chance.exponential(*mean_ns),
            Latency::Empirical(quantiles) => {
                // In 2^-20 of a permille, so that a step between quantiles is fine enough.
                let place = chance.below(1000 << 20);
                let above = quantiles.partition_point(|(permille, _)| permille << 20 <= place);
                let ((low_at, low), (high_at, high)) = (quantiles[above - 1], quantiles[above]);
                let part = u128::from(place - (low_at << 20)) * u128::from(high - low);
                low + (part / u128::from((high_at - low_at) << 20)) as u64
            }
        }
    }

    /// Its mean, rounded down.
    pub fn mean_ns(&self) -> Nanos {
        match self {
            Latency::None => 0,
            Latency::Constant(ns) => *ns,
            Latency::Uniform(low, high) => low + (high - low) / 2,
            Latency::Exponential { floor_ns, mean_ns } => floor_ns + mean_ns,
            Latency::Empirical(quantiles) => {
                let weighted = |pair: &[(u64, Nanos)]| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1);
                quantiles.windows(2).map(weighted).sum::<u64>() / 2000
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_their_means_and_ranges() {
        let shapes = [
            (Latency::None, 0, 0),
            (Latency::Constant(700), 700, 700),
            (Latency::Uniform(100, 300), 100, 300),
            (Latency::Exponential { floor_ns: 500, mean_ns: 1000 }, 500, 40_500),
            (Latency::empirical(&[(0, 100), (500, 200), (990, 1000), (1000, 9000)]), 100, 9000),
        ];
        for (shape, low, high) in shapes {
            let mut chance = Chance::new(9);
            let draws: Vec<Nanos> = (0..40_000).map(|_| shape.draw(&mut chance)).collect();
            assert!(draws.iter().all(|ns| (low..=high).contains(ns)), "{shape:?}");
            let (mean, promised) = (draws.iter().sum::<u64>() / 40_000, shape.mean_ns());
            assert!(mean.abs_diff(promised) <= promised / 50 + 1, "{shape:?}: {mean} and not {promised}");
        }
    }

    #[test]
    fn empirical_quantiles_come_back() {
        let shape = Latency::empirical(&[(0, 0), (900, 1000), (1000, 100_000)]);
        let mut chance = Chance::new(4);
        let below = (0..10_000).filter(|_| shape.draw(&mut chance) < 1000).count();
        assert!((8850..9150).contains(&below), "{below} of 10,000 below the 90th percentile");
    }

    #[test]
    #[should_panic = "quantiles rise"]
    fn quantiles_that_fall_are_refused() {
        Latency::empirical(&[(0, 5), (500, 4), (1000, 6)]);
    }
}
