//! `segue bench handover`: how long clients pause while their pool goes from core to core.
//!
//! Owns: the moves under load and their figures. Never: counts a move that nobody was served beside.
//! Invariant: fio runs beside every move, and an error of fio is an error here.

use super::fio;
use super::process::Node;
use super::stats::quantile;
use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the 99th percentile of the pauses may be, ns.
const STALL_LIMIT_NS: f64 = 5e6;
/// Bytes of the pool; the volume is half of it.
const POOL_BYTES: u64 = 512 << 20;
/// Pause between two moves, so that there is load to be paused.
const BETWEEN: Duration = Duration::from_millis(20);

/// Arguments of `segue bench handover`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Moves per drive and workload.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    moves: u32,
    /// Requests in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Folder for the file pool.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
}

#[derive(Serialize)]
struct Report {
    moves: u32,
    queue_depth: u32,
    stall_limit_ns: f64,
    results: Vec<Outcome>,
}

#[derive(Serialize)]
struct Outcome {
    drive: &'static str,
    workload: &'static str,
    stall_ns_p50: f64,
    stall_ns_p99: f64,
    stall_ns_max: f64,
    stall_p99_over_limit: f64,
    /// Latencies that fio saw beside the moves.
    client_latency_ns_p99: u64,
    client_latency_ns_max: u64,
    /// The same without moves, measured before.
    still_client_latency_ns_p99: u64,
    still_client_latency_ns_max: u64,
    client_iops: f64,
}

const WORKLOADS: [(&str, &[&str]); 2] = [
    ("4 KiB, 70 % reads", &["--rw=randrw", "--rwmixread=70", "--bs=4k"]),
    ("4 KiB writes, a flush after every 8", &["--rw=randwrite", "--bs=4k", "--fsync=8"]),
];

/// Runs it. The answer is no when the 99th percentile of a pause is over the limit.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let mut results = Vec::new();
    for (drive, base) in [("memory", None), ("file", Some(args.dir.as_path()))] {
        let node = Node::with_cores(2, base, POOL_BYTES)?;
        node.create("v", POOL_BYTES / 2)?;
        for (workload, job) in WORKLOADS {
            eprintln!("{drive}, {workload}: {} moves", args.moves);
            results.push(measure(&node, drive, workload, job, args)?);
        }
    }
    let good = results.iter().all(|r| r.stall_ns_p99 <= STALL_LIMIT_NS);
    let report = Report { moves: args.moves, queue_depth: args.depth, stall_limit_ns: STALL_LIMIT_NS, results };
    global.print("bench.handover", &report, || table(&report));
    Ok(if good { ExitCode::Yes } else { ExitCode::No })
}

fn measure(
    node: &Node,
    drive: &'static str,
    workload: &'static str,
    job: &'static [&'static str],
    args: &Args,
) -> Result<Outcome> {
    let load = |seconds: u64| {
        let uri = fio::uri(&node.nbd_socket(), "v");
        let (depth, runtime) = (format!("--iodepth={}", args.depth), format!("--runtime={seconds}"));
        let mut words = vec!["--time_based", "--size=100%", &depth, &runtime];
        words.extend(job);
        fio::run(&uri, &words)
    };
    let still = load(3)?;
    let over = AtomicBool::new(false);
    let (stalls, beside) = std::thread::scope(|scope| -> Result<_> {
        let mover = scope.spawn(|| move_about(node, args.moves, &over));
        let mut beside = Vec::new();
        // Load of known length, again and again, until all moves are done.
        while !over.load(Ordering::Relaxed) {
            beside.push(load(4)?);
        }
        Ok((mover.join().expect("the mover does not panic")?, beside))
    })?;
    let most = |at: fn(&serde_json::Value) -> u64| beside.iter().map(at).max().unwrap_or(0);
    let iops = |job: &serde_json::Value| ["read", "write"].iter().filter_map(|d| job[d]["iops"].as_f64()).sum::<f64>();
    Ok(Outcome {
        drive,
        workload,
        stall_ns_p50: quantile(&stalls, 0.5),
        stall_ns_p99: quantile(&stalls, 0.99),
        stall_ns_max: quantile(&stalls, 1.0),
        stall_p99_over_limit: quantile(&stalls, 0.99) / STALL_LIMIT_NS,
        client_latency_ns_p99: most(latency_ns_p99),
        client_latency_ns_max: most(latency_ns_max),
        still_client_latency_ns_p99: latency_ns_p99(&still),
        still_client_latency_ns_max: latency_ns_max(&still),
        client_iops: beside.iter().map(iops).sum::<f64>() / beside.len().max(1) as f64,
    })
}

/// Moves the pool to and fro and gives each pause, ns.
fn move_about(node: &Node, moves: u32, over: &AtomicBool) -> Result<Vec<f64>> {
    let mut stalls = Vec::with_capacity(moves as usize);
    let mut go = || -> Result<()> {
        let mut at = node.client().pool("bench").context("ask where the pool is")?.core;
        while stalls.len() < moves as usize {
            // Without a client there is nothing to pause.
            std::thread::sleep(BETWEEN);
            let bound = node.client().bind_pool("bench", 1 - at).context("move the pool")?;
            if bound.connections > 0 {
                stalls.push(bound.stall_ns as f64);
            }
            at = bound.to;
        }
        Ok(())
    };
    let gone = go();
    over.store(true, Ordering::Relaxed);
    gone.map(|()| stalls)
}

fn latency_ns_max(job: &serde_json::Value) -> u64 {
    ["read", "write", "sync"].iter().filter_map(|d| lat(&job[d])["max"].as_u64()).max().unwrap_or(0)
}

fn latency_ns_p99(job: &serde_json::Value) -> u64 {
    let p99 = |d: &&str| job[d]["clat_ns"]["percentile"]["99.000000"].as_u64();
    ["read", "write"].iter().filter_map(p99).max().unwrap_or(0)
}

fn lat(direction: &serde_json::Value) -> &serde_json::Value {
    &direction["lat_ns"]
}

fn table(report: &Report) -> String {
    let mut table =
        Table::new(&["DRIVE", "WORKLOAD", "PAUSE P50>", "P99>", "MAX>", "P99/LIMIT>", "CLIENT P99>", "STILL P99>"]);
    let us = |ns: f64| format!("{:.0} us", ns / 1e3);
    for r in &report.results {
        table.row(vec![
            r.drive.into(),
            r.workload.into(),
            us(r.stall_ns_p50),
            us(r.stall_ns_p99),
            us(r.stall_ns_max),
            format!("{:.3}", r.stall_p99_over_limit),
            us(r.client_latency_ns_p99 as f64),
            us(r.still_client_latency_ns_p99 as f64),
        ]);
    }
    table.render()
}
