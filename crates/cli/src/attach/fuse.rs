//! The kernel's FUSE protocol, as much of it as one file needs, and the mount of it.
//!
//! Owns: the bytes of requests and answers, and `mount`/`umount` of the FUSE directory. Never: decides what a request means
//! for the node.
//! Invariant: every request that wants an answer is either answered here or handed on with its mark.
//!
//! Spoken directly instead of through a library because the event loop must hold requests open across reconnects, answer
//! reads straight from the network buffer, and fail everything at one command.

use super::ledger::{Ask, Unique};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Largest read or write of one request, bytes.
pub const MAX_IO_BYTES: u32 = 1 << 20;
/// Bytes of a request before its payload, for a write.
pub const WRITE_HEAD_BYTES: usize = 80;
/// Room that any request fits in.
pub const REQUEST_BYTES_MAX: usize = MAX_IO_BYTES as usize + 4096;
/// Name of the one file.
pub const FILE_NAME: &str = "volume";

const IN_HEAD_BYTES: usize = 40;
const OUT_HEAD_BYTES: usize = 16;
const ROOT: u64 = 1;
const FILE: u64 = 2;
const FOREVER_S: u64 = 1 << 30;

mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const ACCESS: u32 = 34;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
}

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// Nothing: it wants no answer.
    Ignore,
    /// Answer it with this.
    Answer(Vec<u8>),
    /// The kernel's own wish for a block of the volume. A write's payload begins at [`WRITE_HEAD_BYTES`].
    Block(Unique, Ask),
}

