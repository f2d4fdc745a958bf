//! Writing replies: simple, structured or extended, as the session agreed.
//!
//! Owns: the bytes before each payload. Never: copies a payload, allocates (but for extents), or keeps state.
//! Invariant: the replies made for one request, put on the wire in the order they were made, are well formed.

use super::proto::*;

/// Room that any header before data, and any plain acknowledgement, fits in.
pub const HEADER_BYTES_MAX: usize = REPLY_EXT_BYTES + 12;
/// Room that any error reply fits in.
pub const ERROR_BYTES_MAX: usize = REPLY_EXT_BYTES + 6 + Errno::TEXT_BYTES_MAX;

/// Form of the replies of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, PartialOrd, Ord)]
pub enum ReplyForm {
    /// One header, one payload.
    #[default]
    Simple,
    /// Chunks with 32-bit lengths.
    Structured,
    /// Chunks with 64-bit lengths.
    Extended,
}

/// Writes the replies of one session. A copy costs one byte; take it from the session once transmission begins.
///
/// One request is answered by exactly one of: [`ok`](Replies::ok) (anything but a read or block status);
/// [`error`](Replies::error); [`block_status`](Replies::block_status); or, for a read,
/// - structured or extended: one or more [`data`](Replies::data) / [`hole`](Replies::hole) chunks in any order of
///   pieces, the last one put on the wire with `last`; or an [`error`](Replies::error) in place of what is missing;
/// - simple, or a request that is [`unfragmented`](Request::unfragmented): one [`data`](Replies::data) for the whole
///   range, followed by all bytes in order. With simple replies an error after that header can only be told by
///   closing the connection, so gather the pieces first or accept that.
///
/// See [`fragments`](Replies::fragments).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replies {
    form: ReplyForm,
}

impl Replies {
    /// Replies of this form.
    pub const fn new(form: ReplyForm) -> Replies {
        Replies { form }
    }

    /// The form.
    pub const fn form(self) -> ReplyForm {
        self.form
    }

    /// True when a read may be answered piece by piece, in any order.
    #[inline]
    pub const fn fragments(self, request: &Request) -> bool {
        !matches!(self.form, ReplyForm::Simple) && !request.unfragmented()
    }

    /// The header of `len` bytes of data at `offset`: put it on the wire, then the data. Returns its length
    /// (16, 28 or 40). `last` is ignored by simple replies, whose one header is always last.
    ///
    /// # Panics
    /// When `out` is shorter than [`HEADER_BYTES_MAX`].
    #[inline]
    pub fn data(self, request: &Request, offset: u64, len: u32, last: bool, out: &mut [u8]) -> usize {
        let out: &mut [u8; HEADER_BYTES_MAX] = out.first_chunk_mut().expect("room for a reply header");
        match self.form {
            ReplyForm::Simple => simple(request, Errno::OK, out),
            _ => {
                let at = self.chunk(request, chunk::OFFSET_DATA, len as u64 + 8, last, out);
                put64(out, at, offset);
                at + 8
            }
        }
    }

    /// A chunk that stands for `len` zeroes at `offset` (structured and extended only). Returns its length.
    ///
    /// # Panics
    /// When replies are simple, or `out` is shorter than [`HEADER_BYTES_MAX`].
    pub fn hole(self, request: &Request, offset: u64, len: u32, last: bool, out: &mut [u8]) -> usize {
        assert!(self.form != ReplyForm::Simple, "simple replies have no holes");
        let at = self.chunk(request, chunk::OFFSET_HOLE, 12, last, out);
        put64(out, at, offset);
        put32(out, at + 8, len);
        at + 12
    }

    /// The acknowledgement of a request without a payload. Returns its length (16, 20 or 32).
    ///
    /// # Panics
    /// When `out` is shorter than [`HEADER_BYTES_MAX`].
    #[inline]
    pub fn ok(self, request: &Request, out: &mut [u8]) -> usize {
        let out: &mut [u8; HEADER_BYTES_MAX] = out.first_chunk_mut().expect("room for a reply header");
        match self.form {
            ReplyForm::Simple => simple(request, Errno::OK, out),
            _ => self.chunk(request, chunk::NONE, 0, true, out),
        }
    }

