//! io_uring for drives and sockets: everything of a turn goes to the kernel in one call.
//!
//! Owns: one ring, used by the thread that made it. Never: polls with a busy thread of the kernel.
//! Invariant: one `io_uring_enter` per turn, unless a queue overflows.

use super::offload::Offload;
use super::{Backend, Bell, Done, DriveFd, DriveOp, IoMode, PLACES_MAX, TOKEN_BELL};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::io;
use std::os::fd::RawFd;

const SQ_ENTRIES: u32 = 1024;
const CQ_ENTRIES: u32 = 4096;
const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 8;
/// Set in the mark of a drive transfer, beside its length in pages: a transfer is whole or it failed.
const TRANSFER: u64 = 1 << 61;
/// Set in the mark of a prompt send.
const PROMPT: u64 = 1 << 62;
/// The end of a cancellation itself, which nobody waits for.
const TOKEN_CANCEL: u64 = TOKEN_BELL + 1;
const PAGES_SHIFT: u32 = 44;
const TOKEN_MASK: u64 = (1 << PAGES_SHIFT) - 1;

pub(crate) struct Uring {
    ring: IoUring,
    bell: Bell,
    bell_armed: bool,
    /// Registered memory by place: address and bytes. Empty until the first is wanted.
    registered: Vec<(usize, usize)>,
    /// Prompt sends work as this module needs: the kernel is new enough.
    modern: bool,
    /// Sends of this turn that end during submission, with their lengths. The kernel tells only the ends of those
    /// that did not send all, so that a reply by itself does not end the wait.
    prompt: Vec<(u64, i32)>,
    offload: Option<Offload>,
    calls: u64,
}

impl Uring {
    /// Must be called on the thread that will use it.
    pub(crate) fn new(bell: Bell) -> io::Result<Uring> {
        let modern = IoUring::builder()
            .setup_cqsize(CQ_ENTRIES)
            .setup_clamp()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(SQ_ENTRIES);
        let (ring, modern) = match modern {
            Ok(ring) => (ring, true),
            Err(_) => (IoUring::builder().setup_cqsize(CQ_ENTRIES).setup_clamp().build(SQ_ENTRIES)?, false),
        };
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() || !params.is_feature_fast_poll() {
            return Err(io::Error::other("the kernel's io_uring is too old (5.11 or later is needed)"));
        }
        let prompt = Vec::with_capacity(256);
        Ok(Uring { ring, bell, bell_armed: false, registered: Vec::new(), modern, prompt, offload: None, calls: 0 })
    }

    fn push(&mut self, entry: squeue::Entry) {
        loop {
            // The memory an entry points to outlives it by the contract of `Backend`.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.calls += 1;
            let result = self.ring.submit();
            assert!(result.is_ok() || retryable(&result), "the ring takes no submissions: {result:?}");
        }
    }

    fn arm_bell(&mut self) {
        if !self.bell_armed {
            self.bell_armed = true;
            let entry = opcode::PollAdd::new(Fd(self.bell.fd()), libc::POLLIN as u32).build().user_data(TOKEN_BELL);
            self.push(entry);
        }
    }

    fn is_registered(&self, place: usize, at: *const u8, len: u32) -> bool {
        self.registered.get(place).is_some_and(|(base, bytes)| {
            let at = at as usize;
            at >= *base && at + len as usize <= base + bytes
        })
    }

    fn update_memory(&self, place: usize, vector: libc::iovec) -> bool {
        unsafe { self.ring.submitter().register_buffers_update(place as u32, &[vector], None) }.is_ok()
    }

    fn collect(&mut self, done: &mut Vec<Done>) {
        let mut rang = false;
        for cqe in self.ring.completion() {
            let (token, result) = (cqe.user_data(), cqe.result());
            if token == TOKEN_BELL {
                rang = true;
            } else if token == TOKEN_CANCEL {
                // What was cancelled tells its own end.
            } else if token & TRANSFER != 0 {
                let whole = (((token & !TRANSFER) >> PAGES_SHIFT) << 12) as i32;
                let result = match result {
                    n if n == whole => 0,
                    n if n >= 0 => -libc::EIO,
                    failed => failed,
                };
                done.push(Done { token: token & TOKEN_MASK, result });
            } else if token & PROMPT != 0 {
                let at = self.prompt.iter().position(|sent| sent.0 == token & TOKEN_MASK);
                self.prompt.swap_remove(at.expect("a prompt send ends in its own turn"));
                done.push(Done { token: token & TOKEN_MASK, result });
            } else {
                done.push(Done { token, result });
            }
        }
        if self.ring.submission().is_empty() {
            done.extend(self.prompt.drain(..).map(|(token, result)| Done { token, result }));
        }
        if rang {
            self.bell_armed = false;
            self.bell.silence();
            if let Some(offload) = &self.offload {
                offload.drain(done);
            }
            done.push(Done { token: TOKEN_BELL, result: 0 });
        }
    }
}

impl Backend for Uring {
    fn mode(&self) -> IoMode {
        IoMode::Uring
    }

