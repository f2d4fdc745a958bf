//! The paper's own example and the plain behaviour of each part.
//!
//! Owns: small histories written out by hand. Never: ships.
//! Invariant: each test names the rule it shows.

use crate::rcs::*;

/// The paper's running example: 5 pools, 4 groups with constraints 2, 1, 1, 1, home and alternative mapping.
pub fn example(policy: Policy) -> Rcs {
    let mut home = Mapping::none(4, 5);
    for (group, pool) in [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4)] {
        home.open(Group(group), Pool(pool));
    }
    let mut alternative = home.clone();
    alternative.open_everywhere(Group(0));
    alternative.open_everywhere(Group(1));
    let options = RcsOptions {
        groups: 4,
        pools: 5,
        policy,
        home: Some(home),
        alternative: Some(alternative),
        ..RcsOptions::default()
    };
    let mut rcs = Rcs::new(options).unwrap();
    rcs.set_bound(Group(0), 2).unwrap();
    rcs
}

fn fill(rcs: &mut Rcs, group: u16, tasks: u64) {
    for task in 0..tasks {
        rcs.submit(Group(group), Priority::Medium, u64::from(group) * 1000 + task).unwrap();
    }
}

/// Every pool that finds something starts it; gives the group of each pool.
fn start_all(rcs: &mut Rcs) -> Vec<Option<u16>> {
    (0..rcs.shape().1 as u16).map(|p| rcs.dispatch(Pool(p)).map(|d| d.group.0)).collect()
}

#[test]
fn static_keeps_groups_at_home() {
    let mut rcs = example(Policy::Static);
    fill(&mut rcs, 0, 10);
    fill(&mut rcs, 2, 10);
    assert_eq!(start_all(&mut rcs), [Some(0), Some(0), None, Some(2), None]);
}

#[test]
fn partial_dynamic_leases_spare_pools_to_heavy_groups_only() {
    let mut rcs = example(Policy::PartialDynamic);
    fill(&mut rcs, 0, 10);
    fill(&mut rcs, 2, 10);
    assert_eq!(start_all(&mut rcs), [Some(0), Some(0), Some(0), Some(2), Some(0)]);
    assert_eq!((rcs.held(Group(0)), rcs.running(Group(0))), (2, 4), "leases do not use up the bound");
    assert_eq!(rcs.held(Group(2)), 1, "the others stay strictly bounded");
    // The lease is one dispatch long: then its own group comes first again.
    fill(&mut rcs, 1, 1);
    rcs.finished(Pool(2));
    assert_eq!(rcs.dispatch(Pool(2)).map(|d| (d.group.0, d.kind)), Some((1, DispatchKind::Own)));
    rcs.finished(Pool(2));
    assert_eq!(rcs.dispatch(Pool(2)).map(|d| (d.group.0, d.kind)), Some((0, DispatchKind::Lease)));
}

#[test]
fn a_longer_lease_lasts_as_many_dispatches() {
    let mut rcs = example(Policy::PartialDynamic);
    rcs.set_lease_dispatches(3).unwrap();
    fill(&mut rcs, 0, 20);
    assert_eq!(rcs.dispatch(Pool(3)).map(|d| d.kind), Some(DispatchKind::Lease));
    fill(&mut rcs, 2, 5);
    let mut served = Vec::new();
    for _ in 0..4 {
        rcs.finished(Pool(3));
        served.extend(rcs.dispatch(Pool(3)).map(|d| d.group.0));
    }
    // Two more by the lease, in turn with the pool's own group, then home.
    assert_eq!(served, [2, 0, 2, 2]);
    assert_eq!(rcs.set_lease_dispatches(0), Err(RcsError::Zero));
}

#[test]
fn dynamic_helps_up_to_the_bound_and_overflows_only_when_told() {
    let mut rcs = example(Policy::Dynamic);
    fill(&mut rcs, 0, 10);
    fill(&mut rcs, 1, 10);
    assert_eq!(start_all(&mut rcs), [Some(0), Some(0), Some(1), None, None]);
    rcs.set_overflow(Overflow::FewestHeld);
    assert_eq!(rcs.wake(), Some(Pool(3)));
    assert_eq!(rcs.dispatch(Pool(3)).map(|d| (d.group.0, d.kind)), Some((1, DispatchKind::Overflow)));
    assert_eq!(rcs.dispatch(Pool(4)).map(|d| (d.group.0, d.kind)), Some((0, DispatchKind::Overflow)));
    assert_eq!(rcs.totals().overflowed, 2);
}

#[test]
fn performance_takes_the_oldest_whoever_it_is() {
    let mut rcs = example(Policy::Performance);
    for (n, group) in [3u16, 0, 0, 1, 3].into_iter().enumerate() {
        rcs.submit(Group(group), Priority::Low, n as u64).unwrap();
    }
    rcs.recovery_begins(Group(0));
    let tasks: Vec<_> = (0..5).map(|p| rcs.dispatch(Pool(p)).map(|d| (d.task, d.recovering))).collect();
    let expect = [(0, false), (1, true), (2, true), (3, false), (4, false)].map(Some);
    assert_eq!(tasks, expect, "suspends nothing, but says who recovers");
}

