//! Pools go from core to core under load, and no client learns of it.
//!
//! Owns: hand-overs beside every kind of traffic. Never: asserts how long one takes (a benchmark measures that).
//! Invariant: what a client wrote before a hand-over it reads after it, on the connection it had.

mod common;

use common::client::{self, Client, request};
use common::{Served, VOLUME, VOLUME_BYTES, WORLDS, wait_for};
use segue_runtime::{MovePoolError, Options};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn two_cores() -> Options {
    Options { cores: 2, mem_bytes: 32 << 20, ..Options::default() }
}

/// Writes and reads its own part of the volume, many requests at a time, until told to stop. Counts its rounds.
fn verify_load(path: &Path, part: u64, structured: bool, over: &AtomicBool, rounds: &AtomicU64) {
    let mut client = Client::open(path, VOLUME, structured);
    let base = part * (8 << 20);
    // Whole blocks: the tiny engine does not order overlapping partial ones.
    let sizes = [4096u32, 8192, 12288, 65536, 524_288];
    let mut round = 0u64;
    while !over.load(Ordering::Relaxed) {
        let len = sizes[round as usize % sizes.len()];
        // Pieces of two large replies may come interleaved, which this client does not sort out.
        let depth = if len > 65536 { 1 } else { 12u64 };
        let byte = |n: u64| (round * 31 + n * 7 + part) as u8;
        for n in 0..depth {
            client.put(&request(client::WRITE, 0, n, base + n * len as u64, len));
            client.put(&vec![byte(n); len as usize]);
        }
        for _ in 0..depth {
            assert_eq!(client.answer(|_| 0).errno, 0);
        }
        for n in 0..depth {
            client.put(&request(client::READ, 0, n, base + n * len as u64, len));
        }
        for _ in 0..depth {
            let answer = client.answer(|_| len as usize);
            assert_eq!(answer.errno, 0);
            let whole: usize = answer.data.iter().map(|(_, data)| data.len()).sum();
            assert_eq!(whole, len as usize);
            let want = byte(answer.cookie);
            assert!(answer.data.iter().all(|(_, data)| data.iter().all(|b| *b == want)), "part {part} round {round}");
        }
        round += 1;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    client.disconnect();
}

#[test]
fn conform_clients_do_not_notice_a_hand_over() {
    for world in WORLDS {
        let served = Served::new(world, two_cores());
        let (over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let loads: Vec<_> = (0..3)
            .map(|part| {
                let (over, rounds, path) = (over.clone(), rounds.clone(), served.socket.clone());
                std::thread::spawn(move || verify_load(&path, part, part % 2 == 0, &over, &rounds))
            })
            .collect();
        let mut moves = 0;
        while moves < 100 {
            let before = rounds.load(Ordering::Relaxed);
            let to = (moves + 1) % 2;
            let report = served.runtime.move_pool_wait("p", to).unwrap();
            assert_eq!((report.from, report.to), (1 - to, to), "{world:?}");
            assert_eq!(served.runtime.pools()[0].core, to);
            if moves % 10 == 0 {
                // Whoever comes now finds the pool where it is.
                let mut late = Client::open(&served.socket, VOLUME, false);
                late.write(VOLUME_BYTES - 4096, &[moves as u8; 4096]);
                assert_eq!(late.read(VOLUME_BYTES - 4096, 4096), [moves as u8; 4096]);
                late.disconnect();
            }
            wait_for("the load to go on", || rounds.load(Ordering::Relaxed) > before);
            moves += 1;
        }
        over.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().unwrap();
        }
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_stuck_clients_travel_too() {
    for world in WORLDS {
        let served = Served::new(world, two_cores());
        // One does not take its replies, one owes the rest of a payload, one is in the middle of a header.
        let mut deaf = Client::open(&served.socket, VOLUME, true);
        for n in 0..64 {
            deaf.put(&request(client::READ, 0, n, 0, 256 << 10));
        }
        let mut owing = Client::open(&served.socket, VOLUME, false);
        owing.put(&request(client::WRITE, 0, 5, 8192, 65536));
        owing.put(&[7; 30_000]);
        let mut halved = Client::open(&served.socket, VOLUME, false);
        let head = request(client::READ, 0, 6, 8192, 4096);
        halved.put(&head[..11]);
        for n in 0..21 {
            served.runtime.move_pool_wait("p", (n + 1) % 2).unwrap();
        }
        owing.put(&[7; 65536 - 30_000]);
        assert_eq!(owing.answer(|_| 0).errno, 0, "{world:?}");
        halved.put(&head[11..]);
        assert_eq!(halved.answer(|_| 4096).data, [(0, vec![7; 4096])], "{world:?}");
        for _ in 0..64 {
            assert_eq!(deaf.answer(|_| 256 << 10).errno, 0);
        }
        for client in [deaf, owing, halved] {
            client.disconnect();
        }
        served.settle();
        served.stop();
    }
}

#[test]
fn conform_a_stop_in_the_middle_of_hand_overs_is_orderly() {
    for world in WORLDS {
        for _ in 0..10 {
            let served = Served::new(world, two_cores());
            let mut client = Client::open(&served.socket, VOLUME, true);
            client.write(0, &[1; 4096]);
            let runtime = served.runtime.clone();
            let mover = std::thread::spawn(move || {
                let mut to = 0;
                loop {
                    to = 1 - to;
                    match runtime.move_pool_wait("p", to) {
                        Ok(_) | Err(MovePoolError::Moving) => {}
                        Err(error) => return error,
                    }
                }
            });
            served.stop();
            assert_eq!(mover.join().unwrap(), MovePoolError::Stopped);
        }
    }
}

#[test]
fn conform_wrong_moves_are_refused() {
    let served = Served::new(WORLDS[0], two_cores());
    assert_eq!(served.runtime.move_pool_wait("q", 0), Err(MovePoolError::NoPool));
    assert_eq!(served.runtime.move_pool_wait("p", 2), Err(MovePoolError::NoCore { to: 2, last: 1 }));
    assert_eq!(served.runtime.move_pool_wait("p", 0).unwrap().stall_ns, 0);
    served.stop();
}
