//! Panics on a core outside its engines: the work of one connection is done again, or that connection is cut.
//!
//! Owns: the guards around the parts of a turn, and what a caught panic costs. Never: lets a panic end the core while it gets on.
//! Invariant: only a panic at a recovery point lets a connection go on; after any other its state is not trusted.

use super::Core;
use super::conn::NIL;
use super::pools::Pool;
use crate::guard::{Caught, guard};
use crate::pool::Recovery;
use segue_types::{RecoveryLevel, TaskKind};
use segue_volume::fault::Faults;
use segue_volume::op::Reply;
use std::time::Instant;

/// Times in a row that a connection's work is done again after a panic; then it is cut.
const TRIES_MAX: u8 = 8;
/// Panics after which a connection is not even looked at any more: its end panics too.
const PANICS_MAX: u8 = 16;
/// Parts of turns that panic in a row before the core ends: it gets nowhere.
const ROW_MAX: u32 = 1000;

/// What a core knows of its panics.
pub(super) struct Danger {
    faults: Faults,
    /// The state of the connection at work is whole at this moment.
    whole: bool,
    row: u32,
}

impl Danger {
    pub(super) fn new() -> Danger {
        Danger { faults: Faults::OFF, whole: false, row: 0 }
    }
}

impl Core {
    /// Makes tasks of this core and of its pools' engines panic as is said, from now on.
    pub(super) fn inject(&mut self, faults: &Faults) {
        for at in 0..self.pools.end() {
            if self.pools.get(at).is_some() {
                let mine = faults.reseeded((self.number as u64) << 32 | (at as u64 + 1));
                self.pools[at].host.set_faults(&mine);
            }
        }
        self.danger.faults = faults.reseeded((self.number as u64) << 32);
    }

    /// A point in a connection's work where it could as well be looked at later.
    #[inline]
    pub(super) fn recovery_point(&mut self, place: &'static str, entry: bool) {
        if self.danger.faults.is_on() {
            self.danger.whole = self.danger.faults.tells();
            self.danger.faults.point(TaskKind::Connection, place, entry);
            self.danger.whole = false;
        }
    }

    /// True when parsed requests must be kept for the case that their work is done again.
    #[inline]
    pub(super) fn in_danger(&self) -> bool {
        self.danger.faults.is_on()
    }

    /// Does a part of the work of a connection (`NIL`: of none).
    #[inline]
    pub(super) fn attend(&mut self, id: u32, work: impl FnOnce(&mut Core)) {
        let done = guard(|| work(self));
        if let Err(caught) = done {
            self.failed(id, caught);
        } else if let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.panics > 0 && !conn.dead) {
            conn.panics = 0;
        }
    }

    #[cold]
    fn failed(&mut self, id: u32, caught: Caught) {
        let since = Instant::now();
        let whole = std::mem::replace(&mut self.danger.whole, false);
        self.danger.row += 1;
        assert!(self.danger.row < ROW_MAX, "a core gets nowhere: {}", caught.message);
        let task = caught.injected.unwrap_or(TaskKind::Connection);
        let mut level = RecoveryLevel::Task;
        if let Some(conn) = self.conns.get_mut(id) {
            conn.panics = conn.panics.saturating_add(1);
            if !whole || conn.panics > TRIES_MAX {
                level = RecoveryLevel::Connection;
                conn.cut();
            }
            conn.dirty = conn.panics > PANICS_MAX;
            self.mark(id);
        }
        let took_ns = since.elapsed().as_nanos() as u64;
        self.tell_recovery("", Recovery { task, level, took_ns, said: caught.message });
    }

    /// A whole turn went by.
    pub(super) fn turn_ended(&mut self) {
        self.danger.row = 0;
    }

    /// Hands an engine's reply to its connection.
    #[inline]
    pub(super) fn answer(&mut self, pool: usize, reply: Reply, extent: usize) {
        let id = self.pools[pool].reqs[reply.tag.0 as u32].conn;
        let done = guard(|| {
            self.recovery_point("before a reply", true);
            self.finish(pool, reply, extent);
        });
        if let Err(caught) = done {
            self.answer_failed(id, (pool, reply, extent), caught);
        }
    }

    #[cold]
    fn answer_failed(&mut self, id: u32, (pool, reply, extent): (usize, Reply, usize), caught: Caught) {
        let whole = self.danger.whole;
        self.failed(id, caught);
        if whole && self.conns.get(id).is_some_and(|conn| !conn.dead) {
            return self.answer(pool, reply, extent);
        }
        // The connection is cut; what the request held goes back.
        let Pool { reqs, share, mem, .. } = &mut self.pools[pool];
        let Some(req) = reqs.get(reply.tag.0 as u32) else { return };
        if req.handed != 0 {
            share.drive.complete(req.slot, &req.charge, self.now - req.handed, self.now);
        }
        let (buf, parent, watched) = (req.buf, req.parent, req.watched);
        reqs.remove(reply.tag.0 as u32);
        mem.free(buf);
        self.watch.end(watched);
        if let Some(conn) = self.conns.get_mut(id) {
            conn.requests -= 1;
            conn.engine_bytes -= buf.len();
        }
        if parent != NIL {
            self.pools[pool].parents[parent].in_flight -= 1;
        }
    }

    /// Counts a recovery and tells of it.
    pub(super) fn tell_recovery(&self, pool: &str, recovery: Recovery) {
        self.counters.recovered(&recovery);
        self.shared.tell_recovery(pool, recovery);
    }
}
