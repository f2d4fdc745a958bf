//! Numbers and fixed headers of the NBD protocol.
//!
//! Owns: the constants, the request header and error numbers. Never: keeps state.
//! Invariant: every number is as the protocol's document names it; all integers on the wire are big-endian.

use segue_types::IoStatus;

/// First 8 bytes a server sends: "NBDMAGIC".
pub const MAGIC_SERVER: u64 = 0x4e42_444d_4147_4943;
/// Second 8 bytes a server sends, and the first of every option: "IHAVEOPT".
pub const MAGIC_OPTION: u64 = 0x4948_4156_454f_5054;
/// First 8 bytes of every reply to an option.
pub const MAGIC_OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// First 4 bytes of a request.
pub const MAGIC_REQUEST: u32 = 0x2560_9513;
/// First 4 bytes of a request with extended headers.
pub const MAGIC_REQUEST_EXT: u32 = 0x21e4_1c71;
/// First 4 bytes of a simple reply.
pub const MAGIC_REPLY_SIMPLE: u32 = 0x6744_6698;
/// First 4 bytes of a chunk of a structured reply.
pub const MAGIC_REPLY_CHUNK: u32 = 0x668e_33ef;
/// First 4 bytes of a chunk of a reply with extended headers.
pub const MAGIC_REPLY_EXT: u32 = 0x6e8a_278c;

/// Bytes of a request header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an extended request header.
pub const REQUEST_EXT_BYTES: usize = 32;
/// Bytes of a simple reply header.
pub const REPLY_SIMPLE_BYTES: usize = 16;
/// Bytes of the header of a chunk.
pub const REPLY_CHUNK_BYTES: usize = 20;
/// Bytes of the header of an extended chunk.
pub const REPLY_EXT_BYTES: usize = 32;
/// Bytes before the data of an option.
pub const OPTION_BYTES: usize = 16;
/// Bytes before the data of an option reply.
pub const OPTION_REPLY_BYTES: usize = 20;

/// Smallest unit of offset and length, bytes.
pub const BLOCK_MIN_BYTES: u32 = 512;
/// Unit that clients should prefer, bytes.
pub const BLOCK_PREFERRED_BYTES: u32 = 4096;
/// Largest payload of a read or write, bytes.
pub const PAYLOAD_MAX_BYTES: u32 = 32 << 20;
/// Longest string the protocol allows, bytes.
pub const STRING_MAX_BYTES: usize = 4096;

/// Handshake flags: of the server, and (same bits) of the client.
pub mod handshake_flag {
    /// Fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zero bytes after an old-fashioned export name.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the handshake.
pub mod opt {
    /// Choose an export, the old way: no error can be told.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Tell about an export.
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// Unknown option.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// Forbidden by policy.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// Malformed option.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// Not possible on this platform.
    pub const ERR_PLATFORM: u32 = ERROR_BIT | 4;
    /// TLS is needed first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is going away.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The client must ask for block sizes.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    /// The option's data is too big.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
    /// Extended headers are needed, or are on already.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT | 10;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description.
    pub const DESCRIPTION: u16 = 2;
    /// Block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Flush works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Force-unit-access works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Trim works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Write-zeroes works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Do-not-fragment works.
    pub const SEND_DF: u16 = 1 << 7;
    /// Many connections see one consistent export.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Cache works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// Fast-zero works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a command.
pub mod cmd_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Keep the space of zeroed blocks.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer a read with one data chunk.
    pub const DF: u16 = 1 << 2;
    /// Answer a block status with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than zero slowly.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of a payload (extended headers only).
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of chunks of structured and extended replies.
pub mod chunk {
    /// No content.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents, 32 bits each.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents, 64 bits each.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Set in every error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
    /// Flag (not a type): the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1;
}

/// Name of the one metadata context there is.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The id that the server gives to [`BASE_ALLOCATION`].
pub const BASE_ALLOCATION_ID: u32 = 1;
/// `base:allocation`: no space is allocated.
pub const STATE_HOLE: u32 = 1;
/// `base:allocation`: reads as zero.
pub const STATE_ZERO: u32 = 2;

/// An error number of the protocol. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Errno(pub u32);

impl Errno {
    /// No error.
    pub const OK: Errno = Errno(0);
    /// Not permitted (read-only).
    pub const PERM: Errno = Errno(1);
    /// I/O error.
    pub const IO: Errno = Errno(5);
    /// Out of memory.
    pub const NOMEM: Errno = Errno(12);
    /// Malformed, misaligned, out of range.
    pub const INVAL: Errno = Errno(22);
    /// No space, or a write past the end.
    pub const NOSPC: Errno = Errno(28);
    /// Too large to answer unfragmented.
    pub const OVERFLOW: Errno = Errno(75);
    /// Understood and not offered.
    pub const NOTSUP: Errno = Errno(95);
    /// The server, or this attachment, is going away.
    pub const SHUTDOWN: Errno = Errno(108);

