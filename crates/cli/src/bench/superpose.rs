//! `segue bench super`: super and collapse at two sizes, and the paper's Figures 4a and 4b on three kinds of disk.
//!
//! Owns: the measurements and their report. Never: compares samples of different rounds.
//! Invariant: the sizes, and the disks, alternate sample by sample; each figure's round begins on fresh disks.

use super::disk::{Bed, Finished, Variant, rotated};
use super::pool::Pool;
use super::stats::{Median, mean, median, median_ratio};
use super::trace::OBJECT_BYTES;
use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Largest ratio of 1 TiB to 1 GiB that counts as good.
const SIZE_LIMIT: f64 = 1.5;
/// Largest ratio of child to regular that counts as good.
const CHILD_LIMIT: f64 = 1.10;
/// Figure 4a: bytes of each write at one writer.
const SIZES_KIB: [u32; 6] = [4, 8, 16, 32, 48, 64];
/// Figure 4b: writers, and batches of them per round.
const WRITERS: [(u32, u32); 6] = [(1, 100), (2, 50), (4, 25), (8, 12), (16, 6), (32, 3)];
/// Figure 4a: writes per size and round.
const SINGLES: u32 = 100;
/// Objects of the volumes of the figures.
const OBJECTS: usize = 1024;

/// Arguments of `segue bench super`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Superpositions per size of volume.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// Rounds of the figures; each is about 100 writes per point and disk.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Blocks written to each volume before its superpositions, spread over all of it.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    blocks: u32,
    /// Folder for the pool's file; it is removed afterwards.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
}

#[derive(Serialize)]
struct Report {
    super_us_1gib: Median,
    super_us_1tib: Median,
    collapse_us_1gib: Median,
    collapse_us_1tib: Median,
    super_1tib_over_1gib: f64,
    collapse_1tib_over_1gib: f64,
    super_1tib_over_1gib_interval: Median,
    collapse_1tib_over_1gib_interval: Median,
    super_limit: &'static str,
    points: Vec<Point>,
    child_over_regular_max: f64,
    child_bytes_copied: u64,
    cow_64k_bytes_copied: u64,
    limit_1tib_over_1gib: f64,
    limit_child_over_regular: f64,
}

/// One point of a figure.
#[derive(Serialize)]
struct Point {
    figure: &'static str,
    write_bytes: u32,
    writers: u32,
    regular_us: Median,
    child_us: Median,
    cow_64k_us: Median,
    child_over_regular: f64,
    child_over_regular_interval: Median,
    cow_64k_over_regular: f64,
}

const SUPER_LIMIT: &str = "1 journal record and 1 drive flush, at any size";

/// Runs it. The answer is no when a limit is passed.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let mut pool = Pool::create(&args.dir, 4 << 30)?;
    let sizes = superpositions(&mut pool, args)?;
    let mut bed = Bed::new(&mut pool, vec![true; OBJECTS])?;
    let (points, cow_copied) = figures(&mut pool, &mut bed, args.rounds)?;
    let ratio_super = median_ratio(&sizes[1].super_us, &sizes[0].super_us);
    let ratio_collapse = median_ratio(&sizes[1].collapse_us, &sizes[0].collapse_us);
    let report = Report {
        super_us_1gib: median(&sizes[0].super_us),
        super_us_1tib: median(&sizes[1].super_us),
        collapse_us_1gib: median(&sizes[0].collapse_us),
        collapse_us_1tib: median(&sizes[1].collapse_us),
        super_1tib_over_1gib: ratio_super.median,
        collapse_1tib_over_1gib: ratio_collapse.median,
        super_1tib_over_1gib_interval: ratio_super,
        collapse_1tib_over_1gib_interval: ratio_collapse,
        super_limit: SUPER_LIMIT,
        child_over_regular_max: points.iter().map(|p| p.child_over_regular).fold(0.0, f64::max),
        points,
        child_bytes_copied: pool.engine_bytes_copied()?,
        cow_64k_bytes_copied: cow_copied,
        limit_1tib_over_1gib: SIZE_LIMIT,
        limit_child_over_regular: CHILD_LIMIT,
    };
    global.print("bench.super", &report, || text(&report));
    let good = report.super_1tib_over_1gib <= SIZE_LIMIT
        && report.collapse_1tib_over_1gib <= SIZE_LIMIT
        && report.child_over_regular_max <= CHILD_LIMIT
        && report.child_bytes_copied == 0;
    Ok(if good { ExitCode::Yes } else { ExitCode::No })
}

