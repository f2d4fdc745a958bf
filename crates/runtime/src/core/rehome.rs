//! A volume's way to another pool, as its connections see it: they wait for a moment and go on at the new place.
//!
//! Owns: which volumes are held, and the connections' way to the other pool. Never: decides when a volume changes its place.
//! Invariant: while a volume is held none of its requests is at an engine, and no connection of it is dropped for that.

use super::conn::{Conn, Lookup, NIL, Phase};
use super::control::AdminKind;
use super::pools::NO_POOL;
use super::{Core, KIND_RECV, Msg, token};
use crate::runtime::{HoldReply, ReleaseReply};
use segue_types::Nanos;
use segue_volume::op::{AdminError, AdminOp, AdminReply, AttachState};

/// How often a volume that is to be quiet is looked at, ns.
const LOOK_NS: Nanos = 50_000;

/// A volume whose connections wait.
pub(super) struct Held {
    pool: usize,
    volume: String,
    /// Until when the last request may take.
    until: Nanos,
    /// Who waits to hear that it is quiet.
    reply: Option<HoldReply>,
    /// Connections that wanted to attach meanwhile, with their generations.
    parked: Vec<(u32, u32)>,
}

impl Core {
    /// Another thread wants a volume to be quiet: what is in flight ends, what comes waits.
    pub(super) fn hold(&mut self, pool: String, volume: String, limit_ns: Nanos, reply: HoldReply) {
        let Some(at) = self.pools.position(&pool) else {
            return match self.whereabouts(&pool) {
                Some(core) => self.shared.cores[core].send(Msg::Hold { pool, volume, limit_ns, reply }),
                None => reply(false),
            };
        };
        let taken = self.held.iter().any(|held| held.pool == at && held.volume == volume);
        if taken || self.stopping.is_some() || self.pools[at].leaving.is_some() {
            return reply(false);
        }
        for id in 0..self.conns.end() {
            if let Some(conn) = self.conns.get(id).filter(|conn| is_of(conn, at, &volume))
                && conn.recv_busy
                && conn.job.is_none()
            {
                self.io.cancel(token(KIND_RECV, id), conn.raw());
            }
        }
        let until = self.now + limit_ns;
        self.held.push(Held { pool: at, volume, until, reply: Some(reply), parked: Vec::new() });
    }

    /// True when the connection's volume is held, so that it begins nothing new.
    pub(super) fn is_held(&self, id: u32) -> bool {
        !self.held.is_empty() && self.held.iter().any(|held| is_of(&self.conns[id], held.pool, &held.volume))
    }

    /// True while a volume of the pool is held: then it stays on its core.
    pub(super) fn holds_any(&self, pool: usize) -> bool {
        self.held.iter().any(|held| held.pool == pool)
    }

    /// Lets a connection that wants to attach to a held volume wait. `false`: it is not held.
    pub(super) fn park(&mut self, id: u32, pool: usize, volume: &str) -> bool {
        let generation = self.conns[id].generation;
        let Some(held) = self.held.iter_mut().find(|held| held.pool == pool && held.volume == volume) else {
            return false;
        };
        held.parked.push((id, generation));
        true
    }

    /// When to look again whether a volume is quiet: the kernel does not wake the core for replies that went out.
    pub(super) fn hold_wake_at(&self) -> Option<Nanos> {
        self.held.iter().any(|held| held.reply.is_some()).then_some(self.now + LOOK_NS)
    }

    /// Tells whoever waits for quiet that it is there, or that it could not be had in time.
    pub(super) fn check_holds(&mut self) {
        if self.held.is_empty() {
            return;
        }
        self.arm_check();
        for at in (0..self.held.len()).rev() {
            let held = &self.held[at];
            if held.reply.is_none() {
                continue;
            }
            let quiet = (0..self.conns.end()).filter_map(|id| self.conns.get(id)).all(|conn| {
                !is_of(conn, held.pool, &held.volume)
                    || (conn.requests == 0 && conn.job.is_none() && conn.tx.is_empty() && !conn.recv_busy)
            });
            if quiet {
                let reply = self.held[at].reply.take().expect("just seen");
                reply(true);
            } else if self.now >= held.until {
                let held = self.held.remove(at);
                self.go_on(&held);
                held.reply.expect("just seen")(false);
            }
        }
    }

