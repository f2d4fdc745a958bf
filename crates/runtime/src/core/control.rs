//! What other threads want of a core.
//!
//! Owns: the messages, admin operations in flight, and the orderly stop. Never: makes another thread wait for I/O of a client.
//! Invariant: every message's reply is called once, or dropped when the core has ended.

use super::attach::{Answer, Traveler};
use super::conn::NIL;
use super::handover::PoolArrival;
use super::life::Listening;
use super::pools::Pool;
use super::watch::ScopesReply;
use super::{Core, KIND_ACCEPT, token};
use crate::drive::Drive;
use crate::listen;
use crate::options::{AddPoolError, CallError, ListenAddr, PoolPlace, PoolSpec, Sharing, SharingState, Tls};
use crate::pool::PoolHost;
use crate::runtime::{HoldReply, MoveReply, ReleaseReply};
use segue_types::{Nanos, Share};
use segue_volume::fault::Faults;
use segue_volume::mem::{MAX_BUF_BYTES, Mem};
use segue_volume::op::{AdminError, AdminOp, AdminReply, Event, Tag, Ticket};
use std::os::fd::{AsRawFd, OwnedFd};

/// Where the state of a pool's sharing goes.
pub(crate) type SharingReply = Box<dyn FnOnce(Result<SharingState, CallError>) + Send>;

/// Where the answer to an admin operation goes; called on the core's thread, so it must not block.
pub(crate) type ReplyFn = Box<dyn FnOnce(Result<AdminReply, CallError>) + Send>;

/// A wish of another thread.
pub(crate) enum Msg {
    Admin {
        pool: String,
        op: AdminOp,
        reply: ReplyFn,
    },
    AddPool {
        spec: PoolSpec,
        reply: Box<dyn FnOnce(Result<PoolPlace, AddPoolError>) + Send>,
    },
    Listen {
        fd: OwnedFd,
        addr: ListenAddr,
        tls: Tls,
    },
    Unlisten {
        addr: ListenAddr,
    },
    Answer(Answer),
    Arrive(Box<Traveler>),
    /// Hand a pool over to another core.
    MovePool {
        pool: String,
        to: usize,
        reply: MoveReply,
    },
    /// A pool arrives from another core.
    PoolArrives(Box<PoolArrival>),
    /// The question what recovers together.
    Scopes(ScopesReply),
    /// Panics on purpose from now on, or none.
    Inject(Faults),
    /// Another slice of the drive is short of space.
    Shrink {
        pool: String,
    },
    /// An I/O ended on the core that a pool has left.
    IoDone {
        pool: String,
        ticket: Ticket,
        result: i32,
    },
    /// A volume's clients are to wait, and what is in flight to end.
    Hold {
        pool: String,
        volume: String,
        limit_ns: Nanos,
        reply: HoldReply,
    },
    /// They go on, at another pool if one is named.
    Release {
        pool: String,
        volume: String,
        to: Option<String>,
        reply: ReleaseReply,
    },
    /// How a pool's drive is to be shared from now on, if anything, and the question how it is.
    Sharing {
        pool: String,
        set: Option<Sharing>,
        reply: SharingReply,
    },
    /// A helper is done with a connection's TLS machine.
    Shaken(super::shake::Shaken),
    Stop,
}

/// An admin operation that an engine has.
pub(super) struct AdminJob {
    pub(super) kind: AdminKind,
}

pub(super) enum AdminKind {
    Call {
        reply: ReplyFn,
        watch: Watch,
    },
    Attach {
        conn: u32,
        generation: u32,
    },
    Detach {
        conn: u32,
        generation: u32,
    },
    Shutdown,
    /// The settings of a volume that somebody attached to.
    Share,
    /// The settings of all volumes, to see whether those of one can be promised.
    Admit {
        name: String,
        share: Share,
        reply: ReplyFn,
    },
}

/// What sessions must learn of an operation.
pub(super) enum Watch {
    Nothing,
    Resize,
    Rename { from: String },
    Share,
    Revoke { all: bool },
}

/// How far the orderly stop is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stopping {
    /// Connections finish.
    Connections,
    /// Engines shut down.
    Engines,
}

impl Core {
    pub(super) fn take_messages(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.shared.cores[self.number].take(&mut inbox);
        if !inbox.is_empty() {
            // What comes along was stamped by another core, whose turn may have begun after this one did.
            self.now = self.now.max(self.clock());
        }
        for message in inbox.drain(..) {
            self.attend(super::conn::NIL, |core| core.take_message(message));
        }
        self.inbox = inbox;
    }

