//! The narrow interface between a core's loop and the kernel, with two backends behind it.
//!
//! Owns: the words (accept, receive, send, drive, turn) that both backends speak. Never: knows a protocol.
//! Invariant: every operation given to a backend ends in exactly one [`Done`], whatever the backend.

mod offload;
mod poll;
mod uring;

pub(crate) use poll::Poll;
pub(crate) use uring::Uring;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// How a core talks to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoMode {
    /// io_uring for drives and sockets.
    Uring,
    /// epoll, nonblocking sockets, and a few threads for drives.
    Poll,
}

/// Which backend is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoChoice {
    /// io_uring, or the fallback where the kernel refuses it. The environment's `SEGUE_IO=poll` forces the fallback.
    #[default]
    Auto,
    /// The fallback.
    Poll,
}

/// An operation ended. `result` is a count or a descriptor, or a negated errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub token: u64,
    pub result: i32,
}

/// The token of "another thread rang". Operations use tokens below it.
pub(crate) const TOKEN_BELL: u64 = 1 << 60;

/// The descriptor of a file-backed drive, and the place of the memory its operations use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveFd {
    pub fd: RawFd,
    pub block_device: bool,
    /// As in [`Backend::register_memory`].
    pub place: usize,
}

/// Most places of registered memory.
pub(crate) const PLACES_MAX: usize = 256;

/// An operation on a drive. Memory must stay valid until its [`Done`], whose result is 0 or a negated errno.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DriveOp {
    Read { offset: u64, at: *mut u8, len: u32 },
    Write { offset: u64, at: *const u8, len: u32 },
    Flush,
    Discard { offset: u64, len: u64 },
}

// The pointers are to memory that the caller keeps still and unaliased until the completion.
unsafe impl Send for DriveOp {}

/// What a core needs of the kernel. Descriptors, messages and memory must stay valid until the operation's end.
pub(crate) trait Backend {
    /// Which backend this is.
    fn mode(&self) -> IoMode;
    /// Makes a socket known before its first operation.
    fn add_socket(&mut self, fd: RawFd) -> io::Result<()>;
    /// Forgets a socket that has no operation outstanding; the caller closes it.
    fn remove_socket(&mut self, fd: RawFd);
    /// Offers memory that drive operations of this place will use, to be registered with the kernel. Failing is fine.
    fn register_memory(&mut self, place: usize, base: *mut u8, len: usize) -> bool;
    /// From now on the place has no registered memory; operations under way keep what they use.
    fn forget_memory(&mut self, place: usize);
    /// Takes one connection; the result is its descriptor.
    fn accept(&mut self, token: u64, fd: RawFd);
    /// Ends a pending operation of a socket soon: with `-ECANCELED`, or as it would have ended by itself.
    fn cancel(&mut self, token: u64, fd: RawFd);
    /// Receives into the message's vectors; 0 means that the peer has finished.
    fn recv(&mut self, token: u64, fd: RawFd, msg: *mut libc::msghdr);
    /// Sends some or all of the message. When not `patient` it may end with `-EAGAIN` instead of waiting for room,
    /// and the end of one that sent all need not end the turn's wait: it may be told with the next other end.
    fn send(&mut self, token: u64, fd: RawFd, msg: *const libc::msghdr, patient: bool);
    /// Starts a drive operation.
    fn drive(&mut self, token: u64, drive: DriveFd, op: DriveOp);
    /// Submits everything, waits up to `wait_ns` (`None`: for ever) for one end, and appends what ended.
    fn turn(&mut self, wait_ns: Option<u64>, done: &mut Vec<Done>) -> io::Result<()>;
    /// Calls into the kernel so far.
    fn calls(&self) -> u64;
}

/// Opens the wanted backend. The text tells why the fallback was taken, if it was.
pub(crate) fn open_backend(choice: IoChoice, bell: &Bell) -> io::Result<(Box<dyn Backend>, Option<String>)> {
    let forced = std::env::var_os("SEGUE_IO").is_some_and(|value| value == "poll");
    if choice == IoChoice::Poll || forced {
        return Ok((Box::new(Poll::new(bell.clone())?), Some("asked for".to_owned())));
    }
    match Uring::new(bell.clone()) {
        Ok(uring) => Ok((Box::new(uring), None)),
        Err(error) => {
            let why = format!("io_uring refused: {error}");
            Ok((Box::new(Poll::new(bell.clone())?), Some(why)))
        }
    }
}

/// Wakes a core from other threads: an eventfd.
#[derive(Clone, Debug)]
pub(crate) struct Bell {
    fd: Arc<OwnedFd>,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Bell { fd: Arc::new(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// Rings; the core's next or current turn ends. Never blocks.
    pub(crate) fn ring(&self) {
        let one = 1u64;
        // Fails only when the counter is full, and then the bell is already ringing.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn silence(&self) {
        let mut count = 0u64;
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
