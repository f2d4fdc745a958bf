//! Random and mutated streams against both machines, on stable, with the memory they take counted.
//!
//! Owns: the generators of nearly honest streams. Never: judges outcomes; the drivers assert the rules.
//! Invariant: every case comes from a printed seed; rerun one with SEGUE_FUZZ_SEED=N.

#[path = "support/drive.rs"]
mod drive;
mod support;

use segue_wire::nbd::Command;
use segue_wire::nbd::proto::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::Rng;

/// Counts the live bytes of each thread and their peak.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let live = LIVE.get() + bytes;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a case may hold beyond a few copies of its own input: tables, one option's data, one reply.
const OVERHEAD_BYTES_MAX: isize = 48 << 10;

/// Cases of each generator; SEGUE_FUZZ_CASES changes it.
const CASES: u64 = 400_000;

/// A setting of the person who runs the test.
#[expect(clippy::disallowed_methods, reason = "a test takes its seed from the command line that replays it")]
fn setting(key: &str) -> Option<u64> {
    std::env::var(key).ok().and_then(|text| text.parse().ok())
}

/// Runs the cases and says how many ran and how many requests they got through.
fn run(name: &str, mut make: impl FnMut(&mut Rng, &mut Vec<u8>), case: fn(&[u8]) -> usize) -> (u64, u64) {
    let seeds = match setting("SEGUE_FUZZ_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("SEGUE_FUZZ_CASES").unwrap_or(CASES),
    };
    let (cases, mut reached, mut data) = (seeds.end - seeds.start, 0, Vec::new());
    for seed in seeds {
        data.clear();
        make(&mut Rng::new(seed + 1), &mut data);
        let before = LIVE.get();
        PEAK.set(before);
        let caught = std::panic::catch_unwind(|| case(&data));
        let held = PEAK.get() - before;
        let Ok(n) = caught else { panic!("{name}: replay with SEGUE_FUZZ_SEED={seed}") };
        assert!(
            held <= OVERHEAD_BYTES_MAX + 8 * data.len() as isize,
            "{name}: {held} bytes held for {} of input: replay with SEGUE_FUZZ_SEED={seed}",
            data.len()
        );
        reached += n as u64;
    }
    (cases, reached)
}

/// Numbers that break arithmetic.
fn nasty(rng: &mut Rng) -> u64 {
    const SHAPES: [u64; 14] = [
        0,
        1,
        511,
        512,
        4096,
        16 << 10,
        (32 << 20) - 512,
        32 << 20,
        (32 << 20) + 512,
        drive::SIZE_BYTES,
        u32::MAX as u64,
        i64::MAX as u64,
        u64::MAX - 511,
        u64::MAX,
    ];
    match rng.below(4) {
        0 => rng.next() >> rng.below(64),
        _ => SHAPES[rng.below(SHAPES.len())],
    }
}

/// Spoils a few bytes, or none.
fn mutate(rng: &mut Rng, data: &mut Vec<u8>, from: usize) {
    for _ in 0..rng.below(4) {
        if data.len() <= from {
            return;
        }
        let at = from + rng.below(data.len() - from);
        match rng.below(6) {
            0 => data[at] ^= 1 << rng.below(8),
            1 => data[at] = rng.next() as u8,
            2 => data.truncate(at),
            3 => {
                let extra = rng.next().to_be_bytes();
                data.splice(at..at, extra[..rng.below(8)].iter().copied());
            }
            4 => {
                let value = (nasty(rng) as u32).to_be_bytes();
                let end = (at + 4).min(data.len());
                data[at..end].copy_from_slice(&value[..end - at]);
            }
            _ => {
                let end = (at + rng.below(40)).min(data.len());
                let copy = data[at..end].to_vec();
                data.splice(at..at, copy);
            }
        }
    }
}

fn random_bytes(rng: &mut Rng, data: &mut Vec<u8>) {
    for _ in 0..rng.below(80) + 2 {
        data.push(rng.next() as u8);
    }
}

