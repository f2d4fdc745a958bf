//! From the engine's answers to replies on the wire.
//!
//! Owns: what is in flight and how its answer is told. Never: decides an outcome.
//! Invariant: every request is answered once, and its buffer is freed or travels with the answer.

use super::conn::NIL;
use super::pools::Pool;
use super::{Core, KIND_SEND, token};
use crate::counters::{Counters, OpClass};
use segue_sched::qos::{Charge, CostModel, Kind, Slot};
use segue_sched::scopes::Task;
use segue_types::{IoStatus, Nanos};
use segue_volume::mem::Buf;
use segue_volume::op::{Alarm, Op, Reply};
use segue_wire::nbd::reply::{ERROR_BYTES_MAX, HEADER_BYTES_MAX};
use segue_wire::nbd::{Command, Errno, Request};

/// A request, or a piece of one, that the engine has.
pub(super) struct Req {
    pub(super) conn: u32,
    pub(super) request: Request,
    pub(super) parent: u32,
    pub(super) buf: Buf,
    /// Its range, for those with a buffer.
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) started: Nanos,
    /// What is asked of the engine, its volume's place among those that share the drive, and what it is charged.
    pub(super) op: Op,
    pub(super) slot: Slot,
    pub(super) charge: Charge,
    /// When the engine got it; 0 while it waits.
    pub(super) handed: Nanos,
    /// Its place among those whose locks are watched.
    pub(super) watched: Option<Task>,
}

impl Req {
    /// A request that was not charged yet.
    pub(super) fn new(conn: u32, request: Request, parent: u32, range: (Buf, u64, u32), started: Nanos) -> Req {
        let (buf, offset, len) = range;
        let charge = CostModel::DRIVE.charge(Kind::Other, 0, false);
        Req {
            conn,
            request,
            parent,
            buf,
            offset,
            len,
            started,
            op: Op::Flush,
            slot: Slot(0),
            charge,
            handed: 0,
            watched: None,
        }
    }
}

/// A request that was cut into pieces.
pub(super) struct Parent {
    pub(super) conn: u32,
    pub(super) request: Request,
    pub(super) in_flight: u32,
    pub(super) all_issued: bool,
    pub(super) status: IoStatus,
    pub(super) gather: Option<Gather>,
    /// No room for another piece: what is gathered must go out.
    pub(super) full: bool,
    started: Nanos,
}

/// A read whose pieces must go out in order under one header.
pub(super) struct Gather {
    /// Offset of the next byte to go out.
    next: u64,
    header_sent: bool,
    /// Pieces that came before their turn: offset, length, buffer.
    held: Vec<(u64, u32, Buf)>,
}

impl Gather {
    pub(super) fn new(offset: u64) -> Gather {
        Gather { next: offset, header_sent: false, held: Vec::new() }
    }

    pub(super) fn into_buffers(self) -> impl Iterator<Item = Buf> {
        self.held.into_iter().map(|piece| piece.2)
    }
}

impl Parent {
    pub(super) fn new(conn: u32, request: Request, gather: Option<Gather>, now: Nanos) -> Parent {
        let status = IoStatus::Ok;
        Parent { conn, request, in_flight: 0, all_issued: false, status, gather, full: false, started: now }
    }
}

fn class_of(command: Command) -> OpClass {
    match command {
        Command::Read => OpClass::Read,
        Command::Write => OpClass::Write,
        Command::Flush => OpClass::Flush,
        Command::Trim | Command::WriteZeroes => OpClass::Trim,
        Command::Cache | Command::BlockStatus | Command::Unknown => OpClass::Other,
    }
}

impl Core {
    /// Takes what an engine's steps left.
    pub(super) fn drain(&mut self, pool: usize) {
        let mut extent = 0;
        for at in 0..self.pools[pool].host.out.replies.len() {
            let reply = self.pools[pool].host.out.replies[at];
            self.answer(pool, reply, extent);
            extent += reply.extents as usize;
        }
        let out = &mut self.pools[pool].host.out;
        out.replies.clear();
        out.extents.clear();
        let rare = !out.alarms.is_empty() || !out.admin.is_empty();
        if rare || !self.pools[pool].host.recoveries.is_empty() {
            self.drain_rare(pool);
        }
    }

