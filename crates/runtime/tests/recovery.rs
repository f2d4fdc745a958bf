//! Panics in the real world: clients of a pool whose engine fails lose nothing, and clients of others notice nothing.
//!
//! Owns: what a client sees of each level of recovery. Never: asserts on timing, or repeats the engine's own tests.
//! Invariant: after every body the pool's memory, attachments and connections are given back.

mod common;

use common::client::{self, Client};
use common::{WORLDS, World};
use segue_runtime::{DriveSpec, ListenAddr, Options, PoolSpec, Runtime, Tls, drive, format_drive};
use segue_types::{FaultKind, RecoveryLevel, TaskKind};
use segue_volume::engine::EngineOptions;
use segue_volume::fault::Faults;
use segue_volume::op::{AdminOp, AdminReply, ObservationRule};
use std::path::Path;
use std::time::Duration;

const BLOCKS: u64 = 64;

struct Node {
    runtime: Runtime,
    dir: tempfile::TempDir,
}

fn drive_in(world: World, dir: &Path, pool: &str) -> DriveSpec {
    if !world.file {
        return DriveSpec::Memory { bytes: 64 << 20 };
    }
    let spec = DriveSpec::File { path: dir.join(pool) };
    if !dir.join(pool).exists() {
        drive::create_sparse(&dir.join(pool), 64 << 20).unwrap();
        format_drive(&spec, false).unwrap();
    }
    spec
}

impl Node {
    /// Two pools, each with one volume of its name.
    fn new(world: World) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let node = Node { runtime: Node::start(world, dir.path()), dir };
        for (pool, volume) in [("p", "v"), ("q", "w")] {
            let (name, rule) = (volume.to_owned(), ObservationRule::Flush);
            let op = AdminOp::Create { name, size_bytes: 16 << 20, rule, token_sha256: None, encryption: None };
            node.runtime.admin_wait(pool, op).unwrap();
        }
        node
    }

    fn start(world: World, dir: &Path) -> Runtime {
        let runtime = Runtime::start(Options { io: world.io, ..Options::default() }).unwrap();
        for pool in ["p", "q"] {
            runtime.add_pool(PoolSpec::engine(pool, drive_in(world, dir, pool), EngineOptions::default())).unwrap();
        }
        runtime.listen(&ListenAddr::Unix(dir.join("nbd.sock")), Tls::Off).unwrap();
        runtime
    }

    fn client(&self, volume: &str) -> Client {
        Client::open(&self.dir.path().join("nbd.sock"), volume, true)
    }

    /// Returns when the core has taken every message sent before.
    fn barrier(&self) {
        assert!(self.runtime.admin_wait("q", AdminOp::PoolStatus).is_ok());
    }

    fn recoveries(&self, level: RecoveryLevel) -> u64 {
        let of_core = |c: segue_runtime::Snapshot| c.recoveries.iter().map(|kinds| kinds[level as usize]).sum::<u64>();
        self.runtime.counters().into_iter().map(of_core).sum()
    }
}

fn all_kinds(seed: u64, kind: FaultKind, one_in: u64) -> Faults {
    let mut faults = Faults::seeded(seed, kind);
    TaskKind::ALL.into_iter().filter(|task| *task != TaskKind::Restart).for_each(|task| faults.set(task, one_in));
    faults
}

