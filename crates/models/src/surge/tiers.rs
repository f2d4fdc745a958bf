//! Model c: an SSD in front of HDDs, with migration between watermarks.
//!
//! Owns: the SSD's fill, its cycle of receiving and migrating, and the HDDs behind it. Never: more than one copy to a chunk's writer.
//! Invariant: the SSD never holds more than its capacity; a chunk leaves it when an HDD has it.
//!
//! SURGE (reference 1.3): one initiator keeps a window of commands with the SSD (target 0) and one with each HDD. The SSD works in
//! cycles of 10 chunks, shared between receiving and migrating by how full it is at the start of the cycle: below the low mark it only
//! receives; between the marks the share of receiving falls evenly (with 10 points more where it is below 60 %); at the high mark it
//! only migrates, until it is down to the mark at which it resumes. Writes beyond a cycle's share wait, unless all
//! of the initiator's window waits. Migration goes to the HDDs in turn, at most 32 chunks under way, and counts as sequential: a
//! sixteenth of a write's time. Links are internal: 100 Gbit/s, 10 ns, no frames, whatever the scenario says of links. Drives answer
//! late when crowded ([`StoreSpec::surge_crowded`]).
//!
//! Inferred: the oldest chunk migrates first; reading it takes the SSD as long as writing it (SURGE reads for nothing); its space is free
//! when the HDD has it (SURGE: when it leaves); a capacity of less than 20 of the largest chunks is raised to that;
//! a cycle ends when the SSD is empty, whatever it should still migrate; open arrivals are spread evenly over all windows' places.

use super::commands::{Commands, arrival_ns, command_ns, largest_bytes, served};
use super::windows::store;
use crate::storage::registry::Model;
use crate::storage::{ChunkId, Key, OptionError, Options, Protocol, Scenario, Sim, Violation, run};
use segue_des::{Chance, Class, Framing, Link, LinkSpec, Store};
use std::collections::VecDeque;

/// Chunks of a cycle of the SSD.
const CYCLE: u64 = 10;
/// Migrated chunks that no HDD has acknowledged.
const MIGRATING_MAX: u32 = 32;
/// A control message, bytes.
const CONTROL_BYTES: u64 = 100;
/// A migrated chunk takes an HDD this part of a write.
const SEQUENTIAL: u64 = 16;
/// The links inside.
const LINK: LinkSpec = LinkSpec {
    framing: Framing { bits_per_s: 100_000_000_000, frame_bytes: 1 << 30, overhead_permille: 0, control_permille: 0 },
    propagation_ns: 10,
    ..LinkSpec::SURGE
};

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A command's last byte came to its target.
    Came(ChunkId),
    /// A chunk is on the SSD's medium.
    OnSsd(ChunkId),
    /// A drive answers a command.
    Stored(ChunkId),
    /// The initiator hears of it.
    Acked(ChunkId),
    /// A chunk was read from the SSD to be migrated.
    Read(ChunkId, u32),
    /// A migrated chunk came to an HDD.
    Moved(ChunkId),
    /// An HDD has a migrated chunk.
    Kept(ChunkId),
}

#[derive(Clone, Copy)]
struct Settings {
    capacity_bytes: u64,
    low_percent: u64,
    high_percent: u64,
    resume_percent: u64,
}

/// The SSD's state.
struct Ssd {
    settings: Settings,
    used_bytes: u64,
    used_max_bytes: u64,
    /// On the medium and not migrating, oldest first.
    held: VecDeque<ChunkId>,
    waiting: VecDeque<ChunkId>,
    /// Chunks of this cycle to receive; the rest is to migrate.
    share: u64,
    received: u64,
    migrated: u64,
    migrating: u32,
    stopped: bool,
}

struct Tiers {
    commands: Commands,
    ssd_window: u32,
    ssd: Ssd,
    /// From the initiator, by target.
    links: Vec<Link>,
    /// From the SSD, by target.
    inner: Vec<Link>,
    stores: Vec<Store>,
    next_hdd: u32,
    migrated: u64,
    stops: u64,
    /// Commands done and their latencies, nanoseconds: SSD, HDD.
    done: [(u64, u64); 2],
    chance: Chance,
}

