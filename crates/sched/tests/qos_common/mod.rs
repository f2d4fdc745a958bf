//! A drive with a knee, clients in a closed loop, and the machine between them, on virtual time.
//!
//! Owns: the world that the tests of sharing run in. Never: asserts.
//! Invariant: the same settings and seed give the same run.

#![allow(dead_code, reason = "each test file uses a part of it")]

use segue_des::Chance;
use segue_des::Queue;
use segue_sched::qos::{Charge, CostModel, DriveShare, GovernorParams, Kind, PolicyKind, ShareOptions, Slot};
use segue_types::{Nanos, Share};
use std::collections::VecDeque;

pub const MS: Nanos = 1_000_000;
pub const SECOND: Nanos = 1_000 * MS;

/// What the drive of these tests can do: eight small reads at a time, 80 us each.
pub const CHANNELS: usize = 8;
pub const READ_NS: Nanos = 80_000;
/// Its capacity in cost units per second.
pub const CAPACITY: u64 = CHANNELS as u64 * SECOND / READ_NS * 100;
/// A little above what a read takes at most when it need not wait.
pub const GOVERNOR: GovernorParams = GovernorParams { target_ns: 130_000, window_min: 800, window_max: 2400 };

pub fn options(policy: PolicyKind) -> ShareOptions {
    ShareOptions {
        volumes: 300,
        requests: 4096,
        policy,
        model: CostModel::DRIVE,
        governor: GovernorParams::OPEN,
        capacity: 0,
    }
}

pub fn governed(policy: PolicyKind) -> ShareOptions {
    ShareOptions { governor: GOVERNOR, capacity: CAPACITY, ..options(policy) }
}

/// A client that keeps `depth` requests in flight.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub share: Share,
    pub depth: usize,
    pub kind: Kind,
    pub bytes: u64,
    /// Time it thinks between an answer and its next request, ns on average.
    pub think_ns: Nanos,
    /// When it begins.
    pub from: Nanos,
}

pub const READER: Client = Client { share: SHARE, depth: 1, kind: Kind::Read, bytes: 4096, think_ns: 20_000, from: 0 };
pub const SHARE: Share =
    Share { reserve_iops: 0, weight: 100, limit_iops: 0, limit_bytes_per_s: 0, burst_ms: 10, latency_target_us: 0 };

#[derive(Debug)]
enum Happening {
    Issue(usize),
    Ended(usize),
    Wake,
}

struct Request {
    client: usize,
    charge: Charge,
    issued: Nanos,
    handed: Nanos,
}

/// What a client got.
#[derive(Clone, Debug, Default)]
pub struct Got {
    pub latencies: Vec<Nanos>,
    pub ops: u64,
    pub bytes: u64,
    pub cost: u64,
}

impl Got {
    pub fn percentile(&self, p: f64) -> Nanos {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        sorted[((sorted.len() - 1) as f64 * p) as usize]
    }
}

pub struct World {
    pub share: DriveShare,
    pub slots: Vec<Slot>,
    clients: Vec<Client>,
    requests: Vec<Request>,
    free: Vec<usize>,
    events: Queue<Happening>,
    chance: Chance,
    busy: usize,
    line: VecDeque<usize>,
    /// Flushes that the drive does as one now, and those that the next one will be for: group commit.
    flushing: Vec<usize>,
    flush_line: Vec<usize>,
    wake: Nanos,
    pub got: Vec<Got>,
    /// Work that the drive did, ns of one channel.
    pub worked_ns: u64,
    /// Times at which requests waited though the drive had a free channel and the window room.
    pub idle_while_waiting: u64,
}

impl World {
    pub fn new(options: &ShareOptions, clients: &[Client], seed: u64) -> World {
        let mut share = DriveShare::new(options);
        let slots = clients.iter().map(|client| share.open(&client.share, 0).expect("there is a place")).collect();
        let mut world = World {
            share,
            slots,
            clients: clients.to_vec(),
            requests: Vec::new(),
            free: Vec::new(),
            events: Queue::new(),
            chance: Chance::new(seed),
            busy: 0,
            line: VecDeque::new(),
            flushing: Vec::new(),
            flush_line: Vec::new(),
            wake: 0,
            got: vec![Got::default(); clients.len()],
            worked_ns: 0,
            idle_while_waiting: 0,
        };
        for (at, client) in clients.iter().enumerate() {
            for _ in 0..client.depth {
                let jitter = world.chance.below(50_000);
                world.events.at(client.from + jitter, Happening::Issue(at));
            }
        }
        world
    }

