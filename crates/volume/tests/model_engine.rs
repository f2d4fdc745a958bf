//! Long random lives without power cuts, against the naive model: layers, snapshots, clones, unaligned writes, full pools.
//!
//! Owns: the plans. Never: cuts the power (see `crash_engine`).
//! Invariant: after everything is deleted the pool has all its space back.

mod sim;

use segue_volume::engine::EngineOptions;
use sim::for_seeds;
use sim::torture::{Plan, run};
use std::cell::Cell;

const BINARY: &str = "model_engine";

#[test]
fn model_long_lives_agree_with_the_twin() {
    let plan = Plan { actions: 6_000, power_cuts: 0, volumes_max: 8, depth: 24, ..Plan::default() };
    for_seeds("model_long_lives_agree_with_the_twin", BINARY, 30, |seed| drop(run(seed, &plan)));
}

/// Few cached map pages: every walk may have to read, and every change may have to wait.
#[test]
fn model_a_small_cache_changes_nothing() {
    let options = EngineOptions { cache_bytes: 0 };
    let plan =
        Plan { options, scatter: true, actions: 8_000, power_cuts: 0, volumes_max: 8, depth: 32, ..Plan::default() };
    for_seeds("model_a_small_cache_changes_nothing", BINARY, 20, |seed| drop(run(seed, &plan)));
}

/// The pool is full most of the time: refusals are clean, the rest is served, and space comes back.
#[test]
fn model_a_full_pool_refuses_and_recovers() {
    let plan = Plan {
        drive_bytes: 8 << 20,
        actions: 4_000,
        power_cuts: 0,
        blocks_max: 60,
        volumes_max: 12,
        weights: [50, 4, 8, 6, 3, 6, 1, 6, 80],
        tight: true,
        ..Plan::default()
    };
    let full = Cell::new(0u64);
    for_seeds("model_a_full_pool_refuses_and_recovers", BINARY, 20, |seed| {
        let (_, counts) = run(seed, &plan);
        full.set(full.get() + counts.get("no space").copied().unwrap_or(0));
    });
    let replaying = ["SEGUE_SEED", "SEGUE_PERCENT"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(full.get() > 0 || replaying, "the pool was never full");
}

/// Versions and their clean-up above all; whole blocks alone are written, so nothing may ever be copied.
#[test]
fn model_versions_stay_apart() {
    let plan = Plan {
        weights: [14, 3, 8, 3, 3, 3, 1, 12, 40],
        actions: 4_000,
        power_cuts: 0,
        volumes_max: 10,
        aligned: true,
        ..Plan::default()
    };
    for_seeds("model_versions_stay_apart", BINARY, 30, |seed| drop(run(seed, &plan)));
}

/// Encrypted volumes beside plain ones: no other answer, whatever is aligned, zeroed, cloned or raced.
#[test]
fn model_encrypted_volumes_agree_with_the_twin() {
    let plan = Plan {
        actions: 3_000,
        power_cuts: 1,
        volumes_max: 8,
        encrypted: 3,
        weights: [16, 12, 14, 4, 4, 8, 2, 8, 60],
        ..Plan::default()
    };
    for_seeds("model_encrypted_volumes_agree_with_the_twin", BINARY, 20, |seed| drop(run(seed, &plan)));
}
