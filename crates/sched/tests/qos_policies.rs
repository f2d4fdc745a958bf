//! What every policy is held to, over random tenants.
//!
//! Owns: the properties. Never: looks inside a policy.
//! Invariant: a failure prints the tenants that replay it.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "a test harness")]

mod qos_common;

use proptest::prelude::*;
use qos_common::*;
use segue_sched::qos::{Charge, DriveShare, Kind, PolicyKind, Reason, ShareError, ShareOptions, Slot};
use segue_types::{Nanos, Share};

/// Hands out what always-busy volumes ask for at `rate` cost units per second, for `seconds`.
fn serve(share: &mut DriveShare, slots: &[Slot], charges: &[Charge], rate: u64, from: Nanos, until: Nanos) -> Vec<u64> {
    let mut cost = vec![0; slots.len()];
    let mut now = from;
    for (at, slot) in slots.iter().enumerate() {
        while share.volume_stats(*slot).queued < 4 {
            assert!(share.enqueue(*slot, at as u32, charges[at], now));
        }
    }
    while now < until {
        match share.next(now, u64::MAX) {
            Some((slot, item)) => {
                let at = item.key as usize;
                cost[at] += item.charge.cost;
                now += item.charge.cost * SECOND / rate;
                share.complete(slot, &item.charge, 0, now);
                assert!(share.enqueue(slot, item.key, charges[at], now));
            }
            None => now = share.wake_at().expect("somebody waits for a time"),
        }
    }
    cost
}

fn tenant() -> impl Strategy<Value = (u32, u64, bool)> {
    (1u32..=10, 0u32..7, any::<bool>()).prop_map(|(weight, shift, write)| (weight * 100, 4096 << shift, write))
}

