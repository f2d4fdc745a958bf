//! Encryption at rest: what lies on the drive, who gets in without the key, and what shares a key.
//!
//! Owns: scripted lives of encrypted volumes. Never: tests the cipher itself (see `crypt`).
//! Invariant: nothing a client wrote to an encrypted volume is found on the drive.

mod sim;

use segue_des::{Cut, Faults, Image};
use segue_types::{BLOCK_BYTES, IoStatus, LeaseId};
use segue_volume::Secret;
use segue_volume::op::{AdminError, AdminOp, AdminReply, AttachMode, ObservationRule, Op};
use sim::scene::{block, setup};
use sim::{Sim, secret};

const B: u64 = BLOCK_BYTES;

/// How many sectors of the drive hold what the test wrote somewhere.
fn plain_sectors(image: &Image, written: &[Vec<u8>]) -> usize {
    let holds = |sector: &[u8]| written.iter().any(|w| w.chunks_exact(512).any(|s| s[8..] == sector[8..]));
    image.written_blocks().map(|n| image.block(n).chunks_exact(512).filter(|s| holds(s)).count()).sum()
}

fn writable(sim: &mut Sim, name: &str, lease: u128) -> segue_volume::op::AttachId {
    sim.acquire(name, LeaseId(lease));
    sim.attach_lease(name, LeaseId(lease))
}

/// Whole blocks, a part of one, and zeroes that stay allocated; then the power goes.
fn life(encrypted: bool) -> (Image, Vec<Vec<u8>>) {
    let mut sim = Sim::fresh(&setup(1));
    if encrypted {
        sim.create_encrypted("a", 1 << 20, 1);
    } else {
        sim.create("a", 1 << 20, ObservationRule::Flush);
    }
    let a = writable(&mut sim, "a", 1);
    let written: Vec<Vec<u8>> = (0..20).map(|n| block(n as u32 + 1, n)).collect();
    for (n, data) in written.iter().enumerate().take(16) {
        assert_eq!(sim.write(a, n as u64 * B, data, false), IoStatus::Ok);
    }
    assert_eq!(sim.write(a, 16 * B + 512, &written[16][512..2048], false), IoStatus::Ok);
    let zeroes = Op::WriteZeroes { offset: 3 * B + 1024, len: 5 * B, no_hole: true, fua: false };
    assert_eq!(sim.op(a, zeroes), IoStatus::Ok);
    assert_eq!(sim.op(a, Op::Flush), IoStatus::Ok);
    let mut expect = written[..16].concat();
    expect[3 * B as usize + 1024..8 * B as usize + 1024].fill(0);
    assert_eq!(sim.read(a, 0, 16 * B as u32), Ok(expect));
    assert_eq!(sim.read(a, 16 * B + 512, 1536), Ok(written[16][512..2048].to_vec()));
    assert_eq!(sim.read(a, 17 * B, B as u32), Ok(vec![0; B as usize]), "holes stay holes");
    (sim.cut(Cut::KeepsAll), written)
}

#[test]
fn no_plaintext_reaches_the_drive() {
    let (image, written) = life(true);
    assert_eq!(plain_sectors(&image, &written), 0);
    // The search finds what is there to be found.
    let (image, written) = life(false);
    assert!(plain_sectors(&image, &written) > 100);
}

/// Zeroes that stay allocated are encrypted too: where they are is not told.
#[test]
fn allocated_zeroes_are_not_zeroes_on_the_drive() {
    let mut sim = Sim::fresh(&setup(1));
    sim.create_encrypted("a", 1 << 20, 1);
    let a = writable(&mut sim, "a", 1);
    let zeroes = Op::WriteZeroes { offset: 0, len: 8 * B, no_hole: true, fua: true };
    assert_eq!(sim.op(a, zeroes), IoStatus::Ok);
    assert_eq!(sim.read(a, 0, 8 * B as u32), Ok(vec![0; 8 * B as usize]));
    let one = sim.show("a");
    assert_eq!(one.own_bytes, 8 * B);
    let image = sim.cut(Cut::KeepsAll);
    let dense = image.written_blocks().filter(|n| image.block(*n).iter().filter(|b| **b == 0).count() < 64).count();
    assert_eq!(dense, 8, "blocks that look random");
}

