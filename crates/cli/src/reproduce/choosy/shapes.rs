//! The figures of `segue reproduce choosy` as JSON (`segue.reproduce.choosy.v1`).
//!
//! Owns: the keys. Never: rounds a figure.
//! Invariant: gains and cuts are percent of the plain rules' figure, 7.0 meaning 7 % lower; latencies are microseconds.

use super::results::{ConfigurationResult, Phase, Results, messages_per_chunk, per_run};
use super::stress;
use segue_models::choosy::judge::{self, Figure, Gain};
use serde_json::{Map, Value, json};

/// Everything.
pub fn json(results: &Results) -> Value {
    let configurations: Vec<Value> = results.configurations.iter().map(|c| configuration(results, c)).collect();
    let mut all = json!({
        "units": "gains and cuts in percent of the plain rules' figure (7.0 means 7 % lower); latencies in microseconds; GB of 1e9 bytes",
        "seed": results.seed,
        "seeds": results.seeds,
        "quick": results.quick,
        "configurations": configurations,
        "means": means(results),
        "over_ms": over_ms(results),
    });
    all["best_steady_gain_mean"] = all["means"]["best"]["steady_gain"].clone();
    if !results.stress.is_empty() {
        all["stress"] = results.stress.iter().map(|row| stress::json(row, &results.entrants)).collect();
    }
    all
}

fn configuration(results: &Results, c: &ConfigurationResult) -> Value {
    let surge = c.configuration.surge;
    let mut object = Map::new();
    let published = results.entrant(judge::PUBLISHED.name);
    object.insert("chunk".into(), c.configuration.chunk_bytes.into());
    object.insert("drive_mbps".into(), c.configuration.drive_mbps.into());
    object.insert("surge_gain".into(), surge.cold_gain.into());
    object.insert("surge_steady_gain".into(), surge.steady_gain.into());
    object.insert("floor_us".into(), (c.configuration.floor_ns() as f64 / 1e3).into());
    for phase in Phase::ALL {
        object.insert(phase.name().into(), json!(c.versus(published, phase).mean));
    }
    for (n, entrant) in results.entrants.iter().enumerate().skip(1) {
        object.insert(entrant.name.replace('-', "_"), versus(c, n, entrant.title));
    }
    let figures = results.entrants.iter().enumerate().map(|(n, e)| (e.name.replace('-', "_"), figures(c, n)));
    object.insert("figures".into(), Value::Object(figures.collect()));
    object.insert("by_start".into(), by_start(results, c));
    object.insert("surge".into(), json!(surge));
    Value::Object(object)
}

/// An entrant over the plain rules: flat, so that a reader needs no path.
fn versus(c: &ConfigurationResult, entrant: usize, title: &str) -> Value {
    let (cold, steady) = (c.versus(entrant, Phase::Cold), c.versus(entrant, Phase::Steady));
    let uncensored = c.versus(entrant, Phase::ColdUncensored);
    let most = |of: usize| c.pooled(of, Phase::Steady).figures().max_us;
    let mut object = json!({
        "name": title,
        "max_latency_cut_of_all_seeds": 100.0 * (1.0 - most(entrant) / most(0)),
    });
    let mut put = |name: &str, gain: Gain, short: &str| {
        object[name] = gain.gain.into();
        object[format!("{short}_lo")] = gain.lo.into();
        object[format!("{short}_hi")] = gain.hi.into();
    };
    put("cold_gain", cold.mean, "cold");
    put("cold_uncensored_gain", uncensored.mean, "cold_uncensored");
    put("steady_gain", steady.mean, "steady");
    put("p99_cut", steady.p99, "p99");
    put("max_latency_cut", steady.max, "max_latency");
    put("cold_p99_cut", cold.p99, "cold_p99");
    put("cold_max_latency_cut", cold.max, "cold_max_latency");
    object
}

fn figures(c: &ConfigurationResult, entrant: usize) -> Value {
    let phases = Phase::ALL.into_iter().map(|phase| {
        let runs = c.runs(entrant, phase).0;
        let mut object = json!(c.pooled(entrant, phase).figures());
        object["chunks_per_run"] = (object["chunks"].as_u64().unwrap_or(0) as f64 / runs.len() as f64).into();
        (phase.name().to_owned(), object)
    });
    let mut object: Map<String, Value> = phases.collect();
    for (name, phase) in [("cold_run", Phase::Cold), ("steady_run", Phase::Steady)] {
        let runs = c.runs(entrant, phase).0;
        let counts = json!({
            "renegotiations": per_run(runs, |r| r.renegotiations),
            "overlaps": per_run(runs, |r| r.overlaps),
            "control_messages_per_chunk": messages_per_chunk(runs),
            "events": per_run(runs, |r| r.events),
        });
        object.insert(name.into(), counts);
    }
    Value::Object(object)
}

fn by_start(results: &Results, c: &ConfigurationResult) -> Value {
    let row = |(from_ms, until_ms, surge, gains): (u64, u64, f64, Vec<Gain>)| {
        let mut object = json!({ "from_ms": from_ms, "until_ms": until_ms, "surge_gain": surge });
        for (entrant, gain) in results.entrants[1..].iter().zip(gains) {
            object[entrant.name.replace('-', "_")] = json!(gain);
        }
        object
    };
    c.by_start().into_iter().map(row).collect()
}

/// Means over the four configurations.
fn means(results: &Results) -> Value {
    let of = |n: usize| {
        json!({
            "cold_gain": results.average(n, Phase::Cold, Figure::Mean),
            "steady_gain": results.average(n, Phase::Steady, Figure::Mean),
            "steady_p99_cut": results.average(n, Phase::Steady, Figure::P99),
            "steady_max_latency_cut": results.average(n, Phase::Steady, Figure::Max),
        })
    };
    let entrants = results.entrants.iter().enumerate().skip(1);
    Value::Object(entrants.map(|(n, e)| (e.name.replace('-', "_"), of(n))).collect())
}

fn over_ms(results: &Results) -> Value {
    let row = |(ms, off, on, ours): (u64, f64, f64, Vec<f64>)| {
        let mut object = json!({ "ms": ms, "surge_off_percent": off, "surge_on_percent": on });
        for (entrant, share) in results.entrants.iter().zip(ours) {
            object[format!("{}_percent", entrant.name.replace('-', "_"))] = share.into();
        }
        object
    };
    results.over_ms().into_iter().map(row).collect()
}
