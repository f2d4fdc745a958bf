//! Damage on the drive: a flipped bit is found by reads, by the scrub, and is told to whoever looks.
//!
//! Owns: flipping bits in a real pool file. Never: accepts wrong bytes as an answer.
//! Invariant: a damaged block gives EIO, an event that names it, and a scrub that says no.

mod common;

use common::{Node, run, until};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const FILE: &str = "[nbd]\nlisten=[\"unix:DIR/nbd.sock\"]\n[[pool]]\nname=\"f\"\npath=\"DIR/pool\"\n";

fn qemu_io(socket: &Path, commands: &[&str]) -> String {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]);
    for c in commands {
        command.args(["-c", c]);
    }
    let said = run(command.arg(format!("nbd+unix:///a?socket={}", socket.display())));
    format!("{}{}", said.out, said.err)
}

/// Flips one bit in the first 4 KiB block of the file that is full of `mark`, and gives its offset.
fn flip(pool: &Path, mark: u8) -> u64 {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(pool).unwrap();
    let mut block = [0; 4096];
    let blocks = file.metadata().unwrap().len() / 4096;
    for at in (0..blocks).map(|n| n * 4096) {
        file.read_exact_at(&mut block, at).unwrap();
        if block.iter().all(|b| *b == mark) {
            file.write_all_at(&[mark ^ 4], at + 1234).unwrap();
            return at;
        }
    }
    panic!("the pattern is not on the drive");
}

#[test]
fn fault_a_flipped_bit_is_an_error_an_event_and_a_no() {
    let mut node = Node::prepare(FILE);
    let pool = node.path("pool");
    node.json(&["pool", "format", pool.to_str().unwrap(), "--size", "64MiB"]);
    node.up();
    node.json(&["volume", "create", "a", "--size", "16MiB"]);
    let socket = node.path("nbd.sock");
    let said = qemu_io(&socket, &["write -P 0xab 0 64k", "write -P 0xcd 1M 64k", "flush"]);
    assert!(!said.contains("failed"), "{said}");
    node.down();
    let at = flip(&pool, 0xab);
    node.up();
    let said = qemu_io(&socket, &["read -P 0xab 0 64k"]);
    assert!(said.contains("Input/output error"), "{said}");
    let said = qemu_io(&socket, &["read -P 0xcd 1M 64k"]);
    assert!(!said.contains("failed"), "{said}");
    let events = node.json(&["node", "events"])["events"].as_array().unwrap().clone();
    assert!(events.iter().any(|e| e["offset_bytes"] == at && e["expected_crc32c"] != e["found_crc32c"]), "{events:?}");
    assert!(node.log().contains("alarm"), "{}", node.log());
    let scrub = node.ask(&["pool", "scrub", "f"]);
    assert_eq!((scrub.code, &scrub.json()["errors"]), (1, &1.into()));
    assert!(node.json(&["pool", "show", "f"])["integrity_errors"].as_u64().unwrap() >= 1);
    until("the metric to tell it", || {
        let metrics = node.json(&["node", "metrics"])["openmetrics"].as_str().unwrap().to_owned();
        metrics.contains("segue_pool_integrity_errors_total{pool=\"f\"}").then_some(())
    });
}
