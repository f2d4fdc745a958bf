//! `segue bench open`: how long a node takes to open a pool of which 1 TiB is mapped, and what it then holds in memory.
//!
//! Owns: a sparse pool file full of mapped zeroes, the measurement. Never: stores a terabyte.
//! Invariant: every block is written, checksummed and mapped by the engine itself; only its zero bytes stay a hole of the
//! file, and read back from there they match their checksum.

use super::process::{Node, status_bytes};
use super::sparse::SparsePool;
use super::stats::{Median, median};
use crate::Global;
use crate::exit::ExitCode;
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Longest opening that counts as seconds, not minutes.
const OPEN_LIMIT_S: f64 = 10.0;
/// Most resident memory per mapped TiB beside the cache, bytes.
const METADATA_LIMIT_BYTES: u64 = 64 << 20;
/// What a node with an empty pool and an idle cache may hold, bytes: the program itself.
const PROGRAM_BYTES: u64 = 32 << 20;
/// The node's default cache of map pages, bytes.
const CACHE_BYTES: u64 = 16 << 20;

/// Arguments of `segue bench open`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Bytes to map. A tebibyte takes about 4.2 GiB of disk and some minutes to make.
    #[arg(long, default_value = "1TiB", value_parser = segue_types::parse_size)]
    mapped: u64,
    /// Openings.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Folder for the pool's file; it is removed afterwards.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
}

#[derive(Serialize)]
struct Report {
    mapped_bytes: u64,
    file_disk_bytes: u64,
    map_pages_bytes_limit: u64,
    build_s: f64,
    open_s: Median,
    open_limit_s: f64,
    open_over_limit: f64,
    rss_after_open_bytes: u64,
    rss_after_reads_bytes: u64,
    bitmap_bytes: u64,
    cache_bytes: u64,
    metadata_limit_bytes: u64,
}

/// Runs it. The answer is no when a limit is passed.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let start = Instant::now();
    let pool = SparsePool::build(&args.dir, args.mapped, |done| {
        eprintln!("open: {} of {} mapped", segue_types::format_size(done), segue_types::format_size(args.mapped));
    })?;
    let build_s = start.elapsed().as_secs_f64();
    let file_disk_bytes = pool.disk_bytes()?;
    let mut seconds = Vec::new();
    let (mut rss_open, mut rss_reads, mut bitmap_bytes) = (0, 0, 0);
    for round in 0..args.rounds {
        eprintln!("open: round {} of {}", round + 1, args.rounds);
        let start = Instant::now();
        let node = Node::on_pool(pool.path())?;
        seconds.push(start.elapsed().as_secs_f64());
        let pid = node.server().pid();
        rss_open = rss_open.max(status_bytes(pid, "VmRSS")?);
        read_around(&node)?;
        rss_reads = rss_reads.max(status_bytes(pid, "VmRSS")?);
        bitmap_bytes = node.client().pool("bench").context("ask for the pool")?.bitmap_bytes;
    }
    let open_s = median(&seconds);
    let report = Report {
        mapped_bytes: args.mapped,
        file_disk_bytes,
        map_pages_bytes_limit: args.mapped / 256,
        build_s,
        open_s,
        open_limit_s: OPEN_LIMIT_S,
        open_over_limit: open_s.median / OPEN_LIMIT_S,
        rss_after_open_bytes: rss_open,
        rss_after_reads_bytes: rss_reads,
        bitmap_bytes,
        cache_bytes: CACHE_BYTES,
        metadata_limit_bytes: METADATA_LIMIT_BYTES,
    };
    global.print("bench.open", &report, || text(&report));
    let tebibytes = args.mapped.div_ceil(1 << 40);
    let memory_good = rss_reads <= PROGRAM_BYTES + CACHE_BYTES + METADATA_LIMIT_BYTES * tebibytes;
    Ok(if open_s.median <= OPEN_LIMIT_S && memory_good { ExitCode::Yes } else { ExitCode::No })
}

/// Random reads over the whole volume, so that the cache of map pages is full.
fn read_around(node: &Node) -> Result<()> {
    super::fio::run(
        &super::fio::uri(&node.nbd_socket(), "mapped"),
        &["--rw=randread", "--bs=4k", "--iodepth=32", "--time_based", "--runtime=2"],
    )?;
    Ok(())
}

fn text(report: &Report) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "mapped  {} in a file that takes {:.0} MiB, made in {:.0} s\n\
         open    {:.2} s ({:.2}..{:.2}), limit {OPEN_LIMIT_S} s\n\
         memory  {:.1} MiB after opening, {:.1} MiB after random reads; bitmap {:.1} MiB, cache cap {:.0} MiB\n",
        segue_types::format_size(report.mapped_bytes),
        mib(report.file_disk_bytes),
        report.build_s,
        report.open_s.median,
        report.open_s.low,
        report.open_s.high,
        mib(report.rss_after_open_bytes),
        mib(report.rss_after_reads_bytes),
        mib(report.bitmap_bytes),
        mib(report.cache_bytes)
    )
}
