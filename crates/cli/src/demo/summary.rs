//! The demo's result: one row per round, and whether it is what Segue promises.
//!
//! Owns: the shape `segue.demo.v1` and the promises. Never: hides a round.
//! Invariant: the summary is good only if every promise held in this very run.

use super::Settings;
use crate::drill::report::Report;
use crate::out::Table;
use anyhow::Context;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Result of a demo.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// One per mode and fault.
    pub rounds: Vec<Round>,
    /// What a rehearsed recovery took, seconds.
    pub recovery_rehearsed_s: f64,
    /// Timeout of mode `reds`, seconds.
    pub reds_timeout_s: f64,
    /// When a stall healed, seconds.
    pub heal_after_s: f64,
    /// The whole demo, seconds.
    pub elapsed_s: f64,
    /// Promises that did not hold, in words; empty when all is good.
    pub broken: Vec<String>,
}

/// A round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// `reds`, `speculative`, `oracle`.
    pub mode: String,
    /// `panic`, `heal`.
    pub fault: String,
    /// Seconds without an acknowledged commit.
    pub unavailable_s: f64,
    /// Acknowledged commits.
    pub commits_acked: u64,
    /// Those of them that are gone.
    pub commits_lost: u64,
    /// Commits that are there twice.
    pub commits_duplicate: u64,
    /// Whether another instance took over.
    pub failed_over: bool,
    /// Whether it did so though the primary healed.
    pub needless_failover: bool,
    /// Log to redo at the fault, bytes.
    pub backlog_bytes: u64,
    /// From the start of the backup to its readiness, seconds.
    pub recovery_s: Option<f64>,
    /// Whether nothing was lost, twice or unsound.
    pub clean: bool,
}

impl Round {
    fn of(report: &Report) -> Round {
        let done = report.at_s("recovery_done").or(report.at_s("ready"));
        let recovery_s = done.zip(report.at_s("spawned")).map(|(to, from)| to - from);
        Round {
            mode: report.setup.mode.clone(),
            fault: report.setup.fault.clone(),
            unavailable_s: report.unavailable_s,
            commits_acked: report.verdict.commits_acked,
            commits_lost: report.verdict.commits_lost,
            commits_duplicate: report.verdict.commits_duplicate,
            failed_over: report.failed_over,
            needless_failover: report.needless_failover,
            backlog_bytes: report.setup.backlog_bytes,
            recovery_s,
            clean: report.is_clean(),
        }
    }
}

impl Summary {
    /// Sums the rounds up and judges them.
    pub fn of(settings: Settings, reports: &[Report], elapsed: Duration) -> Summary {
        let rounds: Vec<Round> = reports.iter().map(Round::of).collect();
        Summary {
            broken: broken_promises(&rounds),
            rounds,
            recovery_rehearsed_s: settings.recovery_s,
            reds_timeout_s: settings.timeout_s,
            heal_after_s: settings.heal_after_s,
            elapsed_s: elapsed.as_secs_f64(),
        }
    }

    /// True when every promise held.
    pub fn is_good(&self) -> bool {
        self.broken.is_empty()
    }

    /// Writes `report.json`.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let mut object = serde_json::json!({ "schema": "segue.demo.v1" });
        let fields = serde_json::to_value(self).expect("a summary is plain data");
        object.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        std::fs::write(dir.join("report.json"), format!("{object:#}\n")).context("write report.json")
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let heads = ["MODE", "FAULT", "UNAVAILABLE>", "ACKNOWLEDGED>", "LOST>", "NEEDLESS FAILOVERS>", "TO REDO>"];
        let mut table = Table::new(&heads);
        for round in &self.rounds {
            table.row(vec![
                round.mode.clone(),
                round.fault.clone(),
                format!("{:.2} s", round.unavailable_s),
                round.commits_acked.to_string(),
                round.commits_lost.to_string(),
                u8::from(round.needless_failover).to_string(),
                crate::out::human_bytes(round.backlog_bytes),
            ]);
        }
        let mut text = table.render();
        for broken in &self.broken {
            text.push_str(&format!("NOT AS PROMISED: {broken}\n"));
        }
        text
    }
}

fn broken_promises(rounds: &[Round]) -> Vec<String> {
    let mut broken = Vec::new();
    for round in rounds.iter().filter(|r| !r.clean) {
        broken.push(format!("{} {}: something was lost, twice, or unsound", round.mode, round.fault));
    }
    for fault in ["panic", "heal"] {
        let of = |mode: &str| rounds.iter().find(|r| r.mode == mode && r.fault == fault);
        let (Some(spec), Some(reds), Some(oracle)) = (of("speculative"), of("reds"), of("oracle")) else {
            broken.push(format!("{fault}: a round is missing"));
            continue;
        };
        let allowed = (oracle.unavailable_s * 1.1).max(oracle.unavailable_s + 0.5);
        if spec.unavailable_s > allowed {
            broken.push(format!("{fault}: speculative took {:.2} s, allowed were {allowed:.2} s", spec.unavailable_s));
        }
        if spec.unavailable_s >= reds.unavailable_s {
            broken.push(format!("{fault}: speculative was not faster than reds"));
        }
        if spec.needless_failover {
            broken.push(format!("{fault}: speculative failed over though the primary healed"));
        }
    }
    broken
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A round as it should be.
    pub fn round(mode: &str, fault: &str, unavailable_s: f64) -> Round {
        Round {
            mode: mode.into(),
            fault: fault.into(),
            unavailable_s,
            commits_acked: 1000,
            commits_lost: 0,
            commits_duplicate: 0,
            failed_over: fault == "panic" || mode == "reds",
            needless_failover: fault == "heal" && mode == "reds",
            backlog_bytes: 1 << 28,
            recovery_s: Some(5.0),
            clean: true,
        }
    }

    fn rounds() -> Vec<Round> {
        vec![
            round("reds", "panic", 7.5),
            round("reds", "heal", 7.6),
            round("speculative", "panic", 5.6),
            round("speculative", "heal", 3.4),
            round("oracle", "panic", 5.4),
            round("oracle", "heal", 3.3),
        ]
    }

    #[test]
    fn golden_promises_are_judged() {
        assert_eq!(broken_promises(&rounds()), Vec::<String>::new());
        let mut slow = rounds();
        slow[2].unavailable_s = 6.0;
        assert_eq!(broken_promises(&slow).len(), 1, "{:?}", broken_promises(&slow));
        let mut needless = rounds();
        needless[3].needless_failover = true;
        assert_eq!(broken_promises(&needless).len(), 1);
        let mut lost = rounds();
        lost[0].clean = false;
        assert_eq!(broken_promises(&lost).len(), 1);
        assert_eq!(broken_promises(&rounds()[..5]).len(), 1, "a missing round is no success");
    }
}
