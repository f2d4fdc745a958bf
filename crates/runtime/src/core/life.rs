//! How connections begin and end.
//!
//! Owns: accepting, deadlines, cutting and closing. Never: ends a connection that the kernel or an engine still uses.
//! Invariant: every descriptor, buffer and attachment of a connection is given back once.

use super::conn::{Conn, Phase};
use super::tls::TlsStream;
use super::{CHECK_NS, Core, KIND_ACCEPT, token};
use crate::counters::Counters;
use crate::listen;
use crate::options::{ListenAddr, Tls};
use segue_types::{IoStatus, Nanos};
use segue_volume::op::AdminOp;
use segue_wire::nbd::Command;
use segue_wire::nbd::server::{Session, TlsPolicy};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::conn::NIL;
use super::control::AdminKind;

/// How long a closing connection may take to send its last replies.
const CLOSE_NS: Nanos = 5_000_000_000;
/// How long a client may owe bytes, or not take them, while others wait for memory.
const STALL_NS: Nanos = 5_000_000_000;

pub(super) struct Listening {
    pub(super) fd: OwnedFd,
    pub(super) addr: ListenAddr,
    pub(super) tls: Tls,
    /// The kernel waits for a connection.
    pub(super) armed: bool,
    pub(super) over: bool,
}

impl Core {
    pub(super) fn arm_accept(&mut self, number: u32) {
        let listening = &mut self.listeners[number];
        listening.armed = true;
        let fd = listening.fd.as_raw_fd();
        self.io.accept(token(KIND_ACCEPT, number), fd);
    }

    /// The kernel took a connection, or failed to.
    pub(super) fn accepted(&mut self, number: u32, result: i32) {
        let listening = &mut self.listeners[number];
        listening.armed = false;
        if result >= 0 {
            let fd = unsafe { OwnedFd::from_raw_fd(result) };
            if !listening.over {
                let from = self.clock();
                self.welcome(number, fd);
                self.storm_step(from);
            }
        }
        if self.listeners[number].over {
            return self.drop_listener(number);
        }
        if matches!(-result, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) {
            // Out of descriptors: the next check tries again, so that the loop does not spin on it.
            return self.arm_check();
        }
        if !self.accept_rests(number) {
            self.arm_accept(number);
        }
    }

    pub(super) fn drop_listener(&mut self, number: u32) {
        let listening = self.listeners.remove(number);
        self.io.remove_socket(listening.fd.as_raw_fd());
        if let ListenAddr::Unix(path) = &listening.addr {
            // Somebody may have removed or replaced it already: nothing to add to that.
            let _ = std::fs::remove_file(path);
        }
    }

    fn welcome(&mut self, number: u32, fd: OwnedFd) {
        let full = self.conns.len() >= self.options.connections_max;
        let (Ok(holder), false) = (listen::greet(fd.as_raw_fd()), full) else {
            return Counters::add(&self.counters.refused, 1);
        };
        let (policy, config) = match &self.listeners[number].tls {
            Tls::Off => (TlsPolicy::Off, None),
            Tls::Offered(config) => (TlsPolicy::Offered, Some(config.clone())),
            Tls::Required(config) => (TlsPolicy::Required, Some(config.clone())),
        };
        let Some(id) = self.seat(fd, Session::new(policy), holder) else {
            return Counters::add(&self.counters.refused, 1);
        };
        Counters::add(&self.counters.accepted, 1);
        let timeout_ns = self.options.handshake_timeout.as_nanos() as Nanos;
        let conn = &mut self.conns[id];
        conn.tls_config = config;
        conn.deadline = self.now + timeout_ns;
        conn.collect_output();
        self.mark(id);
        self.arm_check();
    }

    /// Gives a connection its place. `None` when the kernel does not take it.
    pub(super) fn seat(&mut self, fd: OwnedFd, session: Session, holder: String) -> Option<u32> {
        self.io.add_socket(fd.as_raw_fd()).ok()?;
        self.generation = self.generation.wrapping_add(1);
        Some(self.conns.insert(Conn::new(fd, self.generation, session, holder)))
    }

