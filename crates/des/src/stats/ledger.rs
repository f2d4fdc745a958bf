//! An account of everything in flight.
//!
//! Owns: when each thing began and whether it ended. Never: forgets what had not ended.
//! Invariant: started = finished + in flight, at every moment and in every report.

use super::exact::{Exact, Quantiles};
use super::survival::{Estimate, Survival};
use segue_types::Nanos;
use serde::Serialize;

/// Names a thing in flight; plain data, to be kept in events. Never reused within one ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Flight(u32);

#[derive(Clone, Copy)]
struct Entry {
    started_at: Nanos,
    /// `None` while in flight.
    took_ns: Option<Nanos>,
}

/// What began, and when it ended: 24 bytes for each.
#[derive(Clone, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
    finished: usize,
}

impl Ledger {
    /// An empty ledger.
    pub const fn new() -> Ledger {
        Ledger { entries: Vec::new(), finished: 0 }
    }

    /// Something begins.
    ///
    /// # Panics
    /// After 2^32 of them.
    pub fn start(&mut self, now: Nanos) -> Flight {
        let flight = Flight(u32::try_from(self.entries.len()).expect("fewer than 2^32 flights in a run"));
        self.entries.push(Entry { started_at: now, took_ns: None });
        flight
    }

    /// It ends; how long it took, nanoseconds.
    ///
    /// # Panics
    /// When it has ended before, or ends before it began: a bug of the model.
    pub fn finish(&mut self, flight: Flight, now: Nanos) -> Nanos {
        let entry = &mut self.entries[flight.0 as usize];
        assert!(entry.took_ns.is_none(), "{flight:?} ended twice");
        assert!(entry.started_at <= now, "{flight:?} ended before it began");
        self.finished += 1;
        *entry.took_ns.insert(now - entry.started_at)
    }

    /// Things that have begun.
    pub const fn started(&self) -> usize {
        self.entries.len()
    }

    /// Things that have ended.
    pub const fn finished(&self) -> usize {
        self.finished
    }

    /// Things in flight.
    pub const fn in_flight(&self) -> usize {
        self.entries.len() - self.finished
    }

    /// The end of the run.
    ///
    /// # Panics
    /// When something began after it.
    pub fn close(self, end: Nanos) -> Account {
        assert!(self.entries.iter().all(|e| e.started_at <= end), "a run ends after all that is in it began");
        Account { entries: self.entries, end }
    }
}

/// A closed ledger.
#[derive(Clone)]
pub struct Account {
    entries: Vec<Entry>,
    end: Nanos,
}

impl Account {
    /// What began at `warm_up_end` or later. Cutting by the begin and not by the end keeps slow things in.
    pub fn since(&self, warm_up_end: Nanos) -> Lives {
        let mut lives = Lives::default();
        for entry in self.entries.iter().filter(|e| e.started_at >= warm_up_end) {
            match entry.took_ns {
                Some(took) => lives.finished_ns.push(took),
                None => lives.in_flight_ns.push(self.end - entry.started_at),
            }
        }
        lives
    }
}

/// Durations of what ended and ages of what had not.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Lives {
    /// Durations, nanoseconds.
    pub finished_ns: Vec<Nanos>,
    /// Ages at the end of the run, nanoseconds.
    pub in_flight_ns: Vec<Nanos>,
}

/// The account in figures: the naive ones, of what ended, and the estimate that counts what had not. If they differ, the
/// naive ones are of the lucky.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Began.
    pub started: u64,
    /// Ended.
    pub finished: u64,
    /// Had not ended.
    pub in_flight: u64,
    /// Age of the oldest in flight, nanoseconds; 0 of none.
    pub oldest_ns: Nanos,
    /// Of what ended.
    pub naive: Quantiles,
    /// Of all.
    pub estimate: Estimate,
}

impl Lives {
    /// Adds those of another run, to be reported together.
    pub fn merge(&mut self, other: &Lives) {
        self.finished_ns.extend_from_slice(&other.finished_ns);
        self.in_flight_ns.extend_from_slice(&other.in_flight_ns);
    }

    /// The share of all things that surely took at least `threshold_ns`: those that ended and did, and those in flight that
    /// are that old. 0 of none.
    pub fn share_from(&self, threshold_ns: Nanos) -> f64 {
        let all = self.finished_ns.iter().chain(&self.in_flight_ns);
        let count = self.finished_ns.len() + self.in_flight_ns.len();
        all.filter(|ns| **ns >= threshold_ns).count() as f64 / count.max(1) as f64
    }

    /// The product-limit estimate.
    pub fn survival(&self) -> Survival {
        Survival::new(&self.finished_ns, &self.in_flight_ns)
    }

    /// All figures.
    pub fn report(&self) -> Report {
        let (finished, in_flight) = (self.finished_ns.len() as u64, self.in_flight_ns.len() as u64);
        Report {
            started: finished + in_flight,
            finished,
            in_flight,
            oldest_ns: self.in_flight_ns.iter().copied().max().unwrap_or(0),
            naive: Exact::new(self.finished_ns.clone()).figures(),
            estimate: self.survival().figures(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    #[test]
    fn nothing_is_lost() {
        let mut chance = Chance::new(2);
        let (mut ledger, mut open, mut now) = (Ledger::new(), Vec::new(), 0);
        let (mut finished, mut warm) = (0, 0);
        for _ in 0..5_000 {
            now += chance.below(10);
            if chance.odds(11, 20) || open.is_empty() {
                open.push((ledger.start(now), now));
                warm += u64::from(now >= 1_000);
            } else {
                let (flight, from) = open.swap_remove(chance.below(open.len() as u64) as usize);
                assert_eq!(ledger.finish(flight, now), now - from);
                finished += 1;
            }
            assert_eq!(ledger.started(), ledger.finished() + ledger.in_flight());
            assert_eq!((ledger.finished(), ledger.in_flight()), (finished, open.len()));
        }
        let account = ledger.close(now + 5);
        let report = account.since(0).report();
        assert_eq!((report.finished, report.in_flight), (finished as u64, open.len() as u64));
        assert_eq!(report.oldest_ns, open.iter().map(|(_, from)| now + 5 - from).max().unwrap());
        assert_eq!(account.since(1_000).report().started, warm);
        assert_eq!(account.since(now + 6).report().started, 0);
    }

    #[test]
    fn old_flights_count_as_slow() {
        let mut lives = Lives { finished_ns: vec![1, 2, 8], in_flight_ns: vec![9, 1] };
        assert_eq!(lives.share_from(8), 0.4);
        lives.merge(&Lives { finished_ns: vec![9], in_flight_ns: vec![] });
        assert_eq!((lives.share_from(8), lives.report().started), (0.5, 6));
    }

    #[test]
    #[should_panic(expected = "ended twice")]
    fn an_end_comes_once() {
        let mut ledger = Ledger::new();
        let flight = ledger.start(1);
        ledger.finish(flight, 2);
        ledger.finish(flight, 3);
    }
}