    /// Runs until `until`; requests issued before `from` are not counted.
    pub fn run(&mut self, from: Nanos, until: Nanos) {
        while let Some(at) = self.events.next_time() {
            if at >= until {
                return;
            }
            let (now, event) = self.events.pop().expect("there is a next");
            match event {
                Happening::Issue(client) => self.issue(client, now),
                Happening::Ended(number) => self.ended(number, now, from),
                Happening::Wake => {}
            }
            self.dispatch(now);
        }
    }

    fn issue(&mut self, client: usize, now: Nanos) {
        let Client { kind, bytes, .. } = self.clients[client];
        let mut charge = self.share.charge(kind, bytes, true);
        let request = Request { client, charge, issued: now, handed: 0 };
        let number = match self.free.pop() {
            Some(number) => {
                self.requests[number] = request;
                number
            }
            None => {
                self.requests.push(request);
                self.requests.len() - 1
            }
        };
        if self.share.direct(self.slots[client], &mut charge, now) {
            self.requests[number].charge = charge;
            self.hand(number, now);
        } else {
            assert!(self.share.enqueue(self.slots[client], number as u32, charge, now), "there is room");
        }
    }

    fn dispatch(&mut self, now: Nanos) {
        while let Some((_, item)) = self.share.next(now, u64::MAX) {
            self.requests[item.key as usize].charge = item.charge;
            self.hand(item.key as usize, now);
        }
        if let Some(at) = self.share.wake_at()
            && (self.wake <= now || at < self.wake)
        {
            assert!(at > now, "what is due passes at once");
            self.wake = at;
            self.events.at(at, Happening::Wake);
        }
    }

    fn hand(&mut self, number: usize, now: Nanos) {
        self.requests[number].handed = now;
        if self.requests[number].charge.kind == Kind::Flush {
            self.flush_line.push(number);
            if self.flushing.is_empty() {
                self.flush(now);
            }
            return;
        }
        self.take(number, now);
    }

    /// One flush of the drive for all that wait for one.
    fn flush(&mut self, now: Nanos) {
        std::mem::swap(&mut self.flushing, &mut self.flush_line);
        if let Some(first) = self.flushing.first() {
            self.take(*first, now);
        }
    }

    fn take(&mut self, number: usize, now: Nanos) {
        if self.busy < CHANNELS {
            self.serve(number, now);
        } else {
            self.line.push_back(number);
        }
    }

    /// The drive's own time for a request: as its cost says, with some spread.
    fn serve(&mut self, number: usize, now: Nanos) {
        self.busy += 1;
        let cost = self.requests[number].charge.cost;
        let mean = cost * READ_NS / 100;
        let took = mean * 3 / 4 + self.chance.below(mean / 2 + 1);
        self.worked_ns += took;
        self.events.at(now + took, Happening::Ended(number));
    }

    fn ended(&mut self, number: usize, now: Nanos, from: Nanos) {
        self.busy -= 1;
        if let Some(next) = self.line.pop_front() {
            self.serve(next, now);
        }
        if self.requests[number].charge.kind == Kind::Flush {
            for number in std::mem::take(&mut self.flushing) {
                self.answer(number, now, from);
            }
            return self.flush(now);
        }
        self.answer(number, now, from);
    }

    fn answer(&mut self, number: usize, now: Nanos, from: Nanos) {
        let Request { client, charge, issued, handed } = self.requests[number];
        self.free.push(number);
        self.share.complete(self.slots[client], &charge, now - handed, now);
        if issued >= from {
            let got = &mut self.got[client];
            got.latencies.push(now - issued);
            got.ops += 1;
            got.bytes += charge.bytes as u64;
            got.cost += charge.cost;
        }
        let think = self.clients[client].think_ns;
        let pause = if think == 0 { 0 } else { self.chance.exponential(think) };
        self.events.at(now + pause, Happening::Issue(client));
    }
}

/// Runs these clients for `seconds_tenths` tenths of a second after a warm-up of one.
pub fn run(options: &ShareOptions, clients: &[Client], seed: u64, tenths: u64) -> World {
    let mut world = World::new(options, clients, seed);
    world.run(SECOND / 10, SECOND / 10 * (tenths + 1));
    world
}
