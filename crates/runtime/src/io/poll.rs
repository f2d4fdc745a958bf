//! The plain fallback: epoll, nonblocking sockets, a few threads for drives.
//!
//! Owns: one epoll instance and what waits on each descriptor. Never: used where io_uring works, unless asked for.
//! Invariant: an operation is tried when it is given and again at every edge, so no edge is ever lost.

use super::offload::Offload;
use super::{Backend, Bell, Done, DriveFd, DriveOp, IoMode, TOKEN_BELL, last_errno};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const DRIVE_THREADS: usize = 4;
const EVENTS_PER_TURN: usize = 256;

#[derive(Clone, Copy)]
enum In {
    None,
    Accept(u64),
    Recv(u64, *mut libc::msghdr),
}

struct Slot {
    input: In,
    output: Option<(u64, *const libc::msghdr)>,
    queued: bool,
}

pub(crate) struct Poll {
    epoll: OwnedFd,
    bell: Bell,
    /// By descriptor number.
    slots: Vec<Option<Slot>>,
    /// Descriptors to try before the next wait.
    tries: Vec<RawFd>,
    events: Vec<libc::epoll_event>,
    cancelled: Vec<Done>,
    offload: Option<Offload>,
    calls: u64,
}

impl Poll {
    pub(crate) fn new(bell: Bell) -> io::Result<Poll> {
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_TURN];
        let tries = Vec::with_capacity(1024);
        let cancelled = Vec::new();
        let poll = Poll { epoll, bell, slots: Vec::new(), tries, events, cancelled, offload: None, calls: 0 };
        poll.watch(poll.bell.fd(), libc::EPOLLIN as u32)?;
        Ok(poll)
    }

    fn watch(&self, fd: RawFd, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn slot(&mut self, fd: RawFd) -> &mut Slot {
        self.slots[fd as usize].as_mut().expect("the socket was added")
    }

    fn queue(&mut self, fd: RawFd) {
        let slot = self.slot(fd);
        if !slot.queued {
            slot.queued = true;
            self.tries.push(fd);
        }
    }

    /// Tries what waits on a descriptor.
    fn attempt(&mut self, fd: RawFd, done: &mut Vec<Done>) {
        let Some(slot) = self.slots.get_mut(fd as usize).and_then(Option::as_mut) else { return };
        slot.queued = false;
        if let Some((token, msg)) = slot.output {
            self.calls += 1;
            let result = retry(|| unsafe { libc::sendmsg(fd, msg, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) });
            if result != -libc::EAGAIN {
                slot.output = None;
                done.push(Done { token, result });
            }
        }
        let (token, result) = match slot.input {
            In::None => return,
            In::Accept(token) => (token, retry(|| accept(fd))),
            In::Recv(token, msg) => (token, retry(|| unsafe { libc::recvmsg(fd, msg, libc::MSG_DONTWAIT) })),
        };
        self.calls += 1;
        if result != -libc::EAGAIN {
            slot.input = In::None;
            done.push(Done { token, result });
        }
    }

    fn wait(&mut self, timeout_ms: i32, done: &mut Vec<Done>) -> io::Result<()> {
        self.calls += 1;
        let room = self.events.len() as i32;
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), room, timeout_ms) };
        if count < 0 {
            return match last_errno() {
                libc::EINTR => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
        }
        for n in 0..count as usize {
            let fd = self.events[n].u64 as RawFd;
            if fd == self.bell.fd() {
                self.bell.silence();
                if let Some(offload) = &self.offload {
                    offload.drain(done);
                }
                done.push(Done { token: TOKEN_BELL, result: 0 });
            } else {
                self.attempt(fd, done);
            }
        }
        Ok(())
    }
}

impl Backend for Poll {
    fn mode(&self) -> IoMode {
        IoMode::Poll
    }

    fn add_socket(&mut self, fd: RawFd) -> io::Result<()> {
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.watch(fd, (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32)?;
        if self.slots.len() <= fd as usize {
            self.slots.resize_with(fd as usize + 1, || None);
        }
        self.slots[fd as usize] = Some(Slot { input: In::None, output: None, queued: false });
        Ok(())
    }

    fn remove_socket(&mut self, fd: RawFd) {
        let slot = self.slots[fd as usize].take().expect("the socket was added");
        assert!(matches!(slot.input, In::None) && slot.output.is_none(), "removed while in use");
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    fn register_memory(&mut self, _place: usize, _base: *mut u8, _len: usize) -> bool {
        false
    }

    fn forget_memory(&mut self, _place: usize) {}

    fn accept(&mut self, token: u64, fd: RawFd) {
        self.slot(fd).input = In::Accept(token);
        self.queue(fd);
    }

    fn cancel(&mut self, token: u64, fd: RawFd) {
        let slot = self.slot(fd);
        match slot.input {
            In::Accept(waits) | In::Recv(waits, _) if waits == token => slot.input = In::None,
            _ if slot.output.is_some_and(|(waits, _)| waits == token) => slot.output = None,
            // It ended already, and its end is on its way.
            _ => return,
        }
        self.cancelled.push(Done { token, result: -libc::ECANCELED });
    }

    fn recv(&mut self, token: u64, fd: RawFd, msg: *mut libc::msghdr) {
        self.slot(fd).input = In::Recv(token, msg);
        self.queue(fd);
    }

    fn send(&mut self, token: u64, fd: RawFd, msg: *const libc::msghdr, _patient: bool) {
        self.slot(fd).output = Some((token, msg));
        self.queue(fd);
    }

    fn drive(&mut self, token: u64, drive: DriveFd, op: DriveOp) {
        let bell = &self.bell;
        self.offload.get_or_insert_with(|| Offload::new(DRIVE_THREADS, bell.clone())).push(token, drive, op);
    }

    fn turn(&mut self, wait_ns: Option<u64>, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        done.append(&mut self.cancelled);
        while let Some(fd) = self.tries.pop() {
            self.attempt(fd, done);
        }
        let timeout_ms = match wait_ns {
            _ if done.len() > before => 0,
            None => -1,
            Some(ns) => ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32,
        };
        self.wait(timeout_ms, done)
    }

    fn calls(&self) -> u64 {
        self.calls
    }
}

fn accept(fd: RawFd) -> isize {
    let none = std::ptr::null_mut();
    unsafe { libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC) as isize }
}

/// Calls again when interrupted. Returns what the call did, or a negated errno.
fn retry(mut call: impl FnMut() -> isize) -> i32 {
    loop {
        let result = call();
        if result >= 0 {
            return result as i32;
        }
        match last_errno() {
            libc::EINTR => {}
            errno => return -errno,
        }
    }
}
