//! The scheduler's state and everything that changes it.
//!
//! Owns: who runs where, recoveries, bounds and counters. Never: ranks one group above another (that is `choose`).
//! Invariant: `ready` names exactly the groups that may take one more pool in their own right.

use super::bits::Bits;
use super::loops::Loops;
use super::options::{check_home, check_shape};
use super::queues::Queues;
use super::{
    Counters, Group, LoopCounts, Mapping, Overflow, Policy, Pool, Priority, RcsError, RcsOptions, SubmitError, Task,
};

/// By what right a task was dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DispatchKind {
    /// The group was under its bound, or the policy knows none.
    Own,
    /// By a lease of [`Policy::PartialDynamic`]; not counted against the bound.
    Lease,
    /// Beyond the bound, by [`Overflow::FewestHeld`].
    Overflow,
}

/// A task for a pool to run now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatch {
    /// The task.
    pub task: Task,
    /// Its recovery group.
    pub group: Group,
    /// Its priority.
    pub priority: Priority,
    /// By what right.
    pub kind: DispatchKind,
    /// True when the group is recovering now (the baseline, or the reactive part is off): the task meets state that is
    /// being cleaned up and has to clean up with it.
    pub recovering: bool,
}

/// One group, without its queues.
pub(super) struct GroupState {
    pub bound: u16,
    /// Pools that run a task of it.
    pub running: u16,
    /// Of these, by a lease.
    pub leased: u16,
    /// Recoveries that have begun and not ended.
    pub recoveries: u32,
    pub loops: Loops,
    pub counters: Counters,
}

impl GroupState {
    /// Pools that count against the bound.
    pub const fn held(&self) -> u16 {
        self.running - self.leased
    }
}

/// One pool.
pub(super) struct PoolState {
    pub running: Option<(Group, DispatchKind)>,
    pub loops: Loops,
    /// The group served last, per level: round-robin goes on after it.
    pub cursors: [u16; 3],
    /// Dispatches left of its lease.
    pub lease_left: u32,
}

/// The recovery-conscious scheduler; see the module.
pub struct Rcs {
    pub(super) queues: Queues,
    pub(super) groups: Box<[GroupState]>,
    pub(super) pools: Box<[PoolState]>,
    pub(super) counts: LoopCounts,
    pub(super) policy: Policy,
    pub(super) proactive: bool,
    pub(super) reactive: bool,
    pub(super) overflow: Overflow,
    pub(super) lease_dispatches: u32,
    pub(super) home: Mapping,
    pub(super) alternative: Mapping,
    /// Groups that the alternative mapping opens to more pools than home does.
    pub(super) heavy: Bits,
    /// Groups with waiting tasks, per level.
    pub(super) waiting: [Bits; 3],
    /// Groups that are not suspended by a recovery.
    pub(super) open: Bits,
    /// Of these, the ones under their bound.
    pub(super) ready: Bits,
    /// Pools whose last dispatch found nothing and that nobody has woken since.
    parked: Bits,
}

impl Rcs {
    /// A scheduler with nothing in it. This allocates; nothing later does.
    ///
    /// # Errors
    /// [`RcsError`] names the setting to correct.
    pub fn new(options: RcsOptions) -> Result<Rcs, RcsError> {
        options.check()?;
        let (groups, pools) = (usize::from(options.groups), usize::from(options.pools));
        let home = options.home.unwrap_or_else(|| Mapping::dealt(options.groups, options.pools));
        let alternative = options.alternative.unwrap_or_else(|| home.clone());
        let group = |_| GroupState {
            bound: options.bound,
            running: 0,
            leased: 0,
            recoveries: 0,
            loops: Loops::new(options.loops),
            counters: Counters::default(),
        };
        let pool = |_| PoolState {
            running: None,
            loops: Loops::new(options.loops),
            cursors: [options.groups - 1; 3],
            lease_left: 0,
        };
        let mut rcs = Rcs {
            queues: Queues::new(groups, options.tasks_max, options.group_tasks_max),
            groups: (0..groups).map(group).collect(),
            pools: (0..pools).map(pool).collect(),
            counts: options.loops,
            policy: options.policy,
            proactive: options.proactive,
            reactive: options.reactive,
            overflow: options.overflow,
            lease_dispatches: options.lease_dispatches,
            heavy: alternative.beyond(&home),
            home,
            alternative,
            waiting: [const { None::<Bits> }; 3].map(|_| Bits::empty(groups)),
            open: Bits::empty(groups),
            ready: Bits::empty(groups),
            parked: Bits::empty(pools),
        };
        rcs.refresh_all();
        Ok(rcs)
    }

    /// Takes a task. It waits until a pool dispatches it; call [`Rcs::wake`] to learn whether one should now.
    ///
    /// # Errors
    /// [`SubmitError`] when there is no room: the caller keeps the task and stops admitting.
    ///
    /// # Panics
    /// When the group does not exist.
    pub fn submit(&mut self, group: Group, priority: Priority, task: Task) -> Result<(), SubmitError> {
        let state = &mut self.groups[usize::from(group.0)];
        if let Err(full) = self.queues.push(group, priority, task) {
            state.counters.refused += 1;
            return Err(full);
        }
        state.counters.submitted += 1;
        self.waiting[priority as usize].set(usize::from(group.0), true);
        Ok(())
    }

