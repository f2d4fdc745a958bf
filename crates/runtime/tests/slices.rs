//! Slices of one drive on two cores: space goes where it is needed, and nothing is written where it may not be.
//!
//! Owns: the traffic and the checks on the drive after it. Never: reads an engine's mind.
//! Invariant: after an orderly stop the offline check finds nothing wrong, whatever the slices did.

mod common;

use common::client::Client;
use common::wait_for;
use segue_runtime::drive::{SharedDrive, create_sparse};
use segue_runtime::{ListenAddr, Options, Runtime, Tls};
use segue_types::api::ObservationRule;
use segue_volume::engine::{Engine, EngineOptions, FormatOptions};
use segue_volume::op::{AdminOp, AdminReply};
use std::path::Path;
use std::time::Duration;

const DRIVE_BYTES: u64 = 256 << 20;
const VOLUME_BYTES: u64 = 192 << 20;
const CHUNK: usize = 256 << 10;

struct Node {
    runtime: Runtime,
    drive: std::sync::Arc<SharedDrive>,
}

fn format(path: &Path, slices: u64) {
    create_sparse(path, DRIVE_BYTES).unwrap();
    let mut file = segue_runtime::drive::FileDrive::open(path).unwrap();
    Engine::format_sliced(&mut file, &FormatOptions { uuid: [7; 16], force: false }, slices).unwrap();
}

fn start(path: &Path, socket: &Path) -> Node {
    let drive = SharedDrive::open(path).unwrap();
    let runtime = Runtime::start(Options { cores: 2, ..Options::default() }).unwrap();
    for slice in 0..drive.slices() {
        runtime.add_slice(&format!("p/{slice}"), &drive, slice, EngineOptions::default()).unwrap();
    }
    runtime.listen(&ListenAddr::Unix(socket.to_owned()), Tls::Off).unwrap();
    Node { runtime, drive }
}

impl Node {
    fn create(&self, pool: &str, name: &str) {
        let rule = ObservationRule::Flush;
        let op =
            AdminOp::Create { name: name.into(), size_bytes: VOLUME_BYTES, rule, token_sha256: None, encryption: None };
        assert!(matches!(self.runtime.admin_wait(pool, op), Ok(AdminReply::Volume(_))));
    }

    fn stop(self) {
        self.runtime.stop(Duration::from_secs(20)).unwrap();
    }
}

fn check(path: &Path) {
    let mut file = segue_runtime::drive::FileDrive::open(path).unwrap();
    let report = segue_volume::check(&mut file).unwrap();
    assert!(report.is_clean() && report.leaked_blocks == 0, "{report:?}");
}

/// Fills a range of the volume with a byte, in large writes.
fn fill(client: &mut Client, range: std::ops::Range<u64>, byte: u8) {
    for at in range.step_by(CHUNK) {
        client.write(at, &vec![byte; CHUNK]);
    }
}

fn expect(client: &mut Client, range: std::ops::Range<u64>, byte: u8) {
    for at in range.step_by(CHUNK) {
        assert!(client.read(at, CHUNK as u32).iter().all(|b| *b == byte), "at {at}");
    }
}

#[test]
fn conform_space_goes_from_slice_to_slice() {
    let dir = tempfile::tempdir().unwrap();
    let (path, socket) = (dir.path().join("drive"), dir.path().join("nbd.sock"));
    format(&path, 2);
    let node = start(&path, &socket);
    assert_eq!(node.runtime.pools()[0].core, 0);
    assert_eq!(node.runtime.pools()[1].core, 1);
    node.create("p/0", "a");
    node.create("p/1", "b");
    let (mut a, mut b) = (Client::open(&socket, "a", false), Client::open(&socket, "b", false));
    // More than half of the drive: a static partition would refuse it.
    let most = 160 << 20;
    fill(&mut a, 0..most, 1);
    fill(&mut b, 0..16 << 20, 2);
    expect(&mut a, 0..most, 1);
    // The drive is full for b, until a gives back.
    let full = b.call(common::client::WRITE, 0, 0, 4096, &[3; 4096]);
    assert_eq!(full.errno, 0, "an overwrite goes on");
    assert_eq!(a.call(common::client::TRIM, 0, 0, most as u32, &[]).errno, 0);
    assert_eq!(a.call(common::client::FLUSH, 0, 0, 0, &[]).errno, 0);
    fill(&mut b, 16 << 20..most, 4);
    expect(&mut b, 16 << 20..most, 4);
    a.disconnect();
    b.disconnect();
    node.stop();
    check(&path);
    // What each has is in its journal: the next process serves the same.
    let node = start(&path, &socket);
    let mut b = Client::open(&socket, "b", false);
    expect(&mut b, 16 << 20..most, 4);
    b.disconnect();
    node.stop();
    check(&path);
}

#[test]
fn fault_a_full_shared_drive_refuses_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let (path, socket) = (dir.path().join("drive"), dir.path().join("nbd.sock"));
    format(&path, 3);
    let node = start(&path, &socket);
    node.create("p/0", "a");
    node.create("p/2", "b");
    let (mut a, mut b) = (Client::open(&socket, "a", false), Client::open(&socket, "b", false));
    fill(&mut a, 0..96 << 20, 1);
    let mut at = 0;
    let errno = loop {
        let answer = b.call(common::client::WRITE, 0, at, CHUNK as u32, &vec![2; CHUNK]);
        if answer.errno != 0 {
            break answer.errno;
        }
        at += CHUNK as u64;
        assert!(at < VOLUME_BYTES, "the drive cannot hold both volumes");
    };
    assert_eq!(errno, 28, "no space is told as such");
    assert_eq!(node.drive.home_free_bytes(), 0);
    expect(&mut b, 0..at, 2);
    assert_eq!(a.call(common::client::TRIM, 0, 0, 64 << 20, &[]).errno, 0);
    assert_eq!(a.call(common::client::FLUSH, 0, 0, 0, &[]).errno, 0);
    wait_for("b to get what a gave back", || {
        b.call(common::client::WRITE, 0, at, CHUNK as u32, &vec![3; CHUNK]).errno == 0
    });
    a.disconnect();
    b.disconnect();
    node.stop();
    check(&path);
}
