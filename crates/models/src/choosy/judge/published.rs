//! The four published configurations, cold and warm, and SURGE's figures for them.
//!
//! Owns: the scenarios and SURGE's numbers. Never: a figure of ours.
//! Invariant: the cold span is what SURGE published: from rest, chunks that are written by its end.
//!
//! SURGE's figures are those of its models' code at commit 2f08961 (2016-03-05), unmodified, driven by a deterministic clock,
//! 10 seeds; the warm ones 5 seeds, those by start time 3. "Off" is that code with renegotiation disabled, which equals 7c08ff4.

use super::trial::{Span, Trial};
use crate::storage::{Scenario, Sizes};
use segue_types::Nanos;
use serde::Serialize;

/// A row of SURGE's figures, cold start.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SurgeRow {
    /// Chunks of a run that were written by its end.
    pub chunks: f64,
    /// Mean latency, microseconds.
    pub mean_us: f64,
    /// Median, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// The slowest of 10 runs, microseconds.
    pub max_us: f64,
    /// Users' data, GB/s.
    pub gb_per_s: f64,
    /// Renegotiations of a run.
    pub renegotiations: f64,
}

/// SURGE's improvement by the time a chunk starts.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SurgeStart {
    /// From this time on, milliseconds.
    pub from_ms: u64,
    /// Before this one, milliseconds.
    pub until_ms: u64,
    /// Improvement of the mean, percent.
    pub gain: f64,
    #[serde(skip)]
    name: &'static str,
}

/// SURGE's figures for one configuration.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Surge {
    /// Improvement of the mean by renegotiation, cold start, percent: Figures 5 and 6.
    pub cold_gain: f64,
    /// The same once warm, percent.
    pub steady_gain: f64,
    /// Mean latency once warm, off and on, microseconds.
    pub steady_mean_us: [f64; 2],
    /// 99th percentile once warm, off and on, microseconds.
    pub steady_p99_us: [f64; 2],
    /// Cold start, renegotiation off.
    pub off: SurgeRow,
    /// Cold start, renegotiation on.
    pub on: SurgeRow,
    /// Improvement by start time.
    pub by_start: &'static [SurgeStart],
}

/// A published configuration: 90 initiators, 90 targets in groups of 9, 3 copies, closed loop, all starting at time 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Configuration {
    /// Size of every chunk, bytes.
    pub chunk_bytes: u64,
    /// Each drive's rate, MiB/s.
    pub drive_mbps: u64,
    /// The published run, nanoseconds.
    pub cold_ns: Nanos,
    /// What is cut from the start of the steady run, nanoseconds.
    pub warm_up_ns: Nanos,
    /// Chunks created before this are looked at in the steady run, nanoseconds.
    pub steady_ns: Nanos,
    /// The steady run goes on for so long after that, so that the slow ones end, nanoseconds.
    pub drain_ns: Nanos,
    /// SURGE's figures.
    pub surge: Surge,
}

const fn row(chunks: f64, us: [f64; 4], gb_per_s: f64, renegotiations: f64) -> SurgeRow {
    SurgeRow { chunks, mean_us: us[0], p50_us: us[1], p99_us: us[2], max_us: us[3], gb_per_s, renegotiations }
}

const fn start(name: &'static str, from_ms: u64, until_ms: u64, gain: f64) -> SurgeStart {
    SurgeStart { from_ms, until_ms, gain, name }
}

const MS: Nanos = 1_000_000;

