//! `segue bench cores`: what a second core adds, and processor time per request beside other servers.
//!
//! Owns: who runs where, the interleaving, the figures. Never: compares numbers of different rounds.
//! Invariant: in each round everything is measured once, and an error of fio is an error here.
//!
//! The machine also runs the clients. So the fair question is: everything of one core (server thread and client) on one
//! processor, against two such pairs on two processors. The figures without pinning are told beside it.

use super::fio;
use super::peers::{Target, start_nbdkit, start_qemu_file};
use super::process::Node;
use super::stats::{Median, median, median_ratio};
use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::Table;
use anyhow::{Context, Result};
use serde::Serialize;

/// What two cores must serve at least, over one.
const RATIO_MIN: f64 = 1.7;

/// Arguments of `segue bench cores`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Rounds; each measures everything once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each run of fio.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Size of each volume; it is filled first.
    #[arg(long, default_value = "128MiB", value_parser = segue_types::parse_size)]
    size: u64,
    /// Requests in flight per client.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
}

#[derive(Serialize)]
struct Report {
    rounds: u32,
    seconds: u32,
    size_bytes: u64,
    queue_depth: u32,
    processors: usize,
    ratio_min: f64,
    /// Each pair of server thread and client on one processor.
    pinned: Scaling,
    /// The system places threads and clients as it likes.
    unpinned: Scaling,
    /// 4 KiB random reads, one client, unpinned.
    cpu: Vec<Cost>,
}

#[derive(Serialize)]
struct Scaling {
    one_core_iops: Median,
    two_cores_iops: Median,
    ratio: Median,
    one_core_cpu_us_per_io: Median,
    two_cores_cpu_us_per_io: Median,
}

#[derive(Serialize)]
struct Cost {
    server: &'static str,
    queue_depth: u32,
    iops: Median,
    server_cpu_us_per_io: Median,
    /// Segue's processor time over this server's, round by round.
    segue_over_this: Median,
}

/// Requests per second and the server's processor time for each.
#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    cpu_us: f64,
}

/// The servers whose processor time is compared, in the order of [`costs`].
const SERVERS: [&str; 4] = ["segue", "segue-encrypted", "nbdkit-memory", "qemu-storage-daemon"];
const DEPTHS: [u32; 2] = [1, 32];

/// Runs it. The answer is no when two pinned cores serve less than 1.7 times what one does.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        return Err(fail(ExitCode::Unsupported, "this machine has one processor; scaling needs two"));
    }
    let dir = tempfile::tempdir().context("make a folder")?;
    let nodes = [two_pools(args, true)?, two_pools(args, false)?];
    let peers = [start_nbdkit(dir.path(), args.size)?, start_qemu_file(dir.path(), args.size)?];
    let encrypted = encrypted_node(args)?;
    for peer in peers.iter().chain([&encrypted]) {
        fio::run(&peer.uri, &[&format!("--size={}", args.size), "--rw=write", "--bs=1m", "--iodepth=4"])?;
    }
    let mut scaling: [[Vec<Sample>; 2]; 2] = Default::default();
    let mut costs: Vec<Vec<Sample>> = vec![Vec::new(); SERVERS.len() * DEPTHS.len()];
    for round in 0..args.rounds as usize {
        eprintln!("cores: round {} of {}", round + 1, args.rounds);
        for turn in 0..4 {
            let (node, cores) = ((turn + round) % 2, (turn / 2 + round) % 2);
            scaling[node][cores].push(serve(&nodes[node], cores + 1, args, node == 0)?);
        }
        for turn in 0..costs.len() {
            let at = (turn + round) % costs.len();
            let (server, depth) = (at / DEPTHS.len(), DEPTHS[at % DEPTHS.len()]);
            let sample = match server {
                0 => one(&segue_target(&nodes[1]), args, depth)?,
                1 => one(&encrypted, args, depth)?,
                peer => one(&peers[peer - 2], args, depth)?,
            };
            costs[at].push(sample);
        }
    }
    let [pinned, unpinned] = scaling.map(|[one, two]| summarise(&one, &two));
    let report = Report {
        rounds: args.rounds,
        seconds: args.seconds,
        size_bytes: args.size,
        queue_depth: args.depth,
        processors,
        ratio_min: RATIO_MIN,
        pinned,
        unpinned,
        cpu: (0..costs.len()).map(|at| cost(at, &costs)).collect(),
    };
    global.print("bench.cores", &report, || text(&report));
    Ok(if report.pinned.ratio.median >= RATIO_MIN { ExitCode::Yes } else { ExitCode::No })
}

/// A node with two cores and a filled volume on each.
fn two_pools(args: &Args, pin: bool) -> Result<Node> {
    let node = Node::on_memories(2, args.size * 2 + (128 << 20), pin)?;
    for core in 0..2 {
        node.create_in(&pool(core), &volume(core), args.size)?;
        node.client().bind_pool(&pool(core), core as u32)?;
        let fill = ["--rw=write", "--bs=1m", "--iodepth=4"];
        fio::run(&fio::uri(&node.nbd_socket(), &volume(core)), &[&[size(args).as_str()], &fill[..]].concat())?;
    }
    Ok(node)
}

fn encrypted_node(args: &Args) -> Result<Target> {
    let node = Node::on_memory(args.size * 2 + (128 << 20))?;
    node.create_encrypted("bench", args.size)?;
    Ok(Target::of_node(node, "bench"))
}