    fn take_message(&mut self, message: Msg) {
        match message {
            Msg::Admin { pool, op, reply } => self.call(&pool, op, reply),
            Msg::AddPool { spec, reply } => {
                let added = self.add_pool(spec);
                reply(added);
            }
            Msg::Listen { fd, addr, tls } => self.listen(fd, addr, tls),
            Msg::Unlisten { addr } => self.unlisten(|listening| listening.addr == addr),
            Msg::Answer(answer) => self.answered(answer),
            Msg::Arrive(traveler) => self.arrive(*traveler),
            Msg::MovePool { pool, to, reply } => self.move_pool(&pool, to, reply),
            Msg::Shrink { pool } => match self.pools.position(&pool) {
                Some(at) => self.feed(at, Event::Shrink),
                None => {
                    if let Some(core) = self.whereabouts(&pool) {
                        self.shared.cores[core].send(Msg::Shrink { pool });
                    }
                }
            },
            Msg::PoolArrives(arrival) => self.pool_arrives(*arrival),
            Msg::IoDone { pool, ticket, result } => self.io_done_elsewhere(pool, ticket, result),
            Msg::Sharing { pool, set, reply } => self.sharing(pool, set, reply),
            Msg::Shaken(shaken) => self.shaken(shaken),
            Msg::Scopes(reply) => self.tell_scopes(reply),
            Msg::Inject(faults) => self.inject(&faults),
            Msg::Hold { pool, volume, limit_ns, reply } => self.hold(pool, volume, limit_ns, reply),
            Msg::Release { pool, volume, to, reply } => self.release(pool, volume, to, reply),
            Msg::Stop => self.stop(),
        }
    }

    fn call(&mut self, pool: &str, op: AdminOp, reply: ReplyFn) {
        if self.stopping == Some(Stopping::Engines) {
            return reply(Err(CallError::Stopped));
        }
        let Some(pool) = self.pools.position(pool) else {
            return match self.whereabouts(pool) {
                // It has gone to another core since the question was sent.
                Some(core) => self.shared.cores[core].send(Msg::Admin { pool: pool.to_owned(), op, reply }),
                None => reply(Err(CallError::NoPool)),
            };
        };
        if let AdminOp::SetShare { name, share: Some(share) } = &op
            && share.reserve_iops > 0
        {
            let (name, share) = (name.clone(), *share);
            return self.admin(pool, AdminKind::Admit { name, share, reply }, AdminOp::List);
        }
        let watch = match &op {
            AdminOp::SetShare { .. } => Watch::Share,
            AdminOp::Resize { .. } => Watch::Resize,
            AdminOp::Rename { name, .. } => Watch::Rename { from: name.clone() },
            AdminOp::Revoke { plain, .. } => Watch::Revoke { all: *plain },
            AdminOp::DropTokens { .. } => Watch::Revoke { all: false },
            _ => Watch::Nothing,
        };
        self.admin(pool, AdminKind::Call { reply, watch }, op);
    }

    /// Settings that reserve something are carried out only if the drive can keep the promise.
    fn admit(
        &mut self,
        pool: usize,
        (name, share): (String, Share),
        all: Result<AdminReply, AdminError>,
        reply: ReplyFn,
    ) {
        let volumes = match all {
            Ok(AdminReply::Volumes(volumes)) => volumes,
            Ok(other) => unreachable!("a list is answered by volumes, not {other:?}"),
            Err(error) => return reply(Err(CallError::Refused(error))),
        };
        let others = volumes.iter().filter(|volume| volume.name != name).filter_map(|volume| volume.share);
        let reserved_iops = others.map(|share| share.reserve_iops).sum();
        if let Err(error) = self.pools[pool].share.drive.admit_beside(reserved_iops, &share) {
            return reply(Err(CallError::Share(error)));
        }
        let kind = AdminKind::Call { reply, watch: Watch::Share };
        self.admin(pool, kind, AdminOp::SetShare { name, share: Some(share) });
    }

    /// Asks an engine for the settings of a volume that somebody attached to.
    pub(super) fn learn_share(&mut self, pool: usize, name: String) {
        self.admin(pool, AdminKind::Share, AdminOp::Show { name });
    }

    fn sharing(&mut self, pool: String, set: Option<Sharing>, reply: SharingReply) {
        let Some(at) = self.pools.position(&pool) else {
            return match self.whereabouts(&pool) {
                Some(core) => self.shared.cores[core].send(Msg::Sharing { pool, set, reply }),
                None => reply(Err(CallError::NoPool)),
            };
        };
        let share = &mut self.pools[at].share;
        if let Some(set) = set {
            share.set(&set, self.now);
        }
        reply(Ok(share.state()));
    }

    /// Gives an engine an admin operation.
    pub(super) fn admin(&mut self, pool: usize, kind: AdminKind, op: AdminOp) {
        let tag = Tag(self.pools[pool].admins.insert(AdminJob { kind }) as u64);
        self.feed(pool, Event::Admin { tag, op });
    }