    /// Moves a connection on that waits for nothing but itself: TLS, travel, the end.
    pub(super) fn settle(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.tls_next && !conn.dead && conn.tx.is_empty() {
            self.start_tls(id);
        }
        let conn = &mut self.conns[id];
        if conn.travels() && conn.tx.is_empty() && !conn.dead {
            return self.depart(id);
        }
        if !conn.input_over || conn.phase == Phase::Detaching || (conn.phase == Phase::Waiting && !conn.travels()) {
            return;
        }
        if !conn.recv_busy {
            self.abort_job(id);
        }
        if self.conns[id].dead && self.conns[id].requests > 0 {
            self.cancel_waiting(id);
        }
        let conn = &mut self.conns[id];
        if conn.dead && !conn.tx.busy {
            conn.tx.abandon(self.pools.mem(conn.pool));
        }
        if conn.requests > 0 || conn.recv_busy || conn.job.is_some() || !conn.tx.is_empty() {
            if conn.deadline == 0 || conn.phase == Phase::Handshake {
                conn.deadline = self.now + CLOSE_NS;
                conn.phase = if conn.phase == Phase::Handshake { Phase::Open } else { conn.phase };
                self.arm_check();
            }
            return;
        }
        if let Some(attach) = conn.attach.take() {
            conn.phase = Phase::Detaching;
            let (pool, generation) = (conn.pool, conn.generation);
            return self.admin(pool, AdminKind::Detach { conn: id, generation }, AdminOp::Detach { attach });
        }
        self.close(id);
    }

    pub(super) fn close(&mut self, id: u32) {
        let conn = self.conns.remove(id);
        if let Some(slot) = conn.slot {
            self.leave_share(conn.pool, slot);
        }
        assert!(conn.requests == 0 && !conn.recv_busy && conn.tx.is_empty(), "closed while in use");
        self.io.remove_socket(conn.raw());
    }

    fn start_tls(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        conn.tls_next = false;
        let config = conn.tls_config.clone().expect("TLS is agreed only where there is a configuration");
        match TlsStream::new(config) {
            Ok(tls) => {
                conn.tls = Some(Box::new(tls));
                conn.session.tls_started();
                self.mark(id);
            }
            Err(error) => {
                tracing::warn!(%error, "TLS cannot begin");
                conn.cut();
            }
        }
    }

    /// The client will not send the rest of a write, or not take the rest of a read.
    fn abort_job(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        let Some(job) = conn.job else { return };
        if job.request.command == Command::Read && !conn.dead {
            return;
        }
        conn.job = None;
        conn.engine_bytes -= job.buf.len();
        let pool = &mut self.pools[conn.pool];
        pool.mem.free(job.buf);
        if job.parent == NIL {
            return;
        }
        let parent = &mut pool.parents[job.parent];
        parent.all_issued = true;
        parent.status = IoStatus::Io;
        if parent.in_flight == 0 {
            let parent = pool.parents.remove(job.parent);
            for buf in parent.gather.into_iter().flat_map(|gather| gather.into_buffers()) {
                conn.engine_bytes -= buf.len();
                pool.mem.free(buf);
            }
        }
    }

    /// Sees to it that timeouts are looked at soon.
    pub(super) fn arm_check(&mut self) {
        if self.next_check == 0 {
            self.next_check = self.now + CHECK_NS;
        }
    }

    /// Cuts who is over time, and who stalls while others starve.
    pub(super) fn check_deadlines(&mut self) {
        if self.next_check == 0 || self.now < self.next_check {
            return;
        }
        self.next_check = 0;
        let (mut again, mut stalled) = (!self.hungry.is_empty(), None);
        for id in 0..self.conns.end() {
            let Some(conn) = self.conns.get(id) else { continue };
            again |= conn.deadline != 0;
            if conn.deadline != 0 && self.now >= conn.deadline && !conn.dead {
                self.cut(id, "out of time");
            } else if conn.stalled_since != 0 && conn.held_bytes() > 0 && !conn.dead {
                stalled = stalled.min(Some((conn.stalled_since, id))).or(Some((conn.stalled_since, id)));
            }
        }
        if let Some((since, id)) = stalled.filter(|_| !self.hungry.is_empty())
            && self.now - since >= STALL_NS
        {
            self.cut(id, "it stalls while others wait for memory");
        }
        for number in 0..self.listeners.end() {
            if self.listeners.get(number).is_some_and(|listening| !listening.armed && !listening.over) {
                self.arm_accept(number);
            }
        }
        if again {
            self.arm_check();
        }
    }

    fn cut(&mut self, id: u32, why: &'static str) {
        let conn = &mut self.conns[id];
        tracing::info!(holder = %conn.holder, why, "connection cut");
        conn.cut();
        Counters::add(&self.counters.cut, 1);
        self.mark(id);
    }
}
