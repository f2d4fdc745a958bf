//! Shares of a drive through the command line and the admin API.
//!
//! Owns: what an operator sees and is refused. Never: measures.
//! Invariant: settings outlive the node that took them.

mod common;

use common::{Node, Said, run, segue};

const NODE: &str = "[nbd]\nlisten=[\"unix:DIR/nbd.sock\"]\n[[pool]]\nname=\"m\"\nmemory_bytes=\"64MiB\"\npolicy=\"drr\"\n\
capacity_iops=10000\nlatency_target=\"200us\"\nknee_depth=8\n";

fn ask(node: &Node, args: &[&str]) -> Said {
    run(segue().args(args).arg("--admin").arg(node.path("admin.sock")))
}

#[test]
fn conform_shares_are_set_shown_and_refused() {
    let node = Node::start(NODE);
    for name in ["a", "b"] {
        node.json(&["volume", "create", name, "--size", "16MiB"]);
    }
    let set = node.json(&["volume", "qos", "set", "a", "--reserve-iops", "6000", "--limit-bytes", "10MiB"]);
    assert_eq!(set["schema"], "segue.volume.qos.v1");
    assert_eq!((&set["share"]["reserve_iops"], &set["share"]["weight"]), (&6000.into(), &100.into()));
    let set = node.json(&["volume", "qos", "set", "a", "--weight", "300", "--latency-target", "500us"]);
    assert_eq!((&set["share"]["reserve_iops"], &set["share"]["latency_target_us"]), (&6000.into(), &500.into()));
    assert_eq!(node.json(&["volume", "qos", "show", "a"])["share"], set["share"]);
    let refused = ask(&node, &["volume", "qos", "set", "b", "--reserve-iops", "3001"]);
    assert_eq!(refused.code, 7, "{}", refused.err);
    assert!(refused.err.contains("`6000`") && refused.err.contains("`9000`"), "{}", refused.err);
    let refused = ask(&node, &["volume", "qos", "set", "b", "--weight", "0"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert_eq!(ask(&node, &["volume", "qos", "show", "c"]).code, 3);
    let reset = node.json(&["volume", "qos", "set", "a", "--reset"]);
    assert_eq!(reset["share"]["reserve_iops"], 0);
    node.json(&["volume", "qos", "set", "b", "--reserve-iops", "9000"]);
}

#[test]
fn conform_a_pool_tells_and_changes_its_policy() {
    let node = Node::start(NODE);
    let shown = node.json(&["pool", "qos", "m"]);
    assert_eq!((&shown["policy"], &shown["profile"]["capacity_iops"]), (&"drr".into(), &10_000.into()));
    let set = node.json(&["pool", "qos", "m", "--policy", "slo", "--knee-depth", "16"]);
    assert_eq!((&set["policy"], &set["profile"]["knee_depth"]), (&"slo".into(), &16.into()));
    assert_eq!(set["profile"]["latency_target_us"], 200);
    assert_eq!(ask(&node, &["pool", "qos", "m", "--policy", "best"]).code, 2);
    assert_eq!(ask(&node, &["pool", "qos", "x"]).code, 3);
}

#[test]
fn conform_calibration_reads_a_scratch_file_and_refuses_what_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let said =
        run(segue().args(["drive", "calibrate", "--json", "--seconds", "0.02", "--size", "16MiB"]).arg(dir.path()));
    // A file system without direct I/O cannot be measured, and the command says so.
    if said.code != 13 {
        assert_eq!(said.code, 0, "{}", said.err);
        let found = said.json();
        assert_eq!(found["reads"].as_array().unwrap().len(), 8);
        assert!(found["profile"]["capacity_iops"].as_u64().unwrap() > 0);
        assert!(found["profile"]["write_cost_percent"].as_u64().unwrap() > 0);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the scratch file is gone");
    let hole = dir.path().join("hole");
    std::fs::File::create(&hole).unwrap().set_len(1 << 30).unwrap();
    let said = run(segue().args(["drive", "calibrate"]).arg(&hole));
    assert!(said.code == 2 || said.code == 13, "{}", said.err);
}
