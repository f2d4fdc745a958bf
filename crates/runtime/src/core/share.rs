//! Whose request goes to an engine next: between the sessions and the engines of a core.
//!
//! Owns: each pool's machine of sharing, the volumes' places in it, and the core's time per turn. Never: decides; the
//! machine in `sched` does.
//! Invariant: a request is either at its engine or waits in the machine, and is handed over once.
//!
//! While one volume alone uses a drive, nothing waits and nothing is queued: the cost is one comparison of numbers. When
//! several do, what their connections ask for is collected first and handed over in the policy's order, as much as a
//! turn of the core may take; the rest waits for the next turn, in which newcomers are looked for first.

use super::Core;
use super::conn::NIL;
use super::finish::Req;
use super::pools::Pool;
use crate::counters::{LATENCY_BUCKETS, latency_bucket};
use crate::options::{Sharing, SharingState, VolumeSharing};
use segue_sched::qos::{Charge, DriveShare, GovernorParams, Item, Kind, ShareOptions, Slot};
use segue_types::{IoStatus, Nanos, Share};
use segue_volume::op::{AttachId, Event, Op, Reply, Tag};

/// Most volumes of a pool that are told apart; those attached beyond share one place.
const VOLUMES_MAX: usize = 512;
/// Requests that may wait before the table grows.
const WAITING: usize = 4096;
/// Processor time that a turn may take while volumes contend; while several could; and while one is alone, ns.
const TURN_NS: [u64; 3] = [40_000, 120_000, 2_000_000];

/// A volume's place, and how many connections use it.
struct Place {
    name: String,
    slot: Slot,
    connections: usize,
}

/// A pool's machine of sharing. It goes with its pool from core to core.
pub(super) struct PoolShare {
    pub(super) drive: DriveShare,
    places: Vec<Place>,
    /// Latencies of each slot's requests since it was opened.
    latency: Vec<[u64; LATENCY_BUCKETS]>,
}

impl PoolShare {
    pub(super) fn new(sharing: &Sharing) -> PoolShare {
        let Sharing { policy, model, governor, capacity } = *sharing;
        let options = ShareOptions { volumes: VOLUMES_MAX, requests: WAITING, policy, model, governor, capacity };
        PoolShare { drive: DriveShare::new(&options), places: Vec::new(), latency: Vec::new() }
    }

    /// A connection has attached to a volume: its place.
    fn enter(&mut self, name: &str, now: Nanos) -> Slot {
        if let Some(place) = self.places.iter_mut().find(|place| place.name == name) {
            place.connections += 1;
            return place.slot;
        }
        let slot = match self.drive.open(&Share::default(), now) {
            Some(slot) => slot,
            None => {
                // The last place takes all that come after.
                let last = self.places.last_mut().expect("a full machine has places");
                last.connections += 1;
                return last.slot;
            }
        };
        let at = slot.0 as usize;
        if self.latency.len() <= at {
            self.latency.resize(at + 1, [0; LATENCY_BUCKETS]);
        }
        self.latency[at] = [0; LATENCY_BUCKETS];
        self.places.push(Place { name: name.to_owned(), slot, connections: 1 });
        slot
    }

    /// A request of a volume was answered after so long.
    #[inline]
    pub(super) fn answered(&mut self, slot: Slot, latency_ns: Nanos) {
        self.latency[slot.0 as usize][latency_bucket(latency_ns)] += 1;
    }

    fn leave(&mut self, slot: Slot, now: Nanos) {
        let at = self.places.iter().position(|place| place.slot == slot).expect("it had entered");
        self.places[at].connections -= 1;
        if self.places[at].connections == 0 {
            self.places.remove(at);
            self.drive.close(slot, now);
        }
    }

    /// A volume's settings are these from now on.
    pub(super) fn settle(&mut self, name: &str, share: Option<Share>, now: Nanos) {
        if let Some(place) = self.places.iter().find(|place| place.name == name) {
            self.drive.restore(place.slot, &share.unwrap_or_default(), now);
        }
    }

