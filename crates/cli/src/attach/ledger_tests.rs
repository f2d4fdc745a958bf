//! Tests of the ledger against a node that crashes, forgets, reorders and stalls.
//!
//! Owns: a model node with a volatile cache. Never: needs a real node; `tests/attach.rs` has those.
//! Invariant: a failing seed is named in the panic and replays alone.

use super::*;
use std::collections::BTreeMap;

const BLOCKS: u64 = 8;
const TIMEOUT_NS: Nanos = 1_000_000;

/// A small random sequence; the same seed gives the same numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// A node: what it would show, and what survives its crash.
#[derive(Default)]
struct Node {
    shown: BTreeMap<u64, u64>,
    durable: BTreeMap<u64, u64>,
}

impl Node {
    fn apply(&mut self, block: u64, value: u64) {
        self.shown.insert(block, value);
    }

    fn flush(&mut self) {
        self.durable = self.shown.clone();
    }

    /// Each unflushed block is kept or forgotten by chance.
    fn crash(&mut self, chance: &mut Chance) {
        for (block, value) in &self.shown {
            if chance.below(2) == 0 {
                self.durable.insert(*block, *value);
            }
        }
        self.shown = self.durable.clone();
    }
}

struct World {
    ledger: Ledger,
    out: Out,
    node: Node,
    wire: Vec<(Send, Vec<u8>)>,
    now: Nanos,
    next_unique: u64,
    next_value: u64,
    /// Writes asked and not answered: unique to block and value.
    writing: BTreeMap<u64, (u64, u64)>,
    /// Latest acknowledged value per block.
    acked: BTreeMap<u64, u64>,
    /// Flushes asked: what must be durable when they succeed.
    flushing: BTreeMap<u64, BTreeMap<u64, u64>>,
    reading: BTreeMap<u64, (u64, u64)>,
}

impl World {
    fn new() -> Self {
        let limits = Limits { timeout_ns: TIMEOUT_NS, kept_bytes_max: 1500, write_cache: true };
        World {
            ledger: Ledger::new(0, limits),
            out: Out::default(),
            node: Node::default(),
            wire: Vec::new(),
            now: 0,
            next_unique: 0,
            next_value: 0,
            writing: BTreeMap::new(),
            acked: BTreeMap::new(),
            flushing: BTreeMap::new(),
            reading: BTreeMap::new(),
        }
    }

    fn drain(&mut self) {
        for send in std::mem::take(&mut self.out.sends) {
            let data = self.ledger.data(send.cookie).to_vec();
            self.wire.push((send, data));
        }
        for (unique, errno) in std::mem::take(&mut self.out.dones) {
            assert_ne!(errno, 0, "only failures are reported this way");
            self.writing.remove(&unique);
            self.flushing.remove(&unique);
            self.reading.remove(&unique);
        }
    }

    fn ask(&mut self, chance: &mut Chance) {
        if !self.ledger.accepts() {
            return;
        }
        self.next_unique += 1;
        let unique = self.next_unique;
        let block = chance.below(BLOCKS);
        // As a kernel does, never two requests on one block at once.
        let busy = self.writing.values().any(|w| w.0 == block) || self.reading.values().any(|r| r.0 == block);
        let (ask, data) = match chance.below(6) {
            0 => {
                self.flushing.insert(unique, self.acked.clone());
                (Ask::Flush, Vec::new())
            }
            _ if busy => return,
            1 => {
                self.reading.insert(unique, (block, self.acked.get(&block).copied().unwrap_or(0)));
                (Ask::Read { offset: block, len: 1 }, Vec::new())
            }
            kind => {
                self.next_value += 1;
                self.writing.insert(unique, (block, self.next_value));
                let ask = Ask::Write { offset: block, len: 1, fua: kind == 2 };
                (ask, self.next_value.to_le_bytes().to_vec())
            }
        };
        self.ledger.admit(self.now, unique, ask, data, &mut self.out);
        self.drain();
    }

