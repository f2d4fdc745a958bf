//! From received bytes to requests in the engine.
//!
//! Owns: the parsing loop of a connection and the pieces of large requests. Never: looks inside a payload.
//! Invariant: a client that has its share in flight, or waits for memory, is not read until something of it ends.

use super::conn::{Job, NIL, Phase};
use super::finish::{Gather, Parent, Req};
use super::tls::Pulled;
use super::{Core, KIND_RECV, token};
use crate::counters::Counters;
use segue_volume::mem::Buf;
use segue_volume::op::{MAX_REQUEST_BYTES, Op, aligned_span};
use segue_wire::nbd::reply::ERROR_BYTES_MAX;
use segue_wire::nbd::server::Step;
use segue_wire::nbd::{Command, Errno, Request, pieces};

/// Extents asked for in one block status.
const EXTENTS_MAX: u32 = 1024;

/// What a job or the parser came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// Go on at once.
    More,
    /// Receive first.
    NeedBytes,
    /// Wait until something of this connection ends, or memory is free.
    Blocked,
    /// The client is done with, or not to be read now.
    Stop,
}

impl Core {
    /// The kernel received for a connection.
    pub(super) fn received(&mut self, id: u32, result: i32) {
        let conn = &mut self.conns[id];
        conn.recv_busy = false;
        conn.stalled_since = 0;
        if result == -libc::ECANCELED {
            // Its pool goes to another core; what the socket holds is received there.
            return self.mark(id);
        }
        if result <= 0 {
            conn.input_over = true;
            if result != 0 {
                conn.dead = true;
            }
            return self.mark(id);
        }
        let n = result as usize;
        if let Some(tls) = &mut conn.tls {
            tls.received(n);
        } else {
            let direct = conn.payload_rest().map_or(0, Buf::len).min(n);
            if let Some(job) = conn.job.as_mut().filter(|_| direct > 0) {
                job.filled += direct as u32;
            }
            conn.rx_end += n - direct;
        }
        self.mark(id);
    }

    /// Takes as many requests as there are bytes and room for, then receives again.
    pub(super) fn pump(&mut self, id: u32) {
        let held = self.is_held(id);
        loop {
            let conn = &mut self.conns[id];
            if conn.recv_busy {
                return;
            }
            conn.blocked = false;
            let serves_on = conn.job.is_some_and(|job| job.request.command == Command::Read) && !conn.dead;
            let flow = if (conn.input_over && !serves_on)
                || matches!(conn.phase, Phase::Waiting | Phase::Detaching)
                || conn.tls_next
                || conn.shaking
                || (held && conn.job.is_none())
            {
                Flow::Stop
            } else if conn.job.is_some() {
                self.advance(id)
            } else if conn.requests >= self.options.connection_requests_max
                || (conn.held_bytes() >= self.options.connection_bytes_max)
            {
                Flow::Blocked
            } else {
                self.parse(id)
            };
            match flow {
                Flow::More => {}
                Flow::Stop => return,
                Flow::Blocked => {
                    self.conns[id].blocked = true;
                    return;
                }
                Flow::NeedBytes if self.conns[id].tls.is_some() => match self.pull(id) {
                    Flow::NeedBytes => return self.receive(id),
                    Flow::More => {}
                    _ => return,
                },
                Flow::NeedBytes => return self.receive(id),
            }
        }
    }

    fn receive(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        if conn.tls.is_none() && conn.rx_end == conn.rx.len() {
            conn.compact();
        }
        conn.recv_busy = true;
        if conn.job.is_some() || conn.rx_start != conn.rx_end {
            conn.stalled_since = self.now;
        }
        let message = conn.receive_into(self.pools.mem(conn.pool));
        let fd = conn.raw();
        self.io.recv(token(KIND_RECV, id), fd, message);
    }

    /// Decrypts into where the bytes are wanted.
    fn pull(&mut self, id: u32) -> Flow {
        if self.shake_elsewhere(id) {
            return Flow::Stop;
        }
        let conn = &mut self.conns[id];
        let payload = conn.payload_rest();
        if payload.is_none() {
            conn.compact();
        }
        let room = match payload {
            Some(rest) => self.pools.mem(conn.pool).get_mut(rest),
            None => &mut conn.rx[conn.rx_end..],
        };
        let pulled = conn.tls.as_mut().expect("a connection with TLS").pull(room);
        match pulled {
            Pulled::NeedBytes => return Flow::NeedBytes,
            Pulled::Over => {
                conn.input_over = true;
                return Flow::Stop;
            }
            Pulled::Bytes(n) if payload.is_some() => {
                let job = conn.job.as_mut().expect("a payload is of a job");
                job.filled += n as u32;
            }
            Pulled::Bytes(n) => conn.rx_end += n,
        }
        Flow::More
    }

