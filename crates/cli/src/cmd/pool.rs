//! `segue pool`: format, check, list, show, scrub, checkpoint, bind.
//!
//! Owns: arguments and output of the noun. Never: opens a pool that a node has open; the drive's lock sees to it.
//! Invariant: damage found is exit code 1, never 0.

use crate::Global;
use crate::exit::ExitCode;
use crate::out::{Table, fields, human_bytes};
use segue_node::client::AdminClient;
use segue_types::api::{PoolInfo, ScrubStatus};
use std::time::Duration;

/// Pause between two looks at a running scrub.
const SCRUB_POLL: Duration = Duration::from_millis(100);

/// Arguments of `segue pool`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Make an empty pool on a block device or file. Works without a node.
    Format(super::offline::Format),
    /// Check the metadata of a pool that no node has open. Exit code 1 when something is wrong.
    Check(super::offline::Check),
    /// List the node's pools.
    List,
    /// Show one pool.
    Show {
        /// Its name.
        name: String,
    },
    /// Read and verify every block. Exit code 1 when one does not match its checksum.
    Scrub {
        /// Its name.
        name: String,
        /// Start it and do not wait.
        #[arg(long)]
        no_wait: bool,
    },
    /// Hand a pool over to another core; its clients notice nothing but a pause, which is told.
    Bind {
        /// Its name.
        name: String,
        /// The core, from 0.
        #[arg(long)]
        core: u32,
    },
    /// How its volumes share the drive; with options, change it until the node's next start.
    Qos(super::qos::PoolArgs),
    /// Write a checkpoint now; returns when it is durable.
    Checkpoint {
        /// Its name.
        name: String,
    },
}

/// Runs `segue pool`.
///
/// # Errors
/// Those of the admin API, and of the drive for the verbs that work without a node.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = || global.client();
    match args.verb {
        Verb::Format(args) => return super::offline::format(&args, global),
        Verb::Check(args) => return super::offline::check(&args, global),
        Verb::Qos(args) => return super::qos::pool(&args, global),
        Verb::List => list(global, &client().pools()?),
        Verb::Show { name } => show(global, &client().pool(&name)?),
        Verb::Bind { name, core } => {
            let bound = client().bind_pool(&name, core)?;
            global.print("pool-bound", &bound, || {
                let pause_us = bound.stall_ns as f64 / 1e3;
                let (from, to, with) = (bound.from, bound.to, bound.connections);
                format!("{name} went from core {from} to core {to} with {with} connections; paused {pause_us:.0} us\n")
            });
        }
        Verb::Checkpoint { name } => {
            client().checkpoint(&name)?;
            global.done(&format!("checkpoint of {name} is durable"));
        }
        Verb::Scrub { name, no_wait } => {
            client().scrub_start(&name)?;
            if no_wait {
                global.done(&format!("scrub of {name} runs; `segue pool scrub {name}` waits for it"));
                return Ok(ExitCode::Yes);
            }
            let status = watch(&client(), &name)?;
            global.print("scrub", &status, || {
                format!("{} blocks verified, {} do not match\n", status.blocks_done, status.errors)
            });
            return Ok(if status.errors == 0 { ExitCode::Yes } else { ExitCode::No });
        }
    }
    Ok(ExitCode::Yes)
}

/// Waits for the scrub with a bar on stderr (which hides itself when stderr is no terminal).
fn watch(client: &AdminClient, name: &str) -> anyhow::Result<ScrubStatus> {
    let style = "{wide_bar} {pos}/{len} blocks {per_sec} eta {eta}";
    let bar = indicatif::ProgressBar::new(0).with_style(indicatif::ProgressStyle::with_template(style)?);
    loop {
        let status = client.scrub_status(name)?;
        bar.set_length(status.blocks_total.max(status.blocks_done));
        bar.set_position(status.blocks_done);
        if !status.running {
            bar.finish_and_clear();
            return Ok(status);
        }
        std::thread::sleep(SCRUB_POLL);
    }
}

fn list(global: &Global, pools: &[PoolInfo]) {
    global.print("pools", &serde_json::json!({ "pools": pools }), || {
        let mut table = Table::new(&["NAME", "DRIVE", "SIZE>", "FREE>", "VOLUMES>", "STATE"]);
        for p in pools {
            table.row(vec![
                p.name.clone(),
                p.drive.clone(),
                human_bytes(p.capacity_bytes),
                human_bytes(p.free_bytes + p.shared_free_bytes),
                p.volumes.to_string(),
                state(p),
            ]);
        }
        table.render()
    });
}

fn show(global: &Global, p: &PoolInfo) {
    global.print("pool", p, || {
        fields(&[
            ("name", p.name.clone()),
            ("drive", p.drive.clone()),
            ("core", p.core.to_string()),
            ("state", state(p)),
            ("size", human_bytes(p.capacity_bytes)),
            ("free", human_bytes(p.free_bytes + p.shared_free_bytes)),
            ("of it shared", human_bytes(p.shared_free_bytes)),
            ("pending", human_bytes(p.pending_bytes)),
            ("volumes", p.volumes.to_string()),
            ("layers", p.layers.to_string()),
            ("journal", format!("{} of {}", human_bytes(p.journal_used_bytes), human_bytes(p.journal_bytes))),
            ("map cache", format!("{} of {}", human_bytes(p.cache_used_bytes), human_bytes(p.cache_bytes))),
            ("bitmap", human_bytes(p.bitmap_bytes)),
        ])
    });
}

fn state(p: &PoolInfo) -> String {
    match (p.poisoned, p.integrity_errors, p.cleaning) {
        (true, _, _) => "poisoned".into(),
        (_, 0, 0) => "good".into(),
        (_, 0, n) => format!("cleaning ({n})"),
        (_, n, _) => format!("damaged blocks: {n}"),
    }
}