    /// The next task for an idle pool, which runs it until [`Rcs::finished`]. `None`: nothing that this pool may run
    /// waits; the pool is parked until [`Rcs::wake`] names it (or it asks again by itself).
    ///
    /// # Panics
    /// When the pool does not exist or still runs a task.
    pub fn dispatch(&mut self, pool: Pool) -> Option<Dispatch> {
        let p = usize::from(pool.0);
        assert!(self.pools[p].running.is_none(), "pool {p} asks for a task and has not finished the last one");
        let chosen = self.choose(p);
        self.parked.set(p, chosen.is_none());
        let (group, level, kind) = chosen?;
        Some(self.start(p, group, level, kind))
    }

    fn start(&mut self, p: usize, group: Group, level: usize, kind: DispatchKind) -> Dispatch {
        let g = usize::from(group.0);
        let task = self.queues.pop(group, level).expect("a chosen group has a task of the chosen level");
        if !self.queues.has(g, level) {
            self.waiting[level].set(g, false);
        }
        let state = &mut self.groups[g];
        state.running += 1;
        state.counters.dispatched += 1;
        match kind {
            DispatchKind::Own => {}
            DispatchKind::Lease => {
                state.leased += 1;
                state.counters.leased += 1;
            }
            DispatchKind::Overflow => state.counters.overflowed += 1,
        }
        let recovering = state.recoveries > 0;
        self.pools[p].running = Some((group, kind));
        self.refresh(g);
        Dispatch { task, group, priority: Priority::ALL[level], kind, recovering }
    }

    /// The pool's task is over, cleaned up or not; the pool is idle and may dispatch. Gives the task's group.
    ///
    /// # Panics
    /// When the pool does not exist or runs nothing.
    pub fn finished(&mut self, pool: Pool) -> Group {
        let running = self.pools[usize::from(pool.0)].running.take();
        let (group, kind) = running.expect("a pool that finishes has dispatched");
        let g = usize::from(group.0);
        let state = &mut self.groups[g];
        state.running -= 1;
        state.leased -= u16::from(kind == DispatchKind::Lease);
        state.counters.finished += 1;
        self.refresh(g);
        group
    }

    /// A task of the group failed and cleans up: until the matching [`Rcs::recovery_ends`] the reactive part
    /// dispatches nothing of the group. Recoveries of one group may overlap. Gives the number of its tasks that run
    /// now, the failed one included: each has to clean up (see [`Rcs::pools_of`]).
    ///
    /// # Panics
    /// When the group does not exist.
    pub fn recovery_begins(&mut self, group: Group) -> u16 {
        let state = &mut self.groups[usize::from(group.0)];
        state.recoveries += 1;
        state.counters.recoveries += 1;
        let running = state.running;
        self.refresh(usize::from(group.0));
        running
    }

    /// One recovery of the group is over. Call [`Rcs::wake`] afterwards.
    ///
    /// # Panics
    /// When the group does not exist or does not recover.
    pub fn recovery_ends(&mut self, group: Group) {
        let state = &mut self.groups[usize::from(group.0)];
        assert!(state.recoveries > 0, "group {} ends a recovery that has not begun", group.0);
        state.recoveries -= 1;
        self.refresh(usize::from(group.0));
    }

    /// The pools that run a task of the group now: these tasks clean up together. Looks at every pool.
    pub fn pools_of(&self, group: Group) -> impl Iterator<Item = Pool> {
        let of = move |p: &PoolState| p.running.is_some_and(|(g, _)| g == group);
        self.pools.iter().enumerate().filter(move |(_, p)| of(p)).map(|(n, _)| Pool(n as u16))
    }

    /// A parked pool that would find a task now, if any; it is not parked any more and should dispatch soon. Call once
    /// after each submit, each dispatch that gave a task, each end of a recovery and each change of settings: a woken
    /// pool's own dispatch then wakes the next. No pool sleeps beside work it may run, and none is woken in vain
    /// but by a race for the same task.
    pub fn wake(&mut self) -> Option<Pool> {
        if self.queues.len() == 0 || self.parked.is_empty() {
            return None;
        }
        let alike = matches!(self.policy, Policy::Performance | Policy::Dynamic);
        let woken = if alike {
            self.parked.first().filter(|p| self.finds(*p))
        } else {
            self.parked.iter().find(|p| self.finds(*p))
        }?;
        self.parked.set(woken, false);
        Some(Pool(woken as u16))
    }

    /// Takes a waiting task of the group out without running it, most urgent and oldest first: for a group that is
    /// given up or restarts. `None` when none waits. Running tasks are not touched.
    pub fn withdraw(&mut self, group: Group) -> Option<(Priority, Task)> {
        let g = usize::from(group.0);
        let level = (0..3).find(|level| self.queues.has(g, *level))?;
        let task = self.queues.pop(group, level)?;
        self.waiting[level].set(g, self.queues.has(g, level));
        self.groups[g].counters.withdrawn += 1;
        Some((Priority::ALL[level], task))
    }

