//! One small pool that several tests look at, and the judge who knows what is in it.
//!
//! Owns: the scene and what it must read as. Never: is random.
//! Invariant: the judge accepts the written bytes or a refusal with an alarm that names the place; nothing else.

use super::content::{SECTOR, SECTORS, fill};
use super::{Setup, Sim};
use segue_des::{Cut, Image, Timing};
use segue_types::{BLOCK_BYTES, IoStatus, LeaseId};
use segue_volume::engine::EngineOptions;
use segue_volume::op::{AdminOp, AdminReply, AlarmKind, AttachMode, ObservationRule, Op};

const B: u64 = BLOCK_BYTES;

pub fn setup(seed: u64) -> Setup {
    Setup {
        seed,
        drive_bytes: 16 << 20,
        mem_bytes: 32 << 20,
        options: EngineOptions::default(),
        timing: Timing::default(),
        slices: 1,
    }
}

/// What `scene` wrote: (volume, block, write).
pub const SCENE: [(&str, u64, u32); 9] = [
    ("a", 0, 1),
    ("a", 1, 2),
    ("a", 255, 3),
    ("a", 256, 4),
    ("a", 70_000, 5),
    ("b", 0, 6),
    ("b", 1, 7),
    ("snap", 0, 1),
    ("snap", 1, 8),
];

pub fn block(write: u32, number: u64) -> Vec<u8> {
    let mut data = vec![0; B as usize];
    for (i, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
        fill(write, number, i % SECTORS, sector);
    }
    data
}

/// A pool with volumes, a snapshot and a journal tail that is not in the checkpoint.
pub fn scene() -> Image {
    let mut sim = Sim::fresh(&setup(1));
    for (i, name) in ["a", "b"].into_iter().enumerate() {
        sim.create(name, 1 << 30, ObservationRule::Flush);
        sim.acquire(name, LeaseId(i as u128 + 1));
    }
    let (a, b) = (sim.attach_lease("a", LeaseId(1)), sim.attach_lease("b", LeaseId(2)));
    assert_eq!(sim.write(a, 0, &block(1, 0), false), IoStatus::Ok);
    assert_eq!(sim.write(a, B, &block(8, 1), false), IoStatus::Ok);
    sim.admin(AdminOp::Snapshot { name: "a".into(), to: "snap".into() }).expect("a snapshot");
    for (name, number, write) in SCENE.into_iter().filter(|s| s.0 != "snap") {
        if write == 5 {
            assert_eq!(sim.admin(AdminOp::Checkpoint), Ok(AdminReply::Done));
        }
        let attach = if name == "a" { a } else { b };
        assert_eq!(sim.write(attach, number * B, &block(write, number), false), IoStatus::Ok);
    }
    assert_eq!(sim.op(a, Op::Flush), IoStatus::Ok);
    // The newest journal record has nothing of the scene: if that one rots it looks exactly like one that a power
    // cut tore, which may be dropped. Every older one is known to have been whole.
    sim.admin(AdminOp::SetNote { name: "b".into(), note: "last".into() }).expect("a note");
    sim.cut(Cut::KeepsNone)
}

/// Reads the whole scene: how many blocks were refused with an alarm.
///
/// # Panics
/// On wrong bytes, on a refusal without an alarm, and on an alarm that names another place than `rotten`.
pub fn judge(sim: &mut Sim, rotten: Option<u64>) -> u64 {
    let mut refused = 0;
    for (name, number, write) in SCENE {
        let before = sim.alarms.len();
        let state = match sim.attach(name, AttachMode::ReadOnly) {
            Ok(state) => state,
            Err(error) => panic!("{name} is gone: {error}"),
        };
        match sim.read(state.attach, number * B, B as u32) {
            Ok(data) => assert!(data == block(write, number), "wrong bytes in {name} at block {number}"),
            Err(status) => {
                assert_eq!(status, IoStatus::Io);
                let told = sim.alarms[before..].iter().any(|a| {
                    let kind = matches!(a.kind, AlarmKind::Data { .. } | AlarmKind::Map { .. });
                    kind && rotten.is_none_or(|r| a.offset == r * B) && a.expected_crc32c != a.found_crc32c
                });
                assert!(told, "a refusal without an alarm that names it: {:?}", sim.alarms);
                refused += 1;
            }
        }
        sim.admin(AdminOp::Detach { attach: state.attach }).expect("detach");
    }
    refused
}
