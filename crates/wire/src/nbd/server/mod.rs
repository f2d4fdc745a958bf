//! One server connection as a machine: bytes in, requests out; payloads never pass through it.
//!
//! Owns: the phase of the connection, every check of a request. Never: allocates once requests flow.
//! Invariant: after an error or a disconnect nothing more is ever taken from the peer.
//!
//! # How a runtime drives it
//! ```
//! use segue_wire::nbd::server::{ExportInfo, Refusal, RefusalCode, Session, Step, TlsPolicy};
//! use segue_wire::nbd::{Command, Errno, reply};
//!
//! # fn connection(mut rx: &[u8], send: &mut dyn FnMut(&[u8])) -> Result<(), segue_wire::nbd::server::SessionError> {
//! let mut session = Session::new(TlsPolicy::Off);
//! loop {
//!     let (consumed, step) = session.step(rx)?; // on an error: close the connection
//!     rx = &rx[consumed..]; // keep what is left and pass it again, with more behind it
//!     send(&session.take_output()); // handshake bytes; empty once requests flow
//!     let mut head = [0; reply::ERROR_BYTES_MAX];
//!     match step {
//!         Step::NeedBytes => break, // receive more behind `rx`
//!         Step::Lookup { enter: _ } => match session.export_name() {
//!             // Ask the node; any time later (feed nothing meanwhile):
//!             "disk" => session.export_ready(Ok(ExportInfo::new(1 << 30))),
//!             _ => session.export_ready(Err(Refusal::new(RefusalCode::Unknown, "no volume of this name"))),
//!         },
//!         Step::List => session.list_ready([("disk", "a volume")]),
//!         Step::StartTls => { /* send the output in the clear, do the TLS handshake */ session.tls_started() }
//!         Step::Request(request) => {
//!             // Hand it to the engine; answer later, in any order. Here: at once.
//!             let n = match request.command {
//!                 Command::Flush => session.replies().ok(&request, &mut head),
//!                 _ => session.replies().error(&request, Errno::NOTSUP, &mut head),
//!             };
//!             send(&head[..n]);
//!         }
//!         Step::Write(request) => {
//!             // The next `request.len` bytes of the stream are its payload: copy what `rx` has, receive the rest
//!             // straight into the drive's buffer, and only then call `step` with what follows.
//!             let have = rx.len().min(request.len as usize);
//!             rx = &rx[have..];
//!         }
//!         Step::Reject { request, errno } => {
//!             let n = session.replies().error(&request, errno, &mut head);
//!             send(&head[..n]);
//!         }
//!         Step::Disconnect => break, // answer what is in flight, then close
//!     }
//! }
//! # Ok(()) }
//! ```

mod handshake;
mod meta;
mod options;

use super::proto::*;
use super::reply::{Replies, ReplyForm};
use handshake::Negotiation;
use std::borrow::Cow;

pub use handshake::{HANDSHAKE_BYTES_MAX, HANDSHAKE_OPTIONS_MAX, OPTION_DATA_BYTES_MAX};

/// Largest read that is answered unfragmented when the client insists (flag DF), bytes. Larger ones get EOVERFLOW.
pub const UNFRAGMENTED_MAX_BYTES: u32 = 256 << 10;
/// Largest payload of a refused request that is read and thrown away, bytes. A larger one ends the connection.
pub const DRAIN_MAX_BYTES: u64 = 2 * PAYLOAD_MAX_BYTES as u64;

/// Whether a connection must be encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsPolicy {
    /// There is no TLS here; STARTTLS is answered "unsupported".
    Off,
    /// The client may begin TLS.
    Offered,
    /// Before TLS nothing but STARTTLS and ABORT is answered.
    Required,
}

/// What the node tells about an export that may be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Size, bytes.
    pub size_bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Many connections see one consistent export: a flush on one covers the writes of all.
    pub multi_conn: bool,
    /// Canonical name, when it is not the name that was asked for. Must hold no secret.
    pub name: Option<String>,
    /// A line for people.
    pub description: String,
}

impl ExportInfo {
    /// A writable export of this size, for any number of connections.
    pub fn new(size_bytes: u64) -> ExportInfo {
        ExportInfo { size_bytes, read_only: false, multi_conn: true, name: None, description: String::new() }
    }

    /// The transmission flags of this export.
    fn flags(&self, form: ReplyForm) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if self.multi_conn {
            flags |= flag::CAN_MULTI_CONN;
        }
        if form != ReplyForm::Simple {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

/// Why an export may not be used, as the protocol can say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RefusalCode {
    /// Not allowed (wrong token, lease held by another).
    Policy = rep::ERR_POLICY,
    /// The name cannot be understood.
    Invalid = rep::ERR_INVALID,
    /// TLS is needed for this export.
    TlsRequired = rep::ERR_TLS_REQD,
    /// No such export.
    Unknown = rep::ERR_UNKNOWN,
    /// The server is stopping.
    Shutdown = rep::ERR_SHUTDOWN,
}

/// A refusal with a message for the person at the other end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The protocol's code.
    pub code: RefusalCode,
    /// Cause and fix; at most 4096 bytes are sent.
    pub message: Cow<'static, str>,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: RefusalCode, message: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { code, message: message.into() }
    }
}

