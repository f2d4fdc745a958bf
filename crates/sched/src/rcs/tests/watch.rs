//! An observer that knows the rules and nothing of how they are kept.
//!
//! Owns: the rules of each policy, said as plainly as possible. Never: looks at the scheduler's insides.
//! Invariant: it says which rule was broken, and by which step.

use super::history::{Op, mappings};
use crate::rcs::*;
use std::collections::{BTreeMap, BTreeSet};

/// A scheduler, or one with a planted fault.
pub trait Subject {
    fn rcs(&mut self) -> &mut Rcs;
    fn submit(&mut self, group: Group, priority: Priority, task: Task) -> Result<(), SubmitError> {
        self.rcs().submit(group, priority, task)
    }
    fn dispatch(&mut self, pool: Pool) -> Option<Dispatch> {
        self.rcs().dispatch(pool)
    }
    fn finished(&mut self, pool: Pool) -> Group {
        self.rcs().finished(pool)
    }
    fn wake(&mut self) -> Option<Pool> {
        self.rcs().wake()
    }
    fn recovery_begins(&mut self, group: Group) -> u16 {
        self.rcs().recovery_begins(group)
    }
    fn set_policy(&mut self, policy: Policy) {
        self.rcs().set_policy(policy);
    }
}

impl Subject for Rcs {
    fn rcs(&mut self) -> &mut Rcs {
        self
    }
}

/// What is known from outside.
pub struct Watch<S> {
    pub subject: S,
    options: RcsOptions,
    bounds: Vec<u16>,
    recoveries: Vec<u32>,
    waiting: BTreeMap<Task, (Group, Priority)>,
    running: Vec<Option<(Group, DispatchKind)>>,
    parked: BTreeSet<u16>,
    next_task: Task,
}

impl<S: Subject> Watch<S> {
    pub fn new(subject: S, options: RcsOptions) -> Watch<S> {
        Watch {
            bounds: vec![options.bound; options.groups.into()],
            recoveries: vec![0; options.groups.into()],
            running: vec![None; options.pools.into()],
            waiting: BTreeMap::new(),
            parked: BTreeSet::new(),
            next_task: 0,
            subject,
            options,
        }
    }

    fn held(&self, group: Group) -> u16 {
        self.running.iter().flatten().filter(|(g, kind)| *g == group && *kind != DispatchKind::Lease).count() as u16
    }

    fn suspended(&self, group: Group) -> bool {
        self.options.reactive && self.recoveries[usize::from(group.0)] > 0
    }

    fn under(&self, group: Group) -> bool {
        !self.options.proactive || self.held(group) < self.bounds[usize::from(group.0)]
    }

    fn at_home(&self, pool: Pool, group: Group) -> bool {
        self.options.home.as_ref().is_some_and(|m| m.serves(pool, group))
    }

    fn by_lease(&self, pool: Pool, group: Group) -> bool {
        let (home, alternative) = (self.options.home.as_ref().unwrap(), self.options.alternative.as_ref().unwrap());
        let heavy = (0..self.options.pools).any(|p| alternative.serves(Pool(p), group) && !home.serves(Pool(p), group));
        alternative.serves(pool, group) && (heavy || self.under(group))
    }

    /// The rules of the four policies: may this pool take from this group now?
    fn may(&self, pool: Pool, group: Group) -> bool {
        let own = self.under(group);
        match self.options.policy {
            Policy::Performance => true,
            _ if self.suspended(group) => false,
            Policy::Static => own && self.at_home(pool, group),
            Policy::PartialDynamic => own && self.at_home(pool, group) || self.by_lease(pool, group),
            Policy::Dynamic => own || self.options.overflow == Overflow::FewestHeld,
        }
    }

    fn some_for(&self, pool: Pool) -> Option<Group> {
        self.waiting.values().map(|(g, _)| *g).find(|g| self.may(pool, *g))
    }

    fn check_dispatch(&self, pool: Pool, d: &Dispatch, before: (Group, Priority)) -> Result<(), String> {
        let rule = |holds: bool, rule: &str| if holds { Ok(()) } else { Err(format!("{rule}: {d:?} on {pool:?}")) };
        rule(before == (d.group, d.priority), "a task keeps its group and priority")?;
        rule(d.recovering == (self.recoveries[usize::from(d.group.0)] > 0), "recovering tasks are marked")?;
        rule(self.may(pool, d.group), "a pool takes only what its policy lets it")?;
        match d.kind {
            _ if self.options.policy == Policy::Performance => {
                rule(d.kind == DispatchKind::Own, "the baseline has one kind")
            }
            DispatchKind::Own => rule(self.under(d.group), "the bound holds"),
            DispatchKind::Lease => rule(
                self.options.policy == Policy::PartialDynamic && !(self.at_home(pool, d.group) && self.under(d.group)),
                "leases are partial dynamic's, and only beyond home or bound",
            ),
            DispatchKind::Overflow => {
                let free = self.waiting.values().any(|(g, _)| !self.suspended(*g) && self.under(*g));
                let held = self.held(d.group);
                let fewer = self.waiting.values().any(|(g, _)| !self.suspended(*g) && self.held(*g) < held);
                rule(self.options.policy == Policy::Dynamic && !free && !fewer, "overflow is dynamic's last resort")
            }
        }
    }

