//! The loop of one core: completions in, engines and sessions stepped, everything new out in one kernel call.
//!
//! Owns: the core's pools, listeners and connections. Never: blocks but in the kernel's one wait.
//! Invariant: one clock read and one kernel call per turn; what a turn makes is sent in the same turn.
//!
//! Reading order: `conn` (what a connection is), `pump` (bytes to requests), `finish` (ends to replies), `tx` (replies
//! to the socket), `share` (whose request is next), `storm` and `shake` (handshakes), `danger` (panics), `attach` (names
//! to volumes), `control` (other threads' wishes), `handover` (pools from core to core),
//! `rehome` (volumes from pool to pool),
//! `life` (accept, cut, close).

mod attach;
mod conn;
mod control;
mod danger;
mod finish;
mod handover;
mod life;
mod pools;
mod pump;
mod rehome;
mod shake;
mod share;
mod spin;
mod storm;
mod tls;
mod tx;
mod watch;

pub(crate) use control::{Msg, ReplyFn};
pub(crate) use shake::{Helpers, Shake, helpers};

use crate::counters::Counters;
use crate::io::{Backend, Bell, Done, TOKEN_BELL, open_backend};
use crate::options::{CoreStatus, Options};
use crate::runtime::Shared;
use crate::slab::Slab;
use conn::Conn;
use pools::{POOLS_MAX, Pool, Pools};
use segue_types::Nanos;
use segue_volume::op::{Event, Ticket};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const KIND_SHIFT: u32 = 40;
const KIND_RECV: u64 = 1;
const KIND_SEND: u64 = 2;
const KIND_ACCEPT: u64 = 3;
const KIND_DRIVE: u64 = 4;
/// A pool's number stands above its ticket.
const POOL_SHIFT: u32 = 32;
/// How often timeouts are looked at while there are any, ns.
const CHECK_NS: Nanos = 500_000_000;

const fn token(kind: u64, number: u32) -> u64 {
    kind << KIND_SHIFT | number as u64
}

/// One core. Made, run and dropped on its own thread.
pub(crate) struct Core {
    // Dropped before the memory it points into.
    io: Box<dyn Backend>,
    pools: Pools,
    number: usize,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    options: Options,
    started: Instant,
    now: Nanos,
    listeners: Slab<life::Listening>,
    conns: Slab<Conn>,
    generation: u32,
    /// Connections to look at before the turn ends.
    dirty: Vec<u32>,
    /// Connections that wait for memory.
    hungry: Vec<u32>,
    done: Vec<Done>,
    inbox: Vec<Msg>,
    next_check: Nanos,
    /// Pools that are about to go to another core.
    leaving: usize,
    /// Volumes that are about to go to another pool.
    held: Vec<rehome::Held>,
    stopping: Option<control::Stopping>,
    spin: spin::Spin,
    /// What this turn may still take.
    turn: share::Turn,
    storm: storm::Storm,
    danger: danger::Danger,
    watch: watch::Watch,
    /// Requests answered in this turn.
    answered: u64,
}

impl Core {
    pub(crate) fn new(
        number: usize,
        shared: Arc<Shared>,
        options: Options,
        bell: &Bell,
    ) -> io::Result<(Core, CoreStatus)> {
        let (io, io_note) = open_backend(options.io, bell)?;
        let status = CoreStatus { io: io.mode(), io_note };
        let counters = shared.cores[number].counters.clone();
        let spin_ns = options.spin.as_nanos() as Nanos;
        let core = Core {
            io,
            number,
            pools: Pools::new(),
            started: shared.started,
            shared,
            counters,
            options,
            now: 1,
            listeners: Slab::with_capacity(8),
            conns: Slab::with_capacity(64),
            generation: 0,
            dirty: Vec::with_capacity(64),
            hungry: Vec::with_capacity(64),
            done: Vec::with_capacity(4096),
            inbox: Vec::with_capacity(64),
            next_check: 0,
            leaving: 0,
            held: Vec::new(),
            stopping: None,
            spin: spin::Spin::new(spin_ns),
            turn: share::Turn::new(),
            storm: storm::Storm::new(),
            danger: danger::Danger::new(),
            watch: watch::Watch::new(),
            answered: 0,
        };
        Ok((core, status))
    }

