//! `segue bench move`: volumes between two drives under a verifying load, with the node killed in the middle.
//!
//! Owns: the node that dies and comes back, the moves, and their figures. Never: counts a run that verified nothing.
//! Invariant: exit code 0 means every block read as the load may expect after every kill, and every move ended.

mod load;
mod node;

use super::stats::quantile;
use crate::Global;
use crate::exit::ExitCode;
use crate::out::{fields, human_bytes};
use anyhow::{Context, Result, bail};
use load::{Load, Tally};
use node::TwoPools;
use segue_types::api::{MoveInfo, MoveOutcome, MovePhase, MoveRequest};
use segue_types::parse_size;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The volume that moves.
const VOLUME: &str = "wanderer";
/// Clients, each with its own part of the volume.
const CLIENTS: u64 = 2;
/// A move that is to be killed takes about this long.
const KILLED_MOVE: Duration = Duration::from_millis(1500);
/// Longest time that a move may take.
const MOVE_LIMIT: Duration = Duration::from_secs(120);

/// Arguments of `segue bench move`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Times that the node is killed (SIGKILL) at a random point of a move.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    kills: u32,
    /// Moves to the end, without a cap, to measure the pause of clients.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    moves: u32,
    /// Data of the volume.
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    size: u64,
    /// Seed of the load and of the moments of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the file pools.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
}

#[derive(Serialize, Default)]
struct Report {
    seed: u64,
    volume_bytes: u64,
    kills: u32,
    /// What the move was doing when the node was killed.
    kills_in: BTreeMap<String, u32>,
    /// Moves that went on after a restart.
    resumed: u32,
    moves_completed: u32,
    verify_errors: u64,
    failed_requests: u64,
    requests: u64,
    blocks_verified: u64,
    pools_clean: bool,
    /// Pauses of clients at the change of places, of the moves to the end.
    stall_ns_p50: f64,
    stall_ns_max: f64,
    move_bytes_per_s_p50: f64,
}

/// A generator of numbers: splitmix64.
pub(super) struct Luck(pub(super) u64);

impl Luck {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// Runs it. The answer is no when a block was wrong, a request failed that no kill explains, or a pool is damaged.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let mut node = TwoPools::make(&args.dir, args.size * 4 + (64 << 20))?;
    node.start()?;
    node.create(VOLUME, args.size)?;
    eprintln!("filling {}", human_bytes(args.size));
    let load = Arc::new(Load::new(node.nbd_socket(), VOLUME, args.size, CLIENTS, args.seed));
    load.fill()?;
    let clients: Vec<_> = (0..CLIENTS).map(|n| load.clone().spawn(n)).collect();
    let done = drive(&mut node, args, &load);
    load.stop();
    let mut tally = Tally::default();
    for client in clients {
        tally.add(&client.join().expect("a client of the load does not panic")?);
    }
    let mut report = done?;
    tally.add(&load.verify_all()?);
    node.stop()?;
    report.pools_clean = node.check()?;
    (report.verify_errors, report.failed_requests) = (tally.verify_errors, tally.failed);
    (report.requests, report.blocks_verified) = (tally.requests, tally.verified);
    if report.requests == 0 || report.blocks_verified == 0 {
        bail!("the load did nothing, so nothing was verified");
    }
    let good = report.verify_errors == 0 && report.failed_requests == 0 && report.pools_clean;
    global.print("bench.move", &report, || text(&report));
    Ok(if good { ExitCode::Yes } else { ExitCode::No })
}

fn drive(node: &mut TwoPools, args: &Args, load: &Load) -> Result<Report> {
    let mut report = Report { seed: args.seed, volume_bytes: args.size, ..Report::default() };
    let (mut stalls, mut speeds) = (Vec::new(), Vec::new());
    for n in 0..args.moves {
        eprintln!("move {} of {}", n + 1, args.moves);
        let begun = Instant::now();
        begin(node, 0)?;
        let info = finish(node)?;
        stalls.extend(info.stall_ns.map(|ns| ns as f64));
        speeds.push(info.copied_bytes as f64 / begun.elapsed().as_secs_f64());
        report.moves_completed += 1;
    }
    if !stalls.is_empty() {
        (report.stall_ns_p50, report.stall_ns_max) = (quantile(&stalls, 0.5), quantile(&stalls, 1.0));
        report.move_bytes_per_s_p50 = quantile(&speeds, 0.5);
    }
    let mut luck = Luck(args.seed);
    let rate = (args.size as f64 / KILLED_MOVE.as_secs_f64()) as u64;
    for n in 0..args.kills {
        eprintln!("kill {} of {}", n + 1, args.kills);
        kill_once(node, &mut luck, rate, &mut report)?;
        load.wait_until_served()?;
    }
    if running(node)?.is_some() {
        finish(node)?;
        report.moves_completed += 1;
    }
    Ok(report)
}