    /// Does one thing and checks every rule it touches.
    pub fn step(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Submit(group, priority) => {
                let task = self.next_task;
                self.next_task += 1;
                if self.subject.submit(group, priority, task).is_ok() {
                    self.waiting.insert(task, (group, priority));
                } else {
                    let of_group = self.waiting.values().filter(|(g, _)| *g == group).count() as u32;
                    let full = self.waiting.len() as u32 >= self.options.tasks_max;
                    if !full && of_group < self.options.group_tasks_max {
                        return Err("a task is refused only when there is no room".into());
                    }
                }
            }
            Op::Dispatch(pool) => return self.dispatch(pool),
            Op::Finish(pool) => {
                if let Some((group, _)) = self.running[usize::from(pool.0)].take()
                    && self.subject.finished(pool) != group
                {
                    return Err("a pool finishes what it runs".into());
                }
            }
            Op::Wake => return self.wake(),
            Op::Begin(group) => {
                self.recoveries[usize::from(group.0)] += 1;
                let running = self.running.iter().flatten().filter(|(g, _)| *g == group).count();
                if usize::from(self.subject.recovery_begins(group)) != running {
                    return Err("a recovery knows every running task of its group".into());
                }
            }
            Op::End(group) => {
                if self.recoveries[usize::from(group.0)] > 0 {
                    self.recoveries[usize::from(group.0)] -= 1;
                    self.subject.rcs().recovery_ends(group);
                }
            }
            Op::Withdraw(group) => {
                let oldest = self.waiting.iter().filter(|(_, (g, _))| *g == group).map(|(t, (_, p))| (*p, *t)).min();
                if self.subject.rcs().withdraw(group) != oldest {
                    return Err("withdrawing takes the most urgent and oldest".into());
                }
                oldest.map(|(_, task)| self.waiting.remove(&task));
            }
            _ => self.set(op),
        }
        Ok(())
    }

    fn set(&mut self, op: Op) {
        match op {
            Op::Policy(policy) => {
                self.subject.set_policy(policy);
                self.options.policy = policy;
            }
            Op::Bound(group, bound) => {
                self.subject.rcs().set_bound(group, bound).unwrap();
                self.bounds[usize::from(group.0)] = bound;
            }
            Op::Proactive(on) => {
                self.subject.rcs().set_proactive(on);
                self.options.proactive = on;
            }
            Op::Reactive(on) => {
                self.subject.rcs().set_reactive(on);
                self.options.reactive = on;
            }
            Op::Overflow(overflow) => {
                self.subject.rcs().set_overflow(overflow);
                self.options.overflow = overflow;
            }
            Op::Lease(dispatches) => self.subject.rcs().set_lease_dispatches(dispatches).unwrap(),
            Op::Remap(seed) => {
                let (home, alternative) = mappings(self.options.groups, self.options.pools, seed);
                self.subject.rcs().set_mappings(home.clone(), alternative.clone()).unwrap();
                (self.options.home, self.options.alternative) = (Some(home), Some(alternative));
            }
            _ => unreachable!("not a setting"),
        }
    }

    fn dispatch(&mut self, pool: Pool) -> Result<(), String> {
        if self.running[usize::from(pool.0)].is_some() {
            return Ok(());
        }
        let Some(d) = self.subject.dispatch(pool) else {
            self.parked.insert(pool.0);
            return match self.some_for(pool) {
                Some(group) => Err(format!("no pool idles beside work it may run: {pool:?}, {group:?}")),
                None => Ok(()),
            };
        };
        self.parked.remove(&pool.0);
        let Some(before) = self.waiting.get(&d.task).copied() else {
            return Err(format!("a task runs once and only after it was submitted: {d:?}"));
        };
        self.check_dispatch(pool, &d, before)?;
        self.waiting.remove(&d.task);
        self.running[usize::from(pool.0)] = Some((d.group, d.kind));
        Ok(())
    }

    fn wake(&mut self) -> Result<(), String> {
        match self.subject.wake() {
            Some(pool) if !self.parked.remove(&pool.0) => Err(format!("only a parked pool is woken: {pool:?}")),
            Some(pool) if self.some_for(pool).is_none() => Err(format!("no pool is woken in vain: {pool:?}")),
            Some(_) => Ok(()),
            None => match self.parked.iter().find(|p| self.some_for(Pool(**p)).is_some()) {
                Some(pool) => Err(format!("no pool sleeps beside work it may run: {pool}")),
                None => Ok(()),
            },
        }
    }

    /// Lets everything run out: no task may be left over.
    pub fn drain(&mut self) -> Result<(), String> {
        for g in 0..self.options.groups {
            while self.recoveries[usize::from(g)] > 0 {
                self.step(Op::End(Group(g)))?;
            }
        }
        while !self.waiting.is_empty() {
            let left = self.waiting.len();
            (0..self.options.pools).try_for_each(|p| self.step(Op::Finish(Pool(p))))?;
            (0..self.options.pools).try_for_each(|p| self.step(Op::Dispatch(Pool(p))))?;
            if self.waiting.len() == left {
                return Err(format!("{left} tasks never run"));
            }
        }
        (0..self.options.pools).try_for_each(|p| self.step(Op::Finish(Pool(p))))?;
        let totals = self.subject.rcs().totals();
        let balanced = totals.submitted == totals.finished + totals.withdrawn && totals.finished == totals.dispatched;
        if balanced { Ok(()) } else { Err(format!("the counters do not add up: {totals:?}")) }
    }
}

/// Runs a whole history; the error names the step.
pub fn run<S: Subject>(watch: &mut Watch<S>, history: &[Op]) -> Result<(), String> {
    for (n, op) in history.iter().enumerate() {
        watch.step(*op).map_err(|rule| format!("step {n}, {op:?}: {rule}"))?;
    }
    watch.drain().map_err(|rule| format!("draining: {rule}"))
}
