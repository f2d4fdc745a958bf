//! `segue drive calibrate`: what a drive can do, and where the knee of its latency curve is.
//!
//! Owns: the sweep and its judgement. Never: writes anywhere but into a scratch file that it made.
//! Invariant: a drive or file that was there before is opened for reading only.
//!
//! 4 KiB random reads with direct I/O at growing depth, each step so long; the knee is the smallest depth that reaches
//! nine tenths of the most reads per second that any depth reached.

use crate::Global;
use crate::bench::quantile;
use crate::exit::{ExitCode, fail};
use crate::out::Table;
use anyhow::{Context, Result};
use segue_types::qos::{DriveProfile, SetPoolQos};
use segue_types::{format_size, parse_size};
use serde::Serialize;
use std::alloc::Layout;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Depths of the sweep.
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// A file with less data than this says nothing about its drive.
const DATA_MIN_BYTES: u64 = 16 << 20;
/// Room for noise between the p95 at the knee and the target.
const TARGET_PERCENT: f64 = 125.0;
const BLOCK: usize = 4096;

/// Arguments of `segue drive`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Measure the latency curve of a drive and find its knee. Nothing that exists is written to.
    Calibrate(Calibrate),
}

#[derive(clap::Args, Debug)]
struct Calibrate {
    /// A block device or file, only read; or a folder, in which a scratch file is made and removed: then writes are
    /// measured too.
    #[arg(required_unless_present = "pool", conflicts_with = "pool")]
    path: Option<PathBuf>,
    /// The drive of this pool of the running node, only read, beside whatever load it has.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// With --pool: put what was found in force until the node's next start.
    #[arg(long, requires = "pool")]
    apply: bool,
    /// Length of each step, seconds.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Size of the scratch file.
    #[arg(long, value_parser = parse_size, default_value = "256MiB")]
    size: u64,
    /// Seed of the offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One step of the sweep.
#[derive(Serialize, Clone, Debug)]
struct Step {
    depth: u32,
    iops: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
}

#[derive(Serialize)]
struct Report {
    drive: String,
    reads: Vec<Step>,
    /// Writes at the knee, if a scratch file was measured.
    writes: Option<Step>,
    profile: DriveProfile,
    applied: bool,
}

/// Runs `segue drive`.
///
/// # Errors
/// When the drive cannot be read with direct I/O, or the admin API refuses.
pub fn run(args: Args, global: &Global) -> Result<ExitCode> {
    let Verb::Calibrate(args) = args.verb;
    let path = match (&args.path, &args.pool) {
        (Some(path), _) => path.clone(),
        (None, Some(pool)) => {
            let drive = global.client().pool(pool)?.drive;
            if drive == "memory" {
                return Err(fail(ExitCode::Misuse, "a pool in memory has no drive; its processor is all it shares"));
            }
            drive.into()
        }
        (None, None) => unreachable!("the command line demands one of them"),
    };
    let mut report = calibrate(&path, &args)?;
    if let (true, Some(pool)) = (args.apply, &args.pool) {
        let before = global.client().pool_qos(pool)?.profile;
        if report.profile.write_cost_percent == 0 {
            report.profile.write_cost_percent = before.write_cost_percent;
        }
        global.client().set_pool_qos(pool, &SetPoolQos { policy: None, profile: Some(report.profile) })?;
        report.applied = true;
    }
    global.print("drive.calibrate", &report, || text(&report));
    Ok(ExitCode::Yes)
}

fn calibrate(path: &Path, args: &Calibrate) -> Result<Report> {
    let scratch = path.is_dir().then(|| Scratch::make(path, args.size)).transpose()?;
    let target = scratch.as_ref().map_or(path, |scratch| &scratch.path);
    let drive = open(target, scratch.is_some())?;
    let ranges = data_ranges(&drive, target)?;
    let time = Duration::from_secs_f64(args.seconds.clamp(0.02, 60.0));
    let mut reads = Vec::new();
    for depth in DEPTHS {
        reads.push(step(&drive, &ranges, depth, false, time, args.seed)?);
    }
    let knee = knee(&reads);
    let at = reads.iter().find(|step| step.depth == knee).expect("the knee is one of the steps").clone();
    let writes = scratch.is_some().then(|| step(&drive, &ranges, knee, true, time, args.seed)).transpose()?;
    let profile = DriveProfile {
        capacity_iops: at.iops as u64,
        latency_target_us: (at.p95_us * TARGET_PERCENT / 100.0).ceil().max(1.0) as u32,
        knee_depth: knee,
        write_cost_percent: writes
            .as_ref()
            .map_or(0, |w| (at.iops * 100.0 / w.iops).round().clamp(50.0, 5000.0) as u32),
    };
    Ok(Report { drive: path.display().to_string(), reads, writes, profile, applied: false })
}

/// The smallest depth that reaches nine tenths of the most.
fn knee(steps: &[Step]) -> u32 {
    let most = steps.iter().map(|step| step.iops).fold(0.0, f64::max);
    steps.iter().find(|step| step.iops >= most * 0.9).map_or(1, |step| step.depth)
}

/// A file of this command's own, removed with it.
struct Scratch {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Scratch {
    /// Makes it and writes all of it, so that no read is answered from a hole.
    fn make(base: &Path, bytes: u64) -> Result<Scratch> {
        let bytes = bytes.max(DATA_MIN_BYTES) / (1 << 20) * (1 << 20);
        let dir = tempfile::tempdir_in(base).with_context(|| format!("make a folder in {}", base.display()))?;
        let path = dir.path().join("calibrate");
        let file = File::create_new(&path).with_context(|| format!("make {}", path.display()))?;
        // Not zeroes: some drives do not store those.
        let mut data = vec![0u8; 1 << 20];
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for at in 0..bytes >> 20 {
            data.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&next(&mut state).to_le_bytes()));
            file.write_all_at(&data, at << 20).with_context(|| format!("write {}", path.display()))?;
        }
        file.sync_all().context("write the scratch file back")?;
        Ok(Scratch { path, _dir: dir })
    }
}

