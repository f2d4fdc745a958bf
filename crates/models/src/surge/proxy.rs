//! SURGE ma: one target of each group negotiates for all of them; multicast data.
//!
//! Owns: the messages between initiators, proxies and targets, and their accounts. Never: which targets a proxy chooses; that is
//! in `ledger`.
//! Invariant: a target's windows are booked by its proxy alone, and are disjoint; each booking is told to its target once.
//!
//! An initiator asks the proxy of a group, its first target. The proxy keeps what it has booked for all targets of the group and
//! when it thinks their drives will be done. It chooses the targets that would begin to write first, books one window of 140 %
//! of a transfer at all of them, and tells them and the initiator. The initiator sends one multicast. A target that has it all
//! reports that to the proxy with the true time of its drive.
//!
//! Stated by SURGE: all of this; a proxy's control link is busy with one request's messages (one to each chosen target and one to
//! the initiator) before it takes the next; chosen targets are told apart at random when they are equal; one of them reads.
//!
//! With `published=true` the estimate of a drive with a long queue has SURGE's arithmetic, which counts the time until the data
//! comes twice. By default it does not.
//!
//! Inferred: no window begins before its initiator can know of it; the proxy's own booking needs no message and is told at once;
//! with open arrivals the next chunk begins when the last one is sent.

use super::common::{Drives, Lengths, Waiting, fingerprint, multicast_lengths, reads};
use super::ledger::{Ledger, View};
use super::replicast::{KEYS, Rules, members};
use crate::storage::registry::Model;
use crate::storage::{Carried, ChunkId, Protocol, Scenario, Sim, Violation, run};
use segue_des::Chance;
use segue_types::Nanos;
use std::collections::VecDeque;

/// For the list of models.
pub const MODEL: Model = Model {
    name: "surge-a",
    about: "Replicast by proxy: one target of a group books for all, multicast data",
    source: "SURGE ma",
    keys: KEYS,
    run: |scenario, mut options, seed, progress| {
        let rules = Rules::with(&mut options)?;
        options.finish()?;
        Ok(run(&mut Proxied::new(rules, scenario, seed, Plant::None), scenario, seed, progress)?)
    },
};

/// Bugs that tests plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plant {
    /// None.
    None,
    /// A proxy forgets a booking at once.
    #[cfg(test)]
    Forgetful,
    /// A proxy tells a target twice.
    #[cfg(test)]
    ToldTwice,
    /// A chosen target is not told.
    #[cfg(test)]
    NotTold,
}

/// What happens to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// To a proxy: a request.
    Request(ChunkId),
    /// To a proxy: its control link is free.
    Free,
    /// To a target: a window was booked for it.
    Booked { chunk: ChunkId, left_ns: Nanos },
    /// To an initiator: its window; the targets are in the booking.
    Window { chunk: ChunkId, left_ns: Nanos },
    /// To a target: the last byte.
    Last { chunk: ChunkId, left_ns: Nanos, reads: bool },
    /// To a proxy: a target has it all; its drive is done then.
    Done { chunk: ChunkId, target: u32, until_ns: Nanos },
    /// To a target: its drive has written the chunk.
    Stored(ChunkId),
    /// To an initiator: a target's acknowledgement.
    Acknowledged { chunk: ChunkId, target: u32 },
    /// To an initiator: its link is free.
    Sent,
}

struct Proxy {
    ledger: Ledger,
    chance: Chance,
    busy_until_ns: Nanos,
    delayed: VecDeque<ChunkId>,
}

pub(super) struct Proxied {
    rules: Rules,
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests plant bugs"))]
    plant: Plant,
    waiting: Waiting,
    drives: Drives,
    proxies: Vec<Proxy>,
    /// Whom a chunk was booked at: members of its group, bit by bit.
    chosen: Vec<u64>,
    /// What targets were told of and have not got.
    told: Vec<Vec<ChunkId>>,
    messages: u64,
    delayed: u64,
    reads: u64,
}

type World<'a> = Sim<'a, Event>;

impl Proxied {
    pub(super) fn new(rules: Rules, scenario: &Scenario, seed: u64, plant: Plant) -> Proxied {
        let root = Chance::new(seed);
        let proxy = |group: u32| Proxy {
            ledger: Ledger::new(scenario.group_targets),
            chance: root.stream(&format!("proxy {group}")),
            busy_until_ns: 0,
            delayed: VecDeque::new(),
        };
        Proxied {
            rules,
            plant,
            waiting: Waiting::new(scenario),
            drives: Drives::new(scenario),
            proxies: (0..scenario.groups()).map(proxy).collect(),
            chosen: Vec::new(),
            told: vec![Vec::new(); scenario.targets as usize],
            messages: 0,
            delayed: 0,
            reads: 0,
        }
    }

