//! Whether a core should look again for a while before it sleeps.
//!
//! Owns: the measure of what that gains. Never: looks or sleeps itself.
//! Invariant: looking stops within the limit, never begins on a quiet core, and goes on only while it serves more.
//!
//! Waking a sleeping core costs an interrupt between processors, tens of microseconds in a virtual machine; looking
//! costs a processor that somebody else may need, perhaps the very client. Which is better depends on the machine's
//! load, so both are tried in turn for short epochs under load, and the one that serves more requests is kept.

use segue_types::Nanos;

/// Length of an epoch.
const EPOCH_NS: Nanos = 10_000_000;
/// An epoch with fewer requests tells nothing.
const REQUESTS_MIN: u64 = 40;
/// Every so many epochs the other way is tried again.
const PROBE_EPOCHS: u32 = 40;

/// With more requests than this per turn the core is busy anyway, and a short sleep lets the next batch grow.
const BATCH_MAX: u64 = 2;

#[derive(Debug)]
pub(super) struct Spin {
    limit_ns: Nanos,
    turn_ns_mean: Nanos,
    /// Requests answered per turn without looking, in hundredths.
    batch_mean: u64,
    on: bool,
    epoch_start: Nanos,
    epoch: u32,
    served: u64,
    /// Requests per second without and with looking; 0 is unknown.
    rates: [u64; 2],
}

impl Spin {
    pub(super) fn new(limit_ns: Nanos) -> Spin {
        let turn_ns_mean = limit_ns * 2;
        Spin { limit_ns, turn_ns_mean, batch_mean: 0, on: false, epoch_start: 0, epoch: 0, served: 0, rates: [0; 2] }
    }

    /// How long to look before sleeping now; 0 for not at all.
    pub(super) fn look_ns(&self) -> Nanos {
        if self.on && self.turn_ns_mean < self.limit_ns && !self.in_batches() { self.limit_ns } else { 0 }
    }

    fn in_batches(&self) -> bool {
        self.batch_mean >= BATCH_MAX * 100
    }

    /// A turn ended at `now` that took `turn_ns` and found so many requests served.
    pub(super) fn turned(&mut self, now: Nanos, turn_ns: Nanos, served: u64) {
        self.turn_ns_mean = (self.turn_ns_mean * 15 + turn_ns.min(self.limit_ns * 8)) / 16;
        if self.look_ns() == 0 {
            // Only sleeping lets batches grow, so only then do they tell how much there is to do.
            self.batch_mean = (self.batch_mean * 31 + served * 100) / 32;
        }
        self.served += served;
        let elapsed_ns = now - self.epoch_start;
        if elapsed_ns < EPOCH_NS || self.limit_ns == 0 {
            return;
        }
        if self.on && self.in_batches() {
            // Looking is not being tried: the epoch says nothing about it.
            self.epoch += 1;
        } else if self.served >= REQUESTS_MIN && elapsed_ns < EPOCH_NS * 4 {
            let rate = self.served * 1_000_000_000 / elapsed_ns;
            let old = &mut self.rates[self.on as usize];
            *old = if *old == 0 { rate } else { (*old + rate) / 2 };
            self.epoch += 1;
            // Looking must gain a tenth to be worth a processor.
            let better = self.rates[1] == 0 || self.rates[1] > self.rates[0] + self.rates[0] / 10;
            self.on = better != self.epoch.is_multiple_of(PROBE_EPOCHS);
        }
        self.epoch_start = now;
        self.served = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a world in which a turn takes so long without and with looking; tells the share of turns that looked.
    fn share_of_looking(asleep_ns: Nanos, looking_ns: Nanos) -> f64 {
        share_with_batch(asleep_ns, looking_ns, 1)
    }

    fn share_with_batch(asleep_ns: Nanos, looking_ns: Nanos, batch: u64) -> f64 {
        let mut spin = Spin::new(100_000);
        let (mut now, mut looked) = (0, 0);
        for _ in 0..200_000 {
            let looks = spin.look_ns() > 0;
            looked += looks as u32;
            let turn_ns = if looks { looking_ns } else { asleep_ns };
            now += turn_ns;
            spin.turned(now, turn_ns, batch);
        }
        looked as f64 / 200_000.0
    }

    #[test]
    fn model_a_core_looks_where_it_gains() {
        assert!(share_of_looking(80_000, 40_000) > 0.9);
    }

    #[test]
    fn model_a_core_sleeps_where_looking_loses_or_gains_nothing() {
        assert!(share_of_looking(20_000, 60_000) < 0.1);
        assert!(share_of_looking(20_000, 20_000) < 0.1);
    }

    #[test]
    fn model_a_core_with_full_batches_sleeps() {
        assert!(share_with_batch(80_000, 40_000, 12) < 0.01);
    }

    #[test]
    fn model_a_quiet_core_never_looks() {
        assert!(share_of_looking(5_000_000, 1_000_000) < 0.001);
        let mut spin = Spin::new(0);
        spin.turned(20_000_000, 1_000, 1_000_000);
        assert_eq!(spin.look_ns(), 0);
    }
}