fn open(path: &Path, write: bool) -> Result<File> {
    let opened = OpenOptions::new().read(true).write(write).custom_flags(libc::O_DIRECT).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => fail(
            ExitCode::Unsupported,
            format!("the file system of {} refuses direct I/O, so its drive cannot be measured", path.display()),
        ),
        _ => anyhow::Error::new(error).context(format!("open {}", path.display())),
    })
}

/// Where there is data: reads of holes say nothing about a drive.
fn data_ranges(file: &File, path: &Path) -> Result<Vec<(u64, u64)>> {
    let seek = |at: u64, whence| unsafe { libc::lseek(file.as_raw_fd(), at as i64, whence) };
    let kind = file.metadata().context("look at the drive")?.file_type();
    let end = seek(0, libc::SEEK_END).max(0) as u64;
    let mut ranges = Vec::new();
    if kind.is_block_device() {
        ranges.push((0, end));
    } else {
        let mut at = 0;
        while at < end {
            let start = seek(at, libc::SEEK_DATA);
            if start < 0 {
                break;
            }
            let stop = seek(start as u64, libc::SEEK_HOLE).max(start) as u64;
            ranges.push((start as u64, stop));
            at = stop.max(at + 1);
        }
    }
    // Whole blocks.
    ranges.iter_mut().for_each(|(start, stop)| (*start, *stop) = (start.next_multiple_of(4096), *stop & !4095));
    ranges.retain(|(start, stop)| start < stop);
    let sum: u64 = ranges.iter().map(|(start, stop)| stop - start).sum();
    if sum < DATA_MIN_BYTES {
        return Err(fail(
            ExitCode::Misuse,
            format!(
                "{} holds {} of data, too little to tell its drive's speed; give its folder instead, where a scratch \
                 file is made",
                path.display(),
                format_size(sum)
            ),
        ));
    }
    Ok(ranges)
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// A block in memory as direct I/O wants it.
struct Aligned(*mut u8);

impl Aligned {
    const LAYOUT: Layout = match Layout::from_size_align(BLOCK, BLOCK) {
        Ok(layout) => layout,
        Err(_) => panic!("a block is a layout"),
    };

    fn new() -> Aligned {
        let at = unsafe { std::alloc::alloc_zeroed(Self::LAYOUT) };
        assert!(!at.is_null(), "no memory for a block");
        Aligned(at)
    }

    fn bytes(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.0, BLOCK) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        unsafe { std::alloc::dealloc(self.0, Self::LAYOUT) };
    }
}

