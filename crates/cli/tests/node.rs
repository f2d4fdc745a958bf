//! A real node, asked everything the command line can ask.
//!
//! Owns: the life of volumes, leases and superpositions as operators see it. Never: uses anything but the commands.
//! Invariant: what was answered is there after a restart.

mod common;

use common::{Node, nbdinfo, run, segue, until};

const MEMORY: &str = "[nbd]\nlisten=[\"unix:DIR/nbd.sock\"]\n[[pool]]\nname=\"m\"\nmemory_bytes=\"256MiB\"\n";
const FILE: &str = "[nbd]\nlisten=[\"unix:DIR/nbd.sock\"]\n[[pool]]\nname=\"f\"\npath=\"DIR/pool\"\n";

fn file_node() -> Node {
    let node = Node::prepare(FILE);
    let made = node.json(&["pool", "format", node.path("pool").to_str().unwrap(), "--size", "512MiB"]);
    assert_eq!(made["schema"], "segue.pool_format.v1");
    node
}

#[test]
fn conform_volumes_live_through_every_verb() {
    let node = Node::start(MEMORY);
    let info = node.json(&["node", "status"]);
    assert_eq!((&info["schema"], &info["pid"]), (&"segue.node.v1".into(), &node.pid().into()));
    let volume = node.json(&["volume", "create", "a", "--size", "64MiB"]);
    assert_eq!((&volume["name"], &volume["size_bytes"]), (&"a".into(), &(64 << 20).into()));
    assert_eq!((&volume["observation"], &volume["super_phase"]), (&"flush".into(), &"none".into()));
    assert!(node.refused(&["volume", "create", "a", "--size", "64MiB"], 4).contains("taken"));
    assert!(node.refused(&["volume", "create", "b", "--size", "64MiB", "--pool", "x"], 3).contains("no pool"));
    assert!(node.refused(&["volume", "create", "a/b", "--size", "64MiB"], 2).contains("1 to 64"));
    assert!(node.refused(&["volume", "create", "b", "--size", "5000"], 2).contains("4096"));
    assert_eq!(node.json(&["volume", "resize", "a", "--size", "128MiB"])["size_bytes"], 128 << 20);
    node.refused(&["volume", "resize", "a", "--size", "64MiB"], 2);
    node.json(&["volume", "rename", "a", "b"]);
    assert!(node.refused(&["volume", "show", "a"], 3).contains("\"a\""));
    assert_eq!(node.json(&["volume", "snapshot", "b", "s"])["kind"], "snapshot");
    assert_eq!(node.json(&["volume", "clone", "s", "c"])["kind"], "volume");
    assert!(node.refused(&["volume", "rename", "c", "b"], 4).contains("\"b\""));
    let names: Vec<_> = node.json(&["volume", "list"])["volumes"].as_array().unwrap().clone();
    assert_eq!(names.iter().map(|v| v["name"].as_str().unwrap()).collect::<Vec<_>>(), ["b", "c", "s"]);
    for name in ["c", "s", "b"] {
        node.json(&["volume", "delete", name]);
    }
    assert_eq!(node.json(&["volume", "list"])["volumes"].as_array().unwrap().len(), 0);
}

#[test]
fn conform_leases_say_who_and_since_when() {
    let node = Node::start(MEMORY);
    node.json(&["volume", "create", "a", "--size", "16MiB"]);
    assert_eq!(node.ask(&["lease", "show", "a"]).code, 1);
    let grant = node.json(&["lease", "acquire", "a", "--holder", "first"]);
    let (lease, export) = (grant["lease"].as_str().unwrap(), grant["export"].as_str().unwrap());
    assert_eq!(export, format!("a@{lease}"));
    let busy = node.refused(&["lease", "acquire", "a", "--holder", "second"], 5);
    assert!(busy.contains("held by first") && busy.contains("segue lease break"), "{busy}");
    assert_eq!(node.json(&["lease", "show", "a"])["lease"]["holder"], "first");
    assert!(node.refused(&["volume", "delete", "a"], 5).contains("first"));
    assert_eq!(nbdinfo(&node.path("nbd.sock"), export).code, 0, "{}", node.log());
    assert_ne!(nbdinfo(&node.path("nbd.sock"), "a").code, 0);
    node.json(&["lease", "break", "a"]);
    node.refused(&["lease", "release", "a", lease], 8);
    assert_ne!(nbdinfo(&node.path("nbd.sock"), export).code, 0);
    let grant = node.json(&["lease", "acquire", "a"]);
    node.json(&["lease", "release", "a", grant["lease"].as_str().unwrap()]);
    node.refused(&["lease", "release", "a", "xyz"], 2);
    node.json(&["volume", "delete", "a"]);
}

