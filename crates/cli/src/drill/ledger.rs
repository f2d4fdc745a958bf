//! What the clients know: every acknowledged commit, and apart from them those whose fate is unknown.
//!
//! Owns: the record, in memory and in an append-only file. Never: asks the database.
//! Invariant: a commit is written to the file before it is counted, and nothing is ever taken back.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A commit as a client saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The id the client made up.
    pub id: u64,
    /// When the client knew, nanoseconds since the ledger was opened.
    pub at_ns: u64,
}

/// The record of one run of the load generator.
pub struct Ledger {
    start: Instant,
    run: u64,
    acked: AtomicU64,
    last_ack_ns: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    acked: Vec<Commit>,
    unknown: Vec<Commit>,
}

/// Everything a ledger holds, taken out at the end.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Acknowledged commits in the order in which they were recorded.
    pub acked: Vec<Commit>,
    /// Commits asked for whose answer never came.
    pub unknown: Vec<Commit>,
}

impl Ledger {
    /// Opens a new ledger; the file must not exist.
    ///
    /// # Errors
    /// Those of creating the file.
    pub fn create(path: &Path, run: u64, start: Instant) -> std::io::Result<Ledger> {
        let mut file = File::options().append(true).create_new(true).open(path)?;
        writeln!(file, "segue-ledger-1 run {run}")?;
        let inner = Mutex::new(Inner { file, acked: Vec::new(), unknown: Vec::new() });
        Ok(Ledger { start, run, acked: AtomicU64::new(0), last_ack_ns: AtomicU64::new(0), inner })
    }

    /// The run that its rows in the database carry.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Nanoseconds since it was opened.
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Records an acknowledged commit.
    pub fn ack(&self, id: u64) {
        let mut inner = self.lock();
        // The time is taken under the lock so that the record is in the order of time.
        let at_ns = self.now_ns();
        append(&mut inner.file, "ack", id, at_ns);
        inner.acked.push(Commit { id, at_ns });
        self.acked.fetch_add(1, Relaxed);
        self.last_ack_ns.store(at_ns, Relaxed);
    }

    /// Records a commit that was asked for and never answered.
    pub fn unknown(&self, id: u64) {
        let mut inner = self.lock();
        let at_ns = self.now_ns();
        append(&mut inner.file, "unknown", id, at_ns);
        inner.unknown.push(Commit { id, at_ns });
    }

    /// Acknowledged so far.
    pub fn acked_count(&self) -> u64 {
        self.acked.load(Relaxed)
    }

    /// When the last commit was acknowledged, nanoseconds since the ledger was opened; 0 before the first.
    pub fn last_ack_ns(&self) -> u64 {
        self.last_ack_ns.load(Relaxed)
    }

    /// A copy of everything.
    pub fn contents(&self) -> Contents {
        let inner = self.lock();
        Contents { acked: inner.acked.clone(), unknown: inner.unknown.clone() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds the ledger")
    }
}

fn append(file: &mut File, what: &str, id: u64, at_ns: u64) {
    let line = format!("{what} {id} {at_ns}\n");
    file.write_all(line.as_bytes()).expect("the ledger's file takes a line; is its disk full?");
}

/// The longest time without an acknowledged commit, and what surrounds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Its beginning: the last commit before it (or the fault, when there was none).
    pub from_ns: u64,
    /// Its end: the first commit after it.
    pub to_ns: u64,
}

impl Gap {
    /// Its length, nanoseconds.
    pub fn length_ns(self) -> u64 {
        self.to_ns - self.from_ns
    }
}

impl Contents {
    /// The longest gap between acknowledged commits that ends after `fault_ns`; `None` if none was acknowledged after it.
    ///
    /// A gap that began before the fault is counted from the fault on: what was before is not the fault's doing.
    pub fn longest_gap(&self, fault_ns: u64) -> Option<Gap> {
        let mut from_ns = fault_ns;
        let mut longest: Option<Gap> = None;
        for commit in self.acked.iter().filter(|c| c.at_ns > fault_ns) {
            let gap = Gap { from_ns, to_ns: commit.at_ns };
            if longest.is_none_or(|l| gap.length_ns() > l.length_ns()) {
                longest = Some(gap);
            }
            from_ns = commit.at_ns;
        }
        longest
    }

    /// Commits per bin of `bin_ns`, from `from_ns` to `to_ns`.
    pub fn series(&self, from_ns: u64, to_ns: u64, bin_ns: u64) -> Vec<u32> {
        let mut bins = vec![0u32; (to_ns.saturating_sub(from_ns)).div_ceil(bin_ns) as usize];
        for commit in self.acked.iter().filter(|c| (from_ns..to_ns).contains(&c.at_ns)) {
            bins[((commit.at_ns - from_ns) / bin_ns) as usize] += 1;
        }
        bins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(times: &[u64]) -> Contents {
        let acked = times.iter().enumerate().map(|(i, &at_ns)| Commit { id: i as u64, at_ns }).collect();
        Contents { acked, unknown: Vec::new() }
    }

    #[test]
    fn golden_longest_gap_begins_at_the_fault_or_later() {
        // An answer that was already on its way arrives just after the fault and must not hide the outage.
        let gap = acked(&[1, 90, 103, 900, 905]).longest_gap(100).unwrap();
        assert_eq!(gap, Gap { from_ns: 103, to_ns: 900 });
        assert_eq!(acked(&[1, 600, 601]).longest_gap(100).unwrap(), Gap { from_ns: 100, to_ns: 600 });
        assert_eq!(acked(&[1, 2]).longest_gap(100), None);
    }

    #[test]
    fn golden_series_counts_whole_bins() {
        assert_eq!(acked(&[0, 9, 10, 25, 30]).series(0, 30, 10), vec![2, 1, 1]);
        assert_eq!(acked(&[5]).series(10, 10, 10), Vec::<u32>::new());
    }
}