/// Keeps `depth` requests in flight for `time`, one thread each.
fn step(file: &File, ranges: &[(u64, u64)], depth: u32, write: bool, time: Duration, seed: u64) -> Result<Step> {
    let stop = AtomicBool::new(false);
    let blocks: u64 = ranges.iter().map(|(start, end)| (end - start) / 4096).sum();
    let begun = Instant::now();
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth as u64)
            .map(|number| {
                let stop = &stop;
                scope.spawn(move || -> std::io::Result<Vec<f64>> {
                    let (mut block, mut latencies) = (Aligned::new(), Vec::new());
                    let mut state = (seed * 1000 + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    block.bytes().chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&next(&mut state).to_le_bytes()));
                    while !stop.load(Ordering::Relaxed) {
                        let offset = offset_of(ranges, next(&mut state) % blocks);
                        let since = Instant::now();
                        if write {
                            file.write_all_at(block.bytes(), offset)?;
                        } else {
                            file.read_exact_at(block.bytes(), offset)?;
                        }
                        latencies.push(since.elapsed().as_nanos() as f64 / 1000.0);
                    }
                    Ok(latencies)
                })
            })
            .collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("a step does not panic")).collect::<Vec<_>>()
    });
    let took = begun.elapsed().as_secs_f64();
    let mut latencies = Vec::new();
    for part in all {
        latencies.extend(part.context("read or write the drive")?);
    }
    let at = |p| quantile(&latencies, p);
    Ok(Step { depth, iops: latencies.len() as f64 / took, p50_us: at(0.5), p95_us: at(0.95), p99_us: at(0.99) })
}

/// The place of the `n`th block with data.
fn offset_of(ranges: &[(u64, u64)], mut n: u64) -> u64 {
    for (start, end) in ranges {
        let blocks = (end - start) / 4096;
        if n < blocks {
            return start + n * 4096;
        }
        n -= blocks;
    }
    unreachable!("the number is below the sum of the blocks")
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["", "DEPTH>", "IOPS>", "p50>", "p95>", "p99>"]);
    for (what, step) in report.reads.iter().map(|s| ("read", s)).chain(report.writes.iter().map(|s| ("write", s))) {
        let us = |value: f64| format!("{value:.0} us");
        let (p50, p95, p99) = (us(step.p50_us), us(step.p95_us), us(step.p99_us));
        table.row(vec![what.to_owned(), step.depth.to_string(), format!("{:.0}", step.iops), p50, p95, p99]);
    }
    let p = &report.profile;
    let mut lines = format!(
        "capacity_iops = {}\nlatency_target = \"{}us\"\nknee_depth = {}\n",
        p.capacity_iops, p.latency_target_us, p.knee_depth
    );
    if p.write_cost_percent > 0 {
        lines.push_str(&format!("write_cost_percent = {}\n", p.write_cost_percent));
    }
    format!("{}\nfor its [[pool]] in the configuration:\n\n{lines}", table.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_the_first_depth_that_reaches_nine_tenths() {
        let step = |depth, iops| Step { depth, iops, p50_us: 0.0, p95_us: 0.0, p99_us: 0.0 };
        let steps = [step(1, 10.0), step(2, 19.0), step(4, 36.0), step(8, 39.0), step(16, 40.0)];
        assert_eq!(knee(&steps), 4);
    }

    #[test]
    fn blocks_are_numbered_across_holes() {
        let ranges = [(4096, 12288), (1 << 20, (1 << 20) + 4096)];
        assert_eq!([0, 1, 2].map(|n| offset_of(&ranges, n)), [4096, 8192, 1 << 20]);
    }
}
