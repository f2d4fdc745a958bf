//! Power cuts of a slice whose neighbours write over everything that is not leased to it.
//!
//! Owns: the plans of lives on a shared drive. Never: trusts that what is lent comes empty.
//! Invariant: whatever the neighbours do and whenever the power goes, a slice keeps its promises as on a drive of its own.

mod sim;

use segue_volume::engine::EngineOptions;
use sim::for_seeds;
use sim::rescue::fails;
use sim::torture::{Panics, Plan, Torture, run};
use std::cell::Cell;

const BINARY: &str = "crash_slices";

fn shared() -> Plan {
    Plan { drive_bytes: 64 << 20, slices: 3, ..Plan::default() }
}

#[test]
fn crash_random_lives_on_a_shared_drive() {
    for_seeds("crash_random_lives_on_a_shared_drive", BINARY, 300, |seed| drop(run(seed, &shared())));
}

/// Extents come and go all the time: large writes, whole ranges discarded, a small journal, checkpoints.
#[test]
fn crash_extents_come_and_go() {
    let plan = Plan {
        blocks_max: 60,
        weights: [40, 4, 8, 6, 12, 4, 1, 6, 80],
        options: EngineOptions { cache_bytes: 0 },
        actions: 900,
        power_cuts: 4,
        tight: true,
        ..shared()
    };
    let moved = Cell::new((0, 0, 0));
    for_seeds("crash_extents_come_and_go", BINARY, 30, |seed| {
        let mut torture = Torture::new(seed, &plan);
        for _ in 0..plan.power_cuts {
            torture.live(plan.actions);
            let n = torture.sim.neighbour.as_ref().expect("the drive is shared");
            let (lent, refused, returned) = moved.get();
            moved.set((lent + n.lent, refused + n.refused, returned + n.returned));
            torture = torture.cut_power();
        }
        torture.finish();
    });
    let (lent, refused, returned) = moved.get();
    let replaying = ["SEGUE_SEED", "SEGUE_PERCENT"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(
        replaying || (lent > 100 && refused > 20 && returned > 50),
        "lent {lent}, refused {refused}, returned {returned}"
    );
}

/// The power goes off at every single operation of a life on a shared drive.
#[test]
fn crash_at_every_operation_of_a_slice() {
    let plan = Plan { blocks_max: 40, weights: [30, 4, 6, 6, 10, 4, 1, 6, 60], actions: 200, tight: true, ..shared() };
    for_seeds("crash_at_every_operation_of_a_slice", BINARY, 2, |seed| {
        let mut plan = plan.clone();
        let mut k = Torture::new(seed, &plan).sim.drive.stats().ops + 1;
        loop {
            plan.power_off_at = k;
            let mut torture = Torture::new(seed, &plan);
            torture.live(plan.actions);
            if torture.sim.drive.is_powered() {
                break;
            }
            torture.cut_power().finish();
            k += 3;
        }
    });
}

/// Panics at fault points on a shared drive: a restarted engine has what it had leased.
#[test]
fn fault_a_slice_restarts_among_neighbours() {
    let plan = Plan {
        panics: Panics { one_in: 40, ..Panics::default() },
        blocks_max: 40,
        weights: [30, 4, 6, 6, 10, 4, 1, 6, 60],
        actions: 400,
        tight: true,
        ..shared()
    };
    for_seeds("fault_a_slice_restarts_among_neighbours", BINARY, 40, |seed| drop(run(seed, &plan)));
}

/// The harness itself: a neighbour that writes where it may not must be found out.
#[test]
fn crash_canary_a_rude_neighbour_is_caught() {
    let caught = (0..20).filter(|seed| {
        fails(|| {
            let mut torture = Torture::new(*seed, &shared());
            torture.sim.neighbour.as_mut().expect("the drive is shared").rude = true;
            torture.live(600);
            torture.finish();
        })
    });
    let caught = caught.count();
    assert!(caught >= 15, "only {caught} of 20 runs noticed a neighbour that writes over leased extents");
}
