//! Bounds that set themselves from observed load, faults and recovery times.
//!
//! Owns: the estimates per group and the rule. Never: reads a clock, allocates after construction, or changes a fixed bound.
//! Invariant: a bound is at least 1 and at most its cap; a fixed bound is what it was fixed to.
//!
//! The paper (FAST 2008) says how bounds are used and leaves open how they are set. The rule here, per group:
//!
//! - *Load* `L`: pools kept busy, an exponentially weighted mean. *Recovery* `R`: mean seconds of a recovery.
//!   *Faults* `F`: recoveries a second. A group is suspended a part `u = F * R` of the time, so it needs `L / (1 - u)` pools
//!   while it is not.
//! - *Need* `= ceil(headroom * L / (1 - u))`: bursts should not find a bound that is just the mean.
//! - *Held back*: if tasks of the group wait only because of its bound while a pool idles, the need is one more than
//!   the bound; load alone would never show it.
//! - *Cap*: no group gets more than a part of all pools, so that a fault never stops them all. A group that fails
//!   often is capped further: each recovery takes up to bound times `R`, and `F` of them a second may cost
//!   `recovery_budget` of all pools; but never below `ceil(L / (1 - u))`, or its queue would grow without end.
//! - *Up at once, down slowly*: a bound at most doubles per step; it falls by one after its need was lower for
//!   `calm_steps` steps in a row, and only while the bounds together still cover all pools (idle groups keep room for
//!   a sudden load). Above its cap it falls at once.

use super::{Group, Rcs, RcsError};
use segue_types::Nanos;

/// The rule's numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BoundsOptions {
    /// Groups, as many as the scheduler has.
    pub groups: u16,
    /// Pools, as many as the scheduler has.
    pub pools: u16,
    /// Least time between two steps, nanoseconds, at least 1.
    pub interval_ns: Nanos,
    /// Time constant of the load's mean, nanoseconds, at least 1.
    pub load_memory_ns: Nanos,
    /// Time constant of the fault rate's mean, nanoseconds, at least 1.
    pub fault_memory_ns: Nanos,
    /// Pools granted per pool of load, 1.0 or more.
    pub headroom: f64,
    /// The largest part of all pools that one group may get, above 0 and up to 1.
    pub cap: f64,
    /// The part of all pools that the recoveries of one group may cost, above 0 and up to 1.
    pub recovery_budget: f64,
    /// Steps of lower need before a bound falls by one.
    pub calm_steps: u32,
}

impl Default for BoundsOptions {
    fn default() -> Self {
        BoundsOptions {
            groups: 1,
            pools: 1,
            interval_ns: 100_000_000,
            load_memory_ns: 1_000_000_000,
            fault_memory_ns: 60_000_000_000,
            headroom: 1.5,
            cap: 0.75,
            recovery_budget: 0.02,
            calm_steps: 10,
        }
    }
}

/// What is believed of a group.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Estimate {
    /// Pools that its tasks keep busy.
    pub load_pools: f64,
    /// Mean time of a recovery, nanoseconds.
    pub recovery_ns: f64,
    /// Recoveries per second.
    pub faults_per_second: f64,
}

#[derive(Clone, Copy, Default)]
struct State {
    bound: u16,
    fixed: bool,
    estimate: Estimate,
    /// Since the last step.
    work_ns: Nanos,
    recoveries: u32,
    /// Steps in a row in which less was needed.
    calm: u32,
    /// For [`Bounds::watch`]: time seen in recoveries that are not over, their number, and all that ever began.
    suspended_ns: Nanos,
    recoveries_open: u64,
    recoveries_seen: u64,
}

/// The machine; see the module.
pub struct Bounds {
    options: BoundsOptions,
    groups: Box<[State]>,
    last_step: Option<Nanos>,
    last_look: Option<Nanos>,
}

/// Weight of one more recovery in the mean of their times.
const RECOVERY_WEIGHT: f64 = 0.125;
/// A group is counted as suspended at most this part of the time: beyond it, more pools cannot make up for it.
const SUSPENDED_MAX: f64 = 0.5;

