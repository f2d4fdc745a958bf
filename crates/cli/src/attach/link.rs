//! Connections to the node: open and agree, encode requests, read heads of replies.
//!
//! Owns: connecting (blocking, with a limit) and the few bytes around each payload. Never: holds a request or a payload.
//! Invariant: a refusal of the right to write is told apart from a node that is merely away.

use super::ledger::Ask;
use super::options::NodeAddr;
use segue_wire::nbd::Command;
use segue_wire::nbd::client::{Client, ClientError, ClientOptions, Export, Step};
use segue_wire::nbd::proto::{cmd_flag, flag, rep};
use segue_wire::nbd::reply::ReplyForm;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Requests in flight on one connection at most.
const IN_FLIGHT_MAX: u32 = 1024;

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

impl ExportInfo {
    fn of(export: &Export) -> ExportInfo {
        let has = |bit: u16| export.flags & bit != 0;
        ExportInfo {
            size_bytes: export.size_bytes,
            read_only: has(flag::READ_ONLY),
            flush: has(flag::SEND_FLUSH),
            trim: has(flag::SEND_TRIM),
            zero: has(flag::SEND_WRITE_ZEROES),
            multi_conn: has(flag::CAN_MULTI_CONN),
        }
    }
}

/// An open connection, ready for requests.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub socket: OwnedFd,
    /// Its protocol machine.
    pub client: Client,
    /// What the server agreed to.
    pub info: ExportInfo,
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
    pub fn connect(&self) -> Result<Connection, LinkError> {
        let away = |source| LinkError::Away { node: self.node.clone(), source };
        let mut stream = self.open().map_err(away)?;
        let options = ClientOptions {
            form: ReplyForm::Simple,
            base_allocation: false,
            in_flight_max: IN_FLIGHT_MAX,
            ..ClientOptions::new(&self.export)
        };
        let mut client = Client::new(options);
        match agree(&mut stream, &mut client) {
            Ok(()) => {}
            Err(Disagreement::System(source)) => return Err(away(source)),
            Err(Disagreement::Protocol(ClientError::Refused { code, .. })) if code != rep::ERR_SHUTDOWN => {
                let reason = if client.refusal().is_empty() { "it gave no reason" } else { client.refusal() };
                return Err(LinkError::Refused { reason: reason.to_owned() });
            }
            Err(Disagreement::Protocol(error)) => return Err(away(io::Error::other(error))),
        }
        let info = ExportInfo::of(client.export().expect("agreed on an export"));
        Ok(Connection { socket: stream.into_fd(), client, info })
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

enum Disagreement {
    System(io::Error),
    Protocol(ClientError),
}

/// Drives the handshake to its end.
fn agree(stream: &mut Stream, client: &mut Client) -> Result<(), Disagreement> {
    let mut input: Vec<u8> = Vec::new();
    loop {
        let (used, step) = client.step(&input).map_err(Disagreement::Protocol)?;
        input.drain(..used);
        let output = client.take_output();
        stream.write_all(&output).map_err(Disagreement::System)?;
        match step {
            Step::Ready => return Ok(()),
            Step::NeedBytes => {
                let mut buffer = [0; 4096];
                let bytes = stream.read(&mut buffer).map_err(Disagreement::System)?;
                if bytes == 0 {
                    return Err(Disagreement::System(io::ErrorKind::UnexpectedEof.into()));
                }
                input.extend_from_slice(&buffer[..bytes]);
            }
            _ => return Err(Disagreement::Protocol(ClientError::BadOptionReply)),
        }
    }
}

/// Writes the head of a request into `out`. None when too many are in flight on this connection.
pub fn encode(client: &mut Client, ask: Ask, out: &mut [u8]) -> Option<(u64, usize)> {
    let (command, offset, len, flags) = match ask {
        Ask::Read { offset, len } => (Command::Read, offset, len, 0),
        Ask::Write { offset, len, fua } => (Command::Write, offset, len, if fua { cmd_flag::FUA } else { 0 }),
        Ask::Flush => (Command::Flush, 0, 0, 0),
        Ask::Discard { offset, len } => (Command::Trim, offset, len, 0),
        Ask::Zero { offset, len, no_hole } => {
            (Command::WriteZeroes, offset, len, if no_hole { cmd_flag::NO_HOLE } else { 0 })
        }
    };
    client.request(command, offset, u64::from(len), flags, out)
}