    /// The core stops: nobody is held any more.
    pub(super) fn end_holds(&mut self) {
        for held in std::mem::take(&mut self.held) {
            self.go_on(&held);
            if let Some(reply) = held.reply {
                reply(false);
            }
        }
    }

    /// Lets a held volume's connections go on: where they are, or at another pool that is the volume now.
    pub(super) fn release(&mut self, pool: String, volume: String, to: Option<String>, reply: ReleaseReply) {
        let Some(at) = self.pools.position(&pool) else {
            return match self.whereabouts(&pool) {
                Some(core) => self.shared.cores[core].send(Msg::Release { pool, volume, to, reply }),
                None => reply(0),
            };
        };
        let held = self.held.iter().position(|held| held.pool == at && held.volume == volume);
        let held = held.map(|n| self.held.remove(n));
        let mut moved = 0;
        if let Some(to) = to {
            for id in 0..self.conns.end() {
                let of = self.conns.get(id).is_some_and(|conn| is_of(conn, at, &volume));
                if of && self.conns[id].phase == Phase::Open {
                    self.rehome(id, &to);
                    moved += 1;
                }
            }
        }
        if let Some(held) = held {
            self.go_on(&held);
        }
        reply(moved);
    }

    fn go_on(&mut self, held: &Held) {
        for id in 0..self.conns.end() {
            if self.conns.get(id).is_some_and(|conn| is_of(conn, held.pool, &held.volume)) {
                self.mark(id);
            }
        }
        for (id, generation) in &held.parked {
            if self.conns.get(*id).is_some_and(|conn| conn.generation == *generation && conn.lookup.is_some()) {
                // It looks again, wherever the volume is now.
                self.look_again(*id);
            }
        }
    }

    /// Takes a quiet connection from its pool to another.
    fn rehome(&mut self, id: u32, to: &str) {
        let conn = &mut self.conns[id];
        assert!(
            conn.requests == 0 && conn.job.is_none() && conn.tx.is_empty(),
            "a held volume's connections are quiet"
        );
        let (pool, attach, slot) = (conn.pool, conn.attach.take(), conn.slot.take());
        let mut export = conn.export.as_deref().expect("an attached connection has an export").clone();
        export.volume.clone_from(&conn.volume);
        conn.lookup =
            Some(Box::new(Lookup { export, enter: true, asked: 0, again: 0, names: Vec::new(), found: None }));
        (conn.pool, conn.phase) = (NO_POOL, Phase::Waiting);
        if let Some(slot) = slot {
            self.leave_share(pool, slot);
        }
        if let Some(attach) = attach {
            // The engine may have forgotten the volume already, and with it the attachment.
            self.admin(pool, AdminKind::Detach { conn: NIL, generation: 0 }, AdminOp::Detach { attach });
        }
        self.attach(id, to);
    }

    /// The new place answered a connection that moved there.
    pub(super) fn reattached(&mut self, id: u32, result: Result<AdminReply, AdminError>) {
        let conn = &mut self.conns[id];
        let lookup = conn.lookup.take().expect("it came for a volume");
        (conn.phase, conn.deadline) = (Phase::Open, 0);
        match result {
            Ok(AdminReply::Attached(AttachState { attach, size_bytes, .. })) => {
                conn.attach = Some(attach);
                conn.volume.clone_from(&lookup.export.volume);
                conn.export = Some(Box::new(lookup.export));
                conn.session.resized(size_bytes);
                self.enter_share(id);
            }
            Ok(other) => unreachable!("an attach is answered by an attachment, not {other:?}"),
            Err(error) => {
                tracing::warn!(holder = %conn.holder, %error, "a connection cannot follow its volume to another pool");
                conn.cut();
            }
        }
        self.mark(id);
    }
}

fn is_of(conn: &Conn, pool: usize, volume: &str) -> bool {
    conn.pool == pool && conn.attach.is_some() && conn.volume == volume
}
