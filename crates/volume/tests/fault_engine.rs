//! Drives that fail, rot, lose and misplace: clear errors, no wrong bytes, and everything flushed after reopening.
//!
//! Owns: the sweeps over every operation and every block. Never: accepts silence.
//! Invariant: a read returns what was written or an error, whatever the drive did.

mod sim;

use segue_des::{Chance, Cut, Faults};
use segue_types::{BLOCK_BYTES, IoStatus, LeaseId};
use segue_volume::engine::OpenError;
use segue_volume::op::{AdminOp, AdminReply};
use sim::scene::{SCENE, block, judge, scene, setup};
use sim::torture::{Plan, Torture};
use sim::{Sim, for_seeds};

const BINARY: &str = "fault_engine";
const B: u64 = BLOCK_BYTES;

/// One life in which operation `k` fails (and the `count - 1` after it); `false` when there is no such operation.
fn life_with_failure(seed: u64, k: u64, count: u64) -> bool {
    let plan = Plan { actions: 400, fail: (k, count), ..Plan::default() };
    let mut torture = Torture::new(seed, &plan);
    torture.live(plan.actions);
    let reached = torture.sim.drive.stats().ops >= k;
    // Whether the engine survived the failure or refuses changes: the drive is well again and the pool reopened.
    let mut torture = torture.cut_power();
    torture.live(60);
    torture.finish();
    reached
}

#[test]
fn fault_any_operation_may_fail() {
    for_seeds("fault_any_operation_may_fail", BINARY, 2, |seed| {
        let at_open = Torture::new(seed, &Plan::default()).sim.drive.stats().ops;
        let mut k = at_open + 1;
        while life_with_failure(seed, k, 1) {
            k += 1;
        }
        assert!(k > at_open + 100, "the life has only {} operations", k - at_open);
    });
}

#[test]
fn fault_the_drive_may_stay_broken() {
    for_seeds("fault_the_drive_may_stay_broken", BINARY, 60, |seed| {
        let k = 200 + Chance::new(seed).stream("k").below(400);
        life_with_failure(seed, k, 1_000_000);
    });
}

#[test]
fn fault_bit_rot_anywhere_is_detected() {
    let image = scene();
    let mut sim = Sim::boot(&setup(1), image.clone(), Faults::default(), "healthy").expect("it opens");
    assert_eq!(judge(&mut sim, None), 0);
    let data: Vec<Vec<u8>> = SCENE.iter().map(|s| block(s.2, s.1)).collect();
    let (mut detected, mut not_opened) = (0, 0);
    let mut chance = Chance::new(9);
    for number in image.written_blocks().collect::<Vec<_>>() {
        for _ in 0..3 {
            let mut rotten = image.clone();
            rotten.block_mut(number)[chance.below(B) as usize] ^= 1 << chance.below(8);
            let mut sim = match Sim::boot(&setup(1), rotten, Faults::default(), "rotten") {
                Ok(sim) => sim,
                Err((error, _)) => {
                    assert!(!matches!(error, OpenError::Memory), "block {number}: {error}");
                    not_opened += 1;
                    continue;
                }
            };
            let refused = judge(&mut sim, Some(number));
            // Journal records whose data rotted before it was confirmed may be given up with what follows them, but
            // everything here was flushed, so the judge saw it all.
            let is_live_data = data.iter().any(|d| d[..] == image.block(number)[..]);
            assert!(refused > 0 || !is_live_data, "rot of data in block {number} went unseen");
            detected += refused.min(1);
        }
    }
    assert!(detected >= 3 * 9, "only {detected} rotten blocks were detected when read ({not_opened} when opened)");
}

#[test]
fn fault_scrub_finds_rot_that_nobody_reads() {
    let image = scene();
    for (name, number, write) in SCENE {
        let data = block(write, number);
        let at = image.written_blocks().find(|b| image.block(*b)[..] == data[..]).expect("it is on the drive");
        let mut sim = Sim::boot(&setup(1), image.clone(), Faults::default(), "scrub").expect("it opens");
        sim.drive.rot(at * B + 100, 4);
        assert_eq!(sim.admin(AdminOp::ScrubStart), Ok(AdminReply::Done));
        let mut turns = 0;
        let errors = loop {
            sim.settle(100);
            turns += 1;
            match sim.admin(AdminOp::ScrubStatus) {
                Ok(AdminReply::Scrub { running: false, errors, blocks_done, blocks_total }) => {
                    assert_eq!(blocks_done, blocks_total);
                    break errors;
                }
                Ok(AdminReply::Scrub { .. }) => assert!(turns < 10_000, "the scrub does not end"),
                other => panic!("scrub status answered {other:?}"),
            }
        };
        assert_eq!(errors, 1, "rot in {name} block {number}");
        assert!(sim.alarms.iter().any(|a| a.offset == at * B), "{:?}", sim.alarms);
    }
}

#[test]
fn fault_opening_may_fail_at_every_operation() {
    let image = scene();
    for (power, count) in [(false, 1), (false, 1_000_000), (true, 1)] {
        for k in 1.. {
            let faults = match power {
                true => Faults { power_off_at: k, ..Faults::default() },
                false => Faults { fail_first: k, fail_count: count, errno: 5, ..Faults::default() },
            };
            let left = match Sim::boot(&setup(k), image.clone(), faults, "failing") {
                Ok(sim) if sim.drive.stats().ops < k => break,
                Ok(sim) => sim.cut(Cut::Chance),
                Err((_, mut drive)) => drive.cut(Cut::Chance),
            };
            let mut sim = Sim::boot(&setup(k), left, Faults::default(), "well").unwrap_or_else(|(error, _)| {
                panic!("operation {k} of opening failed and now nothing opens it: {error}");
            });
            assert_eq!(judge(&mut sim, None), 0, "operation {k}");
        }
    }
}

/// The drive says it wrote and did not, or wrote elsewhere: a read never returns what lay there before.
#[test]
fn fault_lost_and_misdirected_writes_are_detected() {
    let image = scene();
    let (mut refused, mut writes) = (0, 0);
    for misdirect in [false, true] {
        for k in 1..12 {
            let mut sim = Sim::boot(&setup(k), image.clone(), Faults::default(), "lossy").expect("it opens");
            let nth = sim.drive.stats().writes + k;
            sim.drive.set_faults(match misdirect {
                false => Faults { lost_write: nth, ..Faults::default() },
                true => Faults { misdirected_write: nth, ..Faults::default() },
            });
            let b = sim.attach_lease("b", LeaseId(2));
            for n in 0..8 {
                // Twice, so that the blocks written to were used before.
                for round in 0..2 {
                    let data = block(100 + n * 2 + round, u64::from(n));
                    assert_eq!(sim.write(b, u64::from(n) * B, &data, true), IoStatus::Ok);
                }
            }
            for n in 0..8 {
                match sim.read(b, u64::from(n) * B, B as u32) {
                    Ok(data) => assert!(data == block(101 + n * 2, u64::from(n)), "wrong bytes: k {k} block {n}"),
                    Err(status) => {
                        assert_eq!(status, IoStatus::Io);
                        assert!(!sim.alarms.is_empty());
                        refused += 1;
                    }
                }
            }
            writes += 1;
        }
    }
    assert!(refused >= 4, "{refused} refusals in {writes} runs: the faults hit nothing");
}
