//! Serving the admin API: the unix socket, and TCP with client certificates.
//!
//! Owns: accepting connections and HTTP on them. Never: lets one slow client keep others waiting.
//! Invariant: nobody speaks HTTP before the socket's mode or their certificate let them.

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// How long a client may take to finish TLS or to send its request's head.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failed accept (out of file descriptors), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long answers that were begun before a stop may take.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Where the API listens.
pub enum Listener {
    /// A unix socket, guarded by its mode.
    Unix(UnixListener),
    /// TCP, guarded by client certificates.
    Tls(TcpListener, TlsAcceptor),
}

/// An accepted connection.
enum Accepted {
    Unix(UnixStream),
    Tls(TcpStream, SocketAddr, TlsAcceptor),
}

/// Serves until `stop` turns true, then lets the answers already begun go out, for a bounded time.
pub async fn serve(listener: Listener, router: Router, stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut stopping = stop.clone();
    loop {
        tokio::select! {
            accepted = accept(&listener) => match accepted {
                Ok(accepted) => drop(connections.spawn(connection(accepted, router.clone(), stop.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "the admin API could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stopped(&mut stopping) => break,
        }
    }
    let all_gone = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_ANSWERS, all_gone).await.is_err() {
        tracing::warn!("admin connections were cut: they did not end in time");
    }
}

/// Waits for the stop. A dropped sender means that the node is gone: that is a stop as well.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

async fn accept(listener: &Listener) -> std::io::Result<Accepted> {
    match listener {
        Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
        Listener::Tls(listener, acceptor) => {
            let (stream, peer) = listener.accept().await?;
            Ok(Accepted::Tls(stream, peer, acceptor.clone()))
        }
    }
}

async fn connection(accepted: Accepted, router: Router, stop: watch::Receiver<bool>) {
    match accepted {
        Accepted::Unix(stream) => http(stream, router, stop).await,
        Accepted::Tls(stream, peer, acceptor) => match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => http(stream, router, stop).await,
            Ok(Err(error)) => tracing::warn!(%peer, %error, "admin client refused in TLS"),
            Err(_) => tracing::warn!(%peer, "admin client did not finish TLS in time"),
        },
    }
}

async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, router: Router, mut stop: watch::Receiver<bool>) {
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "an admin connection ended badly");
    }
}
