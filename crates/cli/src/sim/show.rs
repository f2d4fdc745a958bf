//! What `segue sim run` prints: a table for people, one object for programs.
//!
//! Owns: their words and units. Never: rounds a figure in JSON.
//! Invariant: text and JSON show the same figures.

use super::figures::{Figures, Latency};
use super::run::Results;
use super::runner::rate_text;
use crate::out::Table;
use segue_models::stats::Mean;
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

fn interval(of: &Mean, show: impl Fn(f64) -> String) -> String {
    format!("{}..{}", show(of.low), show(of.high))
}

/// The tables.
pub fn text(results: &[Results], figures: &[Figures]) -> String {
    let names: Vec<String> = results.iter().map(|r| r.configuration.name()).collect();
    let events: u64 = figures.iter().map(|f| f.events).sum();
    let seconds: f64 = results.iter().flat_map(|r| &r.runs).map(|run| run.cpu_s).sum();
    let tables =
        [latencies(&names, figures), everything(&names, figures), counters(&names, figures), seeds(&names, figures)];
    format!("{}\n{events} events, {} of processor time on one thread\n", tables.join("\n"), rate_text(events, seconds))
}

/// Written chunks, after the warm-up.
fn latencies(names: &[String], figures: &[Figures]) -> String {
    let heads = [
        "LATENCY OF WRITTEN CHUNKS",
        "CHUNKS>",
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
    for (name, figures) in names.iter().zip(figures) {
        let mut row = vec![name.clone()];
        match &figures.latency {
            Some(l) => {
                row.extend([l.naive.count.to_string(), us(l.mean_ns.mean), interval(&l.mean_ns, us)]);
                let q = [l.naive.p50_ns, l.naive.p90_ns, l.naive.p99_ns, l.naive.p999_ns, l.naive.max_ns];
                row.extend(q.map(|ns| us(ns as f64)));
            }
            None => row.extend(vec!["-".to_owned(); 8]),
        }
        row.push(format!("{:.2}", figures.bytes_per_s.mean / 1e9));
        table.row(row);
    }
    table.render()
}

/// All chunks: those in flight at the end are accounted for, beside the figures that leave them out.
fn everything(names: &[String], figures: &[Figures]) -> String {
    let heads = [
        "WITH THOSE IN FLIGHT",
        "DONE>",
        "IN FLIGHT>",
        "WARM-UP ms>",
        "COUNTED IN FLIGHT>",
        "OLDEST us>",
        "MEAN us>",
        "OF WRITTEN>",
        "P99>",
        "OF WRITTEN>",
        "EVENTS>",
        "M/CPU s>",
    ];
    let mut table = Table::new(&heads);
    for (name, figures) in names.iter().zip(figures) {
        let warm_up = format!("{:.3}", figures.warm_up.ns as f64 / 1e6);
        let mut row = vec![name.clone(), figures.done.to_string(), figures.in_flight.to_string(), warm_up];
        match &figures.latency {
            Some(l) => row.extend(estimate_cells(l)),
            None => row.extend(vec!["-".to_owned(); 6]),
        }
        row.extend([figures.events.to_string(), format!("{:.2}", figures.events_per_cpu_s / 1e6)]);
        table.row(row);
    }
    table.render()
}

fn estimate_cells(l: &Latency) -> [String; 6] {
    // An estimate that ends with a chunk in flight is a lower bound.
    let bound = if l.estimate.mean_is_bound { ">= " } else { "" };
    [
        l.in_flight.to_string(),
        us(l.oldest_in_flight_ns as f64),
        format!("{bound}{}", us(l.estimate_mean_ns.mean)),
        us(l.mean_ns.mean),
        l.estimate.p99_ns.map_or(format!("> {}", us(l.naive.max_ns as f64)), |ns| us(ns as f64)),
        us(l.naive.p99_ns as f64),
    ]
}

fn counters(names: &[String], figures: &[Figures]) -> String {
    let mut table = Table::new(&["COUNTERS", "COUNTER", "PER RUN>", "95 %>"]);
    for (name, figures) in names.iter().zip(figures) {
        for (counter, count) in &figures.counters {
            let interval = interval(count, |v| format!("{v:.1}"));
            table.row(vec![name.clone(), (*counter).into(), format!("{:.1}", count.mean), interval]);
        }
    }
    table.render()
}

fn seeds(names: &[String], figures: &[Figures]) -> String {
    let mut table = Table::new(&["SEEDS", "SEED>", "TRACE", "DONE>", "IN FLIGHT>", "EVENTS>", "MEAN us>"]);
    let all = names.iter().zip(figures).flat_map(|(name, f)| f.seeds.iter().map(move |seed| (name, seed)));
    for (name, seed) in all {
        let mean = seed.mean_ns.map_or("-".into(), us);
        let counts = [seed.done.to_string(), seed.in_flight.to_string(), seed.events.to_string()];
        let head = [name.clone(), seed.seed.to_string(), seed.trace.clone()];
        table.row(head.into_iter().chain(counts).chain([mean]).collect());
    }
    table.render()
}