    /// Lets the session read on.
    fn parse(&mut self, id: u32) -> Flow {
        self.recovery_point("before a request", true);
        let conn = &mut self.conns[id];
        if let Some(step) = conn.stash.take() {
            return self.begin(id, step, 0);
        }
        let input = &conn.rx[conn.rx_start..conn.rx_end];
        let stepped = conn.session.step(input);
        let (used, step) = match stepped {
            Ok(stepped) => stepped,
            Err(error) => {
                tracing::debug!(holder = %conn.holder, %error, "connection dropped");
                conn.collect_output();
                conn.input_over = true;
                Counters::add(&self.counters.cut, 1);
                return Flow::Stop;
            }
        };
        conn.rx_start += used;
        if conn.phase == Phase::Handshake {
            conn.collect_output();
        }
        if self.in_danger() && step != Step::NeedBytes {
            self.conns[id].stash = Some(step);
            self.recovery_point("a request was parsed", false);
            self.conns[id].stash = None;
        }
        self.begin(id, step, used)
    }

    /// Does what the session made of `used` bytes.
    fn begin(&mut self, id: u32, step: Step, used: usize) -> Flow {
        let conn = &mut self.conns[id];
        match step {
            Step::Request(request) => self.request(id, request),
            Step::Write(request) => {
                conn.job = Some(Job::new(request));
                Flow::More
            }
            Step::Reject { request, errno } => {
                let replies = conn.replies;
                conn.tx.head(ERROR_BYTES_MAX, |out| replies.error(&request, errno, out));
                Flow::More
            }
            Step::NeedBytes if used > 0 && conn.rx_start < conn.rx_end => Flow::More,
            Step::NeedBytes => Flow::NeedBytes,
            Step::Disconnect => {
                conn.input_over = true;
                Flow::Stop
            }
            Step::StartTls => {
                conn.tls_next = true;
                Flow::Stop
            }
            Step::Lookup { enter } => {
                self.look_up(id, enter);
                self.stop_if_waiting(id)
            }
            Step::List => {
                self.list(id);
                self.stop_if_waiting(id)
            }
        }
    }

    fn stop_if_waiting(&self, id: u32) -> Flow {
        if self.conns[id].phase == Phase::Waiting { Flow::Stop } else { Flow::More }
    }

    /// A request without a payload of its own.
    fn request(&mut self, id: u32, request: Request) -> Flow {
        let (offset, len) = (request.offset, request.len);
        let fua = request.fua();
        let op = match request.command {
            Command::Read => {
                let span = aligned_span(offset, len as u32);
                if span > MAX_REQUEST_BYTES as usize {
                    self.conns[id].job = Some(Job::new(request));
                    return Flow::More;
                }
                let Some(buf) = self.alloc(id, span) else {
                    self.conns[id].job = Some(Job::new(request));
                    return Flow::Blocked;
                };
                self.submit(id, request, NIL, offset, len as u32, buf);
                return Flow::More;
            }
            Command::Flush => Op::Flush,
            Command::Trim => Op::Discard { offset, len, fua },
            Command::WriteZeroes if request.fast_zero() && request.no_hole() => {
                self.refuse(id, &request, Errno::NOTSUP);
                return Flow::More;
            }
            Command::WriteZeroes => Op::WriteZeroes { offset, len, no_hole: request.no_hole(), fua },
            Command::BlockStatus => {
                let extents_max = if request.one_extent() { 1 } else { EXTENTS_MAX };
                Op::BlockStatus { offset, len, extents_max }
            }
            Command::Cache => Op::Cache { offset, len },
            Command::Write | Command::Unknown => unreachable!("the session gives writes apart and refuses the unknown"),
        };
        self.issue(id, Req::new(id, request, NIL, (Buf::EMPTY, offset, 0), self.now), op);
        Flow::More
    }

    fn refuse(&mut self, id: u32, request: &Request, errno: Errno) {
        let conn = &mut self.conns[id];
        let replies = conn.replies;
        conn.tx.head(ERROR_BYTES_MAX, |out| replies.error(request, errno, out));
    }

