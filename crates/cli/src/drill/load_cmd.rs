//! `segue load`: the drill's load and its verification, on any database, with whatever fault you bring yourself.
//!
//! Owns: arguments and output of the noun. Never: injects a fault.
//! Invariant: exit code 0 means that every acknowledged commit was found again, once, in a sound database.

use super::db::{Session, Target};
use super::ledger::Ledger;
use super::load::{Load, LoadOptions};
use super::{bank, verify};
use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::fields;
use anyhow::Context;
use segue_types::parse_duration_ns;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Arguments of `segue load`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The database: postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE or mysql://USER@HOST[:PORT]/DATABASE.
    database: String,
    /// Clients that work at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,
    /// Branches of the bank; each has 100,000 accounts, about 13 MB.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    branches: u64,
    /// How long, for example 30s.
    #[arg(long, default_value = "10s", value_parser = parse_duration_ns)]
    duration: u64,
    /// Most transactions per second; 0 for no limit.
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Seed of the clients' choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the ledger; it must not exist.
    #[arg(long, value_name = "FILE")]
    ledger: PathBuf,
    /// Wait for the database this long before verifying, for example 60s.
    #[arg(long, default_value = "60s", value_parser = parse_duration_ns)]
    patience: u64,
}

/// Runs `segue load`.
///
/// # Errors
/// The database or the ledger's file failed; the message says which.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let target = Target::parse(&args.database).map_err(|e| fail(ExitCode::Misuse, e.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let before = runtime.block_on(prepare(&target, args.branches)).context("prepare the bank")?;
    eprintln!("the bank is ready; log since the last checkpoint: {before} bytes");
    let run = unix_ms();
    let ledger = Ledger::create(&args.ledger, run, Instant::now());
    let ledger = Arc::new(ledger.with_context(|| format!("create the ledger {}", args.ledger.display()))?);
    let options = LoadOptions {
        target: target.clone(),
        clients: args.clients,
        branches: args.branches,
        seed: args.seed,
        rate_max: args.rate,
    };
    let load = Load::start(options, Arc::clone(&ledger)).context("start the clients")?;
    std::thread::sleep(Duration::from_nanos(args.duration));
    let counts = load.stop();
    let contents = ledger.contents();
    let elapsed_s = Duration::from_nanos(args.duration).as_secs_f64();
    let backlog = runtime.block_on(async {
        let mut session = patient(&target, Duration::from_nanos(args.patience)).await?;
        Ok::<_, anyhow::Error>(bank::backlog_bytes(&mut session, target.kind).await?)
    })?;
    let verdict = runtime.block_on(verify::verify(&target, run, &contents)).context("verify the database")?;
    let longest_s = contents.longest_gap(0).map_or(elapsed_s, |gap| gap.length_ns() as f64 / 1e9);
    let rate = verdict.commits_acked as f64 / elapsed_s;
    let value = serde_json::json!({
        "run": run, "commits_per_s": rate, "longest_gap_s": longest_s, "backlog_bytes": backlog, "connects": counts.connects,
        "transactions_failed": counts.failed, "verdict": verdict,
    });
    global.print("load", &value, || {
        fields(&[
            ("acknowledged", verdict.commits_acked.to_string()),
            ("per second", format!("{rate:.0}")),
            ("longest gap", format!("{longest_s:.3} s")),
            ("log to redo", crate::out::human_bytes(backlog)),
            ("failed before commit", counts.failed.to_string()),
            ("unknown", format!("{} (held: {})", verdict.commits_unknown, verdict.commits_unknown_held)),
            ("lost", verdict.commits_lost.to_string()),
            ("twice", verdict.commits_duplicate.to_string()),
            ("never asked for", verdict.commits_phantom.to_string()),
            ("sums agree", verdict.balances_consistent.to_string()),
            (&verdict.checker, if verdict.checker_clean { "clean".into() } else { verdict.checker_words.clone() }),
        ])
    });
    Ok(if verdict.is_clean() { ExitCode::Yes } else { ExitCode::No })
}

/// Makes the bank and a checkpoint; gives the log's distance after it.
async fn prepare(target: &Target, branches: u64) -> anyhow::Result<u64> {
    let mut session = Session::connect(target, Duration::from_secs(10)).await?;
    bank::create(&mut session, target.kind, branches).await?;
    bank::checkpoint(&mut session, target.kind).await?;
    Ok(bank::backlog_bytes(&mut session, target.kind).await?)
}

/// Connects to a database that may be recovering still.
///
/// # Errors
/// What it last said, when `limit` is over.
pub async fn patient(target: &Target, limit: Duration) -> anyhow::Result<Session> {
    let deadline = Instant::now() + limit;
    loop {
        match Session::connect(target, Duration::from_secs(5)).await {
            Ok(session) => return Ok(session),
            Err(error) if Instant::now() >= deadline => {
                return Err(error).context("the database did not come back");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Milliseconds of Unix time: different for every run on one database.
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("the clock is past 1970").as_millis() as u64
}
