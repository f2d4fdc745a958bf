//! The machine of a drive allocates nothing after its construction, under any policy.
//!
//! Owns: a counting allocator. Never: counts other threads.
//! Invariant: the canary shows that an allocation would be seen.

#[path = "../../types/testing/calls.rs"]
mod calls;

use calls::calls;
use segue_sched::qos::{CostModel, DriveShare, GovernorParams, Kind, PolicyKind, ShareOptions};
use segue_types::Share;

#[test]
fn noalloc_requests_settings_and_policies_change_without_allocating() {
    let mut share = DriveShare::new(&ShareOptions {
        volumes: 64,
        requests: 256,
        policy: PolicyKind::Fifo,
        model: CostModel::DRIVE,
        governor: GovernorParams { target_ns: 200_000, window_min: 400, window_max: 3000 },
        capacity: 1_000_000,
    });
    let before = calls();
    let mut now = 0;
    for policy in PolicyKind::ALL.into_iter().cycle().take(20) {
        share.set_policy(policy, now);
        let slots: [_; 8] = std::array::from_fn(|_| share.open(&Share::default(), now).expect("there is a place"));
        for round in 0..200u64 {
            now += 200_000;
            let slot = slots[round as usize % 8];
            let settings = Share { weight: 1 + round as u32, limit_iops: round % 3 * 5000, ..Share::default() };
            share.set(slot, &settings, now).expect("nothing is reserved");
            let kind = [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim][round as usize % 4];
            let mut charge = share.charge(kind, 4096 << (round % 7), true);
            if !share.direct(slot, &mut charge, now) {
                assert!(share.enqueue(slot, 0, charge, now));
            } else {
                share.complete(slot, &charge, 50_000, now);
            }
            while let Some((slot, item)) = share.next(now, u64::MAX) {
                share.complete(slot, &item.charge, 50_000, now);
            }
        }
        share.lift_limits();
        for slot in slots {
            share.cancel(slot, |_| false, now, |_| {});
            share.close(slot, now);
        }
    }
    assert_eq!(calls() - before, 0);
}

#[test]
fn noalloc_canary_growing_is_seen() {
    let before = calls();
    drop(vec![1u8; 100]);
    assert!(calls() > before);
}
