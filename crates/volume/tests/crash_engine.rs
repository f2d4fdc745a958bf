//! Power cuts at any moment of a pool's life: what was flushed is there, nothing is torn, nothing is mixed up.
//!
//! Owns: the plans of lives with power cuts. Never: knows the format.
//! Invariant: a failing seed prints the line that replays it.

mod sim;

use segue_volume::engine::EngineOptions;
use sim::for_seeds;
use sim::torture::{Plan, Torture, run};
use std::cell::RefCell;
use std::collections::BTreeMap;

const BINARY: &str = "crash_engine";

fn lives(test: &str, seeds: u64, plan: &Plan, expected: &[&str]) {
    let sum: RefCell<BTreeMap<&'static str, u64>> = RefCell::default();
    for_seeds(test, BINARY, seeds, |seed| {
        let (_, counts) = run(seed, plan);
        let mut sum = sum.borrow_mut();
        counts.into_iter().for_each(|(what, n)| *sum.entry(what).or_default() += n);
    });
    let sum = sum.into_inner();
    // A part of the seeds need not do everything.
    let replaying = ["SEGUE_SEED", "SEGUE_PERCENT"].iter().any(|name| std::env::var_os(name).is_some());
    let missing = expected.iter().filter(|what| !sum.contains_key(**what)).collect::<Vec<_>>();
    assert!(replaying || missing.is_empty(), "the plan never does {missing:?}: {sum:?}");
}

const ALL: &[&str] = &[
    "write",
    "discard",
    "zeroes",
    "flush",
    "read",
    "block status",
    "create",
    "snapshot",
    "clone",
    "delete",
    "resize",
    "rename",
    "acquire",
    "super",
    "promoted",
    "primary observed",
    "abort",
    "break",
    "dead lease refused",
    "power cut",
    "admin survived a cut",
    "admin undone by a cut",
];

#[test]
fn crash_random_lives_keep_what_was_flushed() {
    lives("crash_random_lives_keep_what_was_flushed", 1200, &Plan::default(), ALL);
}

/// A journal of 1 MiB that wraps several times, a cache of a few pages, and checkpoints all the time.
#[test]
fn crash_long_lives_wrap_the_journal() {
    let plan = Plan {
        drive_bytes: 24 << 20,
        options: EngineOptions { cache_bytes: 0 },
        scatter: true,
        tight: true,
        actions: 6_000,
        power_cuts: 3,
        ..Plan::default()
    };
    lives("crash_long_lives_wrap_the_journal", 8, &plan, ALL);
}

/// Versions come and go: mostly supers, collapses, snapshots, deletes, and cuts among their clean-up.
#[test]
fn crash_versions_and_their_clean_up() {
    let plan = Plan { weights: [12, 2, 4, 4, 2, 2, 0, 14, 40], actions: 400, power_cuts: 3, ..Plan::default() };
    let expected: Vec<&str> = ALL.iter().copied().filter(|what| *what != "block status").collect();
    lives("crash_versions_and_their_clean_up", 300, &plan, &expected);
}

/// A pool that is nearly always full.
#[test]
fn crash_a_full_pool_recovers() {
    let plan = Plan {
        drive_bytes: 8 << 20,
        blocks_max: 60,
        volumes_max: 10,
        weights: [50, 4, 8, 6, 3, 6, 1, 6, 80],
        tight: true,
        actions: 900,
        ..Plan::default()
    };
    let mut expected = ALL.to_vec();
    expected.push("no space");
    lives("crash_a_full_pool_recovers", 50, &plan, &expected);
}

/// The power goes off at every single operation of a few lives, not only at lucky ones.
#[test]
fn crash_at_every_operation_of_a_life() {
    let test = "crash_at_every_operation_of_a_life";
    for_seeds(test, BINARY, 3, |seed| {
        let mut plan = Plan { actions: 300, ..Plan::default() };
        let at_open = Torture::new(seed, &plan).sim.drive.stats().ops;
        let mut k = at_open + 1;
        loop {
            plan.power_off_at = k;
            let mut torture = Torture::new(seed, &plan);
            torture.live(plan.actions);
            if torture.sim.drive.is_powered() {
                break;
            }
            torture = torture.cut_power();
            torture.finish();
            k += 1;
        }
        assert!(k > at_open + 100, "the life has only {} operations", k - at_open);
    });
}

/// The harness itself: a drive that lies about flushes must be found out.
#[test]
fn crash_canary_a_lying_drive_is_caught() {
    let plan = Plan { lying_flush: true, ..Plan::default() };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = (0..20).filter(|seed| std::panic::catch_unwind(|| run(*seed, &plan)).is_err()).count();
    std::panic::set_hook(hook);
    assert!(caught >= 10, "only {caught} of 20 runs noticed a drive that loses flushed writes");
}

#[test]
fn sim_one_seed_is_one_run() {
    let plan = Plan::default();
    for seed in 0..8 {
        assert_eq!(run(seed, &plan), run(seed, &plan), "seed {seed}");
    }
    assert_ne!(run(1, &plan).0, run(2, &plan).0);
}
