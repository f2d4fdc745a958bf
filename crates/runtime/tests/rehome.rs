//! Volumes go from pool to pool under load, and no client learns of it.
//!
//! Owns: moves beside traffic on real engines. Never: asserts how long one takes (`segue drill move` measures that).
//! Invariant: what a client wrote before a move it reads after it, on the connection it had.

mod common;

use common::client::{self, Client, request};
use common::{WORLDS, World, wait_for};
use segue_runtime::{
    DriveSpec, FoundMove, ListenAddr, MoveError, Options, PoolSpec, Runtime, Tls, drive, find_moves, format_drive,
};
use segue_types::MoveId;
use segue_volume::engine::EngineOptions;
use segue_volume::migrate::Ending;
use segue_volume::op::{AdminError, AdminOp, AdminReply, ObservationRule};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const POOL_BYTES: u64 = 256 << 20;
const PART_BYTES: u64 = 8 << 20;

/// Two pools on two cores, and a volume in the first.
fn serve(world: World, dir: &Path) -> Runtime {
    let runtime = Runtime::start(Options { io: world.io, cores: 2, ..Options::default() }).unwrap();
    for name in ["a", "b"] {
        let spec = if world.file {
            let path = dir.join(name);
            let spec = DriveSpec::File { path: path.clone() };
            if !path.exists() {
                drive::create_sparse(&path, POOL_BYTES).unwrap();
                format_drive(&spec, false).unwrap();
            }
            spec
        } else {
            DriveSpec::Memory { bytes: POOL_BYTES }
        };
        runtime.add_pool(PoolSpec::engine(name, spec, EngineOptions::default())).unwrap();
    }
    runtime.listen(&ListenAddr::Unix(dir.join("nbd.sock")), Tls::Off).unwrap();
    runtime
}

fn create(runtime: &Runtime) {
    let (name, rule) = ("vol".into(), ObservationRule::Flush);
    let op = AdminOp::Create { name, size_bytes: 64 << 20, rule, token_sha256: None, encryption: None };
    runtime.admin_wait("a", op).unwrap();
}

fn move_to(runtime: &Runtime, id: u64, from: &str, to: &str) -> Ending {
    runtime.plan_move("vol", from, to, MoveId(id), 0).unwrap().spawn().wait()
}

