//! `segue bench`: measurements against limits and peers, in one interleaved run.
//!
//! Owns: the benches and their JSON (`segue.bench.NAME.v1`). Never: compares with numbers of another run.
//! Invariant: what is compared alternates within each round, and is reported as medians with intervals.

mod cores;
mod cow;
mod disk;
pub mod fio;
mod handover;
mod idle;
mod isolation;
mod migrate;
mod open;
mod peers;
mod pool;
pub mod process;
pub mod rcs;
mod replay;
mod space;
mod sparse;
pub mod stats;
mod superpose;
mod trace;

pub use stats::quantile;

use crate::Global;
use crate::exit::ExitCode;

/// Arguments of `segue bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand, Debug)]
enum Bench {
    /// Super and collapse at 1 GiB and 1 TiB; write latency of a child against a regular volume and copy-on-write.
    Super(superpose::Args),
    /// A recovery's block trace on a regular volume, a super child, and copy-on-write at 64 KiB.
    Replay(replay::Args),
    /// The NBD server against nbdkit and qemu-storage-daemon: 4 KiB random I/O on memory.
    NbdPeers(peers::Args),
    /// Two cores against one, and processor time per read beside nbdkit and qemu-storage-daemon.
    Cores(cores::Args),
    /// Pools handed over from core to core under load: the pause of their clients.
    Handover(handover::Args),
    /// A victim alone and beside aggressors under each policy of sharing, and shares by weight.
    Isolation(isolation::Args),
    /// How cores get space on one drive: static partitions, one shared allocator, leases from a home.
    Space(space::Args),
    /// A volume moved between two drives under a verifying load, the node killed at random points of moves.
    Move(migrate::Args),
    /// CPU and memory of a node that nobody uses.
    Idle(idle::Args),
    /// Recovery-conscious scheduling on real threads: what groups and clean-up blocks cost, what a faulty group does.
    Rcs(rcs::Args),
    /// Opening a pool of which a tebibyte is mapped, and its memory.
    Open(open::Args),
}

/// Runs a bench.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.bench {
        Bench::Super(args) => superpose::run(&args, global),
        Bench::Replay(args) => replay::run(&args, global),
        Bench::NbdPeers(args) => peers::run(&args, global),
        Bench::Cores(args) => cores::run(&args, global),
        Bench::Handover(args) => handover::run(&args, global),
        Bench::Isolation(args) => isolation::run(&args, global),
        Bench::Space(args) => space::run(&args, global),
        Bench::Move(args) => migrate::run(&args, global),
        Bench::Idle(args) => idle::run(&args, global),
        Bench::Rcs(args) => rcs::run(&args, global),
        Bench::Open(args) => open::run(&args, global),
    }
}