/// Writes and reads with panics of all kinds; every request succeeds, and what was written last is read.
#[test]
fn fault_panics_of_every_kind_cost_no_request() {
    for world in WORLDS {
        let node = Node::new(world);
        let mut clients = [node.client("v"), node.client("w")];
        node.runtime.inject(&all_kinds(5, FaultKind::Panic, 40));
        let mut wrote = [[0u8; BLOCKS as usize]; 2];
        for round in 0..1200u64 {
            let (at, block) = ((round % 2) as usize, round * 7919 % BLOCKS);
            let value = (round % 250) as u8 + 1;
            if round % 3 != 2 {
                clients[at].write(block * 4096, &[value; 4096]);
                wrote[at][block as usize] = value;
            } else {
                let data = clients[at].read(block * 4096, 4096);
                assert!(data == [wrote[at][block as usize]; 4096], "{world:?} round {round}");
            }
            if round % 31 == 0 {
                assert_eq!(clients[at].call(client::FLUSH, 0, 0, 0, &[]).errno, 0);
            }
            if round % 97 == 0 {
                let pool = ["p", "q"][at];
                assert_eq!(node.runtime.admin_wait(pool, AdminOp::Checkpoint), Ok(AdminReply::Done));
            }
        }
        node.runtime.inject(&Faults::OFF);
        for (client, wrote) in clients.iter_mut().zip(&wrote) {
            let data = client.read(0, BLOCKS as u32 * 4096);
            for (block, value) in data.chunks(4096).zip(wrote) {
                assert!(block == [*value; 4096]);
            }
        }
        let (tasks, engines) = (node.recoveries(RecoveryLevel::Task), node.recoveries(RecoveryLevel::Engine));
        assert!(tasks > 10 && engines > 10, "{world:?}: {tasks} tasks and {engines} engines recovered");
        assert_eq!(node.recoveries(RecoveryLevel::Pool) + node.recoveries(RecoveryLevel::Connection), 0);
        let told = node.runtime.take_recoveries();
        assert_eq!(told.iter().map(|t| t.count).sum::<u64>(), tasks + engines, "{told:?}");
        clients.into_iter().for_each(Client::disconnect);
        node.runtime.stop(Duration::from_secs(20)).unwrap();
        assert_eq!(node.runtime.counters()[0].mem_used_bytes, 0, "{world:?}");
        if world.file {
            let runtime = Node::start(world, node.dir.path());
            let mut client = Client::open(&node.dir.path().join("nbd.sock"), "v", false);
            let data = client.read(0, BLOCKS as u32 * 4096);
            assert!(data.chunks(4096).zip(&wrote[0]).all(|(block, value)| block == [*value; 4096]));
            client.disconnect();
            runtime.stop(Duration::from_secs(20)).unwrap();
        }
    }
}

/// A bug in a session: its connection is cut, and no other.
#[test]
fn fault_a_panicking_session_loses_its_own_connection_only() {
    for world in WORLDS {
        let node = Node::new(world);
        let mut other = node.client("w");
        other.write(0, &[1; 4096]);
        let mut victim = node.client("v");
        victim.write(0, &[2; 4096]);
        node.runtime.inject(&Faults::at_point(1, FaultKind::Invariant));
        // Each engine has a fault of its own: that of the other pool strikes now, and what was asked is answered.
        node.barrier();
        victim.put(&client::request(client::READ, 0, 1, 0, 4096));
        assert!(victim.closed(), "{world:?}");
        node.runtime.inject(&Faults::OFF);
        node.barrier();
        assert!(other.read(0, 4096) == [1; 4096]);
        let mut again = node.client("v");
        assert!(again.read(0, 4096) == [2; 4096]);
        assert_eq!(node.recoveries(RecoveryLevel::Connection), 1);
        again.disconnect();
        other.disconnect();
        node.runtime.stop(Duration::from_secs(20)).unwrap();
        assert_eq!(node.runtime.counters()[0].mem_used_bytes, 0, "{world:?}");
    }
}

/// An engine that cannot be restarted: its pool answers errors and says so, the other goes on, and the stop is in order.
#[test]
fn fault_a_pool_that_cannot_restart_takes_nobody_along() {
    for world in WORLDS {
        let node = Node::new(world);
        let (mut v, mut w) = (node.client("v"), node.client("w"));
        v.write(0, &[1; 4096]);
        w.write(0, &[2; 4096]);
        let mut faults = Faults::seeded(1, FaultKind::Invariant);
        faults.set(TaskKind::Write, 1);
        faults.set(TaskKind::Restart, 1);
        node.runtime.inject(&faults);
        node.barrier();
        let failed = v.call(client::WRITE, 0, 0, 4096, &[3; 4096]).errno;
        node.runtime.inject(&Faults::OFF);
        node.barrier();
        assert_eq!(failed, 5, "{world:?}");
        assert_eq!(v.call(client::READ, 0, 0, 4096, &[]).errno, 5);
        w.write(4096, &[4; 4096]);
        assert!(w.read(0, 4096) == [2; 4096]);
        assert_eq!(node.recoveries(RecoveryLevel::Pool), 1);
        let poisoned = |a: &segue_runtime::PoolAlarm| a.pool == "p";
        assert!(node.runtime.take_alarms().iter().any(poisoned));
        v.disconnect();
        w.disconnect();
        node.runtime.stop(Duration::from_secs(20)).unwrap();
    }
}
