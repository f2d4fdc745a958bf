//! libnbd judges the server: nbdinfo, nbdcopy, and scripts of nbdsh.
//!
//! Owns: what libnbd's tools must see. Never: asserts on timing.
//! Invariant: every test ends with a clean scrub and a clean offline check.

mod judge;

use judge::{DRIVES, Drive, Node, judge, judge_refuses, noise_file, same_bytes};

#[test]
fn judge_nbdinfo_sees_flags_sizes_and_holes() {
    let node = Node::start(Drive::Memory, "256MiB");
    node.create("vol", "64MiB");
    let info: serde_json::Value = serde_json::from_str(&judge("nbdinfo", &["--json", &node.uri("vol")])).unwrap();
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 64 << 20);
    for flag in
        ["can_cache", "can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"]
    {
        assert_eq!(export[flag], true, "{flag}: {export}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["block_size_minimum"], 512);
    assert_eq!(export["block_size_preferred"], 4096);
    assert_eq!(export["block_size_maximum"], 32 << 20);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));

    let data = node.path("data");
    noise_file(&data, 1 << 20, 1);
    judge("nbdcopy", &["--flush", data.to_str().unwrap(), &node.uri("vol")]);
    let map: serde_json::Value =
        serde_json::from_str(&judge("nbdinfo", &["--json", "--map", &node.uri("vol")])).unwrap();
    let runs: Vec<(u64, u64, u64)> = map
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["offset"].as_u64().unwrap(), r["length"].as_u64().unwrap(), r["type"].as_u64().unwrap()))
        .collect();
    assert_eq!(runs, [(0, 1 << 20, 0), (1 << 20, 63 << 20, 3)], "data, then a hole that reads as zero");

    let list = judge("nbdinfo", &["--list", &node.uri("")]);
    assert!(list.contains("vol"), "{list}");
    judge_refuses("nbdinfo", &[&node.uri("nobody")]);
    node.finish();
}

#[test]
fn judge_nbdcopy_brings_back_what_it_wrote() {
    for drive in DRIVES {
        let node = Node::start(drive, "512MiB");
        node.create("vol", "96MiB");
        let (data, back) = (node.path("data"), node.path("back"));
        noise_file(&data, 96 << 20, 7);
        judge("nbdcopy", &["--flush", "--connections=4", data.to_str().unwrap(), &node.uri("vol")]);
        judge("nbdcopy", &["--connections=4", &node.uri("vol"), back.to_str().unwrap()]);
        assert!(same_bytes(&data, &back), "{drive:?}: what came back differs");
        node.finish();
    }
}

#[test]
fn judge_flushed_bytes_survive_a_killed_node() {
    let mut node = Node::start(Drive::File, "512MiB");
    node.create("vol", "64MiB");
    let (data, back) = (node.path("data"), node.path("back"));
    for round in 0..3 {
        noise_file(&data, 64 << 20, 100 + round);
        judge("nbdcopy", &["--flush", data.to_str().unwrap(), &node.uri("vol")]);
        node.crash();
        node.check_offline();
        node.boot();
        judge("nbdcopy", &[&node.uri("vol"), back.to_str().unwrap()]);
        assert!(same_bytes(&data, &back), "round {round}: what came back differs");
    }
    node.finish();
}

/// Runs a script of `tests/nbdsh` with the URI of a fresh 64 MiB volume as its argument.
fn script(name: &str) {
    for drive in DRIVES {
        let node = Node::start(drive, "256MiB");
        node.create("vol", "64MiB");
        run_script(name, &[&node.uri("vol"), &node.uri("vol@ro")]);
        node.finish();
    }
}

fn run_script(name: &str, args: &[&str]) {
    let path = format!("{}/tests/nbdsh/{name}.py", env!("CARGO_MANIFEST_DIR"));
    // The system's own python is the one that python3-libnbd is for.
    judge("/usr/bin/python3", &[&["-B", path.as_str()], args].concat());
}

#[test]
fn judge_nbdsh_structured_reads_tell_data_from_holes() {
    script("structured");
}

#[test]
fn judge_nbdsh_trim_and_zero_read_as_zero() {
    script("zero");
}

#[test]
fn judge_nbdsh_block_status_follows_writes() {
    script("status");
}

#[test]
fn judge_nbdsh_flush_covers_every_connection() {
    script("multi_conn");
}

#[test]
fn judge_nbdsh_bad_requests_are_refused_and_harm_nobody() {
    script("refused");
}

#[test]
fn judge_nbdsh_sub_block_writes_keep_their_neighbours() {
    script("sectors");
}

#[test]
fn judge_nbdsh_fua_survives_a_killed_node() {
    let mut node = Node::start(Drive::File, "256MiB");
    node.create("vol", "64MiB");
    run_script("fua", &[&node.uri("vol"), "write"]);
    node.crash();
    node.boot();
    run_script("fua", &[&node.uri("vol"), "verify"]);
    node.finish();
}

#[test]
fn judge_nbdsh_a_grown_volume_is_seen_and_keeps_its_bytes() {
    let node = Node::start(Drive::File, "512MiB");
    node.create("vol", "64MiB");
    run_script("resize", &[&node.uri("vol"), "67108864"]);
    node.ask(&["volume", "resize", "vol", "--size", "128MiB"]);
    run_script("resize", &[&node.uri("vol"), "134217728"]);
    node.finish();
}
