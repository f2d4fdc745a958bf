//! `segue node`: start, stop and look at the node.
//!
//! Owns: arguments and output of the noun. Never: serves anything itself; the daemon is `segue_node::daemon`.
//! Invariant: `start` returns success only when the node serves, `stop` only when it has ended.

use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::{Table, fields};
use segue_types::api::NodeInfo;
use std::time::{Duration, Instant};

/// Pause between two looks at a node that is starting or stopping.
const POLL: Duration = Duration::from_millis(20);

/// Arguments of `segue node`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Start the node and return when it serves; with --foreground stay and log to stderr.
    Start(super::start::Args),
    /// Show what the node says of itself. Exit code 11 when none answers.
    Status,
    /// Stop the node in order: requests are finished and pools checkpointed. Returns when the process has ended.
    Stop {
        /// Seconds to wait for its end.
        #[arg(long, default_value_t = 30, value_name = "SECONDS")]
        wait: u64,
    },
    /// Make the one move that evens out cores and drives most, if one is worth it.
    Balance(super::balance::Args),
    /// Make tasks of the node panic on purpose, where its configuration allows that.
    Inject(super::inject::Args),
    /// Show what recovers together: declared scopes, and what their tasks' locks say.
    Scopes,
    /// Show how often the node recovered from a panic, by kind of task and level.
    Recoveries,
    /// Show what a person must look at: damaged blocks, failed drives, recoveries from panics.
    Events,
    /// Print the metrics, as Prometheus reads them.
    Metrics,
}

/// Runs `segue node`.
///
/// # Errors
/// Those of the admin API and of the start.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Start(args) => return super::start::run(args, global),
        Verb::Status => status(global, &global.client().node()?),
        Verb::Stop { wait } => stop(global, Duration::from_secs(wait))?,
        Verb::Balance(args) => return super::balance::run(&args, global),
        Verb::Inject(args) => super::inject::run(&args, global)?,
        Verb::Scopes => super::scopes::run(global)?,
        Verb::Recoveries => super::inject::recoveries(global, &global.client().recoveries()?),
        Verb::Events => events(global)?,
        Verb::Metrics => {
            let text = global.client().metrics()?;
            global.print("metrics", &serde_json::json!({ "openmetrics": text }), || text.clone());
        }
    }
    Ok(ExitCode::Yes)
}

fn status(global: &Global, node: &NodeInfo) {
    global.print("node", node, || {
        fields(&[
            ("version", node.version.clone()),
            ("pid", node.pid.to_string()),
            ("io", node.io_engine.clone()),
            ("nbd", node.nbd.join(" ")),
            ("cores", node.cores.to_string()),
            ("up", format!("{:.1} s", node.uptime_ns as f64 / 1e9)),
        ])
    });
}

fn stop(global: &Global, wait: Duration) -> anyhow::Result<()> {
    let client = global.client();
    let pid = client.node()?.pid;
    client.stop()?;
    let begun = Instant::now();
    // A process that has ended has no /proc entry, or is a zombie whose parent has not looked yet.
    while alive(pid) {
        if begun.elapsed() > wait {
            let message =
                format!("the node (pid {pid}) has not ended within {} s; it still finishes requests", wait.as_secs());
            return Err(fail(ExitCode::TimedOut, message));
        }
        std::thread::sleep(POLL);
    }
    global.done(&format!("stopped the node (pid {pid})"));
    Ok(())
}

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn events(global: &Global) -> anyhow::Result<()> {
    let events = global.client().events()?;
    global.print("events", &serde_json::json!({ "events": events }), || {
        let mut table = Table::new(&["UNIX MS>", "DRIVE", "OFFSET>", "OWNER", "EXPECTED", "FOUND", "WHAT"]);
        for e in &events {
            table.row(vec![
                e.unix_ms.to_string(),
                e.drive.clone(),
                e.offset_bytes.to_string(),
                e.owner.clone(),
                format!("{:08x}", e.expected_crc32c),
                format!("{:08x}", e.found_crc32c),
                e.what.clone(),
            ]);
        }
        table.render()
    });
    Ok(())
}