    /// Runs until told to stop. Returns when all is closed.
    ///
    /// # Panics
    /// When the kernel refuses the wait itself: nothing can be served then.
    pub(crate) fn run(mut self) {
        loop {
            self.wait().expect("the kernel takes the core's wait");
            self.read_clock();
            self.take_ends();
            self.attend(conn::NIL, Core::background);
            self.attend(conn::NIL, Core::check_deadlines);
            self.attend(conn::NIL, Core::look_at_dirty);
            self.attend(conn::NIL, Core::check_holds);
            self.attend(conn::NIL, Core::hand_over);
            self.publish();
            self.turn_ended();
            if self.is_over() {
                return self.end();
            }
        }
    }

    fn read_clock(&mut self) {
        let before = self.now;
        self.now = self.clock();
        let (took_ns, answered) = (self.now - before, std::mem::take(&mut self.answered));
        if answered > 0 {
            self.storm.busy(self.now);
        }
        self.begin_turn(took_ns);
        self.spin.turned(self.now, took_ns, answered);
    }

    fn clock(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos + 1
    }

    /// Sends what the last turn made and waits for something to end; looks for a while first where that pays.
    fn wait(&mut self) -> io::Result<()> {
        let wait_ns = self.wait_ns();
        let look_ns = self.spin.look_ns();
        // While a drive works the kernel's own threads need the processor, and only clients are worth looking for.
        let drives_work = self.pools.iter().any(|pool| pool.host.ios_in_flight > 0);
        if look_ns == 0 || wait_ns == Some(0) || drives_work {
            return self.io.turn(wait_ns, &mut self.done);
        }
        let until = self.now + look_ns;
        loop {
            self.io.turn(Some(0), &mut self.done)?;
            if !self.done.is_empty() {
                if self.done.iter().any(|end| end.token >> KIND_SHIFT != KIND_SEND) {
                    return Ok(());
                }
                // Replies that went out: their buffers come back, and the looking goes on.
                self.take_ends();
                if !self.dirty.is_empty() || !self.hungry.is_empty() {
                    return Ok(());
                }
            }
            if self.clock() >= until {
                return self.io.turn(self.wait_ns(), &mut self.done);
            }
            std::hint::spin_loop();
        }
    }

    /// How long the kernel may wait: until an engine or a timeout wants the loop, or for ever.
    fn wait_ns(&self) -> Option<u64> {
        let engines = self.pools.iter().filter_map(|pool| pool.host.out.wake_at).min();
        let check = (self.next_check != 0).then_some(self.next_check);
        let ends = self.pools.iter().filter_map(|pool| pool.host.next_end()).min();
        let waits = [self.share_wake_at(), self.storm.wake_at(), self.hold_wake_at()];
        let at = [engines, check, ends].into_iter().chain(waits).flatten().min()?;
        Some(at.saturating_sub(self.now))
    }

    /// Hands every end to whom it belongs.
    fn take_ends(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        for end in done.drain(..) {
            let number = end.token as u32;
            match end.token >> KIND_SHIFT {
                KIND_RECV => self.attend(number, |core| core.received(number, end.result)),
                KIND_SEND => self.attend(number, |core| core.sent(number, end.result)),
                KIND_ACCEPT => self.attend(conn::NIL, |core| core.accepted(number, end.result)),
                KIND_DRIVE => {
                    let pool = (end.token >> POOL_SHIFT) as usize % POOLS_MAX;
                    self.attend(conn::NIL, |core| core.io_done(pool, Ticket(number), end.result));
                }
                _ if end.token == TOKEN_BELL => self.take_messages(),
                _ => unreachable!("an end of nothing: token {:#x}", end.token),
            }
        }
        self.done = done;
    }

    fn io_done(&mut self, pool: usize, ticket: Ticket, result: i32) {
        if let Some(name) = self.pools.forward(pool) {
            return self.io_done_elsewhere(name, ticket, result);
        }
        let Pool { host, mem, .. } = &mut self.pools[pool];
        host.io_done(self.now, ticket, result, mem, &mut *self.io, pool);
        self.drain(pool);
    }

