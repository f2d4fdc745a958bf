//! Clients that lie, stall and vanish: others are served, and nothing of them stays.
//!
//! Owns: what a hostile or dying client may cost. Never: asserts on timing.
//! Invariant: after every body, all I/O memory, attachments and connections are given back.

mod common;

use common::client::{self, Client, option, request};
use common::{Served, VOLUME, VOLUME_BYTES, WORLDS, wait_for};
use segue_runtime::Options;
use std::io::Write;
use std::time::Duration;

fn go(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&[0, 0]);
    option(7, &data)
}

/// A whole honest conversation, as bytes of the client.
fn conversation() -> Vec<u8> {
    let mut bytes = option(8, &[]);
    bytes.extend(go(VOLUME));
    bytes.extend(request(client::WRITE, 0, 1, 512, 9 * 4096));
    bytes.extend(vec![7; 9 * 4096]);
    bytes.extend(request(client::WRITE, 1, 2, 0, 700 << 10));
    bytes.extend(vec![8; 700 << 10]);
    bytes.extend(request(client::READ, 0, 3, 0, 2 << 20));
    bytes.extend(request(client::FLUSH, 0, 4, 0, 0));
    bytes.extend(request(client::TRIM, 0, 5, 0, 1 << 20));
    bytes.extend(request(client::READ, 0, 6, 4096, 4096));
    bytes
}

#[test]
fn fault_a_client_that_vanishes_anywhere_leaves_nothing() {
    let bytes = conversation();
    for world in WORLDS {
        let served = Served::new(world, Options::default());
        let cuts = (0..bytes.len()).filter(|at| at % 40_009 == 0 || *at < 200 && at % 7 == 0);
        for at in cuts.chain([bytes.len()]) {
            for orderly in [false, true] {
                let mut client = Client::raw(&served.socket);
                // The server may already have dropped us: that is an end like any other.
                let _ = client.socket.write_all(&bytes[..at]);
                if orderly {
                    client.half_close();
                    assert!(client.closed());
                }
            }
        }
        served.settle();
        let mut honest = Client::open(&served.socket, VOLUME, true);
        honest.write(0, &[1; 4096]);
        honest.disconnect();
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_noise_ends_the_connection_and_nothing_else() {
    for world in WORLDS {
        let served = Served::new(world, Options::default());
        let mut honest = Client::open(&served.socket, VOLUME, false);
        let mut x = 0x1234_5678_9abc_def1u64;
        for round in 0..40 {
            let mut noise: Vec<u8> = (0..4096)
                .map(|_| {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (x >> 33) as u8
                })
                .collect();
            let mut client = if round % 2 == 0 {
                Client::raw(&served.socket)
            } else {
                noise[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
                Client::open(&served.socket, VOLUME, round % 4 == 1)
            };
            let _ = client.socket.write_all(&noise);
            client.half_close();
            assert!(client.closed(), "{world:?} round {round}");
            honest.write(0, &[round as u8; 512]);
        }
        for (offset, len) in [(0, 0xffff_fe00u32), (u64::MAX - 511, 512), (VOLUME_BYTES, 512), (1, 512)] {
            assert_eq!(honest.call(client::READ, 0, offset, len, &[]).errno, 22);
        }
        honest.disconnect();
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_a_client_that_never_reads_does_not_hold_up_others() {
    let options = Options { mem_bytes: 24 << 20, connection_bytes_max: 2 << 20, ..Options::default() };
    for world in WORLDS {
        let served = Served::new(world, options.clone());
        let mut stuck: Vec<Client> = (0..4).map(|_| Client::open(&served.socket, VOLUME, true)).collect();
        for client in &mut stuck {
            for n in 0..64 {
                client.put(&request(client::READ, 0, n, 0, 256 << 10));
            }
            // A write that never ends, too.
            client.put(&request(client::WRITE, 0, 99, 0, 256 << 10));
        }
        let mut honest = Client::open(&served.socket, VOLUME, true);
        for n in 0..200u64 {
            honest.write(n * 4096, &[n as u8; 4096]);
            assert_eq!(honest.read(n * 4096, 4096), [n as u8; 4096]);
        }
        honest.disconnect();
        assert!(served.mem_used() <= 24 << 20);
        drop(stuck);
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_a_slow_handshake_is_cut() {
    let options = Options { handshake_timeout: Duration::from_millis(50), ..Options::default() };
    for world in WORLDS {
        let served = Served::new(world, options.clone());
        let mut honest = Client::open(&served.socket, VOLUME, true);
        let mut silent = Client::raw(&served.socket);
        let mut half = Client::raw(&served.socket);
        half.put(&go(VOLUME)[..11]);
        assert!(silent.closed() && half.closed());
        honest.write(0, &[1; 512]);
        honest.disconnect();
        wait_for("the cuts to be counted", || served.runtime.counters()[0].cut == 2);
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_too_many_connections_are_turned_away() {
    for world in WORLDS {
        let served = Served::new(world, Options { connections_max: 3, ..Options::default() });
        let mut kept: Vec<Client> = (0..3).map(|_| Client::open(&served.socket, VOLUME, true)).collect();
        let mut extra = std::os::unix::net::UnixStream::connect(&served.socket).unwrap();
        assert_eq!(std::io::Read::read(&mut extra, &mut [0; 16]).unwrap_or(0), 0);
        kept.pop().unwrap().disconnect();
        wait_for("a place to be free", || served.connections() == 2);
        kept.push(Client::open(&served.socket, VOLUME, true));
        drop(kept);
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_memory_that_is_short_makes_clients_wait_not_fail() {
    let options = Options { mem_bytes: 3 << 20, connection_bytes_max: 1 << 20, ..Options::default() };
    for world in WORLDS {
        let served = Served::new(world, options.clone());
        let socket = served.socket.clone();
        let clients: Vec<_> = (0..6u8)
            .map(|n| {
                let socket = socket.clone();
                std::thread::spawn(move || {
                    let mut client = Client::open(&socket, VOLUME, n % 2 == 0);
                    let offset = (n as u64) << 23;
                    for round in 0..4 {
                        client.write(offset, &vec![n + round; 3 << 20]);
                        assert!(client.read(offset, 3 << 20) == vec![n + round; 3 << 20]);
                    }
                    client.disconnect();
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        served.settle();
        served.stop();
    }
}

#[test]
fn fault_a_client_that_never_reads_does_not_hold_up_a_stop() {
    let worlds = WORLDS.map(|world| {
        std::thread::spawn(move || {
            let served = Served::new(world, Options { cores: 2, ..Options::default() });
            let mut stuck = Client::open(&served.socket, VOLUME, true);
            for n in 0..16 {
                stuck.put(&request(client::READ, 0, n, 0, 256 << 10));
            }
            wait_for("requests to be taken", || served.runtime.counters()[0].ops[0].requests > 0);
            served.stop();
        })
    });
    for world in worlds {
        world.join().unwrap();
    }
}
