//! `segue reproduce decibel`: remote volumes beside local drives, as in Decibel (NSDI 2017), on this machine.
//!
//! Owns: the sweep, the split of a request's latency, the report. Never: quotes a figure that the paper's talk does not give.
//! Invariant: what is compared alternates within each round, and every stage says whether it was measured or is a difference.

use crate::Global;
use crate::bench::fio;
use crate::bench::process::Node;
use crate::bench::stats::{Median, median, median_ratio};
use crate::exit::ExitCode;
use crate::out::Table;
use anyhow::{Context, Result};
use serde::Serialize;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What the paper's talk gives: added latency over local drives, us. Its hosts had 40 GbE and four NVMe drives.
const PAPER_ADDED_US: [f64; 2] = [20.0, 30.0];
/// Requests of the paper's clients in flight.
const DEPTH: u32 = 16;
/// Rounds of the bare socket.
const ECHOES: u32 = 4000;

/// Arguments of `segue reproduce decibel`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Rounds; each measures everything once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each run of fio.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Size of each volume and local file; it is filled first.
    #[arg(long, default_value = "128MiB", value_parser = segue_types::parse_size)]
    size: u64,
    /// One round of one second.
    #[arg(long)]
    quick: bool,
    /// Folder on the drive to measure; memory is measured in any case.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Write the figures as JSON and CSV into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    rounds: u32,
    seconds: u32,
    size_bytes: u64,
    paper_added_latency_us: [f64; 2],
    rows: Vec<Row>,
    stages: Vec<Split>,
}

/// A workload on a volume and on the local drive.
#[derive(Serialize)]
struct Row {
    drive: &'static str,
    workload: &'static str,
    cores: usize,
    queue_depth: u32,
    volume: Figures,
    local: Figures,
    iops_over_local: Median,
    /// Mean latency of the volume less that of the local drive, us.
    added_latency_us: Median,
}

#[derive(Serialize)]
struct Figures {
    iops: Median,
    latency_us_mean: Median,
    latency_us_p50: Median,
    latency_us_p999: Median,
    /// How consistent latency is: 1 is perfect.
    p999_over_p50: Median,
}

/// Where the time of a 4 KiB read at depth 1 goes.
#[derive(Serialize)]
struct Split {
    drive: &'static str,
    total_us: Median,
    stages: Vec<Stage>,
}

#[derive(Serialize)]
struct Stage {
    stage: &'static str,
    us: Median,
    /// `measured`, or `difference` of what is measured.
    from: &'static str,
}

/// One run of fio.
#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    mean_us: f64,
    p50_us: f64,
    p999_us: f64,
}

/// A drive with a node on it and a plain file beside the node's.
struct Bed {
    drive: &'static str,
    node: Node,
    /// Volumes, each on a core of its own.
    volumes: Vec<String>,
    local: LocalFile,
}

/// A filled file that goes away with its value.
struct LocalFile {
    path: PathBuf,
    direct: bool,
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        // Left behind it would only take room.
        let _ = std::fs::remove_file(&self.path);
    }
}

const WORKLOADS: [(&str, &[&str]); 2] = [("reads", &["--rw=randread"]), ("70/30", &["--rw=randrw", "--rwmixread=70"])];

/// Runs the experiment.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let (rounds, seconds) = if args.quick { (1, 1) } else { (args.rounds, args.seconds) };
    if let Some(dir) = &args.out {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let beds = [memory_bed(args.size, cores)?, file_bed(args.size, &args.dir)?];
    let mut rows = Vec::new();
    for bed in &beds {
        for (workload, job) in WORKLOADS {
            for depth in [1, DEPTH] {
                rows.push(measure(bed, workload, job, 1, depth, (rounds, seconds), args.size)?);
            }
            if bed.volumes.len() > 1 {
                rows.push(measure(bed, workload, job, bed.volumes.len(), DEPTH, (rounds, seconds), args.size)?);
            }
        }
    }
    let stages = beds.iter().map(|bed| split(bed, rounds, seconds, args.size)).collect::<Result<_>>()?;
    let report =
        Report { rounds, seconds, size_bytes: args.size, paper_added_latency_us: PAPER_ADDED_US, rows, stages };
    if let Some(dir) = &args.out {
        let json = serde_json::to_string_pretty(&report).expect("plain data");
        std::fs::write(dir.join("decibel.json"), json).context("write decibel.json")?;
        std::fs::write(dir.join("decibel.csv"), csv(&report)).context("write decibel.csv")?;
    }
    global.print("reproduce.decibel", &report, || text(&report));
    Ok(ExitCode::Yes)
}

