//! A load that knows what every block may hold, also after the node was killed.
//!
//! Owns: the clients, what they wrote and what was flushed. Never: forgives a block that holds anything else.
//! Invariant: a block reads as its last acknowledged write; after a kill as its last flushed one or a later one.

use super::Luck;
use crate::attach::NodeAddr;
use crate::attach::link::{LinkError, Target};
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
/// Most blocks of a request.
const RUN_MAX: u64 = 8;
/// Longest time until the node serves again.
const AWAY_LIMIT: Duration = Duration::from_secs(60);

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// What the load saw.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub requests: u64,
    pub verified: u64,
    pub verify_errors: u64,
    /// Requests that were answered with an error.
    pub failed: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.verified += other.verified;
        self.verify_errors += other.verify_errors;
        self.failed += other.failed;
    }
}

/// What a block may hold: what a read must return now, and what may be found after a kill.
#[derive(Clone)]
struct Cell {
    live: Vec<u32>,
    durable: Vec<u32>,
}

/// A client's part of the volume.
struct Part {
    first: u64,
    cells: Vec<Cell>,
    value: u32,
}

/// The load on one volume.
pub struct Load {
    target: Target,
    parts: Vec<Mutex<Part>>,
    over: AtomicBool,
    /// Times that a client came back after the node was away.
    returned: AtomicU64,
    clients: u64,
    seed: u64,
}

/// The connection broke: the node is away.
struct Broken;

impl Load {
    pub fn new(socket: PathBuf, volume: &str, size_bytes: u64, clients: u64, seed: u64) -> Load {
        let node = NodeAddr::Unix(socket);
        // All connections of this process are one holder, so they share the right to write.
        let target = Target { node, export: volume.to_owned(), limit: Duration::from_secs(30) };
        let blocks = size_bytes / BLOCK / clients;
        let part = |n: u64| {
            let cell = Cell { live: vec![0], durable: vec![0] };
            Mutex::new(Part { first: n * blocks, cells: vec![cell; blocks as usize], value: 0 })
        };
        let parts = (0..clients).map(part).collect();
        Load { target, parts, over: AtomicBool::new(false), returned: AtomicU64::new(0), clients, seed }
    }

