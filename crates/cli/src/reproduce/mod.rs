//! `segue reproduce`: published experiments, run again beside the published figures.
//!
//! Owns: the list of experiments and their JSON (`segue.reproduce.NAME.v1`). Never: runs a model's world itself.
//! Invariant: every figure of ours is printed beside the paper's where there is one, with an interval.

mod choosy;
mod decibel;
pub mod plot;
mod rcs;
mod tail;

use crate::Global;
use crate::exit::ExitCode;

/// Arguments of `segue reproduce`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Debug)]
enum Experiment {
    /// The choosy initiator (Replicast-H with renegotiation): Figures 3 to 6, cold and steady, beside SURGE's figures.
    Choosy(choosy::Args),
    /// Decibel (NSDI 2017): volumes beside local drives, and where the added latency goes.
    Decibel(decibel::Args),
    /// Recovery-conscious scheduling (FAST 2008): the 8-way controller with and without faults, and up to 256 cores.
    Rcs(rcs::Args),
    /// Laws that the simulator's engine must obey: waits in queues, and the tail of requests to many servers.
    Tail(tail::Args),
}

/// Runs an experiment.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.experiment {
        Experiment::Choosy(args) => choosy::run(&args, global),
        Experiment::Decibel(args) => decibel::run(&args, global),
        Experiment::Rcs(args) => rcs::run(&args, global),
        Experiment::Tail(args) => tail::run(&args, global),
    }
}
