//! How a runtime, a pool and a listener are wanted, and what can go wrong with them.
//!
//! Owns: the options, their defaults and the public errors. Never: acts on them.
//! Invariant: every default serves a small machine without being root.

use crate::counters::LATENCY_BUCKETS;
use crate::drive::{DriveOpenError, DriveSpec, SharedOpenError};
use crate::io::{IoChoice, IoMode};
use crate::pool::Machine;
use segue_sched::qos::{CostModel, DriveStats, GovernorParams, PolicyKind, ShareError, VolumeStats};
use segue_types::Share;
use segue_types::{RecoveryLevel, TaskKind};
use segue_volume::device::BlockDev;
use segue_volume::mem::Mem;
use segue_volume::op::{AdminError, Alarm};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a [`crate::Runtime`] is wanted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Cores to use, 1 to 64. Each is one thread; each pool lives on one.
    pub cores: usize,
    /// Kernel interface.
    pub io: IoChoice,
    /// Address space for I/O buffers and the engine's cache, per pool, bytes; resident only where used.
    pub mem_bytes: usize,
    /// Part of it that is registered with the kernel, and so resident, for each file-backed pool, bytes.
    pub registered_bytes: usize,
    /// Connections per core; more are turned away.
    pub connections_max: usize,
    /// Bytes of payload that one connection may have in flight; then its socket is not read.
    pub connection_bytes_max: usize,
    /// Requests that one connection may have in flight.
    pub connection_requests_max: usize,
    /// Time for a client to get through the handshake.
    pub handshake_timeout: Duration,
    /// Threads that do the arithmetic of TLS handshakes for the cores, at a lower priority; 0: the cores do it. They sleep
    /// when there is nothing to do. At most 64.
    pub helpers: usize,
    /// Longest time that a core looks for new requests before it sleeps, under load and where that serves more (it
    /// tries both). Zero: it always sleeps at once.
    pub spin: Duration,
    /// Each core's thread stays on a processor of its own, in the order of those the process may use.
    pub pin: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cores: 1,
            io: IoChoice::Auto,
            mem_bytes: 256 << 20,
            registered_bytes: 16 << 20,
            connections_max: 1024,
            connection_bytes_max: 4 << 20,
            connection_requests_max: 1024,
            handshake_timeout: Duration::from_secs(30),
            helpers: 1,
            spin: Duration::from_micros(150),
            pin: false,
        }
    }
}

/// Opens a pool's engine on its drive, on the core's thread.
pub type Opener = Box<dyn FnOnce(&mut dyn BlockDev, &mut Mem) -> Result<Box<dyn Machine>, OpenFailure> + Send>;

/// Why an engine could not be opened; the engine's own error.
pub type OpenFailure = Box<dyn std::error::Error + Send + Sync>;

/// A pool to serve.
pub struct PoolSpec {
    /// Its name, unique in the runtime.
    pub name: String,
    /// Its drive.
    pub drive: DriveSpec,
    /// Opens the engine.
    pub open: Opener,
}

/// Whether connections of a listener are encrypted.
#[derive(Clone, Default)]
pub enum Tls {
    /// Never.
    #[default]
    Off,
    /// If the client asks.
    Offered(Arc<rustls::ServerConfig>),
    /// Always. Client certificates are a matter of the configuration given.
    Required(Arc<rustls::ServerConfig>),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tls::Off => "Off",
            Tls::Offered(_) => "Offered",
            Tls::Required(_) => "Required",
        })
    }
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    /// A TCP address; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A path. A socket left behind by a dead process is replaced.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Tcp(addr) => write!(f, "{addr}"),
            ListenAddr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What one core said at its start.
#[derive(Clone, Debug)]
pub struct CoreStatus {
    /// The kernel interface in use.
    pub io: IoMode,
    /// Why it is the fallback, if it is.
    pub io_note: Option<String>,
}

/// Where a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    /// Its name.
    pub name: String,
    /// Its core, from 0.
    pub core: usize,
    /// True when its I/O bypasses the page cache.
    pub direct: bool,
    /// True when the drive is memory.
    pub memory: bool,
}

/// How a pool went from core to core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveReport {
    /// The core it left.
    pub from: usize,
    /// The core it is on now.
    pub to: usize,
    /// For how long its clients were not served, ns.
    pub stall_ns: u64,
    /// Connections that went with it.
    pub connections: usize,
}