#[test]
fn a_locked_volume_takes_nobody_in() {
    let (image, written) = life(true);
    let mut sim = Sim::boot(&setup(2), image, Faults::default(), "again").expect("it opens without a key");
    assert!(sim.show("a").encrypted && sim.show("a").locked);
    for mode in [AttachMode::ReadOnly, AttachMode::Lease(LeaseId(1))] {
        let op = AdminOp::Attach { name: "a".into(), mode, token_sha256: None };
        assert_eq!(sim.admin(op), Err(AdminError::Locked));
    }
    let wrong = Secret::new(vec![1; 32]).expect("long enough");
    assert_eq!(sim.admin(AdminOp::Unlock { name: "a".into(), secret: wrong.clone() }), Err(AdminError::WrongKey));
    assert!(sim.show("a").locked);
    sim.admin(AdminOp::Unlock { name: "a".into(), secret: secret() }).expect("the right key");
    // Also an unlocked volume tells a wrong key.
    assert_eq!(sim.admin(AdminOp::Unlock { name: "a".into(), secret: wrong }), Err(AdminError::WrongKey));
    let a = sim.attach_lease("a", LeaseId(1));
    assert_eq!(sim.read(a, 0, B as u32), Ok(written[0].clone()));
    let lock = AdminOp::Lock { name: "a".into() };
    assert!(matches!(sim.admin(lock.clone()), Err(AdminError::Conflict(_))), "locked under an attachment");
    sim.admin(AdminOp::Detach { attach: a }).expect("detach");
    sim.admin(lock).expect("nobody is attached");
    assert!(sim.show("a").locked);
    sim.create("plain", 1 << 20, ObservationRule::Flush);
    let unlock = AdminOp::Unlock { name: "plain".into(), secret: secret() };
    assert!(matches!(sim.admin(unlock), Err(AdminError::Conflict(_))));
}

/// Snapshots, clones and both versions of a race read and write with the key of their origin.
#[test]
fn relatives_share_the_key() {
    let mut sim = Sim::fresh(&setup(3));
    sim.create_encrypted("a", 1 << 20, 1);
    let a = writable(&mut sim, "a", 1);
    assert_eq!(sim.write(a, 0, &block(1, 0), true), IoStatus::Ok);
    sim.admin(AdminOp::Snapshot { name: "a".into(), to: "s".into() }).expect("a snapshot");
    sim.admin(AdminOp::Clone { name: "s".into(), to: "c".into() }).expect("a clone");
    let op = AdminOp::Super {
        names: vec!["a".into()],
        child_leases: vec![LeaseId(9)],
        holder: "backup".into(),
        now_unix_ms: 5,
    };
    let Ok(AdminReply::Super { super_id, .. }) = sim.admin(op) else { panic!("no superposition") };
    let child = sim.attach_lease("a", LeaseId(9));
    assert_eq!(sim.write(child, B, &block(2, 1), true), IoStatus::Ok);
    sim.admin(AdminOp::Collapse { name: "a".into(), super_id }).expect("a winner");
    let image = sim.cut(Cut::KeepsNone);

    let mut sim = Sim::boot(&setup(3), image, Faults::default(), "again").expect("it opens");
    sim.admin(AdminOp::Unlock { name: "c".into(), secret: secret() }).expect("the key of the origin");
    assert!(!sim.show("a").locked && !sim.show("s").locked, "one key opens all relatives");
    let a = sim.attach_lease("a", LeaseId(9));
    assert_eq!(sim.read(a, 0, 2 * B as u32), Ok([block(1, 0), block(2, 1)].concat()));
    let s = sim.attach("s", AttachMode::ReadOnly).expect("a snapshot").attach;
    assert_eq!(sim.read(s, 0, B as u32), Ok(block(1, 0)));
    let c = writable(&mut sim, "c", 4);
    assert_eq!(sim.write(c, 512, &block(3, 0)[512..1024], true), IoStatus::Ok);
    let mut mixed = block(1, 0);
    mixed[512..1024].copy_from_slice(&block(3, 0)[512..1024]);
    assert_eq!(sim.read(c, 0, B as u32), Ok(mixed));
}
