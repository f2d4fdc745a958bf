//! Recovery scopes: which tasks must recover together, as declared and as observed.
//!
//! Owns: declared scopes, the tasks in them, and the connected components of the locks those tasks took.
//! Never: takes a lock, or joins two declared scopes. Allocates only at construction and for reports.
//! Invariant: two tasks of one declared scope that took a common lock within the window are in one observed scope.
//!
//! Source: recovery scopes of Seshadri et al., FAST 2008, section 3; the refinement is only sketched there. Here:
//! - The programmer *declares* coarse scopes (a volume, a connection, a journal) and starts each task in one.
//! - A task's *lock set* is all it took in its life. Locks are vertices, a lock set joins its vertices, and a connected
//!   component is an *observed* scope: a task that failed can have left in a wrong state only what its locks guard, and
//!   only tasks that are chained to it by common locks can have seen that. A task without locks is alone.
//! - *Ageing*: a union never splits, so there are two forests. One knows what happened since the last rotation, the other
//!   since the one before; a rotation, every half window, makes the first the second. A lock set counts while its
//!   task lives and for half a window to a whole one after.
//! - When more tasks, locks or lock sets are going on than there is room for, the declared scope counts as one until what was
//!   not seen has aged away: never finer than the truth.

mod report;
mod sets;
mod table;

pub use report::{DeclaredReport, Kind, ObservedReport, Report};

use segue_types::Nanos;
use sets::Sets;
use table::{Found, Key, Table};

const NONE: u32 = u32::MAX;

/// How much is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Declared scopes at once, 1 to 65,535. One that is retired keeps its place for up to a window.
    pub declared_max: u16,
    /// Tasks at once.
    pub tasks_max: u32,
    /// Different locks within a window.
    pub locks_max: u32,
    /// Locks that all tasks together hold in their sets at once.
    pub edges_max: u32,
    /// How long a lock set counts after its task ended, at most.
    pub window_ns: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            declared_max: 1 << 10,
            tasks_max: 1 << 12,
            locks_max: 1 << 14,
            edges_max: 1 << 15,
            window_ns: 10_000_000_000,
        }
    }
}

/// A declared scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared(u16);

/// A task that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    declared: Declared,
    /// `NONE` when there was no room: the declared scope is coarse while it lives.
    slot: u32,
}

/// Which scope a task is in, finer than its declared one where possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole declared scope.
    Whole(Declared),
    /// An observed part of it; the number is good until the next event.
    Part(Declared, u32),
    /// The task alone.
    Alone,
}

/// Why a scope cannot be declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// All are in use; start the task in an outer scope instead, or raise `declared_max`.
    #[error("{0} recovery scopes are declared, which is the most; use an outer one or raise declared_max")]
    Full(u16),
}

#[derive(Clone, Copy, Debug)]
struct Area {
    kind: Kind,
    id: u64,
    outer: Option<Declared>,
    tasks: u32,
    /// Tasks in it of which not every lock is known.
    unwatched: u32,
    /// Something of it went unseen in this half window, in the one before.
    unseen: (bool, bool),
    crossings: u64,
    crossed_last: Option<(Kind, u64)>,
    /// Rotations until a retired one's place is free; `None` while it is in use.
    retired: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    declared: u16,
    /// The newest entry of its lock set.
    edges: u32,
    used: bool,
    /// There was no room for one of its locks.
    partial: bool,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    lock: u32,
    next: u32,
}

/// What one half window knows of a lock: whether it was taken, and how many tasks whose last lock it was have ended.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    taken: bool,
    ended: u64,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Scopes {
    areas: Vec<Option<Area>>,
    live: Vec<Live>,
    live_free: Vec<u32>,
    edges: Vec<Edge>,
    edge_free: u32,
    locks: Table,
    fresh: Sets,
    all: Sets,
    seen_fresh: Vec<Seen>,
    seen_before: Vec<Seen>,
    half_window_ns: u64,
    rotate_at: Option<Nanos>,
    rotations: u64,
}

impl Scopes {
    /// Nothing declared, nothing seen.
    pub fn new(config: Config) -> Scopes {
        let edges = (0..config.edges_max).map(|n| Edge { lock: NONE, next: n + 1 });
        let mut edges: Vec<Edge> = edges.collect();
        if let Some(last) = edges.last_mut() {
            last.next = NONE;
        }
        Scopes {
            areas: vec![None; usize::from(config.declared_max)],
            live: vec![Live { declared: 0, edges: NONE, used: false, partial: false }; config.tasks_max as usize],
            live_free: (0..config.tasks_max).rev().collect(),
            edge_free: if edges.is_empty() { NONE } else { 0 },
            edges,
            locks: Table::new(config.locks_max),
            fresh: Sets::new(config.locks_max),
            all: Sets::new(config.locks_max),
            seen_fresh: vec![Seen::default(); config.locks_max as usize],
            seen_before: vec![Seen::default(); config.locks_max as usize],
            half_window_ns: (config.window_ns / 2).max(1),
            rotate_at: None,
            rotations: 0,
        }
    }