/// The model as `segue sim` knows it.
pub const MODEL: Model = Model {
    name: "surge-c",
    about: "one initiator, an SSD in front of HDDs, migration between watermarks",
    source: "SURGE mc",
    keys: &[
        Key { name: "ssd_capacity", about: "bytes of the SSD", default: "100000KiB" },
        Key { name: "ssd_mbps", about: "its rate, MiB/s", default: "1400" },
        Key { name: "hdd_mbps", about: "rate of each HDD, MiB/s", default: "180" },
        Key { name: "ssd_window", about: "commands under way to the SSD", default: "32" },
        Key { name: "hdd_window", about: "commands under way to each HDD, 0 for none", default: "8" },
        Key { name: "low", about: "percent of the SSD below which it only receives", default: "40" },
        Key { name: "high", about: "percent from which it only migrates", default: "70" },
        Key { name: "resume", about: "percent at which it receives again after that", default: "55" },
    ],
    run: |scenario, mut options, seed, progress| {
        let mut tiers = Tiers::new(scenario, &mut options, seed)?;
        options.finish()?;
        // Open arrivals are a share of what the drives can take; most of them are HDDs.
        let drive_bytes_per_s = tiers.stores[1].spec().bytes_per_s;
        let scenario = Scenario { drive_bytes_per_s, ..tiers.commands.scenario(scenario) };
        let outcome = run(&mut tiers, &scenario, seed, progress)?;
        Ok(tiers.commands.relabel(outcome))
    },
};

impl Settings {
    fn new(scenario: &Scenario, options: &mut Options) -> Result<Settings, OptionError> {
        let least = 20 * largest_bytes(scenario);
        let settings = Settings {
            capacity_bytes: options.size("ssd_capacity")?.unwrap_or(100_000 << 10).max(least),
            low_percent: options.number("low")?.unwrap_or(40),
            high_percent: options.number("high")?.unwrap_or(70),
            resume_percent: options.number("resume")?.unwrap_or(55),
        };
        if settings.low_percent >= settings.high_percent || settings.high_percent > 90 {
            return Err(OptionError::Range { key: "high", range: "above low and at most 90" });
        }
        if !(settings.low_percent..settings.high_percent).contains(&settings.resume_percent) {
            return Err(OptionError::Range { key: "resume", range: "from low to below high" });
        }
        Ok(settings)
    }
}

impl Ssd {
    fn new(settings: Settings) -> Ssd {
        Ssd {
            settings,
            used_bytes: 0,
            used_max_bytes: 0,
            held: VecDeque::new(),
            waiting: VecDeque::new(),
            share: CYCLE,
            received: 0,
            migrated: 0,
            migrating: 0,
            stopped: false,
        }
    }

    fn percent(&self) -> u64 {
        self.used_bytes * 100 / self.settings.capacity_bytes
    }

    /// True when a waiting write may go to the medium.
    fn may_receive(&self, window: u32, bytes: u64) -> bool {
        let all_wait = self.waiting.len() >= window as usize && self.percent() < self.settings.high_percent;
        let room = self.used_bytes + bytes <= self.settings.capacity_bytes;
        room && (self.received < self.share || (all_wait && !self.stopped))
    }

    fn may_migrate(&self) -> bool {
        self.migrated < CYCLE - self.share && self.migrating < MIGRATING_MAX && !self.held.is_empty()
    }

    /// Starts the next cycle when this one is done; true when only migrating begins.
    fn turn(&mut self) -> Option<bool> {
        // An empty SSD has nothing left to migrate, however much the cycle asks for.
        let migrated = self.migrated >= CYCLE - self.share || self.used_bytes == 0;
        if self.received < self.share || !migrated {
            return None;
        }
        (self.received, self.migrated) = (0, 0);
        let Settings { low_percent: low, high_percent: high, resume_percent: resume, .. } = self.settings;
        let used = self.percent();
        let was_stopped = self.stopped;
        self.stopped = used >= high || (was_stopped && used > resume);
        let percent = match used {
            _ if self.stopped => 0,
            used if used <= low => 100,
            used => {
                let percent = 100 - (used - low) * 100 / (high - low);
                if percent < 60 { percent + 10 } else { percent }
            }
        };
        self.share = (CYCLE * percent + 50) / 100;
        Some(self.stopped && !was_stopped)
    }
}

