//! QEMU's tools judge the server: qemu-img converts, compares and maps; qemu-io writes and verifies patterns.
//!
//! Owns: what QEMU must see. Never: asserts on timing.
//! Invariant: every test ends with a clean scrub and a clean offline check.

mod judge;

use judge::{DRIVES, Drive, Node, judge, judge_refuses, noise_file};

#[test]
fn judge_qemu_img_converts_and_compares() {
    for drive in DRIVES {
        let node = Node::start(drive, "512MiB");
        node.create("vol", "64MiB");
        let raw = node.path("raw");
        noise_file(&raw, 24 << 20, 3);
        std::fs::OpenOptions::new().write(true).open(&raw).unwrap().set_len(64 << 20).unwrap();
        let (raw, uri) = (raw.to_str().unwrap().to_owned(), node.uri("vol"));
        judge("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "--target-is-zero", &raw, &uri]);
        judge("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, &uri]);

        let qcow = node.path("back.qcow2").to_str().unwrap().to_owned();
        judge("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &qcow]);
        judge("qemu-img", &["check", &qcow]);
        judge("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &raw, &qcow]);
        node.finish();
    }
}

#[test]
fn judge_qemu_img_maps_data_and_holes() {
    let node = Node::start(Drive::Memory, "256MiB");
    node.create("vol", "32MiB");
    let uri = node.uri("vol");
    judge("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 2M", "-c", "write -P 8 16M 64k", "-c", "flush", &uri]);
    let map: serde_json::Value =
        serde_json::from_str(&judge("qemu-img", &["map", "-f", "raw", "--output=json", &uri])).unwrap();
    let data: Vec<(u64, u64)> = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|run| run["data"] == true)
        .map(|run| (run["start"].as_u64().unwrap(), run["length"].as_u64().unwrap()))
        .collect();
    assert_eq!(data, [(1 << 20, 2 << 20), (16 << 20, 64 << 10)]);
    node.finish();
}

#[test]
fn judge_qemu_io_patterns_hold() {
    for drive in DRIVES {
        let mut node = Node::start(drive, "256MiB");
        node.create("vol", "32MiB");
        let uri = node.uri("vol");
        let io = |commands: &[&str]| {
            let mut args = vec!["-f", "raw", "-d", "unmap", "-t", "writeback"];
            args.extend(commands.iter().flat_map(|c| ["-c", *c]));
            args.push(&uri);
            let words = judge("qemu-io", &args);
            assert!(!words.contains("verification failed"), "{words}");
        };
        io(&["write -P 0x11 0 4M", "write -f -P 0x22 1M 64k", "read -P 0x11 0 1M", "read -P 0x22 1M 64k", "flush"]);
        io(&["write -P 0x33 512 1k", "read -P 0x11 0 512", "read -P 0x33 512 1k", "read -P 0x11 1536 2560"]);
        io(&["discard 2M 1M", "read -P 0 2M 1M", "read -P 0x11 3M 1M", "write -z 64k 64k", "read -P 0 64k 64k"]);
        io(&["write -z -u 128k 64k", "read -P 0 128k 64k", "read -P 0x11 192k 64k"]);
        io(&[
            "aio_write -P 0x44 8M 1M",
            "aio_write -P 0x55 9M 1M",
            "aio_flush",
            "read -P 0x44 8M 1M",
            "read -P 0x55 9M 1M",
        ]);
        io(&["write -P 0x66 31M 1M", "flush", "read -P 0x66 31M 1M", "read -P 0 16M 8M"]);
        if drive == Drive::File {
            node.crash();
            node.check_offline();
            node.boot();
            io(&["read -P 0x66 31M 1M", "read -P 0x44 8M 1M", "read -P 0 2M 1M", "read -P 0x22 1M 64k"]);
        }
        node.finish();
    }
}

#[test]
fn judge_qemu_io_is_refused_what_is_not_there() {
    let node = Node::start(Drive::Memory, "256MiB");
    node.create("vol", "32MiB");
    judge_refuses("qemu-io", &["-f", "raw", "-c", "read 0 4k", &node.uri("nobody")]);
    judge_refuses("qemu-io", &["-f", "raw", "-c", "write 0 4k", &node.uri("vol@ro")]);
    judge("qemu-io", &["-f", "raw", "-r", "-c", "read -P 0 0 4k", &node.uri("vol@ro")]);
    node.finish();
}