fn memory_bed(size: u64, cores: usize) -> Result<Bed> {
    let node = Node::on_memories(cores as u32, size * 2 + (128 << 20), false)?;
    let mut volumes = Vec::new();
    for core in 0..cores {
        let pool = if core == 0 { "bench".to_owned() } else { format!("bench{core}") };
        let volume = format!("v{core}");
        node.create_in(&pool, &volume, size)?;
        node.client().bind_pool(&pool, core as u32)?;
        volumes.push(volume);
    }
    // Files in memory know no direct I/O.
    let local = local_file(Path::new("/dev/shm"), size, false)?;
    filled(Bed { drive: "memory", node, volumes, local }, size)
}

fn file_bed(size: u64, dir: &Path) -> Result<Bed> {
    let node = Node::on_file(dir, size * 2 + (256 << 20))?;
    node.create("v0", size)?;
    let local = local_file(dir, size, true)?;
    filled(Bed { drive: "file", node, volumes: vec!["v0".into()], local }, size)
}

fn local_file(dir: &Path, size: u64, direct: bool) -> Result<LocalFile> {
    let path = dir.join(format!("segue-decibel-{}.raw", std::process::id()));
    let file = std::fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let local = LocalFile { path, direct };
    file.set_len(size).context("size the local file")?;
    Ok(local)
}

fn filled(bed: Bed, size: u64) -> Result<Bed> {
    let fill = [format!("--size={size}"), "--rw=write".into(), "--bs=1m".into(), "--iodepth=4".into()];
    let fill: Vec<&str> = fill.iter().map(String::as_str).collect();
    eprintln!("decibel: filling {}", bed.drive);
    for volume in &bed.volumes {
        fio::run(&fio::uri(&bed.node.nbd_socket(), volume), &fill)?;
    }
    fio::run_local(&bed.local.path, bed.local.direct, &fill)?;
    Ok(bed)
}

fn job(kind: &[&str], depth: u32, seconds: u32, size: u64) -> Vec<String> {
    let fixed = ["--bs=4k", "--time_based", "--percentile_list=50:99.9"].map(String::from);
    let chosen = [format!("--iodepth={depth}"), format!("--runtime={seconds}"), format!("--size={size}")];
    kind.iter().map(|s| (*s).to_owned()).chain(fixed).chain(chosen).collect()
}

/// Reads what fio tells of reads (and counts writes in).
fn sample(report: &serde_json::Value) -> Result<Sample> {
    let number = |value: &serde_json::Value, what: &str| value.as_f64().with_context(|| format!("fio tells no {what}"));
    let read = &report["read"];
    let percentiles = &read["clat_ns"]["percentile"];
    Ok(Sample {
        iops: number(&read["iops"], "iops")? + report["write"]["iops"].as_f64().unwrap_or(0.0),
        mean_us: number(&read["lat_ns"]["mean"], "mean latency")? / 1e3,
        p50_us: number(&percentiles["50.000000"], "median")? / 1e3,
        p999_us: number(&percentiles["99.900000"], "99.9th percentile")? / 1e3,
    })
}

/// So many clients at once, each on its own volume.
fn on_volumes(bed: &Bed, clients: usize, job: &[String]) -> Result<Sample> {
    let running: Vec<_> = bed.volumes[..clients]
        .iter()
        .map(|volume| {
            let (uri, job) = (fio::uri(&bed.node.nbd_socket(), volume), job.to_vec());
            std::thread::spawn(move || fio::run(&uri, &job.iter().map(String::as_str).collect::<Vec<_>>()))
        })
        .collect();
    let reports = running.into_iter().map(|client| client.join().expect("a client's thread ends"));
    together(reports.collect::<Result<Vec<_>>>()?)
}

fn on_local(bed: &Bed, clients: usize, job: &[String]) -> Result<Sample> {
    let running: Vec<_> = (0..clients)
        .map(|_| {
            let (path, direct, job) = (bed.local.path.clone(), bed.local.direct, job.to_vec());
            std::thread::spawn(move || {
                fio::run_local(&path, direct, &job.iter().map(String::as_str).collect::<Vec<_>>())
            })
        })
        .collect();
    let reports = running.into_iter().map(|client| client.join().expect("a client's thread ends"));
    together(reports.collect::<Result<Vec<_>>>()?)
}

