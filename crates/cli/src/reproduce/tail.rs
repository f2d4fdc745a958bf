//! `segue reproduce tail`: laws that the engine must obey, as its validation.
//!
//! Owns: the order of the runs, the table, the JSON. Never: a verdict; `segue_models::tail` judges.
//! Invariant: the figures depend on the seed, the replications and the length alone, not on threads.
//!
//! Waits in queues against Pollaczek and Khinchine, and the tail of requests to many servers against `1 - (1 - p)^N`.

use super::plot::Series;
use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use crate::sim::runner::{parallel, threads};
use anyhow::{Context, Result};
use segue_models::tail::{Row, Sample, Setup, Tables, rows, tables};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Arguments of `segue reproduce tail`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Independent runs of each case; their mean has the interval.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,
    /// Where chance begins. Same seed, same figures, on every machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A fiftieth of the length: seconds, and wide intervals.
    #[arg(long)]
    quick: bool,
    /// Write the tables as JSON and CSV and a plot as SVG into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Threads; all of the machine's by default. The figures do not depend on it.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
}

/// Runs the experiment; exit code 1 when a formula lies outside its interval.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    if let Some(dir) = &args.out {
        // Before the work, not after.
        std::fs::create_dir_all(dir)?;
    }
    let setup = Setup { replications: args.seeds, length_permille: if args.quick { 20 } else { 1_000 } };
    let tables = measure(&setup, args)?;
    let mut json = serde_json::to_value(&tables).context("shape the tables")?;
    json["seed"] = args.seed.into();
    json["seeds"] = args.seeds.into();
    if let Some(dir) = &args.out {
        write(dir, &tables, &json)?;
    }
    global.print("reproduce.tail", &json, || text(&tables));
    Ok(if tables.inside { ExitCode::Yes } else { ExitCode::No })
}

fn measure(setup: &Setup, args: &Args) -> Result<Tables> {
    let rows = rows();
    let runs = |row| (0..setup.replications).map(move |replication| (row, replication));
    let jobs: Vec<(Row, u64)> = rows.iter().copied().flat_map(runs).collect();
    let one = |(row, replication): &(Row, u64), meter: &mut crate::sim::runner::Meter<'_>| {
        let sample = row.run(setup, args.seed, *replication);
        let events = match sample {
            Sample::Wait { events, .. } | Sample::Tail { events, .. } => events,
        };
        meter.at(1, 1, events);
        Ok(sample)
    };
    let samples = parallel(&jobs, threads(args.threads.map(|n| n as usize)), false, |_| 1, one)?;
    let of_rows: Vec<Vec<Sample>> = samples.chunks(setup.replications as usize).map(<[Sample]>::to_vec).collect();
    Ok(tables(&of_rows))
}

fn verdict(inside: bool) -> String {
    if inside { "yes" } else { "NO" }.into()
}

fn text(tables: &Tables) -> String {
    let heads = ["SERVICE", "LOAD>", "FORMULA US>", "SIMULATED US>", "INTERVAL US>", "+-%>", "INSIDE"];
    let mut waits = Table::new(&heads);
    let us = |ns: f64| format!("{:.3}", ns / 1e3);
    for row in &tables.rows {
        waits.row(vec![
            row.service.into(),
            format!("{:.2}", row.utilisation),
            us(row.formula_ns),
            us(row.simulated_mean_wait_ns),
            format!("{}..{}", us(row.low), us(row.high)),
            format!("{:.2}", 100.0 * row.half_width),
            verdict(row.inside),
        ]);
    }
    let mut tails = Table::new(&["SERVERS>", "P>", "FORMULA>", "SIMULATED>", "INTERVAL>", "REQUESTS>", "INSIDE"]);
    for row in &tables.tail {
        tails.row(vec![
            row.servers.to_string(),
            row.p.to_string(),
            format!("{:.5}", row.formula),
            format!("{:.5}", row.simulated),
            format!("{:.5}..{:.5}", row.low, row.high),
            row.requests.to_string(),
            verdict(row.inside),
        ]);
    }
    let sure = 100.0 * tables.confidence.share();
    format!(
        "Mean wait in a queue, Poisson arrivals, against Pollaczek and Khinchine; intervals of {sure} %\n{}\n\
         Share of requests to N servers that are slow, each server with probability p, against 1 - (1 - p)^N\n{}\n\
         {} of {} inside\n",
        waits.render(),
        tails.render(),
        tables.rows.iter().filter(|r| r.inside).count() + tables.tail.iter().filter(|r| r.inside).count(),
        tables.rows.len() + tables.tail.len(),
    )
}

fn write(dir: &Path, tables: &Tables, json: &serde_json::Value) -> Result<()> {
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    let mut object = json.clone();
    object["schema"] = "segue.reproduce.tail.v1".into();
    put("tail.json", &format!("{}\n", serde_json::to_string_pretty(&object)?))?;
    let mut csv = String::from("service,utilisation,formula_ns,simulated_ns,low,high,inside\n");
    for r in &tables.rows {
        let (simulated, low, high) = (r.simulated_mean_wait_ns, r.low, r.high);
        let _ = writeln!(csv, "{},{},{},{simulated},{low},{high},{}", r.service, r.utilisation, r.formula_ns, r.inside);
    }
    put("tail_waits.csv", &csv)?;
    let mut csv = String::from("servers,p,formula,simulated,low,high,requests,inside\n");
    for r in &tables.tail {
        let (formula, simulated, low, high) = (r.formula, r.simulated, r.low, r.high);
        let _ = writeln!(csv, "{},{},{formula},{simulated},{low},{high},{},{}", r.servers, r.p, r.requests, r.inside);
    }
    put("tail_requests.csv", &csv)?;
    put("tail.svg", &plot(tables)?)
}

/// Waits as multiples of the formula: all within their intervals around 1.
fn plot(tables: &Tables) -> Result<String> {
    let over = |pick: fn(&segue_models::tail::WaitRow) -> f64| {
        tables.rows.iter().enumerate().map(|(n, row)| (n as f64, pick(row) / row.formula_ns)).collect()
    };
    let highest = tables.rows.iter().map(|row| row.high / row.formula_ns).fold(1.0, f64::max);
    let mut plot = Series::new("Mean wait over the formula's", "case, as in the table", "ratio", highest);
    plot.thin("lower end", over(|row| row.low));
    plot.thin("upper end", over(|row| row.high));
    plot.thick("simulated", over(|row| row.simulated_mean_wait_ns));
    plot.mark("formula", 1.0);
    plot.svg()
}
