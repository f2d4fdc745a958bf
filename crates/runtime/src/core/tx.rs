//! What a connection is to send: reply headers and payloads, gathered into one message per turn.
//!
//! Owns: two batches, one being filled and one with the kernel. Never: copies a payload (TLS apart).
//! Invariant: a payload's buffer is freed once, after its last byte was sent or the connection died.

use super::tls::TlsStream;
use segue_volume::mem::{Buf, Mem};

/// Vectors of one message; the kernel takes 1024.
const VECTORS_MAX: usize = 512;

struct Item {
    head_len: u32,
    data: Buf,
    whole: Buf,
}

#[derive(Default)]
struct Batch {
    heads: Vec<u8>,
    items: Vec<Item>,
}

/// A message header with room for its vectors, at an address that never changes.
pub(super) struct Message {
    pub(super) header: libc::msghdr,
    pub(super) vectors: Vec<libc::iovec>,
    /// Vectors before this one are done.
    first: usize,
}

// What it points to (its connection's bytes, its pool's memory) goes along when it goes to another core, at the same
// addresses, and the kernel has none of it then.
unsafe impl Send for Message {}

impl Message {
    pub(super) fn new() -> Box<Message> {
        let header = unsafe { std::mem::zeroed() };
        Box::new(Message { header, vectors: Vec::with_capacity(8), first: 0 })
    }

    pub(super) fn clear(&mut self) {
        self.vectors.clear();
        self.first = 0;
    }

    pub(super) fn push(&mut self, at: *mut u8, len: usize) {
        self.vectors.push(libc::iovec { iov_base: at.cast(), iov_len: len });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == self.vectors.len()
    }

    /// The header with what is left, at most [`VECTORS_MAX`] vectors.
    pub(super) fn prepare(&mut self) -> *mut libc::msghdr {
        let rest = &mut self.vectors[self.first..];
        self.header.msg_iov = rest.as_mut_ptr();
        self.header.msg_iovlen = rest.len().min(VECTORS_MAX) as _;
        &raw mut self.header
    }

    /// `n` bytes of it are done.
    pub(super) fn advance(&mut self, mut n: usize) {
        while let Some(vector) = self.vectors.get_mut(self.first) {
            if n < vector.iov_len {
                vector.iov_base = unsafe { vector.iov_base.cast::<u8>().add(n).cast() };
                vector.iov_len -= n;
                return;
            }
            n -= vector.iov_len;
            self.first += 1;
        }
        assert!(n == 0, "more bytes done than there were");
    }
}

pub(super) struct Tx {
    open: Batch,
    flying: Batch,
    message: Box<Message>,
    /// The kernel has the message.
    pub(super) busy: bool,
    /// Bytes of buffers in both batches.
    pub(super) held_bytes: usize,
}

impl Tx {
    pub(super) fn new() -> Tx {
        Tx { open: Batch::default(), flying: Batch::default(), message: Message::new(), busy: false, held_bytes: 0 }
    }

    /// Appends bytes; `write` puts at most `room` of them at the start of what it is given and tells how many.
    #[inline]
    pub(super) fn head(&mut self, room: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        self.head_and_data(room, Buf::EMPTY, Buf::EMPTY, write);
    }

    /// Appends bytes and then the payload `data`, a part of `whole`, which is freed when sent.
    #[inline]
    pub(super) fn head_and_data(&mut self, room: usize, data: Buf, whole: Buf, write: impl FnOnce(&mut [u8]) -> usize) {
        let heads = &mut self.open.heads;
        let start = heads.len();
        heads.resize(start + room, 0);
        let len = write(&mut heads[start..]);
        heads.truncate(start + len);
        self.held_bytes += whole.len();
        self.open.items.push(Item { head_len: len as u32, data, whole });
    }