/// Kills the node at a random moment of a move, and sees to it that the move goes on where the records say.
fn kill_once(node: &mut TwoPools, luck: &mut Luck, rate: u64, report: &mut Report) -> Result<()> {
    if running(node)?.is_none() {
        begin(node, rate)?;
    }
    // A part of the kills comes while the pools agree or change over, most while blocks are copied.
    let most = KILLED_MOVE.as_micros() as u64;
    let wait = match luck.below(4) {
        0 => luck.below(20_000),
        _ => luck.below(most + most / 10),
    };
    std::thread::sleep(Duration::from_micros(wait));
    let phase = match node.client().move_status(VOLUME) {
        Ok(info) => format!("{:?}", info.phase).to_lowercase(),
        Err(_) => "unknown".to_owned(),
    };
    node.kill()?;
    report.kills += 1;
    *report.kills_in.entry(phase).or_default() += 1;
    node.start()?;
    let places = node.client().volumes().context("list the volumes")?;
    if places.len() != 1 {
        bail!("after a kill {} volumes are there instead of one", places.len());
    }
    match running(node)? {
        Some(_) => report.resumed += 1,
        // It had committed before the kill, or not begun.
        None => report.moves_completed += 1,
    }
    Ok(())
}

fn begin(node: &TwoPools, rate: u64) -> Result<MoveInfo> {
    let at = node.client().volume(VOLUME).context("ask where the volume is")?.pool;
    let pool = if at == "a" { "b" } else { "a" };
    let request = MoveRequest { pool: pool.into(), rate_bytes_per_s: Some(rate) };
    node.client().begin_move(VOLUME, &request).context("begin a move")
}

/// The move that runs, if one does.
fn running(node: &TwoPools) -> Result<Option<MoveInfo>> {
    let last = node.client().moves().context("list the moves")?.pop();
    Ok(last.filter(|info| info.phase != MovePhase::Over))
}

/// Waits for the end of the move that runs.
fn finish(node: &TwoPools) -> Result<MoveInfo> {
    let begun = Instant::now();
    loop {
        let info = node.client().moves().context("list the moves")?.pop().context("a move was begun")?;
        match info.outcome {
            Some(MoveOutcome::Moved) => return Ok(info),
            Some(other) => bail!("the move ended as {other:?}: {}", info.reason.unwrap_or_default()),
            None if begun.elapsed() > MOVE_LIMIT => bail!("the move did not end within {MOVE_LIMIT:?}: {info:?}"),
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn text(r: &Report) -> String {
    let kills_in: Vec<String> = r.kills_in.iter().map(|(phase, n)| format!("{phase} {n}")).collect();
    fields(&[
        ("volume", human_bytes(r.volume_bytes)),
        ("moves completed", r.moves_completed.to_string()),
        ("kills", format!("{} ({})", r.kills, kills_in.join(", "))),
        ("moves that went on after one", r.resumed.to_string()),
        ("requests", r.requests.to_string()),
        ("blocks verified", r.blocks_verified.to_string()),
        ("verify errors", r.verify_errors.to_string()),
        ("failed requests", r.failed_requests.to_string()),
        ("pools clean", r.pools_clean.to_string()),
        ("clients waited, median", format!("{:.2} ms", r.stall_ns_p50 / 1e6)),
        ("clients waited, most", format!("{:.2} ms", r.stall_ns_max / 1e6)),
        ("speed without a cap", format!("{}/s", human_bytes(r.move_bytes_per_s_p50 as u64))),
        ("seed", r.seed.to_string()),
    ])
}
