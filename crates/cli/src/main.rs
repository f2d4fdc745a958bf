//! The `segue` command: `segue NOUN VERB`, for people and for programs (`--json`).
//!
//! Owns: the list of nouns, the global flags, and how an error reaches the caller. Never: does a noun's work here.
//! Invariant: data goes to stdout and words to stderr, and every way out has a documented exit code.
//!
//! A new noun: write a module that exposes `Args` (clap) and `run(Args, &Global) -> anyhow::Result<ExitCode>`,
//! declare it with `mod`, and add one line to `nouns!`.

mod attach;
mod bench;
mod client;
mod cmd;
mod demo;
mod drill;
mod exit;
mod failover;
mod out;
mod reproduce;
mod sim;
mod soak;
mod top;

use clap::Parser;
use exit::ExitCode;
use std::path::PathBuf;

/// Flags that every command takes.
#[derive(clap::Args, Debug, Clone)]
pub struct Global {
    /// Print one JSON object with a `schema` field instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// The node's admin socket.
    #[arg(long, global = true, value_name = "PATH", env = "SEGUE_ADMIN", default_value = segue_node::client::DEFAULT_ADMIN_SOCKET)]
    pub admin: PathBuf,
}

/// Volumes that recover before anybody knows whether something failed.
#[derive(Parser, Debug)]
#[command(name = "segue", version, after_help = exit::HELP, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    noun: Noun,
}

/// Declares the nouns: doc comment, variant, and the module with its `Args` and `run`.
macro_rules! nouns {
    ($($(#[$meta:meta])* $variant:ident => $($module:ident)::+;)*) => {
        #[derive(clap::Subcommand, Debug)]
        enum Noun { $($(#[$meta])* $variant($($module)::+::Args),)* }

        fn dispatch(noun: Noun, global: &Global) -> anyhow::Result<ExitCode> {
            match noun { $(Noun::$variant(args) => $($module)::+::run(args, global),)* }
        }
    };
}

nouns! {
    /// The node: the process that serves volumes.
    Node => cmd::node;
    /// Pools: one drive each, full of volumes.
    Pool => cmd::pool;
    /// Drives: measure what one can do.
    Drive => cmd::drive;
    /// Volumes, snapshots and clones.
    Volume => cmd::volume;
    /// Access tokens: make, narrow, show, revoke.
    Token => cmd::token;
    /// A volume as a local block device.
    Attach => attach::args::attach;
    /// Take an attached volume down.
    Detach => attach::args::detach;
    /// Look at an attached volume, cut it off, partition it from the node, heal it: what drills do.
    #[command(hide = true)]
    AttachControl => attach::args::control;
    #[command(hide = true)]
    /// The process behind an attached volume; started by `attach`.
    AttachDaemon => attach::args::daemon;
    /// The right to write a volume.
    Lease => cmd::lease;
    /// Put volumes into two versions; attach the children with the printed exports.
    Super => cmd::supers::begin;
    /// Ask who won: exit code 0 promotes the child and fences the primary, 1 means the primary was observed.
    Collapse => cmd::supers::collapse;
    /// End a superposition in favour of the primary.
    Abort => cmd::supers::abort;
    /// Protect an application: race a backup on a child of its volumes when it goes quiet.
    Failover => failover;
    /// Three ways of failing over, compared on this machine in five minutes.
    Demo => demo;
    /// A database load that keeps a ledger of every acknowledged commit, and verifies it.
    Load => drill::load_cmd;
    /// A node under load while its tasks panic: nothing acknowledged may be lost, nothing may hang.
    Soak => soak;
    /// Volumes, cores and drives of the node, live.
    Top => top;
    /// Measurements against limits and peers.
    Bench => bench;
    /// Published experiments, run again beside the published figures.
    Reproduce => reproduce;
    /// Storage nodes by the thousand in virtual time: run a model, list them.
    Sim => sim;
    /// The node's configuration file.
    Config => cmd::config;
    /// Write shell completions to stdout.
    Completions => cmd::completions;
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let json = cli.global.json;
    match dispatch(cli.noun, &cli.global) {
        Ok(code) => code.into(),
        Err(error) => exit::report(&error, json).into(),
    }
}
