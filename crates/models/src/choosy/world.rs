//! The world of a run: it carries messages, transfers and disk writes between the machines.
//!
//! Owns: what is on its way, and each drive's backlog. Never: a decision of the protocol.
//! Invariant: each message takes one control message's time, each transfer begins with its window; the accounts see both.

use super::variant::Faults;
use crate::storage::{Acknowledge, Carried, ChunkId, Protocol, Scenario, Sim, Sizes, Violation};
use segue_cluster::reserve::{
    Ask, Backlog, Bid, DriveRule, Initiator, InitiatorEvent, InitiatorOut, Reply, Rules, Span, Target, TargetEvent,
    TargetOut, Window, WriteId,
};
use segue_des::Chance;
use segue_des::{prefetch, prefetch_at};
use segue_types::Nanos;
use std::collections::VecDeque;

/// A bug that is put into the world, to see that the accounts catch it.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Planted {
    /// Targets have two machines that do not know of each other's windows.
    TwoMinds,
    /// Targets pass each cancellation to their accounts twice.
    SettleTwice,
}

/// What happens to a node.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Request { chunk: u32, round: u32, not_before_ns: Nanos },
    Accept { chunk: u32, round: u32, window: Window },
    Cancel { chunk: u32, round: u32 },
    Data { chunk: u32, round: u32 },
    Stored { chunk: u32, acknowledge: bool },
    Bid { chunk: u32, round: u32, member: u8, window: Window },
    Acknowledged { chunk: u32, member: u8 },
    Wake,
}

/// What a chunk of one size takes.
#[derive(Clone, Copy)]
struct Takes {
    span: Span,
    framed_ns: Nanos,
    /// On a drive that is not slow.
    write_ns: Nanos,
    depth: u32,
}

/// A target with its drive.
struct Node {
    machine: Target,
    /// When the drive will be done with all it has.
    free_ns: Nanos,
    /// The drive's speed, thousandths of the others'.
    permille: u64,
}

/// All nodes of a run.
pub(crate) struct World {
    /// What the accounts hold the machines to.
    pub(super) rules: Rules,
    /// The node number of the first initiator.
    first_initiator: u32,
    group_targets: u32,
    initiators: Vec<Initiator>,
    targets: Vec<Node>,
    /// Chunks that came while one was negotiated (open arrivals), by initiator.
    waiting: Vec<VecDeque<ChunkId>>,
    /// By the size's power of two; one entry when all chunks are of one size.
    takes: Vec<Takes>,
    powers: bool,
    control_messages: u64,
    lost_messages: u64,
    faults: Option<(Faults, Chance)>,
    #[cfg(test)]
    pub(super) planted: Option<Planted>,
    of_initiator: Vec<InitiatorOut>,
    of_target: Vec<TargetOut>,
}

impl World {
    /// The nodes of a scenario, under these rules.
    pub fn new(rules: Rules, scenario: &Scenario) -> World {
        let links = scenario.fabric.timing().links();
        let sizes: Vec<u64> = match scenario.sizes {
            Sizes::Fixed(bytes) => vec![bytes],
            Sizes::Powers(_, max) => (0..=max.ilog2()).map(|power| 1 << power).collect(),
        };
        let depth = |bytes: u64| ((256 << 10) / bytes).max(2) as u32;
        let even = Scenario { slow: Vec::new(), ..scenario.clone() };
        let takes = |bytes: &u64| Takes {
            span: links.span(*bytes),
            framed_ns: links.framed_ns(*bytes),
            write_ns: even.drive_ns(0, *bytes),
            depth: depth(*bytes),
        };
        let drive = match scenario.acknowledge {
            Acknowledge::WriteThrough => DriveRule::WriteThrough,
            Acknowledge::WriteBack => DriveRule::WriteBack,
        };
        let targets = scenario.groups() * scenario.group_targets;
        let node = |target| Node {
            machine: Target::new(rules, drive, links),
            free_ns: 0,
            permille: scenario.slow.iter().find(|s| s.target == target).map_or(1_000, |s| s.permille),
        };
        World {
            rules,
            first_initiator: scenario.targets,
            group_targets: scenario.group_targets,
            initiators: (0..scenario.initiators)
                .map(|_| Initiator::new(rules, links, scenario.group_targets))
                .collect(),
            targets: (0..targets).map(node).collect(),
            waiting: vec![VecDeque::new(); scenario.initiators as usize],
            takes: sizes.iter().map(takes).collect(),
            powers: sizes.len() > 1,
            control_messages: 0,
            lost_messages: 0,
            faults: None,
            #[cfg(test)]
            planted: None,
            of_initiator: Vec::with_capacity(16),
            of_target: Vec::with_capacity(16),
        }
    }

