//! The figures of `segue reproduce choosy` as tables for people.
//!
//! Owns: the words. Never: a figure that the JSON has not.
//! Invariant: SURGE's figure stands beside ours wherever there is one.

use super::results::{ConfigurationResult, Phase, Results, messages_per_chunk, per_run};
use super::stress;
use crate::out::{Table, human_bytes};
use segue_models::choosy::judge::{self, Figure, Gain};

/// Columns of the latencies.
const FIGURES: [&str; 14] = [
    "CHUNK @ MIB/S",
    "PHASE",
    "RULES",
    "CHUNKS>",
    "MEAN US>",
    "P50>",
    "P90>",
    "P99>",
    "P99.9>",
    "MAX>",
    ">=7 MS %>",
    "GB/S>",
    "RENEG>",
    "MSGS/CHUNK>",
];

/// The rules that tables with a column for each show; candidates have rows, and columns in the files.
const COLUMNS: usize = 5;

/// "7.0 (6.1..7.9)".
pub fn with_interval(gain: Gain) -> String {
    format!("{:.1} ({:.1}..{:.1})", gain.gain, gain.lo, gain.hi)
}

/// "128.0 KiB @ 400".
pub fn name_of(chunk_bytes: u64, drive_mbps: u64) -> String {
    format!("{} @ {drive_mbps}", human_bytes(chunk_bytes).replace(".00", "").replace(".0", ""))
}

fn name(c: &ConfigurationResult) -> String {
    name_of(c.configuration.chunk_bytes, c.configuration.drive_mbps)
}

/// Everything.
pub fn text(results: &Results) -> String {
    let mut text = format!(
        "90 initiators, 90 targets, 3 copies, closed loop; {} seeds from {}. Gains are percent of the plain rules' figure, with 95 % intervals.\n\
         cold: the published run, from rest, chunks written by its end. steady: after the warm-up, every chunk waited for.\n\n",
        results.seeds, results.seed
    );
    for part in [published(results), all_gains(results), figures(results), starts(results), spikes(results)] {
        text.push_str(&part);
        text.push('\n');
    }
    if !results.stress.is_empty() {
        text.push_str(&stress::text(&results.stress, &results.entrants));
    }
    text
}

/// Figures 5 and 6: the published initiator's gain, cold and steady.
fn published(results: &Results) -> String {
    let heads = ["CHUNK @ MIB/S", "COLD: SURGE>", "OURS>", "UNCENSORED>", "STEADY: SURGE>", "OURS>"];
    let mut table = Table::new(&heads);
    let published = results.entrant(judge::PUBLISHED.name);
    for c in &results.configurations {
        let surge = c.configuration.surge;
        table.row(vec![
            name(c),
            format!("{:.1}", surge.cold_gain),
            with_interval(c.versus(published, Phase::Cold).mean),
            with_interval(c.versus(published, Phase::ColdUncensored).mean),
            format!("{:.1}", surge.steady_gain),
            with_interval(c.versus(published, Phase::Steady).mean),
        ]);
    }
    format!("The published choosy initiator, mean latency (Figures 5 and 6)\n{}", table.render())
}

/// Every entrant over the plain rules.
fn all_gains(results: &Results) -> String {
    let heads = ["CHUNK @ MIB/S", "RULES", "COLD MEAN>", "STEADY MEAN>", "STEADY P99>", "STEADY MAX>"];
    let mut table = Table::new(&heads);
    let row = |of: String, rules: &str, gains: [Gain; 4]| {
        [of, rules.to_owned()].into_iter().chain(gains.map(with_interval)).collect::<Vec<_>>()
    };
    for c in &results.configurations {
        for (n, entrant) in results.entrants.iter().enumerate().skip(1) {
            let (cold, steady) = (c.versus(n, Phase::Cold), c.versus(n, Phase::Steady));
            table.row(row(name(c), entrant.name, [cold.mean, steady.mean, steady.p99, steady.max]));
        }
    }
    for (n, entrant) in results.entrants.iter().enumerate().skip(1) {
        let steady = |figure| results.average(n, Phase::Steady, figure);
        let cold = results.average(n, Phase::Cold, Figure::Mean);
        let gains = [cold, steady(Figure::Mean), steady(Figure::P99), steady(Figure::Max)];
        table.row(row("mean of the four".into(), entrant.name, gains));
    }
    format!("Lower than the plain rules by, %\n{}", table.render())
}

