//! The hot path of a core allocates nothing once it is warm.
//!
//! Owns: a counting allocator and the threads it counts. Never: counts the client's own allocations.
//! Invariant: only allocations on the core's thread, between arming and disarming, are counted.

mod common;

use common::client::{self, Client, request};
use common::{TinyEngine, VOLUME, VOLUME_BYTES};
use segue_runtime::{DriveSpec, IoChoice, ListenAddr, Machine, Options, PoolSpec, Runtime, Tls};
use segue_types::Nanos;
use segue_volume::device::BlockDev;
use segue_volume::engine::{Engine, EngineOptions, FormatOptions};
use segue_volume::mem::Mem;
use segue_volume::op::{AdminOp, Event, ObservationRule, Out};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static CORE: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if ARMED.load(Ordering::Relaxed) && CORE.try_with(Cell::get).unwrap_or(false) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Marks the thread it runs on, which is the core's.
struct Marking<M> {
    engine: M,
    /// Allocates in every step, to prove that it would be noticed.
    wasteful: bool,
}

impl<M: Machine> Machine for Marking<M> {
    fn step(&mut self, now: Nanos, event: Event, mem: &mut Mem, out: &mut Out) {
        CORE.with(|core| core.set(true));
        if self.wasteful {
            std::hint::black_box(Box::new(now));
        }
        self.engine.step(now, event, mem, out);
    }

    fn release(self: Box<Self>, mem: &mut Mem) {
        Box::new(self.engine).release(mem);
    }
}

/// 64 requests at a time, round after round, and one of another volume beside them, so that both queue for their turn.
fn work(client: &mut Client, other: &mut Client, rounds: u64) {
    for round in 0..rounds {
        let mut bytes = Vec::new();
        for n in 0..32u64 {
            let at = (round * 32 + n) % 512 * 4096;
            bytes.extend(request(client::WRITE, 0, n, at, 4096));
            bytes.extend([n as u8; 4096]);
            bytes.extend(request(client::READ, 0, 100 + n, at, 4096));
        }
        client.put(&bytes);
        assert_eq!(other.call(client::READ, 0, 0, 4096, &[]).errno, 0);
        for _ in 0..64 {
            let answer = client.answer(|cookie| if cookie >= 100 { 4096 } else { 0 });
            assert_eq!(answer.errno, 0);
        }
        assert_eq!(client.call(client::READ, 0, 0, 4096, &[]).errno, 0);
    }
}

fn allocations_of(io: IoChoice, wasteful: bool, structured: bool) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::start(Options { io, ..Options::default() }).unwrap();
    let open = Box::new(move |dev: &mut dyn BlockDev, mem: &mut Mem| -> Result<Box<dyn Machine>, _> {
        if wasteful {
            return Ok(Box::new(Marking { engine: TinyEngine::default(), wasteful }));
        }
        Engine::format(dev, &FormatOptions { uuid: [1; 16], force: true })?;
        Ok(Box::new(Marking { engine: Engine::open(dev, mem, &EngineOptions::default())?, wasteful }))
    });
    let drive = DriveSpec::Memory { bytes: 4 * VOLUME_BYTES };
    runtime.add_pool(PoolSpec { name: "p".into(), drive, open }).unwrap();
    let socket = dir.path().join("nbd.sock");
    runtime.listen(&ListenAddr::Unix(socket.clone()), Tls::Off).unwrap();
    let create = |name: &str| AdminOp::Create {
        name: name.to_owned(),
        size_bytes: VOLUME_BYTES,
        rule: ObservationRule::Flush,
        token_sha256: None,
        encryption: None,
    };
    runtime.admin_wait("p", create(VOLUME)).unwrap();
    let other = if wasteful { VOLUME } else { "other" };
    if !wasteful {
        runtime.admin_wait("p", create(other)).unwrap();
    }
    let mut client = Client::open(&socket, VOLUME, structured);
    // The queue of replies grows to the largest batch: here it is, larger than any that follows.
    client.put(&(0..256).flat_map(|n| request(client::READ, 0, n, 0, 4096)).collect::<Vec<u8>>());
    for _ in 0..256 {
        assert_eq!(client.answer(|_| 4096).errno, 0);
    }
    let mut other = Client::open(&socket, other, structured);
    work(&mut client, &mut other, 300);
    COUNT.store(0, Ordering::Relaxed);
    ARMED.store(true, Ordering::Relaxed);
    work(&mut client, &mut other, 300);
    ARMED.store(false, Ordering::Relaxed);
    client.disconnect();
    other.disconnect();
    runtime.stop(Duration::from_secs(20)).unwrap();
    COUNT.load(Ordering::Relaxed)
}

#[test]
fn noalloc_a_warm_core_serves_without_allocating() {
    for io in [IoChoice::Auto, IoChoice::Poll] {
        for structured in [false, true] {
            assert_eq!(allocations_of(io, false, structured), 0, "{io:?} structured={structured}");
        }
    }
    // The harness itself must be able to fail.
    assert!(allocations_of(IoChoice::Auto, true, true) > 0);
}