    /// Writes all of the volume once and flushes.
    pub fn fill(&self) -> Result<()> {
        let mut link = self.connect()?;
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let all = part.cells.len() as u64;
            part.value = 1;
            for at in (0..all).step_by(64) {
                let count = 64.min(all - at);
                let bytes = content(1, part.first + at, count);
                let errno = call(&mut link, WRITE, (part.first + at) * BLOCK, &bytes, &mut []).ok();
                if errno != Some(0) {
                    bail!("the volume cannot be filled: {errno:?}");
                }
            }
            part.cells.fill(Cell { live: vec![1], durable: vec![1] });
        }
        if call(&mut link, FLUSH, 0, &[], &mut []).ok() != Some(0) {
            bail!("the volume cannot be flushed");
        }
        Ok(())
    }

    /// Starts client `n`.
    pub fn spawn(self: Arc<Load>, n: u64) -> JoinHandle<Result<Tally>> {
        std::thread::spawn(move || self.client(n))
    }

    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits until every client has come back since the last kill, and verified its part.
    pub fn wait_until_served(&self) -> Result<()> {
        let begun = Instant::now();
        while self.returned.load(Ordering::Acquire) < self.clients {
            if begun.elapsed() > AWAY_LIMIT {
                bail!("the clients are not served again after {AWAY_LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.returned.store(0, Ordering::Release);
        Ok(())
    }

    /// Reads every block.
    pub fn verify_all(&self) -> Result<Tally> {
        let (mut tally, mut link) = (Tally::default(), self.connect()?);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            if verify_part(&mut link, &mut part, &mut tally).is_err() {
                bail!("the node went away");
            }
        }
        Ok(tally)
    }

    fn client(&self, n: u64) -> Result<Tally> {
        let mut luck = Luck(self.seed ^ (n + 1).wrapping_mul(0x1234_5677_89ab_cdef));
        let mut part = self.parts[n as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let (mut tally, mut link) = (Tally::default(), self.connect()?);
        while !self.over.load(Ordering::Relaxed) {
            if act(&mut link, &mut part, &mut luck, &mut tally).is_ok() {
                continue;
            }
            // Killed: what was not flushed may be gone, and what was in flight may be there.
            for cell in &mut part.cells {
                cell.live.clone_from(&cell.durable);
            }
            loop {
                link = self.connect()?;
                if verify_part(&mut link, &mut part, &mut tally).is_ok() {
                    break;
                }
            }
            self.returned.fetch_add(1, Ordering::AcqRel);
        }
        Ok(tally)
    }

    /// Connects, trying again while the node is away.
    fn connect(&self) -> Result<UnixStream> {
        let begun = Instant::now();
        loop {
            match self.target.connect() {
                Ok(connection) => {
                    let stream = UnixStream::from(connection.socket);
                    stream.set_read_timeout(Some(AWAY_LIMIT)).context("limit the wait for answers")?;
                    return Ok(stream);
                }
                Err(error @ LinkError::Away { .. }) if begun.elapsed() > AWAY_LIMIT => return Err(error.into()),
                Err(LinkError::Away { .. }) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// One request.
fn act(link: &mut UnixStream, part: &mut Part, luck: &mut Luck, tally: &mut Tally) -> Result<(), Broken> {
    let count = 1 + luck.below(RUN_MAX);
    let at = luck.below(part.cells.len() as u64 - count);
    let run = at as usize..(at + count) as usize;
    let offset = (part.first + at) * BLOCK;
    tally.requests += 1;
    match luck.below(10) {
        0 => {
            if call(link, FLUSH, 0, &[], &mut [])? != 0 {
                tally.failed += 1;
                return Ok(());
            }
            for cell in &mut part.cells {
                cell.durable.clone_from(&cell.live);
            }
        }
        1..=6 => {
            part.value += 1;
            let value = part.value;
            part.cells[run.clone()].iter_mut().for_each(|cell| cell.durable.push(value));
            let errno = call(link, WRITE, offset, &content(value, part.first + at, count), &mut [])?;
            tally.failed += u64::from(errno != 0);
            for cell in &mut part.cells[run] {
                match errno {
                    0 => cell.live = vec![value],
                    _ => cell.live.push(value),
                }
            }
        }
        _ => check(link, part, run, false, tally)?,
    }
    Ok(())
}

fn verify_part(link: &mut UnixStream, part: &mut Part, tally: &mut Tally) -> Result<(), Broken> {
    for at in (0..part.cells.len()).step_by(64) {
        let run = at..(at + 64).min(part.cells.len());
        check(link, part, run, true, tally)?;
    }
    Ok(())
}

/// Reads blocks and compares them with what they may hold. With `settles`, what is seen is what they hold from now on.
fn check(
    link: &mut UnixStream,
    part: &mut Part,
    run: std::ops::Range<usize>,
    settles: bool,
    tally: &mut Tally,
) -> Result<(), Broken> {
    let mut data = vec![0; run.len() * BLOCK as usize];
    if call(link, READ, (part.first + run.start as u64) * BLOCK, &[], &mut data)? != 0 {
        tally.failed += 1;
        return Ok(());
    }
    for (bytes, at) in data.chunks_exact(BLOCK as usize).zip(run) {
        let (block, cell) = (part.first + at as u64, &mut part.cells[at]);
        tally.verified += 1;
        let value = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        if bytes != content(value, block, 1) || !cell.live.contains(&value) {
            tally.verify_errors += 1;
            eprintln!("block {block} holds {value}, not one of {:?}", cell.live);
        } else if settles {
            cell.live = vec![value];
        }
    }
    Ok(())
}

/// What write `value` puts into blocks: every word depends on value and place.
fn content(value: u32, first: u64, count: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((count * BLOCK) as usize);
    for block in first..first + count {
        let seed = (u64::from(value) << 32 | (block & 0xffff_ffff)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(&value.to_le_bytes());
        bytes.extend_from_slice(&(block as u32).to_le_bytes());
        for word in 1..BLOCK / 8 {
            bytes.extend_from_slice(&(seed.rotate_left(word as u32 % 64) ^ word).to_le_bytes());
        }
    }
    bytes
}

/// One request and its reply (NBD simple replies): its errno.
fn call(link: &mut UnixStream, command: u16, offset: u64, send: &[u8], receive: &mut [u8]) -> Result<u32, Broken> {
    let len = send.len().max(receive.len()) as u32;
    let mut head = Vec::with_capacity(28 + send.len());
    head.extend_from_slice(&0x2560_9513u32.to_be_bytes());
    head.extend_from_slice(&0u16.to_be_bytes());
    head.extend_from_slice(&command.to_be_bytes());
    head.extend_from_slice(&1u64.to_be_bytes());
    head.extend_from_slice(&offset.to_be_bytes());
    head.extend_from_slice(&len.to_be_bytes());
    head.extend_from_slice(send);
    link.write_all(&head).map_err(|_| Broken)?;
    let mut reply = [0; 16];
    link.read_exact(&mut reply).map_err(|_| Broken)?;
    let errno = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
    if errno == 0 {
        link.read_exact(receive).map_err(|_| Broken)?;
    }
    Ok(errno)
}
