//! A naive twin: the same decisions from a list of tasks, without bitmaps, links or counters that can go stale.
//!
//! Owns: the decisions spelled out. Never: ships.
//! Invariant: it agrees with the scheduler on every task, pool and kind of every history.

use super::history::{Op, history, mappings, options};
use crate::rcs::*;

/// The nested scan loops, walked scan by scan.
#[derive(Clone)]
struct Scans {
    order: Vec<usize>,
    at: usize,
}

impl Scans {
    fn new(counts: LoopCounts) -> Scans {
        let mut order = Vec::new();
        for _ in 0..counts.medium {
            order.extend(std::iter::repeat_n(0, counts.high.into()));
            order.push(1);
        }
        order.push(2);
        Scans { order, at: 0 }
    }

    fn pick(&mut self, has: impl Fn(usize) -> bool) -> Option<usize> {
        (0..3).any(&has).then(|| {
            while !has(self.order[self.at]) {
                self.at = (self.at + 1) % self.order.len();
            }
            let level = self.order[self.at];
            self.at = (self.at + 1) % self.order.len();
            level
        })
    }
}

struct TwinPool {
    running: Option<(usize, DispatchKind)>,
    scans: Scans,
    last: [usize; 3],
    lease_left: u32,
}

struct Twin {
    options: RcsOptions,
    /// In order of arrival.
    tasks: Vec<(usize, usize, Task)>,
    bounds: Vec<u16>,
    recoveries: Vec<u32>,
    group_scans: Vec<Scans>,
    pools: Vec<TwinPool>,
}

impl Twin {
    fn new(options: RcsOptions) -> Twin {
        let scans = Scans::new(options.loops);
        let groups = usize::from(options.groups);
        let pool = |_| TwinPool { running: None, scans: scans.clone(), last: [groups - 1; 3], lease_left: 0 };
        Twin {
            tasks: Vec::new(),
            bounds: vec![options.bound; groups],
            recoveries: vec![0; groups],
            group_scans: vec![scans.clone(); groups],
            pools: (0..options.pools).map(pool).collect(),
            options,
        }
    }

    fn submit(&mut self, g: usize, level: usize, task: Task) -> bool {
        let of_group = self.tasks.iter().filter(|t| t.0 == g).count();
        let room =
            of_group < self.options.group_tasks_max as usize && self.tasks.len() < self.options.tasks_max as usize;
        if room {
            self.tasks.push((g, level, task));
        }
        room
    }

    fn held(&self, g: usize) -> u16 {
        let counts = |p: &&TwinPool| p.running.is_some_and(|(of, kind)| of == g && kind != DispatchKind::Lease);
        self.pools.iter().filter(counts).count() as u16
    }

    fn open(&self, g: usize) -> bool {
        !self.options.reactive || self.recoveries[g] == 0
    }

    fn ready(&self, g: usize) -> bool {
        self.open(g) && (!self.options.proactive || self.held(g) < self.bounds[g])
    }

    fn home(&self, p: usize, g: usize) -> bool {
        self.options.home.as_ref().unwrap().serves(Pool(p as u16), Group(g as u16))
    }

    fn leasable(&self, p: usize, g: usize) -> bool {
        let map = self.options.alternative.as_ref().unwrap();
        let heavy = (0..self.pools.len()).any(|q| map.serves(Pool(q as u16), Group(g as u16)) && !self.home(q, g));
        map.serves(Pool(p as u16), Group(g as u16)) && (self.ready(g) || self.open(g) && heavy)
    }

    fn has(&self, g: usize, level: usize) -> bool {
        self.tasks.iter().any(|t| t.0 == g && t.1 == level)
    }

    /// Level by the pool's loops, group in turn, level by the group's loops.
    fn turn(&mut self, p: usize, eligible: impl Fn(&Twin, usize) -> bool) -> Option<(usize, usize)> {
        let groups: Vec<usize> = (0..self.bounds.len()).filter(|g| eligible(self, *g)).collect();
        let mut scans = self.pools[p].scans.clone();
        let level = scans.pick(|level| groups.iter().any(|g| self.has(*g, level)))?;
        self.pools[p].scans = scans;
        let (last, count) = (self.pools[p].last[level], self.bounds.len());
        let g = (1..=count).map(|d| (last + d) % count).find(|g| groups.contains(g) && self.has(*g, level))?;
        self.pools[p].last[level] = g;
        Some((g, self.level_of(g)?))
    }

    fn level_of(&mut self, g: usize) -> Option<usize> {
        let mut scans = self.group_scans[g].clone();
        let level = scans.pick(|level| self.has(g, level));
        self.group_scans[g] = scans;
        level
    }