/// Latencies of one size of volume, by iteration.
#[derive(Default)]
struct Superpositions {
    super_us: Vec<f64>,
    collapse_us: Vec<f64>,
}

fn superpositions(pool: &mut Pool, args: &Args) -> Result<[Superpositions; 2]> {
    const VOLUMES: [(&str, u64); 2] = [("size-1gib", 1 << 30), ("size-1tib", 1 << 40)];
    for (name, size) in VOLUMES {
        pool.create_volume(name, size)?;
        let attach = pool.attach(name)?;
        for block in 0..u64::from(args.blocks) {
            let offset = (size / u64::from(args.blocks) * block) & !4095;
            pool.write_and_wait(attach, offset, 4096)?;
        }
        pool.flush(attach)?;
        pool.detach(attach)?;
    }
    pool.checkpoint()?;
    let mut sizes: [Superpositions; 2] = Default::default();
    for iteration in 0..args.iterations as usize {
        for turn in 0..2 {
            let v = (iteration + turn) % 2;
            let (name, size) = VOLUMES[v];
            let (super_us, collapse_us) = failover(pool, name, size, iteration as u64)?;
            sizes[v].super_us.push(super_us);
            sizes[v].collapse_us.push(collapse_us);
        }
    }
    Ok(sizes)
}

/// One failover: super, some writes of the child, collapse; the clean-up is over before the next is measured.
fn failover(pool: &mut Pool, name: &str, size: u64, iteration: u64) -> Result<(f64, f64)> {
    let start = Instant::now();
    let (super_id, lease) = pool.superpose(name)?;
    let super_us = start.elapsed().as_secs_f64() * 1e6;
    let child = pool.attach_with(name, lease)?;
    for write in 0..8 {
        pool.write_and_wait(child, (size / 8 * write + iteration * 4096) & !4095, 4096)?;
    }
    // A recovery ends with a flush; without it the wait for an earlier commit would be measured as well.
    pool.flush(child)?;
    let start = Instant::now();
    let promoted = pool.collapse(name, super_id)?;
    let collapse_us = start.elapsed().as_secs_f64() * 1e6;
    ensure!(promoted, "{name}: nobody wrote to the primary, and yet it counts as observed");
    pool.detach(child)?;
    pool.settle()?;
    Ok((super_us, collapse_us))
}

/// A point's samples: per disk, the mean latency of each round.
struct Samples {
    figure: &'static str,
    write_bytes: u32,
    writers: u32,
    batches: u32,
    means: [Vec<f64>; 3],
}

fn figures(pool: &mut Pool, bed: &mut Bed, rounds: u32) -> Result<(Vec<Point>, u64)> {
    let samples = |figure, write_bytes, writers, batches| Samples {
        figure,
        write_bytes,
        writers,
        batches,
        means: Default::default(),
    };
    let mut points: Vec<Samples> = SIZES_KIB.map(|kib| samples("4a", kib << 10, 1, SINGLES)).into();
    points.extend(WRITERS.map(|(writers, batches)| samples("4b", 4096, writers, batches)));
    let mut copied = 0;
    for round in 0..rounds {
        eprintln!("super: round {} of {rounds}", round + 1);
        for point in &mut points {
            copied += point_round(pool, bed, point, round).with_context(|| {
                format!("figure {}, {} B, {} writers", point.figure, point.write_bytes, point.writers)
            })?;
        }
    }
    Ok((points.iter().map(summarise).collect(), copied))
}

