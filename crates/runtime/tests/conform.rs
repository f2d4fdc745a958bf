//! The same bodies in every world: io_uring and the fallback, file and memory.
//!
//! Owns: what a well-behaved client sees. Never: asserts on timing.
//! Invariant: after every body, all I/O memory, attachments and connections are given back.

mod common;

use common::client::{self, Client, request};
use common::{Served, TinyEngine, VOLUME, VOLUME_BYTES, WORLDS, World};
use segue_runtime::{IoMode, ListenAddr, Options, Tls};

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

fn in_every_world(options: &Options, body: impl Fn(&Served, World)) {
    for world in WORLDS {
        let served = Served::new(world, options.clone());
        body(&served, world);
        served.settle();
        served.stop();
    }
}

#[test]
fn conform_the_mode_is_told() {
    let served = Served::new(WORLDS[2], Options::default());
    assert_eq!(served.runtime.status()[0].io, IoMode::Poll);
    assert!(served.runtime.status()[0].io_note.is_some());
    served.stop();
}

#[test]
fn conform_small_and_misaligned_io_round_trips() {
    in_every_world(&Options::default(), |served, world| {
        for structured in [false, true] {
            let mut client = Client::open(&served.socket, VOLUME, structured);
            assert_eq!(client.size_bytes, VOLUME_BYTES);
            for (offset, len) in [(0, 4096), (8192, 512), (512, 1024), (4096 - 512, 1024), (100 * 512, 33 * 512)] {
                let bytes = pattern(len, offset + world.file as u64);
                client.write(offset, &bytes);
                assert_eq!(client.read(offset, len as u32), bytes, "{world:?} {offset}+{len}");
            }
            assert_eq!(client.call(client::FLUSH, 0, 0, 0, &[]).errno, 0);
            assert_eq!(client.call(client::TRIM, 0, 1 << 20, 1 << 20, &[]).errno, 0);
            assert_eq!(client.call(client::READ, 0, VOLUME_BYTES - 512, 1024, &[]).errno, 22);
            client.disconnect();
        }
    });
}

#[test]
fn conform_large_requests_are_cut_and_put_together() {
    in_every_world(&Options::default(), |served, world| {
        for structured in [false, true] {
            let mut client = Client::open(&served.socket, VOLUME, structured);
            for (offset, len) in [(0, 256 << 10), (512, 256 << 10), (3 << 20, 5 << 20), (4096 * 5 - 512, 20 << 20)] {
                let bytes = pattern(len, offset ^ 77);
                client.write(offset, &bytes);
                assert!(client.read(offset, len as u32) == bytes, "{world:?} structured={structured} {offset}+{len}");
            }
            client.disconnect();
        }
    });
}

#[test]
fn conform_a_large_read_needs_less_memory_than_it_returns() {
    let options = Options { mem_bytes: 4 << 20, connection_bytes_max: 1 << 20, ..Options::default() };
    in_every_world(&options, |served, _| {
        for structured in [false, true] {
            let mut client = Client::open(&served.socket, VOLUME, structured);
            let bytes = pattern(30 << 20, 3);
            client.write(512, &bytes);
            assert!(client.read(512, 30 << 20) == bytes);
            client.disconnect();
        }
    });
}

#[test]
fn conform_many_requests_at_once_are_all_answered() {
    in_every_world(&Options { connection_requests_max: 16, ..Options::default() }, |served, _| {
        let mut client = Client::open(&served.socket, VOLUME, true);
        let mut bytes = Vec::new();
        for n in 0..500u64 {
            bytes.extend(request(client::WRITE, 0, n, n * 4096, 4096));
            bytes.extend(vec![n as u8; 4096]);
        }
        for n in 0..500u64 {
            bytes.extend(request(client::READ, 0, 1000 + n, n * 4096, 4096));
        }
        let mut socket = client.socket.try_clone().unwrap();
        let writer = std::thread::spawn(move || std::io::Write::write_all(&mut socket, &bytes).unwrap());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let answer = client.answer(|_| 4096);
            assert_eq!(answer.errno, 0);
            assert!(seen.insert(answer.cookie));
        }
        writer.join().unwrap();
        for n in 0..500u64 {
            assert_eq!(client.read(n * 4096, 512), vec![n as u8; 512]);
        }
        client.disconnect();
    });
}

