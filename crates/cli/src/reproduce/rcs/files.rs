//! The files of `segue reproduce rcs --out`: JSON, CSV and SVG.
//!
//! Owns: their names and columns. Never: a figure that stdout does not show.
//! Invariant: a file is whole or an error says which one is not.

use super::results::{FIGURES, Results};
use crate::reproduce::plot::{Bars, Lines};
use anyhow::{Context, Result};
use segue_models::summary::mean;
use std::fmt::Write;
use std::path::Path;

/// Writes every file into `dir`.
///
/// # Errors
/// Names the file that could not be written.
pub fn write(dir: &Path, results: &Results) -> Result<()> {
    let mut json = results.json();
    json["schema"] = "segue.reproduce.rcs.v1".into();
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    put("rcs.json", &format!("{}\n", serde_json::to_string_pretty(&json)?))?;
    put("rcs.csv", &table_csv(results))?;
    put("rcs_larger.csv", &larger_csv(results))?;
    put("rcs_kiops.svg", &bars(results, 0, "Throughput", "KIOPS")?)?;
    put("rcs_response.svg", &bars(results, 1, "Response", "ms")?)?;
    put("rcs_larger.svg", &lines(results)?)
}

fn table_csv(results: &Results) -> String {
    let mut csv = String::from("row,path,figure,mean,low,high,runs,paper\n");
    for result in &results.rows {
        for (path, figures, paper) in result.paths() {
            for (name, pick, pick_paper) in FIGURES {
                let ours = mean(&pick(figures));
                let paper = paper.map(|c| pick_paper(c).to_string()).unwrap_or_default();
                let _ = writeln!(
                    csv,
                    "{},{path},{name},{},{},{},{},{paper}",
                    result.row.key, ours.mean, ours.low, ours.high, ours.runs
                );
            }
        }
    }
    csv
}

fn larger_csv(results: &Results) -> String {
    let mut csv = String::from("policy,cores,recovery_ms,bad_over_good,low,high,runs\n");
    for result in &results.larger {
        let (cell, kept) = (&result.cell, result.kept());
        let _ = writeln!(
            csv,
            "{},{},{},{},{},{},{}",
            cell.policy,
            cell.setup.cores(),
            cell.recovery_ms,
            kept.mean,
            kept.low,
            kept.high,
            kept.runs
        );
    }
    csv
}

/// Ours beside the paper's, for the rows that the paper has.
fn bars(results: &Results, figure: usize, title: &str, unit: &str) -> Result<String> {
    let (_, pick, pick_paper) = FIGURES[figure];
    let mut bars = Bars::new(title, unit, ["ours", "paper"]);
    for result in &results.rows {
        for (path, figures, paper) in result.paths() {
            if let Some(paper) = paper {
                bars.group(&format!("{}, {path}", result.row.key), [mean(&pick(figures)).mean, pick_paper(paper)]);
            }
        }
    }
    bars.svg()
}

fn lines(results: &Results) -> Result<String> {
    let mut lines = Lines::new("Throughput kept on the bad path", "cores", "bad path / good path");
    let mut names: Vec<String> = Vec::new();
    for result in &results.larger {
        let name = format!("{}, {} ms", result.cell.policy, result.cell.recovery_ms);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        let of = |r: &&super::results::LargerResult| format!("{}, {} ms", r.cell.policy, r.cell.recovery_ms) == name;
        let points = results.larger.iter().filter(of).map(|r| (f64::from(r.cell.setup.cores()), r.kept().mean));
        lines.line(&name, points.collect());
    }
    lines.svg()
}
