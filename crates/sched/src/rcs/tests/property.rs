//! The rules hold in random histories, in every short history, and over long saturated ones.
//!
//! Owns: how much is tried. Never: ships.
//! Invariant: a failure prints the seed or the history that replays it.

use super::history::{Op, history, mappings, options};
use super::watch::{Watch, run};
use crate::rcs::loops::Loops;
use crate::rcs::*;
use segue_des::Chance;

#[test]
fn rules_hold_in_random_histories() {
    for seed in 0..1_500 {
        let options = options(seed);
        let history = history(seed, options.groups, options.pools, 400);
        let mut watch = Watch::new(Rcs::new(options.clone()).unwrap(), options);
        run(&mut watch, &history).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

/// Two groups, two pools, one of them away from home; three tasks wait.
fn small(policy: Policy, overflow: Overflow) -> Watch<Rcs> {
    let mut home = Mapping::none(2, 2);
    home.open(Group(0), Pool(0));
    home.open(Group(1), Pool(1));
    let mut alternative = home.clone();
    alternative.open_everywhere(Group(0));
    let options = RcsOptions {
        groups: 2,
        pools: 2,
        tasks_max: 8,
        group_tasks_max: 4,
        loops: LoopCounts { high: 1, medium: 1 },
        policy,
        overflow,
        home: Some(home),
        alternative: Some(alternative),
        ..RcsOptions::default()
    };
    let mut watch = Watch::new(Rcs::new(options.clone()).unwrap(), options);
    for (group, priority) in [(0, Priority::Low), (0, Priority::High), (1, Priority::Medium)] {
        watch.step(Op::Submit(Group(group), priority)).unwrap();
    }
    watch
}

#[test]
fn rules_hold_in_every_short_history() {
    let alphabet = [
        Op::Dispatch(Pool(0)),
        Op::Dispatch(Pool(1)),
        Op::Finish(Pool(0)),
        Op::Finish(Pool(1)),
        Op::Begin(Group(0)),
        Op::End(Group(0)),
        Op::Submit(Group(0), Priority::Medium),
        Op::Wake,
    ];
    const LENGTH: u32 = 5;
    let n = alphabet.len();
    for policy in Policy::ALL {
        for overflow in [Overflow::Never, Overflow::FewestHeld] {
            for code in 0..n.pow(LENGTH) {
                let history: Vec<Op> = (0..LENGTH).map(|i| alphabet[code / n.pow(i) % n]).collect();
                let done = run(&mut small(policy, overflow), &history);
                done.unwrap_or_else(|broken| panic!("{policy}, {overflow:?}, {history:?}: {broken}"));
            }
        }
    }
}

/// Keeps every queue of a seed's scheduler full and lets random pools finish and dispatch. The error names the dispatch
/// after which some queue had been passed over more often than loops and turns allow. `before` may tamper.
fn starve(seed: u64, before: impl Fn(&mut Rcs, usize)) -> Result<(), String> {
    let mut chance = Chance::new(seed).stream("starve");
    let small = RcsOptions { groups: options(seed).groups.min(6), pools: options(seed).pools.min(5), ..options(seed) };
    let (groups, pools, counts) = (small.groups, small.pools, small.loops);
    let (home, alternative) = mappings(groups, pools, seed);
    let full = RcsOptions {
        tasks_max: 1_000,
        group_tasks_max: 100,
        home: Some(home),
        alternative: Some(alternative),
        ..small
    };
    let mut rcs = Rcs::new(full).unwrap();
    // Dispatches that passed a queue over, per group and priority.
    let mut passed = vec![[0u32; 3]; groups.into()];
    let round = u32::from(counts.high + 1) * u32::from(counts.medium + 1);
    let most = 4 * round * u32::from(groups) * u32::from(pools);
    for g in 0..groups {
        for priority in Priority::ALL {
            (0..4).for_each(|t| rcs.submit(Group(g), priority, t).unwrap());
        }
    }
    for n in 0..20_000 {
        // Any pool may be next: a driver's timing is not ours to choose.
        let p = chance.below(pools.into()) as usize;
        let pool = Pool(p as u16);
        if rcs.runs(pool).is_some() {
            rcs.finished(pool);
        }
        before(&mut rcs, p);
        let Some(d) = rcs.dispatch(pool) else { continue };
        rcs.submit(d.group, d.priority, n).unwrap();
        passed.iter_mut().flatten().for_each(|n| *n += 1);
        passed[usize::from(d.group.0)][d.priority as usize] = 0;
        let worst = *passed.iter().flatten().max().expect("there is a queue");
        if worst > most {
            return Err(format!("seed {seed}, dispatch {n}: a queue was passed over {worst} times: {passed:?}"));
        }
    }
    Ok(())
}

#[test]
fn no_queue_starves_under_full_load() {
    for seed in 0..60 {
        starve(seed, |_, _| {}).unwrap();
    }
}

#[test]
fn canary_starvation_is_caught() {
    let no_turns = |rcs: &mut Rcs, p: usize| rcs.pools[p].cursors = [rcs.groups.len() as u16 - 1; 3];
    let no_loops = |rcs: &mut Rcs, p: usize| {
        rcs.pools[p].loops = Loops::new(rcs.counts);
        rcs.groups.iter_mut().for_each(|g| g.loops = Loops::new(rcs.counts));
    };
    assert!((0..60).any(|seed| starve(seed, no_turns).is_err()), "groups without turns");
    assert!((0..60).any(|seed| starve(seed, no_loops).is_err()), "priorities without loops");
}

#[test]
fn sizes_up_to_256_groups_on_256_pools_work() {
    let options = RcsOptions { groups: 256, pools: 256, bound: 1, ..RcsOptions::default() };
    let mut rcs = Rcs::new(options).unwrap();
    for g in 0..256 {
        for task in 0..4 {
            rcs.submit(Group(g), Priority::Medium, task).unwrap();
        }
    }
    let started = (0..256).filter_map(|p| rcs.dispatch(Pool(p))).count();
    assert_eq!(started, 256, "each group holds its one pool");
    assert!((0..256).all(|g| rcs.held(Group(g)) == 1));
}