    /// The node executes and answers one request, whichever.
    fn serve(&mut self, chance: &mut Chance) {
        if self.wire.is_empty() {
            return;
        }
        let (send, data) = self.wire.swap_remove(chance.below(self.wire.len() as u64) as usize);
        let mut read = 0;
        match send.ask {
            Ask::Read { offset, .. } => read = self.node.shown.get(&offset).copied().unwrap_or(0),
            Ask::Write { offset, fua, .. } => {
                let value = u64::from_le_bytes(data.try_into().unwrap());
                self.node.apply(offset, value);
                if fua {
                    self.node.durable.insert(offset, value);
                }
            }
            _ => self.node.flush(),
        }
        if chance.below(8) == 0 {
            // Executed, but the answer never leaves: the connection breaks with the node.
            self.crash(chance);
            return;
        }
        let unique = self.ledger.answered(self.now, send.cookie, 0, &mut self.out);
        if let Some((unique, _)) = unique {
            self.check(unique, read);
        }
        self.drain();
    }

    fn check(&mut self, unique: u64, read: u64) {
        if let Some((block, value)) = self.writing.remove(&unique) {
            self.acked.insert(block, value);
        } else if let Some((block, value)) = self.reading.remove(&unique) {
            assert!(read >= value, "block {block} read {read}, older than the acknowledged {value}");
        } else {
            let promised = self.flushing.remove(&unique).expect("a request that was asked");
            for (block, value) in promised {
                let durable = self.node.durable.get(&block).copied().unwrap_or(0);
                assert!(durable >= value, "flush acknowledged, block {block} durable {durable}, promised {value}");
            }
        }
    }

    fn crash(&mut self, chance: &mut Chance) {
        self.wire.clear();
        self.node.crash(chance);
        self.ledger.link_down(self.now);
    }
}