    /// Declares a scope, inside `outer` if given. The same kind and id declared again is the same scope.
    ///
    /// # Errors
    /// [`DeclareError::Full`].
    pub fn declare(&mut self, kind: Kind, id: u64, outer: Option<Declared>) -> Result<Declared, DeclareError> {
        let same = |area: &Option<Area>| area.is_some_and(|area| (area.kind, area.id) == (kind, id));
        let at = match self.areas.iter().position(same) {
            Some(at) => at,
            None => {
                let full = DeclareError::Full(self.areas.len() as u16);
                self.areas.iter().position(Option::is_none).ok_or(full)?
            }
        };
        let area = self.areas[at].get_or_insert(Area {
            kind,
            id,
            outer,
            tasks: 0,
            unwatched: 0,
            unseen: (false, false),
            crossings: 0,
            crossed_last: None,
            retired: None,
        });
        (area.outer, area.retired) = (outer, None);
        Ok(Declared(at as u16))
    }

    /// Ends a declared scope: no task will start in it any more.
    ///
    /// # Panics
    /// When a task is in it.
    pub fn retire(&mut self, declared: Declared) {
        let area = self.area(declared);
        assert!(area.tasks == 0, "a recovery scope was retired with tasks in it");
        area.retired = Some(2);
    }

    /// The declared scope around this one: the next to recover when this one cannot.
    pub fn outer(&self, declared: Declared) -> Option<Declared> {
        self.areas[usize::from(declared.0)].and_then(|area| area.outer)
    }

    /// A task starts in a declared scope.
    pub fn begin(&mut self, declared: Declared) -> Task {
        let slot = self.live_free.pop().unwrap_or(NONE);
        let area = self.area(declared);
        assert!(area.retired.is_none(), "a task started in a recovery scope that was retired");
        area.tasks += 1;
        if slot == NONE {
            area.unwatch();
        } else {
            self.live[slot as usize] = Live { declared: declared.0, edges: NONE, used: true, partial: false };
        }
        Task { declared, slot }
    }

    /// A task took a lock. What number stands for which lock is the caller's choice.
    pub fn acquired(&mut self, task: Task, lock: u64) {
        if task.slot == NONE {
            return;
        }
        let live = self.live[task.slot as usize];
        assert!(live.used && live.declared == task.declared.0, "a task that ended took a lock");
        let number = match self.locks.find_or_add(Key { declared: live.declared, lock }) {
            Found::Known(number) => number,
            Found::New { number, crossed } => {
                if let Some(other) = crossed {
                    self.crossed(task.declared, Declared(other));
                }
                number
            }
            Found::Full => return self.lost(task),
        };
        if live.edges != NONE && self.edges[live.edges as usize].lock == number {
            return;
        }
        let at = self.edge_free;
        let Some(edge) = self.edges.get_mut(at as usize) else {
            return self.lost(task);
        };
        self.edge_free = edge.next;
        *edge = Edge { lock: number, next: live.edges };
        self.live[task.slot as usize].edges = at;
        let joined = if live.edges == NONE { number } else { self.edges[live.edges as usize].lock };
        self.see(number, joined);
    }

    /// A task ended. Its lock set still counts for a while.
    pub fn end(&mut self, task: Task) {
        let area = self.areas[usize::from(task.declared.0)].as_mut().expect("a task's scope is declared");
        area.tasks -= 1;
        if task.slot == NONE {
            area.unwatched -= 1;
            return;
        }
        let live = &mut self.live[task.slot as usize];
        assert!(live.used && live.declared == task.declared.0, "a task ended twice");
        live.used = false;
        area.unwatched -= u32::from(live.partial);
        let mut at = live.edges;
        if at != NONE {
            self.seen_fresh[self.edges[at as usize].lock as usize].ended += 1;
        }
        while at != NONE {
            let next = self.edges[at as usize].next;
            self.edges[at as usize].next = self.edge_free;
            self.edge_free = at;
            at = next;
        }
        self.live_free.push(task.slot);
    }

    /// Time passes: sets age. Call it about as often as a driver ticks; it does something twice in a window.
    pub fn tick(&mut self, now: Nanos) {
        let due = *self.rotate_at.get_or_insert(now.saturating_add(self.half_window_ns));
        if now >= due {
            self.rotate_at = Some(now.saturating_add(self.half_window_ns));
            self.rotate();
        }
    }

    /// The scope of a task.
    pub fn scope(&self, task: Task) -> Scope {
        let area = self.areas[usize::from(task.declared.0)].expect("a task's scope is declared");
        if area.coarse() {
            return Scope::Whole(task.declared);
        }
        let live = self.live[task.slot as usize];
        match live.edges {
            NONE => Scope::Alone,
            edge => Scope::Part(task.declared, self.all.root(self.edges[edge as usize].lock)),
        }
    }

