//! One run of one entrant, and the figures of its chunks.
//!
//! Owns: which chunks a figure is made of, finished or not. Never: compares entrants.
//! Invariant: a chunk that came in a span and is not written at the end is counted as pending, never dropped.

use super::entrants::Entrant;
use crate::storage::{Outcome, Progress, Scenario, Violation};
use segue_des::stats::{Exact, P50, P90, P99, P999};
use segue_types::Nanos;
use serde::Serialize;

/// The blog's line between ordinary latencies and spikes, nanoseconds.
pub const OVER_NS: Nanos = 7_000_000;

/// Chunks by the time of their creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Its name.
    pub name: &'static str,
    /// Chunks created from this time on, nanoseconds.
    pub from_ns: Nanos,
    /// And before this time, nanoseconds.
    pub until_ns: Nanos,
    /// Whether only those count that are also written by `until_ns`, as SURGE does. It hides the slowest ones.
    pub censored: bool,
}

/// A scenario that is run, and what is looked at.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// The scenario; its run goes on after the last span for as long as a chunk may take.
    pub scenario: Scenario,
    /// What is looked at.
    pub spans: Vec<Span>,
}

/// The figures of the chunks of a span.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    /// Chunks written.
    pub chunks: u64,
    /// Chunks not written when the run ended (censored spans: when the span ended). Uncensored figures count them with their age.
    pub pending: u64,
    /// Mean latency, microseconds.
    pub mean_us: f64,
    /// Median, microseconds.
    pub p50_us: f64,
    /// 90th percentile, microseconds.
    pub p90_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, microseconds.
    pub p999_us: f64,
    /// The slowest, microseconds.
    pub max_us: f64,
    /// Share of latencies of 7 ms or more, 0 to 1.
    pub share_over_7ms: f64,
    /// Users' data (one copy) written within the span's times, GB/s (1e9 bytes).
    pub gb_per_s: f64,
}

/// The latencies of the chunks of a span.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    /// Nanoseconds. Of uncensored spans with the ages of chunks that are not written.
    pub latencies_ns: Exact,
    /// Chunks not written.
    pub pending: u64,
    /// Users' data written within the span's times, bytes.
    pub bytes: u64,
    /// The span's length, nanoseconds; of samples of several runs the sum.
    pub span_ns: Nanos,
    /// How many of `latencies_ns` are ages.
    pub ages: u64,
}

/// What one run gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// One for each of the trial's spans.
    pub samples: Vec<Sample>,
    /// Chunks written in the whole run.
    pub chunks: u64,
    /// Renegotiations in the whole run.
    pub renegotiations: u64,
    /// Control messages, one for each receiver, in the whole run.
    pub control_messages: u64,
    /// Accepted windows that overlap another one of the same initiator, in the whole run.
    pub overlaps: u64,
    /// Events handled.
    pub events: u64,
    /// Hash of all events.
    pub trace: u64,
}

impl Trial {
    /// Runs one seed.
    ///
    /// # Errors
    /// The first invariant that the run broke.
    pub fn run(&self, entrant: &Entrant, seed: u64, progress: &mut dyn FnMut(Progress)) -> Result<Run, Violation> {
        let outcome = (entrant.run)(&self.scenario, seed, progress)?;
        Ok(Run {
            samples: self.spans.iter().map(|span| span.sample(&outcome)).collect(),
            chunks: outcome.done.len() as u64,
            renegotiations: outcome.counter("renegotiations"),
            control_messages: outcome.counter("control_messages"),
            overlaps: outcome.counter("overlaps"),
            events: outcome.events,
            trace: outcome.trace,
        })
    }

    /// The place of a span in [`Run::samples`].
    ///
    /// # Panics
    /// When there is none of this name.
    pub fn span(&self, name: &str) -> usize {
        self.spans.iter().position(|span| span.name == name).expect("the trial has this span")
    }
}

impl Span {
    /// The chunks of a run that belong to this span.
    pub fn sample(&self, outcome: &Outcome) -> Sample {
        let came = |created_ns: Nanos| (self.from_ns..self.until_ns).contains(&created_ns);
        let mut sample = Sample { span_ns: self.until_ns - self.from_ns, ..Sample::default() };
        let mut latencies_ns = Vec::new();
        for done in &outcome.done {
            let end_ns = done.chunk.created_ns + done.latency_ns;
            if (self.from_ns..=self.until_ns).contains(&end_ns) {
                sample.bytes += done.chunk.bytes;
            }
            if came(done.chunk.created_ns) {
                if self.censored && end_ns > self.until_ns {
                    sample.pending += 1;
                } else {
                    latencies_ns.push(done.latency_ns);
                }
            }
        }
        for pending in outcome.pending.iter().filter(|p| came(p.chunk.created_ns)) {
            sample.pending += 1;
            if !self.censored {
                latencies_ns.push(pending.age_ns);
                sample.ages += 1;
            }
        }
        sample.latencies_ns = Exact::new(latencies_ns);
        sample
    }
}

/// The samples of several runs as one.
pub fn pool<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Sample {
    let (mut all, mut latencies_ns) = (Sample::default(), Vec::new());
    for sample in samples {
        latencies_ns.extend_from_slice(sample.latencies_ns.values());
        all.pending += sample.pending;
        all.ages += sample.ages;
        all.bytes += sample.bytes;
        all.span_ns += sample.span_ns;
    }
    all.latencies_ns = Exact::new(latencies_ns);
    all
}

impl Sample {
    /// All figures.
    pub fn figures(&self) -> Figures {
        let us = |ns: Nanos| ns as f64 / 1e3;
        let all = &self.latencies_ns;
        Figures {
            chunks: all.count() - self.ages,
            pending: self.pending,
            mean_us: all.mean() / 1e3,
            p50_us: us(all.quantile(P50)),
            p90_us: us(all.quantile(P90)),
            p99_us: us(all.quantile(P99)),
            p999_us: us(all.quantile(P999)),
            max_us: us(all.max()),
            share_over_7ms: all.share_from(OVER_NS),
            gb_per_s: self.bytes as f64 / self.span_ns.max(1) as f64,
        }
    }
}