#[test]
fn conform_a_superposition_is_promoted_or_aborted_and_stays_so_after_a_restart() {
    let mut node = file_node();
    node.up();
    for name in ["data", "wal"] {
        node.json(&["volume", "create", name, "--size", "32MiB"]);
    }
    let old = node.json(&["lease", "acquire", "data", "--holder", "primary"]);
    let grant = node.json(&["super", "data", "wal", "--holder", "backup"]);
    let id = grant["super_id"].to_string();
    let children = grant["children"].as_array().unwrap().clone();
    assert_eq!(children.len(), 2);
    assert_eq!(node.json(&["volume", "show", "wal"])["super_phase"], "racing");
    node.refused(&["super", "data", "--holder", "other"], 7);
    node.refused(&["collapse", "data", "--super", "987654"], 7);
    assert_eq!(node.json(&["collapse", "wal", "--super", &id])["outcome"], "promoted");
    node.down();
    node.up();
    assert_eq!(node.json(&["collapse", "data", "--super", &id])["outcome"], "promoted");
    let shown = node.json(&["volume", "show", "data"]);
    assert_eq!((&shown["lease"]["holder"], &shown["super_phase"]), (&"backup".into(), &"none".into()));
    assert_eq!(nbdinfo(&node.path("nbd.sock"), children[0]["export"].as_str().unwrap()).code, 0);
    assert_ne!(nbdinfo(&node.path("nbd.sock"), old["export"].as_str().unwrap()).code, 0);
    let second = node.json(&["super", "data"])["super_id"].to_string();
    node.json(&["abort", "data", "--super", &second]);
    node.json(&["abort", "data", "--super", &second]);
    assert_eq!(node.json(&["volume", "show", "data"])["super_phase"], "none");
}

#[test]
fn conform_two_pools_share_one_space_of_names() {
    let node = Node::start(&format!("{MEMORY}[[pool]]\nname=\"n\"\nmemory_bytes=\"64MiB\"\n"));
    node.json(&["volume", "create", "a", "--size", "16MiB"]);
    assert_eq!(node.json(&["volume", "create", "b", "--size", "16MiB", "--pool", "n"])["pool"], "n");
    node.refused(&["volume", "create", "a", "--size", "16MiB", "--pool", "n"], 4);
    node.refused(&["volume", "rename", "b", "a"], 4);
    assert!(node.refused(&["super", "a", "b"], 2).contains("different pools"));
    for name in ["a", "b"] {
        assert_eq!(nbdinfo(&node.path("nbd.sock"), name).code, 0, "{name}: {}", node.log());
    }
    let pools = node.json(&["pool", "list"])["pools"].as_array().unwrap().clone();
    assert_eq!(pools.iter().map(|p| p["name"].as_str().unwrap()).collect::<Vec<_>>(), ["m", "n"]);
}

