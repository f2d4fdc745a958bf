//! The rules hold in random histories, in every short history, and over long saturated ones.
//!
//! Owns: how much is tried. Never: ships.
//! Invariant: a failure prints the seed or the history that replays it.

use super::history::{Op, history, options};
use super::watch::{Watch, run};
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

#[test]
fn no_queue_starves_under_full_load() {
    for seed in 0..40 {
        let mut chance = Chance::new(seed).stream("starve");
        let options = RcsOptions { tasks_max: 100_000, group_tasks_max: 1_000, ..options(seed) };
        let (groups, pools) = (options.groups, options.pools);
        if groups > 6 || pools > 5 {
            continue;
        }
        let counts = options.loops;
        let mut rcs = Rcs::new(options).unwrap();
        // Dispatches that passed a queue over, per group and priority.
        let mut passed = vec![[0u32; 3]; groups.into()];
        let round = u32::from(counts.high + 1) * u32::from(counts.medium + 1);
        let most = 4 * round * u32::from(groups) * u32::from(pools);
        for g in 0..groups {
            for priority in Priority::ALL {
                (0..4).for_each(|t| rcs.submit(Group(g), priority, t).unwrap());
            }
        }
        let mut busy = vec![false; pools.into()];
        for n in 0..30_000 {
            // Any pool may be next: a driver's timing is not ours to choose.
            let p = chance.below(pools.into()) as usize;
            if std::mem::take(&mut busy[p]) {
                rcs.finished(Pool(p as u16));
            }
            let Some(d) = rcs.dispatch(Pool(p as u16)) else { continue };
            busy[p] = true;
            rcs.submit(d.group, d.priority, n).unwrap();
            passed.iter_mut().flatten().for_each(|n| *n += 1);
            passed[usize::from(d.group.0)][d.priority as usize] = 0;
            let worst = passed.iter().flatten().max().unwrap();
            assert!(*worst <= most, "seed {seed}, dispatch {n}: a queue was passed over {worst} times: {passed:?}");
        }
    }
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
