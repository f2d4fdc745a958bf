//! `segue failover`: protect an application, look, rehearse, stop, and print profiles.
//!
//! Owns: the command line of these verbs and what they print. Never: holds the work; the sibling modules do.
//! Invariant: a monitor that is interrupted leaves the application running unless it was told to stop it.

use super::app::{App, ModeName};
use super::monitor::{self, Monitor, Options, Status, StopHow};
use super::timeline::{Entry, Timeline};
use super::{profile, rehearse};
use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out;
use nix::sys::signal::{SigSet, Signal, kill};
use segue_failover::race::Mode;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// `segue failover ...`
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Protect an application until interrupted. Run it again to take over where it stopped.
    Run {
        /// The application's APP.toml; `segue failover profile` prints ones to start from.
        app: PathBuf,
        /// Another mode than the file's.
        #[arg(long)]
        mode: Option<ModeName>,
        /// Timeout of mode `reds`, for example 30s.
        #[arg(long, value_parser = duration)]
        timeout: Option<Duration>,
        /// Stop the application in order when interrupted, instead of leaving it running.
        #[arg(long)]
        stop_on_exit: bool,
    },
    /// Show how a protected application is.
    Status {
        /// The application's APP.toml.
        app: PathBuf,
    },
    /// Recover on a child of the volumes, verify, measure, and drop the child. The primary is never disturbed.
    Rehearse {
        /// The application's APP.toml.
        app: PathBuf,
        /// Do not run `instance.verify`.
        #[arg(long)]
        no_verify: bool,
    },
    /// Break the primary under load, measure, and verify that nothing promised was lost.
    Drill(crate::drill::cmd::Args),
    /// Stop a protected application in order, and its monitor: detach its volumes, give up their leases.
    Stop {
        /// The application's APP.toml.
        app: PathBuf,
    },
    /// Print an APP.toml to start from.
    Profile {
        /// Which.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(profile::NAMES))]
        name: String,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    segue_types::parse_duration_ns(text).map(Duration::from_nanos).map_err(|_| "write for example 250ms, 5s".into())
}

/// Runs a verb.
///
/// # Errors
/// See the exit codes of `segue --help`.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Drill(args) => crate::drill::cmd::run(args, global),
        Verb::Run { app, mode, timeout, stop_on_exit } => {
            let mut app = App::load(&app)?;
            if let Some(mode) = choose_mode(&app, mode, timeout)? {
                app.set_mode(mode);
            }
            protect(app, stop_on_exit, global)
        }
        Verb::Status { app } => status(&App::load(&app)?, global),
        Verb::Rehearse { app, no_verify } => rehearsal(App::load(&app)?, !no_verify, global),
        Verb::Stop { app } => stop(App::load(&app)?, global),
        Verb::Profile { name } => {
            let text = profile::text(&name).expect("the command line allows only shipped names");
            global.print("profile", &serde_json::json!({ "name": name, "text": text }), || text.to_owned());
            Ok(ExitCode::Yes)
        }
    }
}

fn choose_mode(app: &App, mode: Option<ModeName>, timeout: Option<Duration>) -> anyhow::Result<Option<Mode>> {
    let timeout_ns = timeout.map(|timeout| timeout.as_nanos() as u64);
    Ok(match (mode, app.race.mode) {
        (Some(ModeName::Speculative), _) => Some(Mode::Speculative),
        (Some(ModeName::Oracle), _) => Some(Mode::Oracle),
        (Some(ModeName::Reds), Mode::Reds { timeout_ns: file }) | (None, Mode::Reds { timeout_ns: file }) => {
            Some(Mode::Reds { timeout_ns: timeout_ns.unwrap_or(file) })
        }
        (Some(ModeName::Reds), _) => {
            let missing = || fail(ExitCode::Misuse, "--mode reds needs --timeout, for example --timeout 30s");
            Some(Mode::Reds { timeout_ns: timeout_ns.ok_or_else(missing)? })
        }
        (None, _) => None,
    })
}

/// Becomes true when the process is asked to end.
fn interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let mut signals = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| signals.add(signal));
    // Before any other thread begins, so that all inherit it and only the one below takes the signal.
    signals.thread_block()?;
    let flag = Arc::new(AtomicBool::new(false));
    let raised = flag.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while signals.wait().is_ok() {
            if raised.swap(true, Ordering::SeqCst) {
                // Asked twice: whoever asks does not want to wait for order.
                std::process::exit(i32::from(ExitCode::TimedOut as u8));
            }
        }
    })?;
    Ok(flag)
}

