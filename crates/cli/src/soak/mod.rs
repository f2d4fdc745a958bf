//! `segue soak`: a node under verified load while its tasks panic at random.
//!
//! Owns: the plan of a soak, its result and the judgement. Never: touches a node that it did not start.
//! Invariant: the answer is yes only if nothing was lost, nothing failed that could be retried, and the node never ended.

mod load;
mod operator;
mod stage;

use crate::Global;
use crate::cmd::inject;
use crate::exit::ExitCode;
use crate::out::{Table, fields};
use anyhow::Result;
use load::Tally;
use segue_types::FaultKind;
use segue_types::api::{InjectRequest, Recoveries};
use serde::Serialize;
use stage::Stage;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Arguments of `segue soak`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Minutes of load with panics; parts of a minute too.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Volumes, each with a fio of its own, spread over two pools.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    volumes: u32,
    /// One task in so many panics, of every kind, as 1/10000.
    #[arg(long, value_name = "1/N", default_value = "1/10000", value_parser = inject::rate)]
    rate: u64,
    /// Seed of the panics and of the load.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the pools' files; what is made there is removed.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Pools in memory instead of files.
    #[arg(long)]
    memory: bool,
}

/// What came of it.
#[derive(Serialize)]
struct Report {
    seconds: f64,
    volumes: u32,
    one_in: u64,
    seed: u64,
    memory: bool,
    fio: Tally,
    admin: operator::Tally,
    recoveries: Recoveries,
    recovered: u64,
    longest_stall_ns: u64,
    node_restarts: u32,
    scrub_errors: u64,
    offline_check_clean: Option<bool>,
    good: bool,
}

/// Runs it. The answer is no when anything was lost or failed.
///
/// # Errors
/// When the node or fio cannot be started.
pub fn run(args: Args, global: &Global) -> Result<ExitCode> {
    let mut stage = Stage::start((!args.memory).then_some(&args.dir), args.volumes)?;
    let tasks = inject::survivable();
    let request = InjectRequest { tasks, one_in: args.rate, kind: FaultKind::Panic, seed: args.seed };
    stage.client().inject(&request)?;
    eprintln!("soak: {} volumes, one task in {} panics, {:.1} min", args.volumes, args.rate, args.minutes);
    let begun = Instant::now();
    let until = begun + Duration::from_secs_f64(args.minutes * 60.0);
    let over = AtomicBool::new(false);
    let (fio, admin) = std::thread::scope(|scope| {
        let stage = &stage;
        let operator = scope.spawn(|| operator::run(stage, &over));
        let loads: Vec<_> =
            (0..args.volumes).map(|volume| scope.spawn(move || load::run(stage, volume, args.seed, until))).collect();
        let fio = loads.into_iter().map(|load| load.join().expect("a load ends")).sum::<Tally>();
        over.store(true, Ordering::Relaxed);
        (fio, operator.join().expect("the operator ends"))
    });
    let seconds = begun.elapsed().as_secs_f64();
    stage.client().inject(&InjectRequest { tasks: Vec::new(), one_in: 1, kind: FaultKind::Panic, seed: 0 })?;
    let recoveries = stage.client().recoveries()?;
    let scrub_errors = stage.scrub()?;
    let node_restarts = stage.restarts();
    let offline_check_clean = stage.end()?;
    let recovered = recoveries.counts.iter().map(|c| c.count).sum();
    let good = fio.verify_errors == 0
        && fio.failed_requests == 0
        && fio.passes >= u64::from(args.volumes)
        && admin.failed == 0
        && scrub_errors == 0
        && node_restarts == 0
        && offline_check_clean != Some(false);
    let report = Report {
        seconds,
        volumes: args.volumes,
        one_in: args.rate,
        seed: args.seed,
        memory: args.memory,
        longest_stall_ns: fio.latency_ns_max,
        fio,
        admin,
        recoveries,
        recovered,
        node_restarts,
        scrub_errors,
        offline_check_clean,
        good,
    };
    global.print("soak", &report, || text(&report));
    Ok(if good { ExitCode::Yes } else { ExitCode::No })
}

fn text(r: &Report) -> String {
    let mut table = Table::new(&["TASK", "LEVEL", "RECOVERIES>"]);
    for c in &r.recoveries.counts {
        table.row(vec![c.task.to_string(), c.level.name().to_owned(), c.count.to_string()]);
    }
    let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
    let clean = r.offline_check_clean.map_or("no file to check", |clean| if clean { "clean" } else { "NOT CLEAN" });
    let lines = fields(&[
        ("time", format!("{:.1} s", r.seconds)),
        ("fio passes", format!("{} ({} requests)", r.fio.passes, r.fio.requests)),
        ("verify errors", r.fio.verify_errors.to_string()),
        ("failed requests", r.fio.failed_requests.to_string()),
        ("admin operations", format!("{}, failed {}", r.admin.operations, r.admin.failed)),
        ("recoveries", format!("{}, longest {}", r.recovered, ms(r.recoveries.took_ns_max))),
        ("longest stall", ms(r.longest_stall_ns)),
        ("node restarts", r.node_restarts.to_string()),
        ("scrub errors", r.scrub_errors.to_string()),
        ("offline check", clean.to_owned()),
        ("result", if r.good { "good".to_owned() } else { "NOT GOOD".to_owned() }),
    ]);
    table.render()
        + "\n"
        + &lines
        + &r.fio.said.iter().chain(&r.admin.said).map(|s| format!("{s}\n")).collect::<String>()
}