/// One round of one point, on fresh disks: batch by batch, each disk in turn; every write touches another object.
/// Gives the bytes that the baseline copied.
fn point_round(pool: &mut Pool, bed: &mut Bed, point: &mut Samples, round: u32) -> Result<u64> {
    let mut fresh = bed.fresh(pool)?;
    let mut latencies: [Vec<f64>; 3] = Default::default();
    let writes = point.writers * point.batches;
    // Objects in increasing order, spread over the volume, another subset each round.
    let step = OBJECTS as u32 / writes;
    let object = |write: u32| u64::from(write * step + round % step);
    let mut finished: Vec<Finished> = Vec::with_capacity(point.writers as usize);
    for batch in 0..point.batches {
        for variant in rotated((batch + round) as usize) {
            let disk = fresh.disk(variant);
            finished.clear();
            for writer in 0..point.writers {
                let id = batch * point.writers + writer;
                disk.submit(pool, u64::from(id), true, object(id) * OBJECT_BYTES, point.write_bytes)?;
            }
            disk.drain(pool, &mut finished)?;
            latencies[variant as usize].extend(finished.iter().map(|f| f.latency_us));
        }
    }
    for (means, latencies) in point.means.iter_mut().zip(&latencies) {
        means.push(mean(latencies));
    }
    let copied = fresh.cow_copied_bytes();
    bed.undo(pool, fresh)?;
    Ok(copied)
}

fn summarise(point: &Samples) -> Point {
    let of = |v: Variant| median(&point.means[v as usize]);
    let over = |v: Variant| median_ratio(&point.means[v as usize], &point.means[Variant::Regular as usize]);
    let child = over(Variant::Child);
    Point {
        figure: point.figure,
        write_bytes: point.write_bytes,
        writers: point.writers,
        regular_us: of(Variant::Regular),
        child_us: of(Variant::Child),
        cow_64k_us: of(Variant::Cow),
        child_over_regular: child.median,
        child_over_regular_interval: child,
        cow_64k_over_regular: over(Variant::Cow).median,
    }
}

fn text(report: &Report) -> String {
    let mut sizes = Table::new(&["OPERATION", "1 GiB us>", "1 TiB us>", "RATIO>", "LIMIT>"]);
    let rows = [
        ("super", &report.super_us_1gib, &report.super_us_1tib, report.super_1tib_over_1gib),
        ("collapse", &report.collapse_us_1gib, &report.collapse_us_1tib, report.collapse_1tib_over_1gib),
    ];
    for (name, small, large, ratio) in rows {
        sizes.row(vec![
            name.to_owned(),
            format!("{:.0}", small.median),
            format!("{:.0}", large.median),
            format!("{ratio:.2}"),
            format!("{SIZE_LIMIT:.2}"),
        ]);
    }
    let mut points = Table::new(&[
        "FIGURE",
        "KiB>",
        "WRITERS>",
        "REGULAR us>",
        "CHILD us>",
        "COW us>",
        "CHILD/REG>",
        "INTERVAL",
        "COW/REG>",
    ]);
    for p in &report.points {
        points.row(vec![
            p.figure.to_owned(),
            (p.write_bytes >> 10).to_string(),
            p.writers.to_string(),
            format!("{:.0}", p.regular_us.median),
            format!("{:.0}", p.child_us.median),
            format!("{:.0}", p.cow_64k_us.median),
            format!("{:.3}", p.child_over_regular),
            format!("{:.3}..{:.3}", p.child_over_regular_interval.low, p.child_over_regular_interval.high),
            format!("{:.2}", p.cow_64k_over_regular),
        ]);
    }
    format!(
        "{}\n{}copied by the child: {} B; by the 64 KiB baseline: {:.1} MiB; child / regular limit {CHILD_LIMIT:.2}\n",
        sizes.render(),
        points.render(),
        report.child_bytes_copied,
        report.cow_64k_bytes_copied as f64 / f64::from(1 << 20)
    )
}