#[test]
fn conform_a_pool_is_checked_scrubbed_and_checkpointed() {
    let mut node = file_node();
    let pool = node.path("pool");
    let pool = pool.to_str().unwrap();
    assert_eq!(node.json(&["pool", "check", pool])["damage"].as_array().unwrap().len(), 0);
    assert!(node.refused(&["pool", "format", pool, "--size", "512MiB"], 4).contains("--force"));
    node.up();
    node.json(&["volume", "create", "a", "--size", "32MiB"]);
    node.json(&["pool", "checkpoint", "f"]);
    let scrub = node.json(&["pool", "scrub", "f"]);
    assert_eq!((&scrub["running"], &scrub["errors"]), (&false.into(), &0.into()));
    assert_eq!(node.json(&["pool", "show", "f"])["volumes"], 1);
    assert!(node.refused(&["pool", "check", pool], 5).contains("in use"));
    node.refused(&["pool", "checkpoint", "x"], 3);
    let metrics = node.json(&["node", "metrics"])["openmetrics"].as_str().unwrap().to_owned();
    for line in ["segue_pool_volumes{pool=\"f\"} 1", "# EOF", "segue_nbd_requests_total{op=\"read\"}"] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert_eq!(node.json(&["node", "events"])["events"].as_array().unwrap().len(), 0);
    node.kill();
    node.json(&["pool", "check", pool]);
    node.up();
    assert_eq!(node.json(&["volume", "list"])["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(node.signal(libc::SIGTERM).code(), Some(0), "{}", node.log());
}

#[test]
fn conform_a_background_start_waits_for_ready_and_tells_why_not() {
    let node = Node::prepare(MEMORY);
    let start = ["node", "start", "--config"].map(String::from);
    let config = node.path("segue.toml");
    let said = run(segue().arg("--json").args(&start).arg(&config));
    assert_eq!(said.code, 0, "{}", said.err);
    let again = run(segue().args(&start).arg(&config));
    assert_eq!(again.code, 5, "{}", again.err);
    assert!(again.err.contains("another node runs"), "{}", again.err);
    let pid = said.json()["pid"].as_u64().unwrap();
    node.json(&["node", "stop"]);
    until("the process to be gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    assert_eq!(node.ask(&["node", "status"]).code, 11);
    let broken = Node::prepare("[[pool]]\nname=\"f\"\npath=\"DIR/none\"\n");
    let said = run(segue().args(&start).arg(broken.path("segue.toml")));
    assert_eq!(said.code, 10, "{}", said.err);
    assert!(said.err.contains("segue pool format"), "{}", said.err);
}

#[test]
fn conform_an_idle_node_is_small_and_quiet() {
    let node = Node::start(MEMORY);
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap().trim().trim_end_matches(" kB");
    let rss_kib: u64 = rss.trim().parse().unwrap();
    assert!(rss_kib < 64 << 10, "{rss_kib} KiB");
}

#[test]
fn conform_an_encrypted_volume_needs_its_key_after_each_start() {
    let mut node = file_node();
    let (key, other) = (node.path("key"), node.path("other"));
    std::fs::write(&key, [7; 64]).unwrap();
    std::fs::write(&other, [8; 64]).unwrap();
    let (key, other) = (key.to_str().unwrap(), other.to_str().unwrap());
    node.up();
    let create = ["volume", "create", "a", "--size", "16MiB", "--encrypt"];
    assert!(node.refused(&create, 2).contains("key"));
    let made = node.json(&[&create[..], &["--key-file", key]].concat());
    assert_eq!((&made["encrypted"], &made["locked"]), (&true.into(), &false.into()));
    node.json(&["volume", "snapshot", "a", "s"]);
    node.down();
    node.up();
    assert_eq!(node.json(&["volume", "show", "a"])["locked"], true);
    assert_ne!(nbdinfo(&node.path("nbd.sock"), "a").code, 0);
    assert!(node.refused(&["volume", "unlock", "a", "--key-file", other], 6).contains("not the volume's"));
    let unlocked = node.json(&["volume", "unlock", "s", "--key-command", &format!("cat {key}")]);
    assert_eq!((&unlocked["name"], &unlocked["locked"]), (&"s".into(), &false.into()));
    assert_eq!(nbdinfo(&node.path("nbd.sock"), "a").code, 0, "{}", node.log());
    assert_eq!(node.json(&["volume", "lock", "a"])["locked"], true);
    node.down();

    // A key in the configuration is loaded at start; one that cannot be read keeps nothing else from being served.
    let config = std::fs::read_to_string(node.path("segue.toml")).unwrap();
    let keys = format!("[[key]]\nvolume='none'\nfile='/nonexistent'\n[[key]]\nvolume='a'\ncommand=['cat', '{key}']\n");
    std::fs::write(node.path("segue.toml"), config + &keys).unwrap();
    node.up();
    assert_eq!(node.json(&["volume", "show", "a"])["locked"], false, "{}", node.log());
    assert!(node.log().contains("/nonexistent"), "{}", node.log());
}

/// A token's text, as the command prints it.
fn token(node: &Node, args: &[&str]) -> String {
    node.json(&[&["token"], args].concat())["token"].as_str().unwrap().to_owned()
}

#[test]
fn conform_tokens_are_made_narrowed_and_revoked() {
    let mut node = file_node();
    node.up();
    let socket = node.path("nbd.sock");
    let info = |export: &str| nbdinfo(&socket, export);
    node.json(&["volume", "create", "a", "--size", "16MiB"]);
    assert_eq!(info("a").code, 0);
    let full = token(&node, &["new", "a"]);
    assert_ne!(info("a").code, 0, "a volume with tokens lets nobody in without one");
    assert_eq!(node.json(&["volume", "show", "a"])["token_required"], true);
    assert_eq!(info(&format!("a?token={full}")).code, 0, "{}", node.log());
    let narrow = token(&node, &["narrow", &full, "--read-only", "--expires", "1h", "--range", "0B..1MiB"]);
    let shown = node.json(&["token", "show", &narrow]);
    assert_eq!((&shown["read_only"], &shown["range"][1]), (&true.into(), &(1 << 20).into()));
    let read_only = info(&format!("a?token={narrow}"));
    assert_eq!(read_only.json()["exports"][0]["is_read_only"], true, "{}", read_only.err);
    // A unix socket has no address; a token of nobody's sessions opens none; a past time is over.
    for limits in [&["--source", "0.0.0.0/0"][..], &["--sessions", "0"], &["--expires", "0s"]] {
        let refused = token(&node, &[&["narrow", &full], limits].concat());
        assert_ne!(info(&format!("a?token={refused}")).code, 0, "{limits:?}");
    }
    assert!(node.refused(&["token", "narrow", "v1.x", "--read-only"], 2).contains("malformed"));
    assert!(node.refused(&["token", "narrow", &full], 2).contains("--help"));
    node.json(&["volume", "clone", "a", "b"]);
    assert_ne!(info("b").code, 0);
    assert_ne!(info(&format!("b?token={full}")).code, 0, "a token is for one volume");
    node.down();
    node.up();
    assert_eq!(info(&format!("a?token={full}")).code, 0, "tokens outlive the node");
    node.json(&["token", "revoke", "a"]);
    assert_ne!(info(&format!("a?token={full}")).code, 0);
    let new = token(&node, &["new", "a"]);
    assert_eq!(info(&format!("a?token={new}")).code, 0, "{}", node.log());
    node.json(&["token", "disable", "a"]);
    assert_eq!(info("a").code, 0);
}

#[test]
fn conform_top_shows_volumes_cores_and_drives_once() {
    let node = Node::start(MEMORY);
    node.json(&["volume", "create", "a", "--size", "16MiB"]);
    let top = node.json(&["top", "--once", "--interval", "50ms"]);
    assert_eq!((&top["schema"], &top["pools"][0]["pool"]), (&"segue.top.v1".into(), &"m".into()));
    assert!(top["cores"][0]["busy_percent"].is_number() && top["volumes"].as_array().unwrap().is_empty());
    let text = run(segue().arg("--admin").arg(node.path("admin.sock")).args(["top", "--once", "--interval", "50ms"]));
    assert!(text.code == 0 && text.out.contains("WAITS FOR"), "{}", text.out);
    // Without a terminal and without --once there is nothing to draw on.
    let live = run(segue().arg("--admin").arg(node.path("admin.sock")).arg("top"));
    assert!(live.code == 13 && live.err.contains("--once"), "{} {}", live.code, live.err);
}
