//! A divided drive and its cores, as an operator sees them.
//!
//! Owns: slices and hand-overs by the commands. Never: repeats what the runtime's own tests show.
//! Invariant: after all of it the offline check finds nothing wrong.

mod common;

use common::{Node, nbdinfo};

const CONFIG: &str = "cores=2\n[nbd]\nlisten=[\"unix:DIR/nbd.sock\"]\n[[pool]]\nname=\"main\"\npath=\"DIR/pool\"\n";

#[test]
fn conform_a_divided_drive_is_served_by_two_cores() {
    let mut node = Node::prepare(CONFIG);
    let path = node.path("pool");
    let path = path.to_str().unwrap();
    assert!(node.refused(&["pool", "format", path, "--size", "512MiB", "--slices", "65"], 2).contains("1 to 64"));
    assert_eq!(node.json(&["pool", "format", path, "--size", "512MiB", "--slices", "2"])["slices"], 2);
    node.up();
    let pools = node.json(&["pool", "list"])["pools"].as_array().unwrap().clone();
    let seen: Vec<_> = pools.iter().map(|p| (p["name"].as_str().unwrap(), p["core"].as_u64().unwrap())).collect();
    assert_eq!(seen, [("main/0", 0), ("main/1", 1)]);
    assert!(pools[0]["shared_free_bytes"].as_u64().unwrap() > 400 << 20, "{}", pools[0]);
    // New volumes go where the fewest are, unless told otherwise.
    let place = |volume: &serde_json::Value| volume["pool"].as_str().unwrap().to_owned();
    assert_eq!(place(&node.json(&["volume", "create", "a", "--size", "400MiB"])), "main/0");
    assert_eq!(place(&node.json(&["volume", "create", "b", "--size", "400MiB", "--pool", "main"])), "main/1");
    assert_eq!(place(&node.json(&["volume", "create", "c", "--size", "16MiB", "--pool", "main/1"])), "main/1");
    assert!(node.refused(&["pool", "checkpoint", "main"], 3).contains("main/0"));
    assert!(node.refused(&["super", "a", "b"], 2).contains("different pools"));
    let bound = node.json(&["pool", "bind", "main/1", "--core", "0"]);
    assert_eq!((&bound["from"], &bound["to"]), (&1.into(), &0.into()));
    assert_eq!(node.json(&["pool", "show", "main/1"])["core"], 0);
    assert!(node.refused(&["pool", "bind", "main/1", "--core", "7"], 2).contains("cores 0 to 1"));
    node.refused(&["pool", "bind", "other", "--core", "0"], 3);
    for name in ["a", "b", "c"] {
        assert_eq!(nbdinfo(&node.path("nbd.sock"), name).code, 0, "{name}: {}", node.log());
    }
    node.kill();
    assert_eq!(node.json(&["pool", "check", path])["volumes"], 3);
    node.up();
    assert_eq!(node.json(&["volume", "list"])["volumes"].as_array().unwrap().len(), 3);
    node.down();
    assert_eq!(node.json(&["pool", "check", path])["clean"], true);
}
