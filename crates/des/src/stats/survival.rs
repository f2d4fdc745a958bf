//! How long things last when some had not ended yet.
//!
//! Owns: the product-limit estimate (Kaplan and Meier 1958). Never: takes an age for a duration, or leaves it out.
//! Invariant: with nothing in flight, the estimate is the plain one.

use super::exact::{P50, P90, P95, P99, P999, WHOLE_PPM};
use segue_types::Nanos;
use serde::Serialize;

/// The share of durations over each time, as steps downwards.
///
/// It holds if what ended the observation (the end of the run) did not depend on how long a thing would have lasted.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Survival {
    /// Time, and the share that lasts longer than it; times ascend.
    steps: Vec<(Nanos, f64)>,
    /// The longest duration or age seen.
    longest_ns: Nanos,
}

/// The estimate's usual figures, nanoseconds. A quantile is `None` where too few had ended to know it: it is
/// longer than anything that was seen to end.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// The mean; if [`Estimate::mean_is_bound`], the mean is at least this.
    pub mean_ns: f64,
    /// The longest was still in flight, so the mean counts no time beyond its age.
    pub mean_is_bound: bool,
    /// Half last at most this.
    pub p50_ns: Option<Nanos>,
    /// 90 % last at most this.
    pub p90_ns: Option<Nanos>,
    /// 95 % last at most this.
    pub p95_ns: Option<Nanos>,
    /// 99 % last at most this.
    pub p99_ns: Option<Nanos>,
    /// 99.9 % last at most this.
    pub p999_ns: Option<Nanos>,
}

impl Survival {
    /// From durations of what ended, and ages of what had not. At equal times, ends come before ages, as usual.
    pub fn new(finished_ns: &[Nanos], in_flight_ns: &[Nanos]) -> Survival {
        let mut all: Vec<(Nanos, bool)> = finished_ns.iter().map(|t| (*t, false)).collect();
        all.extend(in_flight_ns.iter().map(|t| (*t, true)));
        all.sort_unstable();
        let longest_ns = all.last().map_or(0, |last| last.0);
        let (mut steps, mut share, mut at_risk) = (Vec::new(), 1.0, all.len());
        for equal in all.chunk_by(|a, b| a.0 == b.0) {
            let ended = equal.iter().filter(|(_, in_flight)| !in_flight).count();
            if ended > 0 {
                share *= (at_risk - ended) as f64 / at_risk as f64;
                steps.push((equal[0].0, share));
            }
            at_risk -= equal.len();
        }
        Survival { steps, longest_ns }
    }

    /// The steps: time, and the share that lasts longer.
    pub fn steps(&self) -> &[(Nanos, f64)] {
        &self.steps
    }

    /// The share that lasts longer than `time_ns`, 0..=1; beyond the last step, at most this.
    pub fn longer_than(&self, time_ns: Nanos) -> f64 {
        let after = self.steps.partition_point(|(time, _)| *time <= time_ns);
        after.checked_sub(1).map_or(1.0, |i| self.steps[i].1)
    }

    /// The least time that at least `ppm` parts per million do not outlast.
    ///
    /// # Panics
    /// When `ppm` is over a million.
    pub fn quantile(&self, ppm: u32) -> Option<Nanos> {
        assert!(ppm <= WHOLE_PPM, "{ppm} parts of a million");
        // The product's rounding is far below one thing of a million.
        let left = f64::from(WHOLE_PPM - ppm) / f64::from(WHOLE_PPM) + 1e-10;
        self.steps.iter().find(|(_, share)| *share <= left).map(|(time, _)| *time)
    }

    /// The area below the steps up to the longest time seen, and whether that is a lower bound of the mean.
    pub fn mean(&self) -> (f64, bool) {
        let (mut area, mut from, mut share) = (0.0, 0, 1.0);
        for (time, next) in &self.steps {
            area += (time - from) as f64 * share;
            (from, share) = (*time, *next);
        }
        (area + (self.longest_ns - from) as f64 * share, share > 0.0)
    }