    /// An engine answered an admin operation.
    pub(super) fn admin_done(&mut self, pool: usize, number: u32, result: Result<AdminReply, AdminError>) {
        match self.pools[pool].admins.remove(number).kind {
            AdminKind::Call { reply, watch } => {
                match (&watch, &result) {
                    (Watch::Resize, Ok(AdminReply::Volume(v))) => self.resized(pool, &v.name, v.size_bytes),
                    (Watch::Share, Ok(AdminReply::Volume(v))) => {
                        self.pools[pool].share.settle(&v.name, v.share, self.now);
                    }
                    (Watch::Rename { from }, Ok(AdminReply::Volume(v))) => self.renamed(pool, from, &v.name),
                    (Watch::Revoke { all }, Ok(AdminReply::Volume(v))) => self.revoked(pool, &v.name, *all),
                    _ => {}
                }
                reply(result.map_err(CallError::Refused));
            }
            AdminKind::Share => {
                if let Ok(AdminReply::Volume(v)) = result {
                    self.pools[pool].share.settle(&v.name, v.share, self.now);
                }
            }
            AdminKind::Admit { name, share, reply } => self.admit(pool, (name, share), result, reply),
            AdminKind::Attach { conn, generation } => {
                assert!(self.conns.get(conn).is_some_and(|c| c.generation == generation), "a waiting connection stays");
                self.attached(conn, result);
            }
            // It went to another pool with its connection.
            AdminKind::Detach { conn: NIL, .. } => {}
            AdminKind::Detach { conn, generation } => {
                assert!(
                    self.conns.get(conn).is_some_and(|c| c.generation == generation),
                    "a detaching connection stays"
                );
                self.close(conn);
            }
            AdminKind::Shutdown => {
                if let Err(error) = result {
                    tracing::error!(pool = %self.pools[pool].name, %error, "the pool did not shut down cleanly");
                }
                self.pools[pool].ended = true;
            }
        }
    }

    fn add_pool(&mut self, spec: PoolSpec) -> Result<PoolPlace, AddPoolError> {
        if self.stopping.is_some() {
            return Err(AddPoolError::Stopped);
        }
        if self.pools.iter().any(|pool| pool.name == spec.name) {
            return Err(AddPoolError::Exists(spec.name));
        }
        let mut drive = Drive::open(&spec.drive)?;
        let mut mem = Mem::new(self.options.mem_bytes);
        let machine = (spec.open)(drive.block_dev(), &mut mem).map_err(AddPoolError::Engine)?;
        let host = PoolHost::new(machine, drive);
        let memory = !host.on_file();
        let place = PoolPlace { name: spec.name.clone(), core: self.number, direct: host.is_direct(), memory };
        let pool = self.pools.insert(Box::new(Pool::new(spec.name, host, mem)));
        if !memory {
            self.register_memory(pool);
        }
        // The engine may have background work left over from before: it says so after its first step.
        self.feed(pool, Event::Tick);
        Ok(place)
    }

    /// Registers the memory that clients' buffers will come from: what lies behind the engine's own.
    fn register_memory(&mut self, pool: usize) {
        let mem = &self.pools[pool].mem;
        let (base, capacity) = mem.region();
        let skip = mem.used_bytes().next_multiple_of(MAX_BUF_BYTES).min(capacity);
        let bytes = self.options.registered_bytes.min(capacity - skip);
        if bytes > 0 && !self.io.register_memory(pool, unsafe { base.add(skip) }, bytes) {
            tracing::info!("the kernel does not register I/O memory; buffers are mapped for each I/O");
        }
    }

    fn listen(&mut self, fd: OwnedFd, addr: ListenAddr, tls: Tls) {
        if self.stopping.is_some() {
            return;
        }
        if let Err(error) = self.io.add_socket(fd.as_raw_fd()) {
            return tracing::error!(%addr, %error, "cannot listen");
        }
        let number = self.listeners.insert(Listening { fd, addr, tls, armed: false, over: false });
        self.arm_accept(number);
    }

    fn unlisten(&mut self, which: impl Fn(&Listening) -> bool) {
        for number in 0..self.listeners.end() {
            let Some(listening) = self.listeners.get_mut(number).filter(|l| which(l)) else { continue };
            listening.over = true;
            let fd = listening.fd.as_raw_fd();
            if listening.armed {
                self.io.cancel(token(KIND_ACCEPT, number), fd);
            } else {
                self.drop_listener(number);
            }
        }
    }

    /// No more connections and requests; what is in flight is finished.
    fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(Stopping::Connections);
        self.lift_limits();
        self.end_holds();
        self.unlisten(|_| true);
        for id in 0..self.conns.end() {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.input_over = true;
                listen::shut_input(conn.raw());
                self.mark(id);
            }
        }
    }

    /// Carries the stop on. True when nothing is left.
    pub(super) fn is_over(&mut self) -> bool {
        match self.stopping {
            None => false,
            Some(Stopping::Connections) => {
                // A pool on its way from core to core must arrive before the cores end.
                if self.conns.is_empty() && self.listeners.is_empty() && !self.shared.pools_travel() {
                    self.stopping = Some(Stopping::Engines);
                    for pool in 0..self.pools.end() {
                        if self.pools.get(pool).is_some() {
                            self.admin(pool, AdminKind::Shutdown, AdminOp::Shutdown);
                        }
                    }
                    return self.is_over();
                }
                false
            }
            Some(Stopping::Engines) => {
                let over = self.pools.iter().all(|pool| pool.ended && pool.host.is_quiet());
                over && !self.pools.owes()
            }
        }
    }
}