impl Bounds {
    /// Starts with the pools dealt out evenly, at least one each. Allocates; nothing later does.
    ///
    /// # Errors
    /// [`RcsError::Count`], or [`RcsError::Rule`] when a number is out of its range.
    pub fn new(options: BoundsOptions) -> Result<Bounds, RcsError> {
        let (groups, pools) = (options.groups, options.pools);
        if groups == 0 || pools == 0 {
            return Err(RcsError::Count { groups, pools });
        }
        let part = |p: f64| p > 0.0 && p <= 1.0;
        let times = [options.interval_ns, options.load_memory_ns, options.fault_memory_ns];
        let headroom = options.headroom >= 1.0 && options.headroom.is_finite();
        if times.contains(&0) || !headroom || !part(options.cap) || !part(options.recovery_budget) {
            return Err(RcsError::Rule);
        }
        let state = State { bound: pools.div_ceil(groups), ..State::default() };
        let mut bounds =
            Bounds { options, groups: vec![state; groups.into()].into_boxed_slice(), last_step: None, last_look: None };
        (0..groups).for_each(|g| {
            let cap = bounds.cap(g.into());
            bounds.groups[usize::from(g)].bound = bounds.groups[usize::from(g)].bound.min(cap);
        });
        Ok(bounds)
    }

    /// A task of the group has held a pool for this long.
    pub fn worked(&mut self, group: Group, work_ns: Nanos) {
        let state = &mut self.groups[usize::from(group.0)];
        state.work_ns = state.work_ns.saturating_add(work_ns);
    }

    /// A recovery of the group ended and took this long.
    pub fn recovered(&mut self, group: Group, recovery_ns: Nanos) {
        let state = &mut self.groups[usize::from(group.0)];
        state.recoveries += 1;
        fold_recovery(&mut state.estimate.recovery_ns, recovery_ns);
    }

    /// Fixes a group's bound (1 or more), or lets it set itself again (`None`).
    ///
    /// # Errors
    /// [`RcsError::Zero`].
    pub fn fix(&mut self, group: Group, bound: Option<u16>) -> Result<(), RcsError> {
        if bound == Some(0) {
            return Err(RcsError::Zero);
        }
        let state = &mut self.groups[usize::from(group.0)];
        state.fixed = bound.is_some();
        state.bound = bound.unwrap_or(state.bound);
        state.calm = 0;
        Ok(())
    }

    /// The group's bound now, pools.
    pub fn bound(&self, group: Group) -> u16 {
        self.groups[usize::from(group.0)].bound
    }

    /// True when the bound was fixed.
    pub fn is_fixed(&self, group: Group) -> bool {
        self.groups[usize::from(group.0)].fixed
    }

    /// What is believed of the group.
    pub fn estimate(&self, group: Group) -> Estimate {
        self.groups[usize::from(group.0)].estimate
    }

    /// As [`Bounds::step`], for a driver that times no tasks: called every few milliseconds, it takes the load and the time
    /// of recoveries from who holds pools and who recovers at these moments. Do not mix with [`Bounds::worked`] and
    /// [`Bounds::recovered`], or both are counted.
    pub fn watch(&mut self, now: Nanos, rcs: &mut Rcs) -> bool {
        let elapsed = now.saturating_sub(self.last_look.unwrap_or(now));
        self.last_look = Some(now);
        for (g, state) in self.groups.iter_mut().enumerate() {
            let group = Group(g as u16);
            state.work_ns = state.work_ns.saturating_add(elapsed * u64::from(rcs.running(group)));
            if rcs.recovering(group) {
                state.suspended_ns = state.suspended_ns.saturating_add(elapsed);
            }
            let begun = rcs.counters(group).recoveries;
            let new = begun - std::mem::replace(&mut state.recoveries_seen, begun);
            state.recoveries = state.recoveries.saturating_add(new.min(u64::from(u32::MAX)) as u32);
            if !rcs.recovering(group) && state.recoveries_open + new > 0 {
                let each = std::mem::take(&mut state.suspended_ns) / (state.recoveries_open + new);
                state.recoveries_open = 0;
                fold_recovery(&mut state.estimate.recovery_ns, each);
            } else {
                state.recoveries_open += new;
            }
        }
        self.step(now, rcs)
    }

