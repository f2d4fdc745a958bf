//! The pools of one core, each with its memory and everything in flight for it.
//!
//! Owns: the pools' places on the core, and what of a pool travels with it. Never: looks into an engine.
//! Invariant: a place is used again only when the kernel has nothing left of whoever had it.

use super::control::AdminJob;
use super::finish::{Parent, Req};
use super::share::{PoolShare, default_sharing};
use crate::pool::PoolHost;
use crate::runtime::MoveReply;
use crate::slab::Slab;
use segue_types::Nanos;
use segue_volume::mem::Mem;
use std::ops::{Index, IndexMut};

/// Most pools of one core.
pub(super) const POOLS_MAX: usize = 256;
/// The place of a connection that has no pool yet.
pub(super) const NO_POOL: usize = usize::MAX;

/// A pool, its memory and what is in flight. All of it moves together.
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) host: PoolHost,
    /// Who is served next.
    pub(super) share: PoolShare,
    /// The engine's cache, and the buffers of the clients' requests.
    pub(super) mem: Mem,
    /// Memory below this much free is the engine's alone.
    pub(super) reserve_bytes: usize,
    /// Memory in use when a connection last had to wait for some.
    pub(super) hunger_used_bytes: usize,
    pub(super) reqs: Slab<Req>,
    pub(super) parents: Slab<Parent>,
    pub(super) admins: Slab<AdminJob>,
    /// Operations of its drive that run on cores it has left.
    pub(super) ios_elsewhere: usize,
    /// `Shutdown` was answered: only the end is left.
    pub(super) ended: bool,
    /// It is about to go to another core: its connections rest.
    pub(super) leaving: Option<Leaving>,
}

/// A pool's way to another core.
pub(super) struct Leaving {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) since: Nanos,
    pub(super) reply: MoveReply,
}

impl Pool {
    pub(super) fn new(name: String, host: PoolHost, mem: Mem) -> Pool {
        Pool {
            name,
            share: PoolShare::new(&default_sharing(!host.on_file())),
            host,
            reserve_bytes: (mem.capacity_bytes() / 8).min(16 << 20),
            mem,
            hunger_used_bytes: 0,
            reqs: Slab::with_capacity(1024),
            parents: Slab::with_capacity(64),
            admins: Slab::with_capacity(16),
            ios_elsewhere: 0,
            ended: false,
            leaving: None,
        }
    }
}

enum Seat {
    Empty,
    Here(Box<Pool>),
    /// It went to another core while its drive worked: so many ends are still to be sent after it.
    Gone {
        name: String,
        ios: usize,
    },
}

/// The pools of a core at stable numbers.
pub(super) struct Pools {
    seats: Vec<Seat>,
    /// Pools that went from here, and to which core.
    departed: Vec<(String, usize)>,
    /// What connections without a pool hold: nothing.
    nothing: Mem,
}

impl Pools {
    pub(super) fn new() -> Pools {
        Pools { seats: Vec::with_capacity(POOLS_MAX), departed: Vec::new(), nothing: Mem::new(1) }
    }

    /// Takes a pool in and tells its number.
    pub(super) fn insert(&mut self, pool: Box<Pool>) -> usize {
        self.departed.retain(|(name, _)| *name != pool.name);
        let free = self.seats.iter().position(|seat| matches!(seat, Seat::Empty));
        let at = free.unwrap_or(self.seats.len());
        assert!(at < POOLS_MAX, "at most {POOLS_MAX} pools live on one core");
        match free {
            Some(at) => self.seats[at] = Seat::Here(pool),
            None => self.seats.push(Seat::Here(pool)),
        }
        at
    }

    /// Gives a pool away. Ends of its I/O that come later are to be sent after it: see [`Pools::forward`].
    pub(super) fn take(&mut self, at: usize) -> Box<Pool> {
        let Seat::Here(mut pool) = std::mem::replace(&mut self.seats[at], Seat::Empty) else {
            panic!("no pool at {at}")
        };
        let ios = pool.host.ios_in_flight - pool.ios_elsewhere;
        if ios > 0 {
            self.seats[at] = Seat::Gone { name: pool.name.clone(), ios };
        }
        pool.ios_elsewhere += ios;
        let to = pool.leaving.as_ref().expect("a pool is taken when it leaves").to;
        self.departed.push((pool.name.clone(), to));
        pool
    }

    /// An I/O ended of a pool that has gone: tells its name. `None` when it is here.
    pub(super) fn forward(&mut self, at: usize) -> Option<String> {
        let Seat::Gone { name, ios } = &mut self.seats[at] else { return None };
        *ios -= 1;
        let (name, left) = (name.clone(), *ios);
        if left == 0 {
            self.seats[at] = Seat::Empty;
        }
        Some(name)
    }

    /// The core that a pool went to from here.
    pub(super) fn departed(&self, name: &str) -> Option<usize> {
        self.departed.iter().find(|gone| gone.0 == name).map(|gone| gone.1)
    }

    /// True while ends are to come for pools that have gone.
    pub(super) fn owes(&self) -> bool {
        self.seats.iter().any(|seat| matches!(seat, Seat::Gone { .. }))
    }

    pub(super) fn get(&self, at: usize) -> Option<&Pool> {
        match self.seats.get(at) {
            Some(Seat::Here(pool)) => Some(pool),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Pool> {
        match self.seats.get_mut(at) {
            Some(Seat::Here(pool)) => Some(pool),
            _ => None,
        }
    }

    /// One more than the largest number in use.
    pub(super) fn end(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pool> {
        (0..self.seats.len()).filter_map(|at| self.get(at))
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        (0..self.seats.len()).find(|at| self.get(*at).is_some_and(|pool| pool.name == name))
    }

    /// The memory of a pool, or of nothing for [`NO_POOL`].
    pub(super) fn mem(&mut self, at: usize) -> &mut Mem {
        if at == NO_POOL { &mut self.nothing } else { &mut self[at].mem }
    }

    /// Bytes of I/O memory in use.
    pub(super) fn used_bytes(&self) -> usize {
        self.iter().map(|pool| pool.mem.used_bytes()).sum()
    }

    /// Takes all that are here, at the end.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Pool>> {
        std::mem::take(&mut self.seats).into_iter().filter_map(|seat| match seat {
            Seat::Here(pool) => Some(pool),
            _ => None,
        })
    }
}

impl Index<usize> for Pools {
    type Output = Pool;
    #[inline]
    fn index(&self, at: usize) -> &Pool {
        match &self.seats[at] {
            Seat::Here(pool) => pool,
            _ => panic!("no pool at {at}"),
        }
    }
}

impl IndexMut<usize> for Pools {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Pool {
        match &mut self.seats[at] {
            Seat::Here(pool) => pool,
            _ => panic!("no pool at {at}"),
        }
    }
}
