//! `segue bench replay`: a recovery's block trace on a regular volume, a super child, and the copy-on-write baseline.
//!
//! Owns: the replay, paced and unpaced, and its report. Never: skips a request of the trace.
//! Invariant: each round replays on fresh disks of all three kinds, one after the other, in an order that rotates.

use super::disk::{Bed, Disk, Finished, Variant, rotated};
use super::pool::Pool;
use super::stats::{Median, mean, median, median_ratio, quantile};
use super::trace::{Trace, TraceFacts, omap_beside};
use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Largest child / regular of the unpaced replay's duration that counts as good.
const CHILD_LIMIT: f64 = 1.10;

/// Arguments of `segue bench replay`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The trace: columns ts_us,op,offset,len,proc.
    trace: PathBuf,
    /// The map of 64 KiB objects that hold data at the start: a `1` or `0` for each. Without this: the one beside the trace.
    #[arg(long, value_name = "FILE")]
    omap: Option<PathBuf>,
    /// Unpaced rounds: every request as soon as there is room in the queue.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Paced rounds: every request at its recorded time. Each takes three times as long as the trace.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000))]
    paced_rounds: u32,
    /// Requests in flight at most in unpaced rounds.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// Folder for the pool's file; it is removed afterwards.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
}

/// One replay on one disk.
struct Run {
    seconds: f64,
    read_us: Vec<f64>,
    write_us: Vec<f64>,
}

#[derive(Serialize)]
struct Report {
    trace: String,
    facts: TraceFacts,
    depth: u32,
    unpaced: Outcome,
    paced: Option<Outcome>,
    child_bytes_copied: u64,
    cow_64k_bytes_copied: u64,
    cow_64k_mib_copied: f64,
    limit_child_over_regular: f64,
}

#[derive(Serialize)]
struct Outcome {
    rounds: u32,
    variants: Vec<VariantOutcome>,
    child_over_regular: Median,
    cow_64k_over_regular: Median,
    child_over_regular_write_mean: Median,
    cow_64k_over_regular_write_mean: Median,
}

#[derive(Serialize)]
struct VariantOutcome {
    variant: &'static str,
    seconds: Median,
    read_mean_us: Median,
    write_mean_us: Median,
    read_p99_us: Median,
    write_p99_us: Median,
}

/// Runs it. The answer is no when the child is slower than its limit or the baseline did not copy what the trace says.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let omap = args.omap.clone().unwrap_or_else(|| omap_beside(&args.trace));
    let trace = Trace::read(&args.trace, &omap)?;
    let facts = trace.facts();
    // Three populated volumes, the copies of one round, and as much again that waits to be reused.
    let data = facts.populated_objects * super::trace::OBJECT_BYTES;
    eprintln!("replay: making a pool and populating {} objects three times", facts.populated_objects);
    let mut pool = Pool::create(&args.dir, data * 5 + (1 << 30))?;
    let mut bed = Bed::new(&mut pool, trace.populated.clone())?;
    let mut copied = 0;
    let unpaced = rounds(&mut pool, &mut bed, args.rounds, "unpaced", &mut copied, |pool, disk| {
        unpaced(pool, disk, &trace, args.depth as usize)
    })?;
    let paced = match args.paced_rounds {
        0 => None,
        n => Some(rounds(&mut pool, &mut bed, n, "paced", &mut copied, |pool, disk| paced(pool, disk, &trace))?),
    };
    let child_bytes_copied = pool.engine_bytes_copied()?;
    let report = Report {
        trace: args.trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        depth: args.depth,
        unpaced,
        paced,
        child_bytes_copied,
        cow_64k_bytes_copied: copied,
        cow_64k_mib_copied: copied as f64 / f64::from(1 << 20),
        limit_child_over_regular: CHILD_LIMIT,
        facts,
    };
    global.print("bench.replay", &report, || text(&report));
    let good = report.unpaced.child_over_regular.median <= CHILD_LIMIT
        && report.child_bytes_copied == 0
        && copied == report.facts.cow_bytes;
    Ok(if good { ExitCode::Yes } else { ExitCode::No })
}

fn rounds(
    pool: &mut Pool,
    bed: &mut Bed,
    rounds: u32,
    name: &str,
    copied: &mut u64,
    mut replay: impl FnMut(&mut Pool, &mut Disk) -> Result<Run>,
) -> Result<Outcome> {
    let mut runs: [Vec<Run>; 3] = Default::default();
    for round in 0..rounds {
        eprintln!("replay: {name} round {} of {rounds}", round + 1);
        let mut fresh = bed.fresh(pool)?;
        for variant in rotated(round as usize) {
            let run = replay(pool, fresh.disk(variant)).with_context(|| format!("replay on {}", variant.name()))?;
            runs[variant as usize].push(run);
        }
        *copied = fresh.cow_copied_bytes();
        bed.undo(pool, fresh)?;
    }
    Ok(summarise(rounds, &runs))
}

