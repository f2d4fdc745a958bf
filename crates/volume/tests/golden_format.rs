//! Pools of format versions 1 and 2 that earlier programs wrote: every later program must open them and read the same.
//!
//! Owns: the kept images in `golden/` and what is in them. Never: writes them anew except when told to, for a new version.
//! Invariant: the kept files of a version never change once a release wrote that version.

mod sim;

use segue_des::{Cut, Drive, Faults, Image};
use segue_types::{BLOCK_BYTES, IoStatus, LeaseId, Share, SuperId};
use segue_volume::engine::OpenError;
use segue_volume::op::{AccessState, TokenSecret};
use segue_volume::op::{AdminError, AdminOp, AdminReply, AttachMode, ObservationRule, Op, SuperPhase};
use segue_volume::{SuperblockError, check};
use sim::scene::{block, judge, scene, setup};
use sim::{DriveDev, Sim};
use std::path::PathBuf;

const B: u64 = BLOCK_BYTES;
const V1_SCENE: &[u8] = include_bytes!("golden/v1_scene.img");
const V1_RACES: &[u8] = include_bytes!("golden/v1_races.img");
const V2_RACES: &[u8] = include_bytes!("golden/v2_races.img");
const V2_SETTINGS: &[u8] = include_bytes!("golden/v2_settings.img");

/// Capacity, then runs of non-zero bytes: offset (8 bytes), length (4 bytes), the bytes. Little-endian.
fn pack(image: &Image) -> Vec<u8> {
    const GAP: usize = 16;
    let mut out = image.capacity_bytes().to_le_bytes().to_vec();
    for number in image.written_blocks() {
        let bytes = image.block(number);
        let mut at = 0;
        while let Some(start) = bytes[at..].iter().position(|b| *b != 0).map(|n| at + n) {
            let rest = &bytes[start..];
            let len = rest.windows(GAP).position(|w| w.iter().all(|b| *b == 0)).unwrap_or(rest.len());
            out.extend((number * B + start as u64).to_le_bytes());
            out.extend((len as u32).to_le_bytes());
            out.extend(&rest[..len]);
            at = start + len;
        }
    }
    out
}

fn unpack(packed: &[u8]) -> Image {
    let word = |at: usize| u64::from_le_bytes(packed[at..at + 8].try_into().expect("eight bytes"));
    let mut image = Image::new(word(0));
    let mut at = 8;
    while at < packed.len() {
        let len = u32::from_le_bytes(packed[at + 8..at + 12].try_into().expect("four bytes")) as usize;
        image.write(word(at), &packed[at + 12..at + 12 + len]);
        at += 12 + len;
    }
    image
}

/// Volume `w` was won by a child, `f` races and its primary was observed, `g` races still. Orderly shut down.
fn races() -> Image {
    let mut sim = Sim::fresh(&setup(2));
    for (name, rule, lease) in
        [("w", ObservationRule::Write, 11), ("f", ObservationRule::Flush, 12), ("g", ObservationRule::Flush, 13)]
    {
        sim.create(name, 1 << 30, rule);
        sim.acquire(name, LeaseId(lease));
        let attach = sim.attach_lease(name, LeaseId(lease));
        assert_eq!(sim.write(attach, 0, &block(lease as u32, 0), true), IoStatus::Ok);
        let op = AdminOp::Super {
            names: vec![name.into()],
            child_leases: vec![LeaseId(lease + 10)],
            holder: "backup".into(),
            now_unix_ms: 5,
        };
        sim.admin(op).expect("a superposition");
        let child = sim.attach_lease(name, LeaseId(lease + 10));
        assert_eq!(sim.write(child, B, &block(lease as u32 + 10, 1), true), IoStatus::Ok);
        if name == "f" {
            assert_eq!(sim.write(attach, B, &block(99, 1), false), IoStatus::Ok);
            assert_eq!(sim.op(attach, Op::Flush), IoStatus::Ok);
        }
        let end = if name == "g" { "note" } else { "collapse" };
        let op = match end {
            "collapse" => AdminOp::Collapse { name: name.into(), super_id: super_id(&mut sim, name) },
            _ => AdminOp::SetNote { name: name.into(), note: "half way".into() },
        };
        sim.admin(op).expect("an end");
    }
    assert_eq!(sim.admin(AdminOp::Shutdown), Ok(AdminReply::Done));
    sim.cut(Cut::KeepsNone)
}

