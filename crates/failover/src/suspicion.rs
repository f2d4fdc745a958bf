//! Is the primary still there? Adaptive suspicion from its answers to probes and from its storage.
//!
//! Owns: the statistics of recent answers and the verdict. Never: decides that the primary is dead; it is only suspected.
//! Invariant: the verdict is a function of the answers seen and the time; it becomes "trust" only after an answer.
//!
//! The first input is phi-accrual: with the mean and deviation of recent gaps between answers, phi is the negative
//! decimal logarithm of the probability that a gap lasts this long by chance. The second is the storage below the
//! primary: requests in flight with none completing raise suspicion by themselves, while a storage that is busy
//! completing requests lengthens the patience for late answers.

use segue_types::Nanos;

/// Most gaps remembered.
pub const WINDOW_MAX: usize = 1024;

/// What it takes to suspect. Times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Thresholds {
    /// Phi from which a silence is suspicious; 8 means one false suspicion in 10^8 gaps if gaps were normal.
    pub phi: f64,
    /// Gap expected before any was measured.
    pub gap_expected_ns: u64,
    /// Deviation is never taken as smaller than this, so that a very regular primary is not suspected for a hiccup.
    pub deviation_ns_min: u64,
    /// A silence shorter than this is never suspicious.
    pub silence_ns_min: u64,
    /// A silence longer than this is always suspicious.
    pub silence_ns_max: u64,
    /// A silence shorter than the longest remembered gap times this is not suspicious; 0 turns it off. A busy machine
    /// answers mostly at once and now and then very late, which mean and deviation do not tell.
    pub longest_factor: f64,
    /// Gaps remembered, 1 to [`WINDOW_MAX`].
    pub window: usize,
    /// Consecutive refused probes (an error rather than silence) that are suspicious; at least 1.
    pub refusals: u32,
    /// Patience is multiplied by this while the storage completes requests; at least 1.
    pub busy_factor: f64,
    /// Storage requests in flight with none completing for this long are suspicious; 0 turns it off.
    pub storage_silence_ns: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Thresholds {
            phi: 8.0,
            gap_expected_ns: 60 * MS,
            deviation_ns_min: 20 * MS,
            silence_ns_min: 250 * MS,
            silence_ns_max: 2_000 * MS,
            longest_factor: 1.25,
            window: 400,
            refusals: 2,
            busy_factor: 1.5,
            storage_silence_ns: 1_500 * MS,
        }
    }
}

/// Something seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A probe was answered as a healthy primary answers.
    Answer,
    /// A probe was refused: no listener, closed connection, or an answer that says "not serving".
    Refusal,
    /// Counters of the primary's block devices: requests completed ever, and requests in flight now.
    Storage { completed: u64, in_flight: u32 },
    /// Nothing; only the time moved on.
    Nothing,
}

/// What to think of the primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It answers as it should.
    Trust,
    /// It may be gone. `since` is when it last was well.
    Suspect { since: Nanos, why: Why },
}

/// Why it is suspected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Probes are not answered.
    Silence,
    /// Probes are refused.
    Refused,
    /// Its storage requests do not complete.
    Storage,
}

/// The detector for one primary. Make a new one when the endpoint moves.
#[derive(Clone, Debug)]
pub struct Suspicion {
    limits: Thresholds,
    gaps: [u64; WINDOW_MAX],
    gap_count: usize,
    gap_next: usize,
    answered_at: Nanos,
    refusals: u32,
    completed: u64,
    completed_at: Nanos,
    in_flight: u32,
    suspected: Option<(Nanos, Why)>,
}

impl Suspicion {
    /// A detector that trusts, as if an answer had come `now`.
    pub fn new(limits: Thresholds, now: Nanos) -> Suspicion {
        assert!((1..=WINDOW_MAX).contains(&limits.window) && limits.refusals >= 1, "thresholds were validated before");
        Suspicion {
            limits,
            gaps: [0; WINDOW_MAX],
            gap_count: 0,
            gap_next: 0,
            answered_at: now,
            refusals: 0,
            completed: 0,
            completed_at: now,
            in_flight: 0,
            suspected: None,
        }
    }