/// What the file looks like.
#[derive(Debug, Clone, Copy)]
pub struct FileShape {
    /// Its size, bytes.
    pub size_bytes: u64,
    /// True when writing is refused.
    pub read_only: bool,
    /// True when the server takes discards.
    pub can_discard: bool,
    /// True when the server can zero a range itself.
    pub can_zero: bool,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The head of an answer: `errno` 0 and `payload_bytes` to follow, or an error and nothing.
pub fn answer_head(unique: Unique, errno: i32, payload_bytes: usize) -> [u8; OUT_HEAD_BYTES] {
    let mut head = [0; OUT_HEAD_BYTES];
    head[..4].copy_from_slice(&((OUT_HEAD_BYTES + payload_bytes) as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    head
}

/// The whole answer to a successful write of `len` bytes.
pub fn answer_write(unique: Unique, len: u32) -> [u8; 24] {
    let mut answer = [0; 24];
    answer[..16].copy_from_slice(&answer_head(unique, 0, 8));
    answer[16..20].copy_from_slice(&len.to_ne_bytes());
    answer
}

fn answer(unique: Unique, words: &[u64]) -> Request {
    let mut bytes = answer_head(unique, 0, words.len() * 8).to_vec();
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
    Request::Answer(bytes)
}

fn refuse(unique: Unique, errno: i32) -> Request {
    Request::Answer(answer_head(unique, errno, 0).to_vec())
}

/// Two 32-bit fields that stand beside each other.
fn pair(low: u32, high: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&low.to_ne_bytes());
    bytes[4..].copy_from_slice(&high.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

impl FileShape {
    /// Reads one request as the kernel wrote it. A message too short for its kind is refused with EIO.
    pub fn read_request(&self, message: &[u8]) -> Request {
        if message.len() < IN_HEAD_BYTES {
            return Request::Ignore;
        }
        let (opcode, unique, node) = (u32_at(message, 4), u64_at(message, 8), u64_at(message, 16));
        let body = &message[IN_HEAD_BYTES..];
        match opcode {
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => Request::Ignore,
            op::READ | op::WRITE | op::FALLOCATE if node == FILE => self.block_request(opcode, unique, body),
            op::FSYNC if node == FILE => Request::Block(unique, Ask::Flush),
            op::INIT => init(unique, body),
            op::LOOKUP if node == ROOT && body.strip_suffix(b"\0") == Some(FILE_NAME.as_bytes()) => {
                let mut words = vec![FILE, 0, FOREVER_S, FOREVER_S, 0];
                words.extend(self.attributes(FILE));
                answer(unique, &words)
            }
            op::LOOKUP => refuse(unique, libc::ENOENT),
            op::GETATTR => {
                let mut words = vec![FOREVER_S, 0];
                words.extend(self.attributes(node));
                answer(unique, &words)
            }
            op::OPEN if node == FILE => answer(unique, &[0, pair(open_flags(), 0)]),
            op::OPENDIR => answer(unique, &[0, 0]),
            op::STATFS => {
                answer(unique, &[self.size_bytes / 4096, 0, 0, 1, 0, pair(4096, 255), pair(4096, 0), 0, 0, 0])
            }
            op::READDIR | op::RELEASE | op::RELEASEDIR | op::FLUSH | op::ACCESS | op::DESTROY => answer(unique, &[]),
            _ => refuse(unique, libc::ENOSYS),
        }
    }

    fn block_request(&self, opcode: u32, unique: Unique, body: &[u8]) -> Request {
        let needed = if opcode == op::FALLOCATE { 32 } else { 40 };
        if body.len() < needed {
            return refuse(unique, libc::EIO);
        }
        let offset = u64_at(body, 8);
        if opcode == op::FALLOCATE {
            return self.fallocate(unique, offset, u64_at(body, 16), u32_at(body, 24));
        }
        let len = u32_at(body, 16);
        let room = self.size_bytes.saturating_sub(offset);
        if opcode == op::READ {
            let len = u64::from(len.min(MAX_IO_BYTES)).min(room) as u32;
            return if len == 0 { answer(unique, &[]) } else { Request::Block(unique, Ask::Read { offset, len }) };
        }
        if self.read_only {
            return refuse(unique, libc::EROFS);
        }
        if u64::from(len) > room || body.len() - needed != len as usize || len > MAX_IO_BYTES {
            return refuse(unique, libc::ENOSPC);
        }
        Request::Block(unique, Ask::Write { offset, len, fua: false })
    }

    fn fallocate(&self, unique: Unique, offset: u64, len: u64, mode: u32) -> Request {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
        const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size_bytes);
        if self.read_only {
            return refuse(unique, libc::EROFS);
        }
        // A block device's discards and zeroes are below 4 GiB; whoever else opens the file splits.
        let Some(len) = u32::try_from(len).ok().filter(|_| inside) else {
            return refuse(unique, libc::EINVAL);
        };
        match mode & !KEEP_SIZE {
            // A punched hole must read as zero, which a discard only hints at: zero it, and let the space go.
            PUNCH_HOLE if self.can_zero => Request::Block(unique, Ask::Zero { offset, len, no_hole: false }),
            PUNCH_HOLE if self.can_discard => Request::Block(unique, Ask::Discard { offset, len }),
            ZERO_RANGE if self.can_zero => Request::Block(unique, Ask::Zero { offset, len, no_hole: true }),
            _ => refuse(unique, libc::EOPNOTSUPP),
        }
    }

    fn attributes(&self, node: u64) -> [u64; 11] {
        let (mode, size) = match node {
            ROOT => (libc::S_IFDIR | 0o500, 0),
            _ => (libc::S_IFREG | 0o600, self.size_bytes),
        };
        [node, size, size / 512, 0, 0, 0, 0, pair(0, mode), pair(1, 0), 0, pair(4096, 0)]
    }
}

/// Every read and write comes to us, and writes side by side.
fn open_flags() -> u32 {
    const DIRECT_IO: u32 = 1 << 0;
    const NOFLUSH: u32 = 1 << 5;
    const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    DIRECT_IO | NOFLUSH | PARALLEL_DIRECT_WRITES
}

fn init(unique: Unique, body: &[u8]) -> Request {
    const ASYNC_READ: u32 = 1 << 0;
    const BIG_WRITES: u32 = 1 << 5;
    const ASYNC_DIO: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    const REQUESTS_MAX: u16 = 256;
    if body.len() < 16 || u32_at(body, 0) != 7 || u32_at(body, 4) < 28 {
        return refuse(unique, libc::EPROTO);
    }
    let minor = u32_at(body, 4).min(31);
    let flags = u32_at(body, 12) & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES);
    let background = u32::from(REQUESTS_MAX) | u32::from(REQUESTS_MAX / 4 * 3) << 16;
    let pages = MAX_IO_BYTES / 4096;
    let words = [
        pair(7, minor),
        pair(0, flags),
        pair(background, MAX_IO_BYTES),
        // Time granularity 1 ns, then pages per request.
        pair(1, pages),
        0,
        0,
        0,
        0,
    ];
    answer(unique, &words)
}

/// Mounts the one-file system on `dir` and returns the channel to the kernel, which never blocks.
///
/// # Errors
/// The system's: `/dev/fuse` is missing, or the caller may not mount (be root).
pub fn mount(dir: &Path) -> io::Result<OwnedFd> {
    let path = c"/dev/fuse";
    // SAFETY: the path is a C string; the new descriptor is owned by nobody else.
    let channel = unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let data =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={MAX_IO_BYTES}", channel.as_raw_fd());
    let flags = nix::mount::MsFlags::MS_NOSUID | nix::mount::MsFlags::MS_NODEV | nix::mount::MsFlags::MS_NOEXEC;
    nix::mount::mount(Some("segue"), dir, Some("fuse.segue"), flags, Some(data.as_str()))?;
    Ok(channel)
}

/// Takes the mount on `dir` away at once; what is open stays open. A directory that is no mount is fine.
///
/// # Errors
/// The system's, as for `umount`.
pub fn umount_lazily(dir: &Path) -> io::Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the path is a C string that lives across the call.
    if unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let no_mount = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT));
    if no_mount { Ok(()) } else { Err(error) }
}

