//! `segue node inject` and `segue node recoveries`: panics on purpose, and what became of all of them.
//!
//! Owns: arguments and output. Never: decides whether a node lets itself be made to fail.
//! Invariant: injection is asked for by kind and rate, never by default.

use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::Table;
use segue_types::api::{InjectRequest, Recoveries};
use segue_types::{FaultKind, TaskKind};

/// Arguments of `segue node inject`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Kind of task that fails: read, write, journal, cleanup, checkpoint, scrub, admin, connection, restart (of an
    /// engine), or all (but restart). May be given several times.
    #[arg(long = "task", value_name = "KIND", required_unless_present = "off")]
    tasks: Vec<String>,
    /// One task in so many fails, as 1/10000.
    #[arg(long, value_name = "1/N", default_value = "1/10000", value_parser = rate)]
    rate: u64,
    /// `panic` says where it struck; `invariant` is a failed assertion, which tells the recovery nothing.
    #[arg(long, default_value = "panic", value_parser = kind)]
    kind: FaultKind,
    /// Seed of the choice which task fails, and at which of its points.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// End all injection.
    #[arg(long, conflicts_with_all = ["tasks"])]
    off: bool,
}

/// Reads `1/N` or `N`.
///
/// # Errors
/// What is wrong with it.
pub fn rate(text: &str) -> Result<u64, String> {
    let number = text.strip_prefix("1/").unwrap_or(text).parse::<u64>().ok().filter(|n| *n > 0);
    number.ok_or_else(|| "a rate is 1/N: one task in N fails, for example 1/10000".to_owned())
}

fn kind(text: &str) -> Result<FaultKind, String> {
    match text {
        "panic" => Ok(FaultKind::Panic),
        "invariant" => Ok(FaultKind::Invariant),
        _ => Err("a kind of fault is panic or invariant".to_owned()),
    }
}

/// Every kind that a node must survive: a pool whose restart fails is out of service by design.
pub fn survivable() -> Vec<TaskKind> {
    TaskKind::ALL.into_iter().filter(|task| *task != TaskKind::Restart).collect()
}

/// Runs `segue node inject`.
///
/// # Errors
/// Those of the admin API; a node whose configuration does not allow it refuses.
pub fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mut tasks = Vec::new();
    for text in &args.tasks {
        match text.as_str() {
            "all" => tasks.extend(survivable()),
            text => tasks.push(text.parse().map_err(|e| fail(ExitCode::Misuse, format!("--task {text}: {e}")))?),
        }
    }
    let request = InjectRequest { tasks, one_in: args.rate, kind: args.kind, seed: args.seed };
    global.client().inject(&request)?;
    global.done(&match args.off {
        true => "no task fails on purpose any more".to_owned(),
        false => format!("one task in {} of {} kinds fails from now on", request.one_in, request.tasks.len()),
    });
    Ok(())
}

/// Prints what the node recovered from.
pub fn recoveries(global: &Global, recoveries: &Recoveries) {
    global.print("recoveries", recoveries, || {
        let mut table = Table::new(&["TASK", "LEVEL", "COUNT>"]);
        for c in &recoveries.counts {
            table.row(vec![c.task.to_string(), c.level.name().to_owned(), c.count.to_string()]);
        }
        let ms = recoveries.took_ns_max as f64 / 1e6;
        format!("{}longest {ms:.3} ms\n", table.render())
    });
}
