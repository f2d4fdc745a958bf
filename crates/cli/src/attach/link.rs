//! Connections to the node: open and agree, encode requests, read heads of replies.
//!
//! Owns: connecting (blocking, with a limit) and the few bytes around each payload. Never: holds a request or a payload.
//! Invariant: a refusal of the right to write is told apart from a node that is merely away.

use super::ledger::{Ask, Cookie};
use super::options::NodeAddr;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes of a request's head.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a reply's head.
pub const REPLY_BYTES: usize = 16;

/// What the server agreed to.
#[derive(Debug, Clone, Copy)]
pub struct ExportInfo {
    /// Size, bytes.
    pub size_bytes: u64,
    /// Refuses writing.
    pub read_only: bool,
    /// Has a write cache: a flush means something.
    pub flush: bool,
    /// Takes discards.
    pub trim: bool,
    /// Zeroes ranges itself.
    pub zero: bool,
    /// A flush on one connection covers all.
    pub multi_conn: bool,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The node is away or did not agree in time: try again.
    #[error("no connection to the node at {node}")]
    Away {
        /// Where it should be.
        node: NodeAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The node refused the lease, token or volume for good.
    #[error("the node refused the attachment: {reason}")]
    Refused {
        /// In the node's words.
        reason: String,
    },
}

/// Where and what to connect to.
#[derive(Debug, Clone)]
pub struct Target {
    /// The node.
    pub node: NodeAddr,
    /// Export name, with lease and token: a secret.
    pub export: String,
    /// How long connecting and agreeing may take.
    pub limit: Duration,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(buffer),
            Stream::Tcp(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Target {
    fn open(&self) -> io::Result<Stream> {
        match &self.node {
            NodeAddr::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(self.limit))?;
                stream.set_write_timeout(Some(self.limit))?;
                Ok(Stream::Unix(stream))
            }
            NodeAddr::Tcp(text) => {
                let address = text.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
                let stream = TcpStream::connect_timeout(&address, self.limit)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(self.limit))?;
                stream.set_write_timeout(Some(self.limit))?;
                // A peer whose machine is gone never answers: let the system notice.
                let user_timeout = self.limit.as_millis() as u32;
                nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::TcpUserTimeout, &user_timeout)?;
                nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::KeepAlive, &true)?;
                nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::TcpKeepIdle, &5)?;
                nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::TcpKeepInterval, &2)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Connects and agrees on the export. Blocks for at most about the target's limit.
    ///
    /// # Errors
    /// [`LinkError`] says whether trying again makes sense.
    pub fn connect(&self) -> Result<(OwnedFd, ExportInfo), LinkError> {
        let away = |source| LinkError::Away { node: self.node.clone(), source };
        let mut stream = self.open().map_err(away)?;
        let info = handshake(&mut stream, &self.export).map_err(away)??;
        Ok((stream.into_fd(), info))
    }
}

impl Stream {
    fn into_fd(self) -> OwnedFd {
        match self {
            Stream::Unix(stream) => stream.into(),
            Stream::Tcp(stream) => stream.into(),
        }
    }
}

fn handshake(stream: &mut Stream, export: &str) -> io::Result<Result<ExportInfo, LinkError>> {
    let mut head = [0; 18];
    stream.read_exact(&mut head)?;
    if &head[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut hello = Vec::new();
    hello.extend_from_slice(&3u32.to_be_bytes());
    hello.extend_from_slice(b"IHAVEOPT");
    hello.extend_from_slice(&7u32.to_be_bytes());
    hello.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
    hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
    hello.extend_from_slice(export.as_bytes());
    hello.extend_from_slice(&[0, 0]);
    stream.write_all(&hello)?;
    let mut info = None;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let kind = be32(&head, 12);
        let mut body = vec![0; be32(&head, 16).min(1 << 16) as usize];
        stream.read_exact(&mut body)?;
        match kind {
            3 if body.len() == 12 && body[..2] == [0, 0] => {
                let size_bytes = u64::from_be_bytes(body[2..10].try_into().expect("eight bytes"));
                let flags = u16::from_be_bytes([body[10], body[11]]);
                info = Some(ExportInfo {
                    size_bytes,
                    read_only: flags & 2 != 0,
                    flush: flags & 4 != 0,
                    trim: flags & 32 != 0,
                    zero: flags & 64 != 0,
                    multi_conn: flags & 256 != 0,
                });
            }
            3 => {}
            1 => return info.map(Ok).ok_or(io::ErrorKind::InvalidData.into()),
            0x8000_0007 => return Err(io::Error::other("the node is stopping")),
            _ => {
                let reason = String::from_utf8_lossy(&body).into_owned();
                return Ok(Err(LinkError::Refused { reason }));
            }
        }
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The head of a request.
pub fn encode(cookie: Cookie, ask: Ask) -> [u8; REQUEST_BYTES] {
    let (flags, number, offset, len) = match ask {
        Ask::Read { offset, len } => (0, 0, offset, len),
        Ask::Write { offset, len, fua } => (u16::from(fua), 1, offset, len),
        Ask::Flush => (0, 3, 0, 0),
        Ask::Discard { offset, len } => (0, 4, offset, len),
        Ask::Zero { offset, len, no_hole } => (u16::from(no_hole) << 1, 6, offset, len),
    };
    encode_raw(flags, number, cookie, offset, len)
}

/// The head of the request that ends a connection in order.
pub fn encode_disconnect() -> [u8; REQUEST_BYTES] {
    encode_raw(0, 2, 0, 0, 0)
}

fn encode_raw(flags: u16, number: u16, cookie: Cookie, offset: u64, len: u32) -> [u8; REQUEST_BYTES] {
    let mut head = [0; REQUEST_BYTES];
    head[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    head[4..6].copy_from_slice(&flags.to_be_bytes());
    head[6..8].copy_from_slice(&number.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..].copy_from_slice(&len.to_be_bytes());
    head
}

/// Cookie and errno of a reply; None when it is no reply.
pub fn decode(head: &[u8; REPLY_BYTES]) -> Option<(Cookie, i32)> {
    let cookie = u64::from_be_bytes(head[8..].try_into().expect("eight bytes"));
    (be32(head, 0) == 0x6744_6698).then_some((cookie, be32(head, 4) as i32))
}
