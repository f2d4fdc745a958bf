//! A volume moves between two pools while the power goes off, drives fail and clients write.
//!
//! Owns: the plans of such lives. Never: knows the format.
//! Invariant: a failing seed prints the line that replays it.

mod sim;

use segue_des::Chance;
use segue_volume::check;
use segue_volume::migrate::Ending;
use sim::for_seeds;
use sim::moves::{Fate, World};
use std::cell::Cell;

const BINARY: &str = "crash_move";

/// No leak and no damage in either pool.
fn check_pools(world: World) {
    for (pool, image) in world.close().into_iter().enumerate() {
        let mut drive = segue_des::Drive::new(image, segue_des::Timing::default(), Chance::new(1));
        let report = check(&mut sim::DriveDev(&mut drive)).expect("the pool can be walked");
        assert!(report.is_clean() && report.leaked_blocks == 0, "pool {pool}: {report:?}");
    }
}

fn moved_and_clean(mut world: World) {
    world.run_out();
    world.judge_moved();
    check_pools(world);
}

#[test]
fn sim_a_move_under_load_loses_nothing() {
    for_seeds("sim_a_move_under_load_loses_nothing", BINARY, 40, |seed| {
        let fate = Fate { prefill: 120, busy: seed % 2 == 1, encrypted: seed % 3 == 0, ..Fate::default() };
        let mut world = World::new(seed, &fate);
        world.run_out();
        assert!(world.served > 20, "only {} requests while the volume moved", world.served);
        world.judge_moved();
        if !fate.busy {
            check_pools(world);
        }
    });
}

#[test]
fn crash_power_may_go_off_anywhere_in_a_move() {
    let (kept, moved) = (Cell::new(0), Cell::new(0));
    for_seeds("crash_power_may_go_off_anywhere_in_a_move", BINARY, 250, |seed| {
        let mut chance = Chance::new(seed).stream("fate");
        let k = 1 + chance.below(420);
        let off_at = if chance.below(2) == 0 { [k, 0] } else { [0, k] };
        let mut world = World::new(
            seed,
            &Fate { off_at, prefill: 40, busy: seed % 3 == 0, encrypted: seed % 4 == 0, ..Fate::default() },
        );
        world.run_out();
        // Once more while the first crash is being mended, sooner or later.
        for _ in 0..2 {
            world = world.crash();
            world.run(chance.below(300));
        }
        world = world.crash();
        match world.ended {
            Some(_) => moved.set(moved.get() + 1),
            None => kept.set(kept.get() + 1),
        }
        world.run_out();
        match &world.ended {
            // The crash came before the source knew of the move: nothing had begun.
            Some(Ending::Cancelled) => world.judge(),
            _ => world.judge_moved(),
        }
    });
    assert!(kept.get() + moved.get() < 100 || (kept.get() > 20 && moved.get() > 20), "{kept:?} {moved:?}");
}

/// Not only at lucky operations: at every one of either drive.
#[test]
fn crash_at_every_operation_of_a_move() {
    for_seeds("crash_at_every_operation_of_a_move", BINARY, 1, |seed| {
        for pool in 0..2 {
            for k in 1.. {
                let mut off_at = [0, 0];
                off_at[pool] = k;
                let mut world = World::new(seed, &Fate { off_at, prefill: 40, ..Fate::default() });
                world.run_out();
                let ended = world.ended.is_some();
                world = world.crash();
                world.run_out();
                match &world.ended {
                    Some(Ending::Cancelled) => world.judge(),
                    _ => world.judge_moved(),
                }
                if ended {
                    assert!(k > 25, "the move has only {k} operations");
                    break;
                }
            }
        }
    });
}

/// A cut move goes on where it was: it does not copy again what is there.
#[test]
fn crash_a_move_resumes_from_its_cursor() {
    for_seeds("crash_a_move_resumes_from_its_cursor", BINARY, 5, |seed| {
        let fate = Fate { prefill: 250, ..Fate::default() };
        let mut whole = World::new(seed, &fate);
        let before = whole.ops()[1];
        whole.run_out();
        let all = whole.ops()[1] - before;
        let mut world = World::new(seed, &Fate { off_at: [0, all / 2], ..fate });
        world.run_out();
        assert!(world.ended.is_none(), "the cut came too late");
        world = world.crash();
        let before = world.ops()[1];
        moved_and_clean_after(world, before + all * 9 / 10);
    });
}

fn moved_and_clean_after(mut world: World, ops_max: u64) {
    world.run_out();
    assert!(world.ops()[1] < ops_max, "{} operations of the destination's drive, more than {ops_max}", world.ops()[1]);
    world.judge_moved();
    check_pools(world);
}

#[test]
fn fault_any_operation_of_either_drive_may_fail() {
    for_seeds("fault_any_operation_of_either_drive_may_fail", BINARY, 1, |seed| {
        for pool in 0..2 {
            for k in (1..400).step_by(3) {
                let mut fail = [(0, 0); 2];
                fail[pool] = (k, 1);
                let mut world = World::new(seed, &Fate { fail, prefill: 30, ..Fate::default() });
                world.run_out();
                let ended = world.ended.clone();
                // Whatever came of it: the drive is well again and the pools are opened.
                world = world.crash();
                world.run_out();
                match ended {
                    Some(Ending::Moved) => world.judge(),
                    _ => world.judge(),
                }
            }
        }
    });
}

#[test]
fn sim_a_cancelled_move_leaves_the_source_as_it_was() {
    for_seeds("sim_a_cancelled_move_leaves_the_source_as_it_was", BINARY, 60, |seed| {
        let mut world = World::new(seed, &Fate { prefill: 60, ..Fate::default() });
        world.run(Chance::new(seed).stream("cancel").below(1500));
        if world.ended.is_some() {
            return;
        }
        world.cancel();
        world.run_out();
        match &world.ended {
            Some(Ending::Cancelled) => {
                world.judge();
                assert!(world.source_stage().is_none());
                check_pools(world);
            }
            _ => world.judge_moved(),
        }
    });
}

/// The harness itself: a source that forgets before the destination has committed must be found out.
#[test]
fn crash_canary_the_wrong_order_is_caught() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let fate = |k| Fate { off_at: [0, k], prefill: 12, finish_first: true, ..Fate::default() };
    let mut caught = 0;
    for seed in 0..8 {
        let mut whole = World::new(seed, &fate(0));
        let before = whole.ops()[1];
        whole.run_out();
        let all = whole.ops()[1] - before;
        // The last of them are the commit's.
        let life = |k: u64| {
            let mut world = World::new(seed, &fate(k));
            world.run_out();
            world.crash();
        };
        caught += (all - 3..=all).filter(|k| std::panic::catch_unwind(|| life(*k)).is_err()).count();
    }
    std::panic::set_hook(hook);
    assert!(caught >= 1, "no crash noticed that the volume was forgotten too early");
}

#[test]
fn sim_a_plain_move_is_whole() {
    moved_and_clean(World::new(1, &Fate { prefill: 30, ..Fate::default() }));
}
