//! Tenants of one drive through the sockets: limits, reservations, policies that change under load, storms.
//!
//! Owns: what a client of one volume may notice of the others. Never: asserts a time.
//! Invariant: whatever waits is answered, taken back with its connection, or finished by an orderly stop.

mod common;

use common::client::{self, Client, request};
use common::wait_for;
use segue_runtime::{CallError, DriveSpec, ListenAddr, Options, PoolSpec, Runtime, Sharing, SharingState, Tls};
use segue_sched::qos::{PolicyKind, Reason, ShareError};
use segue_types::Share;
use segue_volume::engine::EngineOptions;
use segue_volume::op::{AdminOp, AdminReply, ObservationRule};
use std::path::PathBuf;
use std::time::Duration;

struct Node {
    runtime: Runtime,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

fn node(volumes: &[&str]) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::start(Options::default()).unwrap();
    let drive = DriveSpec::Memory { bytes: 256 << 20 };
    runtime.add_pool(PoolSpec::engine("p", drive, EngineOptions::default())).unwrap();
    let socket = dir.path().join("nbd.sock");
    runtime.listen(&ListenAddr::Unix(socket.clone()), Tls::Off).unwrap();
    for name in volumes {
        let (name, rule) = ((*name).to_owned(), ObservationRule::Flush);
        runtime
            .admin_wait("p", AdminOp::Create { name, size_bytes: 32 << 20, rule, token_sha256: None, encryption: None })
            .unwrap();
    }
    Node { runtime, socket, _dir: dir }
}

impl Node {
    fn client(&self, volume: &str) -> Client {
        Client::open(&self.socket, volume, true)
    }

    fn set(&self, volume: &str, share: Share) -> Result<AdminReply, CallError> {
        self.runtime.admin_wait("p", AdminOp::SetShare { name: volume.to_owned(), share: Some(share) })
    }

    fn state(&self) -> SharingState {
        self.runtime.sharing_wait("p", None).unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Sharing)) {
        let mut sharing = self.state().sharing;
        change(&mut sharing);
        self.runtime.sharing_wait("p", Some(sharing)).unwrap();
    }

    fn queued(&self) -> u64 {
        self.state().drive.queued
    }

    fn stop(self) {
        self.runtime.stop(Duration::from_secs(20)).unwrap();
    }
}

fn reads(client: &mut Client, count: u64) {
    let bytes: Vec<u8> = (0..count).flat_map(|n| request(client::READ, 0, n, n % 512 * 4096, 4096)).collect();
    client.put(&bytes);
}

fn answers(client: &mut Client, count: u64) {
    let mut seen = vec![false; count as usize];
    for _ in 0..count {
        let answer = client.answer(|_| 4096);
        assert_eq!(answer.errno, 0);
        assert!(!std::mem::replace(&mut seen[answer.cookie as usize], true), "answered twice");
    }
}

/// So slow that nothing of it passes while a test runs, but for the first request.
const STUCK: Share =
    Share { reserve_iops: 0, weight: 100, limit_iops: 1, limit_bytes_per_s: 0, burst_ms: 0, latency_target_us: 0 };

#[test]
fn conform_a_limit_holds_back_one_volume_alone_and_is_told() {
    let node = node(&["slow", "fast"]);
    node.set("slow", STUCK).unwrap();
    let (mut slow, mut fast) = (node.client("slow"), node.client("fast"));
    reads(&mut slow, 200);
    wait_for("the limit to hold", || node.queued() >= 190);
    let state = node.state();
    let held = state.volumes.iter().find(|volume| volume.name == "slow").unwrap();
    assert_eq!((held.stats.reason, held.share), (Reason::LimitIops, STUCK));
    reads(&mut fast, 1000);
    answers(&mut fast, 1000);
    assert!(node.queued() >= 190, "the fast one did not free the slow one");
    node.set("slow", Share::default()).unwrap();
    answers(&mut slow, 200);
    node.stop();
}