/// The four configurations.
pub const CONFIGURATIONS: [Configuration; 4] = [
    Configuration {
        chunk_bytes: 128 << 10,
        drive_mbps: 400,
        cold_ns: 10 * MS,
        warm_up_ns: 10 * MS,
        steady_ns: 60 * MS,
        drain_ns: 15 * MS,
        surge: Surge {
            cold_gain: 7.0,
            steady_gain: 0.3,
            steady_mean_us: [1090.5, 1087.0],
            steady_p99_us: [2204.0, 2162.0],
            off: row(728.0, [1167.5, 1014.0, 3256.0, 6069.0], 9.54, 0.0),
            on: row(780.0, [1085.7, 994.0, 2161.0, 3167.0], 10.23, 527.0),
            by_start: &[
                start("0-1 ms", 0, 1, 38.1),
                start("1-2 ms", 1, 2, -6.6),
                start("2-4 ms", 2, 4, -2.5),
                start("4-6 ms", 4, 6, -0.9),
                start("6-8 ms", 6, 8, 0.9),
                start("8-10 ms", 8, 10, -3.5),
                start("10-15 ms", 10, 15, -1.4),
                start("15-20 ms", 15, 20, -2.4),
                start("20-30 ms", 20, 30, -0.6),
                start("30-40 ms", 30, 40, 0.9),
            ],
        },
    },
    Configuration {
        chunk_bytes: 128 << 10,
        drive_mbps: 1_000,
        cold_ns: 10 * MS,
        warm_up_ns: 10 * MS,
        steady_ns: 60 * MS,
        drain_ns: 10 * MS,
        surge: Surge {
            cold_gain: 11.5,
            steady_gain: 2.6,
            steady_mean_us: [599.7, 583.9],
            steady_p99_us: [957.0, 900.0],
            off: row(1313.0, [665.8, 637.0, 1570.0, 2885.0], 17.21, 0.0),
            on: row(1482.0, [589.3, 544.0, 989.0, 1642.0], 19.43, 540.0),
            by_start: &[
                start("0-1 ms", 0, 1, 33.2),
                start("1-2 ms", 1, 2, 9.8),
                start("2-4 ms", 2, 4, 9.9),
                start("4-6 ms", 4, 6, 8.0),
                start("6-8 ms", 6, 8, 7.5),
                start("8-10 ms", 8, 10, 6.1),
                start("10-15 ms", 10, 15, 4.0),
                start("15-20 ms", 15, 20, 1.8),
                start("20-30 ms", 20, 30, 2.3),
                start("30-40 ms", 30, 40, 1.7),
            ],
        },
    },
    Configuration {
        chunk_bytes: 1 << 20,
        drive_mbps: 400,
        cold_ns: 40 * MS,
        warm_up_ns: 60 * MS,
        steady_ns: 300 * MS,
        drain_ns: 80 * MS,
        surge: Surge {
            cold_gain: 17.5,
            steady_gain: -0.3,
            steady_mean_us: [8548.8, 8571.1],
            steady_p99_us: [16_973.0, 18_867.0],
            off: row(319.0, [9892.7, 7596.0, 30_955.0, 38_455.0], 8.36, 0.0),
            on: row(387.0, [8156.8, 7457.0, 17_569.0, 23_607.0], 10.16, 799.0),
            by_start: &[
                start("0-8 ms", 0, 8, 42.4),
                start("8-16 ms", 8, 16, -5.0),
                start("16-32 ms", 16, 32, -1.5),
                start("32-48 ms", 32, 48, -1.9),
                start("48-64 ms", 48, 64, 2.7),
                start("64-80 ms", 64, 80, 0.8),
                start("80-100 ms", 80, 100, -1.4),
                start("100-150 ms", 100, 150, 1.3),
            ],
        },
    },
    Configuration {
        chunk_bytes: 1 << 20,
        drive_mbps: 1_000,
        cold_ns: 40 * MS,
        warm_up_ns: 40 * MS,
        steady_ns: 200 * MS,
        drain_ns: 50 * MS,
        surge: Surge {
            cold_gain: 14.2,
            steady_gain: 0.9,
            steady_mean_us: [4450.7, 4410.9],
            steady_p99_us: [6353.0, 6130.0],
            off: row(658.0, [5173.2, 4158.0, 14_406.0, 22_708.0], 17.24, 0.0),
            on: row(768.0, [4436.4, 4148.0, 7700.0, 12_886.0], 20.12, 785.0),
            by_start: &[
                start("0-8 ms", 0, 8, 40.4),
                start("8-16 ms", 8, 16, 7.3),
                start("16-32 ms", 16, 32, 4.2),
                start("32-48 ms", 32, 48, 2.4),
                start("48-64 ms", 48, 64, 1.8),
                start("64-80 ms", 64, 80, 0.9),
                start("80-100 ms", 80, 100, 0.4),
                start("100-150 ms", 100, 150, 0.0),
            ],
        },
    },
];

