//! `segue sim scale`: what a simulated event costs, from 180 nodes to 10,000 and from an idle fabric to a full one.
//!
//! Owns: the sweep, the report, what each row is held against. Never: measures two rows in one process.
//! Invariant: every rate stands beside the limit that the event queue alone sets.

mod child;
mod growth;
mod rows;
mod show;

use super::configurations;
use super::runner::rate_text;
use crate::Global;
use crate::bench::stats::{Median, median};
use crate::exit::{ExitCode, fail};
use anyhow::Result;
use child::{Measured, Task};
use growth::Growth;
use indicatif::{ProgressBar, ProgressStyle};
use rows::{Kind, Row};
use segue_models::choosy::scale::{LOADED_NODES, LOADS_PERMILLE, Limits, NODES};
use segue_models::storage::registry::Model;
use segue_types::parse_duration_ns;
use serde::Serialize;

/// The model that the claims are about.
const MODEL: &str = "replicast-h";

/// Arguments of `segue sim scale`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which model; `segue sim list` shows them.
    #[arg(long, default_value = MODEL)]
    model: String,
    /// Sizes: nodes in all, half of them write as fast as they can for 10 ms of virtual time.
    #[arg(long, value_delimiter = ',', default_values_t = NODES.to_vec())]
    nodes: Vec<u32>,
    /// Open loads, thousandths of the capacity, at --load-nodes.
    #[arg(long, value_delimiter = ',', default_values_t = LOADS_PERMILLE.to_vec())]
    loads: Vec<u64>,
    /// Nodes of the rows of --loads.
    #[arg(long, default_value_t = LOADED_NODES)]
    load_nodes: u32,
    /// Simulations at once in each row, with seeds SEED, SEED + 1, and so on; rates are those of all together.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A setting of every row.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Rounds over all rows, so that a busy spell of the machine does not meet one row alone.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// In a round each row is repeated for this long, and at least once.
    #[arg(long, default_value = "700ms", value_name = "DURATION")]
    repeat: String,
    /// A row's own process.
    #[arg(long, hide = true)]
    child: Option<String>,
}

/// A row and what was measured.
#[derive(Serialize)]
struct Line {
    kind: Kind,
    nodes: u32,
    initiators: u32,
    targets: u32,
    /// Of the capacity; `null` in the closed loop, where every initiator always has a chunk outstanding.
    load: Option<f64>,
    run_ns: u64,
    settings: Vec<String>,
    chunks_done: usize,
    chunks_in_flight: usize,
    /// Of one simulation.
    events: u64,
    /// Of all threads together; the median of the repeats.
    events_per_s: f64,
    /// Of one thread's processor time, the fastest repeat: other programs take time and caches, and never give any.
    events_per_cpu_s: f64,
    /// Processor time of an event, nanoseconds: the inverse.
    ns_per_event: f64,
    /// Of one simulation; with several threads, of as many at once. The median of the repeats.
    wall_s: f64,
    wall: Median,
    /// Peak of the row's process.
    rss_gib: f64,
    scheduled_max: usize,
    /// The queue alone with so many events scheduled, per second of processor time: no simulation on it is faster.
    limit_events_per_s: f64,
    /// `events_per_cpu_s` over that.
    measured_over_limit: f64,
    trace: String,
    /// What is promised of this row with the default model and settings.
    limits: Limits,
}

/// A claim and what was measured.
#[derive(Serialize)]
struct Claim {
    claim: String,
    measured: f64,
    bound: f64,
    holds: bool,
}

#[derive(Serialize)]
struct Report {
    model: &'static str,
    threads: usize,
    seed: u64,
    /// In the order they were run: the sizes, the figure, everyone, the loads.
    rows: Vec<Line>,
    /// Over the sizes; `null` when there are fewer than two.
    growth: Option<Growth>,
    /// Whether the cost of an event grows at most logarithmically with the nodes; the numbers are in `growth`.
    cost_per_event_grows_at_most_logarithmically: Option<bool>,
    /// Cost of an event at the highest load over that at the lowest.
    cost_of_load: Option<f64>,
    claims: Vec<Claim>,
}

/// Runs the verb.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    if let Some(task) = &args.child {
        crate::out::print(&serde_json::to_string(&child::work(task)?).expect("figures are plain data"));
        return Ok(ExitCode::Yes);
    }
    let model = configurations::model(&args.model)?;
    let repeat_ns = parse_duration_ns(&args.repeat)
        .map_err(|e| fail(ExitCode::Misuse, format!("--repeat takes a duration, for example 2s: {e}")))?;
    let threads = child::threads(args.threads);
    let rows = Row::all(&args.nodes, args.load_nodes, &args.loads, &args.settings);
    for row in &rows {
        // Before minutes of work, not after.
        row.configuration(model)?;
    }
    let task = |row| Task { model: model.name.into(), row, seed: args.seed, threads, repeat_ns };
    let tasks: Vec<Task> = rows.into_iter().map(task).collect();
    let measured = measure(&tasks, usize::from(args.rounds))?;
    let lines = tasks.iter().zip(&measured).map(|(task, m)| line(model, task, m)).collect::<Result<_>>()?;
    let report = report(model, threads, args, lines);
    global.print("sim.scale", &report, || show::text(&report));
    Ok(ExitCode::Yes)
}