fn segue_target(node: &Node) -> (String, &Node) {
    (fio::uri(&node.nbd_socket(), &volume(0)), node)
}

fn pool(core: usize) -> String {
    if core == 0 { "bench".into() } else { format!("bench{core}") }
}

fn volume(core: usize) -> String {
    format!("v{core}")
}

fn size(args: &Args) -> String {
    format!("--size={}", args.size)
}

fn job(args: &Args, depth: u32) -> Vec<String> {
    let fixed = ["--rw=randread".into(), "--bs=4k".into(), "--time_based".into(), size(args)];
    let chosen = [format!("--iodepth={depth}"), format!("--runtime={}", args.seconds)];
    [&fixed[..], &chosen].concat()
}

/// A client per core, all at once.
fn serve(node: &Node, cores: usize, args: &Args, pinned: bool) -> Result<Sample> {
    let before = node.server().cpu_s()?;
    let clients: Vec<_> = (0..cores)
        .map(|core| {
            let uri = fio::uri(&node.nbd_socket(), &volume(core));
            let mut job = job(args, args.depth);
            if pinned {
                job.push(format!("--cpus_allowed={core}"));
            }
            std::thread::spawn(move || fio::run(&uri, &job.iter().map(String::as_str).collect::<Vec<_>>()))
        })
        .collect();
    let (mut iops, mut ops) = (0.0, 0.0);
    for client in clients {
        let report = client.join().expect("a client's thread ends")?;
        iops += report["read"]["iops"].as_f64().context("fio's report has no iops")?;
        ops += report["read"]["total_ios"].as_f64().context("fio's report has no total_ios")?;
    }
    Ok(Sample { iops, cpu_us: (node.server().cpu_s()? - before) * 1e6 / ops.max(1.0) })
}

/// Something fio can reach and whose processor time is known.
trait Served {
    fn uri(&self) -> &str;
    fn cpu_s(&self) -> Result<f64>;
}

impl Served for Target {
    fn uri(&self) -> &str {
        &self.uri
    }
    fn cpu_s(&self) -> Result<f64> {
        Target::cpu_s(self)
    }
}

impl Served for (String, &Node) {
    fn uri(&self) -> &str {
        &self.0
    }
    fn cpu_s(&self) -> Result<f64> {
        self.1.server().cpu_s()
    }
}

fn one(target: &impl Served, args: &Args, depth: u32) -> Result<Sample> {
    let before = target.cpu_s()?;
    let job = job(args, depth);
    let report = fio::run(target.uri(), &job.iter().map(String::as_str).collect::<Vec<_>>())?;
    let cpu_s = target.cpu_s()? - before;
    let iops = report["read"]["iops"].as_f64().context("fio's report has no iops")?;
    let ops = report["read"]["total_ios"].as_f64().context("fio's report has no total_ios")?;
    Ok(Sample { iops, cpu_us: cpu_s * 1e6 / ops.max(1.0) })
}

fn of(samples: &[Sample], value: fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(value).collect()
}

fn summarise(one: &[Sample], two: &[Sample]) -> Scaling {
    let (one_iops, two_iops) = (of(one, |s| s.iops), of(two, |s| s.iops));
    Scaling {
        one_core_iops: median(&one_iops),
        two_cores_iops: median(&two_iops),
        ratio: median_ratio(&two_iops, &one_iops),
        one_core_cpu_us_per_io: median(&of(one, |s| s.cpu_us)),
        two_cores_cpu_us_per_io: median(&of(two, |s| s.cpu_us)),
    }
}

fn cost(at: usize, costs: &[Vec<Sample>]) -> Cost {
    let (mine, segue) = (of(&costs[at], |s| s.cpu_us), of(&costs[at % DEPTHS.len()], |s| s.cpu_us));
    Cost {
        server: SERVERS[at / DEPTHS.len()],
        queue_depth: DEPTHS[at % DEPTHS.len()],
        iops: median(&of(&costs[at], |s| s.iops)),
        server_cpu_us_per_io: median(&mine),
        segue_over_this: median_ratio(&segue, &mine),
    }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["CORES", "ONE>", "TWO>", "TWO / ONE>", "INTERVAL", "CPU us/IO ONE>", "TWO>"]);
    for (name, s) in [("pinned", &report.pinned), ("unpinned", &report.unpinned)] {
        table.row(vec![
            name.into(),
            format!("{:.0}", s.one_core_iops.median),
            format!("{:.0}", s.two_cores_iops.median),
            format!("{:.2}", s.ratio.median),
            format!("{:.2}..{:.2}", s.ratio.low, s.ratio.high),
            format!("{:.1}", s.one_core_cpu_us_per_io.median),
            format!("{:.1}", s.two_cores_cpu_us_per_io.median),
        ]);
    }
    let mut costs = Table::new(&["SERVER", "DEPTH>", "IOPS>", "CPU us/READ>", "SEGUE / THIS>"]);
    for c in &report.cpu {
        costs.row(vec![
            c.server.into(),
            c.queue_depth.to_string(),
            format!("{:.0}", c.iops.median),
            format!("{:.1}", c.server_cpu_us_per_io.median),
            format!("{:.2}", c.segue_over_this.median),
        ]);
    }
    format!(
        "{}\n{}4 KiB random reads, unix sockets, memory; medians of {} rounds; wanted pinned: {RATIO_MIN}\n",
        table.render(),
        costs.render(),
        report.rounds
    )
}