    /// The refusal of a request, with the text of the error where the form has room for it. It is the last reply
    /// of the request. Returns its length, at most [`ERROR_BYTES_MAX`].
    ///
    /// # Panics
    /// When `out` is shorter than [`ERROR_BYTES_MAX`], or the error is [`Errno::OK`].
    #[cold]
    pub fn error(self, request: &Request, errno: Errno, out: &mut [u8]) -> usize {
        assert!(errno != Errno::OK, "an error reply needs an error");
        if self.form == ReplyForm::Simple {
            return simple(request, errno, out);
        }
        let text = errno.text().as_bytes();
        let at = self.chunk(request, chunk::ERROR, 6 + text.len() as u64, true, out);
        put32(out, at, errno.0);
        put16(out, at + 4, text.len() as u16);
        out[at + 6..at + 6 + text.len()].copy_from_slice(text);
        at + 6 + text.len()
    }

    /// Appends the answer to a block status. `extents` are `(len, hole)` from the request's offset on; they are
    /// merged where equal, clipped to the request, and cut to one if it asked for one.
    ///
    /// # Panics
    /// When replies are simple (the session refuses such requests), or there is no extent with a length.
    pub fn block_status(self, request: &Request, extents: impl Iterator<Item = (u64, bool)>, out: &mut Vec<u8>) {
        assert!(self.form != ReplyForm::Simple, "block status needs structured replies");
        let start = out.len();
        let extended = self.form == ReplyForm::Extended;
        let head = if extended { REPLY_EXT_BYTES + 8 } else { REPLY_CHUNK_BYTES + 4 };
        out.resize(start + head, 0);
        let mut left = request.len;
        let mut run: Option<(u64, bool)> = None;
        let mut count = 0u32;
        let mut put = |out: &mut Vec<u8>, len: u64, hole: bool| {
            let state = if hole { STATE_HOLE | STATE_ZERO } else { 0 };
            count += 1;
            if extended {
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(&(state as u64).to_be_bytes());
            } else {
                out.extend_from_slice(&(len as u32).to_be_bytes());
                out.extend_from_slice(&state.to_be_bytes());
            }
        };
        for (len, hole) in extents {
            let len = len.min(left);
            if len == 0 {
                continue;
            }
            left -= len;
            match &mut run {
                Some((sum, of)) if *of == hole => *sum += len,
                Some((sum, of)) => {
                    if request.one_extent() {
                        break;
                    }
                    put(out, *sum, *of);
                    run = Some((len, hole));
                }
                None => run = Some((len, hole)),
            }
        }
        let (sum, of) = run.expect("a block status has an extent");
        put(out, sum, of);
        let body = (out.len() - start) as u64 - if extended { REPLY_EXT_BYTES } else { REPLY_CHUNK_BYTES } as u64;
        let kind = if extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
        let at = self.chunk(request, kind, body, true, &mut out[start..]);
        put32(out, start + at, BASE_ALLOCATION_ID);
        if extended {
            put32(out, start + at + 4, count);
        }
    }

    /// Writes the header of a chunk with `body` bytes after it.
    #[inline]
    fn chunk(self, request: &Request, kind: u16, body: u64, last: bool, out: &mut [u8]) -> usize {
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        put16(out, 4, flags);
        put16(out, 6, kind);
        put64(out, 8, request.cookie);
        if self.form == ReplyForm::Extended {
            put32(out, 0, MAGIC_REPLY_EXT);
            put64(out, 16, request.offset);
            put64(out, 24, body);
            REPLY_EXT_BYTES
        } else {
            put32(out, 0, MAGIC_REPLY_CHUNK);
            put32(out, 16, body as u32);
            REPLY_CHUNK_BYTES
        }
    }
}

#[inline]
fn simple(request: &Request, errno: Errno, out: &mut [u8]) -> usize {
    put32(out, 0, MAGIC_REPLY_SIMPLE);
    put32(out, 4, errno.0);
    put64(out, 8, request.cookie);
    REPLY_SIMPLE_BYTES
}