    /// Takes in what was seen and returns the verdict.
    pub fn step(&mut self, now: Nanos, seen: Seen) -> Verdict {
        match seen {
            Seen::Answer => self.answer(now),
            Seen::Refusal => self.refusals = self.refusals.saturating_add(1),
            Seen::Storage { completed, in_flight } => self.storage(now, completed, in_flight),
            Seen::Nothing => {}
        }
        match self.suspected {
            Some((since, why)) => Verdict::Suspect { since, why },
            None => self.judge(now),
        }
    }

    /// How unlikely the present silence is; see [`Thresholds::phi`].
    pub fn phi(&self, now: Nanos) -> f64 {
        let (mean, deviation) = self.gap_statistics();
        phi_of((now.saturating_sub(self.answered_at)) as f64, mean, deviation)
    }

    /// When the last answer came.
    pub fn answered_at(&self) -> Nanos {
        self.answered_at
    }

    fn answer(&mut self, now: Nanos) {
        let gap = now.saturating_sub(self.answered_at);
        self.answered_at = now;
        self.refusals = 0;
        // A long gap that ended a suspicion is an outage, not a sample of how this primary answers when it is well. A
        // short one was a false alarm, to be learnt from.
        let storage_stalled = self.storage_stalled(now);
        if self.suspected.is_none() || gap <= self.limits.silence_ns_max {
            self.remember(gap);
        }
        if !storage_stalled {
            self.suspected = None;
        }
    }

    fn remember(&mut self, gap: u64) {
        self.gaps[self.gap_next] = gap;
        self.gap_next = (self.gap_next + 1) % self.limits.window;
        self.gap_count = (self.gap_count + 1).min(self.limits.window);
    }

    fn storage(&mut self, now: Nanos, completed: u64, in_flight: u32) {
        // An idle storage is not silent: the clock of its silence starts with the first request that waits.
        if completed != self.completed || in_flight == 0 || self.in_flight == 0 {
            self.completed_at = now;
        }
        self.completed = completed;
        self.in_flight = in_flight;
    }

    fn storage_stalled(&self, now: Nanos) -> bool {
        let silence = now.saturating_sub(self.completed_at);
        self.limits.storage_silence_ns > 0 && self.in_flight > 0 && silence >= self.limits.storage_silence_ns
    }

    fn judge(&mut self, now: Nanos) -> Verdict {
        let why = if self.refusals >= self.limits.refusals {
            Some((self.answered_at, Why::Refused))
        } else if self.silent(now) {
            Some((self.answered_at, Why::Silence))
        } else if self.storage_stalled(now) {
            Some((self.completed_at, Why::Storage))
        } else {
            None
        };
        self.suspected = why;
        why.map_or(Verdict::Trust, |(since, why)| Verdict::Suspect { since, why })
    }

    fn silent(&self, now: Nanos) -> bool {
        let silence = now.saturating_sub(self.answered_at);
        if silence >= self.limits.silence_ns_max {
            return true;
        }
        let busy = self.in_flight > 0 && self.completed_at > self.answered_at;
        let patience = if busy { self.limits.busy_factor } else { 1.0 };
        let judged = silence as f64 / patience;
        let longest = self.gaps[..self.gap_count].iter().max().map_or(0.0, |&gap| gap as f64);
        let patience_ns = (self.limits.silence_ns_min as f64).max(longest * self.limits.longest_factor);
        let (mean, deviation) = self.gap_statistics();
        judged >= patience_ns && phi_of(judged, mean, deviation) >= self.limits.phi
    }

    fn gap_statistics(&self) -> (f64, f64) {
        let floor = self.limits.deviation_ns_min as f64;
        if self.gap_count == 0 {
            return (self.limits.gap_expected_ns as f64, floor);
        }
        let gaps = &self.gaps[..self.gap_count];
        let mean = gaps.iter().map(|&gap| gap as f64).sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|&gap| (gap as f64 - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance.sqrt().max(floor))
    }
}