    pub(super) fn renamed(&mut self, from: &str, to: &str) {
        if let Some(place) = self.places.iter_mut().find(|place| place.name == from) {
            to.clone_into(&mut place.name);
        }
    }

    pub(super) fn set(&mut self, sharing: &Sharing, now: Nanos) {
        self.drive.set_policy(sharing.policy, now);
        self.drive.set_drive(sharing.model, sharing.governor, sharing.capacity);
    }

    pub(super) fn state(&self) -> SharingState {
        let volume = |place: &Place| VolumeSharing {
            name: place.name.clone(),
            share: self.drive.settings(place.slot),
            stats: self.drive.volume_stats(place.slot),
            latency: self.latency[place.slot.0 as usize],
        };
        let drive = self.drive.stats();
        let (model, governor) = (self.drive.model(), self.drive.governor());
        let sharing = Sharing { policy: drive.policy, model, governor, capacity: drive.capacity };
        SharingState { drive, sharing, volumes: self.places.iter().map(volume).collect() }
    }
}

/// What a turn of the core may still take.
pub(super) struct Turn {
    left_ns: u64,
    spent_ns: u64,
    /// Somebody waits for the next turn only because this one was over.
    pub(super) cut_short: bool,
    /// What estimates were worth lately, in 1/256.
    scale: u64,
    /// The pool to begin with: each turn another.
    first: usize,
}

impl Turn {
    pub(super) fn new() -> Turn {
        Turn { left_ns: TURN_NS[2], spent_ns: 0, cut_short: false, scale: 256, first: 0 }
    }

    /// A new turn begins; the last one took so long.
    fn begin(&mut self, took_ns: Nanos, budget_ns: u64) {
        if self.cut_short && self.spent_ns > 0 {
            // It did not wait for anything, so its time was work.
            let worth = (took_ns * 256 / self.spent_ns).clamp(64, 1024);
            self.scale = (self.scale * 15 + worth) / 16;
        }
        (self.left_ns, self.spent_ns, self.cut_short) = (budget_ns * 256 / self.scale, 0, false);
        self.first = self.first.wrapping_add(1);
    }

    fn spend(&mut self, charge: &Charge) {
        self.left_ns = self.left_ns.saturating_sub(charge.cpu_ns);
        self.spent_ns += charge.cpu_ns;
    }
}

fn kind_of(op: &Op) -> (Kind, u64) {
    match *op {
        Op::Read { len, .. } => (Kind::Read, len as u64),
        Op::Write { len, .. } => (Kind::Write, len as u64),
        Op::Flush => (Kind::Flush, 0),
        Op::Discard { len, .. } | Op::WriteZeroes { len, .. } => (Kind::Trim, len),
        Op::BlockStatus { .. } | Op::Cache { .. } => (Kind::Other, 0),
    }
}

impl Core {
    /// Takes a request of a connection: to the engine at once, or to its volume's queue.
    pub(super) fn issue(&mut self, id: u32, mut req: Req, op: Op) {
        let conn = &mut self.conns[id];
        req.watched = self.watch.request(self.now, &self.pools[conn.pool].name, &conn.volume, &op);
        conn.requests += 1;
        let (at, slot) = (conn.pool, conn.slot.expect("an attached connection has a place"));
        let pool = &mut self.pools[at];
        let first = req.parent == NIL || req.offset == req.request.offset;
        let (kind, bytes) = kind_of(&op);
        let mut charge = pool.share.drive.charge(kind, bytes, first);
        if matches!(op, Op::Write { fua: true, .. } | Op::Discard { fua: true, .. } | Op::WriteZeroes { fua: true, .. })
        {
            charge.cost += pool.share.drive.charge(Kind::Flush, 0, false).cost;
        }
        (req.op, req.slot) = (op, slot);
        let attach = conn.attach.unwrap_or(AttachId(NIL));
        if self.turn.left_ns > 0 && pool.share.drive.direct(slot, &mut charge, self.now) {
            self.turn.spend(&charge);
            (req.handed, req.charge) = (self.now, charge);
            let tag = Tag(pool.reqs.insert(req) as u64);
            return self.feed(at, Event::Request { tag, attach, op });
        }
        let number = pool.reqs.insert(req);
        while !pool.share.drive.enqueue(slot, number, charge, self.now) {
            pool.share.drive.grow(WAITING);
        }
    }