    /// Adapts the bounds and gives them to the scheduler, if the interval is over; else does nothing. `true` if it was:
    /// a bound may have risen, so call [`Rcs::wake`].
    pub fn step(&mut self, now: Nanos, rcs: &mut Rcs) -> bool {
        let stepped = self.adapt(now, |group| rcs.held_back(group));
        if stepped {
            for (g, state) in self.groups.iter().enumerate() {
                rcs.set_bound(Group(g as u16), state.bound).expect("a bound is at least 1");
            }
        }
        stepped
    }

    /// As [`Bounds::step`] without a scheduler: `held_back` says which groups wait only because of their bound.
    pub fn adapt(&mut self, now: Nanos, held_back: impl Fn(Group) -> bool) -> bool {
        let Some(last) = self.last_step else {
            self.last_step = Some(now);
            return false;
        };
        let elapsed = now.saturating_sub(last);
        if elapsed < self.options.interval_ns {
            return false;
        }
        self.last_step = Some(now);
        for state in &mut self.groups {
            observe(state, elapsed as f64, &self.options);
        }
        let mut sum: u32 = self.groups.iter().map(|s| u32::from(s.bound)).sum();
        for g in 0..self.groups.len() {
            let before = u32::from(self.groups[g].bound);
            if !self.groups[g].fixed {
                self.adapt_one(g, held_back(Group(g as u16)), sum);
            }
            sum = sum - before + u32::from(self.groups[g].bound);
        }
        true
    }

    fn adapt_one(&mut self, g: usize, held_back: bool, sum: u32) {
        let cap = self.cap(g);
        let state = &self.groups[g];
        let by_load = (self.options.headroom * bare_need(&state.estimate)).ceil();
        let more = if held_back { state.bound.saturating_add(1) } else { 1 };
        let need = (by_load.min(f64::from(u16::MAX)) as u16).max(more).clamp(1, cap);
        let covered = sum > u32::from(self.options.pools);
        let state = &mut self.groups[g];
        if need >= state.bound {
            state.calm = 0;
            state.bound = need.min(state.bound.saturating_mul(2)).max(1);
            return;
        }
        state.calm += 1;
        if state.bound > cap {
            state.bound = cap;
        } else if state.calm >= self.options.calm_steps && covered {
            state.calm = 0;
            state.bound -= 1;
        }
    }

    /// The most that the group may get, pools.
    fn cap(&self, g: usize) -> u16 {
        let pools = f64::from(self.options.pools);
        let Estimate { recovery_ns, faults_per_second, .. } = self.groups[g].estimate;
        // A machine for one group has nobody to protect.
        let part = if self.groups.len() == 1 { 1.0 } else { self.options.cap };
        let recovering = faults_per_second * recovery_ns / 1e9;
        let by_faults = if recovering > 0.0 { self.options.recovery_budget * pools / recovering } else { pools };
        let bare = bare_need(&self.groups[g].estimate).ceil();
        by_faults.floor().max(bare).min((part * pools).floor()).max(1.0) as u16
    }
}

/// Pools that the load needs while the group is not suspended.
fn bare_need(estimate: &Estimate) -> f64 {
    let suspended = (estimate.faults_per_second * estimate.recovery_ns / 1e9).min(SUSPENDED_MAX);
    estimate.load_pools / (1.0 - suspended)
}

fn fold_recovery(mean: &mut f64, recovery_ns: Nanos) {
    let weight = if *mean == 0.0 { 1.0 } else { RECOVERY_WEIGHT };
    *mean += weight * (recovery_ns as f64 - *mean);
}

/// Folds what happened since the last step into the means.
fn observe(state: &mut State, elapsed_ns: f64, options: &BoundsOptions) {
    let fold = |mean: &mut f64, sample: f64, memory: Nanos| {
        *mean += elapsed_ns / (elapsed_ns + memory as f64) * (sample - *mean);
    };
    fold(&mut state.estimate.load_pools, state.work_ns as f64 / elapsed_ns, options.load_memory_ns);
    let faults = f64::from(state.recoveries) / (elapsed_ns / 1e9);
    fold(&mut state.estimate.faults_per_second, faults, options.fault_memory_ns);
    (state.work_ns, state.recoveries) = (0, 0);
}

#[cfg(test)]
mod tests {
    use super::super::{Pool, Priority, RcsOptions};
    use super::*;
    use segue_des::Chance;