/// Every row once per round.
fn measure(tasks: &[Task], rounds: usize) -> Result<Vec<Measured>> {
    let bar = bar(tasks.len() * rounds);
    let mut all: Vec<Option<Measured>> = vec![None; tasks.len()];
    let mut last = String::new();
    for _ in 0..rounds {
        for (task, so_far) in tasks.iter().zip(&mut all) {
            bar.set_message(format!("{}, {} nodes{last}", task.row.kind.name(), task.row.nodes));
            let measured = child::measure(task)?;
            let events = measured.events * measured.wall_s.len() as u64;
            last = format!(" (the last: {})", rate_text(events, measured.wall_s.iter().sum()));
            match so_far {
                Some(so_far) => so_far.merge(measured)?,
                None => *so_far = Some(measured),
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(all.into_iter().flatten().collect())
}

fn bar(rows: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} row {pos} of {len}, {eta} to go: {msg}");
    let bar = ProgressBar::new(rows as u64).with_style(style.expect("a fixed template is sound"));
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    bar
}

fn line(model: &Model, task: &Task, measured: &Measured) -> Result<Line> {
    let scenario = task.row.configuration(model)?.scenario;
    let wall = median(&measured.wall_s);
    let all = measured.events as f64 * task.threads as f64;
    let events_per_s = all / wall.median.max(1e-9);
    let fastest_s = measured.cpu_s.iter().copied().fold(f64::INFINITY, f64::min);
    let events_per_cpu_s = measured.events as f64 / fastest_s.max(1e-9);
    let load = match scenario.arrivals {
        segue_models::storage::Arrivals::Closed { .. } => None,
        segue_models::storage::Arrivals::Open { load_permille } => Some(load_permille as f64 / 1e3),
    };
    Ok(Line {
        kind: task.row.kind,
        nodes: task.row.nodes,
        initiators: scenario.initiators,
        targets: scenario.targets,
        load,
        run_ns: scenario.run_ns,
        settings: task.row.settings.clone(),
        chunks_done: measured.chunks[0],
        chunks_in_flight: measured.chunks[1],
        events: measured.events,
        events_per_s,
        events_per_cpu_s,
        ns_per_event: 1e9 / events_per_cpu_s,
        wall_s: wall.median,
        wall,
        rss_gib: measured.rss_bytes as f64 / f64::from(1 << 30),
        scheduled_max: measured.scheduled_max,
        limit_events_per_s: measured.queue_events_per_s,
        measured_over_limit: events_per_cpu_s / measured.queue_events_per_s,
        trace: measured.trace.clone(),
        limits: task.row.case().limits,
    })
}

fn report(model: &'static Model, threads: usize, args: &Args, rows: Vec<Line>) -> Report {
    let defaults = args.settings.is_empty() && threads == 1;
    let cost = |kind| move |l: &Line| (l.kind == kind).then_some((l.nodes, l.ns_per_event));
    let growth = Growth::of(&rows.iter().filter_map(cost(Kind::Grown)).collect::<Vec<_>>());
    let loads: Vec<f64> = rows.iter().filter_map(cost(Kind::Loaded)).map(|(_, ns)| ns).collect();
    let claims = if model.name == MODEL && defaults { rows.iter().flat_map(claims).collect() } else { Vec::new() };
    let cost_of_load = match loads.as_slice() {
        [low, .., high] => Some(high / low),
        _ => None,
    };
    Report {
        model: model.name,
        threads,
        seed: args.seed,
        claims,
        cost_per_event_grows_at_most_logarithmically: growth.as_ref().map(|g| g.at_most_logarithmic),
        growth,
        cost_of_load,
        rows,
    }
}

/// What is promised of a row with the default model and settings.
fn claims(line: &Line) -> Vec<Claim> {
    let Limits { wall_ms_max, events_per_s_min, rss_bytes_max } = line.limits;
    let claim = |what: &str, measured: f64, bound: f64, holds: bool| Claim {
        claim: format!("{} {} nodes: {what}", line.kind.name(), line.nodes),
        measured,
        bound,
        holds,
    };
    let least = events_per_s_min.map(|min| {
        let (measured, bound) = (line.events_per_s, min as f64);
        claim("events per second, at least", measured, bound, measured >= bound)
    });
    let most = |what, measured: f64, bound: Option<f64>| bound.map(|b| claim(what, measured, b, measured < b));
    let wall = most("seconds, below", line.wall_s, wall_ms_max.map(|ms| ms as f64 / 1e3));
    let rss = most("GiB of memory, below", line.rss_gib, rss_bytes_max.map(|b| b as f64 / f64::from(1 << 30)));
    least.into_iter().chain(wall).chain(rss).collect()
}
