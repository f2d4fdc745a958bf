//! A rate limit, exact to the nanosecond.
//!
//! Owns: when the next request may pass. Never: rounds a rate, or forgets a debt when the rate changes.
//! Invariant: in any span t at most `rate * (t + burst)` and one request more pass.
//!
//! The generic cell rate algorithm (ITU-T I.371): a token bucket that keeps a time in place of a level.

use segue_types::Nanos;

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    /// Per second; 0 for no limit.
    rate: u64,
    burst_ns: Nanos,
    /// All that passed is paid for at this time.
    paid_at: Nanos,
    /// What the division of the last payments left over, in 1/rate ns.
    rest: u64,
}

impl Bucket {
    /// A new rate. What was taken before stays owed, at the new rate; the same settings again change nothing.
    pub(super) fn set(&mut self, rate: u64, burst_ns: Nanos, now: Nanos) {
        if rate != self.rate && rate > 0 && self.rate > 0 && self.paid_at > now {
            let owed = (self.paid_at - now) as u128 * self.rate as u128 / rate as u128;
            // Nobody waits longer than a minute for what an old setting let pass.
            self.paid_at = now + owed.min(60 * SECOND_NS as u128) as u64;
        }
        if rate != self.rate {
            self.rest = 0;
        }
        self.rate = rate;
        self.burst_ns = burst_ns;
    }

    /// When the next request may pass, whatever its size: at once when this is not after now.
    pub(super) fn ready_at(&self) -> Nanos {
        if self.rate == 0 { 0 } else { self.paid_at.saturating_sub(self.burst_ns) }
    }

    /// Takes what passes; it may leave a debt.
    pub(super) fn take(&mut self, amount: u64, now: Nanos) {
        if self.rate == 0 {
            return;
        }
        if self.paid_at < now {
            (self.paid_at, self.rest) = (now, 0);
        }
        let owed = amount as u128 * SECOND_NS as u128 + self.rest as u128;
        self.rest = (owed % self.rate as u128) as u64;
        self.paid_at = self.paid_at.saturating_add((owed / self.rate as u128).min(u64::MAX as u128) as u64);
    }

    pub(super) fn limits(&self) -> bool {
        self.rate > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `amount` pass in a second that begins at `from`, asked as often as possible.
    fn passed(bucket: &mut Bucket, amount: u64, from: Nanos) -> u64 {
        let (mut now, mut sum) = (from, 0);
        loop {
            now = now.max(bucket.ready_at());
            if now >= from + SECOND_NS {
                return sum;
            }
            bucket.take(amount, now);
            sum += amount;
        }
    }

    #[test]
    fn model_a_second_lets_the_rate_pass() {
        for (rate, amount) in [(1000, 1), (333_333, 1), (7, 1), (1 << 30, 4096), (100 << 20, 262_144)] {
            let mut bucket = Bucket::default();
            bucket.set(rate, 1_000_000, 0);
            for second in 0..3 {
                let sum = passed(&mut bucket, amount, 5 + second * SECOND_NS);
                let slack = rate / 500 + amount;
                assert!(sum.abs_diff(rate) <= slack, "{sum} of {rate} in steps of {amount}");
            }
        }
    }

    #[test]
    fn a_change_forgives_nothing_and_holds_at_once() {
        let mut bucket = Bucket::default();
        bucket.set(10, 0, 0);
        bucket.take(10, 0);
        assert_eq!(bucket.ready_at(), SECOND_NS);
        bucket.set(1000, 0, 0);
        assert_eq!(bucket.ready_at(), SECOND_NS / 100);
        for _ in 0..10_000 {
            bucket.set(1000, 0, 0);
        }
        assert_eq!(bucket.ready_at(), SECOND_NS / 100);
        bucket.set(0, 0, 0);
        assert!(!bucket.limits() && bucket.ready_at() == 0);
    }
}