    /// Appends bytes written by `write` at the end of the vector.
    pub(super) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.open.heads.len();
        write(&mut self.open.heads);
        let len = (self.open.heads.len() - start) as u32;
        self.open.items.push(Item { head_len: len, data: Buf::EMPTY, whole: Buf::EMPTY });
    }

    /// True when there is something that the kernel does not have yet, and it has nothing now.
    pub(super) fn ready(&self) -> bool {
        !self.busy && (!self.open.items.is_empty() || !self.message.is_empty())
    }

    /// True when all was sent.
    pub(super) fn is_empty(&self) -> bool {
        !self.busy && self.open.items.is_empty() && self.message.is_empty()
    }

    /// Moves what was gathered into the message to send next. Only when nothing flies.
    pub(super) fn load(&mut self, mem: &Mem) -> *const libc::msghdr {
        if self.message.is_empty() {
            std::mem::swap(&mut self.open, &mut self.flying);
            self.message.clear();
            let base = self.flying.heads.as_mut_ptr();
            let (mut at, mut run) = (0usize, 0usize);
            for item in &self.flying.items {
                run += item.head_len as usize;
                if !item.data.is_empty() {
                    self.message.push(unsafe { base.add(at) }, run);
                    self.message.push(mem.addr(item.data), item.data.len());
                    (at, run) = (at + run, 0);
                }
            }
            if run > 0 {
                self.message.push(unsafe { base.add(at) }, run);
            }
        }
        self.message.prepare()
    }

    /// Gives what was gathered to `sink`, in order, and frees it: for encryption.
    fn take(&mut self, mem: &mut Mem, mut sink: impl FnMut(&[u8])) {
        let mut at = 0;
        for item in &self.open.items {
            let head = &self.open.heads[at..at + item.head_len as usize];
            at += head.len();
            sink(head);
            if !item.data.is_empty() {
                sink(mem.get(item.data));
            }
        }
        self.held_bytes -= free_all(&mut self.open, mem);
    }

    /// Encrypts what was gathered and makes the cipher bytes the message.
    pub(super) fn encrypt(&mut self, tls: &mut TlsStream, mem: &mut Mem) {
        if !self.message.is_empty() {
            return;
        }
        self.take(mem, |bytes| tls.push(bytes));
        let output = tls.output();
        self.message.clear();
        if !output.is_empty() {
            self.message.push(output.as_mut_ptr(), output.len());
        }
    }

    /// Bytes of the message were sent. Returns true when it was the last of them.
    pub(super) fn sent(&mut self, n: usize, mem: &mut Mem) -> bool {
        self.message.advance(n);
        if !self.message.is_empty() {
            return false;
        }
        self.message.clear();
        self.held_bytes -= free_all(&mut self.flying, mem);
        true
    }

    /// The connection is dead: frees all. Only when the kernel has nothing.
    pub(super) fn abandon(&mut self, mem: &mut Mem) {
        assert!(!self.busy, "the kernel still sends");
        self.message.clear();
        free_all(&mut self.flying, mem);
        free_all(&mut self.open, mem);
        self.held_bytes = 0;
    }
}

fn free_all(batch: &mut Batch, mem: &mut Mem) -> usize {
    let mut bytes = 0;
    for item in batch.items.drain(..) {
        bytes += item.whole.len();
        mem.free(item.whole);
    }
    batch.heads.clear();
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(message: *const libc::msghdr) -> Vec<u8> {
        let vectors = unsafe { std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
        let slices = vectors.iter().map(|v| unsafe { std::slice::from_raw_parts(v.iov_base.cast::<u8>(), v.iov_len) });
        slices.flatten().copied().collect()
    }

    #[test]
    fn replies_go_out_in_order_and_buffers_come_back() {
        let mut mem = Mem::new(1 << 20);
        let mut tx = Tx::new();
        let whole = mem.alloc(8192).unwrap();
        mem.get_mut(whole).fill(b'd');
        tx.head(4, |out| {
            out[..2].copy_from_slice(b"ab");
            2
        });
        tx.head_and_data(4, whole.part(512, 3), whole, |out| {
            out[0] = b'c';
            1
        });
        tx.append(|out| out.extend_from_slice(b"efg"));
        assert_eq!(bytes_of(tx.load(&mem)), b"abcdddefg");
        tx.busy = true;
        assert!(!tx.sent(4, &mut mem));
        tx.head(4, |out| {
            out[0] = b'h';
            1
        });
        assert_eq!(bytes_of(tx.load(&mem)), b"ddefg");
        assert!(tx.sent(5, &mut mem));
        tx.busy = false;
        assert_eq!(mem.used_bytes(), 0);
        assert!(tx.ready());
        assert_eq!(bytes_of(tx.load(&mem)), b"h");
        assert!(tx.sent(1, &mut mem) && tx.is_empty());
    }
}
