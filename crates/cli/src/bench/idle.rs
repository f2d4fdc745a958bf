//! `segue bench idle`: what a node costs that nobody uses.
//!
//! Owns: the measurement. Never: counts the time of starting.
//! Invariant: the node under test serves a file pool with a volume, as in real use.

use super::process::{Node, cpu_s, status_bytes};
use crate::Global;
use crate::exit::ExitCode;
use anyhow::Result;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Limit of CPU, percent of a core.
const CPU_LIMIT_PERCENT: f64 = 1.0;
/// Limit of resident memory, bytes.
const RSS_LIMIT_BYTES: u64 = 64 << 20;

/// Arguments of `segue bench idle`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Seconds of watching.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Folder for the pool's file (sparse).
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Size of the pool.
    #[arg(long, default_value = "64GiB", value_parser = segue_types::parse_size)]
    pool: u64,
}

#[derive(Serialize)]
struct Report {
    seconds: f64,
    pool_bytes: u64,
    cpu_percent: f64,
    cpu_limit_percent: f64,
    cpu_over_limit: f64,
    rss_bytes: u64,
    rss_peak_bytes: u64,
    rss_limit_bytes: u64,
    rss_over_limit: f64,
}

/// Runs it. The answer is no when a limit is passed.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let node = Node::on_file(&args.dir, args.pool)?;
    node.create("idle", args.pool / 2)?;
    let pid = node.server().pid();
    // The first second belongs to starting: late page faults, the first checkpoint.
    std::thread::sleep(Duration::from_secs(1));
    let (cpu_before, start) = (cpu_s(pid)?, Instant::now());
    std::thread::sleep(Duration::from_secs(args.seconds));
    let (cpu, seconds) = (cpu_s(pid)? - cpu_before, start.elapsed().as_secs_f64());
    let (rss_bytes, rss_peak_bytes) = (status_bytes(pid, "VmRSS")?, status_bytes(pid, "VmHWM")?);
    let cpu_percent = 100.0 * cpu / seconds;
    let report = Report {
        seconds,
        pool_bytes: args.pool,
        cpu_percent,
        cpu_limit_percent: CPU_LIMIT_PERCENT,
        cpu_over_limit: cpu_percent / CPU_LIMIT_PERCENT,
        rss_bytes,
        rss_peak_bytes,
        rss_limit_bytes: RSS_LIMIT_BYTES,
        rss_over_limit: rss_bytes as f64 / RSS_LIMIT_BYTES as f64,
    };
    global.print("bench.idle", &report, || {
        format!(
            "cpu  {:.3} % of a core (limit {CPU_LIMIT_PERCENT} %), over {seconds:.1} s\nrss  {:.1} MiB (limit {} MiB)\n",
            cpu_percent,
            rss_bytes as f64 / f64::from(1 << 20),
            RSS_LIMIT_BYTES >> 20
        )
    });
    let good = cpu_percent < CPU_LIMIT_PERCENT && rss_bytes < RSS_LIMIT_BYTES;
    Ok(if good { ExitCode::Yes } else { ExitCode::No })
}
