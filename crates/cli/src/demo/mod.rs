//! `segue demo`: from nothing to a comparison of three ways of failing over, in five minutes.
//!
//! Owns: the order of the rounds, their settings, and the summary. Never: measures; every round is a drill.
//! Invariant: every round begins with the same amount of log to redo, and whatever was started is removed.

mod page;
mod stage;
mod summary;

use crate::Global;
use crate::drill::cmd::interrupts;
use crate::drill::db::Session;
use crate::drill::exec::{self, Plan, Say, Stage};
use crate::drill::fault::Fault;
use crate::drill::ledger::Ledger;
use crate::drill::load::{Load, LoadOptions};
use crate::drill::load_cmd::patient;
use crate::drill::report::Report;
use crate::drill::{bank, load_cmd};
use crate::exit::{ExitCode, fail};
use crate::failover::{App, Mode, Monitor, Options, StopHow, Timeline};
use crate::out::human_bytes;
use anyhow::Context;
use stage::DemoStage;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use summary::Summary;

/// Branches of the demo's bank: 30 times 100,000 accounts, 400 MB.
const BRANCHES: u64 = 30;
const CLIENTS: u64 = 12;
const SEED: u64 = 20_221_120;
/// The first rehearsal comes after this much log.
const FIRST_BACKLOG_BYTES: u64 = 240 << 20;
/// A recovery should take this long: several seconds, and six of them must fit into five minutes.
const RECOVERY_WANTED_S: f64 = 5.0;
/// The recovery that is good enough.
const RECOVERY_LEAST_S: f64 = 3.5;
/// Rehearsals at most before the rounds begin.
const REHEARSALS_MAX: u32 = 2;
/// A stall heals after this share of a recovery, and mode `reds` times out after that share.
const HEAL_SHARE: f64 = 0.6;
/// With less to redo, recovery shrinks faster than in proportion (measured: with the power 1.2 to 1.4), because more
/// of what it reads is still in memory.
const RECOVERY_POWER: f64 = 1.4;
const TIMEOUT_SHARE: f64 = 0.3;
/// The whole demo ends within this time, seconds; a little less than the five minutes that are promised.
const ALL_WITHIN_S: f64 = 280.0;
/// What a round takes beside its load and its outage, seconds: checkpoint, tail, verification.
const ROUND_REST_S: f64 = 6.0;
/// Least load before a fault, seconds.
const LOAD_LEAST_S: f64 = 6.0;
/// Longest load before a fault.
const LOAD_LIMIT: Duration = Duration::from_secs(45);
const SERVING_LIMIT: Duration = Duration::from_secs(60);

/// Arguments of `segue demo`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory for report.json and report.html.
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    out: PathBuf,
}

/// Settings of all rounds, found by rehearsal.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What a rehearsed recovery took, seconds.
    pub recovery_s: f64,
    /// Log to redo at every fault, bytes.
    pub backlog_bytes: u64,
    /// Timeout of mode `reds`, seconds.
    pub timeout_s: f64,
    /// When a stall heals, seconds after it began.
    pub heal_after_s: f64,
}

/// Runs `segue demo`.
///
/// # Errors
/// What this machine lacks, or what failed. Whatever was started is removed before.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let interrupted = interrupts()?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("create {}", args.out.display()))?;
    let began = Instant::now();
    let reports = {
        let stage = DemoStage::set(&args.out)?;
        let demo = Demo { stage: &stage, app: App::load(stage.app_file())?, interrupted, began, out: &args.out };
        let played = demo.play();
        demo.keep_logs();
        demo.line(None, "removing everything");
        played?
    };
    let (settings, reports) = reports;
    let summary = Summary::of(settings, &reports, began.elapsed());
    summary.write(&args.out)?;
    std::fs::write(args.out.join("report.html"), page::page(&summary, &reports)).context("write report.html")?;
    global.print("demo", &summary, || summary.table());
    eprintln!("reports: {0}/report.json and {0}/report.html", args.out.display());
    Ok(if summary.is_good() { ExitCode::Yes } else { ExitCode::No })
}

