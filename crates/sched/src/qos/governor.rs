//! How much the drive may have outstanding: the window that keeps it at the knee of its latency curve.
//!
//! Owns: the window. Never: knows which volume asked.
//! Invariant: the window stays within its bounds, shrinks while the p95 is above the target, and grows only when it was used up.
//!
//! Additive increase, multiplicative decrease on the delay of completions, as Gimbal (SIGCOMM 2021) does it.

use segue_types::Nanos;

/// Completions that one decision needs at least.
const SAMPLES_MIN: u32 = 64;
/// Time between decisions at least, ns.
const INTERVAL_NS: Nanos = 2_000_000;
const BUCKETS: usize = 160;

/// How a drive is governed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GovernorParams {
    /// Wanted p95 of the completion of a 4 KiB request, ns; 0 leaves the window at its largest.
    pub target_ns: Nanos,
    /// Smallest window, cost units.
    pub window_min: u64,
    /// Largest window, cost units.
    pub window_max: u64,
}

impl GovernorParams {
    /// No governing: everything goes to the drive at once, up to a bound that only memory sets.
    pub const OPEN: GovernorParams = GovernorParams { target_ns: 0, window_min: 400, window_max: 1 << 24 };
}

pub(super) struct Governor {
    params: GovernorParams,
    /// The smallest target of a volume, ns; 0 for none.
    asked_ns: Nanos,
    window: u64,
    seen: [u32; BUCKETS],
    count: u32,
    decided: Nanos,
    /// The window held something back since the last decision.
    was_full: bool,
    last_p95_ns: Nanos,
}

/// Buckets are an eighth of a doubling wide, from 1 us on.
fn bucket(ns: Nanos) -> usize {
    let ns = (ns >> 7).max(8);
    let top = ns.ilog2();
    let eighth = (ns >> (top - 3)) & 7;
    (((top - 3) as usize) * 8 + eighth as usize).min(BUCKETS - 1)
}

fn bucket_top_ns(bucket: usize) -> Nanos {
    let (top, eighth) = (bucket / 8, bucket as u64 % 8);
    ((8 + eighth + 1) << top) << 7
}

impl Governor {
    pub(super) fn new(params: GovernorParams) -> Governor {
        let mut governor = Governor {
            params,
            asked_ns: 0,
            window: 0,
            seen: [0; BUCKETS],
            count: 0,
            decided: 0,
            was_full: false,
            last_p95_ns: 0,
        };
        governor.set(params);
        governor
    }

    /// New bounds and target; the window goes on from where it is, within the bounds.
    pub(super) fn set(&mut self, params: GovernorParams) {
        assert!(0 < params.window_min && params.window_min <= params.window_max, "a window has room");
        let fresh = self.window == 0 || params.target_ns == 0 || self.params.target_ns == 0;
        self.params = params;
        let start = if params.target_ns == 0 { params.window_max } else { (params.window_max / 4).max(1) };
        self.window = if fresh { start } else { self.window }.clamp(params.window_min, params.window_max);
    }

    /// The smallest latency that a volume asks for, ns; 0 for none.
    pub(super) fn ask(&mut self, target_ns: Nanos) {
        self.asked_ns = target_ns;
    }

    pub(super) fn params(&self) -> GovernorParams {
        self.params
    }

    /// The target in force, ns; 0 for none. A drive that was not calibrated is not governed by wishes alone.
    pub(super) fn target_ns(&self) -> Nanos {
        match (self.params.target_ns, self.asked_ns) {
            (0, _) | (_, 0) => self.params.target_ns,
            (calibrated, asked) => calibrated.min(asked),
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    pub(super) fn last_p95_ns(&self) -> Nanos {
        self.last_p95_ns
    }

    pub(super) fn held_back(&mut self) {
        self.was_full = true;
    }

    /// A request of 4 KiB, or what a larger one is worth, completed.
    pub(super) fn completed(&mut self, latency_ns: Nanos, now: Nanos) {
        if self.params.target_ns == 0 {
            return;
        }
        self.seen[bucket(latency_ns)] += 1;
        self.count += 1;
        if self.count >= SAMPLES_MIN && now.saturating_sub(self.decided) >= INTERVAL_NS {
            self.decide(now);
        }
    }

    fn decide(&mut self, now: Nanos) {
        let want = self.count - self.count / 20;
        let mut sum = 0;
        let at = self.seen.iter().position(|n| {
            sum += n;
            sum >= want
        });
        self.last_p95_ns = bucket_top_ns(at.unwrap_or(BUCKETS - 1));
        if self.last_p95_ns > self.target_ns() {
            self.window -= self.window / 8;
        } else if self.was_full {
            self.window += self.params.window_min / 2 + 1;
        }
        self.window = self.window.clamp(self.params.window_min, self.params.window_max);
        self.seen.fill(0);
        (self.count, self.decided, self.was_full) = (0, now, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_latencies_in_order() {
        let mut last = 0;
        for ns in (0..40).flat_map(|shift| [1u64 << shift, 3 << shift]) {
            let at = bucket(ns);
            assert!(at == BUCKETS - 1 || bucket_top_ns(at) > ns, "{ns}");
            assert!(ns < 1100 || at == BUCKETS - 1 || bucket_top_ns(at) <= ns + ns / 4, "{ns}");
            last = last.max(at);
        }
        assert_eq!(last, BUCKETS - 1);
    }

    #[test]
    fn the_window_follows_the_delay() {
        let params = GovernorParams { target_ns: 200_000, window_min: 400, window_max: 100_000 };
        let mut governor = Governor::new(params);
        let mut now = 0;
        let mut run = |governor: &mut Governor, latency: Nanos, full: bool| {
            for _ in 0..100_000 {
                now += 20_000;
                if full {
                    governor.held_back();
                }
                governor.completed(latency, now);
            }
        };
        run(&mut governor, 1_000_000, true);
        assert_eq!(governor.window(), params.window_min);
        run(&mut governor, 100_000, false);
        assert_eq!(governor.window(), params.window_min, "an unused window does not grow");
        run(&mut governor, 100_000, true);
        assert_eq!(governor.window(), params.window_max);
    }
}