/// Clients that ran at once: their requests add up, their latencies are averaged, the worst tail counts.
fn together(reports: Vec<serde_json::Value>) -> Result<Sample> {
    let samples = reports.iter().map(sample).collect::<Result<Vec<_>>>()?;
    let n = samples.len() as f64;
    let mean = |value: fn(&Sample) -> f64| samples.iter().map(value).sum::<f64>() / n;
    Ok(Sample {
        iops: samples.iter().map(|s| s.iops).sum(),
        mean_us: mean(|s| s.mean_us),
        p50_us: mean(|s| s.p50_us),
        p999_us: samples.iter().map(|s| s.p999_us).fold(0.0, f64::max),
    })
}

fn measure(
    bed: &Bed,
    workload: &'static str,
    kind: &[&str],
    cores: usize,
    queue_depth: u32,
    (rounds, seconds): (u32, u32),
    size: u64,
) -> Result<Row> {
    eprintln!("decibel: {}, {workload}, {cores} cores, depth {queue_depth}", bed.drive);
    let job = job(kind, queue_depth, seconds, size);
    let (mut volume, mut local) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for turn in 0..2 {
            match (turn + round) % 2 {
                0 => volume.push(on_volumes(bed, cores, &job)?),
                _ => local.push(on_local(bed, cores, &job)?),
            }
        }
    }
    let of = |samples: &[Sample], value: fn(&Sample) -> f64| -> Vec<f64> { samples.iter().map(value).collect() };
    let added: Vec<f64> = volume.iter().zip(&local).map(|(v, l)| v.mean_us - l.mean_us).collect();
    let figures = |s: &[Sample]| Figures {
        iops: median(&of(s, |s| s.iops)),
        latency_us_mean: median(&of(s, |s| s.mean_us)),
        latency_us_p50: median(&of(s, |s| s.p50_us)),
        latency_us_p999: median(&of(s, |s| s.p999_us)),
        p999_over_p50: median(&of(s, |s| s.p999_us / s.p50_us)),
    };
    Ok(Row {
        drive: bed.drive,
        workload,
        cores,
        queue_depth,
        volume: figures(&volume),
        local: figures(&local),
        iops_over_local: median_ratio(&of(&volume, |s| s.iops), &of(&local, |s| s.iops)),
        added_latency_us: median(&added),
    })
}

/// Splits a read at depth 1: the client's view, the node's own clock, a bare drive, a bare socket.
fn split(bed: &Bed, rounds: u32, seconds: u32, size: u64) -> Result<Split> {
    eprintln!("decibel: {}, stages", bed.drive);
    let job = job(&["--rw=randread"], 1, seconds, size);
    let [mut total, mut node, mut drive, mut socket] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        let before = node_reads(&bed.node)?;
        total.push(on_volumes(bed, 1, &job)?.mean_us);
        let after = node_reads(&bed.node)?;
        node.push((after.0 - before.0) * 1e6 / (after.1 - before.1).max(1.0));
        drive.push(on_local(bed, 1, &job)?.mean_us);
        socket.push(echo_us().context("time a bare socket")?);
    }
    let less = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a - b).collect() };
    let outside = less(&total, &node);
    let stage = |stage, values: &[f64], from| Stage { stage, us: median(values), from };
    Ok(Split {
        drive: bed.drive,
        total_us: median(&total),
        stages: vec![
            stage("a bare drive: fio on a file beside, same kind of I/O", &drive, "measured"),
            stage("in the node, from the request parsed to the reply queued", &node, "measured"),
            stage("of that, beyond the bare drive: map, checksum, loop", &less(&node, &drive), "difference"),
            stage("outside of the node: both sockets, both wake-ups, parsing, fio", &outside, "difference"),
            stage("a bare socket: 28 bytes there, 4112 back, two threads that sleep", &socket, "measured"),
            stage("outside of the node, beyond the bare socket", &less(&outside, &socket), "difference"),
        ],
    })
}

