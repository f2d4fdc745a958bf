//! `segue bench nbd-peers`: the NBD server against nbdkit and qemu-storage-daemon, with fio's nbd engine.
//!
//! Owns: the servers' set-up, the interleaving, the report. Never: compares numbers of different rounds.
//! Invariant: in each round every server runs every workload once, in an order that rotates from round to round.

use super::fio;
use super::process::{Node, Server};
use super::stats::{Median, median, median_ratio};
use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `segue bench nbd-peers`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Rounds; each runs every workload on every server.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each run of fio.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Size of each server's disk; it is filled first.
    #[arg(long, default_value = "256MiB", value_parser = segue_types::parse_size)]
    size: u64,
}

const WORKLOADS: [Workload; 4] = [
    Workload { write: false, depth: 1 },
    Workload { write: false, depth: 32 },
    Workload { write: true, depth: 1 },
    Workload { write: true, depth: 32 },
];

#[derive(Clone, Copy)]
struct Workload {
    write: bool,
    depth: u32,
}

impl Workload {
    fn name(self) -> &'static str {
        if self.write { "randwrite" } else { "randread" }
    }
}

/// The servers, in the order of [`Bench::servers`]. The last is not a peer: it keeps no data.
const SERVERS: [&str; 4] = ["segue", "nbdkit-memory", "qemu-storage-daemon", "null"];
const PEERS: std::ops::Range<usize> = 1..3;

/// What one run of fio measured.
#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    server_cpu_us: f64,
}

#[derive(Serialize)]
struct Report {
    rounds: u32,
    seconds: u32,
    size_bytes: u64,
    servers: [ServerNote; 4],
    results: Vec<WorkloadResult>,
    bounded_by: &'static str,
}

#[derive(Serialize)]
struct ServerNote {
    server: &'static str,
    what: &'static str,
}

#[derive(Serialize)]
struct WorkloadResult {
    op: &'static str,
    block_bytes: u32,
    queue_depth: u32,
    servers: Vec<ServerResult>,
    faster_peer: &'static str,
    segue_over_faster_peer: Median,
    segue_over_null: Median,
}

#[derive(Serialize)]
struct ServerResult {
    server: &'static str,
    iops: Median,
    server_cpu_us_per_op: Median,
}

const NOTES: [ServerNote; 4] = [
    ServerNote { server: "segue", what: "segue node, memory pool, CRC32C verified on each read" },
    ServerNote { server: "nbdkit-memory", what: "nbdkit memory, no checksums" },
    ServerNote { server: "qemu-storage-daemon", what: "raw file on /dev/shm (driver file, aio=threads), no checksums" },
    ServerNote {
        server: "null",
        what: "qemu-storage-daemon null-co: keeps no data, so it is no peer; shows what fio and the protocol allow",
    },
];

const BOUND: &str = "system calls and wake-ups of a request's two messages; compare server_cpu_us_per_op with the null \
                     server's: the difference is the map lookup, the checksum and the copies";

/// Runs it.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let bench = Bench::start(args)?;
    for (server, name) in bench.servers.iter().zip(SERVERS) {
        eprintln!("nbd-peers: filling {name}");
        bench.fio(server, &["--rw=write", "--bs=1m", "--iodepth=4"])?;
    }
    let mut samples = vec![[const { Vec::new() }; SERVERS.len()]; WORKLOADS.len()];
    for round in 0..args.rounds as usize {
        eprintln!("nbd-peers: round {} of {}", round + 1, args.rounds);
        for (w, workload) in WORKLOADS.iter().enumerate() {
            for turn in 0..SERVERS.len() {
                let s = (turn + round) % SERVERS.len();
                samples[w][s].push(bench.measure(s, *workload)?);
            }
        }
    }
    let results: Vec<WorkloadResult> = WORKLOADS.iter().zip(&samples).map(|(w, s)| summarise(*w, s)).collect();
    let report = Report {
        rounds: args.rounds,
        seconds: args.seconds,
        size_bytes: args.size,
        servers: NOTES,
        results,
        bounded_by: BOUND,
    };
    global.print("bench.nbd-peers", &report, || text(&report));
    Ok(ExitCode::Yes)
}

fn summarise(workload: Workload, samples: &[Vec<Sample>; SERVERS.len()]) -> WorkloadResult {
    let iops = |s: usize| -> Vec<f64> { samples[s].iter().map(|x| x.iops).collect() };
    let cpu = |s: usize| -> Vec<f64> { samples[s].iter().map(|x| x.server_cpu_us).collect() };
    let of =
        |s: usize| ServerResult { server: SERVERS[s], iops: median(&iops(s)), server_cpu_us_per_op: median(&cpu(s)) };
    let servers: Vec<ServerResult> = (0..SERVERS.len()).map(of).collect();
    let fastest = PEERS.max_by(|a, b| servers[*a].iops.median.total_cmp(&servers[*b].iops.median));
    let fastest = fastest.expect("there are peers");
    WorkloadResult {
        op: workload.name(),
        block_bytes: 4096,
        queue_depth: workload.depth,
        faster_peer: SERVERS[fastest],
        segue_over_faster_peer: median_ratio(&iops(0), &iops(fastest)),
        segue_over_null: median_ratio(&iops(0), &iops(SERVERS.len() - 1)),
        servers,
    }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[
        "WORKLOAD",
        "DEPTH>",
        "SEGUE>",
        "NBDKIT>",
        "QEMU>",
        "NULL>",
        "CPU us/op>",
        "/ FASTER PEER>",
        "INTERVAL",
    ]);
    for r in &report.results {
        let mut row = vec![r.op.to_owned(), r.queue_depth.to_string()];
        row.extend(r.servers.iter().map(|s| format!("{:.0}", s.iops.median)));
        row.push(format!("{:.1}", r.servers[0].server_cpu_us_per_op.median));
        let ratio = &r.segue_over_faster_peer;
        row.push(format!("{:.2}", ratio.median));
        row.push(format!("{:.2}..{:.2}", ratio.low, ratio.high));
        table.row(row);
    }
    format!("{}IOPS, 4 KiB, unix sockets, medians of {} rounds\n", table.render(), report.rounds)
}