#[test]
fn recovery_suspends_its_group_until_every_recovery_ended() {
    let mut rcs = example(Policy::Dynamic);
    fill(&mut rcs, 0, 10);
    assert_eq!(start_all(&mut rcs), [Some(0), Some(0), None, None, None]);
    assert_eq!(rcs.recovery_begins(Group(0)), 2, "both running tasks clean up");
    assert_eq!(rcs.pools_of(Group(0)).collect::<Vec<_>>(), [Pool(0), Pool(1)]);
    rcs.recovery_begins(Group(0));
    rcs.finished(Pool(0));
    rcs.finished(Pool(1));
    rcs.recovery_ends(Group(0));
    assert!(rcs.dispatch(Pool(0)).is_none() && rcs.wake().is_none(), "the second recovery still runs");
    fill(&mut rcs, 3, 1);
    assert_eq!(rcs.wake(), Some(Pool(0)), "others go on");
    assert_eq!(rcs.dispatch(Pool(0)).map(|d| d.group.0), Some(3));
    rcs.recovery_ends(Group(0));
    let woken = rcs.wake().unwrap();
    assert_eq!(rcs.dispatch(woken).map(|d| (d.group.0, d.recovering)), Some((0, false)));
}

#[test]
fn proactive_and_reactive_switch_separately() {
    let mut rcs = example(Policy::Dynamic);
    fill(&mut rcs, 2, 10);
    rcs.recovery_begins(Group(2));
    assert!(rcs.dispatch(Pool(0)).is_none());
    rcs.set_reactive(false);
    assert_eq!(rcs.dispatch(Pool(0)).map(|d| d.recovering), Some(true));
    assert!(rcs.dispatch(Pool(1)).is_none(), "still bounded");
    rcs.set_proactive(false);
    rcs.set_reactive(true);
    assert!(rcs.dispatch(Pool(1)).is_none(), "still suspended");
    rcs.recovery_ends(Group(2));
    assert_eq!(start_all_but_first(&mut rcs), [Some(2); 4], "no bound");
}

fn start_all_but_first(rcs: &mut Rcs) -> Vec<Option<u16>> {
    (1..5).map(|p| rcs.dispatch(Pool(p)).map(|d| d.group.0)).collect()
}

#[test]
fn full_queues_say_so_and_recover() {
    let options = RcsOptions { groups: 2, tasks_max: 3, group_tasks_max: 2, ..RcsOptions::default() };
    let mut rcs = Rcs::new(options).unwrap();
    fill(&mut rcs, 0, 2);
    let full = rcs.submit(Group(0), Priority::High, 9);
    assert_eq!(full, Err(SubmitError::GroupFull { group: Group(0), tasks: 2 }));
    fill(&mut rcs, 1, 1);
    assert_eq!(rcs.submit(Group(1), Priority::High, 9), Err(SubmitError::Full { tasks: 3 }));
    assert_eq!(rcs.totals().refused, 2);
    assert_eq!(rcs.withdraw(Group(0)), Some((Priority::Medium, 0)));
    rcs.submit(Group(1), Priority::High, 9).unwrap();
    assert_eq!(rcs.waiting_in_all(), 3);
    let left: Vec<_> = std::iter::from_fn(|| rcs.withdraw(Group(1))).map(|(_, t)| t).collect();
    assert_eq!(left, [9, 1000]);
}

#[test]
fn wrong_options_are_named() {
    let error = |options: RcsOptions| Rcs::new(options).map(|_| ()).unwrap_err();
    let good = RcsOptions { groups: 2, pools: 2, ..RcsOptions::default() };
    assert_eq!(error(RcsOptions { groups: 0, ..good.clone() }), RcsError::Count { groups: 0, pools: 2 });
    assert_eq!(error(RcsOptions { bound: 0, ..good.clone() }), RcsError::Zero);
    assert_eq!(error(RcsOptions { tasks_max: 0, ..good.clone() }), RcsError::Room);
    let mut lonely = Mapping::none(2, 2);
    lonely.open(Group(0), Pool(1));
    assert_eq!(error(RcsOptions { home: Some(lonely.clone()), ..good.clone() }), RcsError::Orphan { group: Group(1) });
    let other = RcsOptions { alternative: Some(Mapping::all(3, 2)), ..good.clone() };
    assert_eq!(error(other), RcsError::Shape { groups: 2, pools: 2 });
    let mut rcs = Rcs::new(good).unwrap();
    assert_eq!(rcs.set_mappings(lonely, Mapping::all(2, 2)), Err(RcsError::Orphan { group: Group(1) }));
    assert_eq!(rcs.set_bound(Group(0), 0), Err(RcsError::Zero));
    assert_eq!("partial-dynamic".parse(), Ok(Policy::PartialDynamic));
    assert_eq!("round".parse::<Policy>(), Err(RcsError::UnknownPolicy));
}