    /// Whether `other` must clean up when `task` fails. Every task must with itself.
    pub fn together(&self, task: Task, other: Task) -> bool {
        task == other || (self.scope(task) != Scope::Alone && self.scope(task) == self.scope(other))
    }

    /// Declared and observed scopes. Allocates.
    pub fn report(&self) -> Report {
        let mut declared: Vec<DeclaredReport> = (0..self.areas.len() as u16)
            .filter_map(|at| {
                self.areas[usize::from(at)].filter(|a| a.retired.is_none()).map(|a| self.report_of(at, &a))
            })
            .collect();
        declared.sort_by_key(|d| (d.kind, d.id));
        Report { declared, rotations: self.rotations }
    }

    fn report_of(&self, at: u16, area: &Area) -> DeclaredReport {
        let name = |declared: Declared| self.areas[usize::from(declared.0)].map(|area| (area.kind, area.id));
        let mut parts: Vec<(u32, ObservedReport)> = Vec::new();
        for number in 0..self.seen_fresh.len() as u32 {
            let Some(key) = self.locks.key(number).filter(|key| key.declared == at) else { continue };
            let root = self.all.root(number);
            let place = parts.iter().position(|(r, _)| *r == root).unwrap_or_else(|| {
                parts.push((root, ObservedReport { locks: 0, lock_first: u64::MAX, tasks: 0, tasks_seen: 0 }));
                parts.len() - 1
            });
            let part = &mut parts[place].1;
            part.locks += 1;
            part.lock_first = part.lock_first.min(key.lock);
            part.tasks_seen += self.seen_fresh[number as usize].ended + self.seen_before[number as usize].ended;
        }
        let mut tasks_alone = 0;
        for live in self.live.iter().filter(|live| live.used && live.declared == at) {
            match live.edges {
                NONE => tasks_alone += 1,
                edge => {
                    let root = self.all.root(self.edges[edge as usize].lock);
                    let part = parts.iter_mut().find(|(r, _)| *r == root).expect("a task's lock is in a part");
                    part.1.tasks += 1;
                    part.1.tasks_seen += 1;
                }
            }
        }
        let mut observed: Vec<ObservedReport> = parts.into_iter().map(|(_, part)| part).collect();
        observed.sort_by_key(|part| (u64::MAX - part.tasks_seen, part.lock_first));
        DeclaredReport {
            kind: area.kind,
            id: area.id,
            outer: area.outer.and_then(name),
            tasks: u64::from(area.tasks),
            tasks_alone,
            coarse: area.coarse(),
            crossings: area.crossings,
            crossed_last: area.crossed_last,
            observed,
        }
    }

    fn area(&mut self, declared: Declared) -> &mut Area {
        self.areas[usize::from(declared.0)].as_mut().expect("a recovery scope that is not declared")
    }

    /// A lock of `a` was taken in `b` lately.
    fn crossed(&mut self, a: Declared, b: Declared) {
        for (one, other) in [(a, b), (b, a)] {
            let name = self.areas[usize::from(other.0)].map(|area| (area.kind, area.id));
            if let Some(area) = &mut self.areas[usize::from(one.0)] {
                area.crossings += 1;
                area.crossed_last = name;
            }
        }
    }

    fn see(&mut self, number: u32, joined: u32) {
        self.fresh.join(number, joined);
        self.all.join(number, joined);
        self.seen_fresh[number as usize].taken = true;
    }

    /// There was no room for a lock of a task.
    fn lost(&mut self, task: Task) {
        let live = &mut self.live[task.slot as usize];
        if !std::mem::replace(&mut live.partial, true) {
            self.area(task.declared).unwatch();
        }
    }

    fn rotate(&mut self) {
        self.rotations += 1;
        self.all.copy_from(&self.fresh);
        self.fresh.reset();
        std::mem::swap(&mut self.seen_before, &mut self.seen_fresh);
        self.seen_fresh.fill(Seen::default());
        for slot in 0..self.live.len() {
            let mut at = self.live[slot].edges;
            if !self.live[slot].used || at == NONE {
                continue;
            }
            let mut joined = self.edges[at as usize].lock;
            while at != NONE {
                let Edge { lock, next } = self.edges[at as usize];
                self.see(lock, joined);
                (joined, at) = (lock, next);
            }
        }
        let (fresh, before) = (&self.seen_fresh, &self.seen_before);
        self.locks.sweep(|number| fresh[number as usize].taken || before[number as usize].taken);
        for place in &mut self.areas {
            let Some(area) = place else { continue };
            area.unseen = (area.unwatched > 0, area.unseen.0);
            match &mut area.retired {
                Some(0) => *place = None,
                Some(left) => *left -= 1,
                None => {}
            }
        }
    }
}

impl Area {
    fn unwatch(&mut self) {
        self.unwatched += 1;
        self.unseen.0 = true;
    }

    fn coarse(&self) -> bool {
        self.unseen.0 || self.unseen.1
    }
}
