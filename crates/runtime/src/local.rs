//! An engine driven in this thread, without sockets: for benchmarks and tools.
//!
//! Owns: an engine, its drive, its memory and a kernel interface. Never: serves anybody else.
//! Invariant: every operation given is answered before the call that gave it returns.

use crate::drive::{Drive, DriveSpec};
use crate::engine::{self, EngineOpenError};
use crate::io::{Backend, Bell, Done, IoChoice, IoMode, TOKEN_BELL, open_backend};
use crate::pool::{Machine, PoolHost};
use segue_types::{IoStatus, Nanos};
use segue_volume::engine::EngineOptions;
use segue_volume::mem::{Buf, Mem};
use segue_volume::op::{
    AdminError, AdminOp, AdminReply, Alarm, AttachId, Event, MAX_REQUEST_BYTES, Op, Tag, Ticket, aligned_span,
};
use std::io;
use std::time::{Duration, Instant};

/// The local driver could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The drive or the engine.
    #[error("cannot open the pool")]
    Engine(#[from] EngineOpenError),
    /// The kernel interface.
    #[error("cannot set up the kernel interface")]
    Backend(#[source] io::Error),
}

/// What to do, without a buffer: the driver has its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalOp {
    /// Read; at most 256 KiB with its aligned span.
    Read {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Write bytes of a fixed pattern; at most 256 KiB with its aligned span.
    Write {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Durable before the answer.
        fua: bool,
    },
    /// Make acknowledged writes durable.
    Flush,
    /// Give space back.
    Discard {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Make the range read as zero.
    WriteZeroes {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// How one operation went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalDone {
    /// Its place among those given, from 0.
    pub index: usize,
    /// Its outcome.
    pub status: IoStatus,
    /// From its submission to its answer, ns.
    pub latency_ns: Nanos,
}

struct Slot {
    index: usize,
    started: Nanos,
    buf: Buf,
}

/// An open pool in this thread.
pub struct Local {
    // Dropped before the memory it points into.
    io: Box<dyn Backend>,
    mem: Mem,
    host: Option<PoolHost>,
    started: Instant,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    done: Vec<Done>,
    admin: Option<Result<AdminReply, AdminError>>,
    alarms: Vec<Alarm>,
}

impl Local {
    /// Opens the engine on a drive (memory is formatted first).
    ///
    /// # Errors
    /// [`LocalError`] names the cause.
    pub fn open(drive: &DriveSpec, options: &EngineOptions, choice: IoChoice) -> Result<Local, LocalError> {
        let bytes = segue_volume::engine::Engine::mem_bytes(options) as usize + (64 << 20);
        let mut mem = Mem::new(bytes * 2);
        let mut drive = Drive::open(drive).map_err(EngineOpenError::from)?;
        let engine = engine::open_on(&mut drive, &mut mem, options)?;
        Local::with_machine(Box::new(engine), drive, mem, choice)
    }

    fn with_machine(machine: Box<dyn Machine>, drive: Drive, mem: Mem, choice: IoChoice) -> Result<Local, LocalError> {
        let bell = Bell::new().map_err(LocalError::Backend)?;
        let (mut io, _) = open_backend(choice, &bell).map_err(LocalError::Backend)?;
        let host = PoolHost::new(machine, drive);
        if host.on_file() {
            let (base, bytes) = mem.region();
            // Unregistered buffers work as well, only slower.
            io.register_memory(0, base, bytes.min(64 << 20));
        }
        let mut local = Local {
            io,
            mem,
            host: Some(host),
            started: Instant::now(),
            slots: Vec::new(),
            free: Vec::new(),
            done: Vec::with_capacity(1024),
            admin: None,
            alarms: Vec::new(),
        };
        local.feed(Event::Tick);
        Ok(local)
    }

    /// The kernel interface in use.
    pub fn io_mode(&self) -> IoMode {
        self.io.mode()
    }

    /// Alarms raised so far.
    pub fn alarms(&self) -> &[Alarm] {
        &self.alarms
    }

    /// Does an admin operation and waits for its answer.
    ///
    /// # Errors
    /// What the engine answers.
    pub fn admin(&mut self, op: AdminOp) -> Result<AdminReply, AdminError> {
        self.feed(Event::Admin { tag: Tag(u64::MAX), op });
        let mut ends = Vec::new();
        self.collect(&mut ends);
        loop {
            if let Some(answer) = self.admin.take() {
                return answer;
            }
            self.turn(&mut ends);
        }
    }

    /// Opens a writable attachment of a volume under a new ephemeral lease, and returns it.
    ///
    /// # Errors
    /// What the engine answers.
    pub fn attach(&mut self, volume: &str) -> Result<AttachId, AdminError> {
        let lease = segue_types::LeaseId(crate::chance::secret());
        let mode = segue_volume::op::AttachMode::Implicit {
            lease,
            holder: "local".to_owned(),
            now_unix_ms: crate::chance::unix_ms(),
        };
        self.attach_as(volume, mode)
    }

    /// Opens an attachment in a given mode.
    ///
    /// # Errors
    /// What the engine answers.
    pub fn attach_as(&mut self, volume: &str, mode: segue_volume::op::AttachMode) -> Result<AttachId, AdminError> {
        match self.admin(AdminOp::Attach { name: volume.to_owned(), mode, token_sha256: None })? {
            AdminReply::Attached(state) => Ok(state.attach),
            other => unreachable!("an attach is answered by an attachment, not {other:?}"),
        }
    }

    /// Does operations with up to `depth` of them in flight, in the order given; `each` hears how each one went.
    ///
    /// # Panics
    /// When `depth` is 0, or an operation's aligned span is larger than 256 KiB.
    pub fn run(
        &mut self,
        attach: AttachId,
        depth: usize,
        ops: impl IntoIterator<Item = LocalOp>,
        mut each: impl FnMut(LocalDone),
    ) {
        assert!(depth > 0, "at least one operation must be in flight");
        let mut ops = ops.into_iter().enumerate();
        let (mut flying, mut over) = (0, false);
        let mut ends = Vec::with_capacity(depth);
        loop {
            while flying < depth && !over {
                let Some((index, op)) = ops.next() else {
                    over = true;
                    break;
                };
                self.start(attach, index, op);
                flying += 1;
                self.collect(&mut ends);
                flying -= ends.len();
                ends.drain(..).for_each(&mut each);
            }
            if flying == 0 && over {
                return;
            }
            if flying > 0 {
                self.turn(&mut ends);
                flying -= ends.len();
                ends.drain(..).for_each(&mut each);
            }
        }
    }

    /// Reads into `to`, which decides the length: at most 256 KiB with its aligned span.
    ///
    /// # Errors
    /// The outcome, if it is not Ok.
    pub fn read(&mut self, attach: AttachId, offset: u64, to: &mut [u8]) -> Result<(), IoStatus> {
        let len = to.len() as u32;
        let buf = self.buffer(offset, len);
        self.one(attach, Op::Read { offset, len, buf })?;
        to.copy_from_slice(self.mem.get(buf.part((offset & 4095) as usize, to.len())));
        self.mem.free(buf);
        Ok(())
    }

    /// Writes `from`: at most 256 KiB with its aligned span.
    ///
    /// # Errors
    /// The outcome, if it is not Ok.
    pub fn write(&mut self, attach: AttachId, offset: u64, from: &[u8], fua: bool) -> Result<(), IoStatus> {
        let len = from.len() as u32;
        let buf = self.buffer(offset, len);
        self.mem.get_mut(buf.part((offset & 4095) as usize, from.len())).copy_from_slice(from);
        self.one(attach, Op::Write { offset, len, buf, fua })?;
        self.mem.free(buf);
        Ok(())
    }

    /// The region for buffers of operations given with [`Local::submit`].
    pub fn mem(&mut self) -> &mut Mem {
        &mut self.mem
    }

    /// Gives the engine one operation and does not wait; [`Local::wait`] tells its end under `index`. `free` is given
    /// back at its end: the operation's own buffer, or [`Buf::EMPTY`] when the caller goes on using it.
    pub fn submit(&mut self, attach: AttachId, index: usize, op: Op, free: Buf) {
        self.give(attach, index, op, free);
    }

    /// Waits until something ends, at most `limit`, and appends what did to `ends`. May append nothing.
    pub fn wait(&mut self, limit: Option<Duration>, ends: &mut Vec<LocalDone>) {
        let before = ends.len();
        self.collect(ends);
        if ends.len() == before {
            self.turn_within(limit, ends);
        }
    }

    fn one(&mut self, attach: AttachId, op: Op) -> Result<(), IoStatus> {
        let buf = match op {
            Op::Read { buf, .. } | Op::Write { buf, .. } => buf,
            _ => Buf::EMPTY,
        };
        self.give(attach, 0, op, Buf::EMPTY);
        let mut ends = Vec::with_capacity(1);
        while ends.is_empty() {
            self.collect(&mut ends);
            if ends.is_empty() {
                self.turn(&mut ends);
            }
        }
        if ends[0].status.is_ok() {
            return Ok(());
        }
        self.mem.free(buf);
        Err(ends[0].status)
    }

    fn buffer(&mut self, offset: u64, len: u32) -> Buf {
        let span = aligned_span(offset, len);
        assert!(span <= MAX_REQUEST_BYTES as usize, "an operation of {len} bytes is too large; cut it");
        self.mem.alloc(span).expect("memory for the operations in flight")
    }

    fn start(&mut self, attach: AttachId, index: usize, op: LocalOp) {
        let (op, buf) = match op {
            LocalOp::Read { offset, len } => {
                let buf = self.buffer(offset, len);
                (Op::Read { offset, len, buf }, buf)
            }
            LocalOp::Write { offset, len, fua } => {
                let buf = self.buffer(offset, len);
                (Op::Write { offset, len, buf, fua }, buf)
            }
            LocalOp::Flush => (Op::Flush, Buf::EMPTY),
            LocalOp::Discard { offset, len } => (Op::Discard { offset, len, fua: false }, Buf::EMPTY),
            LocalOp::WriteZeroes { offset, len } => {
                (Op::WriteZeroes { offset, len, no_hole: false, fua: false }, Buf::EMPTY)
            }
        };
        self.give(attach, index, op, buf);
    }

    fn give(&mut self, attach: AttachId, index: usize, op: Op, buf: Buf) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(Slot { index, started: self.now(), buf });
        self.feed(Event::Request { tag: Tag(slot as u64), attach, op });
    }

    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos + 1
    }

    fn feed(&mut self, event: Event) {
        let now = self.now();
        let host = self.host.as_mut().expect("the pool is open");
        host.feed(now, event, &mut self.mem, &mut *self.io, 0);
    }

    /// Waits for the drive or the engine's own time, and collects what ended.
    fn turn(&mut self, ends: &mut Vec<LocalDone>) {
        self.turn_within(None, ends);
    }

    fn turn_within(&mut self, limit: Option<Duration>, ends: &mut Vec<LocalDone>) {
        let host = self.host.as_mut().expect("the pool is open");
        let now = self.started.elapsed().as_nanos() as Nanos + 1;
        let limit_ns = limit.map(|limit| limit.as_nanos() as u64);
        let wait_ns = match (host.out.wake_at.map(|at| at.saturating_sub(now)), limit_ns) {
            (Some(engine), Some(limit)) => Some(engine.min(limit)),
            (None, None) => {
                assert!(host.ios_in_flight > 0, "the engine waits for nothing");
                None
            }
            (engine, limit) => engine.or(limit),
        };
        if host.ios_in_flight > 0 || wait_ns != Some(0) {
            self.io.turn(wait_ns, &mut self.done).expect("the kernel takes the wait");
        }
        let now = self.started.elapsed().as_nanos() as Nanos + 1;
        for end in self.done.drain(..).filter(|end| end.token != TOKEN_BELL) {
            host.io_done(now, Ticket(end.token as u32), end.result, &mut self.mem, &mut *self.io, 0);
        }
        self.collect(ends);
        // Background work comes after the answer that somebody waits for.
        let host = self.host.as_mut().expect("the pool is open");
        if self.admin.is_none() && host.out.wake_at.is_some_and(|at| at <= now) {
            host.feed(now, Event::Tick, &mut self.mem, &mut *self.io, 0);
            self.collect(ends);
        }
    }

    fn collect(&mut self, ends: &mut Vec<LocalDone>) {
        let now = self.now();
        let host = self.host.as_mut().expect("the pool is open");
        for reply in host.out.replies.drain(..) {
            let slot = self.slots[reply.tag.0 as usize].take().expect("a request is answered once");
            self.free.push(reply.tag.0 as u32);
            self.mem.free(slot.buf);
            ends.push(LocalDone { index: slot.index, status: reply.status, latency_ns: now - slot.started });
        }
        host.out.extents.clear();
        self.alarms.append(&mut host.out.alarms);
        if let Some((_, answer)) = host.out.admin.pop() {
            self.admin = Some(answer);
        }
    }

    /// Shuts the engine down in order and closes the drive.
    ///
    /// # Errors
    /// What the engine answers to the shutdown.
    pub fn close(mut self) -> Result<(), AdminError> {
        self.admin(AdminOp::Shutdown)?;
        let mut ends = Vec::new();
        while self.host.as_ref().is_some_and(|host| host.ios_in_flight > 0) {
            self.turn(&mut ends);
        }
        let host = self.host.take().expect("the pool is open");
        host.close(&mut self.mem);
        Ok(())
    }
}

impl Drop for Local {
    /// Without [`Local::close`] it is as if the power went off: the kernel's I/O is awaited, nothing else.
    fn drop(&mut self) {
        while self.host.as_ref().is_some_and(|host| host.ios_in_flight > 0) {
            if self.io.turn(None, &mut self.done).is_err() {
                return;
            }
            let ended = self.done.drain(..).filter(|end| end.token != TOKEN_BELL).count();
            if let Some(host) = &mut self.host {
                host.ios_in_flight -= ended;
            }
        }
    }
}