    fn begin(&mut self, sim: &mut World<'_>, chunk: ChunkId) {
        let proxy = members(sim.scenario(), sim.chunk(chunk).group).start;
        let at = sim.now() + sim.timing().message_ns();
        sim.post(at, proxy, Event::Request(chunk));
        self.messages += 1;
    }

    fn request(&mut self, sim: &mut World<'_>, node: u32, chunk: ChunkId) -> Result<(), Violation> {
        let group = node / sim.scenario().group_targets;
        let proxy = &mut self.proxies[group as usize];
        if sim.now() >= proxy.busy_until_ns && proxy.delayed.is_empty() {
            return self.book(sim, group, chunk);
        }
        if proxy.delayed.is_empty() {
            sim.post(proxy.busy_until_ns, node, Event::Free);
        }
        proxy.delayed.push_back(chunk);
        self.delayed += 1;
        Ok(())
    }

    fn free(&mut self, sim: &mut World<'_>, node: u32) -> Result<(), Violation> {
        let group = node / sim.scenario().group_targets;
        let Some(chunk) = self.proxies[group as usize].delayed.pop_front() else { return Ok(()) };
        self.book(sim, group, chunk)?;
        let proxy = &self.proxies[group as usize];
        if !proxy.delayed.is_empty() {
            sim.post(proxy.busy_until_ns, node, Event::Free);
        }
        Ok(())
    }

    /// Chooses targets for a chunk, books them, tells them and the initiator.
    fn book(&mut self, sim: &mut World<'_>, group: u32, chunk: ChunkId) -> Result<(), Violation> {
        let (now, timing, facts) = (sim.now(), *sim.timing(), *sim.chunk(chunk));
        let (copies, first) = (sim.scenario().copies, group * sim.scenario().group_targets);
        let proxy = &mut self.proxies[group as usize];
        proxy.busy_until_ns = now + u64::from(copies + 1) * timing.control_ns;
        let view = View { now, timing: &timing, scenario: sim.scenario(), bytes: facts.bytes, first_target: first };
        let Lengths { window_ns, .. } = multicast_lengths(&timing, facts.bytes, PERMILLE);
        let (members, left_ns) = proxy.ledger.choose(&view, copies, &mut proxy.chance, self.rules.published);
        let mut chosen = 0u64;
        for member in &members[..copies as usize] {
            let target = first + u32::from(*member);
            chosen |= 1 << member;
            proxy.ledger.book(&view, *member, chunk, left_ns + window_ns);
            #[cfg(test)]
            if self.plant == Plant::Forgetful {
                proxy.ledger.done(*member, chunk, 0);
            }
            sim.audit.bid(now, target, chunk, 0)?;
            sim.audit.targets.add(now, target, left_ns, left_ns + window_ns)?;
            #[cfg(test)]
            match self.plant {
                Plant::ToldTwice => sim.post(now + timing.message_ns(), target, Event::Booked { chunk, left_ns }),
                Plant::NotTold if target != first => continue,
                _ => {}
            }
            if target == first {
                self.told[target as usize].push(chunk);
                sim.audit.settle(now, target, chunk, 0)?;
            } else {
                sim.post(now + timing.message_ns(), target, Event::Booked { chunk, left_ns });
                self.messages += 1;
            }
        }
        if self.chosen.len() <= chunk.0 as usize {
            self.chosen.resize(chunk.0 as usize + 1, 0);
        }
        self.chosen[chunk.0 as usize] = chosen;
        let node = sim.initiator_node(facts.initiator);
        sim.post(now + timing.message_ns(), node, Event::Window { chunk, left_ns });
        self.messages += 1;
        Ok(())
    }

    /// The initiator knows its window: it sends when that begins.
    fn window(&mut self, sim: &mut World<'_>, chunk: ChunkId, left_ns: Nanos) -> Result<(), Violation> {
        let (now, facts) = (sim.now(), *sim.chunk(chunk));
        assert!(left_ns >= now, "a window begins after its initiator knows of it");
        let sent_ns = left_ns + sim.timing().framed_ns(facts.bytes);
        let came_ns = sent_ns + sim.timing().trip_ns;
        let copies = sim.scenario().copies;
        let mut reader = reads(chunk, self.rules.reads_permille).then_some(chunk.0 % copies);
        let first = members(sim.scenario(), facts.group).start;
        let mut chosen = self.chosen[chunk.0 as usize];
        while chosen != 0 {
            let target = first + chosen.trailing_zeros();
            chosen &= chosen - 1;
            sim.post(came_ns, target, Event::Last { chunk, left_ns, reads: reader == Some(0) });
            reader = reader.and_then(|turn| turn.checked_sub(1));
        }
        sim.audit.sent(facts.bytes * u64::from(copies));
        sim.audit.initiators.add(now, facts.initiator, left_ns, sent_ns)?;
        self.waiting.sends_until(sim, facts.initiator, sent_ns, Event::Sent);
        Ok(())
    }