    fn choose(&mut self, p: usize) -> Option<(usize, usize, DispatchKind)> {
        let own = |(g, level)| (g, level, DispatchKind::Own);
        match self.options.policy {
            Policy::Performance => {
                let mut scans = self.pools[p].scans.clone();
                let level = scans.pick(|level| self.tasks.iter().any(|t| t.1 == level))?;
                self.pools[p].scans = scans;
                self.tasks.iter().find(|t| t.1 == level).map(|t| own((t.0, level)))
            }
            Policy::Static => self.turn(p, |twin, g| twin.ready(g) && twin.home(p, g)).map(own),
            Policy::PartialDynamic => {
                let at_home = |twin: &Twin, g| twin.ready(g) && twin.home(p, g);
                if self.pools[p].lease_left == 0 {
                    if let Some(found) = self.turn(p, at_home) {
                        return Some(own(found));
                    }
                    self.pools[p].lease_left = self.options.lease_dispatches;
                }
                let Some((g, level)) = self.turn(p, |twin, g| twin.leasable(p, g)) else {
                    self.pools[p].lease_left = 0;
                    return self.turn(p, at_home).map(own);
                };
                self.pools[p].lease_left -= 1;
                let kind = if at_home(self, g) { DispatchKind::Own } else { DispatchKind::Lease };
                Some((g, level, kind))
            }
            Policy::Dynamic => {
                if let Some(found) = self.turn(p, |twin, g| twin.ready(g)) {
                    return Some(own(found));
                }
                if self.options.overflow == Overflow::Never {
                    return None;
                }
                let (last, count) = (self.pools[p].last[0], self.bounds.len());
                let with_work = |g: &usize| self.open(*g) && self.tasks.iter().any(|t| t.0 == *g);
                let g = (1..=count).map(|d| (last + d) % count).filter(with_work).min_by_key(|g| self.held(*g))?;
                let level = self.level_of(g)?;
                self.pools[p].last[level] = g;
                Some((g, level, DispatchKind::Overflow))
            }
        }
    }

    fn dispatch(&mut self, p: usize) -> Option<(Task, usize, DispatchKind)> {
        let (g, level, kind) = self.choose(p)?;
        let at = self.tasks.iter().position(|t| t.0 == g && t.1 == level).unwrap();
        let (_, _, task) = self.tasks.remove(at);
        self.pools[p].running = Some((g, kind));
        Some((task, g, kind))
    }

    fn withdraw(&mut self, g: usize) -> Option<Task> {
        let level = (0..3).find(|level| self.has(g, *level))?;
        let at = self.tasks.iter().position(|t| t.0 == g && t.1 == level)?;
        Some(self.tasks.remove(at).2)
    }

    /// A setting, on both.
    fn set(&mut self, rcs: &mut Rcs, op: Op) {
        match op {
            Op::Policy(policy) => {
                self.options.policy = policy;
                self.pools.iter_mut().for_each(|p| p.lease_left = 0);
                rcs.set_policy(policy);
            }
            Op::Bound(g, bound) => {
                self.bounds[usize::from(g.0)] = bound;
                rcs.set_bound(g, bound).unwrap();
            }
            Op::Proactive(on) => {
                self.options.proactive = on;
                rcs.set_proactive(on);
            }
            Op::Reactive(on) => {
                self.options.reactive = on;
                rcs.set_reactive(on);
            }
            Op::Overflow(overflow) => {
                self.options.overflow = overflow;
                rcs.set_overflow(overflow);
            }
            Op::Lease(dispatches) => {
                self.options.lease_dispatches = dispatches;
                rcs.set_lease_dispatches(dispatches).unwrap();
            }
            Op::Remap(seed) => {
                let (home, alternative) = mappings(self.options.groups, self.options.pools, seed);
                rcs.set_mappings(home.clone(), alternative.clone()).unwrap();
                (self.options.home, self.options.alternative) = (Some(home), Some(alternative));
            }
            _ => {}
        }
    }
}

/// One step of both; says where they differ.
fn agree(twin: &mut Twin, rcs: &mut Rcs, task: Task, op: Op) -> Result<(), String> {
    match op {
        Op::Submit(g, priority) => {
            let (ours, theirs) =
                (rcs.submit(g, priority, task).is_ok(), twin.submit(g.0.into(), priority as usize, task));
            if ours != theirs {
                return Err(format!("submit: {ours} and {theirs}"));
            }
        }
        Op::Dispatch(pool) if twin.pools[usize::from(pool.0)].running.is_none() => {
            let ours = rcs.dispatch(pool).map(|d| (d.task, usize::from(d.group.0), d.kind));
            let theirs = twin.dispatch(pool.0.into());
            if ours != theirs {
                return Err(format!("dispatch: {ours:?} and {theirs:?}"));
            }
        }
        Op::Finish(pool) => {
            if twin.pools[usize::from(pool.0)].running.take().is_some() {
                rcs.finished(pool);
            }
        }
        Op::Begin(g) => {
            twin.recoveries[usize::from(g.0)] += 1;
            rcs.recovery_begins(g);
        }
        Op::End(g) if twin.recoveries[usize::from(g.0)] > 0 => {
            twin.recoveries[usize::from(g.0)] -= 1;
            rcs.recovery_ends(g);
        }
        Op::Withdraw(g) => {
            let (ours, theirs) = (rcs.withdraw(g).map(|(_, t)| t), twin.withdraw(g.0.into()));
            if ours != theirs {
                return Err(format!("withdraw: {ours:?} and {theirs:?}"));
            }
        }
        _ => twin.set(rcs, op),
    }
    Ok(())
}

#[test]
fn model_agrees_with_a_naive_twin() {
    for seed in 0..1_000 {
        let options = options(seed);
        let history = history(seed, options.groups, options.pools, 300);
        let (mut rcs, mut twin) = (Rcs::new(options.clone()).unwrap(), Twin::new(options));
        for (n, op) in history.into_iter().enumerate() {
            let same = agree(&mut twin, &mut rcs, n as Task, op);
            same.unwrap_or_else(|differ| panic!("seed {seed}, step {n}, {op:?}: {differ}"));
        }
    }
}
