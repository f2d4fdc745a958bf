//! Reading replies on the client: simple replies, structured and extended chunks.
//!
//! Owns: the checks of a reply against its request. Never: allocates, or keeps text of the server.
//! Invariant: a reply that does not fit its request ends the connection; none is guessed at.

use super::{Client, ClientError, Pending, Step};
use crate::nbd::proto::*;
use crate::nbd::reply::ReplyForm;

/// Longest content of a chunk other than data, bytes: it bounds what one reply makes us read.
const CONTENT_BYTES_MAX: u64 = 16 << 20;

/// The header of a chunk.
struct Chunk {
    last: bool,
    kind: u16,
    cookie: u64,
    len: u64,
    head: usize,
}

impl Client {
    /// [`Client::step`] in transmission.
    pub(super) fn step_reply(&mut self, input: &[u8]) -> Result<(usize, Step), ClientError> {
        if let Some(error) = self.ended {
            return Err(error);
        }
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let (n, step) = match self.pending {
                Pending::Finish(cookie) => (0, Some(self.finish(cookie)?)),
                Pending::Extents { cookie, left, last } => self.extent(rest, cookie, left, last),
                Pending::Skip { cookie, left, last } => self.skip(rest, cookie, left, last),
                Pending::Nothing => self.header(rest)?,
            };
            used += n;
            if let Some(step) = step {
                return Ok((used, step));
            }
            // Progress is a byte used, or something now pending that needs none.
            if n == 0 && !matches!(self.pending, Pending::Finish(_)) {
                return Ok((used, Step::NeedBytes));
            }
        }
    }

    fn live(&mut self, cookie: u64) -> Result<usize, ClientError> {
        let index = Client::slot_of(cookie);
        match self.slots.get(index) {
            Some(slot) if slot.busy && slot.generation as u64 == cookie >> 32 => Ok(index),
            _ => Err(ClientError::UnknownCookie),
        }
    }

    fn finish(&mut self, cookie: u64) -> Result<Step, ClientError> {
        let index = self.live(cookie)?;
        let slot = &mut self.slots[index];
        self.pending = Pending::Nothing;
        if slot.errno == Errno::OK {
            let (command, seen, len) = (slot.command, slot.seen, slot.len);
            if command == Command::Read && seen != len {
                return Err(ClientError::ShortRead);
            }
            if command == Command::BlockStatus && seen == 0 {
                return Err(ClientError::BadReply);
            }
        }
        slot.busy = false;
        let errno = slot.errno;
        self.free.push(index as u32);
        Ok(Step::Done { cookie, errno })
    }

    fn after(cookie: u64, last: bool) -> Pending {
        if last { Pending::Finish(cookie) } else { Pending::Nothing }
    }

    fn header(&mut self, input: &[u8]) -> Result<(usize, Option<Step>), ClientError> {
        let Some(magic) = input.first_chunk().map(|magic| u32::from_be_bytes(*magic)) else { return Ok((0, None)) };
        let (expected, head) = match (self.form, magic) {
            (ReplyForm::Extended, _) => (MAGIC_REPLY_EXT, REPLY_EXT_BYTES),
            // A simple reply is allowed to all but reads even where structured ones were agreed.
            (ReplyForm::Simple, _) | (_, MAGIC_REPLY_SIMPLE) => (MAGIC_REPLY_SIMPLE, REPLY_SIMPLE_BYTES),
            (ReplyForm::Structured, _) => (MAGIC_REPLY_CHUNK, REPLY_CHUNK_BYTES),
        };
        if magic != expected {
            return Err(ClientError::BadReplyMagic);
        }
        if input.len() < head {
            return Ok((0, None));
        }
        if expected == MAGIC_REPLY_SIMPLE {
            return self.simple(input).map(|step| (head, step));
        }
        let len = if head == REPLY_EXT_BYTES { be64(input, 24) } else { be32(input, 16) as u64 };
        let last = be16(input, 4) & chunk::FLAG_DONE != 0;
        self.chunk(input, Chunk { last, kind: be16(input, 6), cookie: be64(input, 8), len, head })
    }

    fn simple(&mut self, input: &[u8]) -> Result<Option<Step>, ClientError> {
        let (errno, cookie) = (Errno(be32(input, 4)), be64(input, 8));
        let index = self.live(cookie)?;
        let slot = &mut self.slots[index];
        slot.errno = errno;
        self.pending = Pending::Finish(cookie);
        if slot.command != Command::Read || (errno != Errno::OK && self.form == ReplyForm::Simple) {
            return Ok(None);
        }
        if self.form != ReplyForm::Simple {
            return Err(ClientError::BadReply);
        }
        slot.seen = slot.len;
        let len = u32::try_from(slot.len).map_err(|_| ClientError::BadReply)?;
        Ok(Some(Step::Data { cookie, offset: slot.offset, len }))
    }

    fn chunk(&mut self, input: &[u8], c: Chunk) -> Result<(usize, Option<Step>), ClientError> {
        let index = self.live(c.cookie)?;
        let command = self.slots[index].command;
        let fixed = match (c.kind, command) {
            (chunk::NONE, _) if c.len == 0 && c.last => 0,
            (chunk::OFFSET_DATA, Command::Read) if c.len > 8 => 8,
            (chunk::OFFSET_HOLE, Command::Read) if c.len == 12 => 12,
            (chunk::BLOCK_STATUS, Command::BlockStatus) if self.form == ReplyForm::Structured => 4,
            (chunk::BLOCK_STATUS_EXT, Command::BlockStatus) if self.form == ReplyForm::Extended => 8,
            (kind, _) if kind & chunk::ERROR_BIT != 0 => 6,
            _ => return Err(ClientError::BadReply),
        };
        if c.len < fixed || (c.len > CONTENT_BYTES_MAX && c.kind != chunk::OFFSET_DATA) {
            return Err(ClientError::BadReply);
        }
        let used = c.head + fixed as usize;
        if input.len() < used {
            return Ok((0, None));
        }
        let body = &input[c.head..used];
        self.pending = Self::after(c.cookie, c.last);
        let step = match c.kind {
            chunk::NONE => None,
            chunk::OFFSET_DATA => {
                let (offset, len) = (be64(body, 0), self.piece(index, be64(body, 0), c.len - 8)?);
                Some(Step::Data { cookie: c.cookie, offset, len })
            }
            chunk::OFFSET_HOLE => {
                let (offset, len) = (be64(body, 0), self.piece(index, be64(body, 0), be32(body, 8) as u64)?);
                Some(Step::Hole { cookie: c.cookie, offset, len })
            }
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT => {
                self.extents(&c, body)?;
                None
            }
            _ => {
                self.failed(index, &c, body)?;
                None
            }
        };
        Ok((used, step))
    }

    /// Checks a piece of a read and counts it.
    fn piece(&mut self, index: usize, offset: u64, len: u64) -> Result<u32, ClientError> {
        let slot = &mut self.slots[index];
        let inside =
            offset >= slot.offset && offset - slot.offset <= slot.len && len <= slot.len - (offset - slot.offset);
        if !inside || len == 0 || len > slot.len - slot.seen {
            return Err(ClientError::BadReply);
        }
        slot.seen += len;
        u32::try_from(len).map_err(|_| ClientError::BadReply)
    }

    fn extents(&mut self, c: &Chunk, body: &[u8]) -> Result<(), ClientError> {
        let left = (c.len - body.len() as u64) as u32;
        let each = if self.form == ReplyForm::Extended { 16 } else { 8 };
        let counted = self.form != ReplyForm::Extended || be32(body, 4) == left / each;
        if Some(be32(body, 0)) != self.context || left == 0 || !left.is_multiple_of(each) || !counted {
            return Err(ClientError::BadReply);
        }
        self.pending = Pending::Extents { cookie: c.cookie, left, last: c.last };
        Ok(())
    }

    fn failed(&mut self, index: usize, c: &Chunk, body: &[u8]) -> Result<(), ClientError> {
        let (errno, text) = (Errno(be32(body, 0)), be16(body, 4) as u64);
        if errno == Errno::OK || text > c.len - 6 {
            return Err(ClientError::BadReply);
        }
        let slot = &mut self.slots[index];
        if slot.errno == Errno::OK {
            slot.errno = errno;
        }
        let left = (c.len - 6) as u32;
        if left > 0 {
            self.pending = Pending::Skip { cookie: c.cookie, left, last: c.last };
        }
        Ok(())
    }

    fn extent(&mut self, input: &[u8], cookie: u64, left: u32, last: bool) -> (usize, Option<Step>) {
        let each = if self.form == ReplyForm::Extended { 16 } else { 8 };
        if input.len() < each {
            return (0, None);
        }
        let (len, flags) =
            if each == 16 { (be64(input, 0), be64(input, 8) as u32) } else { (be32(input, 0) as u64, be32(input, 4)) };
        let left = left - each as u32;
        self.pending = if left == 0 { Self::after(cookie, last) } else { Pending::Extents { cookie, left, last } };
        self.slots[Client::slot_of(cookie)].seen += 1;
        (each, Some(Step::Extent { cookie, len, flags }))
    }

    fn skip(&mut self, input: &[u8], cookie: u64, left: u32, last: bool) -> (usize, Option<Step>) {
        let used = (left as usize).min(input.len());
        let left = left - used as u32;
        self.pending = if left == 0 { Self::after(cookie, last) } else { Pending::Skip { cookie, left, last } };
        (used, None)
    }
}