#[test]
fn conform_settings_survive_their_clients() {
    let node = node(&["a"]);
    node.set("a", STUCK).unwrap();
    for _ in 0..2 {
        let client = node.client("a");
        wait_for("the settings to be in force", || node.state().volumes.iter().any(|v| v.share == STUCK));
        client.disconnect();
        wait_for("the place to be given back", || node.state().volumes.is_empty());
    }
    node.stop();
}

#[test]
fn fault_a_client_that_vanishes_takes_its_waiting_requests_along() {
    let node = node(&["slow"]);
    node.set("slow", STUCK).unwrap();
    let (mut gone, stays) = (node.client("slow"), node.client("slow"));
    reads(&mut gone, 300);
    wait_for("the limit to hold", || node.queued() >= 290);
    drop(gone);
    wait_for("its requests to be taken back", || node.queued() == 0);
    wait_for("its connection to end", || {
        node.state();
        node.runtime.counters()[0].connections == 1
    });
    drop(stays);
    node.stop();
}

#[test]
fn fault_an_orderly_stop_does_not_wait_for_limits() {
    let node = node(&["slow"]);
    node.set("slow", STUCK).unwrap();
    let mut slow = node.client("slow");
    slow.put(&(0..500).flat_map(|n| request(client::FLUSH, 0, n, 0, 0)).collect::<Vec<u8>>());
    wait_for("the limit to hold", || node.queued() >= 490);
    node.stop();
    answers(&mut slow, 500);
}

#[test]
fn conform_policies_change_under_load_and_every_request_is_answered() {
    let node = node(&["a", "b", "c"]);
    let mut clients: Vec<Client> = ["a", "b", "c"].iter().map(|name| node.client(name)).collect();
    for policy in PolicyKind::ALL.into_iter().cycle().take(10) {
        clients.iter_mut().for_each(|client| reads(client, 700));
        node.change(|sharing| sharing.policy = policy);
        node.set("a", Share { weight: 1 + policy as u32, ..Share::default() }).unwrap();
        assert_eq!(node.state().drive.policy, policy);
        clients.iter_mut().for_each(|client| answers(client, 700));
    }
    node.stop();
}

#[test]
fn conform_a_narrow_window_lets_everything_through_in_the_end() {
    let node = node(&["a", "b"]);
    node.change(|sharing| {
        (sharing.governor.target_ns, sharing.governor.window_min, sharing.governor.window_max) = (1000, 100, 100);
    });
    let (mut a, mut b) = (node.client("a"), node.client("b"));
    reads(&mut a, 1000);
    // A large request is cut into pieces that are let through one by one.
    assert_eq!(b.write(0, &vec![7; 4 << 20]), ());
    assert_eq!(b.read(0, 4 << 20), vec![7; 4 << 20]);
    answers(&mut a, 1000);
    node.stop();
}

#[test]
fn conform_a_reservation_the_drive_cannot_keep_is_refused_and_says_why() {
    let node = node(&["a", "b"]);
    node.change(|sharing| sharing.capacity = 1_000_000);
    let reserve = |reserve_iops| Share { reserve_iops, ..Share::default() };
    node.set("a", reserve(6000)).unwrap();
    // Nobody is attached: what is reserved counts all the same.
    let refused = node.set("b", reserve(3001)).unwrap_err();
    let error = ShareError::Admission { asked_iops: 3001, reserved_iops: 6000, capacity_iops: 9000 };
    assert_eq!(refused, CallError::Share(error));
    node.set("b", reserve(3000)).unwrap();
    node.set("a", reserve(6000)).unwrap();
    node.stop();
}

#[test]
fn fault_a_storm_of_connections_is_served_beside_requests() {
    let node = node(&["a"]);
    let mut busy = node.client("a");
    let storm: Vec<Client> = (0..100)
        .map(|_| {
            reads(&mut busy, 50);
            let new = Client::open(&node.socket, "a@ro", true);
            answers(&mut busy, 50);
            new
        })
        .collect();
    assert_eq!(storm.len(), 100);
    drop(storm);
    node.stop();
}