struct Bench {
    servers: Vec<Target>,
    seconds: u32,
    size: u64,
    _dir: tempfile::TempDir,
}

/// A running server and how fio reaches it.
pub struct Target {
    pub uri: String,
    process: Process,
}

enum Process {
    Segue(Node),
    /// The file goes after the server.
    Other(Server, #[allow(dead_code, reason = "held for its drop")] Option<ShmFile>),
}

/// A file on /dev/shm that goes away with its value.
struct ShmFile(PathBuf);

impl Drop for ShmFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Target {
    /// A volume of a node.
    pub fn of_node(node: Node, volume: &str) -> Target {
        Target { uri: fio::uri(&node.nbd_socket(), volume), process: Process::Segue(node) }
    }

    /// Processor seconds that its server has used.
    pub fn cpu_s(&self) -> Result<f64> {
        match &self.process {
            Process::Segue(node) => node.server().cpu_s(),
            Process::Other(server, _) => server.cpu_s(),
        }
    }
}

impl Bench {
    fn start(args: &Args) -> Result<Bench> {
        let dir = tempfile::tempdir().context("make a folder")?;
        // Room for the map, the journal and blocks that wait to be reused.
        let node = Node::on_memory(args.size * 2 + (256 << 20))?;
        node.create("bench", args.size)?;
        let segue = Target { uri: fio::uri(&node.nbd_socket(), "bench"), process: Process::Segue(node) };
        let nbdkit = start_nbdkit(dir.path(), args.size)?;
        let qemu = start_qemu_file(dir.path(), args.size)?;
        let blockdev = format!("driver=null-co,node-name=bench,size={},read-zeroes=on", args.size);
        let null = start_qemu(dir.path(), "null", &blockdev, None)?;
        Ok(Bench { servers: vec![segue, nbdkit, qemu, null], seconds: args.seconds, size: args.size, _dir: dir })
    }

    fn measure(&self, server: usize, workload: Workload) -> Result<Sample> {
        let target = &self.servers[server];
        let (rw, depth) = (format!("--rw={}", workload.name()), format!("--iodepth={}", workload.depth));
        let runtime = format!("--runtime={}", self.seconds);
        let before = target.cpu_s()?;
        let job = self.fio(target, &[&rw, &depth, "--bs=4k", "--time_based", &runtime])?;
        let cpu_s = target.cpu_s()? - before;
        let side = &job[if workload.write { "write" } else { "read" }];
        let iops = side["iops"].as_f64().context("fio's report has no iops")?;
        let ops = side["total_ios"].as_f64().context("fio's report has no total_ios")?;
        Ok(Sample { iops, server_cpu_us: cpu_s * 1e6 / ops.max(1.0) })
    }

    fn fio(&self, target: &Target, job: &[&str]) -> Result<serde_json::Value> {
        let size = format!("--size={}", self.size);
        fio::run(&target.uri, &[&[size.as_str()], job].concat())
    }
}

/// qemu-storage-daemon on a file in memory.
pub fn start_qemu_file(dir: &Path, size: u64) -> Result<Target> {
    let shm = ShmFile(PathBuf::from(format!("/dev/shm/segue-bench-{}.raw", std::process::id())));
    let file = std::fs::File::create(&shm.0).context("create a file on /dev/shm")?;
    file.set_len(size).context("size a file on /dev/shm")?;
    let blockdev = format!("driver=file,node-name=bench,filename={},aio=threads", shm.0.display());
    start_qemu(dir, "qemu", &blockdev, Some(shm))
}

/// nbdkit's memory disk.
pub fn start_nbdkit(dir: &Path, size: u64) -> Result<Target> {
    let socket = dir.join("nbdkit.sock");
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--unix").arg(&socket).arg("memory").arg(size.to_string());
    let mut server = Server::start("nbdkit", command, &dir.join("nbdkit.log"))?;
    server.wait_for_socket(&socket)?;
    Ok(Target { uri: fio::uri(&socket, "bench"), process: Process::Other(server, None) })
}

fn start_qemu(dir: &Path, name: &str, blockdev: &str, shm: Option<ShmFile>) -> Result<Target> {
    let socket = dir.join(format!("{name}.sock"));
    let mut command = Command::new("qemu-storage-daemon");
    command.args(["--blockdev", blockdev]);
    command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", socket.display()));
    command.args(["--export", "type=nbd,id=bench,node-name=bench,name=bench,writable=on"]);
    let mut server = Server::start("qemu-storage-daemon", command, &dir.join(format!("{name}.log")))?;
    server.wait_for_socket(&socket)?;
    Ok(Target { uri: fio::uri(&socket, "bench"), process: Process::Other(server, shm) })
}