    /// Hands over what may go to the engines in this turn. True when connections have something to do after it.
    pub(super) fn dispatch(&mut self) -> bool {
        let (before, end) = (self.dirty.len(), self.pools.end());
        for n in 0..end {
            let at = (self.turn.first + n) % end;
            while let Some(item) = self.next_of(at) {
                self.hand(at, &item);
            }
        }
        self.dirty.len() > before
    }

    fn next_of(&mut self, at: usize) -> Option<Item> {
        let pool = self.pools.get_mut(at)?;
        if pool.leaving.is_some() || pool.share.drive.waiting() == 0 {
            return None;
        }
        let next = pool.share.drive.next(self.now, self.turn.left_ns);
        self.turn.cut_short |= next.is_none() && self.turn.left_ns == 0;
        next.map(|(_, item)| item)
    }

    fn hand(&mut self, at: usize, item: &Item) {
        self.turn.spend(&item.charge);
        let req = &mut self.pools[at].reqs[item.key];
        (req.handed, req.charge) = (self.now, item.charge);
        let (id, op) = (req.conn, req.op);
        let attach = self.conns[id].attach.unwrap_or(AttachId(NIL));
        self.feed(at, Event::Request { tag: Tag(item.key as u64), attach, op });
    }

    /// A connection is dead: what waits of it is answered to nobody.
    pub(super) fn cancel_waiting(&mut self, id: u32) {
        let conn = &self.conns[id];
        let (at, Some(slot)) = (conn.pool, conn.slot) else { return };
        let Pool { share, reqs, .. } = &mut self.pools[at];
        let mut gone = Vec::new();
        share.drive.cancel(slot, |key| reqs[key].conn != id, self.now, |item| gone.push(item.key));
        for key in gone {
            self.finish(at, Reply { tag: Tag(key as u64), status: IoStatus::Io, extents: 0 }, 0);
        }
    }

    /// A connection has attached: its place, and its volume's settings.
    pub(super) fn enter_share(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        let name = conn.volume.clone();
        let at = conn.pool;
        conn.slot = Some(self.pools[at].share.enter(&name, self.now));
        self.learn_share(at, name);
    }

    pub(super) fn leave_share(&mut self, pool: usize, slot: Slot) {
        let now = self.now;
        self.pools[pool].share.leave(slot, now);
    }

    /// The core's clock was read: what this turn may take.
    pub(super) fn begin_turn(&mut self, took_ns: Nanos) {
        let mut volumes = 0;
        let mut contended = false;
        for pool in self.pools.iter() {
            volumes += pool.share.places.len();
            contended |= pool.share.drive.waiting() > 0 || pool.share.drive.contended(self.now);
        }
        let budget_ns = TURN_NS[if volumes < 2 { 2 } else { !contended as usize }];
        self.turn.begin(took_ns, budget_ns);
    }

    /// When a limit or a time slice lets somebody go on; now when the last turn was cut short.
    pub(super) fn share_wake_at(&self) -> Option<Nanos> {
        if self.turn.cut_short {
            return Some(self.now);
        }
        self.pools.iter().filter(|pool| pool.leaving.is_none()).filter_map(|pool| pool.share.drive.wake_at()).min()
    }

    /// The core stops: limits do not delay what is left.
    pub(super) fn lift_limits(&mut self) {
        for at in 0..self.pools.end() {
            if let Some(pool) = self.pools.get_mut(at) {
                pool.share.drive.lift_limits();
            }
        }
    }
}

/// How a pool is shared that nobody configured: nothing governed, nothing promised.
pub(super) fn default_sharing(memory: bool) -> Sharing {
    use segue_sched::qos::{CostModel, PolicyKind};
    let model = if memory { CostModel::MEMORY } else { CostModel::DRIVE };
    Sharing { policy: PolicyKind::default(), model, governor: GovernorParams::OPEN, capacity: 0 }
}
