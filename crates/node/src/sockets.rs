//! The admin sockets and the lock that keeps two nodes of one configuration apart.
//!
//! Owns: making, guarding and removing the admin socket. Never: removes a socket on which somebody answers.
//! Invariant: while a [`AdminSocket`] lives, no other node can bind the same path.

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{Mode, umask};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Why the admin socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another node runs with the same admin socket.
    #[error("another node runs with the admin socket {path}; stop it with `segue node stop --admin {path}`")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The directory, lock file or socket cannot be made.
    #[error("cannot make the admin socket {path}; check the directory and its permissions")]
    Make {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The bound admin socket, with its lock. Dropping it removes the socket.
pub struct AdminSocket {
    path: PathBuf,
    listener: Option<UnixListener>,
    /// Held for as long as the node lives; the kernel drops it even if the node is killed.
    _lock: Flock<File>,
}

impl AdminSocket {
    /// Binds `path` with mode 0600, making its directory (mode 0755) if needed. A socket left by a dead node is replaced.
    ///
    /// # Errors
    /// [`SocketError`] tells whether somebody else has it.
    pub fn bind(path: &Path) -> Result<AdminSocket, SocketError> {
        let failed = |source| SocketError::Make { path: path.to_owned(), source };
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock_path);
        let lock = Flock::lock(lock.map_err(failed)?, FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, errno)| match errno {
            nix::errno::Errno::EWOULDBLOCK => SocketError::InUse { path: path.to_owned() },
            other => failed(other.into()),
        })?;
        // With the lock held, what lies at the path is of a node that is dead.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = bind_private(path).map_err(failed)?;
        Ok(AdminSocket { path: path.to_owned(), listener: Some(listener), _lock: lock })
    }

    /// The listener, once.
    ///
    /// # Panics
    /// When taken twice.
    pub fn take(&mut self) -> UnixListener {
        self.listener.take().expect("the listener is taken once")
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // The lock file stays: removing it would let two nodes lock two different files of one name.
        drop(std::fs::remove_file(&self.path));
    }
}

/// Binds with mode 0600 from the first moment. The file mode mask is of the whole process: call before threads start.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_socket_is_private_exclusive_and_replaces_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/admin.sock");
        let first = AdminSocket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(AdminSocket::bind(&path), Err(SocketError::InUse { .. })));
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(AdminSocket::bind(&path).unwrap());
    }
}