fn share() -> Share {
    Share { reserve_iops: 500, limit_bytes_per_s: 1 << 30, latency_target_us: 900, ..Share::default() }
}

/// The scene of version 1 with settings: one in the checkpoint, one in the journal's tail.
fn settings() -> Image {
    let mut sim = Sim::boot(&setup(5), scene(), Faults::default(), "scene").expect("the scene opens");
    sim.admin(AdminOp::SetShare { name: "a".into(), share: Some(share()) }).expect("a share");
    sim.create_encrypted("c", 1 << 30, 4);
    sim.acquire("c", LeaseId(3));
    let c = sim.attach_lease("c", LeaseId(3));
    assert_eq!(sim.write(c, 7 * B, &block(60, 7), true), IoStatus::Ok);
    assert_eq!(sim.admin(AdminOp::Checkpoint), Ok(AdminReply::Done));
    sim.admin(AdminOp::SetShare { name: "b".into(), share: Some(Share::default()) }).expect("a share");
    sim.create("t", 1 << 30, ObservationRule::Write);
    sim.admin(AdminOp::RequireTokens { name: "t".into(), secret: TokenSecret([7; 32]) }).expect("tokens");
    sim.admin(AdminOp::SetNote { name: "b".into(), note: "last".into() }).expect("a note");
    sim.cut(Cut::KeepsNone)
}

/// The versions that the two superblocks name.
fn versions(image: &Image) -> [u32; 2] {
    [0, 1].map(|slot| u32::from_le_bytes(image.block(slot)[8..12].try_into().expect("four bytes")))
}

#[test]
fn golden_v2_pool_with_settings_opens() {
    assert_eq!(versions(&unpack(V2_SETTINGS)), [2, 2]);
    let mut sim = open(V2_SETTINGS);
    assert_eq!(judge(&mut sim, None), 0);
    assert_eq!(sim.show("a").share, Some(share()));
    assert_eq!(sim.show("b").share, Some(Share::default()));
    assert_eq!(sim.show("snap").share, None);
    assert_eq!(sim.show("t").access, Some(AccessState { generation: 1, secret: TokenSecret([7; 32]) }));
    assert!(sim.show("c").locked);
    let c = sim.attach_lease("c", LeaseId(3));
    assert_eq!(sim.read(c, 7 * B, B as u32), Ok(block(60, 7)));
}

/// An older program that finds one superblock of its own version would open what lies behind it.
#[test]
fn golden_v1_pool_is_version_2_in_both_superblocks_once_opened() {
    for packed in [V1_SCENE, V1_RACES] {
        assert!(versions(&unpack(packed)).contains(&1));
        let sim = open(packed);
        assert_eq!(versions(&sim.cut(Cut::KeepsNone)), [2, 2]);
    }
}

#[test]
fn golden_a_newer_superblock_beside_an_older_one_is_refused() {
    let mut image = unpack(V2_SETTINGS);
    let mut newer = image.block(0).to_vec();
    newer[8..12].copy_from_slice(&3u32.to_le_bytes());
    let crc = crc32c::crc32c(&newer[..4092]);
    newer[4092..].copy_from_slice(&crc.to_le_bytes());
    for slot in 0..2 {
        let kept = image.block(slot).to_vec();
        image.write(slot * B, &newer);
        let refused = Sim::boot(&setup(3), image.clone(), Faults::default(), "newer").err().map(|e| e.0);
        assert_eq!(refused, Some(OpenError::Superblock(SuperblockError::TooNew(3))));
        image.write(slot * B, &kept);
    }
}

