//! One client connection as a machine: for attach helpers, benchmarks and tests.
//!
//! Owns: the handshake, the table of requests in flight, the checks of replies. Never: allocates after the handshake.
//! Invariant: each request is done exactly once, and a read never with fewer bytes than were asked for.
//!
//! # How it is driven
//! ```
//! use segue_wire::nbd::client::{Client, ClientError, ClientOptions, Step};
//! use segue_wire::nbd::{Command, proto};
//!
//! # fn drive(mut rx: &[u8], send: &mut dyn FnMut(&[u8])) -> Result<(), ClientError> {
//! let mut client = Client::new(ClientOptions::new("disk"));
//! loop {
//!     let (consumed, step) = client.step(rx)?;
//!     rx = &rx[consumed..]; // keep what is left and pass it again, with more behind it
//!     send(&client.take_output());
//!     match step {
//!         Step::NeedBytes => break, // receive more behind `rx`
//!         Step::StartTls => client.tls_started(), // after the TLS handshake
//!         Step::Ready => {
//!             let mut head = [0; proto::REQUEST_EXT_BYTES];
//!             let (_cookie, n) = client.request(Command::Read, 0, 4096, 0, &mut head).expect("a free slot");
//!             send(&head[..n]);
//!         }
//!         Step::Data { len, .. } => {
//!             // The next `len` bytes of the stream are data of this request.
//!             let have = rx.len().min(len as usize);
//!             rx = &rx[have..];
//!         }
//!         Step::Hole { .. } | Step::Extent { .. } => {}
//!         Step::Done { cookie: _, errno } => assert_eq!(errno.0, 0),
//!     }
//! }
//! # Ok(()) }
//! ```

mod handshake;
mod replies;

use super::proto::*;
use super::reply::ReplyForm;
use handshake::Negotiation;

/// How to connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientOptions {
    /// Name of the export, at most 4096 bytes.
    pub export: String,
    /// Demand TLS.
    pub tls: bool,
    /// Best form of replies to ask for; a server that has less is used with less.
    pub form: ReplyForm,
    /// Ask for `base:allocation`, so that block status works where the server has it.
    pub base_allocation: bool,
    /// Most requests in flight, 1 to 65536.
    pub in_flight_max: u32,
}

impl ClientOptions {
    /// No TLS, structured replies with allocation status, 128 requests in flight.
    pub fn new(export: &str) -> ClientOptions {
        ClientOptions {
            export: export.to_owned(),
            tls: false,
            form: ReplyForm::Structured,
            base_allocation: true,
            in_flight_max: 128,
        }
    }
}

/// What the server told about the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    /// Size, bytes.
    pub size_bytes: u64,
    /// Transmission flags, see [`flag`].
    pub flags: u16,
    /// Smallest unit, bytes.
    pub block_min_bytes: u32,
    /// Preferred unit, bytes.
    pub block_preferred_bytes: u32,
    /// Largest payload, bytes.
    pub payload_max_bytes: u32,
}

/// What the caller is to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Receive more.
    NeedBytes,
    /// Do the TLS handshake, call [`Client::tls_started`], feed decrypted bytes.
    StartTls,
    /// Requests may be sent; see [`Client::export`].
    Ready,
    /// The next `len` bytes of the stream are data of this read, for this offset of the export.
    Data { cookie: u64, offset: u64, len: u32 },
    /// These bytes of this read are zero.
    Hole { cookie: u64, offset: u64, len: u32 },
    /// The next extent of this block status, with `base:allocation` flags.
    Extent { cookie: u64, len: u64, flags: u32 },
    /// The request is done; its cookie means nothing any more.
    Done { cookie: u64, errno: Errno },
}

/// Why a connection must be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    /// Not an NBD server, or one too old.
    #[error("the server does not speak the fixed newstyle NBD protocol")]
    NotNbd,
    /// The server refused; [`Client::refusal`] has its words.
    #[error("the server refused option {option} with code {code:#x}: see its message")]
    Refused {
        /// The option.
        option: u32,
        /// One of [`rep`].
        code: u32,
    },
    /// A reply to an option makes no sense.
    #[error("a reply to a handshake option is malformed or out of turn: the server is at fault")]
    BadOptionReply,
    /// The stream is out of step.
    #[error("a reply does not begin with the magic number: the stream is out of step")]
    BadReplyMagic,
    /// A reply to nothing that was asked.
    #[error("a reply has a cookie that is not in flight: the server is at fault")]
    UnknownCookie,
    /// A reply does not fit its request.
    #[error("a reply does not fit its request: the server is at fault")]
    BadReply,
    /// A read was called done with bytes missing.
    #[error("a read was called done with bytes missing: the server is at fault")]
    ShortRead,
    /// The machine was used after it had ended.
    #[error("the connection has ended")]
    Ended,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    busy: bool,
    command: Command,
    errno: Errno,
    offset: u64,
    len: u64,
    /// Bytes of a read, or extents of a block status, that have come.
    seen: u64,
}