    fn add_socket(&mut self, fd: RawFd) -> io::Result<()> {
        // A nonblocking socket would end an operation with EAGAIN where io_uring should wait.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn remove_socket(&mut self, _fd: RawFd) {}

    fn register_memory(&mut self, place: usize, base: *mut u8, len: usize) -> bool {
        if self.registered.is_empty() {
            if self.ring.submitter().register_buffers_sparse(PLACES_MAX as u32).is_err() {
                return false;
            }
            self.registered = vec![(0, 0); PLACES_MAX];
        }
        let registered = self.update_memory(place, libc::iovec { iov_base: base.cast(), iov_len: len });
        if registered {
            self.registered[place] = (base as usize, len);
        }
        registered
    }

    fn forget_memory(&mut self, place: usize) {
        if self.registered.get(place).is_some_and(|(_, bytes)| *bytes > 0) {
            // Whatever the kernel says: nothing is sent through this entry any more.
            self.registered[place] = (0, 0);
            self.update_memory(place, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        }
    }

    fn accept(&mut self, token: u64, fd: RawFd) {
        let none = std::ptr::null_mut();
        let entry = opcode::Accept::new(Fd(fd), none, none.cast()).flags(libc::SOCK_CLOEXEC).build();
        self.push(entry.user_data(token));
    }

    fn cancel(&mut self, token: u64, _fd: RawFd) {
        self.push(opcode::AsyncCancel::new(token).build().user_data(TOKEN_CANCEL));
    }

    fn recv(&mut self, token: u64, fd: RawFd, msg: *mut libc::msghdr) {
        let (count, first) = unsafe { ((*msg).msg_iovlen, *(*msg).msg_iov) };
        let entry = if count == 1 {
            opcode::Recv::new(Fd(fd), first.iov_base.cast(), first.iov_len as u32).build()
        } else {
            opcode::RecvMsg::new(Fd(fd), msg).build()
        };
        self.push(entry.user_data(token));
    }

    fn send(&mut self, token: u64, fd: RawFd, msg: *const libc::msghdr, patient: bool) {
        let (count, first) = unsafe { ((*msg).msg_iovlen, *(*msg).msg_iov) };
        let mut flags = libc::MSG_NOSIGNAL;
        let prompt = !patient && self.modern;
        if prompt {
            flags |= libc::MSG_DONTWAIT | libc::MSG_WAITALL;
        }
        let entry = if count == 1 {
            opcode::Send::new(Fd(fd), first.iov_base.cast(), first.iov_len as u32).flags(flags).build()
        } else {
            opcode::SendMsg::new(Fd(fd), msg).flags(flags as u32).build()
        };
        if !prompt {
            return self.push(entry.user_data(token));
        }
        self.prompt.push((token, length(unsafe { &*msg })));
        self.push(entry.user_data(token | PROMPT).flags(squeue::Flags::SKIP_SUCCESS));
    }

    fn drive(&mut self, token: u64, drive: DriveFd, op: DriveOp) {
        let fd = Fd(drive.fd);
        let entry = match op {
            DriveOp::Read { offset, at, len } => {
                let entry = match self.is_registered(drive.place, at, len) {
                    true => opcode::ReadFixed::new(fd, at, len, drive.place as u16).offset(offset).build(),
                    false => opcode::Read::new(fd, at, len).offset(offset).build(),
                };
                entry.user_data(transfer(token, len))
            }
            DriveOp::Write { offset, at, len } => {
                let entry = match self.is_registered(drive.place, at, len) {
                    true => opcode::WriteFixed::new(fd, at, len, drive.place as u16).offset(offset).build(),
                    false => opcode::Write::new(fd, at, len).offset(offset).build(),
                };
                entry.user_data(transfer(token, len))
            }
            DriveOp::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build().user_data(token),
            DriveOp::Discard { offset, len } if !drive.block_device => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build().user_data(token)
            }
            DriveOp::Discard { .. } => {
                let bell = &self.bell;
                self.offload.get_or_insert_with(|| Offload::new(1, bell.clone())).push(token, drive, op);
                return;
            }
        };
        self.push(entry);
    }

    fn turn(&mut self, wait_ns: Option<u64>, done: &mut Vec<Done>) -> io::Result<()> {
        self.arm_bell();
        let want = u32::from(wait_ns != Some(0));
        let submit = self.ring.submission().len() as u32;
        self.calls += 1;
        let result = match wait_ns.filter(|ns| *ns > 0) {
            None => unsafe { self.ring.submitter().enter::<libc::sigset_t>(submit, want, ENTER_GETEVENTS, None) },
            Some(ns) => {
                let time = Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
                let args = SubmitArgs::new().timespec(&time);
                let flags = ENTER_GETEVENTS | ENTER_EXT_ARG;
                unsafe { self.ring.submitter().enter(submit, want, flags, Some(&args)) }
            }
        };
        if result.is_err() && !retryable(&result) {
            return result.map(drop);
        }
        self.collect(done);
        Ok(())
    }

    fn calls(&self) -> u64 {
        self.calls
    }
}

fn length(msg: &libc::msghdr) -> i32 {
    let vectors = unsafe { std::slice::from_raw_parts(msg.msg_iov, msg.msg_iovlen) };
    vectors.iter().map(|vector| vector.iov_len as i32).sum()
}

fn transfer(token: u64, len: u32) -> u64 {
    debug_assert!(token <= TOKEN_MASK && len.is_multiple_of(4096));
    token | TRANSFER | (len as u64 >> 12) << PAGES_SHIFT
}

/// Errors after which the next turn simply goes on: time is over, a signal came, or the queue must be drained first.
fn retryable(result: &io::Result<usize>) -> bool {
    let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
    matches!(errno, Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}
