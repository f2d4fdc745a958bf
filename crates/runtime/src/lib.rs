//! The real world: one thread per core, io_uring for drives and sockets, and the glue between engines and clients.
//!
//! Owns: clocks, sockets, drives and memory of the data path. Never: decides what a request means or who may write.
//! Invariant: a core's thread blocks in one place only, the kernel call that ends each turn.
//!
//! Start with [`Runtime`]: start it, add pools, listen, and talk to engines through it. The loop itself is in `core`.

mod chance;
mod core;
mod counters;
pub mod crew;
pub mod drive;
mod engine;
mod guard;
mod io;
mod listen;
mod local;
mod mover;
mod options;
mod pool;
mod runtime;
mod slab;
mod slice;
mod sync;

pub use chance::{secret, unix_ms};
pub use counters::{LATENCY_BUCKETS, OpClass, OpCounters, Snapshot, latency_bucket_ns_max};
pub use drive::DriveSpec;
pub use engine::{EngineOpenError, format_drive};
pub use io::{IoChoice, IoMode};
pub use local::{Local, LocalDone, LocalError, LocalOp};
pub use mover::{FoundMove, MoveError, MoveHandle, MoveRun, MoveStatus, find_moves};
pub use options::{
    AddPoolError, CallError, CoreStatus, ListenAddr, ListenError, MovePoolError, MoveReport, OpenFailure, Opener,
    Options, PoolAlarm, PoolPlace, PoolRecovery, PoolSpec, Sharing, SharingState, StartError, StopError, Tls,
    VolumeSharing,
};
pub use pool::{Machine, Revived, Wreck};
pub use runtime::Runtime;
