//! Mistakes that were made once.
//!
//! Owns: the shortest script of each. Never: is random.
//! Invariant: each script failed before its mistake was mended.

mod sim;

use segue_types::{BLOCK_BYTES, IoStatus, LeaseId};
use segue_volume::op::{AdminOp, AdminReply, ObservationRule, Op};
use sim::{Sim, scene};

/// A discard on a head that is merging skipped leaves that only the head had.
#[test]
fn regress_a_discard_on_a_merging_head_reaches_all_of_it() {
    const LEAF: u64 = 256 * BLOCK_BYTES;
    let mut sim = Sim::fresh(&scene::setup(1));
    sim.create("v", 1 << 40, ObservationRule::Flush);
    sim.acquire("v", LeaseId(1));
    let v = sim.attach_lease("v", LeaseId(1));
    let op =
        AdminOp::Super { names: vec!["v".into()], child_leases: vec![LeaseId(2)], holder: "b".into(), now_unix_ms: 1 };
    let Ok(AdminReply::Super { super_id, .. }) = sim.admin(op) else { panic!("no super") };
    // More leaves than one turn of the clean-up merges; the last is far away.
    let leaves: Vec<u64> = (0..64).map(|n| 2 * n).chain([300_000]).collect();
    for leaf in &leaves {
        assert_eq!(sim.write(v, leaf * LEAF, &scene::block(7, leaf * 256), false), IoStatus::Ok);
    }
    sim.admin(AdminOp::Abort { name: "v".into(), super_id }).expect("an abort");
    while !sim.show("v").cleaning {
        assert!(sim.turn(), "the clean-up never begins");
    }
    let (offset, len) = (LEAF, 300_000 * LEAF);
    assert_eq!(sim.op(v, Op::Discard { offset, len, fua: false }), IoStatus::Ok);
    for leaf in &leaves[1..] {
        let data = sim.read(v, leaf * LEAF, BLOCK_BYTES as u32).expect("a read");
        assert!(data.iter().all(|b| *b == 0), "leaf {leaf} was not discarded");
    }
}