/// How a pool's drive is shared among its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Whose request is next.
    pub policy: PolicyKind,
    /// What requests cost.
    pub model: CostModel,
    /// How much the drive may have outstanding.
    pub governor: GovernorParams,
    /// What the drive can do, cost units per second; 0 when nobody calibrated it.
    pub capacity: u64,
}

/// How a pool's drive is shared now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingState {
    /// The drive.
    pub drive: DriveStats,
    /// How requests are charged.
    pub sharing: Sharing,
    /// Its volumes that somebody is attached to.
    pub volumes: Vec<VolumeSharing>,
}

/// An attached volume's part of its drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSharing {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub share: Share,
    /// What it used since it was attached to, and why it waits.
    pub stats: VolumeStats,
    /// Latencies of its requests since then, by [`crate::latency_bucket_ns_max`].
    pub latency: [u64; LATENCY_BUCKETS],
}

/// A pool was not moved; it is where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MovePoolError {
    /// No pool of this name: check the name.
    #[error("no pool of this name")]
    NoPool,
    /// No such core: see how many the node has.
    #[error("no core {to}: this node has cores 0 to {last}")]
    NoCore {
        /// What was asked for.
        to: usize,
        /// The last there is.
        last: usize,
    },
    /// It is on its way already: ask again.
    #[error("the pool is being moved already; ask again")]
    Moving,
    /// The runtime is stopping.
    #[error("the runtime has stopped")]
    Stopped,
}

/// An alarm of an engine, with its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolAlarm {
    /// The pool.
    pub pool: String,
    /// When it was raised, milliseconds of Unix time.
    pub at_unix_ms: u64,
    /// What the engine said.
    pub alarm: Alarm,
}

/// Recoveries of one kind from panics, since they were last asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRecovery {
    /// The pool; empty for what a core did outside its pools.
    pub pool: String,
    /// Whose panic it was.
    pub task: TaskKind,
    /// How far the recovery reached.
    pub level: RecoveryLevel,
    /// How many.
    pub count: u64,
    /// The longest, ns.
    pub took_ns_max: u64,
    /// What the first panic said.
    pub said: String,
    /// When the first came, milliseconds of Unix time.
    pub at_unix_ms: u64,
}

/// The runtime could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Neither io_uring nor the fallback could be set up: check the limits of descriptors and memory.
    #[error("cannot set up a core's kernel interface; check the limits of open files and locked memory")]
    Backend(#[source] io::Error),
    /// A thread could not be started.
    #[error("cannot start a core's thread")]
    Thread(#[source] io::Error),
}

/// A pool could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddPoolError {
    /// A pool of this name is there already.
    #[error("a pool of this name is open already. pool=`{0}`")]
    Exists(String),
    /// The drive.
    #[error("cannot open the pool's drive")]
    Drive(#[from] DriveOpenError),
    /// The engine.
    #[error("cannot open the pool's engine")]
    Engine(#[source] OpenFailure),
    /// The runtime has stopped.
    #[error("the runtime has stopped")]
    Stopped,
}

impl From<SharedOpenError> for AddPoolError {
    fn from(error: SharedOpenError) -> AddPoolError {
        match error {
            SharedOpenError::Drive(error) => AddPoolError::Drive(error),
            SharedOpenError::Pool(error) => AddPoolError::Engine(Box::new(error)),
        }
    }
}

/// A listener could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Binding failed: the address may be taken, or not allowed.
    #[error("cannot listen; check that the address is free and allowed. address=`{addr}`")]
    Bind {
        /// The address.
        addr: ListenAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The runtime has stopped.
    #[error("the runtime has stopped")]
    Stopped,
}

/// An admin operation was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No pool of this name: check the name.
    #[error("no pool of this name")]
    NoPool,
    /// The runtime is stopping: ask again when the node is back.
    #[error("the runtime has stopped")]
    Stopped,
    /// The engine refused.
    #[error(transparent)]
    Refused(#[from] AdminError),
    /// The drive cannot promise what was asked for.
    #[error(transparent)]
    Share(#[from] ShareError),
}

/// The runtime stopped, but not cleanly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// A core did not end in time: its pools may need a replay of their journal at the next open.
    #[error("a core did not end in time; its pools will replay their journals at the next open")]
    TimedOut,
    /// A core's thread ended by a bug; the message was printed.
    #[error("a core ended by a bug; its pools will replay their journals at the next open")]
    Died,
}
