//! What happened when: the timeline of a monitor.
//!
//! Owns: the entries and who listens to them. Never: drops or reorders one within its bound.
//! Invariant: entries are in the order of their times.

use super::clock;
use segue_types::Nanos;
use serde::Serialize;
use std::sync::{Arc, Mutex};

/// Entries kept; older ones are forgotten (a monitor may run for years).
const ENTRIES_MAX: usize = 10_000;

/// One line of the timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Nanoseconds of the machine's monotonic clock.
    pub t_ns: Nanos,
    /// Milliseconds of Unix time, for people.
    pub unix_ms: u64,
    /// What: `suspected`, `super`, `backup_started`, `recovery_done`, `collapse`, `promoted`, `endpoint_moved`,
    /// `primary_stopped`, and so on; see `segue_failover::race::Mark` and the steps of a start.
    pub event: String,
    /// More, for people; may be empty.
    pub detail: String,
}

/// Called with each new entry.
pub type Listener = Box<dyn Fn(&Entry) + Send + Sync>;

/// A shared timeline. Cheap to clone.
#[derive(Clone, Default)]
pub struct Timeline(Arc<Inner>);

#[derive(Default)]
struct Inner {
    entries: Mutex<Vec<Entry>>,
    listener: Option<Listener>,
}

impl Timeline {
    /// A timeline whose listener is called with each entry, in order; it must not block for long.
    pub fn new(listener: Option<Listener>) -> Timeline {
        Timeline(Arc::new(Inner { entries: Mutex::default(), listener }))
    }

    /// Adds an entry with the present time.
    pub fn add(&self, event: &str, detail: impl Into<String>) {
        let mut entries = self.0.entries.lock().expect("nothing panics while holding it");
        let entry =
            Entry { t_ns: clock::now_ns(), unix_ms: clock::unix_ms(), event: event.to_owned(), detail: detail.into() };
        if let Some(listener) = &self.0.listener {
            listener(&entry);
        }
        if entries.len() == ENTRIES_MAX {
            entries.drain(..ENTRIES_MAX / 2);
        }
        entries.push(entry);
    }

    /// Adds an entry unless the last one says the same: for what is tried again and again.
    pub fn add_once(&self, event: &str, detail: String) {
        let same = |entry: &Entry| entry.event == event && entry.detail == detail;
        let repeated = self.0.entries.lock().expect("nothing panics while holding it").last().is_some_and(same);
        if !repeated {
            self.add(event, detail);
        }
    }

    /// All entries so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.0.entries.lock().expect("nothing panics while holding it").clone()
    }
}