    /// Lets things go wrong, by this chance.
    pub fn trouble(&mut self, faults: Faults, chance: Chance) {
        self.faults = Some((faults, chance));
    }

    fn initiator_of(&self, node: u32) -> usize {
        node.wrapping_sub(self.first_initiator) as usize
    }

    fn class(&self, bytes: u64) -> usize {
        if self.powers { bytes.ilog2() as usize } else { 0 }
    }

    fn backlog(&self, target: u32, class: usize) -> Backlog {
        let (node, takes) = (&self.targets[target as usize], &self.takes[class]);
        let write_ns = match node.permille {
            1_000 => takes.write_ns,
            permille => takes.write_ns * 1_000 / permille,
        };
        Backlog { free_ns: node.free_ns, write_ns, depth: takes.depth }
    }

    fn target(&mut self, sim: &mut Sim<'_, Event>, target: u32, event: Event) -> Result<(), Violation> {
        let now = sim.now();
        if self.is_dead(now, target) {
            sim.audit.lost(self.carries(sim, &event));
            return Ok(());
        }
        let (chunk, event) = match event {
            Event::Request { chunk, round, not_before_ns } => {
                let class = self.class(sim.chunk(ChunkId(chunk)).bytes);
                let Span { transfer_ns, window_ns } = self.takes[class].span;
                let ask = Ask { write: WriteId(u64::from(chunk)), round, not_before_ns, transfer_ns, window_ns };
                (chunk, TargetEvent::Request { ask, backlog: self.backlog(target, class) })
            }
            Event::Accept { chunk, round, window } => (chunk, settle(chunk, round, Some(window))),
            Event::Cancel { chunk, round } => (chunk, settle(chunk, round, None)),
            Event::Data { chunk, round } => {
                let class = self.class(sim.chunk(ChunkId(chunk)).bytes);
                let write = WriteId(u64::from(chunk));
                (chunk, TargetEvent::Data { write, round, backlog: self.backlog(target, class) })
            }
            Event::Stored { chunk, acknowledge } => {
                let bytes = sim.chunk(ChunkId(chunk)).bytes;
                sim.audit.stored(now, target, ChunkId(chunk), bytes)?;
                if acknowledge {
                    self.acknowledge(sim, target, chunk);
                }
                return Ok(());
            }
            Event::Bid { .. } | Event::Acknowledged { .. } | Event::Wake => unreachable!("an initiator's event"),
        };
        let mut out = std::mem::take(&mut self.of_target);
        let machine = self.machine(target, chunk);
        self.targets[machine].machine.step(now, event, &mut out);
        for action in out.drain(..) {
            self.target_does(sim, target, chunk, action)?;
        }
        self.of_target = out;
        Ok(())
    }

    #[cfg(not(test))]
    const fn machine(&self, target: u32, _chunk: u32) -> usize {
        target as usize
    }

    #[cfg(test)]
    fn machine(&self, target: u32, chunk: u32) -> usize {
        match self.planted {
            // Targets that are not asked lend their machines.
            Some(Planted::TwoMinds) if chunk % 2 == 1 => self.targets.len() - 1 - target as usize,
            _ => target as usize,
        }
    }

    fn target_does(
        &mut self,
        sim: &mut Sim<'_, Event>,
        target: u32,
        chunk: u32,
        action: TargetOut,
    ) -> Result<(), Violation> {
        let now = sim.now();
        match action {
            TargetOut::Bid { write, round, window } => {
                sim.audit.bid(now, target, chunk_of(write), round)?;
                let member = (target % self.group_targets) as u8;
                self.tell_initiator(sim, chunk, Event::Bid { chunk, round, member, window });
            }
            TargetOut::Accepted { write, round, window } => {
                sim.audit.settle(now, target, chunk_of(write), round)?;
                sim.audit.targets.add(now, target, window.left_ns, window.right_ns)?;
            }
            TargetOut::Cancelled { write, round } | TargetOut::Expired { write, round, accepted: false } => {
                sim.audit.settle(now, target, chunk_of(write), round)?;
                #[cfg(test)]
                if self.planted == Some(Planted::SettleTwice) {
                    sim.audit.settle(now, target, chunk_of(write), round)?;
                }
            }
            TargetOut::Expired { accepted: true, .. } => {}
            TargetOut::Store { write, reply, window } => {
                let initiator = sim.chunk(chunk_of(write)).initiator;
                sim.audit.targets.shorten(target, window.left_ns, Some(now));
                sim.audit.initiators.shorten(initiator, window.left_ns, Some(now));
                let bytes = sim.chunk(chunk_of(write)).bytes;
                let backlog = self.backlog(target, self.class(bytes));
                let free_ns = backlog.free_ns.max(now) + backlog.write_ns;
                self.targets[target as usize].free_ns = free_ns;
                sim.audit.received(now, target, bytes, free_ns, backlog.write_ns)?;
                if reply == Reply::AtOnce {
                    sim.audit.vouched(target, chunk_of(write));
                    self.acknowledge(sim, target, chunk);
                }
                let acknowledge = reply == Reply::WhenStored;
                sim.post(free_ns, sim.target_node(target), Event::Stored { chunk, acknowledge });
            }
            // Data without a window: the target lets it go by.
            TargetOut::Refuse { .. } => sim.audit.lost(self.carries(sim, &Event::Data { chunk, round: 0 })),
        }
        Ok(())
    }

