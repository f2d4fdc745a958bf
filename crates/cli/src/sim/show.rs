//! What `segue sim run` prints: a table for people, one object for programs.
//!
//! Owns: their words and units. Never: rounds a figure in JSON.
//! Invariant: text and JSON show the same figures.

use super::figures::{Figures, Latency};
use super::run::Results;
use super::runner::rate_text;
use crate::out::Table;
use segue_models::storage::registry::Model;
use serde_json::{Map, Value, json};

/// One object.
pub fn json(model: &Model, threads: usize, results: &[Results], figures: &[Figures]) -> Value {
    let one = |(results, figures): (&Results, &Figures)| {
        let mut object = configuration(results);
        if let Value::Object(fields) = serde_json::to_value(figures).expect("figures are plain data") {
            object.extend(fields);
        }
        Value::Object(object)
    };
    let configurations: Vec<Value> = results.iter().zip(figures).map(one).collect();
    json!({ "model": model.name, "source": model.source, "threads": threads, "configurations": configurations })
}

fn configuration(results: &Results) -> Map<String, Value> {
    let settings = results.configuration.settings.iter().map(|(k, v)| (k.clone(), json!(v)));
    let mut object = Map::new();
    object.insert("settings".into(), Value::Object(settings.collect()));
    object.insert("scenario".into(), json!(results.configuration.scenario));
    object
}

/// The hashes alone.
pub fn traces_json(model: &Model, results: &[Results]) -> Value {
    let one = |results: &Results| {
        let mut object = configuration(results);
        let of = |run: &super::run::Run| (run.seed.to_string(), json!(format!("{:016x}", run.outcome.trace)));
        object.insert("traces".into(), Value::Object(results.runs.iter().map(of).collect()));
        Value::Object(object)
    };
    json!({ "model": model.name, "configurations": results.iter().map(one).collect::<Vec<_>>() })
}

/// A line per configuration and seed: hash, seed, settings.
pub fn traces(results: &[Results]) -> String {
    let line = |results: &Results| -> String {
        let name = results.configuration.name();
        results.runs.iter().map(|run| format!("{:016x}  {}  {name}\n", run.outcome.trace, run.seed)).collect()
    };
    results.iter().map(line).collect()
}

fn us(ns: f64) -> String {
    format!("{:.1}", ns / 1e3)
}

/// The tables.
pub fn text(results: &[Results], figures: &[Figures]) -> String {
    let heads = [
        "CONFIGURATION",
        "DONE>",
        "IN FLIGHT>",
        "MEAN us>",
        "95 %>",
        "P50>",
        "P90>",
        "P99>",
        "P99.9>",
        "MAX>",
        "GB/s>",
    ];
    let mut table = Table::new(&heads);
    for (results, figures) in results.iter().zip(figures) {
        let mut row = vec![results.configuration.name(), figures.done.to_string(), figures.in_flight.to_string()];
        row.extend(latency_cells(figures.latency_ns.as_ref()));
        row.push(format!("{:.2}", figures.bytes_per_s.mean / 1e9));
        table.row(row);
    }
    let events: u64 = figures.iter().map(|f| f.events).sum();
    let seconds: f64 = results.iter().flat_map(|r| &r.runs).map(|run| run.wall_s).sum();
    let rate = rate_text(events, seconds);
    format!(
        "{}\n{}\n{}\n{events} events, {rate} on one thread\n",
        table.render(),
        counters(results, figures),
        seeds(figures)
    )
}

fn latency_cells(latency: Option<&Latency>) -> Vec<String> {
    let Some(l) = latency else { return vec!["-".into(); 7] };
    let mut cells = vec![us(l.mean.mean), format!("{}..{}", us(l.mean.low), us(l.mean.high))];
    cells.extend([l.p50, l.p90, l.p99, l.p999, l.max].map(|ns| us(ns as f64)));
    cells
}

fn counters(results: &[Results], figures: &[Figures]) -> String {
    let mut table = Table::new(&["CONFIGURATION", "COUNTER", "PER RUN>", "95 %>"]);
    for (results, figures) in results.iter().zip(figures) {
        for (name, count) in &figures.counters {
            let interval = format!("{:.1}..{:.1}", count.low, count.high);
            table.row(vec![results.configuration.name(), (*name).into(), format!("{:.1}", count.mean), interval]);
        }
    }
    table.render()
}

fn seeds(figures: &[Figures]) -> String {
    let mut table = Table::new(&["SEED>", "TRACE", "DONE>", "IN FLIGHT>", "EVENTS>", "MEAN us>"]);
    for seed in figures.iter().flat_map(|f| &f.seeds) {
        let mean = seed.mean_ns.map_or("-".into(), us);
        let counts = [seed.done.to_string(), seed.in_flight.to_string(), seed.events.to_string()];
        let cells = [seed.seed.to_string(), seed.trace.clone()].into_iter().chain(counts).chain([mean]);
        table.row(cells.collect());
    }
    table.render()
}