impl Tiers {
    fn new(scenario: &Scenario, options: &mut Options, seed: u64) -> Result<Tiers, OptionError> {
        let mut rate = |key: &'static str, default: u64| -> Result<u64, OptionError> {
            let mbps = options.number(key)?.unwrap_or(default);
            if (1..=1 << 24).contains(&mbps) {
                Ok(mbps << 20)
            } else {
                Err(OptionError::Range { key, range: "1 to 16,777,216 MiB/s" })
            }
        };
        let (ssd_rate, hdd_rate) = (rate("ssd_mbps", 1400)?, rate("hdd_mbps", 180)?);
        let ssd_window = options.number("ssd_window")?.unwrap_or(32);
        let hdd_window = options.number("hdd_window")?.unwrap_or(8);
        if !(1..=1024).contains(&ssd_window) || hdd_window > 1024 {
            return Err(OptionError::Range { key: "ssd_window", range: "1 to 1024; hdd_window at most 1024" });
        }
        let with_rate = |drive_bytes_per_s| Scenario { drive_bytes_per_s, ..scenario.clone() };
        let (ssd, hdd) = (with_rate(ssd_rate), with_rate(hdd_rate));
        let sizes = (0..scenario.targets).map(|n| if n == 0 { ssd_window } else { hdd_window } as u32);
        let links = || (0..scenario.targets).map(|_| Link::new(LINK)).collect();
        Ok(Tiers {
            commands: Commands::new(sizes),
            ssd_window: ssd_window as u32,
            ssd: Ssd::new(Settings::new(scenario, options)?),
            links: links(),
            inner: links(),
            stores: (0..scenario.targets).map(|n| store(if n == 0 { &ssd } else { &hdd }, n)).collect(),
            next_hdd: 1,
            migrated: 0,
            stops: 0,
            done: [(0, 0); 2],
            chance: Chance::new(seed).stream("tiers"),
        })
    }

    fn target(&self, sim: &Sim<'_, Event>, chunk: ChunkId) -> u32 {
        self.commands.window(sim.chunk(chunk).initiator)
    }

    fn issue(&mut self, sim: &mut Sim<'_, Event>, target: u32, chunk: ChunkId) {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let link = &mut self.links[target as usize];
        let arrives_ns = command_ns(link, now, (CONTROL_BYTES, bytes), &mut self.chance);
        sim.audit.sent(bytes);
        sim.post(arrives_ns, sim.target_node(target), Event::Came(chunk));
    }

    /// A write goes to a drive.
    fn write(&mut self, sim: &mut Sim<'_, Event>, target: u32, chunk: ChunkId) -> Result<(), Violation> {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let store = &mut self.stores[target as usize];
        let busy_ns = store.stats().busy_ns;
        let (ack_ns, medium_ns) = served(store.write(now, bytes, &mut self.chance));
        sim.audit.received(now, target, bytes, medium_ns, store.stats().busy_ns - busy_ns)?;
        sim.post(ack_ns, sim.target_node(target), Event::Stored(chunk));
        if target == 0 {
            sim.post(medium_ns, sim.target_node(0), Event::OnSsd(chunk));
            self.ssd.received += 1;
            self.ssd.used_bytes += bytes;
            self.ssd.used_max_bytes = self.ssd.used_max_bytes.max(self.ssd.used_bytes);
            assert!(self.ssd.used_bytes <= self.ssd.settings.capacity_bytes, "the SSD holds more than it can");
        }
        Ok(())
    }

    /// The SSD does what it may: writes that wait, migration, the next cycle.
    fn pump(&mut self, sim: &mut Sim<'_, Event>) -> Result<(), Violation> {
        loop {
            while let Some(chunk) = self.ssd.waiting.front().copied() {
                if !self.ssd.may_receive(self.ssd_window, sim.chunk(chunk).bytes) {
                    break;
                }
                self.ssd.waiting.pop_front();
                self.write(sim, 0, chunk)?;
            }
            while self.ssd.may_migrate() {
                self.migrate(sim)?;
            }
            match self.ssd.turn() {
                None => return Ok(()),
                Some(stops) => self.stops += u64::from(stops),
            }
        }
    }

    /// The oldest chunk is read, for the HDD whose turn it is.
    fn migrate(&mut self, sim: &mut Sim<'_, Event>) -> Result<(), Violation> {
        let chunk = self.ssd.held.pop_front().expect("there is a chunk to migrate");
        let hdd = self.next_hdd;
        self.next_hdd = hdd % (sim.scenario().targets - 1) + 1;
        self.ssd.migrated += 1;
        self.ssd.migrating += 1;
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let before_ns = self.stores[0].stats().busy_ns;
        let (_, read_ns) = served(self.stores[0].read(now, bytes, &mut self.chance));
        sim.audit.worked(now, 0, read_ns, self.stores[0].stats().busy_ns - before_ns)?;
        sim.post(read_ns, sim.target_node(0), Event::Read(chunk, hdd));
        Ok(())
    }

    /// A migrated chunk came to an HDD.
    fn moved(&mut self, sim: &mut Sim<'_, Event>, hdd: u32, chunk: ChunkId) -> Result<(), Violation> {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let store = &mut self.stores[hdd as usize];
        let before_ns = store.stats().busy_ns;
        let (_, medium_ns) = served(store.write(now, bytes / SEQUENTIAL, &mut self.chance));
        sim.audit.received(now, hdd, bytes, medium_ns, store.stats().busy_ns - before_ns)?;
        sim.post(medium_ns, sim.target_node(hdd), Event::Kept(chunk));
        Ok(())
    }

    fn acked(&mut self, sim: &mut Sim<'_, Event>, chunk: ChunkId) -> Result<(), Violation> {
        let target = self.target(sim, chunk);
        let done = &mut self.done[usize::from(target > 0)];
        done.0 += 1;
        done.1 += sim.now() - sim.chunk(chunk).created_ns;
        let next = self.commands.done(target);
        sim.finish(chunk)?;
        if let Some(next) = next {
            self.issue(sim, target, next);
        }
        Ok(())
    }
}

