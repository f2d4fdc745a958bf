//! A pool's way from one core to another: no data moves, and clients notice nothing but a short pause.
//!
//! Owns: the pause, what travels, and the numbers it gets on the new core. Never: waits for a drive.
//! Invariant: at every moment one core has the pool; what was in flight on the old one ends on the new one.
//!
//! The drive's operations under way are not waited for: their memory travels without changing its address, and their
//! ends are sent after the pool. Operations of sockets are cancelled, which takes one turn of the loop.

use super::conn::Conn;
use super::control::{AdminKind, Msg};
use super::pools::{Leaving, NO_POOL, Pool};
use super::{Core, KIND_RECV, KIND_SEND, token};
use crate::listen;
use crate::options::{MovePoolError, MoveReport};
use crate::runtime::MoveReply;
use segue_volume::op::{Event, Ticket};

/// A pool with its connections, and the numbers these had.
pub(crate) struct PoolArrival {
    pool: Box<Pool>,
    conns: Vec<(u32, Conn)>,
}

impl Core {
    /// Another thread wants a pool to go to another core.
    pub(super) fn move_pool(&mut self, name: &str, to: usize, reply: MoveReply) {
        let Some(at) = self.pools.position(name) else {
            return match self.whereabouts(name) {
                Some(core) => self.shared.cores[core].send(Msg::MovePool { pool: name.to_owned(), to, reply }),
                None => reply(Err(MovePoolError::NoPool)),
            };
        };
        let held = self.holds_any(at);
        let pool = &mut self.pools[at];
        if self.stopping.is_some() {
            return reply(Err(MovePoolError::Stopped));
        }
        if pool.leaving.is_some() || held {
            return reply(Err(MovePoolError::Moving));
        }
        if to == self.number {
            return reply(Ok(MoveReport { from: to, to, stall_ns: 0, connections: 0 }));
        }
        if !self.shared.pool_departs() {
            return reply(Err(MovePoolError::Stopped));
        }
        pool.leaving = Some(Leaving { from: self.number, to, since: self.now, reply });
        self.leaving += 1;
        for id in 0..self.conns.end() {
            let Some(conn) = self.conns.get(id).filter(|conn| conn.pool == at) else { continue };
            if conn.recv_busy {
                self.io.cancel(token(KIND_RECV, id), conn.raw());
            }
            if conn.tx.busy {
                self.io.cancel(token(KIND_SEND, id), conn.raw());
            }
        }
    }

    /// The core to ask for a pool that is not here: where it went from here, or where it is said to be.
    pub(super) fn whereabouts(&self, pool: &str) -> Option<usize> {
        let said = || self.shared.core_of(pool).filter(|core| *core != self.number);
        self.pools.departed(pool).or_else(said)
    }

    /// True for a connection whose pool is about to go.
    pub(super) fn rests(&self, id: u32) -> bool {
        self.leaving > 0 && {
            let pool = self.conns[id].pool;
            pool != NO_POOL && self.pools[pool].leaving.is_some()
        }
    }

    /// Sends pools on whose connections rest.
    pub(super) fn hand_over(&mut self) {
        if self.leaving == 0 {
            return;
        }
        for at in 0..self.pools.end() {
            if self.pools.get(at).is_some_and(|pool| pool.leaving.is_some()) && self.all_rest(at) {
                self.send_pool(at);
            }
        }
    }

    fn all_rest(&self, at: usize) -> bool {
        let busy = |conn: &Conn| conn.pool == at && (conn.recv_busy || conn.tx.busy);
        !(0..self.conns.end()).any(|id| self.conns.get(id).is_some_and(busy))
    }

    fn send_pool(&mut self, at: usize) {
        let mut conns = Vec::new();
        for id in 0..self.conns.end() {
            if self.conns.get(id).is_some_and(|conn| conn.pool == at) {
                let conn = self.conns.remove(id);
                self.io.remove_socket(conn.raw());
                conns.push((id, conn));
            }
        }
        self.io.forget_memory(at);
        self.unwatch(at);
        let pool = self.pools.take(at);
        self.leaving -= 1;
        let to = pool.leaving.as_ref().expect("it leaves").to;
        self.shared.cores[to].send(Msg::PoolArrives(Box::new(PoolArrival { pool, conns })));
    }

    /// Seats a pool that comes from another core.
    pub(super) fn pool_arrives(&mut self, arrival: PoolArrival) {
        let PoolArrival { mut pool, conns } = arrival;
        let Leaving { from, to, since, reply } = pool.leaving.take().expect("it left another core");
        assert!(to == self.number, "a pool arrived at the wrong core");
        self.shared.set_core(&pool.name, to);
        let at = self.pools.insert(pool);
        let connections = conns.len();
        let mut numbers = Vec::with_capacity(connections);
        for (old, mut conn) in conns {
            self.io.add_socket(conn.raw()).expect("the kernel takes a socket that another core had");
            self.generation = self.generation.wrapping_add(1);
            (conn.pool, conn.generation) = (at, self.generation);
            (conn.dirty, conn.hungry) = (false, false);
            if self.stopping.is_some() {
                conn.input_over = true;
                listen::shut_input(conn.raw());
            }
            let id = self.conns.insert(conn);
            numbers.push((old, id));
            self.mark(id);
        }
        self.renumber(at, &numbers);
        self.arm_check();
        self.shared.pool_arrived();
        let stall_ns = self.clock().saturating_sub(since);
        reply(Ok(MoveReport { from, to, stall_ns, connections }));
        self.feed(at, Event::Tick);
    }

    /// What is in flight learns the new numbers of its connections.
    fn renumber(&mut self, at: usize, numbers: &[(u32, u32)]) {
        let new = |old: u32| numbers.iter().find(|pair| pair.0 == old).expect("its connection came along").1;
        let pool = &mut self.pools[at];
        for req in pool.reqs.iter_mut() {
            req.conn = new(req.conn);
        }
        for parent in pool.parents.iter_mut() {
            parent.conn = new(parent.conn);
        }
        for job in pool.admins.iter_mut() {
            if matches!(job.kind, AdminKind::Detach { conn: super::conn::NIL, .. }) {
                continue;
            }
            if let AdminKind::Attach { conn, generation } | AdminKind::Detach { conn, generation } = &mut job.kind {
                *conn = new(*conn);
                *generation = self.conns[*conn].generation;
            }
        }
    }

    /// An I/O of a pool that has gone ended here.
    #[cold]
    pub(super) fn send_after(&mut self, pool: String, ticket: Ticket, result: i32) {
        let core = self.whereabouts(&pool).expect("an open pool has a core");
        self.shared.cores[core].send(Msg::IoDone { pool, ticket, result });
    }

    /// An I/O of a pool of this core ended on the core that the pool has left.
    pub(super) fn io_done_elsewhere(&mut self, name: String, ticket: Ticket, result: i32) {
        let Some(at) = self.pools.position(&name) else {
            return self.send_after(name, ticket, result);
        };
        let Pool { host, mem, ios_elsewhere, .. } = &mut self.pools[at];
        *ios_elsewhere -= 1;
        host.io_done(self.now, ticket, result, mem, &mut *self.io, at);
        self.drain(at);
    }
}