    const MS: Nanos = 1_000_000;
    const OPTIONS: BoundsOptions = BoundsOptions {
        groups: 4,
        pools: 8,
        interval_ns: 100 * MS,
        load_memory_ns: 1_000 * MS,
        fault_memory_ns: 10_000 * MS,
        headroom: 1.5,
        cap: 0.75,
        recovery_budget: 0.02,
        calm_steps: 10,
    };

    /// Steps `steps` intervals; each group keeps `load[g]` pools busy. Gives the bounds.
    fn run(bounds: &mut Bounds, from: Nanos, steps: u64, load: [f64; 4]) -> Vec<u16> {
        for n in 1..=steps {
            for (g, pools) in load.iter().enumerate() {
                bounds.worked(Group(g as u16), (pools * 1e8) as Nanos);
            }
            assert!(bounds.adapt(from + n * 100 * MS, |_| false));
        }
        (0..4).map(|g| bounds.bound(Group(g))).collect()
    }

    fn fresh() -> Bounds {
        let mut bounds = Bounds::new(OPTIONS).unwrap();
        assert!(!bounds.adapt(0, |_| false), "the first step only starts the interval");
        bounds
    }

    #[test]
    fn bounds_follow_the_load_and_its_shift() {
        let mut bounds = fresh();
        assert_eq!(bounds.bound(Group(0)), 2, "dealt out evenly");
        assert_eq!(run(&mut bounds, 0, 100, [3.0, 1.0, 0.2, 0.0]), [5, 2, 1, 1]);
        assert_eq!(run(&mut bounds, 10_000 * MS, 100, [0.2, 1.0, 3.0, 0.0]), [1, 2, 5, 1], "the load has moved");
    }

    #[test]
    fn a_bound_rises_at_once_and_falls_slowly() {
        let mut bounds = fresh();
        run(&mut bounds, 0, 100, [3.0, 1.0, 1.0, 1.0]);
        let after_a_pause = run(&mut bounds, 10_000 * MS, 12, [0.0, 1.0, 1.0, 1.0]);
        assert!((4..=5).contains(&after_a_pause[0]), "a second's pause costs at most one: {after_a_pause:?}");
        let back = run(&mut bounds, 11_200 * MS, 20, [3.0, 1.0, 1.0, 1.0]);
        assert_eq!(back[0], 5);
    }

    #[test]
    fn a_group_that_is_held_back_gets_more() {
        let mut bounds = fresh();
        for n in 1..=3 {
            bounds.adapt(n * 100 * MS, |group| group == Group(3));
        }
        assert_eq!(bounds.bound(Group(3)), 5, "one more each step");
        for n in 4..=20 {
            bounds.adapt(n * 100 * MS, |group| group == Group(3));
        }
        assert_eq!(bounds.bound(Group(3)), 6, "and never more than its cap");
    }

    #[test]
    fn faults_lower_a_bound_to_what_the_load_needs() {
        let mut bounds = fresh();
        run(&mut bounds, 0, 50, [1.2, 2.0, 2.0, 1.0]);
        assert_eq!(bounds.bound(Group(0)), 2);
        // 100 ms of recovery once a second: suspended a tenth of the time, and 0.02 * 8 / 0.1 is 1.6 pools.
        for n in 50..300 {
            if n % 10 == 0 {
                bounds.recovered(Group(0), 100 * MS);
            }
            for (g, pools) in [0.4, 2.0, 2.0, 1.0].into_iter().enumerate() {
                bounds.worked(Group(g as u16), (pools * 1e8) as Nanos);
            }
            bounds.adapt((n + 1) * 100 * MS, |_| true);
        }
        assert_eq!(bounds.bound(Group(0)), 1, "{:?}", bounds.estimate(Group(0)));
        assert!((bounds.estimate(Group(0)).faults_per_second - 1.0).abs() < 0.2);
    }

    #[test]
    fn a_fixed_bound_stays() {
        let mut bounds = fresh();
        bounds.fix(Group(1), Some(7)).unwrap();
        assert_eq!(run(&mut bounds, 0, 200, [0.0; 4])[1], 7);
        assert!(bounds.is_fixed(Group(1)));
        bounds.fix(Group(1), None).unwrap();
        assert!(run(&mut bounds, 20_000 * MS, 200, [0.0; 4])[1] < 7);
        assert_eq!(bounds.fix(Group(1), Some(0)), Err(RcsError::Zero));
    }

