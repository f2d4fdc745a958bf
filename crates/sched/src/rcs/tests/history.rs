//! Histories: what may happen to a scheduler, drawn from a seed.
//!
//! Owns: the operations and their generator. Never: judges.
//! Invariant: a seed gives one machine and one history.

use crate::rcs::*;
use segue_des::Chance;

/// One thing that happens. Operations that make no sense at the moment (finishing an idle pool) are skipped by who
/// runs the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Submit(Group, Priority),
    Dispatch(Pool),
    Finish(Pool),
    Wake,
    Begin(Group),
    End(Group),
    Withdraw(Group),
    Policy(Policy),
    Bound(Group, u16),
    Proactive(bool),
    Reactive(bool),
    Overflow(Overflow),
    Lease(u32),
    Remap(u64),
}

/// The scheduler of a seed, as options: sizes, loop counts and mappings vary.
pub fn options(seed: u64) -> RcsOptions {
    let mut chance = Chance::new(seed).stream("options");
    let wide = chance.odds(1, 8);
    let groups = chance.between(1, if wide { 150 } else { 6 }) as u16;
    let pools = chance.between(1, if wide { 90 } else { 5 }) as u16;
    let (home, alternative) = mappings(groups, pools, chance.bits());
    RcsOptions {
        groups,
        pools,
        tasks_max: chance.between(10, 400) as u32,
        group_tasks_max: chance.between(4, 200) as u32,
        loops: LoopCounts { high: chance.between(1, 4) as u16, medium: chance.between(1, 3) as u16 },
        policy: *chance.pick(&Policy::ALL),
        proactive: chance.odds(3, 4),
        reactive: chance.odds(3, 4),
        overflow: if chance.odds(1, 3) { Overflow::FewestHeld } else { Overflow::Never },
        lease_dispatches: chance.between(1, 3) as u32,
        bound: chance.between(1, 3) as u16,
        home: Some(home),
        alternative: Some(alternative),
    }
}

/// Random mappings in which every group has a home.
pub fn mappings(groups: u16, pools: u16, seed: u64) -> (Mapping, Mapping) {
    let mut chance = Chance::new(seed);
    let mut home = Mapping::none(groups, pools);
    for g in 0..groups {
        for _ in 0..chance.between(1, 2) {
            home.open(Group(g), Pool(chance.below(pools.into()) as u16));
        }
    }
    let mut alternative = home.clone();
    for g in 0..groups {
        if chance.odds(1, 3) {
            alternative.open_everywhere(Group(g));
        }
    }
    (home, alternative)
}

/// The history of a seed for a scheduler of these sizes.
pub fn history(seed: u64, groups: u16, pools: u16, len: usize) -> Vec<Op> {
    let mut chance = Chance::new(seed).stream("history");
    // Some histories keep queues short, others full.
    let submits = chance.between(1, 6);
    (0..len).map(|_| draw(&mut chance, groups, pools, submits)).collect()
}

fn draw(chance: &mut Chance, groups: u16, pools: u16, submits: u64) -> Op {
    let group = Group(chance.below(groups.into()) as u16);
    let pool = Pool(chance.below(pools.into()) as u16);
    match chance.weighted(&[submits * 4, 16, 12, 8, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]) {
        0 => Op::Submit(group, *chance.pick(&Priority::ALL)),
        1 => Op::Dispatch(pool),
        2 => Op::Finish(pool),
        3 => Op::Wake,
        4 => Op::Begin(group),
        5 => Op::End(group),
        6 => Op::Withdraw(group),
        7 => Op::Policy(*chance.pick(&Policy::ALL)),
        8 => Op::Bound(group, chance.between(1, 4) as u16),
        9 => Op::Proactive(chance.odds(3, 4)),
        10 => Op::Reactive(chance.odds(3, 4)),
        11 => Op::Overflow(if chance.odds(1, 2) { Overflow::FewestHeld } else { Overflow::Never }),
        12 => Op::Lease(chance.between(1, 3) as u32),
        _ => Op::Remap(chance.bits()),
    }
}