    fn last(
        &mut self,
        sim: &mut World<'_>,
        target: u32,
        (chunk, left_ns): (ChunkId, Nanos),
        reads: bool,
    ) -> Result<(), Violation> {
        let (now, message_ns) = (sim.now(), sim.timing().message_ns());
        let told = &mut self.told[target as usize];
        match told.iter().position(|c| *c == chunk) {
            Some(at) => told.swap_remove(at),
            None => return Err(Violation::NoSuchBid { now_ns: now, target, chunk: chunk.0 }),
        };
        sim.audit.targets.shorten(target, left_ns, Some(now));
        self.drives.keep(sim, target, chunk, (Event::Stored(chunk), Event::Acknowledged { chunk, target }))?;
        self.messages += 1;
        if reads {
            self.drives.read(sim, target, chunk)?;
            self.reads += 1;
        }
        let until_ns = self.drives.until_ns(target);
        let proxy = members(sim.scenario(), sim.chunk(chunk).group).start;
        if target == proxy {
            self.done(sim, proxy, chunk, target, until_ns);
        } else {
            sim.post(now + message_ns, proxy, Event::Done { chunk, target, until_ns });
            self.messages += 1;
        }
        Ok(())
    }

    fn done(&mut self, sim: &World<'_>, proxy: u32, chunk: ChunkId, target: u32, until_ns: Nanos) {
        let group = sim.chunk(chunk).group as usize;
        self.proxies[group].ledger.done((target - proxy) as u8, chunk, until_ns);
    }
}

/// Windows are this much longer than a transfer, thousandths.
const PERMILLE: u64 = 1_400;

impl Protocol for Proxied {
    type Event = Event;

    fn arrive(&mut self, sim: &mut World<'_>, initiator: u32, chunk: ChunkId) -> Result<(), Violation> {
        if let Some(chunk) = self.waiting.arrive(initiator, chunk) {
            self.begin(sim, chunk);
        }
        Ok(())
    }

    fn event(&mut self, sim: &mut World<'_>, node: u32, event: Event) -> Result<(), Violation> {
        match event {
            Event::Request(chunk) => self.request(sim, node, chunk),
            Event::Free => self.free(sim, node),
            Event::Booked { chunk, .. } => {
                let now = sim.now();
                self.told[node as usize].push(chunk);
                sim.audit.settle(now, node, chunk, 0)
            }
            Event::Window { chunk, left_ns } => self.window(sim, chunk, left_ns),
            Event::Last { chunk, left_ns, reads } => self.last(sim, node, (chunk, left_ns), reads),
            Event::Done { chunk, target, until_ns } => {
                self.done(sim, node, chunk, target, until_ns);
                Ok(())
            }
            Event::Stored(chunk) => Drives::stored(sim, node, chunk),
            Event::Acknowledged { chunk, target } => self.waiting.acknowledge(sim, target, chunk),
            Event::Sent => {
                let initiator = node - sim.scenario().targets;
                if let Some(chunk) = self.waiting.free(initiator) {
                    self.begin(sim, chunk);
                }
                Ok(())
            }
        }
    }

    const COUNTED: bool = true;

    fn carries(&self, sim: &World<'_>, event: &Event) -> Carried {
        match *event {
            Event::Last { chunk, .. } => Carried::on_the_way(sim.chunk(chunk).bytes),
            Event::Stored(chunk) => Carried::in_a_drive(sim.chunk(chunk).bytes),
            _ => Carried::default(),
        }
    }

    fn fingerprint(event: &Event) -> u64 {
        fingerprint(match *event {
            Event::Request(chunk) => (0, chunk.0, 0),
            Event::Free => (1, 0, 0),
            Event::Booked { chunk, left_ns } => (2, chunk.0, left_ns),
            Event::Window { chunk, left_ns } => (3, chunk.0, left_ns),
            Event::Last { chunk, reads, .. } => (4, chunk.0, u64::from(reads)),
            Event::Done { chunk, target, until_ns } => (5 + u64::from(target) * 16, chunk.0, until_ns),
            Event::Acknowledged { chunk, target } => (6 + u64::from(target) * 16, chunk.0, 0),
            Event::Sent => (7, 0, 0),
            Event::Stored(chunk) => (8, chunk.0, 0),
        })
    }

    fn counters(&self, sim: &World<'_>) -> Vec<(&'static str, u64)> {
        vec![
            ("delayed_requests", self.delayed),
            ("control_messages", self.messages),
            ("reads", self.reads),
            ("open_bids", sim.audit.open_bids() as u64),
            ("in_flight_bytes", sim.audit.in_flight_bytes()),
        ]
    }
}