/// `-log10` of the chance that a normal gap exceeds `gap`, by the logistic approximation of the normal tail
/// (relative error of the tail stays below a few percent where thresholds lie).
fn phi_of(gap: f64, mean: f64, deviation: f64) -> f64 {
    let y = (gap - mean) / deviation;
    let exponent = -y * (1.5976 + 0.070_566 * y * y);
    // At the ends the tail is 1 or e^exponent; its logarithm must not pass through numbers that over- or underflow.
    if exponent > 30.0 {
        0.0
    } else if exponent < -30.0 {
        -exponent / std::f64::consts::LN_10
    } else {
        let odds = exponent.exp();
        -(odds / (1.0 + odds)).log10()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn fed(gap_ms: u64, count: u64) -> (Suspicion, Nanos) {
        let mut detector = Suspicion::new(Thresholds::default(), 0);
        for i in 1..=count {
            assert_eq!(detector.step(i * gap_ms * MS, Seen::Answer), Verdict::Trust);
        }
        (detector, count * gap_ms * MS)
    }

    /// Milliseconds of silence until suspicion, asking every millisecond.
    fn patience_ms(detector: &mut Suspicion, from: Nanos) -> u64 {
        (1..10_000)
            .find(|&ms| detector.step(from + ms * MS, Seen::Nothing) != Verdict::Trust)
            .expect("suspected at last")
    }

    #[test]
    fn model_regular_primary_is_suspected_within_300_ms() {
        let (mut detector, now) = fed(55, 100);
        assert!((250..=300).contains(&patience_ms(&mut detector, now)));
        assert_eq!(detector.step(now + 400 * MS, Seen::Answer), Verdict::Trust);
    }

    #[test]
    fn model_irregular_primary_gets_more_patience_up_to_the_cap() {
        let mut detector = Suspicion::new(Thresholds::default(), 0);
        let mut now = 0;
        for i in 0..64 {
            now += if i % 4 == 0 { 240 } else { 40 } * MS;
            detector.step(now, Seen::Answer);
        }
        let patience = patience_ms(&mut detector, now);
        assert!((400..=2000).contains(&patience), "{patience}");
    }

    #[test]
    fn model_refusals_are_suspicious_at_once() {
        let (mut detector, now) = fed(55, 10);
        assert_eq!(detector.step(now + MS, Seen::Refusal), Verdict::Trust);
        let verdict = detector.step(now + 2 * MS, Seen::Refusal);
        assert_eq!(verdict, Verdict::Suspect { since: now, why: Why::Refused });
    }

    #[test]
    fn model_stalled_storage_is_suspicious_though_probes_are_answered() {
        let mut detector = Suspicion::new(Thresholds::default(), 0);
        let mut verdict = Verdict::Trust;
        for i in 1..=60 {
            detector.step(i * 50 * MS, Seen::Answer);
            verdict = detector.step(i * 50 * MS + 1, Seen::Storage { completed: 7, in_flight: 1 });
        }
        assert!(matches!(verdict, Verdict::Suspect { why: Why::Storage, .. }));
        detector.step(3100 * MS, Seen::Storage { completed: 8, in_flight: 0 });
        assert_eq!(detector.step(3101 * MS, Seen::Answer), Verdict::Trust);
    }

    #[test]
    fn model_idle_storage_is_not_silent() {
        let mut detector = Suspicion::new(Thresholds::default(), 0);
        for i in 1..=200 {
            let in_flight = u32::from(i == 200);
            let seen = Seen::Storage { completed: 7, in_flight };
            detector.step(i * 50 * MS, Seen::Answer);
            assert_eq!(detector.step(i * 50 * MS, seen), Verdict::Trust);
        }
    }

    #[test]
    fn model_a_false_alarm_is_learnt_from() {
        let (mut detector, now) = fed(55, 100);
        assert!(patience_ms(&mut detector, now) <= 300);
        let healed = now + 600 * MS;
        assert_eq!(detector.step(healed, Seen::Answer), Verdict::Trust);
        assert!((700..=2000).contains(&patience_ms(&mut detector, healed)));
    }

    proptest! {
        #[test]
        fn model_silence_bounds_hold(gaps in proptest::collection::vec(1u64..400, 1..100)) {
            let mut detector = Suspicion::new(Thresholds::default(), 0);
            let mut now = 0;
            for gap in gaps {
                now += gap * MS;
                detector.step(now, Seen::Answer);
            }
            let patience = patience_ms(&mut detector, now);
            prop_assert!((250..=2000).contains(&patience), "{}", patience);
        }

        #[test]
        fn model_phi_grows_with_silence(mean in 1e6f64..1e9, deviation in 1e6f64..1e9, a in 0f64..1e10, b in 0f64..1e10) {
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            prop_assert!(phi_of(low, mean, deviation) <= phi_of(high, mean, deviation) + 1e-9);
        }
    }
}
