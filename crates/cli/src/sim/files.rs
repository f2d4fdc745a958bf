//! The files of `segue sim run --out`: JSON, CSV and SVG.
//!
//! Owns: their names and columns. Never: a chunk left out; those in flight are marked.
//! Invariant: a file is whole or an error says which one is not.

use super::figures::Figures;
use super::run::Results;
use crate::reproduce::plot::{Bars, Series as Plot};
use anyhow::{Context, Result};
use segue_models::stats::{Bucket, Cell, Series, Table};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// Buckets of the series of a run.
const BUCKETS: u64 = 100;
/// Buckets of the moving average, beside each one's own.
const BEFORE: usize = 4;
/// Configurations that are drawn: more lines than this nobody can tell apart.
const DRAWN_MAX: usize = 40;

/// Writes every file into `dir`.
///
/// # Errors
/// Names the file that could not be written.
pub fn write(dir: &Path, json: &Value, results: &[Results], figures: &[Figures]) -> Result<()> {
    let mut json = json.clone();
    json["schema"] = "segue.sim.run.v1".into();
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    put("run.json", &format!("{}\n", serde_json::to_string_pretty(&json)?))?;
    put("configurations.csv", &configurations_csv(results, figures))?;
    put("chunks.csv", &chunks_csv(results))?;
    put("series.csv", &series_csv(results)?)?;
    for (n, (of, figures)) in results.iter().zip(figures).enumerate().take(DRAWN_MAX) {
        put(&format!("latency_{n}.svg"), &latency_svg(of, figures)?)?;
    }
    put("latency.svg", &bars_svg(results, figures)?)
}

/// A row per configuration; its number is that of the other files.
fn configurations_csv(results: &[Results], figures: &[Figures]) -> String {
    let mut table = Table::new(&[
        "number",
        "configuration",
        "seeds",
        "done",
        "in_flight",
        "warm_up_ns",
        "mean_ns",
        "low_ns",
        "high_ns",
        "p50_ns",
        "p90_ns",
        "p99_ns",
        "p999_ns",
        "max_ns",
        "estimate_mean_ns",
        "estimate_p99_ns",
        "bytes_per_s",
        "events",
        "events_per_s",
    ]);
    for (n, (of, f)) in results.iter().zip(figures).enumerate() {
        let mut row: Vec<Cell> = vec![(n as u64).into(), Cell::Text(of.configuration.name())];
        row.extend([of.runs.len() as u64, f.done, f.in_flight, f.warm_up.ns].map(Cell::from));
        match &f.latency {
            Some(l) => {
                row.extend([l.mean_ns.mean, l.mean_ns.low, l.mean_ns.high].map(Cell::from));
                let q = &l.naive;
                row.extend([q.p50_ns, q.p90_ns, q.p99_ns, q.p999_ns, q.max_ns].map(Cell::from));
                row.push(l.estimate_mean_ns.mean.into());
                row.push(l.estimate.p99_ns.into());
            }
            None => row.extend((0..10).map(|_| Cell::Empty)),
        }
        row.extend([f.bytes_per_s.mean.into(), f.events.into(), f.events_per_s.into()]);
        table.row(row);
    }
    table.csv()
}

fn chunks_csv(results: &[Results]) -> String {
    let mut csv = String::from("configuration,seed,initiator,group,bytes,created_ns,latency_ns,finished\n");
    for (n, of) in results.iter().enumerate() {
        for run in &of.runs {
            let done = run.outcome.done.iter().map(|d| (&d.chunk, d.latency_ns, true));
            let pending = run.outcome.pending.iter().map(|p| (&p.chunk, p.age_ns, false));
            for (c, ns, finished) in done.chain(pending) {
                let (seed, initiator, group, bytes, created) = (run.seed, c.initiator, c.group, c.bytes, c.created_ns);
                let _ = writeln!(csv, "{n},{seed},{initiator},{group},{bytes},{created},{ns},{finished}");
            }
        }
    }
    csv
}

/// Latency of written chunks by the time they were created, all seeds together.
fn series(of: &Results) -> Series {
    let mut series = Series::new(of.configuration.scenario.run_ns.div_ceil(BUCKETS));
    for done in of.runs.iter().flat_map(|run| &run.outcome.done) {
        series.add(done.chunk.created_ns, done.latency_ns);
    }
    series
}

fn series_csv(results: &[Results]) -> Result<String> {
    let mut csv = String::new();
    for (n, of) in results.iter().enumerate() {
        let text = series(of).table(BEFORE).csv();
        for (line, row) in text.lines().enumerate() {
            match (n, line) {
                (0, 0) => writeln!(csv, "configuration,{row}")?,
                (_, 0) => {}
                _ => writeln!(csv, "{n},{row}")?,
            }
        }
    }
    Ok(csv)
}

fn latency_svg(of: &Results, figures: &Figures) -> Result<String> {
    let series = series(of);
    let at_ms = |bucket: usize| (bucket as f64 + 0.5) * series.width_ns() as f64 / 1e6;
    let us = |values: Vec<Option<f64>>| -> Vec<(f64, f64)> {
        let point = |(n, value): (usize, Option<f64>)| value.map(|ns| (at_ms(n), ns / 1e3));
        values.into_iter().enumerate().filter_map(point).collect()
    };
    let max = us(series.buckets().iter().map(|b| (b.count > 0).then_some(b.max as f64)).collect());
    let highest = max.iter().fold(0.0f64, |a, (_, y)| a.max(*y));
    let title = format!("Latency by time of creation: {}", of.configuration.name());
    let mut plot = Plot::new(&title, "virtual time, ms", "us", highest);
    plot.thin("slowest chunk", max);
    plot.thin("mean", us(series.buckets().iter().map(Bucket::mean).collect()));
    plot.thick("moving average", us(series.moving_average(BEFORE)));
    if let Some(latency) = &figures.latency {
        plot.mark("mean after the warm-up", latency.mean_ns.mean / 1e3);
    }
    plot.svg()
}

fn bars_svg(results: &[Results], figures: &[Figures]) -> Result<String> {
    let mut bars = Bars::new("Latency", "us", ["mean", "p99"]);
    for (of, f) in results.iter().zip(figures).take(DRAWN_MAX) {
        if let Some(l) = &f.latency {
            bars.group(&of.configuration.name(), [l.mean_ns.mean / 1e3, l.naive.p99_ns as f64 / 1e3]);
        }
    }
    bars.svg()
}
