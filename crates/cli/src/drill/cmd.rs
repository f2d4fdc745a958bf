//! `segue failover drill APP.toml`: one drill, its report as JSON and as a page.
//!
//! Owns: arguments and output of the verb. Never: measures.
//! Invariant: exit code 0 means that the service came back and nothing was lost, twice, or unsound; 1 that it was not so.

use super::db::Target;
use super::exec::{self, Plan, Say, Stage};
use super::fault::Fault;
use super::html;
use super::load::LoadOptions;
use super::report::Report;
use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::failover::{App, Mode, ModeName, StopHow};
use crate::out::fields;
use anyhow::Context;
use segue_types::{parse_duration_ns, parse_size};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Arguments of `segue failover drill`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The application. It must not be run by another `segue failover run` now.
    app: PathBuf,
    /// What to do to the primary.
    #[arg(long, value_enum)]
    fault: Fault,
    /// How to fail over.
    #[arg(long, value_enum, default_value = "speculative")]
    mode: ModeName,
    /// Timeout of mode reds, for example 5s.
    #[arg(long, default_value = "5s", value_parser = parse_duration_ns)]
    timeout: u64,
    /// How long a heal stalls before it heals, for example 3s.
    #[arg(long, default_value = "3s", value_parser = parse_duration_ns)]
    heal_after: u64,
    /// How long a recovery takes, for an oracle to compare with --heal-after; without it an oracle waits for every heal.
    #[arg(long, value_parser = parse_duration_ns)]
    recovery: Option<u64>,
    /// Load before the fault, at most, for example 10s.
    #[arg(long, default_value = "10s", value_parser = parse_duration_ns)]
    load: u64,
    /// Strike as soon as a recovery has this much log to redo, for example 256MiB.
    #[arg(long, default_value = "0", value_parser = parse_size)]
    backlog: u64,
    /// Clients of the load.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,
    /// Branches of the bank; each has 100,000 accounts, about 13 MB.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    branches: u64,
    /// Most transactions per second; 0 for no limit.
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Seed of the clients' choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The database as clients reach it; the application's endpoint when not given.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Directory for drill.json and drill.html.
    #[arg(long, value_name = "DIR", default_value = "target/drill")]
    out: PathBuf,
    /// Leave the application running afterwards, for another drill or `segue failover run`.
    #[arg(long)]
    keep: bool,
}

/// Runs `segue failover drill`.
///
/// # Errors
/// Whatever kept the drill from its end.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let app = App::load(&args.app)?;
    let target = match &args.database {
        Some(text) => Target::parse(text).map_err(|e| fail(ExitCode::Misuse, e.to_string()))?,
        None => exec::endpoint_target(&app)?,
    };
    let mode = match args.mode {
        ModeName::Speculative => Mode::Speculative,
        ModeName::Reds => Mode::Reds { timeout_ns: args.timeout },
        ModeName::Oracle => Mode::Oracle,
    };
    let load =
        LoadOptions { target, clients: args.clients, branches: args.branches, seed: args.seed, rate_max: args.rate };
    let plan = Plan {
        app,
        mode,
        fault: args.fault,
        heal_after: Duration::from_nanos(args.heal_after),
        recovery_expected: args.recovery.map(Duration::from_nanos),
        load,
        backlog_bytes: args.backlog,
        load_for: Duration::from_nanos(args.load),
    };
    std::fs::create_dir_all(&args.out).with_context(|| format!("create {}", args.out.display()))?;
    let leave = if args.keep { StopHow::LeaveRunning } else { StopHow::StopApp };
    let stage = Stage { dir: &args.out, say: say(), interrupted: interrupts()?, leave };
    let report = exec::run(&plan, &stage)?;
    write(&args.out, "drill", &report, &html::drill_page(&report))?;
    global.print("drill", &report, || text(&report));
    Ok(if report.is_clean() { ExitCode::Yes } else { ExitCode::No })
}

/// The live timeline on stderr.
fn say() -> Say {
    Arc::new(|after_s, words| match after_s {
        None => eprintln!("            {words}"),
        Some(s) => eprintln!("{s:+9.3} s  {words}"),
    })
}

/// Writes NAME.json and NAME.html.
fn write(dir: &std::path::Path, name: &str, report: &Report, page: &str) -> anyhow::Result<()> {
    let mut object = serde_json::json!({ "schema": "segue.drill.v1" });
    let fields = serde_json::to_value(report).expect("reports are plain data");
    object.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    for (extension, text) in [("json", format!("{object:#}\n")), ("html", page.to_owned())] {
        let path = dir.join(name).with_extension(extension);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let verdict = &report.verdict;
    fields(&[
        ("fault", report.setup.fault.clone()),
        ("mode", report.setup.mode.clone()),
        ("unavailable", format!("{:.3} s", report.unavailable_s)),
        ("failed over", report.failed_over.to_string()),
        ("acknowledged", verdict.commits_acked.to_string()),
        ("lost", verdict.commits_lost.to_string()),
        ("twice", verdict.commits_duplicate.to_string()),
        ("never asked for", verdict.commits_phantom.to_string()),
        ("unknown", format!("{} (held: {})", verdict.commits_unknown, verdict.commits_unknown_held)),
        ("sums agree", verdict.balances_consistent.to_string()),
        (&verdict.checker, if verdict.checker_clean { "clean".into() } else { verdict.checker_words.clone() }),
    ])
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Set once SIGINT or SIGTERM came: what runs ends in order, and cleans up.
///
/// # Errors
/// Those of setting a signal handler.
pub fn interrupts() -> anyhow::Result<&'static AtomicBool> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler does nothing but store to an atomic.
        unsafe { sigaction(signal, &action) }.context("set a signal handler")?;
    }
    Ok(&INTERRUPTED)
}