    fn acknowledge(&mut self, sim: &mut Sim<'_, Event>, target: u32, chunk: u32) {
        let member = (target % self.group_targets) as u8;
        self.tell_initiator(sim, chunk, Event::Acknowledged { chunk, member });
    }

    fn tell_initiator(&mut self, sim: &mut Sim<'_, Event>, chunk: u32, event: Event) {
        let node = sim.initiator_node(sim.chunk(ChunkId(chunk)).initiator);
        self.message(sim, node, event);
    }

    fn message(&mut self, sim: &mut Sim<'_, Event>, node: u32, event: Event) {
        self.control_messages += 1;
        if self.is_lost(sim.now()) {
            return;
        }
        sim.post(sim.now() + sim.timing().message_ns(), node, event);
    }

    fn is_lost(&mut self, now: Nanos) -> bool {
        let Some((faults, chance)) = &mut self.faults else { return false };
        let lost = now < faults.lost_until_ns && chance.odds(faults.lost_permille, 1_000);
        self.lost_messages += u64::from(lost);
        lost
    }

    fn is_dead(&self, now: Nanos, target: u32) -> bool {
        self.faults.as_ref().is_some_and(|(faults, _)| faults.is_dead(now, target))
    }

    fn initiator(&mut self, sim: &mut Sim<'_, Event>, initiator: u32, event: InitiatorEvent) -> Result<(), Violation> {
        let now = sim.now();
        let mut out = std::mem::take(&mut self.of_initiator);
        self.initiators[initiator as usize].step(now, event, &mut out);
        while self.initiators[initiator as usize].ready()
            && let Some(chunk) = self.waiting[initiator as usize].pop_front()
        {
            let event = InitiatorEvent::Write { write: WriteId(u64::from(chunk.0)), bytes: sim.chunk(chunk).bytes };
            self.initiators[initiator as usize].step(now, event, &mut out);
        }
        for action in out.drain(..) {
            self.initiator_does(sim, initiator, action)?;
        }
        self.of_initiator = out;
        Ok(())
    }

    fn initiator_does(
        &mut self,
        sim: &mut Sim<'_, Event>,
        initiator: u32,
        action: InitiatorOut,
    ) -> Result<(), Violation> {
        let now = sim.now();
        match action {
            InitiatorOut::Request { to, ask: Ask { write, round, not_before_ns, .. } } => {
                let chunk = chunk_of(write).0;
                for target in members(self.first_target(sim, chunk), to) {
                    self.message(sim, target, Event::Request { chunk, round, not_before_ns });
                }
            }
            InitiatorOut::Settle { to, write, round, grants } => {
                let chunk = chunk_of(write).0;
                let first = self.first_target(sim, chunk);
                for target in members(first, to) {
                    let event = match grants.of((target - first) as u8) {
                        Some(window) => Event::Accept { chunk, round, window },
                        None => Event::Cancel { chunk, round },
                    };
                    self.message(sim, target, event);
                }
            }
            InitiatorOut::Trim { write, round, grant } => {
                let target = self.first_target(sim, chunk_of(write).0) + u32::from(grant.member);
                let event = TargetEvent::Trim { write, round, window: grant.window };
                let machine = self.machine(target, chunk_of(write).0);
                self.targets[machine].machine.step(now, event, &mut self.of_target);
            }
            InitiatorOut::Send { write, round, grant } => {
                let chunk = chunk_of(write).0;
                let bytes = sim.chunk(ChunkId(chunk)).bytes;
                let Window { left_ns, right_ns } = grant.window;
                let added = sim.audit.initiators.add(now, initiator, left_ns, right_ns);
                if self.rules.own_link {
                    added?;
                }
                sim.audit.sent(bytes);
                let last_ns = left_ns + self.takes[self.class(bytes)].framed_ns + sim.timing().trip_ns;
                let target = self.first_target(sim, chunk) + u32::from(grant.member);
                let data = Event::Data { chunk, round };
                if self.is_lost(now) {
                    sim.audit.lost(self.carries(sim, &data));
                } else {
                    sim.post(last_ns, target, data);
                }
            }
            InitiatorOut::Wake { at_ns } => sim.post(at_ns, sim.initiator_node(initiator), Event::Wake),
            InitiatorOut::Done { write } => sim.finish(chunk_of(write))?,
        }
        Ok(())
    }