    /// What a person needs to know, for the text of a structured error. At most [`Errno::TEXT_BYTES_MAX`] bytes.
    pub const fn text(self) -> &'static str {
        match self.0 {
            0 => "",
            1 => "the export is read-only: attach for writing",
            5 => "the drive failed or a checksum does not match: see the pool's events",
            12 => "the server is out of buffers: retry",
            22 => "misaligned, out of range, or malformed request",
            28 => "the pool is full, or the write passes the end of the volume",
            75 => "too large for one unfragmented reply: ask for less",
            95 => "not offered for this range",
            108 => "this attachment was fenced or the volume is going away: stop using it",
            _ => "unknown error",
        }
    }

    /// Longest [`Errno::text`].
    pub const TEXT_BYTES_MAX: usize = 80;
}

impl From<IoStatus> for Errno {
    fn from(status: IoStatus) -> Errno {
        Errno(status.errno())
    }
}

/// Commands of the transmission phase that a client may see answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u16)]
pub enum Command {
    /// Read.
    Read = 0,
    /// Write; the payload follows the header.
    Write = 1,
    /// Make acknowledged writes durable.
    Flush = 3,
    /// Give space back.
    Trim = 4,
    /// Prefetch.
    Cache = 5,
    /// Write zeroes.
    WriteZeroes = 6,
    /// Allocation status.
    BlockStatus = 7,
    /// A number this server does not know. Only ever seen in a refusal.
    Unknown = 0xffff,
}

/// Number of the command that ends a connection; it has no reply.
pub const CMD_DISC: u16 = 2;

impl Command {
    /// The command of a number. `CMD_DISC` is not among them.
    pub const fn from_wire(number: u16) -> Command {
        match number {
            0 => Command::Read,
            1 => Command::Write,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            _ => Command::Unknown,
        }
    }

    /// Flags that make sense with this command. FUA is ignored where it means nothing, as the protocol wants.
    pub const fn flags(self) -> u16 {
        match self {
            Command::Read => cmd_flag::FUA | cmd_flag::DF,
            Command::WriteZeroes => cmd_flag::FUA | cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
            Command::BlockStatus => cmd_flag::FUA | cmd_flag::REQ_ONE,
            _ => cmd_flag::FUA,
        }
    }
}

/// A request as it is on the wire. Keep it (32 bytes) until its last reply: every reply is made from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The client's mark; comes back in every reply.
    pub cookie: u64,
    /// Byte offset in the export.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// What to do.
    pub command: Command,
    /// Flags of [`cmd_flag`].
    pub flags: u16,
}

impl Request {
    /// Durable before the reply.
    pub const fn fua(&self) -> bool {
        self.flags & cmd_flag::FUA != 0
    }

    /// Zeroed blocks keep their space.
    pub const fn no_hole(&self) -> bool {
        self.flags & cmd_flag::NO_HOLE != 0
    }

    /// The read must be answered with one data chunk.
    pub const fn unfragmented(&self) -> bool {
        self.flags & cmd_flag::DF != 0
    }

    /// The block status must have one extent.
    pub const fn one_extent(&self) -> bool {
        self.flags & cmd_flag::REQ_ONE != 0
    }

    /// Zero fast, or fail with NOTSUP without having changed anything.
    pub const fn fast_zero(&self) -> bool {
        self.flags & cmd_flag::FAST_ZERO != 0
    }
}

/// The fields of a request header, undigested: `(flags, command number, cookie, offset, len)`.
pub(crate) type RawRequest = (u16, u16, u64, u64, u64);

/// Reads a request header; `None` when its magic is wrong.
#[inline]
pub(crate) fn decode_request(head: &[u8; REQUEST_BYTES]) -> Option<RawRequest> {
    if be32(head, 0) != MAGIC_REQUEST {
        return None;
    }
    Some((be16(head, 4), be16(head, 6), be64(head, 8), be64(head, 16), be32(head, 24) as u64))
}

/// Reads an extended request header; `None` when its magic is wrong.
#[inline]
pub(crate) fn decode_request_ext(head: &[u8; REQUEST_EXT_BYTES]) -> Option<RawRequest> {
    if be32(head, 0) != MAGIC_REQUEST_EXT {
        return None;
    }
    Some((be16(head, 4), be16(head, 6), be64(head, 8), be64(head, 16), be64(head, 24)))
}

/// Writes a request header and returns its length. `extended` chooses the form.
///
/// # Panics
/// When `out` is shorter than [`REQUEST_EXT_BYTES`], or the length does not fit the short form.
#[inline]
pub(crate) fn encode_request(out: &mut [u8], extended: bool, number: u16, request: &Request) -> usize {
    let out: &mut [u8; REQUEST_EXT_BYTES] = out.first_chunk_mut().expect("room for a request header");
    put16(out, 4, request.flags);
    put16(out, 6, number);
    put64(out, 8, request.cookie);
    put64(out, 16, request.offset);
    if extended {
        put32(out, 0, MAGIC_REQUEST_EXT);
        put64(out, 24, request.len);
        REQUEST_EXT_BYTES
    } else {
        put32(out, 0, MAGIC_REQUEST);
        put32(out, 24, u32::try_from(request.len).expect("length fits the short header"));
        REQUEST_BYTES
    }
}

/// Big-endian reads and writes at a fixed place. They panic when the place is outside: callers check lengths first.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

#[inline]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[inline]
pub(crate) fn put16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn put32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn put64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