/// What follows in the stream before the next reply header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pending {
    Nothing,
    /// Say done for this cookie.
    Finish(u64),
    /// Extents of this cookie: so many bytes; then perhaps done.
    Extents {
        cookie: u64,
        left: u32,
        last: bool,
    },
    /// Text to drop; then perhaps done.
    Skip {
        cookie: u64,
        left: u32,
        last: bool,
    },
}

/// One client connection. See the module's documentation.
#[derive(Debug)]
pub struct Client {
    form: ReplyForm,
    pending: Pending,
    context: Option<u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    export: Option<Export>,
    ended: Option<ClientError>,
    refusal: String,
    output: Vec<u8>,
    negotiation: Option<Box<Negotiation>>,
}

impl Client {
    /// A connection that was just made. The server speaks first.
    ///
    /// # Panics
    /// When an option is outside its range.
    pub fn new(options: ClientOptions) -> Client {
        assert!((1..=65536).contains(&options.in_flight_max), "in_flight_max is 1 to 65536");
        assert!(options.export.len() <= STRING_MAX_BYTES, "an export name has at most 4096 bytes");
        let idle =
            Slot { generation: 0, busy: false, command: Command::Flush, errno: Errno::OK, offset: 0, len: 0, seen: 0 };
        Client {
            form: ReplyForm::Simple,
            pending: Pending::Nothing,
            context: None,
            slots: vec![idle; options.in_flight_max as usize],
            free: (0..options.in_flight_max).rev().collect(),
            export: None,
            ended: None,
            refusal: String::new(),
            output: Vec::new(),
            negotiation: Some(Box::new(Negotiation::new(options))),
        }
    }

    /// Takes bytes of the server and says how many were used and what to do now. Unused bytes are to be passed
    /// again, with more behind them; the machine never needs more than 64 of them kept. Call it until it says
    /// [`Step::NeedBytes`], even when no byte is left: a request may still have to be called done.
    ///
    /// # Errors
    /// [`ClientError`]: close the connection; requests in flight have an unknown outcome.
    #[inline]
    pub fn step(&mut self, input: &[u8]) -> Result<(usize, Step), ClientError> {
        let result = if self.negotiation.is_some() { self.step_handshake(input) } else { self.step_reply(input) };
        if let Err(error) = result {
            self.ended.get_or_insert(error);
            self.negotiation = None;
        }
        result
    }

    /// Bytes of the handshake to send.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The export, once [`Step::Ready`] has come.
    pub fn export(&self) -> Option<&Export> {
        self.export.as_ref()
    }

    /// The form of replies that was agreed.
    pub fn form(&self) -> ReplyForm {
        self.form
    }

    /// True when block status works.
    pub fn has_block_status(&self) -> bool {
        self.context.is_some()
    }

    /// The server's words when it refused; at most 4096 bytes.
    pub fn refusal(&self) -> &str {
        &self.refusal
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A small number, below `in_flight_max`, that no other request in flight has: an index for the caller's own table.
    pub fn slot_of(cookie: u64) -> usize {
        cookie as u32 as usize
    }

    /// Writes the header of a request and enters it in the table. `None` when `in_flight_max` are in flight.
    /// The payload of a write is to be sent right behind the header.
    ///
    /// # Panics
    /// Before [`Step::Ready`]; when `out` is shorter than [`REQUEST_EXT_BYTES`]; when `len` passes 32 bits and
    /// extended headers were not agreed; for a block status when it was not agreed; for [`Command::Unknown`].
    pub fn request(
        &mut self,
        command: Command,
        offset: u64,
        len: u64,
        flags: u16,
        out: &mut [u8],
    ) -> Option<(u64, usize)> {
        assert!(self.export.is_some(), "requests begin after Ready");
        assert!(command != Command::Unknown, "an unknown command cannot be asked for");
        assert!(command != Command::BlockStatus || self.context.is_some(), "block status was not agreed");
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let generation = slot.generation;
        *slot = Slot { generation, busy: true, command, errno: Errno::OK, offset, len, seen: 0 };
        let cookie = (generation as u64) << 32 | index as u64;
        let extended = self.form == ReplyForm::Extended;
        let flags = if extended && command == Command::Write { flags | cmd_flag::PAYLOAD_LEN } else { flags };
        let request = Request { cookie, offset, len, command, flags };
        Some((cookie, encode_request(out, extended, command as u16, &request)))
    }

    /// Writes the header that ends the connection. It has no reply; send it when nothing is in flight.
    ///
    /// # Panics
    /// Before [`Step::Ready`]; when `out` is shorter than [`REQUEST_EXT_BYTES`].
    pub fn disconnect(&mut self, out: &mut [u8]) -> usize {
        assert!(self.export.is_some(), "requests begin after Ready");
        let request = Request { cookie: 0, offset: 0, len: 0, command: Command::Unknown, flags: 0 };
        encode_request(out, self.form == ReplyForm::Extended, CMD_DISC, &request)
    }
}