impl Protocol for Tiers {
    type Event = Event;

    fn arrive(&mut self, sim: &mut Sim<'_, Event>, source: u32, chunk: ChunkId) -> Result<(), Violation> {
        if self.commands.arrive(source, chunk) {
            self.issue(sim, self.commands.window(source), chunk);
        }
        Ok(())
    }

    fn event(&mut self, sim: &mut Sim<'_, Event>, node: u32, event: Event) -> Result<(), Violation> {
        match event {
            Event::Came(chunk) if node == 0 => {
                self.ssd.waiting.push_back(chunk);
                self.pump(sim)
            }
            Event::Came(chunk) => self.write(sim, node, chunk),
            Event::OnSsd(chunk) => {
                self.ssd.held.push_back(chunk);
                self.pump(sim)
            }
            Event::Stored(chunk) => {
                let facts = *sim.chunk(chunk);
                sim.audit.stored(sim.now(), node, chunk, facts.bytes)?;
                let acked_ns = sim.now() + LINK.framing.control_ns(CONTROL_BYTES) + LINK.propagation_ns;
                sim.post(acked_ns, sim.initiator_node(facts.initiator), Event::Acked(chunk));
                Ok(())
            }
            Event::Acked(chunk) => self.acked(sim, chunk),
            Event::Read(chunk, hdd) => {
                let bytes = sim.chunk(chunk).bytes;
                let sent = self.inner[hdd as usize].send(sim.now(), bytes, Class::Data, &mut self.chance);
                sim.audit.sent(bytes);
                sim.post(arrival_ns(sent), sim.target_node(hdd), Event::Moved(chunk));
                Ok(())
            }
            Event::Moved(chunk) => self.moved(sim, node, chunk),
            Event::Kept(chunk) => {
                let bytes = sim.chunk(chunk).bytes;
                sim.audit.stored(sim.now(), node, chunk, bytes)?;
                self.ssd.used_bytes -= bytes;
                self.ssd.migrating -= 1;
                self.migrated += 1;
                self.pump(sim)
            }
        }
    }

    fn fingerprint(event: &Event) -> u64 {
        let (kind, chunk) = match event {
            Event::Came(chunk) => (0, chunk),
            Event::OnSsd(chunk) => (1, chunk),
            Event::Stored(chunk) => (2, chunk),
            Event::Acked(chunk) => (3, chunk),
            Event::Read(chunk, _) => (4, chunk),
            Event::Moved(chunk) => (5, chunk),
            Event::Kept(chunk) => (6, chunk),
        };
        (kind << 60) | u64::from(chunk.0)
    }

    fn counters(&self, _: &Sim<'_, Event>) -> Vec<(&'static str, u64)> {
        let mean = |(count, sum): (u64, u64)| sum.checked_div(count).unwrap_or(0);
        vec![
            ("ssd_writes", self.done[0].0),
            ("ssd_mean_ns", mean(self.done[0])),
            ("hdd_writes", self.done[1].0),
            ("hdd_mean_ns", mean(self.done[1])),
            ("migrated", self.migrated),
            ("stops", self.stops),
            ("ssd_used_max_percent", self.ssd.used_max_bytes * 100 / self.ssd.settings.capacity_bytes),
        ]
    }
}