/// A nearly honest stream of options.
fn options(rng: &mut Rng, data: &mut Vec<u8>) {
    data.extend([rng.next() as u8 & !4, rng.next() as u8]);
    data.extend([0, 0, 0, 3]);
    for _ in 0..rng.below(6) {
        let option = rng.below(13) as u32;
        let body: &[u8] = match option {
            opt::GO | opt::INFO => [&b"\0\0\0\x01d\0\0"[..], b"\0\0\0\0\0\x02\0\x01\0\x02"][rng.below(2)],
            opt::SET_META_CONTEXT | opt::LIST_META_CONTEXT => {
                [&b"\0\0\0\x01d\0\0\0\x01\0\0\0\x0fbase:allocation"[..], b"\0\0\0\0\0\0\0\0"][rng.below(2)]
            }
            opt::EXPORT_NAME => b"d",
            _ => b"",
        };
        if rng.below(40) == 0 {
            // Longer than is kept, once in a while whole.
            let len = 16_385 + rng.below(100);
            drive::put_option(data, option, &vec![b'x'; len]);
        } else {
            drive::put_option(data, option, body);
        }
    }
    requests(rng, data, false);
    mutate(rng, data, 2);
}

fn requests(rng: &mut Rng, data: &mut Vec<u8>, extended: bool) {
    for _ in 0..rng.below(5) {
        let command = rng.below(9) as u16;
        let len = if rng.below(3) == 0 { nasty(rng) } else { 512 * (1 + rng.below(3) as u64) };
        let offset = if rng.below(3) == 0 { nasty(rng) } else { 512 * rng.below(1000) as u64 };
        let flags = if rng.below(2) == 0 { 0 } else { rng.below(64) as u16 };
        data.extend(if extended { MAGIC_REQUEST_EXT } else { MAGIC_REQUEST }.to_be_bytes());
        data.extend(flags.to_be_bytes());
        data.extend(command.to_be_bytes());
        data.extend(rng.next().to_be_bytes());
        data.extend(offset.to_be_bytes());
        if extended {
            data.extend(len.to_be_bytes());
        } else {
            data.extend((len as u32).to_be_bytes());
        }
        if command == Command::Write as u16 && len <= 1536 {
            data.resize(data.len() + len as usize, 0xdb);
        }
    }
}

/// A nearly honest stream of requests.
fn transmission(rng: &mut Rng, data: &mut Vec<u8>) {
    let mode = (rng.next() as u8 & !3) | 4;
    data.extend([mode, rng.next() as u8]);
    requests(rng, data, mode >> 3 & 3 > 1);
    mutate(rng, data, 2);
}

/// A nearly honest stream of replies to the requests that the client driver has in flight.
fn replies(rng: &mut Rng, data: &mut Vec<u8>) {
    let form = rng.below(3) as u8;
    data.extend([form | 4, rng.next() as u8]);
    for _ in 0..rng.below(6) {
        let slot = rng.below(drive::CLIENT_REQUESTS) as u64;
        let cookie = 1 << 32 | slot;
        if form == 0 || rng.below(20) == 0 {
            data.extend(MAGIC_REPLY_SIMPLE.to_be_bytes());
            data.extend((rng.below(3) as u32 * 5).to_be_bytes());
            data.extend(cookie.to_be_bytes());
            if slot.is_multiple_of(7) {
                data.resize(data.len() + 4096, 1);
            }
            continue;
        }
        let (kind, body) = chunk_body(rng, form, slot);
        data.extend(if form == 1 { MAGIC_REPLY_CHUNK } else { MAGIC_REPLY_EXT }.to_be_bytes());
        data.extend((rng.below(2) as u16).to_be_bytes());
        data.extend(kind.to_be_bytes());
        data.extend(cookie.to_be_bytes());
        if form == 1 {
            data.extend((body.len() as u32).to_be_bytes());
        } else {
            data.extend(0u64.to_be_bytes());
            data.extend((body.len() as u64).to_be_bytes());
        }
        data.extend(body);
    }
    mutate(rng, data, 2);
}