fn super_id(sim: &mut Sim, name: &str) -> SuperId {
    sim.show(name).super_id.expect("it races")
}

fn open(packed: &[u8]) -> Sim {
    let image = unpack(packed);
    let mut drive = Drive::new(image.clone(), setup(3).timing, segue_des::Chance::new(3));
    let report = check(&mut DriveDev(&mut drive)).expect("it can be checked");
    assert!(report.is_clean() && report.leaked_blocks == 0, "{report:?}");
    Sim::boot(&setup(3), image, Faults::default(), "golden").expect("the kept version opens")
}

#[test]
fn golden_v1_pool_with_a_journal_tail_opens() {
    let mut sim = open(V1_SCENE);
    assert_eq!(judge(&mut sim, None), 0);
    assert_eq!(sim.show("b").note, "last");
    // It goes on living.
    let a = sim.attach_lease("a", LeaseId(1));
    assert_eq!(sim.write(a, 9 * B, &block(50, 9), true), IoStatus::Ok);
    let image = sim.cut(Cut::KeepsNone);
    let mut sim = Sim::boot(&setup(4), image, Faults::default(), "again").expect("it opens again");
    assert_eq!(judge(&mut sim, None), 0);
    let a = sim.attach_lease("a", LeaseId(1));
    assert_eq!(sim.read(a, 9 * B, B as u32), Ok(block(50, 9)));
}

#[test]
fn golden_pools_with_races_open() {
    races_open(V1_RACES);
    races_open(V2_RACES);
}

fn races_open(packed: &[u8]) {
    let mut sim = open(packed);
    let denied = sim.attach("w", AttachMode::Lease(LeaseId(11)));
    assert_eq!(denied, Err(AdminError::Fenced), "the loser of a race comes back");
    let w = sim.attach_lease("w", LeaseId(21));
    assert_eq!(sim.read(w, 0, 2 * B as u32), Ok([block(11, 0), block(21, 1)].concat()));

    let (primary, child) = (sim.attach_lease("f", LeaseId(12)), sim.attach_lease("f", LeaseId(22)));
    assert_eq!(sim.show("f").phase, SuperPhase::Observed);
    assert_eq!(sim.read(primary, 0, 2 * B as u32), Ok([block(12, 0), block(99, 1)].concat()));
    assert_eq!(sim.read(child, 0, 2 * B as u32), Ok([block(12, 0), block(22, 1)].concat()));
    let super_id = super_id(&mut sim, "f");
    let asked = sim.admin(AdminOp::Collapse { name: "f".into(), super_id });
    assert_eq!(asked, Ok(AdminReply::Collapsed { promoted: false }));

    let g = sim.show("g");
    assert_eq!((g.phase, g.note.as_str()), (SuperPhase::Racing, "half way"));
    let super_id = g.super_id.expect("it races");
    let old = sim.attach_lease("g", LeaseId(13));
    let asked = sim.admin(AdminOp::Collapse { name: "g".into(), super_id });
    assert_eq!(asked, Ok(AdminReply::Collapsed { promoted: true }));
    assert_eq!(sim.read(old, 0, B as u32), Err(IoStatus::Fenced));
    let g = sim.attach_lease("g", LeaseId(23));
    assert_eq!(sim.read(g, 0, 2 * B as u32), Ok([block(13, 0), block(23, 1)].concat()));
}

/// With `SEGUE_WRITE_GOLDEN` set it also writes the images of the current version: do that once when the version
/// number grows, under new names, and keep the old files.
#[test]
fn golden_packing_is_exact() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, image) in [("v2_races.img", races()), ("v2_settings.img", settings())] {
        assert_eq!(unpack(&pack(&image)).hash(), image.hash());
        if std::env::var_os("SEGUE_WRITE_GOLDEN").is_some() {
            std::io::Write::write_all(&mut file(&dir.join(name)), &pack(&image)).expect("the images can be written");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a tool that a person runs, not a machine")]
fn file(path: &std::path::Path) -> std::fs::File {
    std::fs::File::create(path).expect("the directory is there")
}
