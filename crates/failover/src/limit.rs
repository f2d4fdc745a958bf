//! How often a speculation may start: a token bucket, and the count of starts in the last day.
//!
//! Owns: the tokens and the times of recent starts. Never: decides what happens when there is no token.
//! Invariant: in any span of time no more starts are allowed than `burst` plus what was refilled in it.

use segue_types::Nanos;
use std::collections::VecDeque;

const HOUR_NS: u64 = 3_600_000_000_000;
const DAY_NS: u64 = 24 * HOUR_NS;

/// How many speculations are allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Starts allowed at once after a quiet time; at least 1.
    pub burst: u32,
    /// Tokens that come back per hour; 0 means none ever does.
    pub per_hour: u32,
}

/// The bucket. One token is one start of a backup.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    /// Tokens times `HOUR_NS`, so that a refill of any length is exact in whole numbers.
    level: u128,
    refilled_at: Nanos,
    recent: VecDeque<Nanos>,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Nanos) -> Bucket {
        let level = u128::from(rate.burst) * u128::from(HOUR_NS);
        Bucket { rate, level, refilled_at: now, recent: VecDeque::new() }
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Nanos) -> bool {
        self.refill(now);
        if self.level < u128::from(HOUR_NS) {
            return false;
        }
        self.level -= u128::from(HOUR_NS);
        self.recent.push_back(now);
        true
    }

    /// When the next token will be there: now or later; `None` when there never will be one.
    pub fn next_at(&mut self, now: Nanos) -> Option<Nanos> {
        self.refill(now);
        let missing = u128::from(HOUR_NS).saturating_sub(self.level);
        if missing == 0 {
            return Some(now);
        }
        if self.rate.per_hour == 0 {
            return None;
        }
        let wait_ns = missing.div_ceil(u128::from(self.rate.per_hour));
        Some(now.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX)))
    }

    /// Starts in the 24 hours before `now`, as far as this process knows.
    pub fn starts_last_day(&mut self, now: Nanos) -> u64 {
        while self.recent.front().is_some_and(|&at| at.saturating_add(DAY_NS) <= now) {
            self.recent.pop_front();
        }
        self.recent.len() as u64
    }

    fn refill(&mut self, now: Nanos) {
        let cap = u128::from(self.rate.burst) * u128::from(HOUR_NS);
        let gained = u128::from(now.saturating_sub(self.refilled_at)) * u128::from(self.rate.per_hour);
        self.level = cap.min(self.level + gained);
        self.refilled_at = self.refilled_at.max(now);
        // Old entries go here too: a bucket that is only ever taken from must not grow without bound.
        self.starts_last_day(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_bucket_allows_a_burst_then_the_rate() {
        let mut bucket = Bucket::new(Rate { burst: 2, per_hour: 4 }, 0);
        assert!(bucket.take(0) && bucket.take(0) && !bucket.take(0));
        let next = bucket.next_at(0).unwrap();
        assert_eq!(next, HOUR_NS / 4);
        assert!(!bucket.take(next - 1));
        assert!(bucket.take(next));
        assert_eq!(bucket.starts_last_day(next), 3);
        assert_eq!(bucket.starts_last_day(DAY_NS + 1), 1);
    }

    #[test]
    fn model_bucket_without_refill_never_promises() {
        let mut bucket = Bucket::new(Rate { burst: 1, per_hour: 0 }, 5);
        assert_eq!(bucket.next_at(5), Some(5));
        assert!(bucket.take(5));
        assert_eq!(bucket.next_at(u64::MAX), None);
    }
}