fn charge_of(share: &DriveShare, bytes: u64, write: bool) -> Charge {
    share.charge(if write { Kind::Write } else { Kind::Read }, bytes, true)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn shares_follow_weights_within_five_percent(tenants in proptest::collection::vec(tenant(), 2..12)) {
        for policy in [PolicyKind::Drr, PolicyKind::Mclock, PolicyKind::Slo] {
            let mut share = DriveShare::new(&options(policy));
            let open = |share: &mut DriveShare, weight| share.open(&Share { weight, ..SHARE }, 0).unwrap();
            let slots: Vec<Slot> = tenants.iter().map(|t| open(&mut share, t.0)).collect();
            let charges: Vec<Charge> = tenants.iter().map(|t| charge_of(&share, t.1, t.2)).collect();
            let cost = serve(&mut share, &slots, &charges, 2_000_000, 0, 10 * SECOND);
            let (sum, weights): (u64, u64) = (cost.iter().sum(), tenants.iter().map(|t| t.0 as u64).sum());
            for (got, tenant) in cost.iter().zip(&tenants) {
                let want = sum as f64 * tenant.0 as f64 / weights as f64;
                // One request of the largest size is the grain.
                prop_assert!((*got as f64 - want).abs() <= want * 0.05 + 10_000.0, "{policy:?} {got} {want}");
            }
        }
    }

    #[test]
    fn reservation_share_and_limit_hold_together(
        reserve in 100u64..3000,
        weight in 1u32..1000,
        limit in 0u64..4000,
        neighbours in 1usize..6,
    ) {
        let limit = if limit == 0 { 0 } else { limit.max(reserve) };
        let rate = 10_000 * 100;
        let mut share = DriveShare::new(&options(PolicyKind::Mclock));
        let params = Share { reserve_iops: reserve, weight, limit_iops: limit, ..SHARE };
        let mut slots = vec![share.open(&params, 0).unwrap()];
        slots.extend((0..neighbours).map(|_| share.open(&SHARE, 0).unwrap()));
        let charges = vec![charge_of(&share, 4096, false); slots.len()];
        let cost = serve(&mut share, &slots, &charges, rate, 0, 5 * SECOND);
        let per_s = |cost: u64| cost as f64 / 100.0 / 5.0;
        let fair = 10_000.0 * weight as f64 / (weight as f64 + 100.0 * neighbours as f64);
        let entitled = fair.max(reserve as f64);
        let want = if limit == 0 { entitled } else { entitled.min(limit as f64) };
        prop_assert!((per_s(cost[0]) - want).abs() <= want * 0.05 + 20.0, "{} of {want}", per_s(cost[0]));
        let rest = 10_000.0 - per_s(cost[0]);
        for other in &cost[1..] {
            let want = rest / neighbours as f64;
            prop_assert!((per_s(*other) - want).abs() <= want * 0.05 + 20.0, "a neighbour got {}", per_s(*other));
        }
    }

    #[test]
    fn limits_are_exact_within_two_percent(iops in 50u64..20_000, shift in 0u32..8, policy in 0usize..5) {
        // A tenth of each second is this policy's slice at most, so limits stay below that.
        let policy = PolicyKind::ALL[policy];
        for by_bytes in [false, true] {
            let bytes = 4096u64 << shift;
            let (limit_iops, limit_bytes_per_s) = if by_bytes { (0, iops * bytes) } else { (iops, 0) };
            let mut share = DriveShare::new(&options(policy));
            let slot = share.open(&Share { limit_iops, limit_bytes_per_s, burst_ms: 1, ..SHARE }, 0).unwrap();
            let charge = charge_of(&share, bytes, false);
            let rate = iops * charge.cost * 3;
            serve(&mut share, &[slot], &[charge], rate, 0, SECOND);
            let before = share.volume_stats(slot);
            serve(&mut share, &[slot], &[charge], rate, 2 * SECOND, 3 * SECOND);
            let ops = share.volume_stats(slot).ops - before.ops;
            // A burst of 1 ms is saved up while nobody asked, and one request may straddle each end.
            let slack = iops as f64 * 0.02 + 2.0;
            prop_assert!((ops as f64 - iops as f64).abs() <= slack, "{policy:?} {ops} of {iops}");
        }
    }

    #[test]
    fn nobody_starves_and_no_work_is_left_while_there_is_room(
        clients in proptest::collection::vec((1usize..40, 0u32..5, 0u64..200_000, 1u32..10_000), 2..30),
        policy in 0usize..5,
        seed in any::<u64>(),
    ) {
        let policy = PolicyKind::ALL[policy];
        let clients: Vec<Client> = clients.iter().map(|(depth, kind, think_ns, weight)| {
            let kind = [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim, Kind::Read][*kind as usize];
            Client { depth: *depth, kind, think_ns: *think_ns, share: Share { weight: *weight, ..SHARE }, ..READER }
        }).collect();
        let mut world = World::new(&governed(policy), &clients, seed);
        world.run(0, SECOND / 4);
        for (at, got) in world.got.iter().enumerate() {
            // A weight of 1 against 29 of 10,000 is one request in 290,000: those only must not be passed over for ever.
            let weights: u64 = clients.iter().map(|c| c.share.weight as u64).sum();
            let fair = CAPACITY / 4 * clients[at].share.weight as u64 / weights;
            let grain = if policy == PolicyKind::Strict { 40_000 } else { 4000 };
            prop_assert!(got.ops > 0 || fair < grain, "{policy:?} {at} {:?}", clients[at]);
        }
        if policy != PolicyKind::Strict && policy != PolicyKind::Slo {
            let stats = world.share.stats();
            prop_assert!(stats.queued == 0 || stats.outstanding + 2000 > stats.window, "{policy:?} {stats:?}");
        }
    }

    #[test]
    fn requests_of_a_volume_keep_their_order_and_none_is_lost(
        steps in proptest::collection::vec((0usize..4, 0u32..8, 0u64..3_000_000), 1..400),
    ) {
        let mut share = DriveShare::new(&options(PolicyKind::Fifo));
        let slots: Vec<Slot> = (0..4).map(|_| share.open(&SHARE, 0).unwrap()).collect();
        let (mut now, mut key) = (0, 0);
        let mut waiting: Vec<Vec<u32>> = vec![Vec::new(); 4];
        for (at, what, pause) in steps {
            now += pause;
            match what {
                0..=3 => {
                    let charge = charge_of(&share, 4096 << what, what == 1);
                    assert!(share.enqueue(slots[at], key, charge, now));
                    waiting[at].push(key);
                    key += 1;
                }
                4 => share.set_policy(PolicyKind::ALL[(now % 5) as usize], now),
                5 => {
                    let limit_iops = now % 5000;
                    let params = Share { limit_iops, weight: 1 + at as u32, ..SHARE };
                    share.set(slots[at], &params, now).unwrap();
                }
                6 => {
                    let mut gone = Vec::new();
                    share.cancel(slots[at], |key| key % 2 == 0, now, |item| gone.push(item.key));
                    waiting[at].retain(|key| !gone.contains(key));
                    prop_assert!(waiting[at].iter().all(|key| key % 2 == 0));
                }
                _ => while let Some((slot, item)) = share.next(now, u64::MAX) {
                    let line = &mut waiting[slots.iter().position(|s| *s == slot).unwrap()];
                    prop_assert_eq!(line.remove(0), item.key);
                    share.complete(slot, &item.charge, 1000, now);
                },
            }
        }
        share.lift_limits();
        for _ in 0..200 {
            while let Some((slot, item)) = share.next(now, u64::MAX) {
                let line = &mut waiting[slots.iter().position(|s| *s == slot).unwrap()];
                prop_assert_eq!(line.remove(0), item.key);
                share.complete(slot, &item.charge, 1000, now);
            }
            now = share.wake_at().unwrap_or(now + MS / 3);
        }
        prop_assert!(waiting.iter().all(Vec::is_empty) && share.waiting() == 0, "{waiting:?}");
    }
}

