//! What a drill found, as programs read it (`segue.drill.v1`).
//!
//! Owns: the report's shape and how it is put together from the ledger and the timeline. Never: measures by itself.
//! Invariant: times are seconds relative to the fault; negative is before it.

use super::ledger::Contents;
use super::load::Counts;
use super::verify::Verdict;
use serde::Serialize;

/// Length of a bin of the plot, nanoseconds.
pub const BIN_NS: u64 = 100_000_000;
/// How much of the time before the fault the plot shows, nanoseconds.
const BEFORE_NS: u64 = 3_000_000_000;

/// Something that happened.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Mark {
    /// What: `fault`, `suspected`, `super`, `backup_started`, `recovery_done`, `collapse`, `endpoint_moved`,
    /// `first_commit`, and others in the monitor's words.
    pub event: String,
    /// When, seconds after the fault.
    pub at_s: f64,
}

/// Commits over time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Series {
    /// Length of a bin, seconds.
    pub bin_s: f64,
    /// Where the first bin begins, seconds after the fault.
    pub from_s: f64,
    /// Acknowledged commits in each bin.
    pub commits: Vec<u32>,
}

/// What was drilled.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Setup {
    /// The application's name.
    pub app: String,
    /// `speculative`, `reds` or `oracle`.
    pub mode: String,
    /// The fault.
    pub fault: String,
    /// Timeout of mode `reds`, seconds.
    pub timeout_s: f64,
    /// After how long a `heal` heals, seconds.
    pub heal_after_s: Option<f64>,
    /// Clients of the load.
    pub clients: u64,
    /// Bytes of log since the redo point when the fault was injected: what a recovery has to go through.
    pub backlog_bytes: u64,
    /// When the fault was injected, milliseconds of Unix time.
    pub fault_unix_ms: u64,
}

/// The whole report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// What was drilled.
    #[serde(flatten)]
    pub setup: Setup,
    /// Longest time without an acknowledged commit after the fault, seconds, as clients of the endpoint saw it.
    pub unavailable_s: f64,
    /// False when no commit was acknowledged after the fault at all; `unavailable_s` is then how long was waited.
    pub came_back: bool,
    /// Whether another instance serves now.
    pub failed_over: bool,
    /// Whether that was needless: the primary would have come back by itself.
    pub needless_failover: bool,
    /// Connections that the clients made.
    pub connects: u64,
    /// Transactions that failed before their COMMIT was sent.
    pub transactions_failed: u64,
    /// What happened when.
    pub timeline: Vec<Mark>,
    /// What became of the commits.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Commits over time.
    pub series: Series,
}

/// What the drill observed beside the ledger.
pub struct Observed {
    /// When the fault was injected, nanoseconds on the ledger's clock.
    pub fault_ns: u64,
    /// When the load was stopped, nanoseconds on the ledger's clock.
    pub end_ns: u64,
    /// Whether another instance serves now.
    pub failed_over: bool,
    /// The monitor's events.
    pub timeline: Vec<Mark>,
    /// What became of the load beside its commits.
    pub counts: Counts,
}

impl Report {
    /// Puts a report together.
    pub fn new(setup: Setup, observed: Observed, contents: &Contents, verdict: Verdict) -> Report {
        let Observed { fault_ns, end_ns, failed_over, mut timeline, counts } = observed;
        let gap = contents.longest_gap(fault_ns);
        let after_s = |ns: u64| (ns as f64 - fault_ns as f64) / 1e9;
        timeline.push(Mark { event: "fault".into(), at_s: 0.0 });
        if let Some(gap) = gap {
            timeline.push(Mark { event: "last_commit".into(), at_s: after_s(gap.from_ns) });
            timeline.push(Mark { event: "first_commit".into(), at_s: after_s(gap.to_ns) });
        }
        timeline.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let from_ns = fault_ns.saturating_sub(BEFORE_NS);
        let series = Series {
            bin_s: BIN_NS as f64 / 1e9,
            from_s: after_s(from_ns),
            commits: contents.series(from_ns, end_ns, BIN_NS),
        };
        let needless_failover = failed_over && setup.heal_after_s.is_some();
        let unavailable_s = gap.map_or(after_s(end_ns), |g| g.length_ns() as f64 / 1e9);
        let came_back = gap.is_some();
        let Counts { connects, failed: transactions_failed } = counts;
        Report {
            setup,
            unavailable_s,
            came_back,
            failed_over,
            needless_failover,
            connects,
            transactions_failed,
            timeline,
            verdict,
            series,
        }
    }

    /// True when the service came back and nothing is lost, twice or unsound.
    pub fn is_clean(&self) -> bool {
        self.came_back && self.verdict.is_clean()
    }

    /// When something happened first, seconds after the fault.
    pub fn at_s(&self, event: &str) -> Option<f64> {
        self.timeline.iter().find(|m| m.event == event).map(|m| m.at_s)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::drill::ledger::Commit;

    /// A report with an outage of 2 s, for tests of what is made from it.
    pub fn sample() -> Report {
        let setup = Setup {
            app: "bank".into(),
            mode: "speculative".into(),
            fault: "panic".into(),
            timeout_s: 3.0,
            heal_after_s: None,
            clients: 8,
            backlog_bytes: 1 << 28,
            fault_unix_ms: 1_800_000_000_000,
        };
        let times = (0..50u64).map(|i| i * 100_000_000).chain((0..20u64).map(|i| 7_000_000_000 + i * 100_000_000));
        let acked = times.enumerate().map(|(i, at_ns)| Commit { id: i as u64, at_ns }).collect();
        let contents = Contents { acked, unknown: Vec::new() };
        let verdict = Verdict {
            commits_acked: 70,
            commits_unknown: 0,
            commits_unknown_held: 0,
            commits_lost: 0,
            commits_duplicate: 0,
            commits_phantom: 0,
            balances_consistent: true,
            checker: "pg_amcheck".into(),
            checker_clean: true,
            checker_words: String::new(),
        };
        let counts = Counts { connects: 8, failed: 0 };
        let timeline = vec![Mark { event: "suspected".into(), at_s: 0.2 }];
        let observed = Observed { fault_ns: 5_000_000_000, end_ns: 9_000_000_000, failed_over: true, timeline, counts };
        Report::new(setup, observed, &contents, verdict)
    }

    #[test]
    fn golden_report_measures_from_the_fault() {
        let report = sample();
        assert!((report.unavailable_s - 2.0).abs() < 1e-9, "{}", report.unavailable_s);
        let events: Vec<&str> = report.timeline.iter().map(|m| m.event.as_str()).collect();
        assert_eq!(events, ["fault", "last_commit", "suspected", "first_commit"]);
        assert_eq!(report.series.from_s, -3.0);
        assert_eq!(report.series.commits.len(), 70);
        assert!(report.is_clean() && !report.needless_failover);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["commits_lost"], 0);
        assert_eq!(json["mode"], "speculative");
    }
}
