//! The engine panics anywhere: no acknowledged write is lost, no request is left without its answer.
//!
//! Owns: the plans of lives with panics. Never: knows where the points are.
//! Invariant: a failing seed prints the line that replays it.

mod sim;

use segue_des::{Cut, Faults};
use segue_types::{BLOCK_BYTES, IoStatus, LeaseId};
use segue_volume::engine::EngineOptions;
use segue_volume::op::{AdminOp, AdminReply};
use sim::rescue::fails;
use sim::torture::{Panics, Plan, Torture, run};
use sim::{Sim, for_seeds, scene};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const BINARY: &str = "fault_restart";

/// Points that random lives must strike. Those of checkpoints and scrubs have their own test.
const PLACES: &[&str] = &[
    "entry",
    "found",
    "reads half submitted",
    "I/O over",
    "before the reply",
    "admitted",
    "allocated",
    "before the map",
    "map half changed",
    "map half logged",
    "punching",
    "punched, not logged",
    "punched and logged",
    "record begun",
    "record submitted",
    "record written",
    "record durable",
    "before the answer",
    "cut begun",
    "layer chosen, not logged",
    "leaf half moved",
    "leaf moved, not logged",
    "leaf dropped, not logged",
    "layer finished, not logged",
    "layer made, not logged",
    "record changed, not logged",
    "before a fence",
];

fn lives(test: &str, seeds: u64, plan: &Plan) -> BTreeMap<&'static str, u64> {
    let sum: RefCell<BTreeMap<&'static str, u64>> = RefCell::default();
    for_seeds(test, BINARY, seeds, |seed| {
        let (_, counts) = run(seed, plan);
        let mut sum = sum.borrow_mut();
        counts.into_iter().for_each(|(what, n)| *sum.entry(what).or_default() += n);
    });
    sum.into_inner()
}

/// One panic at the first point, at the second, at every single one of a life; then a power cut, and the judgement.
#[test]
fn fault_at_every_point_of_a_life() {
    let test = "fault_at_every_point_of_a_life";
    for_seeds(test, BINARY, 2, |seed| {
        let mut k = 1;
        loop {
            let panics = Panics { at_point: k, ..Panics::default() };
            let mut torture = Torture::new(seed, &Plan { actions: 150, panics, ..Plan::default() });
            torture.live(150);
            let passed = torture.sim.rescues.tasks + torture.sim.rescues.engines > 0;
            if k.is_multiple_of(2) {
                torture = torture.cut_power();
            }
            torture.finish();
            if !passed {
                break;
            }
            k += 1;
        }
        assert!(k > 200, "the life has only {k} points");
    });
}

/// A checkpoint and a scrub panic at each of their points in turn.
#[test]
fn fault_checkpoints_and_scrubs_at_every_point() {
    let image = scene::scene();
    let mut struck = BTreeSet::new();
    for k in 1.. {
        let mut sim = Sim::boot(&scene::setup(k), image.clone(), Faults::default(), "panicking").expect("it opens");
        let a = sim.attach_lease("a", LeaseId(1));
        for (name, number, write) in scene::SCENE.into_iter().filter(|s| s.0 == "a") {
            let status = sim.write(a, number * BLOCK_BYTES, &scene::block(write, number), false);
            assert_eq!(status, IoStatus::Ok, "{name}");
        }
        sim.endanger(k, &Panics { at_point: k, ..Panics::default() });
        assert_eq!(sim.admin(AdminOp::Checkpoint), Ok(AdminReply::Done), "point {k}");
        assert_eq!(sim.admin(AdminOp::ScrubStart), Ok(AdminReply::Done), "point {k}");
        let errors = loop {
            match sim.admin(AdminOp::ScrubStatus) {
                Ok(AdminReply::Scrub { running: false, errors, .. }) => break errors,
                Ok(AdminReply::Scrub { .. }) => assert!(sim.turn(), "the scrub hangs; point {k}"),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((errors, scene::judge(&mut sim, None)), (0, 0), "point {k}");
        if sim.rescues.places.is_empty() {
            break;
        }
        struck.extend(sim.rescues.places.drain(..));
        let image = sim.cut(Cut::Chance);
        let mut sim = Sim::boot(&scene::setup(k), image, Faults::default(), "after").expect("it opens");
        assert_eq!(scene::judge(&mut sim, None), 0, "point {k}, after a power cut");
    }
    let places = [
        "entry",
        "between phases",
        "cut begun",
        "pages placed",
        "pages half submitted",
        "bitmap page staged",
        "root staged",
        "superblock made",
        "half complete",
        "reads half submitted",
        "blocks read",
    ];
    let missing: Vec<_> = places.iter().filter(|place| !struck.contains(*place)).collect();
    assert!(missing.is_empty(), "no fault ever struck at {missing:?}: {struck:?}");
}

/// One task in thirty panics, of every kind, in lives with power cuts, a small cache and a journal that wraps.
#[test]
fn fault_random_panics_lose_nothing_that_was_acknowledged() {
    let test = "fault_random_panics_lose_nothing_that_was_acknowledged";
    let panics = Panics { one_in: 30, ..Panics::default() };
    let plan = Plan { panics, weights: [14, 4, 8, 6, 4, 4, 1, 12, 50], actions: 400, ..Plan::default() };
    let mut sum = lives(test, 120, &plan);
    let tight = Plan {
        drive_bytes: 24 << 20,
        options: EngineOptions { cache_bytes: 0 },
        scatter: true,
        tight: true,
        actions: 1500,
        panics: Panics { one_in: 12, ..panics },
        ..plan
    };
    lives(test, 16, &tight).into_iter().for_each(|(what, n)| *sum.entry(what).or_default() += n);
    let replaying = ["SEGUE_SEED", "SEGUE_PERCENT"].iter().any(|name| std::env::var_os(name).is_some());
    let missing: Vec<_> = PLACES.iter().filter(|place| !sum.contains_key(**place)).collect();
    assert!(replaying || missing.is_empty(), "no fault ever struck at {missing:?}: {sum:?}");
    assert!(replaying || (sum["task recovered"] > 100 && sum["engine restarted"] > 100), "{sum:?}");
}

/// The harness itself: an engine that is restarted without its journal's tail loses acknowledged writes.
#[test]
fn fault_canary_a_forgotten_tail_is_caught() {
    let panics = Panics { one_in: 30, forget_tail: true, ..Panics::default() };
    let plan = Plan { panics, ..Plan::default() };
    let caught = (0..20).filter(|seed| fails(|| drop(run(*seed, &plan)))).count();
    assert!(caught >= 10, "only {caught} of 20 runs noticed that acknowledged writes were lost");
}