#[test]
fn ten_thousand_changes_hold_at_once_and_give_nothing_away() {
    let mut share = DriveShare::new(&options(PolicyKind::Mclock));
    let slot = share.open(&SHARE, 0).unwrap();
    let charge = charge_of(&share, 4096, false);
    let (mut now, mut passed) = (0, 0);
    for _ in 0..8 {
        assert!(share.enqueue(slot, 0, charge, now));
    }
    for change in 0..10_000u64 {
        let params = Share { limit_iops: 1000, weight: 1 + (change % 100) as u32, burst_ms: 1, ..SHARE };
        share.set(slot, &params, now).unwrap();
        share.set(slot, &params, now).unwrap();
        while let Some((slot, item)) = share.next(now, u64::MAX) {
            share.complete(slot, &item.charge, 0, now);
            assert!(share.enqueue(slot, 0, charge, now));
            passed += 1;
        }
        now += SECOND / 10_000;
    }
    assert!((998..=1003).contains(&passed), "{passed} of 1000 passed in a second of changes");
}

#[test]
fn admission_says_what_is_reserved_and_what_there_is() {
    let mut share = DriveShare::new(&governed(PolicyKind::Slo));
    let half = Share { reserve_iops: CAPACITY / 200, ..SHARE };
    let first = share.open(&half, 0).unwrap();
    let second = share.open(&SHARE, 0).unwrap();
    let refused = share.set(second, &half, 0).unwrap_err();
    let capacity_iops = CAPACITY / 100 * 9 / 10;
    let asked_iops = half.reserve_iops;
    assert_eq!(refused, ShareError::Admission { asked_iops, reserved_iops: asked_iops, capacity_iops });
    assert_eq!(share.settings(second), SHARE, "a refusal changes nothing");
    share.set(first, &SHARE, 0).unwrap();
    share.set(second, &half, 0).unwrap();
    assert!(matches!(share.set(second, &Share { weight: 0, ..SHARE }, 0), Err(ShareError::Invalid(_))));
    let unknown = ShareOptions { capacity: 0, ..governed(PolicyKind::Slo) };
    assert_eq!(DriveShare::new(&unknown).admit(None, &half), Err(ShareError::Uncalibrated));
}

#[test]
fn who_waits_is_told_why() {
    let mut share = DriveShare::new(&governed(PolicyKind::Mclock));
    let limited = share.open(&Share { limit_iops: 10, burst_ms: 0, ..SHARE }, 0).unwrap();
    let busy = share.open(&SHARE, 0).unwrap();
    let charge = charge_of(&share, 4096, false);
    assert_eq!(share.reason(busy), Reason::None);
    for _ in 0..2 {
        assert!(share.enqueue(limited, 0, charge, 0));
    }
    for _ in 0..100 {
        assert!(share.enqueue(busy, 1, charge, 0));
    }
    while share.next(1, u64::MAX).is_some() {}
    assert_eq!(share.reason(limited), Reason::LimitIops);
    assert_eq!(share.reason(busy), Reason::Governor);
    assert_eq!(share.wake_at(), Some(SECOND / 10 + 1));
}