fn protect(app: App, stop_on_exit: bool, global: &Global) -> anyhow::Result<ExitCode> {
    let over = interrupted()?;
    let name = app.name.clone();
    let json = global.json;
    let live = !json && std::io::stderr().is_terminal();
    let on_entry: Box<dyn Fn(&Entry) + Send + Sync> = Box::new(move |entry| print_entry(entry, json, live));
    let monitor = Monitor::start(app, Options { on_entry: Some(on_entry) })?;
    while !over.load(Ordering::SeqCst) && !monitor.is_over() {
        if live {
            eprint!("\r\x1b[K{}", status_line(&monitor.status()));
            let _ = std::io::stderr().flush();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    if monitor.is_over() {
        return Err(fail(ExitCode::Internal, "the monitor ended by itself"));
    }
    let how = if stop_on_exit { StopHow::StopApp } else { StopHow::LeaveRunning };
    monitor.shut_down(how)?;
    if how == StopHow::LeaveRunning && !json {
        eprintln!(
            "\n{name} keeps running without its endpoint; `segue failover run` takes over, `segue failover stop` ends it"
        );
    }
    Ok(ExitCode::Yes)
}

fn print_entry(entry: &Entry, json: bool, live: bool) {
    if json {
        let mut object = serde_json::json!({ "schema": "segue.failover.event.v1" });
        let fields = serde_json::to_value(entry).expect("an entry is plain data");
        object.as_object_mut().expect("made above").extend(fields.as_object().expect("an entry is an object").clone());
        out::print(&format!("{object}\n"));
    } else {
        let clear = if live { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{:>12.3} s  {:<18} {}", entry.t_ns as f64 / 1e9, entry.event, entry.detail);
    }
}

fn status_line(status: &Status) -> String {
    format!(
        "{} {} in slot {} [{}] {}: {} clients, {} waiting; backups {} today, promoted {}, dropped {}, fenced {}",
        status.app,
        status.state,
        status.seat.as_deref().unwrap_or("-"),
        status.mode,
        status.endpoint,
        status.clients_open,
        status.clients_held,
        status.backups_last_day,
        status.promotions,
        status.drops,
        status.fences
    )
}

fn read_status(app: &App) -> Option<Status> {
    serde_json::from_slice(&std::fs::read(app.run_dir.join("status.json")).ok()?).ok()
}

/// True while a monitor holds the application's lock. Looks without taking it: a monitor may be about to.
fn is_protected(app: &App) -> bool {
    monitor::lock_holder(&app.run_dir.join("monitor.lock")).is_some()
}

fn status(app: &App, global: &Global) -> anyhow::Result<ExitCode> {
    let protected = is_protected(app);
    let Some(status) = read_status(app) else {
        return Err(fail(ExitCode::NotFound, format!("{} was never run here; see `segue failover run`", app.name)));
    };
    let mut object = serde_json::to_value(&status).expect("a status is plain data");
    object.as_object_mut().expect("a status is an object").insert("protected".into(), protected.into());
    global.print("failover", &object, || {
        let mut text = status_line(&status) + "\n";
        if !protected {
            text += &format!("no monitor runs (that was the state {} ago)\n", out::ago(status.unix_ms));
        }
        text
    });
    Ok(if protected && status.calm { ExitCode::Yes } else { ExitCode::No })
}

fn rehearsal(app: App, verify: bool, global: &Global) -> anyhow::Result<ExitCode> {
    let json = global.json;
    // An interrupt must not leave a child behind: it ends the recovery, and the rehearsal cleans up.
    let over = interrupted()?;
    let timeline = Timeline::new(
        (!json).then(|| -> Box<dyn Fn(&Entry) + Send + Sync> { Box::new(|entry| print_entry(entry, false, false)) }),
    );
    let report = rehearse::rehearse_until(app, verify, timeline, &over)?;
    global.print("rehearsal", &report, || {
        let verified = match report.verified {
            None => "not asked".to_owned(),
            Some(good) => format!("{} in {:.0} ms", if good { "good" } else { "DAMAGED" }, report.verify_ms),
        };
        out::fields(&[
            ("recovered", report.error.clone().unwrap_or_else(|| format!("in {:.0} ms", report.recovery_ms))),
            ("verified", verified),
            ("super", format!("{:.1} ms", report.super_ms)),
            ("cpu", format!("{} ms", report.cpu_ms)),
            ("primary wrote meanwhile", if report.primary_observed { "yes" } else { "no" }.into()),
            ("log", report.log.display().to_string()),
        ])
    });
    Ok(if report.good() { ExitCode::Yes } else { ExitCode::No })
}

fn stop(app: App, global: &Global) -> anyhow::Result<ExitCode> {
    let name = app.name.clone();
    let app = Arc::new(app);
    end_monitor(&app)?;
    monitor::take_down(&app)?;
    global.done(&format!("{name} is stopped and its volumes are free"));
    Ok(ExitCode::Yes)
}

/// Asks the monitor that holds the lock to end, and waits for it.
fn end_monitor(app: &App) -> anyhow::Result<()> {
    if !is_protected(app) {
        return Ok(());
    }
    let pid = monitor::lock_holder(&app.run_dir.join("monitor.lock"))
        .ok_or_else(|| fail(ExitCode::Busy, "a monitor runs, and who it is cannot be found out; stop it first"))?;
    kill(pid, Signal::SIGTERM)?;
    let began = Instant::now();
    while is_protected(app) {
        if began.elapsed() > Duration::from_secs(30) {
            return Err(fail(ExitCode::TimedOut, format!("the monitor (pid {pid}) does not end")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