fn summarise(rounds: u32, runs: &[Vec<Run>; 3]) -> Outcome {
    let seconds = |v: Variant| -> Vec<f64> { runs[v as usize].iter().map(|r| r.seconds).collect() };
    let write_means = |v: Variant| -> Vec<f64> { runs[v as usize].iter().map(|r| mean(&r.write_us)).collect() };
    let over = |of: &dyn Fn(Variant) -> Vec<f64>, v: Variant| median_ratio(&of(v), &of(Variant::Regular));
    let each = |v: Variant, f: &dyn Fn(&Run) -> f64| median(&runs[v as usize].iter().map(f).collect::<Vec<f64>>());
    let variants = rotated(0).map(|v| VariantOutcome {
        variant: v.name(),
        seconds: each(v, &|r| r.seconds),
        read_mean_us: each(v, &|r| mean(&r.read_us)),
        write_mean_us: each(v, &|r| mean(&r.write_us)),
        read_p99_us: each(v, &|r| quantile(&r.read_us, 0.99)),
        write_p99_us: each(v, &|r| quantile(&r.write_us, 0.99)),
    });
    Outcome {
        rounds,
        variants: variants.into(),
        child_over_regular: over(&seconds, Variant::Child),
        cow_64k_over_regular: over(&seconds, Variant::Cow),
        child_over_regular_write_mean: over(&write_means, Variant::Child),
        cow_64k_over_regular_write_mean: over(&write_means, Variant::Cow),
    }
}

/// Closed loop: in the trace's order, at most `depth` in flight.
fn unpaced(pool: &mut Pool, disk: &mut Disk, trace: &Trace, depth: usize) -> Result<Run> {
    let mut finished = Vec::with_capacity(trace.requests.len());
    let start = Instant::now();
    for (id, request) in trace.requests.iter().enumerate() {
        while disk.in_flight() >= depth {
            disk.wait(pool, None, &mut finished)?;
        }
        disk.submit(pool, id as u64, request.write, request.offset, request.len)?;
    }
    disk.drain(pool, &mut finished)?;
    Ok(split(trace, start.elapsed(), &finished))
}

/// Open loop: each request at its time, however many are in flight.
fn paced(pool: &mut Pool, disk: &mut Disk, trace: &Trace) -> Result<Run> {
    let mut finished = Vec::with_capacity(trace.requests.len());
    let start = Instant::now();
    for (id, request) in trace.requests.iter().enumerate() {
        let due = start + Duration::from_micros(request.at_us);
        while Instant::now() < due {
            disk.wait(pool, Some(due), &mut finished)?;
        }
        disk.submit(pool, id as u64, request.write, request.offset, request.len)?;
    }
    disk.drain(pool, &mut finished)?;
    Ok(split(trace, start.elapsed(), &finished))
}

fn split(trace: &Trace, elapsed: Duration, finished: &[Finished]) -> Run {
    assert_eq!(finished.len(), trace.requests.len(), "every request of the trace was replayed");
    let latencies = |write: bool| -> Vec<f64> {
        let chosen = finished.iter().filter(|f| trace.requests[f.id as usize].write == write);
        chosen.map(|f| f.latency_us).collect()
    };
    Run { seconds: elapsed.as_secs_f64(), read_us: latencies(false), write_us: latencies(true) }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["REPLAY", "DISK", "SECONDS>", "/ REGULAR>", "READ us>", "WRITE us>", "WRITE p99 us>"]);
    for (name, outcome) in [("unpaced", Some(&report.unpaced)), ("paced", report.paced.as_ref())] {
        let Some(outcome) = outcome else { continue };
        let ratios = [1.0, outcome.child_over_regular.median, outcome.cow_64k_over_regular.median];
        for (v, ratio) in outcome.variants.iter().zip(ratios) {
            table.row(vec![
                name.to_owned(),
                v.variant.to_owned(),
                format!("{:.3}", v.seconds.median),
                format!("{ratio:.3}"),
                format!("{:.0}", v.read_mean_us.median),
                format!("{:.0}", v.write_mean_us.median),
                format!("{:.0}", v.write_p99_us.median),
            ]);
        }
    }
    let (child, interval) = (report.child_bytes_copied, &report.unpaced.child_over_regular);
    format!(
        "{}copied: child {child} B, 64 KiB copy-on-write {:.1} MiB ({} objects)\n\
         child / regular unpaced {:.3} ({:.3}..{:.3}), limit {CHILD_LIMIT:.2}\n",
        table.render(),
        report.cow_64k_mib_copied,
        report.facts.cow_copies,
        interval.median,
        interval.low,
        interval.high
    )
}