    #[cold]
    fn drain_rare(&mut self, pool: usize) {
        let alarms: Vec<Alarm> = self.pools[pool].host.out.alarms.drain(..).collect();
        for alarm in alarms {
            self.shared.raise(&self.pools[pool].name, alarm);
        }
        for recovery in std::mem::take(&mut self.pools[pool].host.recoveries) {
            self.tell_recovery(&self.pools[pool].name, recovery);
        }
        let admin: Vec<_> = self.pools[pool].host.out.admin.drain(..).collect();
        for (tag, result) in admin {
            self.admin_done(pool, tag.0 as u32, result);
        }
    }

    pub(super) fn finish(&mut self, pool: usize, reply: Reply, extent: usize) {
        let Pool { reqs, share, .. } = &mut self.pools[pool];
        let req = reqs.remove(reply.tag.0 as u32);
        if req.handed != 0 {
            share.drive.complete(req.slot, &req.charge, self.now - req.handed, self.now);
        }
        self.watch.end(req.watched);
        self.answered += 1;
        let id = req.conn;
        let conn = &mut self.conns[id];
        conn.requests -= 1;
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(id);
        }
        if req.parent != NIL {
            return self.finish_piece(pool, req, reply.status);
        }
        let ok = reply.status.is_ok();
        let latency_ns = self.now - req.started;
        self.counters.request(class_of(req.request.command), ok, req.request.len, latency_ns);
        share.answered(req.slot, latency_ns);
        conn.engine_bytes -= req.buf.len();
        let replies = conn.replies;
        if conn.dead || !ok || req.request.command != Command::Read {
            self.pools[pool].mem.free(req.buf);
        }
        if conn.dead {
            return;
        }
        if !ok {
            let errno = Errno::from(reply.status);
            return conn.tx.head(ERROR_BYTES_MAX, |out| replies.error(&req.request, errno, out));
        }
        match req.request.command {
            Command::Read => {
                let data = req.buf.part((req.offset & 4095) as usize, req.len as usize);
                conn.tx.head_and_data(HEADER_BYTES_MAX, data, req.buf, |out| {
                    replies.data(&req.request, req.offset, req.len, true, out)
                });
            }
            Command::BlockStatus if reply.extents > 0 => {
                let extents = &self.pools[pool].host.out.extents[extent..extent + reply.extents as usize];
                let runs = extents.iter().map(|extent| (extent.len, extent.hole));
                conn.tx.append(|heads| replies.block_status(&req.request, runs, heads));
            }
            Command::BlockStatus => {
                conn.tx.head(ERROR_BYTES_MAX, |out| replies.error(&req.request, Errno::IO, out));
            }
            _ => conn.tx.head(HEADER_BYTES_MAX, |out| replies.ok(&req.request, out)),
        }
    }

    /// A piece of a large request ended.
    fn finish_piece(&mut self, at: usize, req: Req, status: IoStatus) {
        let id = req.conn;
        let pool = &mut self.pools[at];
        let parent = &mut pool.parents[req.parent];
        parent.in_flight -= 1;
        let over = parent.all_issued && parent.in_flight == 0;
        let conn = &mut self.conns[id];
        if !status.is_ok() && parent.status.is_ok() {
            parent.status = status;
        }
        let wanted = status.is_ok() && !conn.dead && req.request.command == Command::Read;
        match &mut parent.gather {
            Some(gather) if wanted => {
                let at = gather.held.partition_point(|piece| piece.0 < req.offset);
                gather.held.insert(at, (req.offset, req.len, req.buf));
            }
            None if wanted => {
                let replies = conn.replies;
                let last = over && parent.status.is_ok();
                let data = req.buf.part((req.offset & 4095) as usize, req.len as usize);
                conn.engine_bytes -= req.buf.len();
                conn.tx.head_and_data(HEADER_BYTES_MAX, data, req.buf, |out| {
                    replies.data(&req.request, req.offset, req.len, last, out)
                });
            }
            _ => {
                conn.engine_bytes -= req.buf.len();
                pool.mem.free(req.buf);
            }
        }
        if pool.parents[req.parent].gather.is_some() {
            return self.after_gathered(at, id, req.parent);
        }
        if over {
            self.finish_parent(at, req.parent);
        }
    }

    /// All pieces of a request ended: counts it, and tells the end unless data told it.
    fn finish_parent(&mut self, pool: usize, number: u32) {
        let parent = self.pools[pool].parents.remove(number);
        let ok = parent.status.is_ok();
        let request = parent.request;
        self.counters.request(class_of(request.command), ok, request.len, self.now - parent.started);
        let conn = &mut self.conns[parent.conn];
        if let Some(slot) = conn.slot {
            self.pools[pool].share.answered(slot, self.now - parent.started);
        }
        let replies = conn.replies;
        if conn.dead || (ok && request.command == Command::Read) {
            return;
        }
        if ok {
            conn.tx.head(HEADER_BYTES_MAX, |out| replies.ok(&request, out));
        } else {
            conn.tx.head(ERROR_BYTES_MAX, |out| replies.error(&request, Errno::from(parent.status), out));
        }
    }

    fn after_gathered(&mut self, at: usize, id: u32, number: u32) {
        let pool = &mut self.pools[at];
        let parent = &mut pool.parents[number];
        let conn = &mut self.conns[id];
        let gather = parent.gather.as_mut().expect("a gathered read");
        if !parent.status.is_ok() || conn.dead {
            for (_, _, buf) in gather.held.drain(..) {
                conn.engine_bytes -= buf.len();
                pool.mem.free(buf);
            }
            parent.all_issued = true;
            if let Some(job) = &mut conn.job {
                job.left = 0;
            }
            if gather.header_sent && !conn.dead {
                // The header promised bytes that do not exist: only an end of the connection can tell that.
                conn.cut();
            }
        } else if gather.header_sent || parent.full || (parent.all_issued && parent.in_flight == 0) {
            self.emit_gathered(id, number);
        }
        let parent = &self.pools[at].parents[number];
        if parent.all_issued && parent.in_flight == 0 {
            self.conns[id].job = None;
            self.finish_parent(at, number);
        }
    }

    /// Sends the pieces of a gathered read whose turn has come.
    pub(super) fn emit_gathered(&mut self, id: u32, number: u32) {
        let conn = &mut self.conns[id];
        let parent = &mut self.pools[conn.pool].parents[number];
        let replies = conn.replies;
        let request = parent.request;
        let Some(gather) = parent.gather.as_mut().filter(|_| parent.status.is_ok() && !conn.dead) else { return };
        let in_turn = |gather: &Gather| gather.held.first().is_some_and(|piece| piece.0 == gather.next);
        while in_turn(gather) {
            let (offset, len, buf) = gather.held.remove(0);
            if !gather.header_sent {
                gather.header_sent = true;
                conn.tx.head(HEADER_BYTES_MAX, |out| {
                    replies.data(&request, request.offset, request.len as u32, true, out)
                });
            }
            gather.next += len as u64;
            let data = buf.part((offset & 4095) as usize, len as usize);
            conn.engine_bytes -= buf.len();
            conn.tx.head_and_data(0, data, buf, |_| 0);
        }
    }

    /// Gives what a connection is to send to the kernel.
    pub(super) fn flush(&mut self, id: u32) {
        self.recovery_point("before a send", false);
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.tx.busy || conn.dead || conn.shaking {
            return;
        }
        if let Some(tls) = &mut conn.tls {
            conn.tx.encrypt(tls, self.pools.mem(conn.pool));
        }
        if !conn.tx.ready() {
            return;
        }
        let message = conn.tx.load(self.pools.mem(conn.pool));
        conn.tx.busy = true;
        let fd = conn.raw();
        let patient = conn.waits_for_sends() || !self.hungry.is_empty();
        self.io.send(token(KIND_SEND, id), fd, message, patient);
    }

    /// The kernel sent for a connection.
    pub(super) fn sent(&mut self, id: u32, result: i32) {
        let conn = &mut self.conns[id];
        conn.tx.busy = false;
        match result {
            n if n >= 0 => {
                conn.stalled_since = 0;
                let over = conn.tx.sent(n as usize, self.pools.mem(conn.pool));
                if let Some(tls) = conn.tls.as_mut().filter(|_| over) {
                    tls.sent();
                }
                if !over && !conn.dead {
                    return self.send_patiently(id);
                }
            }
            // Its pool goes to another core, where the rest is sent.
            errno if errno == -libc::ECANCELED => return,
            errno if errno == -libc::EAGAIN => return self.send_patiently(id),
            _ => conn.cut(),
        }
        let conn = &self.conns[id];
        if !conn.tx.is_empty() || conn.waits_for_sends() {
            self.mark(id);
        }
    }

    /// The client does not take what it asked for as fast as it asks.
    fn send_patiently(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        if conn.dead {
            return self.mark(id);
        }
        if conn.stalled_since == 0 {
            conn.stalled_since = self.now;
        }
        conn.tx.busy = true;
        let message = conn.tx.load(self.pools.mem(conn.pool));
        let fd = conn.raw();
        self.io.send(token(KIND_SEND, id), fd, message, true);
        Counters::add(&self.counters.send_stalls, 1);
    }
}