/// What the runtime is to do now. See the module's example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing can be done with these bytes: receive more. (Also while an answer of the node is awaited.)
    NeedBytes,
    /// Send the output in the clear, do the TLS handshake, call [`Session::tls_started`], feed decrypted bytes.
    StartTls,
    /// Look up [`Session::export_name`] and call [`Session::export_ready`]. With `enter`, success begins the
    /// transmission phase (so attach); else the client only wants to know.
    Lookup { enter: bool },
    /// Call [`Session::list_ready`] or [`Session::list_refused`].
    List,
    /// A checked request without a payload: answer it through [`Session::replies`].
    Request(Request),
    /// A checked write. The next `len` bytes of the stream are its payload and are not for the session.
    Write(Request),
    /// Answer this request with this error at once. The session itself drops the payload, if there is one.
    Reject { request: Request, errno: Errno },
    /// The client is leaving: answer what is in flight, then close.
    Disconnect,
}

/// Why a connection must be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// The peer does not speak the protocol.
    #[error("an option does not begin with the magic number: the peer does not speak NBD")]
    BadOptionMagic,
    /// The stream is out of step.
    #[error("a request does not begin with the magic number: the stream is out of step")]
    BadRequestMagic,
    /// The client wants something of the handshake that this server does not know.
    #[error("unknown handshake flags {0:#x}: use a client of the newstyle protocol")]
    UnknownClientFlags(u32),
    /// More options, or more bytes of options, than any honest client needs.
    #[error("the handshake is longer than is allowed: connect anew")]
    HandshakeTooLong,
    /// Bytes arrived in the clear after STARTTLS: perhaps an attack.
    #[error("bytes in the clear after STARTTLS: the client must wait for the answer")]
    PlaintextAfterTls,
    /// The old way to choose an export has no way to tell this.
    #[error("an export was chosen without TLS, which is required here: enable TLS in the client")]
    TlsRequired,
    /// The old way to choose an export has no way to tell why it was refused.
    #[error("the export was refused and the client uses an option that cannot be told why: use NBD_OPT_GO")]
    ExportRefused,
    /// A payload so large that it is not worth reading.
    #[error("a request claims a payload of {0} bytes: the largest is 32 MiB")]
    PayloadTooLarge(u64),
    /// The machine was used after it had ended.
    #[error("the connection has ended")]
    Ended,
}

/// One server connection. See the module's documentation.
#[derive(Debug)]
pub struct Session {
    size_bytes: u64,
    /// Payload bytes of a refused request still to be dropped.
    drain_bytes: u64,
    replies: Replies,
    read_only: bool,
    base_allocation: bool,
    encrypted: bool,
    /// Told when the machine is used after its end.
    ended: SessionError,
    phase: Phase,
    output: Vec<u8>,
    negotiation: Option<Box<Negotiation>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Handshake,
    Transmission,
    Ended,
}

impl Session {
    /// A connection that was just accepted. Its greeting waits in [`take_output`](Session::take_output).
    pub fn new(tls: TlsPolicy) -> Session {
        let mut output = Vec::with_capacity(256);
        handshake::greet(&mut output);
        Session {
            size_bytes: 0,
            drain_bytes: 0,
            replies: Replies::default(),
            read_only: false,
            base_allocation: false,
            encrypted: false,
            ended: SessionError::Ended,
            phase: Phase::Handshake,
            output,
            negotiation: Some(Box::new(Negotiation::new(tls))),
        }
    }

    /// Takes bytes of the peer and says how many were used and what to do now. Unused bytes are to be passed again,
    /// with more behind them; the machine never needs more than 32 of them kept.
    ///
    /// # Errors
    /// [`SessionError`]: close the connection.
    #[inline]
    pub fn step(&mut self, input: &[u8]) -> Result<(usize, Step), SessionError> {
        if self.phase != Phase::Transmission {
            return self.step_handshake(input);
        }
        if self.drain_bytes != 0 {
            return self.drain(input);
        }
        let (head, raw) = if self.replies.form() == ReplyForm::Extended {
            let Some(head) = input.first_chunk() else { return Ok((0, Step::NeedBytes)) };
            (REQUEST_EXT_BYTES, decode_request_ext(head))
        } else {
            let Some(head) = input.first_chunk() else { return Ok((0, Step::NeedBytes)) };
            (REQUEST_BYTES, decode_request(head))
        };
        let Some((flags, number, cookie, offset, len)) = raw else {
            return Err(self.fail(SessionError::BadRequestMagic));
        };
        let in_range = offset <= self.size_bytes && len <= self.size_bytes - offset;
        let tidy = (offset | len) & (BLOCK_MIN_BYTES as u64 - 1) == 0 && len.wrapping_sub(1) < PAYLOAD_MAX_BYTES as u64;
        // Plain reads and writes end here. The request is built at its place: a detour over the stack costs more
        // than the checks.
        if in_range && tidy && flags & !cmd_flag::FUA == 0 {
            if number == Command::Read as u16 {
                return Ok((head, Step::Request(Request { cookie, offset, len, command: Command::Read, flags })));
            }
            if number == Command::Write as u16 && !self.read_only {
                return Ok((head, Step::Write(Request { cookie, offset, len, command: Command::Write, flags })));
            }
        }
        self.admit(head, flags, number, cookie, offset, len)
    }