    /// Takes I/O memory for a connection, or puts it among those that wait for some.
    pub(super) fn alloc(&mut self, id: u32, bytes: usize) -> Option<Buf> {
        let conn = &mut self.conns[id];
        let pool = &mut self.pools[conn.pool];
        if pool.mem.used_bytes() + bytes + pool.reserve_bytes <= pool.mem.capacity_bytes()
            && let Some(buf) = pool.mem.alloc(bytes)
        {
            conn.engine_bytes += bytes;
            return Some(buf);
        }
        Counters::add(&self.counters.mem_waits, 1);
        pool.hunger_used_bytes = pool.mem.used_bytes();
        if !conn.hungry {
            conn.hungry = true;
            self.hungry.push(id);
        }
        self.arm_check();
        None
    }

    /// Hands a piece of a read or write to the engine.
    fn submit(&mut self, id: u32, request: Request, parent: u32, offset: u64, len: u32, buf: Buf) {
        let op = match request.command {
            Command::Write => Op::Write { offset, len, buf, fua: request.fua() },
            _ => Op::Read { offset, len, buf },
        };
        if parent != NIL {
            let pool = self.conns[id].pool;
            self.pools[pool].parents[parent].in_flight += 1;
        }
        self.issue(id, Req::new(id, request, parent, (buf, offset, len), self.now), op);
    }

    /// Carries the connection's job on, as far as bytes, room and memory allow.
    fn advance(&mut self, id: u32) -> Flow {
        let conn = &mut self.conns[id];
        let mut job = conn.job.expect("there is a job");
        let pool = conn.pool;
        let write = job.request.command == Command::Write;
        if job.parent == NIL && aligned_span(job.at, job.request.len as u32) > MAX_REQUEST_BYTES as usize {
            let gather = (!write && !conn.replies.fragments(&job.request)).then(|| Gather::new(job.at));
            if gather.is_some() && conn.requests > 0 {
                // No other reply may come between its pieces, so it runs alone.
                return Flow::Blocked;
            }
            job.parent = self.pools[pool].parents.insert(Parent::new(id, job.request, gather, self.now));
            self.conns[id].job = Some(job);
        }
        while job.left > 0 {
            if job.buf.is_empty() {
                let (_, piece) = pieces(job.at, job.left, MAX_REQUEST_BYTES).next().expect("there is something left");
                match self.room_for_piece(id, &job, piece) {
                    Some(buf) => (job.buf, job.piece, job.filled) = (buf, piece, 0),
                    None => return Flow::Blocked,
                }
                self.conns[id].job = Some(job);
            }
            if write && !self.fill(id, &mut job) {
                return Flow::NeedBytes;
            }
            let (at, piece, buf) = (job.at, job.piece, job.buf);
            job.at += piece as u64;
            job.left -= piece as u64;
            job.buf = Buf::EMPTY;
            let last = job.left == 0;
            let gathers = job.parent != NIL && self.pools[pool].parents[job.parent].gather.is_some();
            // A gathered read keeps the connection to itself until its last piece has been answered.
            self.conns[id].job = if last && !gathers { None } else { Some(job) };
            if job.parent != NIL && last {
                self.pools[pool].parents[job.parent].all_issued = true;
            }
            self.submit(id, job.request, job.parent, at, piece, buf);
            // The piece may have ended already, and with it the job.
            match self.conns[id].job {
                Some(now) if !last => job = now,
                _ => break,
            }
        }
        match self.conns[id].job {
            Some(_) => Flow::Blocked,
            None => Flow::More,
        }
    }

    fn room_for_piece(&mut self, id: u32, job: &Job, piece: u32) -> Option<Buf> {
        let conn = &self.conns[id];
        let span = aligned_span(job.at, piece);
        let busy = conn.requests > 0 || conn.held_bytes() > 0;
        if busy && conn.held_bytes() + span > self.options.connection_bytes_max {
            if job.parent != NIL {
                self.pools[conn.pool].parents[job.parent].full = true;
                self.emit_gathered(id, job.parent);
            }
            return None;
        }
        self.alloc(id, span)
    }

    /// Copies what was received of a piece. False when more has to be received.
    fn fill(&mut self, id: u32, job: &mut Job) -> bool {
        let conn = &mut self.conns[id];
        let n = (conn.rx_end - conn.rx_start).min((job.piece - job.filled) as usize);
        if n > 0 {
            let skip = (job.at & 4095) as usize + job.filled as usize;
            let to = self.pools[conn.pool].mem.get_mut(job.buf.part(skip, n));
            to.copy_from_slice(&conn.rx[conn.rx_start..conn.rx_start + n]);
            conn.rx_start += n;
            job.filled += n as u32;
            conn.job = Some(*job);
        }
        job.filled == job.piece
    }
}

impl Job {
    fn new(request: Request) -> Job {
        Job { request, at: request.offset, left: request.len, parent: NIL, buf: Buf::EMPTY, piece: 0, filled: 0 }
    }
}
