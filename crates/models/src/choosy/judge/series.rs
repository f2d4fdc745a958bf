//! Latency chunk by chunk: the blog's Figures 3 and 4.
//!
//! Owns: their order and the moving average. Never: drops a spike.
//! Invariant: points are in order of creation, and of one time in order of initiators.

use crate::storage::Outcome;
use segue_types::Nanos;

/// A chunk of the series.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Point {
    /// When it came, nanoseconds.
    pub created_ns: Nanos,
    /// Who wrote it.
    pub initiator: u32,
    /// Its latency, nanoseconds.
    pub latency_ns: Nanos,
}

/// The chunks of a run that are written by its end, in order of creation.
pub fn points(outcome: &Outcome) -> Vec<Point> {
    let point = |d: &crate::storage::Done| Point {
        created_ns: d.chunk.created_ns,
        initiator: d.chunk.initiator,
        latency_ns: d.latency_ns,
    };
    let mut points: Vec<Point> = outcome.done.iter().map(point).collect();
    points.sort_unstable();
    points
}

/// The mean of each latency and of the up to `window - 1` before it, nanoseconds.
///
/// # Panics
/// When `window` is 0.
pub fn moving_average(points: &[Point], window: usize) -> Vec<f64> {
    assert!(window > 0, "an average of nothing");
    let mut sum = 0;
    let average = |n: usize| {
        sum += points[n].latency_ns;
        if n >= window {
            sum -= points[n - window].latency_ns;
        }
        sum as f64 / window.min(n + 1) as f64
    };
    (0..points.len()).map(average).collect()
}
