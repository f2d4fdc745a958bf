//! Recovery scopes of a core: which locks its requests take, looked at now and then.
//!
//! Owns: what is declared, which request is looked at, and what a lock is called. Never: takes a lock; an engine's are implied
//! by what it is asked.
//! Invariant: a request that is watched ends once, also when its pool goes to another core.

use super::Core;
use segue_sched::scopes::{Config, Declared, Kind, Report, Scopes, Task};
use segue_types::Nanos;
use segue_types::api::{ObservedScope, RecoveryScope};
use segue_volume::op::Op;

/// One request in so many is watched.
const ONE_IN: u32 = 16;
/// Leaves of a long request that are looked at.
const LEAVES_MAX: u64 = 8;
/// Bytes of volume under one leaf of the map.
const LEAF_BYTES: u64 = 1 << 20;
const LEAF: u64 = 1 << 60;
const JOURNAL: u64 = 2 << 60;
const BITMAP: u64 = 3 << 60;
const KINDS: u64 = 3 << 60;

/// A pool or volume that is declared.
struct Place {
    pool: String,
    /// Empty for the pool itself and its background work.
    volume: String,
    kind: Kind,
    declared: Declared,
}

/// Where the scopes of a core are told.
pub(crate) type ScopesReply = Box<dyn FnOnce(Vec<RecoveryScope>) + Send>;

/// What a core watches.
pub(super) struct Watch {
    scopes: Scopes,
    places: Vec<Place>,
    count: u32,
}

impl Watch {
    pub(super) fn new() -> Watch {
        let config = Config {
            declared_max: 256,
            tasks_max: 1 << 10,
            locks_max: 1 << 12,
            edges_max: 1 << 13,
            ..Config::default()
        };
        Watch { scopes: Scopes::new(config), places: Vec::with_capacity(16), count: 0 }
    }

    /// A request comes: the task to be ended with it, if it is one of those that are watched.
    #[inline]
    pub(super) fn request(&mut self, now: Nanos, pool: &str, volume: &str, op: &Op) -> Option<Task> {
        self.count = self.count.wrapping_add(1);
        if !self.count.is_multiple_of(ONE_IN) {
            return None;
        }
        self.look(now, pool, volume, op)
    }

    #[cold]
    fn look(&mut self, now: Nanos, pool: &str, volume: &str, op: &Op) -> Option<Task> {
        self.scopes.tick(now);
        let device = self.place(pool, "", Kind::Device, None)?;
        let at = self.place(pool, volume, Kind::Volume, Some(self.places[device].declared))?;
        let task = self.scopes.begin(self.places[at].declared);
        let (offset, len, changes) = match *op {
            Op::Read { offset, len, .. } => (offset, u64::from(len), false),
            Op::Write { offset, len, .. } => (offset, u64::from(len), true),
            Op::Discard { offset, len, .. } | Op::WriteZeroes { offset, len, .. } => (offset, len, true),
            Op::BlockStatus { offset, len, .. } | Op::Cache { offset, len } => (offset, len, false),
            Op::Flush => (0, 0, true),
        };
        for leaf in (offset / LEAF_BYTES..(offset + len).div_ceil(LEAF_BYTES)).take(LEAVES_MAX as usize) {
            self.scopes.acquired(task, LEAF | (at as u64) << 32 | leaf);
        }
        if changes {
            self.scopes.acquired(task, JOURNAL | device as u64);
        }
        if matches!(op, Op::Write { .. } | Op::WriteZeroes { .. }) {
            self.scopes.acquired(task, BITMAP | device as u64);
        }
        Some(task)
    }

    pub(super) fn end(&mut self, task: Option<Task>) {
        if let Some(task) = task {
            self.scopes.end(task);
        }
    }