    fn first_target(&self, sim: &Sim<'_, Event>, chunk: u32) -> u32 {
        sim.chunk(ChunkId(chunk)).group * self.group_targets
    }
}

impl Protocol for World {
    type Event = Event;

    fn arrive(&mut self, sim: &mut Sim<'_, Event>, initiator: u32, chunk: ChunkId) -> Result<(), Violation> {
        if !self.initiators[initiator as usize].ready() {
            self.waiting[initiator as usize].push_back(chunk);
            return Ok(());
        }
        let event = InitiatorEvent::Write { write: WriteId(u64::from(chunk.0)), bytes: sim.chunk(chunk).bytes };
        self.initiator(sim, initiator, event)
    }

    fn event(&mut self, sim: &mut Sim<'_, Event>, node: u32, event: Event) -> Result<(), Violation> {
        let event = match event {
            Event::Bid { chunk, round, member, window } => {
                InitiatorEvent::Bid { write: WriteId(u64::from(chunk)), round, bid: Bid { member, window } }
            }
            Event::Acknowledged { chunk, member } => {
                InitiatorEvent::Acknowledged { write: WriteId(u64::from(chunk)), member }
            }
            Event::Wake => InitiatorEvent::Wake,
            event => return self.target(sim, node, event),
        };
        let initiator = node - sim.initiator_node(0);
        self.initiator(sim, initiator, event)
    }

    const COUNTED: bool = true;

    fn carries(&self, sim: &Sim<'_, Event>, event: &Event) -> Carried {
        match *event {
            Event::Data { chunk, .. } => Carried::on_the_way(sim.chunk(ChunkId(chunk)).bytes),
            Event::Stored { chunk, .. } => Carried::in_a_drive(sim.chunk(ChunkId(chunk)).bytes),
            _ => Carried::default(),
        }
    }

    #[inline]
    fn soon(&self, node: u32) {
        match self.targets.get(node as usize) {
            Some(target) => prefetch(target),
            None => self.initiators.get(self.initiator_of(node)).into_iter().for_each(prefetch),
        }
    }

    #[inline]
    fn sooner(&self, node: u32, _: &Event) {
        let fetch = |(address, bytes)| prefetch_at(address, bytes);
        match self.targets.get(node as usize) {
            Some(target) => fetch(target.machine.memory()),
            None => {
                self.initiators.get(self.initiator_of(node)).into_iter().flat_map(Initiator::memory).for_each(fetch)
            }
        }
    }

    fn fingerprint(event: &Event) -> u64 {
        let (kind, chunk, more) = match *event {
            Event::Request { chunk, round, not_before_ns } => (0, chunk, u64::from(round) ^ not_before_ns),
            Event::Accept { chunk, round, window } => (1, chunk, u64::from(round) ^ window.left_ns),
            Event::Cancel { chunk, round } => (2, chunk, u64::from(round)),
            Event::Data { chunk, round } => (3, chunk, u64::from(round)),
            Event::Stored { chunk, .. } => (4, chunk, 0),
            Event::Bid { chunk, round, window, .. } => (5, chunk, u64::from(round) ^ window.left_ns),
            Event::Acknowledged { chunk, member } => (6, chunk, u64::from(member)),
            Event::Wake => (7, 0, 0),
        };
        kind ^ u64::from(chunk) << 3 ^ more << 35 ^ more >> 29
    }

    fn counters(&self, sim: &Sim<'_, Event>) -> Vec<(&'static str, u64)> {
        let sum = |count: fn(&Initiator) -> u64| self.initiators.iter().map(count).sum();
        vec![
            ("renegotiations", sum(|i| i.counts().renegotiations)),
            ("control_messages", self.control_messages),
            ("windows", sum(|i| i.counts().windows)),
            ("overlaps", sim.audit.initiators.overlaps),
            ("rounds", sum(|i| i.counts().rounds)),
            ("incomplete", sum(|i| i.counts().incomplete)),
            ("lost", sum(|i| i.counts().lost)),
            ("lost_messages", self.lost_messages),
            ("open_bids", sim.audit.open_bids() as u64),
            ("held_windows", self.targets.iter().map(|t| t.machine.windows() as u64).sum()),
        ]
    }
}

fn chunk_of(write: WriteId) -> ChunkId {
    ChunkId(write.0 as u32)
}

fn settle(chunk: u32, round: u32, granted: Option<Window>) -> TargetEvent {
    TargetEvent::Settle { write: WriteId(u64::from(chunk)), round, granted }
}

/// The targets of a group whose bits are set.
fn members(first: u32, mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let member = bits.trailing_zeros();
        (bits != 0).then(|| {
            bits &= bits - 1;
            first + member
        })
    })
}
