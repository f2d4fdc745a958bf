//! A victim beside aggressors at a simulated drive, under every policy.
//!
//! Owns: what isolation is held to. Never: measures the real world.
//! Invariant: the same seed gives the same figures.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "a test reads a seed to replay and prints it")]

mod qos_common;

use qos_common::*;
use segue_sched::qos::{Kind, PolicyKind, READ_4K};
use segue_types::Share;

fn seed() -> u64 {
    std::env::var("SEGUE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(42)
}

const AGGRESSORS: [(&str, Client); 4] = [
    ("writes", Client { depth: 128, kind: Kind::Write, think_ns: 0, ..READER }),
    ("flushes", Client { depth: 32, kind: Kind::Flush, bytes: 0, think_ns: 0, ..READER }),
    ("discards", Client { depth: 64, kind: Kind::Trim, bytes: 1 << 20, think_ns: 0, ..READER }),
    // A read of 1 MiB comes as pieces; four pieces of 64 KiB are in the drive's queue at a time.
    ("large reads", Client { depth: 64, kind: Kind::Read, bytes: 64 << 10, think_ns: 0, ..READER }),
];

fn victim_p99(policy: PolicyKind, aggressor: Option<Client>) -> u64 {
    let mut clients = vec![READER];
    clients.extend(aggressor);
    run(&governed(policy), &clients, seed(), 10).got[0].percentile(0.99)
}

/// The worst over the aggressors, in hundredths of the victim's p99 alone.
fn worst(policy: PolicyKind) -> (u64, &'static str) {
    let alone = victim_p99(policy, None);
    let beside = |client: Client| victim_p99(policy, Some(client)) * 100 / alone;
    AGGRESSORS.iter().map(|(name, client)| (beside(*client), *name)).max().expect("there are aggressors")
}

#[test]
fn sim_mclock_keeps_the_victim_within_twice_its_p99() {
    let (ratio, by) = worst(PolicyKind::Mclock);
    assert!(ratio <= 200, "{ratio}/100 beside {by}; replay: SEGUE_SEED={}", seed());
}

#[test]
fn sim_canary_fifo_without_a_window_does_not() {
    let alone = victim_p99(PolicyKind::Fifo, None);
    let clients = [READER, AGGRESSORS[0].1];
    let beside = run(&options(PolicyKind::Fifo), &clients, seed(), 10).got[0].percentile(0.99);
    assert!(beside > 5 * alone, "the harness would not notice a lack of isolation: {beside} beside, {alone} alone");
}

#[test]
fn sim_a_latency_target_holds_beside_whatever_the_drive_can_do() {
    let share = Share { reserve_iops: 10_000, latency_target_us: 400, ..SHARE };
    let victim = Client { share, depth: 4, think_ns: 400_000, ..READER };
    for (name, aggressor) in AGGRESSORS {
        let world = run(&governed(PolicyKind::Slo), &[victim, aggressor, aggressor], seed(), 10);
        let p95 = world.got[0].percentile(0.95);
        assert!(p95 <= 400_000, "{p95} ns beside {name}; replay: SEGUE_SEED={}", seed());
    }
}

#[test]
fn sim_strict_slices_do_not_feel_the_neighbour() {
    let alone = run(&governed(PolicyKind::Strict), &[Client { depth: 16, think_ns: 0, ..READER }, READER], seed(), 10);
    let clients = [Client { depth: 16, think_ns: 0, ..READER }, AGGRESSORS[0].1];
    let beside = run(&governed(PolicyKind::Strict), &clients, seed(), 10);
    let (a, b) = (alone.got[0].ops, beside.got[0].ops);
    assert!(a.abs_diff(b) * 20 <= a, "{a} beside an idle neighbour, {b} beside a busy one");
}

#[test]
fn sim_the_window_keeps_the_drive_at_its_knee() {
    let crowd = [Client { depth: 64, think_ns: 0, ..READER }; 4];
    let world = run(&governed(PolicyKind::Mclock), &crowd, seed(), 10);
    let stats = world.share.stats();
    assert!(stats.p95_ns <= GOVERNOR.target_ns * 5 / 4, "p95 {} ns of {}", stats.p95_ns, GOVERNOR.target_ns);
    let used = world.worked_ns as f64 / (CHANNELS as u64 * 11 * SECOND / 10) as f64;
    assert!(used > 0.9, "the drive is used at {used}");
    let ungoverned = run(&options(PolicyKind::Mclock), &crowd, seed(), 10);
    let lost = 1.0 - world.worked_ns as f64 / ungoverned.worked_ns as f64;
    assert!(lost < 0.1, "the window costs {lost} of the drive");
}

#[test]
fn sim_a_flush_is_paid_by_who_asked() {
    let flusher = Client { depth: 8, kind: Kind::Flush, bytes: 0, think_ns: 0, ..READER };
    let reader = Client { depth: 16, think_ns: 0, ..READER };
    let world = run(&governed(PolicyKind::Mclock), &[reader, flusher], seed(), 10);
    let stats = world.share.volume_stats(world.slots[1]);
    assert!(stats.cost > stats.ops * 10 * READ_4K / 2, "flushes cost what they take: {stats:?}");
    let reads = world.got[0].cost as f64 * 10.0 / (CAPACITY as f64 * 10.0);
    assert!(reads > 0.45, "the reader keeps its half of the drive: {reads}");
}
