//! Nodes: whether they are there, when they get what is sent to them, and what they believe the time is.
//!
//! Owns: crashes, stalls and a clock with offset and drift. Never: holds a machine or a message.
//! Invariant: what was meant for a life of the node never reaches a later one.

use crate::span::{Span, Spans};
use segue_types::Nanos;

/// A life of a node: it changes with each crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Life(pub u32);

/// What to do with an event that is due at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// Hand it over.
    Now,
    /// The node is stalled; come back then.
    At(Nanos),
    /// The node is down, or the event was meant for an earlier life.
    Never,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Host {
    life: Life,
    /// `Some` while it is down: when it comes back, if it does.
    down: Option<Option<Nanos>>,
    stalls: Spans<()>,
    clock: HostClock,
}

impl Default for Host {
    fn default() -> Self {
        Host::new(HostClock::TRUE)
    }
}

impl Host {
    /// A node that is up.
    pub const fn new(clock: HostClock) -> Host {
        Host { life: Life(0), down: None, stalls: Spans::none(), clock }
    }

    /// Its present or, while it is down, last life.
    pub const fn life(&self) -> Life {
        self.life
    }

    /// True while it is up.
    pub const fn is_up(&self) -> bool {
        self.down.is_none()
    }

    /// It loses what it had, and a stall that holds now ends. Whoever drives it calls [`Host::restart`] at `back_ns`, if
    /// there is one. A crash of a node that is down replaces the time of its return.
    pub fn crash(&mut self, now: Nanos, back_ns: Option<Nanos>) {
        self.down = Some(back_ns);
        self.stalls.end_present(now);
    }

    /// When it comes back, while it is down.
    pub fn back_ns(&self) -> Option<Nanos> {
        self.down.flatten()
    }

    /// It is up again, with a new life.
    ///
    /// # Panics
    /// When it is up.
    pub fn restart(&mut self) -> Life {
        assert!(self.down.is_some(), "only a node that is down restarts");
        self.down = None;
        self.life = Life(self.life.0 + 1);
        self.life
    }

    /// It does nothing during the span; what comes meanwhile is delivered at its end.
    ///
    /// # Panics
    /// When the span has no end: that is a crash.
    pub fn stall(&mut self, span: Span) {
        assert!(span.until_ns.is_some(), "a stall ends; a node that never answers again has crashed");
        self.stalls.add(span, ());
    }

    /// What to do at `now` with an event for that life of the node.
    pub fn deliver(&self, now: Nanos, to: Life) -> Delivery {
        if self.down.is_some() || to != self.life {
            return Delivery::Never;
        }
        // Stalls may chain: the end of one may lie in another.
        let mut at_ns = now;
        while let Some(end_ns) = self.stalls.at(at_ns).filter_map(|(span, ())| span.until_ns).max() {
            at_ns = end_ns;
        }
        if at_ns == now { Delivery::Now } else { Delivery::At(at_ns) }
    }

    /// Its clock.
    pub const fn clock(&self) -> &HostClock {
        &self.clock
    }

    /// Sets its clock, as an operator or a time service does.
    pub const fn set_clock(&mut self, clock: HostClock) {
        self.clock = clock;
    }
}

/// A clock that is wrong by an offset that grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostClock {
    /// True time at which the offset holds.
    pub since_ns: Nanos,
    /// What it reads too much, nanoseconds.
    pub offset_ns: i64,
    /// How much too fast it runs, in parts of a billion; above -1,000,000,000.
    pub drift_ppb: i64,
}

impl HostClock {
    /// The true time.
    pub const TRUE: HostClock = HostClock { since_ns: 0, offset_ns: 0, drift_ppb: 0 };

    /// What it reads at a true time; never below 0.
    pub fn reads(&self, now: Nanos) -> Nanos {
        let passed = i128::from(now) - i128::from(self.since_ns);
        let gained = (passed * i128::from(self.drift_ppb)).div_euclid(1_000_000_000);
        u64::try_from((i128::from(now) + i128::from(self.offset_ns) + gained).max(0)).unwrap_or(u64::MAX)
    }

    /// The first true time, from `now` on, at which it reads `reading` or more: when a timer of the node goes off.
    pub fn when(&self, now: Nanos, reading: Nanos) -> Nanos {
        let (mut low, mut high) = (now, now);
        if self.reads(now) >= reading {
            return now;
        }
        let mut step = reading - self.reads(now);
        while self.reads(high) < reading {
            low = high;
            high = high.saturating_add(step);
            step = step.saturating_mul(2);
            assert!(low < high, "a clock that never reads {reading}");
        }
        // It reads less at `low` and not at `high`, and never runs backwards.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.reads(middle) < reading { low = middle } else { high = middle }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    #[test]
    fn fault_a_crash_ends_a_life() {
        let mut host = Host::default();
        let first = host.life();
        assert_eq!(host.deliver(5, first), Delivery::Now);
        host.crash(5, Some(90));
        assert_eq!((host.deliver(6, first), host.back_ns(), host.is_up()), (Delivery::Never, Some(90), false));
        let second = host.restart();
        assert_eq!((host.deliver(90, first), host.deliver(90, second)), (Delivery::Never, Delivery::Now));
        host.crash(91, None);
        assert_eq!((host.back_ns(), host.life()), (None, second));
    }

    #[test]
    fn fault_a_stall_puts_events_off_to_its_end() {
        let mut host = Host::default();
        host.stall(Span::new(10, 20));
        host.stall(Span::new(15, 30));
        host.stall(Span::new(30, 31));
        let at = |now| host.deliver(now, Life(0));
        assert_eq!([at(9), at(10), at(29), at(31)].map(|d| d == Delivery::Now), [true, false, false, true]);
        assert_eq!((at(10), at(30)), (Delivery::At(31), Delivery::At(31)), "stalls chain");
        host.stall(Span::new(500, 600));
        host.crash(11, None);
        host.restart();
        assert_eq!(host.deliver(12, Life(1)), Delivery::Now, "a new life is not stalled by the old one's");
        assert_eq!(host.deliver(500, Life(1)), Delivery::At(600), "what is planned for later stays");
    }

    #[test]
    fn clocks_drift_from_where_they_were_set() {
        let clock = HostClock { since_ns: 1_000_000_000, offset_ns: -500, drift_ppb: 100_000 };
        assert_eq!(clock.reads(1_000_000_000), 999_999_500);
        assert_eq!(clock.reads(2_000_000_000), 2_000_099_500, "100 us a second");
        assert_eq!(HostClock { offset_ns: -50, ..HostClock::TRUE }.reads(20), 0);
    }

    #[test]
    fn model_timers_go_off_at_the_first_instant_of_their_reading() {
        let mut chance = Chance::new(2);
        for _ in 0..2000 {
            let clock = HostClock {
                since_ns: chance.below(1_000_000_000),
                offset_ns: chance.below(2_000_000) as i64 - 1_000_000,
                drift_ppb: chance.below(1_000_000_000) as i64 - 500_000_000,
            };
            let now = 2_000_000 + chance.below(1_000_000_000);
            let reading = clock.reads(now) + chance.below(1_000_000);
            let when = clock.when(now, reading);
            assert!(clock.reads(when) >= reading, "{clock:?}: reads less at {when}");
            assert!(when == now || clock.reads(when - 1) < reading, "{clock:?}: {when} is late");
        }
    }
}