#[test]
fn model_acknowledged_flush_survives_any_crash() {
    let mut replayed = 0;
    for seed in 1..=400u64 {
        let outcome = std::panic::catch_unwind(|| {
            let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut world = World::new();
            for _ in 0..400 {
                match chance.below(10) {
                    0..4 => world.ask(&mut chance),
                    9 if !world.ledger.is_up() && world.wire.is_empty() => {
                        world.ledger.link_up(world.now, &mut world.out);
                        world.drain();
                    }
                    _ => world.serve(&mut chance),
                }
            }
            world.ledger.counts().2
        });
        match outcome {
            Ok(count) => replayed += count,
            Err(panic) => {
                println!("FAIL model_acknowledged_flush_survives_any_crash seed={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(replayed > 1000, "the model hardly ever replayed ({replayed}): it proves nothing");
}

fn up() -> (Ledger, Out) {
    let limits = Limits { timeout_ns: TIMEOUT_NS, kept_bytes_max: 1 << 20, write_cache: true };
    let (mut ledger, mut out) = (Ledger::new(0, limits), Out::default());
    ledger.link_up(0, &mut out);
    (ledger, out)
}

fn write(offset: u64) -> Ask {
    Ask::Write { offset, len: 4096, fua: false }
}

#[test]
fn model_nothing_is_sent_after_a_fence_or_a_cut() {
    for fenced in [true, false] {
        let (mut ledger, mut out) = up();
        ledger.admit(0, 1, write(0), vec![1; 4096], &mut out);
        ledger.admit(0, 2, write(4096), vec![2; 4096], &mut out);
        let first = std::mem::take(&mut out.sends)[0].cookie;
        if fenced {
            assert_eq!(ledger.answered(1, first, libc::ESHUTDOWN, &mut out), None);
        } else {
            ledger.finish(End::Cut, &mut out);
        }
        assert_eq!(out.dones, [(1, libc::EIO), (2, libc::EIO)]);
        assert!(out.drop_link && out.sends.is_empty());
        ledger.link_down(2);
        ledger.link_up(3, &mut out);
        ledger.admit(3, 3, Ask::Flush, Vec::new(), &mut out);
        ledger.resume(4, &mut out);
        assert!(out.sends.is_empty(), "an ended attachment sends nothing");
        assert_eq!(out.dones.last(), Some(&(3, libc::EIO)));
    }
}

#[test]
fn model_a_gone_node_fails_requests_once_their_time_is_over() {
    let (mut ledger, mut out) = up();
    ledger.link_down(0);
    ledger.admit(0, 1, write(0), vec![1; 4096], &mut out);
    ledger.tick(TIMEOUT_NS - 1, &mut out);
    assert!(out.dones.is_empty());
    ledger.tick(TIMEOUT_NS, &mut out);
    assert_eq!(out.dones, [(1, libc::EIO)]);
    ledger.admit(TIMEOUT_NS, 2, Ask::Read { offset: 0, len: 512 }, Vec::new(), &mut out);
    assert_eq!(out.dones.last(), Some(&(2, libc::EIO)), "while it is lost, requests fail at once");
    ledger.link_up(TIMEOUT_NS, &mut out);
    ledger.admit(TIMEOUT_NS, 3, Ask::Read { offset: 0, len: 512 }, Vec::new(), &mut out);
    assert_eq!(out.sends.len(), 1, "when it is back, they pass");
}

#[test]
fn model_a_request_failed_on_the_wire_takes_the_connection_with_it() {
    let (mut ledger, mut out) = up();
    ledger.admit(0, 1, write(0), vec![1; 4096], &mut out);
    out.sends.clear();
    ledger.tick(TIMEOUT_NS, &mut out);
    assert!(out.drop_link, "the write may still be executed, so nothing newer may go beside it");
    ledger.admit(TIMEOUT_NS, 2, write(0), vec![2; 4096], &mut out);
    assert!(out.sends.is_empty());
}

#[test]
fn model_overlapping_writes_are_replayed_one_after_the_other() {
    let (mut ledger, mut out) = up();
    for unique in 1..=3 {
        ledger.admit(0, unique, write(if unique == 3 { 4096 } else { 0 }), vec![unique as u8; 4096], &mut out);
        let cookie = out.sends.pop().unwrap().cookie;
        assert_eq!(ledger.answered(0, cookie, 0, &mut out).map(|over| over.0), Some(unique));
    }
    ledger.link_down(1);
    ledger.admit(1, 4, Ask::Read { offset: 0, len: 4096 }, Vec::new(), &mut out);
    ledger.link_up(2, &mut out);
    assert_eq!(out.sends.len(), 1, "the second write overlaps the first");
    let first = out.sends.pop().unwrap().cookie;
    assert_eq!(ledger.data(first)[0], 1);
    ledger.answered(2, first, 0, &mut out);
    assert_eq!(out.sends.iter().map(|send| ledger.data(send.cookie)[0]).collect::<Vec<_>>(), [2, 3]);
    for send in std::mem::take(&mut out.sends) {
        ledger.answered(2, send.cookie, 0, &mut out);
    }
    assert!(matches!(out.sends[..], [Send { ask: Ask::Read { .. }, .. }]), "reads wait for the replay");
}

#[test]
fn model_a_partition_holds_requests_and_heals() {
    let (mut ledger, mut out) = up();
    ledger.pause();
    ledger.admit(0, 1, write(0), vec![1; 4096], &mut out);
    assert!(out.sends.is_empty());
    ledger.resume(1, &mut out);
    assert_eq!(out.sends.len(), 1);
}

#[test]
fn model_many_unflushed_writes_force_a_flush_and_then_stop_the_kernel() {
    let (mut ledger, mut out) = up();
    let mut flush = None;
    for unique in 0..400u64 {
        if !ledger.accepts() {
            break;
        }
        ledger.admit(0, unique, write(unique * 4096), vec![0; 4096], &mut out);
        for send in std::mem::take(&mut out.sends) {
            match send.ask {
                Ask::Flush => flush = Some(send.cookie),
                _ => drop(ledger.answered(0, send.cookie, 0, &mut out)),
            }
        }
        flush = flush.or_else(|| out.sends.pop().map(|send| send.cookie));
    }
    assert!(!ledger.accepts());
    ledger.answered(0, flush.expect("a flush of its own"), 0, &mut out);
    assert!(ledger.accepts());
}
