//! Listening sockets and who is at the other end of a connection.
//!
//! Owns: binding, and the holder's words for a peer. Never: accepts; that is the core's backend.
//! Invariant: a unix socket is replaced only if nobody answers on it.

use crate::options::{ListenAddr, ListenError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Binds and returns the descriptor with the address it really has.
pub(crate) fn bind(addr: &ListenAddr) -> Result<(OwnedFd, ListenAddr), ListenError> {
    let bound = match addr {
        ListenAddr::Tcp(at) => TcpListener::bind(at).and_then(|listener| {
            let real = listener.local_addr()?;
            Ok((listener.into(), ListenAddr::Tcp(real)))
        }),
        ListenAddr::Unix(path) => bind_unix(path).map(|fd| (fd, addr.clone())),
    };
    bound.map_err(|source| ListenError::Bind { addr: addr.clone(), source })
}

fn bind_unix(path: &Path) -> io::Result<OwnedFd> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            let refused = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
            if !is_socket || !UnixStream::connect(path).as_ref().is_err_and(refused) {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path).map(OwnedFd::from)
        }
        bound => bound.map(OwnedFd::from),
    }
}

/// Prepares an accepted socket and says who holds it: `unix:pid=P uid=U` or `tcp:IP`.
pub(crate) fn greet(fd: RawFd) -> io::Result<String> {
    if let Some(ip) = peer_ip(fd)? {
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        // A peer that vanished without a word is noticed in half a minute, and its lease becomes free.
        set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 15)?;
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5)?;
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)?;
        return Ok(format!("tcp:{ip}"));
    }
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let at = (&raw mut cred).cast();
    match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len) } {
        0 => Ok(format!("unix:pid={} uid={}", cred.pid, cred.uid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The peer's address, if the socket is one of TCP.
pub(crate) fn peer_ip(fd: RawFd) -> io::Result<Option<std::net::IpAddr>> {
    let mut store: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    if unsafe { libc::getpeername(fd, (&raw mut store).cast(), &raw mut len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let addr: SocketAddr = match store.ss_family as i32 {
        libc::AF_INET => {
            let v4 = unsafe { &*(&raw const store).cast::<libc::sockaddr_in>() };
            SocketAddr::from((v4.sin_addr.s_addr.to_ne_bytes(), 0))
        }
        libc::AF_INET6 => {
            let v6 = unsafe { &*(&raw const store).cast::<libc::sockaddr_in6>() };
            SocketAddr::from((v6.sin6_addr.s6_addr, 0))
        }
        _ => return Ok(None),
    };
    Ok(Some(addr.ip().to_canonical()))
}

fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let at = (&raw const value).cast();
    match unsafe { libc::setsockopt(fd, level, name, at, size_of::<i32>() as libc::socklen_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends both directions: what waits on the socket ends too.
pub(crate) fn shut(fd: RawFd) {
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Ends receiving only: what was received is served, and answers still go out.
pub(crate) fn shut_input(fd: RawFd) {
    unsafe { libc::shutdown(fd, libc::SHUT_RD) };
}