struct Demo<'a> {
    stage: &'a DemoStage,
    app: App,
    interrupted: &'static AtomicBool,
    began: Instant,
    out: &'a Path,
}

impl Demo<'_> {
    /// Everything between the stage's setting and its removal.
    fn play(&self) -> anyhow::Result<(Settings, Vec<Report>)> {
        let settings = self.rehearse()?;
        let mut reports = Vec::new();
        let reds = Mode::Reds { timeout_ns: (settings.timeout_s * 1e9) as u64 };
        for mode in [reds, Mode::Speculative, Mode::Oracle] {
            for fault in [Fault::Panic, Fault::Heal] {
                reports.push(self.round(settings, mode, fault, reports.len())?);
            }
        }
        let monitor = Monitor::start(self.app.clone(), Options::default())?;
        monitor.shut_down(StopHow::StopApp).context("stop the database")?;
        Ok((settings, reports))
    }

    fn round(&self, settings: Settings, mode: Mode, fault: Fault, number: usize) -> anyhow::Result<Report> {
        let plan = Plan {
            app: self.app.clone(),
            mode,
            fault,
            heal_after: Duration::from_secs_f64(settings.heal_after_s),
            recovery_expected: Some(Duration::from_secs_f64(settings.recovery_s)),
            load: self.load_options(SEED + 100 + number as u64)?,
            backlog_bytes: settings.backlog_bytes,
            load_for: LOAD_LIMIT,
        };
        let name = match mode {
            Mode::Reds { .. } => "reds",
            Mode::Speculative => "speculative",
            Mode::Oracle => "oracle",
        };
        self.line(None, &format!("round {} of 6: {name}, {}", number + 1, fault.name()));
        let stage = Stage {
            dir: self.stage.dir(),
            say: self.say(),
            interrupted: self.interrupted,
            leave: StopHow::LeaveRunning,
        };
        let report = exec::run(&plan, &stage).with_context(|| format!("round {name} {}", fault.name()))?;
        let verdict = &report.verdict;
        self.line(
            None,
            &format!(
                "unavailable {:.2} s, {} commits acknowledged, {} lost, {}",
                report.unavailable_s,
                verdict.commits_acked,
                verdict.commits_lost,
                if report.failed_over { "failed over" } else { "no failover" }
            ),
        );
        Ok(report)
    }

    fn load_options(&self, seed: u64) -> anyhow::Result<LoadOptions> {
        let target = exec::endpoint_target(&self.app)?;
        Ok(LoadOptions { target, clients: CLIENTS, branches: BRANCHES, seed, rate_max: 0 })
    }

    /// Starts the database, loads it, and rehearses until a recovery takes several seconds.
    fn rehearse(&self) -> anyhow::Result<Settings> {
        self.line(None, "starting PostgreSQL on a volume");
        let monitor = Monitor::start(self.app.clone(), Options::default())?;
        let found = self.rehearse_with(&monitor);
        let how = if found.is_ok() { StopHow::LeaveRunning } else { StopHow::StopApp };
        monitor.shut_down(how)?;
        found
    }

    fn rehearse_with(&self, monitor: &Monitor) -> anyhow::Result<Settings> {
        if !monitor.wait_serving(SERVING_LIMIT) {
            return Err(fail(ExitCode::TimedOut, "PostgreSQL did not start in time"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut options = self.load_options(SEED)?;
        let kind = options.target.kind;
        let mut session = runtime.block_on(patient(&options.target, SERVING_LIMIT))?;
        runtime.block_on(bank::create(&mut session, kind, BRANCHES))?;
        runtime.block_on(bank::checkpoint(&mut session, kind))?;
        self.line(None, &format!("the bank has {} accounts", BRANCHES * bank::ACCOUNTS_PER_BRANCH));
        let mut wanted = FIRST_BACKLOG_BYTES;
        let (mut settings, mut bytes, mut load_s) = (None, 0, 0.0);
        for _ in 0..REHEARSALS_MAX {
            let began = Instant::now();
            // Other choices each time, as a load that simply went on would make.
            options.seed += 1;
            bytes = self.load_until(&runtime, &mut session, &options, wanted)?;
            load_s += began.elapsed().as_secs_f64();
            let recovery_s = self.rehearse_once()?;
            self.line(
                None,
                &format!("rehearsed: with {} to redo, recovery takes {recovery_s:.1} s", human_bytes(bytes)),
            );
            settings = Some((recovery_s, bytes));
            if recovery_s >= RECOVERY_LEAST_S {
                break;
            }
            wanted = (bytes as f64 * (RECOVERY_WANTED_S / recovery_s).min(4.0)) as u64;
        }
        let (recovery_s, rehearsed_bytes) = settings.context("there was a rehearsal")?;
        Ok(self.fit(recovery_s, rehearsed_bytes, bytes as f64 / load_s.max(0.1)))
    }

    /// Settings such that six rounds end in time: on a slow machine less is loaded, and so recovery takes less.
    fn fit(&self, recovery_s: f64, bytes: u64, bytes_per_s: f64) -> Settings {
        let round_s = (ALL_WITHIN_S - self.began.elapsed().as_secs_f64()) / 6.0;
        let load_s = (round_s - ROUND_REST_S - recovery_s * 1.2).max(LOAD_LEAST_S);
        let share = (load_s * bytes_per_s / bytes as f64).clamp(0.3, 1.0);
        let recovery_s = recovery_s * share.powf(RECOVERY_POWER);
        let backlog_bytes = (bytes as f64 * share) as u64;
        let (heal_after_s, timeout_s) = (recovery_s * HEAL_SHARE, recovery_s * TIMEOUT_SHARE);
        self.line(None, &format!("each round: {} to redo, reds times out after {timeout_s:.1} s, a stall heals after {heal_after_s:.1} s", human_bytes(backlog_bytes)));
        Settings { recovery_s, backlog_bytes, timeout_s, heal_after_s }
    }

    /// One rehearsal: seconds from the answer of `super` until the backup served.
    fn rehearse_once(&self) -> anyhow::Result<f64> {
        let rehearsal = crate::failover::rehearse(self.app.clone(), false, Timeline::default())?;
        if !rehearsal.recovered {
            let why = rehearsal.error.unwrap_or_default();
            return Err(fail(ExitCode::No, format!("the rehearsed backup did not recover: {why}")));
        }
        Ok(rehearsal.recovery_ms / 1e3)
    }

    /// Loads until a recovery has `wanted` bytes to redo; gives how many it has.
    fn load_until(
        &self,
        runtime: &tokio::runtime::Runtime,
        session: &mut Session,
        options: &LoadOptions,
        wanted: u64,
    ) -> anyhow::Result<u64> {
        let run = load_cmd::unix_ms();
        let ledger = Ledger::create(&self.stage.dir().join(format!("ledger-{run}")), run, Instant::now())?;
        let load = Load::start(options.clone(), Arc::new(ledger))?;
        let began = Instant::now();
        loop {
            let bytes = runtime.block_on(bank::backlog_bytes(session, options.target.kind))?;
            if bytes >= wanted || began.elapsed() > LOAD_LIMIT {
                load.stop();
                return Ok(bytes);
            }
            if self.interrupted.load(Relaxed) {
                return Err(fail(ExitCode::TimedOut, "interrupted"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn say(&self) -> Say {
        let began = self.began;
        Arc::new(move |after_s, words| print_line(began, after_s, words))
    }

    fn line(&self, after_s: Option<f64>, words: &str) {
        print_line(self.began, after_s, words);
    }

    /// Saves the instances' logs before they are removed with everything else.
    fn keep_logs(&self) {
        for slot in ["a", "b"] {
            let name = format!("{slot}.log");
            drop(std::fs::copy(self.stage.dir().join("run").join(&name), self.out.join(&name)));
        }
    }
}

/// A line of the live timeline: time since the demo began, time since the fault, words.
fn print_line(began: Instant, after_s: Option<f64>, words: &str) {
    let after = after_s.map(|s| format!("{s:+.3} s")).unwrap_or_default();
    eprintln!("{:6.1} s {after:>11}  {words}", began.elapsed().as_secs_f64());
}