    /// Gives an engine an event and takes what came of it.
    fn feed(&mut self, pool: usize, event: Event) {
        let Pool { host, mem, .. } = &mut self.pools[pool];
        host.feed(self.now, event, mem, &mut *self.io, pool);
        self.drain(pool);
    }

    /// Ticks the engines whose time has come.
    fn background(&mut self) {
        for pool in 0..self.pools.end() {
            let due = |pool: &Pool| pool.leaving.is_none() && pool.host.out.wake_at.is_some_and(|at| at <= self.now);
            if self.pools.get(pool).is_some_and(due) {
                self.watch.background(self.now, &self.pools[pool].name);
                self.feed(pool, Event::Tick);
            }
            while let Some((ticket, errno)) = self.modelled_end(pool) {
                self.feed(pool, Event::IoDone { ticket, errno });
            }
        }
    }

    /// An end of a modelled drive whose time has come.
    fn modelled_end(&mut self, pool: usize) -> Option<(Ticket, i32)> {
        let pool = self.pools.get_mut(pool).filter(|pool| pool.leaving.is_none())?;
        pool.host.pop_end(self.now)
    }

    /// Pumps, sends and settles every connection that something happened to, until nothing more happens.
    fn look_at_dirty(&mut self) {
        let mut at = 0;
        self.storm_wakes();
        loop {
            if at == self.dirty.len() && !self.dispatch() && !self.call_hungry() {
                break;
            }
            let id = self.dirty[at];
            at += 1;
            if self.conns.get(id).is_none() {
                continue;
            }
            if self.rests(id) || self.storm_rests(id) {
                self.conns[id].dirty = false;
                continue;
            }
            let shakes = self.conns[id].phase == conn::Phase::Handshake;
            let from = if shakes { self.clock() } else { 0 };
            self.attend(id, |core| {
                core.pump(id);
                // What the pump itself made happen is seen to by what follows, not by another round.
                core.conns[id].dirty = false;
                core.flush(id);
                core.settle(id);
            });
            if shakes {
                self.storm_step(from);
            }
        }
        self.dirty.clear();
    }

    /// Lets connections that wait for memory try again when some came free. True when there are any.
    fn call_hungry(&mut self) -> bool {
        let fed = |pool: &Pool| pool.mem.used_bytes() < pool.hunger_used_bytes;
        if self.hungry.is_empty() || !self.pools.iter().any(fed) {
            return false;
        }
        for at in 0..self.pools.end() {
            if self.pools.get(at).is_some() {
                self.pools[at].hunger_used_bytes = 0;
            }
        }
        let hungry = std::mem::take(&mut self.hungry);
        let before = self.dirty.len();
        for id in hungry {
            if let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.hungry) {
                conn.hungry = false;
                self.mark(id);
            }
        }
        self.dirty.len() > before
    }

    fn mark(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(id);
        }
    }

    fn publish(&self) {
        let c = &*self.counters;
        Counters::add(&c.turns, 1);
        Counters::set(&c.kernel_calls, self.io.calls());
        Counters::set(&c.connections, self.conns.len() as u64);
        Counters::set(&c.mem_used_bytes, self.pools.used_bytes() as u64);
        let in_flight: usize = self.pools.iter().map(|pool| pool.reqs.len()).sum();
        Counters::set(&c.requests_in_flight, in_flight as u64);
    }

    /// Everything is closed: gives back what the engines took.
    fn end(mut self) {
        let mut left = 0;
        for mut pool in self.pools.drain() {
            pool.host.close(&mut pool.mem);
            left += pool.mem.used_bytes();
        }
        Counters::set(&self.counters.mem_used_bytes, left as u64);
        self.shared.cores[self.number].clean.store(true, Ordering::Release);
    }
}

/// The marks of an operation on the drive of the pool at this place.
pub(crate) const fn drive_token(pool: usize) -> u64 {
    KIND_DRIVE << KIND_SHIFT | (pool as u64) << POOL_SHIFT
}