    /// Bytes of the handshake to send. Empty, and free, in the transmission phase.
    #[inline]
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The writer of replies. Its form is settled once the transmission phase begins, and a copy may then be kept.
    #[inline]
    pub fn replies(&self) -> Replies {
        self.replies
    }

    /// True once requests flow.
    pub fn transmitting(&self) -> bool {
        self.phase == Phase::Transmission
    }

    /// True when TLS is on.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// The export's size has changed: requests are checked against the new one from now on.
    pub fn resized(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
    }

    #[cold]
    fn fail(&mut self, error: SessionError) -> SessionError {
        self.ended = error;
        self.phase = Phase::Ended;
        self.negotiation = None;
        error
    }

    /// Drops the payload of a refused request, then goes on with what follows it.
    #[cold]
    fn drain(&mut self, input: &[u8]) -> Result<(usize, Step), SessionError> {
        let used = self.drain_bytes.min(input.len() as u64);
        self.drain_bytes -= used;
        if self.drain_bytes != 0 {
            return Ok((used as usize, Step::NeedBytes));
        }
        let (more, step) = self.step(&input[used as usize..])?;
        Ok((used as usize + more, step))
    }

    /// The whole check, for all that is not a plain read or write. Takes numbers, which travel in registers.
    #[inline(never)]
    fn admit(
        &mut self,
        head: usize,
        flags: u16,
        number: u16,
        cookie: u64,
        offset: u64,
        len: u64,
    ) -> Result<(usize, Step), SessionError> {
        if number == CMD_DISC {
            self.phase = Phase::Ended;
            return Ok((head, Step::Disconnect));
        }
        let mut request = Request { cookie, offset, len, command: Command::from_wire(number), flags };
        let extended = self.replies.form() == ReplyForm::Extended;
        let write = request.command == Command::Write;
        let announced = extended && request.flags & cmd_flag::PAYLOAD_LEN != 0;
        let payload = if write || announced { request.len } else { 0 };
        if extended && write {
            // The flag says nothing new about a write, whether it is there or not.
            request.flags &= !cmd_flag::PAYLOAD_LEN;
        }
        match self.refuse(&request) {
            None if write => Ok((head, Step::Write(request))),
            None => Ok((head, Step::Request(request))),
            Some(_) if payload > DRAIN_MAX_BYTES => Err(self.fail(SessionError::PayloadTooLarge(payload))),
            Some(errno) => {
                self.drain_bytes = payload;
                Ok((head, Step::Reject { request, errno }))
            }
        }
    }

    /// Why this request cannot be served, if it cannot.
    fn refuse(&self, request: &Request) -> Option<Errno> {
        let command = request.command;
        let simple = self.replies.form() == ReplyForm::Simple;
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if command == Command::Unknown || request.flags & !command.flags() != 0 || (simple && request.unfragmented()) {
            return Some(Errno::INVAL);
        }
        if command == Command::BlockStatus && !self.base_allocation {
            return Some(Errno::INVAL);
        }
        if changes && self.read_only {
            return Some(Errno::PERM);
        }
        if command == Command::Flush {
            return (request.offset != 0 || request.len != 0).then_some(Errno::INVAL);
        }
        if request.len == 0 || (request.offset | request.len) & (BLOCK_MIN_BYTES as u64 - 1) != 0 {
            return Some(Errno::INVAL);
        }
        if matches!(command, Command::Read | Command::Write) && request.len > PAYLOAD_MAX_BYTES as u64 {
            return Some(Errno::INVAL);
        }
        if request.offset > self.size_bytes || request.len > self.size_bytes - request.offset {
            let grows = matches!(command, Command::Write | Command::WriteZeroes);
            return Some(if grows { Errno::NOSPC } else { Errno::INVAL });
        }
        if request.unfragmented() && request.len > UNFRAGMENTED_MAX_BYTES as u64 {
            return Some(Errno::OVERFLOW);
        }
        None
    }
}
