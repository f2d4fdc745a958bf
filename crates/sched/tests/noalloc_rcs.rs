//! The recovery-conscious scheduler allocates nothing after its construction, under any policy.
//!
//! Owns: a counting allocator. Never: counts other threads.
//! Invariant: the canary shows that an allocation would be seen.

#[path = "../../types/testing/calls.rs"]
mod calls;

use calls::calls;
use segue_sched::rcs::{Group, Mapping, Overflow, Policy, Pool, Priority, Rcs, RcsOptions};

#[test]
fn noalloc_policies_bounds_and_recoveries_change_without_allocating() {
    const GROUPS: u16 = 64;
    const POOLS: u16 = 16;
    let options = RcsOptions {
        groups: GROUPS,
        pools: POOLS,
        tasks_max: 256,
        group_tasks_max: 32,
        alternative: Some(Mapping::all(GROUPS, POOLS)),
        ..RcsOptions::default()
    };
    let mut rcs = Rcs::new(options).unwrap();
    let before = calls();
    for (n, policy) in Policy::ALL.into_iter().cycle().take(40).enumerate() {
        rcs.set_policy(policy);
        rcs.set_overflow(if n % 2 == 0 { Overflow::Never } else { Overflow::FewestHeld });
        for round in 0..200u16 {
            let (group, pool) = (Group(round * 7 % GROUPS), Pool(round % POOLS));
            let _ = rcs.submit(group, Priority::ALL[usize::from(round % 3)], round.into());
            rcs.set_bound(group, 1 + round % 4).unwrap();
            if rcs.runs(pool).is_some() {
                rcs.finished(pool);
            }
            rcs.dispatch(pool);
            rcs.wake();
            rcs.recovery_begins(group);
            assert!(rcs.pools_of(group).count() <= usize::from(POOLS));
            rcs.recovery_ends(group);
            rcs.withdraw(Group(round % GROUPS));
        }
    }
    assert_eq!(calls() - before, 0);
    assert!(rcs.totals().dispatched > 1_000, "there was work");
}

#[test]
fn noalloc_canary_growing_is_seen() {
    let before = calls();
    drop(vec![1u8; 100]);
    assert!(calls() > before);
}
