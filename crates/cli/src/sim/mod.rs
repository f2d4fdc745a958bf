//! `segue sim`: the models of storage nodes in virtual time, from the command line.
//!
//! Owns: the verbs and their JSON (`segue.sim.VERB.v1`). Never: a model; those are in `models`.
//! Invariant: a model, its settings and a seed give the same trace hash whatever the number of threads.

mod configurations;
mod figures;
mod files;
mod golden;
mod list;
mod run;
pub mod runner;
mod scale;
pub mod seeds;
mod show;
mod warmup;

use crate::Global;
use crate::exit::ExitCode;

/// Arguments of `segue sim`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// The models and their settings.
    List,
    /// Run a model: every configuration with every seed, in parallel.
    Run(run::Args),
    /// Compare Replicast-H by its published rules with latencies made elsewhere, to the nanosecond.
    CheckGolden(golden::Args),
    /// What an event costs, by number of nodes and by load.
    Scale(scale::Args),
}

/// Runs a verb.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::List => Ok(list::run(global)),
        Verb::Run(args) => run::run(&args, global),
        Verb::CheckGolden(args) => golden::run(&args, global),
        Verb::Scale(args) => scale::run(&args, global),
    }
}