fn chunk_body(rng: &mut Rng, form: u8, slot: u64) -> (u16, Vec<u8>) {
    let offset = (slot * 4096 + 512 * rng.below(8) as u64).to_be_bytes().to_vec();
    let kind = match (rng.below(5), slot % 7) {
        (0, _) => chunk::ERROR,
        (1, 0) => chunk::OFFSET_HOLE,
        (2, 0) => chunk::OFFSET_DATA,
        (_, 6) if form == 1 => chunk::BLOCK_STATUS,
        (_, 6) => chunk::BLOCK_STATUS_EXT,
        _ => chunk::NONE,
    };
    let body = match kind {
        chunk::ERROR => b"\0\0\0\x05\0\x03bad".to_vec(),
        chunk::OFFSET_HOLE => [offset, 512u32.to_be_bytes().to_vec()].concat(),
        chunk::OFFSET_DATA => [offset, vec![1; 512 * (1 + rng.below(3))]].concat(),
        chunk::BLOCK_STATUS => b"\0\0\0\x01\0\0\x08\0\0\0\0\0\0\0\x08\0\0\0\0\x03".to_vec(),
        chunk::BLOCK_STATUS_EXT => {
            [b"\0\0\0\x01\0\0\0\x01".to_vec(), 4096u64.to_be_bytes().to_vec(), vec![0; 8]].concat()
        }
        _ => Vec::new(),
    };
    (kind, body)
}

/// A nearly honest handshake of a server: the greeting and replies to what the client asks first.
fn server_hello(rng: &mut Rng, data: &mut Vec<u8>) {
    let tls = rng.next() as u8 & 0x20;
    data.extend([rng.below(3) as u8 | tls, rng.next() as u8]);
    data.extend(MAGIC_SERVER.to_be_bytes());
    data.extend(MAGIC_OPTION.to_be_bytes());
    data.extend([0, 3]);
    let turns: &[u32] = match data[0] & 3 {
        _ if tls != 0 => &[opt::STARTTLS],
        0 => &[opt::GO],
        1 => &[opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, opt::GO],
        _ => &[opt::EXTENDED_HEADERS, opt::SET_META_CONTEXT, opt::GO],
    };
    for option in turns {
        let mut say = |kind: u32, body: &[u8]| {
            data.extend(MAGIC_OPTION_REPLY.to_be_bytes());
            data.extend(option.to_be_bytes());
            data.extend(kind.to_be_bytes());
            data.extend((body.len() as u32).to_be_bytes());
            data.extend(body);
        };
        match *option {
            opt::SET_META_CONTEXT => say(rep::META_CONTEXT, b"\0\0\0\x01base:allocation"),
            opt::GO => {
                say(rep::INFO, b"\0\0\0\0\0\0\x04\0\0\0\x0d\xed");
                say(rep::INFO, b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
            }
            _ => {}
        }
        say(if rng.below(12) == 0 { rep::ERR_UNSUP } else { rep::ACK }, b"");
    }
    mutate(rng, data, 2);
}

#[test]
fn fuzz_server_handshake() {
    let (cases, reached) = run("options", options, drive::server);
    assert!(reached > 0 || cases < 1000, "some requests get through");
}

#[test]
fn fuzz_server_transmission() {
    let (cases, reached) = run("requests", transmission, drive::server);
    assert!(reached > cases / 10 || cases < 1000, "{reached} requests of {cases} cases got through");
}

#[test]
fn fuzz_server_noise() {
    run("noise to the server", random_bytes, drive::server);
}

#[test]
fn fuzz_client_handshake() {
    run("server hello", server_hello, drive::client);
}

#[test]
fn fuzz_client_replies() {
    let (cases, reached) = run("replies", replies, drive::client);
    assert!(reached > cases / 4 || cases < 1000, "{reached} requests of {cases} cases were done");
}

#[test]
fn fuzz_client_noise() {
    run("noise to the client", random_bytes, drive::client);
}
