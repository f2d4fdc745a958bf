//! From the configuration to running cores: pools opened, sockets listening, and the way back.
//!
//! Owns: the runtime of the node and the translation of its settings and errors. Never: touches the data path.
//! Invariant: either every pool and every address of the configuration is served, or nothing is.

use crate::config::{Backing, Config, IoEngine, Listen, PoolConfig};
use crate::daemon::DaemonErrorKind;
use crate::moves::MOVE_RATE_BYTES_PER_S;
use crate::port::Port;
use segue_runtime::drive::{DriveOpenError, SharedDrive};
use segue_runtime::{
    AddPoolError, DriveSpec, FoundMove, IoChoice, IoMode, ListenAddr, ListenError, MoveError, Options, PoolPlace,
    PoolSpec, Runtime, Snapshot, StartError, StopError, Tls, find_moves,
};
use segue_volume::engine::{Engine, EngineOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Why the cores do not serve, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum CoresError {
    /// The cores cannot start.
    #[error("the cores cannot start")]
    Start(#[from] StartError),
    /// io_uring is demanded and refused.
    #[error("io_engine is io_uring, but the kernel refuses it ({note}); allow it, or set io_engine = \"auto\"")]
    NoUring {
        /// What the kernel said.
        note: String,
    },
    /// A pool cannot be opened.
    #[error("pool {pool:?} cannot be opened{hint}")]
    Pool {
        /// The pool.
        pool: String,
        /// What to do about it.
        hint: &'static str,
        /// Why.
        #[source]
        source: AddPoolError,
    },
    /// The directory of a unix socket cannot be made.
    #[error("cannot make the directory of the socket {path}")]
    Directory {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An address cannot be listened on.
    #[error("NBD cannot be served")]
    Listen(#[from] ListenError),
    /// The records of moves cannot be read.
    #[error("cannot tell which moves of volumes were interrupted")]
    Moves(#[from] MoveError),
    /// The cores did not end well.
    #[error("the node did not end in order")]
    Stop(#[from] StopError),
}

impl CoresError {
    /// What the caller should do.
    pub fn kind(&self) -> DaemonErrorKind {
        match self {
            CoresError::Start(_) | CoresError::NoUring { .. } => DaemonErrorKind::Unsupported,
            CoresError::Pool { source: AddPoolError::Drive(DriveOpenError::InUse { .. }), .. } => DaemonErrorKind::Busy,
            CoresError::Pool { .. } | CoresError::Stop(_) | CoresError::Moves(_) => DaemonErrorKind::Drive,
            CoresError::Directory { .. } | CoresError::Listen(_) => DaemonErrorKind::Config,
        }
    }
}

/// The running cores of a node.
pub struct Cores {
    runtime: Runtime,
    addresses: Vec<ListenAddr>,
    found: Vec<FoundMove>,
}

impl Cores {
    /// Starts the cores, opens every pool and listens on every address.
    ///
    /// # Errors
    /// [`CoresError`]; what was opened is closed again.
    pub fn start(config: &Config, tls: Option<Arc<rustls::ServerConfig>>) -> Result<(Cores, Vec<Port>), CoresError> {
        let drives = config.pools.iter().map(open_drive).collect::<Result<Vec<_>, _>>()?;
        let runtime = Runtime::start(options(config, &drives))?;
        let mut cores = Cores { runtime, addresses: Vec::new(), found: Vec::new() };
        match cores.open(config, &drives, tls) {
            Ok(ports) => Ok((cores, ports)),
            Err(error) => {
                // The first error is the one to tell.
                drop(cores.stop(config.stop_wait));
                Err(error)
            }
        }
    }

    fn open(
        &mut self,
        config: &Config,
        drives: &[Option<Arc<SharedDrive>>],
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Result<Vec<Port>, CoresError> {
        for (core, status) in self.runtime.status().iter().enumerate() {
            let Some(note) = &status.io_note else { continue };
            if config.io_engine == IoEngine::IoUring {
                return Err(CoresError::NoUring { note: note.clone() });
            }
            tracing::warn!(core, note, "plain system calls and poll in place of io_uring: slower, all else the same");
        }
        let mut ports = Vec::new();
        for (pool, drive) in config.pools.iter().zip(drives) {
            match drive.as_ref().filter(|drive| drive.slices() > 1) {
                Some(drive) => self.open_slices(pool, drive, &mut ports)?,
                None => ports.push(self.open_pool(pool, drive.as_ref())?),
            }
        }
        self.find_moves()?;
        for listen in &config.nbd {
            self.listen(listen, tls.as_ref())?;
        }
        Ok(ports)
    }

    /// Settles which pool has each volume that a crash caught between two, before any client asks.
    fn find_moves(&mut self) -> Result<(), CoresError> {
        self.found = find_moves(&self.runtime, MOVE_RATE_BYTES_PER_S)?;
        for found in &mut self.found {
            match found {
                FoundMove::Ready(run) => run.settle_doubt(),
                FoundMove::Stuck { volume, pool, closed: true, .. } => tracing::error!(
                    volume,
                    pool,
                    "the volume may have moved to a pool that is not open here, and stays closed; open that pool, or \
                     say with `segue volume move-abort --force` that this copy is the right one"
                ),
                FoundMove::Stuck { volume, pool, .. } => {
                    tracing::warn!(volume, pool, "a move of the volume waits for a pool that is not open here");
                }
            }
        }
        Ok(())
    }

    /// The moves that were interrupted, to go on.
    pub fn take_found(&mut self) -> Vec<FoundMove> {
        std::mem::take(&mut self.found)
    }

    /// A pool named `NAME/0`, `NAME/1`, ... for each slice of the drive.
    fn open_slices(
        &self,
        pool: &PoolConfig,
        drive: &Arc<SharedDrive>,
        ports: &mut Vec<Port>,
    ) -> Result<(), CoresError> {
        for slice in 0..drive.slices() {
            let name = format!("{}/{slice}", pool.name);
            let added = self.runtime.add_slice(&name, drive, slice, engine_options(pool));
            let place = added.map_err(|source| refused(pool, source))?;
            warn_of_page_cache(&place);
            let port = Port::new(name, drive_name(pool), self.runtime.clone()).on(drive.clone());
            ports.push(port.shared_by(pool.policy, &pool.profile, drive.slices() as u32));
        }
        Ok(())
    }

    fn open_pool(&self, pool: &PoolConfig, drive: Option<&Arc<SharedDrive>>) -> Result<Port, CoresError> {
        let spec = match (&pool.backing, drive) {
            (_, Some(drive)) => DriveSpec::Shared(drive.clone()),
            (Backing::Path(path), None) => DriveSpec::File { path: path.clone() },
            (Backing::Memory(bytes), None) => DriveSpec::Memory { bytes: *bytes },
        };
        let added = self.runtime.add_pool(PoolSpec::engine(&pool.name, spec, engine_options(pool)));
        warn_of_page_cache(&added.map_err(|source| refused(pool, source))?);
        let port = Port::new(pool.name.clone(), drive_name(pool), self.runtime.clone());
        Ok(port.shared_by(pool.policy, &pool.profile, 1))
    }

    /// TCP wants TLS when there is TLS; a unix socket is guarded by its mode, so there it is the client's choice.
    fn listen(&mut self, listen: &Listen, tls: Option<&Arc<rustls::ServerConfig>>) -> Result<(), CoresError> {
        let (address, tls) = match listen {
            Listen::Unix(path) => {
                if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
                    std::fs::create_dir_all(parent)
                        .map_err(|source| CoresError::Directory { path: path.clone(), source })?;
                }
                (ListenAddr::Unix(path.clone()), tls.map_or(Tls::Off, |tls| Tls::Offered(tls.clone())))
            }
            Listen::Tcp(address) => (ListenAddr::Tcp(*address), tls.map_or(Tls::Off, |tls| Tls::Required(tls.clone()))),
        };
        self.addresses.push(self.runtime.listen(&address, tls)?);
        Ok(())
    }

    /// Addresses served, with the real ports.
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.iter().map(ToString::to_string).collect()
    }

    /// `io_uring` or `poll`.
    pub fn io_engine(&self) -> &'static str {
        let all_uring = self.runtime.status().iter().all(|status| status.io == IoMode::Uring);
        if all_uring { "io_uring" } else { "poll" }
    }

    /// Cores that serve.
    pub fn count(&self) -> u32 {
        self.runtime.status().len() as u32
    }

    /// A reader of the counters of every core.
    pub fn counters(&self) -> Box<dyn Fn() -> Vec<Snapshot> + Send + Sync> {
        let runtime = self.runtime.clone();
        Box::new(move || runtime.counters())
    }

    /// The runtime, to take alarms from.
    pub fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// Stops in order: requests in flight are finished, pools checkpointed and closed, sockets removed.
    ///
    /// # Errors
    /// [`CoresError::Stop`]: the pools are intact and replay their journals at the next start.
    pub fn stop(self, wait: Duration) -> Result<(), CoresError> {
        for address in &self.addresses {
            self.runtime.unlisten(address.clone());
        }
        let stopped = self.runtime.stop(wait);
        for address in &self.addresses {
            if let ListenAddr::Unix(path) = address {
                // Gone already is fine.
                drop(std::fs::remove_file(path));
            }
        }
        stopped.map_err(CoresError::Stop)
    }
}

/// Opens the drive of a pool on a file or device, to see how many slices it has.
fn open_drive(pool: &PoolConfig) -> Result<Option<Arc<SharedDrive>>, CoresError> {
    match &pool.backing {
        Backing::Memory(_) => Ok(None),
        Backing::Path(path) => SharedDrive::open(path).map(Some).map_err(|error| refused(pool, error.into())),
    }
}

fn drive_name(pool: &PoolConfig) -> String {
    match &pool.backing {
        Backing::Path(path) => path.display().to_string(),
        Backing::Memory(_) => "memory".to_owned(),
    }
}

fn refused(pool: &PoolConfig, source: AddPoolError) -> CoresError {
    let hint = match (&pool.backing, &source) {
        (Backing::Path(_), AddPoolError::Engine(_) | AddPoolError::Drive(DriveOpenError::Open { .. })) => {
            "; make it with `segue pool format`, or look at it with `segue pool check`"
        }
        _ => "",
    };
    CoresError::Pool { pool: pool.name.clone(), hint, source }
}

fn warn_of_page_cache(place: &PoolPlace) {
    if !place.direct {
        tracing::warn!(pool = place.name, "the file system refuses direct I/O: this pool goes through the page cache");
    }
}

fn options(config: &Config, drives: &[Option<Arc<SharedDrive>>]) -> Options {
    // Only address space: as much as the largest cache needs and half as much again, because the runtime keeps a part
    // of each pool's region for clients.
    let cache_bytes = config.pools.iter().map(|pool| Engine::mem_bytes(&engine_options(pool))).max().unwrap_or(0);
    let machine = std::thread::available_parallelism().map_or(1, usize::from);
    Options {
        cores: match config.cores {
            0 => drives.iter().map(|drive| drive.as_ref().map_or(1, |d| d.slices().into())).sum::<usize>().min(machine),
            wanted => wanted as usize,
        },
        io: if config.io_engine == IoEngine::Poll { IoChoice::Poll } else { IoChoice::Auto },
        // Only TLS gives them something to do.
        helpers: if config.tls.is_some() { config.helpers as usize } else { 0 },
        pin: config.pin_cores,
        mem_bytes: (config.io_memory_bytes + cache_bytes + cache_bytes / 2) as usize,
        ..Options::default()
    }
}

fn engine_options(pool: &PoolConfig) -> EngineOptions {
    EngineOptions { cache_bytes: pool.cache_bytes }
}