/// Writes and reads its own part of the volume, several requests at a time, until told to stop.
fn load(path: &Path, part: u64, over: &AtomicBool, rounds: &AtomicU64) {
    let mut client = Client::open(path, "vol", part.is_multiple_of(2));
    let base = part * PART_BYTES;
    let mut round = 0u64;
    while !over.load(Ordering::Relaxed) {
        let len = [4096u32, 12288, 65536, 524_288][round as usize % 4];
        let depth = if len > 65536 { 1 } else { 8u64 };
        let byte = |n: u64| (round * 31 + n * 7 + part + 1) as u8;
        for n in 0..depth {
            client.put(&request(client::WRITE, 0, n, base + n * len as u64, len));
            client.put(&vec![byte(n); len as usize]);
        }
        for _ in 0..depth {
            assert_eq!(client.answer(|_| 0).errno, 0, "part {part} round {round}");
        }
        for n in 0..depth {
            client.put(&request(client::READ, 0, n, base + n * len as u64, len));
        }
        for _ in 0..depth {
            let answer = client.answer(|_| len as usize);
            assert_eq!(answer.errno, 0, "part {part} round {round}");
            let want = byte(answer.cookie);
            assert!(answer.data.iter().all(|(_, data)| data.iter().all(|b| *b == want)), "part {part} round {round}");
        }
        round += 1;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    client.disconnect();
}

#[test]
fn conform_clients_do_not_notice_a_move() {
    for world in WORLDS {
        let dir = tempfile::tempdir().unwrap();
        let runtime = serve(world, dir.path());
        create(&runtime);
        let socket = dir.path().join("nbd.sock");
        let (over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let loads: Vec<_> = (0..3)
            .map(|part| {
                let (over, rounds, socket) = (over.clone(), rounds.clone(), socket.clone());
                std::thread::spawn(move || load(&socket, part, &over, &rounds))
            })
            .collect();
        for n in 0..6 {
            let before = rounds.load(Ordering::Relaxed);
            let (from, to) = if n % 2 == 0 { ("a", "b") } else { ("b", "a") };
            assert_eq!(move_to(&runtime, n + 1, from, to), Ending::Moved, "{world:?} move {n}");
            let show = AdminOp::Show { name: "vol".into() };
            assert!(runtime.admin_wait(from, show.clone()).is_err() && runtime.admin_wait(to, show).is_ok());
            wait_for("the load to go on", || rounds.load(Ordering::Relaxed) > before + 3);
        }
        over.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().unwrap();
        }
        // Whoever comes now finds the volume where it is.
        let mut late = Client::open(&socket, "vol", false);
        late.write(40 << 20, &[9; 4096]);
        assert_eq!(late.read(40 << 20, 4096), [9; 4096]);
        late.disconnect();
        runtime.stop(Duration::from_secs(20)).unwrap();
    }
}

#[test]
fn conform_an_idle_volume_moves_and_wrong_moves_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = serve(WORLDS[0], dir.path());
    create(&runtime);
    assert_eq!(runtime.plan_move("vol", "a", "a", MoveId(1), 0).err(), Some(MoveError::SamePool));
    assert!(matches!(runtime.plan_move("vol", "a", "c", MoveId(1), 0), Err(MoveError::Pool { .. })));
    let missing = runtime.plan_move("none", "a", "b", MoveId(1), 0).unwrap().spawn().wait();
    assert_eq!(missing, Ending::Failed(AdminError::NotFound));
    assert_eq!(move_to(&runtime, 2, "a", "b"), Ending::Moved);
    let snapshot = AdminOp::Snapshot { name: "vol".into(), to: "snap".into() };
    runtime.admin_wait("b", snapshot).unwrap();
    let snap = runtime.plan_move("snap", "b", "a", MoveId(3), 0).unwrap().spawn().wait();
    assert!(matches!(snap, Ending::Failed(AdminError::Invalid(_))), "{snap:?}");
    runtime.stop(Duration::from_secs(20)).unwrap();
}

/// A node that stops in the middle finds the move again and goes on.
#[test]
fn conform_a_stopped_move_goes_on() {
    let world = *WORLDS.iter().find(|world| world.file).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let runtime = serve(world, dir.path());
    create(&runtime);
    let mut client = Client::open(&socket, "vol", false);
    for n in 0..32u64 {
        client.write(n << 20, &vec![n as u8 + 1; 1 << 20]);
    }
    client.disconnect();
    // Slow enough to be caught in the middle.
    let handle = runtime.plan_move("vol", "a", "b", MoveId(7), 4 << 20).unwrap().spawn();
    wait_for("the copy to begin", || handle.status().progress.copied_bytes > 1 << 20);
    runtime.stop(Duration::from_secs(20)).unwrap();
    assert!(matches!(handle.wait(), Ending::Stopped(_)));
    let runtime = serve(world, dir.path());
    let mut found = find_moves(&runtime, 0).unwrap();
    assert_eq!(found.len(), 1);
    let Some(FoundMove::Ready(mut run)) = found.pop() else { panic!("the move can go on") };
    run.settle_doubt();
    assert_eq!(run.spawn().wait(), Ending::Moved);
    assert!(find_moves(&runtime, 0).unwrap().is_empty());
    let Ok(AdminReply::Volume(state)) = runtime.admin_wait("b", AdminOp::Show { name: "vol".into() }) else {
        panic!("the volume is in its new pool")
    };
    assert_eq!(state.own_bytes, 32 << 20);
    let mut client = Client::open(&socket, "vol@ro", false);
    for n in 0..32u64 {
        assert_eq!(client.read(n << 20, 1 << 20), vec![n as u8 + 1; 1 << 20]);
    }
    client.disconnect();
    runtime.stop(Duration::from_secs(20)).unwrap();
}
