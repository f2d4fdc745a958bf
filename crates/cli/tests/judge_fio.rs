//! fio judges the server: its nbd engine writes blocks with checksums and verifies them, also after a crash of the node.
//!
//! Owns: fio's jobs. Never: looks at speed.
//! Invariant: every test ends with a clean scrub and a clean offline check.

mod judge;

use judge::{DRIVES, Drive, Node, judge};

/// Runs one job on the volume `vol`; unless the job says otherwise, blocks carry a CRC32C and are read back.
fn fio(node: &Node, job: &[&str]) {
    let (uri, aux) = (format!("--uri={}", node.uri("vol")), format!("--aux-path={}", node.path("").display()));
    let common = ["--name=judge", "--ioengine=nbd", "--verify_fatal=1", "--size=64m", &uri, &aux];
    let check = if job.iter().any(|a| a.starts_with("--verify=")) { "--verify_async=0" } else { "--verify=crc32c" };
    judge("fio", &[&common[..], &[check], job].concat());
}

#[test]
fn judge_fio_verifies_what_it_wrote_in_mixed_sizes() {
    for drive in DRIVES {
        let node = Node::start(drive, "512MiB");
        node.create("vol", "64MiB");
        fio(&node, &["--rw=randwrite", "--bsrange=4k-128k", "--iodepth=16", "--verify_backlog=64", "--randseed=1"]);
        fio(&node, &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--fsync=64", "--io_size=32m", "--randseed=2"]);
        node.finish();
    }
}

#[test]
fn judge_fio_verifies_sectors_then_trims() {
    let node = Node::start(Drive::File, "512MiB");
    node.create("vol", "64MiB");
    fio(&node, &["--rw=randwrite", "--bs=512", "--iodepth=8", "--io_size=4m", "--randseed=3"]);
    fio(&node, &["--rw=randwrite", "--bsrange=512-16k", "--bs_unaligned=0", "--iodepth=8", "--io_size=16m"]);
    fio(&node, &["--rw=randtrim", "--bs=16k", "--iodepth=8", "--io_size=16m", "--do_verify=0"]);
    node.finish();
}

#[test]
fn judge_fio_verifies_after_a_killed_node() {
    let mut node = Node::start(Drive::File, "512MiB");
    node.create("vol", "64MiB");
    // A checksum proves a block whole; a pattern that differs from round to round proves it new.
    for check in [&["--verify=crc32c"][..], &["--verify=pattern", "--verify_pattern=0x5e%o"]] {
        let job = [&["--rw=randwrite", "--bs=4k", "--iodepth=32"], check].concat();
        fio(&node, &[&job[..], &["--end_fsync=1", "--do_verify=0"]].concat());
        node.crash();
        node.check_offline();
        node.boot();
        fio(&node, &[&job[..], &["--verify_only=1"]].concat());
    }
    node.finish();
}
