//! The life of a node: start in order, serve, stop in order.
//!
//! Owns: the order of things and the reasons not to start. Never: serves a request itself.
//! Invariant: READY is said after every pool is open and every socket listens; a stop closes pools before the process ends.

use crate::admin::{self, Api, Listener};
use crate::config::Config;
use crate::cores::{Cores, CoresError};
use crate::events::Events;
use crate::moves::Moves;
use crate::notify::notify;
use crate::sockets::{AdminSocket, SocketError};
use crate::tls::{TlsError, server_config};
use segue_types::api::NodeInfo;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Why a node did not start or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The admin socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Certificates.
    #[error("TLS cannot be offered")]
    Tls(#[from] TlsError),
    /// Pools, cores or NBD sockets.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// The admin API's TCP address.
    #[error("the admin API cannot listen on {address}")]
    AdminListen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The system gives no event queue or signals.
    #[error("the system gives the node no event queue")]
    System(#[source] io::Error),
}

/// What the caller should do about a [`DaemonError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DaemonErrorKind {
    /// Fix the configuration or the files it names.
    Config,
    /// Something is in use by another process.
    Busy,
    /// Look at the drive.
    Drive,
    /// This machine lacks something.
    Unsupported,
}

impl DaemonError {
    /// What to do.
    pub fn kind(&self) -> DaemonErrorKind {
        match self {
            DaemonError::Socket(SocketError::InUse { .. }) => DaemonErrorKind::Busy,
            DaemonError::Socket(SocketError::Make { .. }) | DaemonError::Tls(_) | DaemonError::AdminListen { .. } => {
                DaemonErrorKind::Config
            }
            DaemonError::Cores(error) => error.kind(),
            DaemonError::System(_) => DaemonErrorKind::Unsupported,
        }
    }
}

/// Runs a node until SIGTERM, SIGINT or `POST /v1/node/stop`. Call from the main thread, once, before other threads.
///
/// # Errors
/// [`DaemonError`]; its kind tells what to do.
pub fn run(config: &Config) -> Result<(), DaemonError> {
    let started = Instant::now();
    let mut socket = AdminSocket::bind(&config.admin)?;
    let nbd_tls = config.tls.as_ref().map(server_config).transpose()?;
    let admin_tls = config.admin_tls.as_ref().map(|a| server_config(&a.files)).transpose()?;
    let (mut cores, pools) = Cores::start(config, nbd_tls)?;
    let moves = Moves::resume(cores.take_found());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DaemonError::System)?;
    let info = NodeInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        io_engine: cores.io_engine().into(),
        nbd: cores.addresses(),
        cores: cores.count(),
        uptime_ns: 0,
    };
    let (stop, _) = watch::channel(false);
    let naming = tokio::sync::Mutex::new(());
    let (events, counters, runtime_of_cores) = (Events::default(), cores.counters(), cores.runtime());
    let allow_fault_injection = config.allow_fault_injection;
    let api = Api {
        pools,
        events,
        runtime: runtime_of_cores,
        allow_fault_injection,
        info,
        started,
        stop,
        naming,
        counters,
        moves,
    };
    let served = runtime.block_on(serve(config, Arc::new(api), &mut socket, admin_tls));
    notify("STOPPING=1");
    tracing::info!("stopping: requests in flight are finished and pools closed");
    drop(runtime);
    let stopped = cores.stop(config.stop_wait);
    served?;
    stopped?;
    tracing::info!(uptime_s = started.elapsed().as_secs_f64(), "stopped");
    Ok(())
}

async fn serve(
    config: &Config,
    api: Arc<Api>,
    socket: &mut AdminSocket,
    admin_tls: Option<Arc<rustls::ServerConfig>>,
) -> Result<(), DaemonError> {
    crate::keys::unlock_configured(&config.keys, &api.pools).await;
    let router = admin::router(api.clone());
    let unix = tokio::net::UnixListener::from_std(socket.take()).map_err(DaemonError::System)?;
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(admin::serve(Listener::Unix(unix), router.clone(), api.stop.subscribe()));
    if let (Some(tls), Some(at)) = (admin_tls, &config.admin_tls) {
        let bound = tokio::net::TcpListener::bind(at.listen).await;
        let tcp = bound.map_err(|source| DaemonError::AdminListen { address: at.listen, source })?;
        let listener = Listener::Tls(tcp, tls.into());
        serving.spawn(admin::serve(listener, router, api.stop.subscribe()));
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(DaemonError::System)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(DaemonError::System)?;
    for pool in &api.pools {
        tracing::info!(pool = pool.name(), drive = pool.drive(), "pool open");
    }
    let info = &api.info;
    tracing::info!(version = info.version, pid = info.pid, io = info.io_engine, nbd = ?info.nbd, admin = %config.admin.display(), "serving");
    notify("READY=1");
    let mut asked = api.stop.subscribe();
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM"),
        _ = interrupt.recv() => tracing::info!("SIGINT"),
        _ = asked.wait_for(|stop| *stop) => tracing::info!("asked to stop"),
    }
    api.stop.send_replace(true);
    while serving.join_next().await.is_some() {}
    Ok(())
}