    #[test]
    fn rules_hold_for_random_loads() {
        for seed in 0..300 {
            let mut chance = Chance::new(seed);
            let (groups, pools) = (chance.between(1, 40) as u16, chance.between(1, 40) as u16);
            let options = BoundsOptions { groups, pools, ..OPTIONS };
            let mut bounds = Bounds::new(options).unwrap();
            let sum = |b: &Bounds| (0..groups).map(|g| u32::from(b.bound(Group(g)))).sum::<u32>();
            let cap = if groups == 1 { pools } else { (0.75 * f64::from(pools)).floor().max(1.0) as u16 };
            let covers = u32::from(pools).min(u32::from(groups) * u32::from(cap));
            assert!(sum(&bounds) >= covers, "seed {seed}");
            let faulty = chance.odds(1, 2);
            let mut now = 0;
            for step in 0..300 {
                now += chance.between(1, 300) * MS;
                let before: Vec<u16> = (0..groups).map(|g| bounds.bound(Group(g))).collect();
                for g in 0..groups {
                    bounds.worked(Group(g), chance.below(4_000 * MS));
                    if faulty && chance.odds(1, 20) {
                        bounds.recovered(Group(g), chance.between(1, 2_000) * MS);
                    }
                }
                let back = chance.bits();
                bounds.adapt(now, |group| back >> (group.0 % 64) & 1 == 1);
                for g in 0..groups {
                    let (was, is) = (before[usize::from(g)], bounds.bound(Group(g)));
                    assert!((1..=cap).contains(&is), "seed {seed}, step {step}: {is} of {cap}");
                    assert!(is <= 2 * was, "seed {seed}, step {step}: {was} to {is}");
                    assert!(faulty || is + 1 >= was, "seed {seed}, step {step}: {was} to {is}");
                }
                assert!(faulty || sum(&bounds) >= covers, "seed {seed}, step {step}: idle groups keep room");
            }
        }
    }

    #[test]
    fn watching_a_scheduler_sees_its_load_and_recoveries() {
        let (groups, pools) = (OPTIONS.groups, OPTIONS.pools);
        let mut rcs = Rcs::new(RcsOptions { groups, pools, bound: 8, ..RcsOptions::default() }).unwrap();
        let mut bounds = Bounds::new(OPTIONS).unwrap();
        for group in [0, 0, 0, 1] {
            rcs.submit(Group(group), Priority::High, 0).unwrap();
        }
        assert!((0..4).all(|p| rcs.dispatch(Pool(p)).is_some()));
        for ms in 0..20_000 {
            // Once a second group 1 recovers for 40 ms.
            match ms % 1_000 {
                100 => assert_eq!(rcs.recovery_begins(Group(1)), 1),
                140 => rcs.recovery_ends(Group(1)),
                _ => {}
            }
            if ms % 5 == 0 {
                bounds.watch(ms * MS, &mut rcs);
            }
        }
        let (busy, faulty) = (bounds.estimate(Group(0)), bounds.estimate(Group(1)));
        assert!((busy.load_pools - 3.0).abs() < 0.01 && busy.faults_per_second == 0.0, "{busy:?}");
        assert!((faulty.load_pools - 1.0).abs() < 0.01, "{faulty:?}");
        assert!((faulty.recovery_ns / 40e6 - 1.0).abs() < 0.2 && faulty.faults_per_second > 0.5, "{faulty:?}");
        assert_eq!((rcs.bound(Group(0)), rcs.bound(Group(2))), (5, 1), "and sets its bounds");
    }

    #[test]
    fn wrong_rules_are_refused() {
        let error = |options| Bounds::new(options).map(|_| ()).unwrap_err();
        assert_eq!(error(BoundsOptions { groups: 0, ..OPTIONS }), RcsError::Count { groups: 0, pools: 8 });
        for wrong in [
            BoundsOptions { interval_ns: 0, ..OPTIONS },
            BoundsOptions { headroom: 0.5, ..OPTIONS },
            BoundsOptions { headroom: f64::NAN, ..OPTIONS },
            BoundsOptions { cap: 0.0, ..OPTIONS },
            BoundsOptions { recovery_budget: 1.5, ..OPTIONS },
        ] {
            assert_eq!(error(wrong), RcsError::Rule);
        }
    }
}