/// The configuration of Figures 3 and 4, by its place in [`CONFIGURATIONS`].
pub const TAIL_CONFIGURATION: usize = 3;

/// SURGE's share of chunks, percent, with a latency of so many milliseconds or more, off and on, cold start of
/// [`TAIL_CONFIGURATION`] (5 seeds): Figures 3 and 4 as numbers.
pub const SURGE_OVER_MS: [(u64, f64, f64); 9] = [
    (5, 38.3, 21.6),
    (6, 19.2, 5.7),
    (7, 11.8, 2.8),
    (8, 8.3, 0.91),
    (9, 6.4, 0.57),
    (10, 4.8, 0.42),
    (12, 2.6, 0.08),
    (15, 0.97, 0.0),
    (20, 0.15, 0.0),
];

impl SurgeStart {
    /// The span's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl Configuration {
    /// The scenario, without times.
    pub fn scenario(&self) -> Scenario {
        Scenario {
            sizes: Sizes::Fixed(self.chunk_bytes),
            drive_bytes_per_s: self.drive_mbps << 20,
            ..Scenario::default()
        }
    }

    /// No protocol's mean latency is below this in the closed loop, nanoseconds: the drives' rate shared by all that is outstanding
    /// (Little 1961), and the time of a chunk that is alone: its transfers one after the other, the last copy's drive, its
    /// acknowledgement.
    pub fn floor_ns(&self) -> Nanos {
        let scenario = self.scenario();
        let outstanding = u128::from(scenario.initiators) * u128::from(self.chunk_bytes) * 1_000_000_000;
        let shared = (outstanding / u128::from(scenario.capacity_bytes_per_s())) as Nanos;
        let timing = scenario.fabric.timing();
        let transfers = u64::from(scenario.copies) * timing.framed_ns(self.chunk_bytes) + timing.trip_ns;
        shared.max(transfers + scenario.drive_ns(0, self.chunk_bytes) + timing.message_ns())
    }

    /// The same with a steady run not much longer than the cold one, for a first look.
    pub const fn quick(self) -> Configuration {
        Configuration { steady_ns: self.warm_up_ns + self.cold_ns / 2, drain_ns: self.cold_ns / 2, ..self }
    }

    /// As published: span `cold`, the chunks that are written when the run ends.
    pub fn cold(&self) -> Trial {
        let span = Span { name: "cold", from_ns: 0, until_ns: self.cold_ns, censored: true };
        Trial { scenario: Scenario { run_ns: self.cold_ns, ..self.scenario() }, spans: vec![span] }
    }

    /// Spans `steady` (after the warm-up, every chunk waited for), `steady_censored`, `cold_uncensored` (the published time with
    /// every chunk waited for), then one for each of SURGE's start times.
    pub fn steady(&self) -> Trial {
        let span = |name, from_ns, until_ns, censored| Span { name, from_ns, until_ns, censored };
        let mut spans = vec![
            span("steady", self.warm_up_ns, self.steady_ns, false),
            span("steady_censored", self.warm_up_ns, self.steady_ns, true),
            span("cold_uncensored", 0, self.cold_ns, false),
        ];
        let known = self.surge.by_start.iter().filter(|s| s.until_ms * MS <= self.steady_ns);
        spans.extend(known.map(|s| span(s.name, s.from_ms * MS, s.until_ms * MS, false)));
        let scenario =
            Scenario { run_ns: self.steady_ns + self.drain_ns, warm_up_ns: self.warm_up_ns, ..self.scenario() };
        Trial { scenario, spans }
    }
}

/// What Figures 3 and 4 show: the cold start of [`TAIL_CONFIGURATION`].
pub fn figure_scenario() -> Scenario {
    CONFIGURATIONS[TAIL_CONFIGURATION].cold().scenario
}