#[test]
fn conform_a_failed_piece_fails_the_request() {
    for world in WORLDS {
        let engine = TinyEngine { bad_offset: Some(1 << 20), ..TinyEngine::default() };
        let served = Served::with_engine(world, Options::default(), engine);
        for structured in [false, true] {
            let mut client = Client::open(&served.socket, VOLUME, structured);
            assert_eq!(client.call(client::READ, 0, 1 << 20, 4096, &[]).errno, 5);
            assert_eq!(client.call(client::READ, 0, 0, 2 << 20, &[]).errno, 5);
            assert_eq!(client.call(client::WRITE, 0, 0, 2 << 20, &vec![1; 2 << 20]).errno, 5);
            assert_eq!(client.read(2 << 20, 4096).len(), 4096);
            client.disconnect();
        }
        served.settle();
        served.stop();
    }
}

#[test]
fn conform_names_are_listed_asked_about_and_refused() {
    in_every_world(&Options::default(), |served, _| {
        let mut client = Client::raw(&served.socket);
        client.put(&client::option(3, &[]));
        let (kind, data) = client.option_reply();
        assert_eq!((kind, &data[4..]), (2, VOLUME.as_bytes()));
        assert_eq!(client.option_reply().0, 1);
        for (name, refusal) in [("none", 0x8000_0006u32), ("bad/name", 0x8000_0003)] {
            let mut data = (name.len() as u32).to_be_bytes().to_vec();
            data.extend_from_slice(name.as_bytes());
            data.extend_from_slice(&[0, 0]);
            client.put(&client::option(7, &data));
            assert_eq!(client.option_reply().0, refusal, "{name}");
        }
        client.put(&client::option(2, &[]));
        assert!(client.closed());
    });
}

#[test]
fn conform_tcp_serves_like_a_unix_socket() {
    in_every_world(&Options::default(), |served, _| {
        let addr = served.runtime.listen(&ListenAddr::Tcp(([127, 0, 0, 1], 0).into()), Tls::Off).unwrap();
        let ListenAddr::Tcp(addr) = addr else { panic!("{addr}") };
        let mut greeting = [0; 18];
        let mut socket = std::net::TcpStream::connect(addr).unwrap();
        std::io::Read::read_exact(&mut socket, &mut greeting).unwrap();
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        served.runtime.unlisten(ListenAddr::Tcp(addr));
    });
}

#[test]
fn conform_a_half_closed_client_still_gets_its_answers() {
    in_every_world(&Options::default(), |served, _| {
        for len in [4096u32, 8 << 20] {
            for structured in [false, true] {
                let mut client = Client::open(&served.socket, VOLUME, structured);
                client.put(&request(client::READ, 0, 1, 0, len));
                client.half_close();
                let answer = client.answer(|_| len as usize);
                assert_eq!(answer.data.iter().map(|data| data.1.len()).sum::<usize>(), len as usize);
                assert!(client.closed());
            }
        }
    });
}

#[test]
fn conform_a_stop_finishes_what_is_in_flight() {
    for world in WORLDS {
        let served = Served::new(world, Options::default());
        let mut client = Client::open(&served.socket, VOLUME, true);
        client.write(0, &pattern(1 << 20, 5));
        let idle = Client::open(&served.socket, VOLUME, false);
        served.stop();
        assert!(client.closed());
        drop(idle);
    }
}

#[test]
fn conform_connections_find_the_core_of_their_pool() {
    for world in WORLDS {
        let served = Served::new(world, Options { cores: 3, ..Options::default() });
        // The tiny pool is on core 0, as the listener is; a second one goes to core 1 and is asked too.
        let open = Box::new(|_: &mut dyn segue_volume::device::BlockDev, _: &mut segue_volume::mem::Mem| {
            Ok(Box::new(common::Renamed::new("other")) as Box<dyn segue_runtime::Machine>)
        });
        let drive = segue_runtime::DriveSpec::Memory { bytes: VOLUME_BYTES };
        let place = served.runtime.add_pool(segue_runtime::PoolSpec { name: "q".into(), drive, open }).unwrap();
        assert_eq!(place.core, 1);
        for name in ["other", VOLUME] {
            let mut client = Client::open(&served.socket, name, true);
            let bytes = pattern(1 << 20, 9);
            client.write(4096, &bytes);
            assert!(client.read(4096, 1 << 20) == bytes);
            client.disconnect();
        }
        served.settle();
        served.stop();
    }
}