/// Seconds and number of the reads that the node has answered, from its metrics.
fn node_reads(node: &Node) -> Result<(f64, f64)> {
    let metrics = node.client().metrics()?;
    let value = |name: &str| {
        let head = format!("segue_nbd_latency_seconds_{name}{{op=\"read\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&head));
        line.and_then(|v| v.parse::<f64>().ok()).with_context(|| format!("the node's metrics have no {head}"))
    };
    Ok((value("sum")?, value("count")?))
}

/// Round trip of a request and a reply of a 4 KiB read's size between two threads, mean, us.
fn echo_us() -> std::io::Result<f64> {
    let (mut near, mut far) = UnixStream::pair()?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut request, reply) = ([0; 28], [7; 4112]);
        for _ in 0..ECHOES {
            far.read_exact(&mut request)?;
            far.write_all(&reply)?;
        }
        Ok(())
    });
    let (request, mut reply) = ([1; 28], [0; 4112]);
    let begun = Instant::now();
    for _ in 0..ECHOES {
        near.write_all(&request)?;
        near.read_exact(&mut reply)?;
    }
    let us = begun.elapsed().as_secs_f64() * 1e6 / f64::from(ECHOES);
    server.join().expect("the other end's thread ends")?;
    Ok(us)
}

fn csv(report: &Report) -> String {
    let mut text = String::from(
        "drive,workload,cores,queue_depth,iops,local_iops,latency_us_mean,local_latency_us_mean,added_latency_us,\
         p999_over_p50,local_p999_over_p50\n",
    );
    for r in &report.rows {
        text.push_str(&format!(
            "{},{},{},{},{},{},{},{},{},{},{}\n",
            r.drive,
            r.workload,
            r.cores,
            r.queue_depth,
            r.volume.iops.median,
            r.local.iops.median,
            r.volume.latency_us_mean.median,
            r.local.latency_us_mean.median,
            r.added_latency_us.median,
            r.volume.p999_over_p50.median,
            r.local.p999_over_p50.median,
        ));
    }
    text
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[
        "DRIVE",
        "WORKLOAD",
        "CORES>",
        "DEPTH>",
        "IOPS>",
        "LOCAL>",
        "RATIO>",
        "MEAN us>",
        "LOCAL>",
        "ADDED>",
        "P99.9/P50>",
        "LOCAL>",
    ]);
    for r in &report.rows {
        table.row(vec![
            r.drive.into(),
            r.workload.into(),
            r.cores.to_string(),
            r.queue_depth.to_string(),
            format!("{:.0}", r.volume.iops.median),
            format!("{:.0}", r.local.iops.median),
            format!("{:.2}", r.iops_over_local.median),
            format!("{:.1}", r.volume.latency_us_mean.median),
            format!("{:.1}", r.local.latency_us_mean.median),
            format!("{:.1}", r.added_latency_us.median),
            format!("{:.1}", r.volume.p999_over_p50.median),
            format!("{:.1}", r.local.p999_over_p50.median),
        ]);
    }
    let mut text = table.render();
    for split in &report.stages {
        text.push_str(&format!("\n{}, 4 KiB read at depth 1: {:.1} us\n", split.drive, split.total_us.median));
        let mut stages = Table::new(&["us>", "FROM", "STAGE"]);
        for s in &split.stages {
            stages.row(vec![format!("{:.1}", s.us.median), s.from.into(), s.stage.into()]);
        }
        text.push_str(&stages.render());
    }
    let [low, high] = report.paper_added_latency_us;
    text + &format!(
        "\nThe paper's talk gives {low:.0} to {high:.0} us over local drives at depth 1, on other hardware. Local: fio with io_uring, \
         O_DIRECT on the file.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fio_report(iops: f64, p999: f64) -> serde_json::Value {
        serde_json::json!({
            "read": {"iops": iops, "lat_ns": {"mean": 5000.0}, "clat_ns": {"percentile": {"50.000000": 4000, "99.900000": p999}}},
            "write": {"iops": 30.0},
        })
    }

    #[test]
    fn clients_add_up_and_the_worst_tail_counts() {
        let s = together(vec![fio_report(70.0, 8000.0), fio_report(170.0, 9000.0)]).unwrap();
        assert_eq!((s.iops, s.mean_us, s.p50_us, s.p999_us), (300.0, 5.0, 4.0, 9.0));
        assert!(sample(&serde_json::json!({"read": {}})).is_err());
    }

    #[test]
    fn a_bare_socket_answers() {
        assert!(echo_us().unwrap() > 0.0);
    }
}