    /// Changes the policy. Waiting tasks keep their places; running ones finish. Leases that run end with their tasks.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.pools.iter_mut().for_each(|p| p.lease_left = 0);
    }

    /// Turns the bounds on or off.
    pub fn set_proactive(&mut self, on: bool) {
        self.proactive = on;
        self.refresh_all();
    }

    /// Turns the suspension of recovering groups on or off.
    pub fn set_reactive(&mut self, on: bool) {
        self.reactive = on;
        self.refresh_all();
    }

    /// Changes what dynamic does when only groups at their bound have work.
    pub fn set_overflow(&mut self, overflow: Overflow) {
        self.overflow = overflow;
    }

    /// Changes the dispatches of a lease, at least 1; leases that run keep theirs.
    ///
    /// # Errors
    /// [`RcsError::Zero`].
    pub fn set_lease_dispatches(&mut self, dispatches: u32) -> Result<(), RcsError> {
        if dispatches == 0 {
            return Err(RcsError::Zero);
        }
        self.lease_dispatches = dispatches;
        Ok(())
    }

    /// Changes a group's bound, pools, at least 1 (more than there are pools is no bound). A group that holds more
    /// now gets nothing new until it holds less.
    ///
    /// # Errors
    /// [`RcsError::Zero`].
    ///
    /// # Panics
    /// When the group does not exist.
    pub fn set_bound(&mut self, group: Group, pools: u16) -> Result<(), RcsError> {
        if pools == 0 {
            return Err(RcsError::Zero);
        }
        self.groups[usize::from(group.0)].bound = pools;
        self.refresh(usize::from(group.0));
        Ok(())
    }

    /// Changes both mappings.
    ///
    /// # Errors
    /// [`RcsError::Shape`] and [`RcsError::Orphan`]; nothing has changed then.
    pub fn set_mappings(&mut self, home: Mapping, alternative: Mapping) -> Result<(), RcsError> {
        let (groups, pools) = (self.groups.len() as u16, self.pools.len() as u16);
        check_home(&home, groups, pools)?;
        check_shape(&alternative, groups, pools)?;
        self.heavy = alternative.beyond(&home);
        self.home = home;
        self.alternative = alternative;
        Ok(())
    }

    /// The policy now.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// How many groups and pools there are.
    pub const fn shape(&self) -> (usize, usize) {
        (self.groups.len(), self.pools.len())
    }

    /// The group's bound, pools.
    pub fn bound(&self, group: Group) -> u16 {
        self.groups[usize::from(group.0)].bound
    }

    /// Pools that run a task of the group.
    pub fn running(&self, group: Group) -> u16 {
        self.groups[usize::from(group.0)].running
    }

    /// Of these, the ones that count against the bound (all but leases).
    pub fn held(&self, group: Group) -> u16 {
        self.groups[usize::from(group.0)].held()
    }

    /// True between the beginning and the end of a recovery.
    pub fn recovering(&self, group: Group) -> bool {
        self.groups[usize::from(group.0)].recoveries > 0
    }

    /// True when the group recovers and nothing of it is dispatched because of that.
    pub fn suspended(&self, group: Group) -> bool {
        self.policy != Policy::Performance && !self.open.has(usize::from(group.0))
    }

    /// True when tasks of the group wait because of its bound alone: it does not recover, and some pool idles.
    pub fn held_back(&self, group: Group) -> bool {
        let g = usize::from(group.0);
        self.queues.group_len(g) > 0 && self.open.has(g) && !self.ready.has(g) && !self.parked.is_empty()
    }

    /// Tasks of the group that wait.
    pub fn waiting(&self, group: Group) -> u32 {
        self.queues.group_len(usize::from(group.0))
    }

    /// Tasks that wait, in all.
    pub fn waiting_in_all(&self) -> u32 {
        self.queues.len()
    }

    /// What the pool runs: the group.
    pub fn runs(&self, pool: Pool) -> Option<Group> {
        self.pools[usize::from(pool.0)].running.map(|(group, _)| group)
    }

    /// What happened to the group.
    pub fn counters(&self, group: Group) -> Counters {
        self.groups[usize::from(group.0)].counters
    }

    /// What happened to all groups together.
    pub fn totals(&self) -> Counters {
        let mut totals = Counters::default();
        self.groups.iter().for_each(|g| totals.add(&g.counters));
        totals
    }

    /// Sets the group's bits from its state.
    fn refresh(&mut self, g: usize) {
        let state = &self.groups[g];
        let open = !self.reactive || state.recoveries == 0;
        let under = !self.proactive || state.held() < state.bound;
        self.open.set(g, open);
        self.ready.set(g, open && under);
    }

    fn refresh_all(&mut self) {
        (0..self.groups.len()).for_each(|g| self.refresh(g));
    }
}