    /// A turn of a pool's background work: it may change blocks of any volume, through the journal.
    pub(super) fn background(&mut self, now: Nanos, pool: &str) {
        self.scopes.tick(now);
        let Some(device) = self.place(pool, "", Kind::Device, None) else { return };
        let Some(at) = self.place(pool, "", Kind::Background, Some(self.places[device].declared)) else { return };
        let task = self.scopes.begin(self.places[at].declared);
        self.scopes.acquired(task, JOURNAL | device as u64);
        self.scopes.acquired(task, BITMAP | device as u64);
        self.scopes.end(task);
    }

    /// `None` when there is no room for another scope.
    fn place(&mut self, pool: &str, volume: &str, kind: Kind, outer: Option<Declared>) -> Option<usize> {
        let known = |p: &Place| p.kind == kind && p.pool == pool && p.volume == volume;
        if let Some(at) = self.places.iter().position(known) {
            return Some(at);
        }
        let declared = self.scopes.declare(kind, self.places.len() as u64, outer).ok()?;
        self.places.push(Place { pool: pool.to_owned(), volume: volume.to_owned(), kind, declared });
        Some(self.places.len() - 1)
    }

    fn name(&self, id: u64) -> String {
        let place = &self.places[id as usize];
        match place.kind {
            Kind::Volume => format!("{}/{}", place.pool, place.volume),
            _ => place.pool.clone(),
        }
    }

    fn report(&self, core: u32) -> Vec<RecoveryScope> {
        let Report { declared, .. } = self.scopes.report();
        let named = |(kind, id): (Kind, u64)| format!("{} {}", kind.name(), self.name(id));
        let lock = |lock: u64| match lock & KINDS {
            LEAF => format!("map leaf {}", lock & u64::from(u32::MAX)),
            JOURNAL => "journal".to_owned(),
            _ => "bitmap".to_owned(),
        };
        declared
            .into_iter()
            .map(|d| RecoveryScope {
                core,
                kind: d.kind.name().to_owned(),
                name: self.name(d.id),
                outer: d.outer.map(named),
                tasks: d.tasks,
                tasks_alone: d.tasks_alone,
                coarse: d.coarse,
                crossings: d.crossings,
                crossed_last: d.crossed_last.map(named),
                observed: d
                    .observed
                    .into_iter()
                    .map(|o| ObservedScope {
                        locks: o.locks,
                        lock_first: lock(o.lock_first),
                        tasks: o.tasks,
                        tasks_seen: o.tasks_seen,
                    })
                    .collect(),
            })
            .collect()
    }
}

impl Core {
    pub(super) fn tell_scopes(&self, reply: ScopesReply) {
        reply(self.watch.report(self.number as u32));
    }

    /// A pool goes to another core: what is in flight of it is watched there no more.
    pub(super) fn unwatch(&mut self, pool: usize) {
        for req in self.pools[pool].reqs.iter_mut() {
            self.watch.end(req.watched.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use segue_volume::mem::Buf;

    #[test]
    fn writes_of_one_pool_meet_at_its_journal_and_reads_stay_apart() {
        let mut watch = Watch::new();
        let write = |offset| Op::Write { offset, len: 4096, buf: Buf::EMPTY, fua: false };
        let read = |offset| Op::Read { offset, len: 4096, buf: Buf::EMPTY };
        let mut tasks = Vec::new();
        for (volume, op) in [("a", write(0)), ("a", write(5 << 20)), ("a", read(9 << 20)), ("b", write(0))] {
            tasks.push(watch.look(1, "p", volume, &op));
        }
        let report = watch.report(3);
        let a = report.iter().find(|s| s.name == "p/a").expect("the volume is declared");
        assert_eq!((a.core, a.kind.as_str(), a.outer.as_deref()), (3, "volume", Some("device p")));
        assert_eq!(a.observed.iter().map(|o| (o.locks, o.tasks)).collect::<Vec<_>>(), [(4, 2), (1, 1)]);
        let b = report.iter().find(|s| s.name == "p/b").expect("so is the other");
        assert!(b.crossings > 0, "both volumes use one journal: the pool is what recovers together");
        tasks.into_iter().for_each(|task| watch.end(task));
        assert!(watch.report(3).iter().all(|s| s.tasks == 0));
    }
}
