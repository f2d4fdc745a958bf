//! Telling the service manager how far the node is (the sd_notify protocol).
//!
//! Owns: one datagram per message. Never: fails the node because nobody listens.
//! Invariant: READY is said only when requests are served.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state` (for example `READY=1`) to `NOTIFY_SOCKET`, if there is one.
pub fn notify(state: &str) {
    let Some(target) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(target.as_bytes(), state) {
        // A parent that waited for READY alone has gone by now.
        tracing::debug!(%error, "the service manager was not told {state}");
    }
}

fn send(target: &[u8], state: &str) -> std::io::Result<()> {
    let address = match target.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::path::Path::new(std::ffi::OsStr::from_bytes(target)))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_on_a_path_and_on_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_bytes(), "READY=1").unwrap();
        let name = format!("segue-notify-test-{}", std::process::id());
        let hidden = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
        let mut buf = [0; 64];
        let n = listener.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"READY=1");
        let n = hidden.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"STOPPING=1");
    }
}