/// Reads one request. None: there is none now. `Err` with ENODEV: the mount is gone and the last user with it.
///
/// # Errors
/// The system's.
pub fn receive(channel: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match nix::unistd::read(channel, buffer) {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(nix::Error::EAGAIN) => return Ok(None),
            // ENOENT: the request was withdrawn while it was being read.
            Err(nix::Error::EINTR | nix::Error::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes one answer of several parts. An answer the kernel no longer waits for is dropped.
pub fn respond(channel: BorrowedFd<'_>, parts: &[&[u8]]) {
    let slices: [io::IoSlice<'_>; 2] = [
        io::IoSlice::new(parts.first().copied().unwrap_or_default()),
        io::IoSlice::new(parts.get(1).copied().unwrap_or_default()),
    ];
    match nix::sys::uio::writev(channel, &slices[..parts.len()]) {
        Ok(_) | Err(nix::Error::ENOENT | nix::Error::ENODEV) => {}
        Err(error) => tracing::error!(%error, "the kernel refused an answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: FileShape = FileShape { size_bytes: 1 << 20, read_only: false, can_discard: true, can_zero: true };

    fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; IN_HEAD_BYTES];
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[8..16].copy_from_slice(&77u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&node.to_ne_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn errno_of(request: &Request) -> i32 {
        match request {
            Request::Answer(bytes) => -i32::from_ne_bytes(bytes[4..8].try_into().unwrap()),
            _ => panic!("no answer: {request:?}"),
        }
    }

    fn transfer(offset: u64, len: u32, payload: usize) -> Vec<u8> {
        let mut body = vec![0; 40];
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..20].copy_from_slice(&len.to_ne_bytes());
        body.resize(40 + payload, 1);
        body
    }

    #[test]
    fn blocks_are_handed_on_inside_the_file_only() {
        let read = SHAPE.read_request(&message(op::READ, FILE, &transfer(4096, 8192, 0)));
        assert_eq!(read, Request::Block(77, Ask::Read { offset: 4096, len: 8192 }));
        let over = SHAPE.read_request(&message(op::READ, FILE, &transfer((1 << 20) - 512, 4096, 0)));
        assert_eq!(over, Request::Block(77, Ask::Read { offset: (1 << 20) - 512, len: 512 }));
        let write = SHAPE.read_request(&message(op::WRITE, FILE, &transfer(0, 512, 512)));
        assert_eq!(write, Request::Block(77, Ask::Write { offset: 0, len: 512, fua: false }));
        assert_eq!(
            errno_of(&SHAPE.read_request(&message(op::WRITE, FILE, &transfer(1 << 20, 512, 512)))),
            libc::ENOSPC
        );
        assert_eq!(errno_of(&SHAPE.read_request(&message(op::WRITE, FILE, &transfer(0, 512, 100)))), libc::ENOSPC);
        let shape = FileShape { read_only: true, ..SHAPE };
        assert_eq!(errno_of(&shape.read_request(&message(op::WRITE, FILE, &transfer(0, 512, 512)))), libc::EROFS);
    }

    #[test]
    fn a_punched_hole_is_zeroed_and_released() {
        let mut body = vec![0; 32];
        body[16..24].copy_from_slice(&8192u64.to_ne_bytes());
        body[24..28].copy_from_slice(&3u32.to_ne_bytes());
        let punched = SHAPE.read_request(&message(op::FALLOCATE, FILE, &body));
        assert_eq!(punched, Request::Block(77, Ask::Zero { offset: 0, len: 8192, no_hole: false }));
        let shape = FileShape { can_zero: false, ..SHAPE };
        let punched = shape.read_request(&message(op::FALLOCATE, FILE, &body));
        assert_eq!(punched, Request::Block(77, Ask::Discard { offset: 0, len: 8192 }));
        body[16..24].copy_from_slice(&(2u64 << 20).to_ne_bytes());
        assert_eq!(errno_of(&SHAPE.read_request(&message(op::FALLOCATE, FILE, &body))), libc::EINVAL);
    }

    #[test]
    fn short_and_unknown_messages_are_refused() {
        assert_eq!(SHAPE.read_request(&[0; 10]), Request::Ignore);
        assert_eq!(errno_of(&SHAPE.read_request(&message(op::WRITE, FILE, &[0; 8]))), libc::EIO);
        assert_eq!(errno_of(&SHAPE.read_request(&message(9999, FILE, &[]))), libc::ENOSYS);
        assert_eq!(errno_of(&SHAPE.read_request(&message(op::LOOKUP, ROOT, b"other\0"))), libc::ENOENT);
        assert_eq!(errno_of(&SHAPE.read_request(&message(op::LOOKUP, ROOT, b"volume\0"))), 0);
    }
}