    /// The usual figures.
    pub fn figures(&self) -> Estimate {
        let (mean_ns, mean_is_bound) = self.mean();
        Estimate {
            mean_ns,
            mean_is_bound,
            p50_ns: self.quantile(P50),
            p90_ns: self.quantile(P90),
            p95_ns: self.quantile(P95),
            p99_ns: self.quantile(P99),
            p999_ns: self.quantile(P999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;
    use crate::stats::Exact;

    #[test]
    fn a_known_example() {
        // Six ended at 6, 6, 6, 7, 10, 13 of nine; in flight at 6, 9, 10.
        let survival = Survival::new(&[6, 6, 6, 7, 10, 13], &[6, 9, 10]);
        let shares: Vec<f64> = survival.steps().iter().map(|s| s.1).collect();
        let by_hand = [6.0 / 9.0, 6.0 / 9.0 * 4.0 / 5.0, 6.0 / 9.0 * 4.0 / 5.0 * 2.0 / 3.0, 0.0];
        assert!(shares.iter().zip(by_hand).all(|(a, b)| (a - b).abs() < 1e-12), "{shares:?}");
        assert_eq!((survival.quantile(P50), survival.quantile(P99)), (Some(10), Some(13)));
        assert_eq!((survival.longer_than(5), survival.longer_than(99)), (1.0, 0.0));
        // The longest is in flight: nobody knows the tail.
        let open = Survival::new(&[6], &[40]);
        assert_eq!((open.quantile(P50), open.quantile(P90)), (Some(6), None));
        assert_eq!(open.mean(), (6.0 + 34.0 / 2.0, true));
        assert_eq!(Survival::new(&[], &[]).figures().p50_ns, None);
    }

    #[test]
    fn model_with_nothing_in_flight_it_is_exact() {
        let mut chance = Chance::new(3);
        for _ in 0..100 {
            let values: Vec<u64> = (0..chance.between(1, 500)).map(|_| chance.below(300)).collect();
            let (survival, exact) = (Survival::new(&values, &[]), Exact::new(values));
            for ppm in [1, 10_000, P50, P90, P95, P99, P999, WHOLE_PPM] {
                assert_eq!(survival.quantile(ppm), Some(exact.quantile(ppm)), "{ppm}");
            }
            let (mean, bound) = survival.mean();
            assert!((mean - exact.mean()).abs() < 1e-6 && !bound);
        }
    }

    /// The same by Efron's way: each one has the same mass; what is in flight deals its mass evenly to all later ones.
    fn redistributed(finished: &[Nanos], in_flight: &[Nanos]) -> Vec<(Nanos, f64)> {
        let mut all: Vec<(Nanos, bool)> = finished.iter().map(|t| (*t, false)).collect();
        all.extend(in_flight.iter().map(|t| (*t, true)));
        all.sort_unstable();
        let mut mass = vec![1.0 / all.len() as f64; all.len()];
        let (mut steps, mut left) = (Vec::new(), 1.0);
        for i in 0..all.len() {
            if all[i].1 {
                let share = mass[i] / (all.len() - i - 1) as f64;
                mass[i + 1..].iter_mut().for_each(|m| *m += share);
            } else {
                left -= mass[i];
                steps.push((all[i].0, left));
            }
        }
        steps
    }

    #[test]
    fn model_agrees_with_redistribution_to_the_right() {
        let mut chance = Chance::new(5);
        for _ in 0..100 {
            let mut draw = |most| (0..chance.between(1, most)).map(|_| chance.below(1_000)).collect::<Vec<_>>();
            let (finished, in_flight) = (draw(80), draw(40));
            let survival = Survival::new(&finished, &in_flight);
            for (time, left) in redistributed(&finished, &in_flight) {
                // Within equal times the twin passes through values in between.
                assert!(survival.longer_than(time) <= left + 1e-9);
            }
            let last = redistributed(&finished, &in_flight).last().copied().unwrap();
            assert!((survival.longer_than(last.0) - last.1).abs() < 1e-9);
        }
    }

    #[test]
    fn it_sees_what_the_naive_mean_hides() {
        // Exponential durations of mean 1 ms, begun any time in a run of 3 ms, which cuts off what lasts longer.
        let mut chance = Chance::new(1);
        let (mut finished, mut in_flight) = (Vec::new(), Vec::new());
        for _ in 0..40_000 {
            let (start, lasts) = (chance.below(3_000_000), chance.exponential(1_000_000));
            if start + lasts <= 3_000_000 { finished.push(lasts) } else { in_flight.push(3_000_000 - start) }
        }
        let naive = Exact::new(finished.clone()).mean();
        let (mean, _) = Survival::new(&finished, &in_flight).mean();
        assert!((590_000.0..630_000.0).contains(&naive), "naive {naive}");
        assert!((920_000.0..980_000.0).contains(&mean), "estimate {mean}");
        let median = Survival::new(&finished, &in_flight).quantile(P50).unwrap();
        assert!(median.abs_diff(693_147) < 20_000, "{median}");
    }
}