/// Latencies and throughput.
fn figures(results: &Results) -> String {
    let mut table = Table::new(&FIGURES);
    for c in &results.configurations {
        for phase in [Phase::Cold, Phase::Steady] {
            match phase {
                Phase::Cold => surge_rows(&mut table, c),
                _ => floor_row(&mut table, c),
            }
            for (n, entrant) in results.entrants.iter().enumerate() {
                let (f, runs) = (c.pooled(n, phase).figures(), c.runs(n, phase).0);
                let us = [f.mean_us, f.p50_us, f.p90_us, f.p99_us, f.p999_us, f.max_us];
                let mut row = vec![name(c), phase.name().into(), entrant.name.into()];
                row.push(format!("{:.0}", f.chunks as f64 / runs.len() as f64));
                row.extend(us.map(|us| format!("{us:.1}")));
                row.push(format!("{:.2}", 100.0 * f.share_over_7ms));
                row.push(format!("{:.2}", f.gb_per_s));
                row.push(format!("{:.0}", per_run(runs, |r| r.renegotiations)));
                row.push(format!("{:.1}", messages_per_chunk(runs)));
                table.row(row);
            }
        }
    }
    format!("Latencies of all seeds, us; chunks and renegotiations of one run\n{}", table.render())
}

/// What no protocol can be better than.
fn floor_row(table: &mut Table, c: &ConfigurationResult) {
    let mut row = vec![name(c), "steady".into(), "(floor)".into(), String::new()];
    row.push(format!("{:.1}", c.configuration.floor_ns() as f64 / 1e3));
    row.resize(FIGURES.len(), String::new());
    table.row(row);
}

fn surge_rows(table: &mut Table, c: &ConfigurationResult) {
    for (rules, s) in [("SURGE, off", c.configuration.surge.off), ("SURGE, on", c.configuration.surge.on)] {
        let one = |value: f64| format!("{value:.1}");
        table.row(vec![
            name(c),
            "cold".into(),
            rules.into(),
            format!("{:.0}", s.chunks),
            one(s.mean_us),
            one(s.p50_us),
            String::new(),
            one(s.p99_us),
            String::new(),
            one(s.max_us),
            String::new(),
            format!("{:.2}", s.gb_per_s),
            format!("{:.0}", s.renegotiations),
            String::new(),
        ]);
    }
}

/// Gains by the time a chunk starts.
fn starts(results: &Results) -> String {
    let names: Vec<String> =
        results.entrants[1..COLUMNS].iter().map(|e| format!("{}>", e.name.to_uppercase())).collect();
    let heads = ["CHUNK @ MIB/S", "STARTED, MS", "SURGE>"].into_iter().chain(names.iter().map(String::as_str));
    let mut table = Table::new(&heads.collect::<Vec<_>>());
    for c in &results.configurations {
        for (from_ms, until_ms, surge, gains) in c.by_start() {
            let mut row = vec![name(c), format!("{from_ms}-{until_ms}"), format!("{surge:.1}")];
            row.extend(gains.into_iter().take(COLUMNS - 1).map(with_interval));
            table.row(row);
        }
    }
    format!("Gain of the mean by a chunk's start, %, every chunk waited for\n{}", table.render())
}

/// Figures 3 and 4 as numbers.
fn spikes(results: &Results) -> String {
    let names: Vec<String> =
        results.entrants[..COLUMNS].iter().map(|e| format!("{}>", e.name.to_uppercase())).collect();
    let heads = ["AT LEAST, MS>", "SURGE, OFF>", "SURGE, ON>"].into_iter().chain(names.iter().map(String::as_str));
    let mut table = Table::new(&heads.collect::<Vec<_>>());
    for (ms, off, on, ours) in results.over_ms() {
        let mut row = vec![ms.to_string(), format!("{off:.2}"), format!("{on:.2}")];
        row.extend(ours.into_iter().take(COLUMNS).map(|share| format!("{share:.2}")));
        table.row(row);
    }
    let tail = &results.configurations[judge::TAIL_CONFIGURATION];
    format!("Share of chunks, %, {}, cold (Figures 3 and 4)\n{}", name(tail), table.render())
}
