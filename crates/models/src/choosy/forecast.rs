//! The choosy initiator that ships ([`segue_cluster::choosy`]) on the simulated fabric.
//!
//! Owns: messages, transfers and drives around the machines; faults on request. Never: a decision of the protocol.
//! Invariant: every copy that is sent has a booking of both links, and the audit has seen it.

use super::variant::{FAULT_KEYS, Faults};
use crate::storage::{
    Acknowledge, Carried, ChunkId, Key, OptionError, Options, Outcome, Progress, Protocol, Scenario, Sim, Violation,
    run,
};
use segue_cluster::choosy::{
    CANDIDATES_MAX, Choose, Initiator, InitiatorCommand, InitiatorEvent, Offer, Policy, TIMES_MAX_NS, Target,
    TargetCommand, TargetEvent, WriteId,
};
use segue_des::Chance;
use segue_types::Nanos;
use std::collections::VecDeque;

/// What the model adds to the policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How initiators and targets negotiate.
    pub policy: Policy,
    /// Candidate groups of each chunk: the first by its name, the second by another hash of it, then those that follow.
    pub groups: u32,
    /// Each copy is this part of the chunk: 1 for copies, k for fragments of which any k restore it.
    pub split: u64,
    /// Control messages queue for the control share of both links. SURGE lets any number arrive at once.
    pub control_queues: bool,
    /// What goes wrong: only control messages are lost, not data.
    pub faults: Faults,
    /// Control messages that come again up to 200 us later, thousandths, until the end of the faults.
    pub repeat_permille: u64,
    /// Control messages that are up to 200 us late, and pass or are passed by others, thousandths, until the end of the faults.
    pub late_permille: u64,
    /// A bug, planted to see that it is caught: every so manyth refusal is answered *booked*. 0 for never.
    pub double_grant_every: u64,
    /// A bug, planted to see that it is caught: every so manyth transfer names the round of another booking.
    pub wrong_round_every: u64,
}

/// How late a message is at most, and how long after itself it comes again, nanoseconds.
const LATE_NS: Nanos = 200_000;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            policy: Policy::default(),
            groups: 2,
            split: 1,
            control_queues: false,
            faults: Faults::default(),
            repeat_permille: 0,
            late_permille: 0,
            double_grant_every: 0,
            wrong_round_every: 0,
        }
    }
}

/// The model's own settings.
pub const KEYS: &[Key] = &[
    Key { name: "candidate_groups", about: "groups that a chunk's copies may be in", default: "2" },
    Key { name: "asked", about: "targets asked per round", default: "6" },
    Key { name: "choose", about: "the best offer: start, medium, or deadline", default: "deadline" },
    Key { name: "again", about: "ask the rest when the best offer is unusually late: true or false", default: "true" },
    Key { name: "hold", about: "offers are held for who asked: true or false", default: "false" },
    Key { name: "together", about: "all copies in one round: true or false", default: "false" },
    Key { name: "slack_permille", about: "length of windows over the transfer, thousandths", default: "0" },
    Key { name: "ahead", about: "how long before the link is free a round begins, over what it takes", default: "2us" },
    Key { name: "quorum", about: "copies that make a chunk done; 0 for all", default: "0" },
    Key {
        name: "split",
        about: "each copy is this part of the chunk (any so many fragments restore it)",
        default: "1",
    },
    Key { name: "control_queues", about: "control messages wait for each other: true or false", default: "false" },
    FAULT_KEYS[0],
    FAULT_KEYS[1],
    FAULT_KEYS[2],
    FAULT_KEYS[3],
    FAULT_KEYS[4],
];

impl Settings {
    /// What the product uses, for as many copies as the scenario has.
    pub fn of(scenario: &Scenario) -> Settings {
        let mut settings = Settings::default();
        (settings.policy.copies, settings.policy.quorum) = (scenario.copies as u8, scenario.copies as u8);
        settings.policy.asked = settings.policy.asked.max(scenario.copies as u8);
        // One group is as many candidates as a write can have when groups are large.
        settings.groups = (CANDIDATES_MAX as u32 / scenario.group_targets).clamp(1, settings.groups);
        settings
    }

    /// The settings that `options` describe, for a scenario.
    ///
    /// # Errors
    /// Names the key and what it takes.
    pub fn take(options: &mut Options, scenario: &Scenario) -> Result<Settings, OptionError> {
        let mut settings = Settings::of(scenario);
        let policy = &mut settings.policy;
        let byte = |n: u64| u8::try_from(n).unwrap_or(u8::MAX);
        options.number("asked")?.inspect(|n| policy.asked = byte(*n));
        options.truth("again")?.inspect(|yes| policy.again = *yes);
        options.truth("hold")?.inspect(|yes| policy.hold = *yes);
        options.truth("together")?.inspect(|yes| policy.together = *yes);
        options.number("slack_permille")?.inspect(|n| policy.slack_permille = u16::try_from(*n).unwrap_or(u16::MAX));
        options.duration("ahead")?.inspect(|ns| policy.ahead_ns = *ns);
        let rule = |word: &str| match word {
            "start" => Some(Choose::Start),
            "medium" => Some(Choose::Medium),
            "deadline" => Some(Choose::Deadline),
            _ => None,
        };
        options.word("choose", "start, medium, deadline", rule)?.inspect(|choose| policy.choose = *choose);
        let quorum = options.number("quorum")?.filter(|n| *n > 0).map_or(policy.copies, byte);
        policy.quorum = quorum;
        options.number("candidate_groups")?.inspect(|n| settings.groups = u32::try_from(*n).unwrap_or(u32::MAX));
        options.number("split")?.inspect(|n| settings.split = *n);
        options.truth("control_queues")?.inspect(|yes| settings.control_queues = *yes);
        settings.faults = Faults::take(options, scenario)?;
        if let Some(ns) = options.duration("overdue")?.filter(|ns| *ns > 0) {
            settings.policy.overdue_ns = ns;
        }
        settings.check(scenario)?;
        Ok(settings)
    }

    fn has_faults(&self) -> bool {
        self.faults != Faults::default() || self.repeat_permille > 0 || self.late_permille > 0
    }

    fn check(&self, scenario: &Scenario) -> Result<(), OptionError> {
        let candidates = u64::from(self.groups) * u64::from(scenario.group_targets);
        let rules = [
            (self.groups >= 1 && self.groups <= scenario.groups(), "candidate_groups", "1 to the number of groups"),
            (candidates <= CANDIDATES_MAX as u64, "candidate_groups", "such that they have at most 64 targets"),
            (self.policy.asked >= self.policy.copies && self.policy.asked <= 64, "asked", "the copies to 64"),
            (self.policy.quorum <= self.policy.copies, "quorum", "at most the copies"),
            (self.policy.ahead_ns <= TIMES_MAX_NS, "ahead", "at most a day"),
            (self.policy.slack_permille <= 1_000, "slack_permille", "at most 1000"),
            (self.split >= 1 && self.split <= u64::from(self.policy.quorum).max(1), "split", "1 to the quorum"),
        ];
        OptionError::unless(&rules)
    }
}

/// Runs the scenario.
///
/// # Errors
/// The first rule that was broken.
pub fn simulate(
    settings: &Settings,
    scenario: &Scenario,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, Violation> {
    run(&mut World::new(settings.clone(), scenario, seed), scenario, seed, progress)
}

#[derive(Clone, Copy)]
enum Event {
    Ask { from: u32, round: u32, bytes: u64, from_ns: Nanos },
    Book { from: u32, round: u32, attempt: u32, bytes: u64, start_ns: Nanos },
    Release { from: u32, round: u32 },
    Received { chunk: ChunkId, round: u32 },
    Stored { chunk: ChunkId, acknowledge: bool },
    Offer { from: u32, round: u32, offer: Option<Offer> },
    Booked { from: u32, round: u32, attempt: u32 },
    Refused { from: u32, round: u32, attempt: u32, offer: Option<Offer> },
    Acknowledged { chunk: ChunkId, from: u32 },
    Tick,
}

/// A drive: what it has to do, in order.
#[derive(Clone, Copy, Default)]
struct Drive {
    done_ns: Nanos,
}

/// A booking that stands, for the audit.
#[derive(Clone, Copy)]
struct Standing {
    from: u32,
    round: u32,
    start_ns: Nanos,
    end_ns: Nanos,
}

struct World {
    settings: Settings,
    initiators: Vec<Initiator>,
    targets: Vec<Target>,
    drives: Vec<Drive>,
    standing: Vec<Vec<Standing>>,
    /// Chunks that an initiator has no room for yet.
    backlog: Vec<VecDeque<ChunkId>>,
    /// Until when each node's control share is busy, out and in.
    control_out_ns: Vec<Nanos>,
    control_in_ns: Vec<Nanos>,
    chance: Chance,
    from_initiators: Vec<InitiatorCommand>,
    from_targets: Vec<TargetCommand>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    messages: u64,
    lost_messages: u64,
    refused: u64,
    released: u64,
    failed: u64,
    bookings: u64,
    transfers: u64,
    seed: u64,
}

type Loop<'a> = Sim<'a, Event>;

impl World {
    fn new(settings: Settings, scenario: &Scenario, seed: u64) -> World {
        let (initiators, targets) = (scenario.initiators as usize, scenario.targets as usize);
        let links = scenario.fabric.timing().links();
        let rate = scenario.drive_bytes_per_s;
        World {
            initiators: (0..initiators).map(|_| Initiator::new(settings.policy, links)).collect(),
            targets: (0..targets).map(|_| Target::new(settings.policy, links, rate)).collect(),
            drives: vec![Drive::default(); targets],
            standing: vec![Vec::new(); targets],
            backlog: vec![VecDeque::new(); initiators],
            control_out_ns: vec![0; initiators + targets],
            control_in_ns: vec![0; initiators + targets],
            chance: Chance::new(seed).stream("faults"),
            from_initiators: Vec::new(),
            from_targets: Vec::new(),
            counts: Counts { seed, ..Counts::default() },
            settings,
        }
    }

    fn piece_bytes(&self, sim: &Loop<'_>, chunk: ChunkId) -> u64 {
        sim.chunk(chunk).bytes.div_ceil(self.settings.split)
    }

    /// A control message; `leaves_ns` is when its sender begins to send it.
    fn send(&mut self, sim: &mut Loop<'_>, from: u32, to: u32, event: Event) {
        let leaves_ns = self.leave(sim, from);
        self.deliver(sim, leaves_ns, to, event);
    }

    /// Takes the sender's control share for one message: when its last bit leaves.
    fn leave(&mut self, sim: &Loop<'_>, from: u32) -> Nanos {
        let leaves_ns = sim.now() + sim.timing().control_ns;
        if !self.settings.control_queues {
            return leaves_ns;
        }
        let busy = &mut self.control_out_ns[from as usize];
        *busy = (*busy).max(sim.now()) + sim.timing().control_ns;
        *busy
    }

    fn deliver(&mut self, sim: &mut Loop<'_>, leaves_ns: Nanos, to: u32, event: Event) {
        self.counts.messages += 1;
        let faults = &self.settings.faults;
        if sim.now() < faults.lost_until_ns && self.chance.odds(faults.lost_permille, 1_000) {
            self.counts.lost_messages += 1;
            return;
        }
        let mut at_ns = leaves_ns + sim.timing().trip_ns;
        if self.settings.control_queues {
            let busy = &mut self.control_in_ns[to as usize];
            at_ns = at_ns.max(*busy + sim.timing().control_ns);
            *busy = at_ns;
        }
        if sim.now() < self.settings.faults.lost_until_ns {
            at_ns += self.delay_ns(self.settings.late_permille).unwrap_or(0);
            if let Some(again_ns) = self.delay_ns(self.settings.repeat_permille) {
                sim.post(at_ns + again_ns, to, event);
            }
        }
        sim.post(at_ns, to, event);
    }

    fn delay_ns(&mut self, permille: u64) -> Option<Nanos> {
        (permille > 0 && self.chance.odds(permille, 1_000)).then(|| self.chance.below(LATE_NS))
    }

    fn step_initiator(&mut self, sim: &mut Loop<'_>, n: u32, event: InitiatorEvent<'_>) -> Result<(), Violation> {
        let mut commands = std::mem::take(&mut self.from_initiators);
        self.initiators[n as usize].step(sim.now(), event, &mut commands);
        let node = sim.initiator_node(n);
        // The asks of a step are one multicast on the sender's side.
        let mut asks_leave_ns = None;
        for command in commands.drain(..) {
            match command {
                InitiatorCommand::Ask { to, round, bytes, from_ns } => {
                    let leaves_ns = *asks_leave_ns.get_or_insert_with(|| self.leave(sim, node));
                    self.deliver(sim, leaves_ns, to, Event::Ask { from: n, round, bytes, from_ns });
                }
                InitiatorCommand::Book { to, round, attempt, bytes, start_ns } => {
                    self.send(sim, node, to, Event::Book { from: n, round, attempt, bytes, start_ns });
                }
                InitiatorCommand::Release { to, round } => {
                    self.counts.released += 1;
                    self.send(sim, node, to, Event::Release { from: n, round });
                }
                InitiatorCommand::Transfer { id, to, round, start_ns, bytes } => {
                    self.transfer(sim, n, (ChunkId(id.0 as u32), to, round), start_ns, bytes)?;
                }
                InitiatorCommand::Done { id } => {
                    let needed = u32::from(self.settings.policy.quorum);
                    sim.finish_with(ChunkId(id.0 as u32), needed)?;
                }
                InitiatorCommand::Failed { .. } => self.counts.failed += 1,
                InitiatorCommand::Wake { at_ns } => sim.post(at_ns, node, Event::Tick),
            }
        }
        self.from_initiators = commands;
        self.feed(sim, n)
    }

    /// Gives an initiator what it has room for.
    fn feed(&mut self, sim: &mut Loop<'_>, n: u32) -> Result<(), Violation> {
        let room = usize::from(self.settings.policy.writes_max);
        if self.initiators[n as usize].writes() >= room {
            return Ok(());
        }
        let Some(chunk) = self.backlog[n as usize].pop_front() else { return Ok(()) };
        let scenario = sim.scenario();
        let (facts, size, groups) = (sim.chunk(chunk), scenario.group_targets, scenario.groups());
        let mut candidates = [0; CANDIDATES_MAX];
        let mut count = 0;
        for k in 0..self.settings.groups {
            let group = nth_group(k, facts.group, facts.second_group, groups);
            for target in group * size..(group + 1) * size {
                candidates[count] = target;
                count += 1;
            }
        }
        let bytes = self.piece_bytes(sim, chunk);
        let salt = Chance::new(self.counts.seed ^ u64::from(n) << 32 ^ u64::from(chunk.0)).bits();
        let id = WriteId(u64::from(chunk.0));
        let write = InitiatorEvent::Write { id, bytes, candidates: &candidates[..count], salt };
        self.step_initiator(sim, n, write)
    }

    fn transfer(
        &mut self,
        sim: &mut Loop<'_>,
        n: u32,
        (chunk, to, round): (ChunkId, u32, u32),
        start_ns: Nanos,
        bytes: u64,
    ) -> Result<(), Violation> {
        let end_ns = start_ns + self.settings.policy.window_ns(&sim.timing().links(), bytes);
        let now = sim.now();
        sim.audit.initiators.add(now, n, start_ns, end_ns - self.settings.policy.guard_ns)?;
        sim.audit.sent(bytes);
        let arrives_ns = start_ns + sim.timing().framed_ns(bytes) + sim.timing().trip_ns;
        self.counts.transfers += 1;
        let every = self.settings.wrong_round_every;
        let round = if every > 0 && self.counts.transfers.is_multiple_of(every) { !round } else { round };
        sim.post(arrives_ns, to, Event::Received { chunk, round });
        Ok(())
    }

    fn step_target(&mut self, sim: &mut Loop<'_>, target: u32, event: TargetEvent) -> Result<(), Violation> {
        let mut commands = std::mem::take(&mut self.from_targets);
        self.targets[target as usize].step(sim.now(), event, &mut commands);
        for command in commands.drain(..) {
            match command {
                TargetCommand::Offer { to, round, offer } => {
                    let to = sim.initiator_node(to);
                    self.send(sim, target, to, Event::Offer { from: target, round, offer });
                }
                TargetCommand::Booked { to, round, attempt } => {
                    self.granted(sim, target, &event)?;
                    let to = sim.initiator_node(to);
                    self.send(sim, target, to, Event::Booked { from: target, round, attempt });
                }
                TargetCommand::Refused { to, round, attempt, offer } => {
                    let every = self.settings.double_grant_every;
                    self.counts.refused += 1;
                    self.superseded(sim, target, &event)?;
                    let to = sim.initiator_node(to);
                    if every > 0 && self.counts.refused.is_multiple_of(every) {
                        self.granted(sim, target, &event)?;
                        self.send(sim, target, to, Event::Booked { from: target, round, attempt });
                    } else {
                        self.send(sim, target, to, Event::Refused { from: target, round, attempt, offer });
                    }
                }
            }
        }
        self.from_targets = commands;
        Ok(())
    }

    /// A booking stands from here on, until its data came or it was released or forgotten.
    fn granted(&mut self, sim: &mut Loop<'_>, target: u32, event: &TargetEvent) -> Result<(), Violation> {
        let TargetEvent::Book { from, round, bytes, start_ns, .. } = *event else {
            unreachable!("only a booking is answered so")
        };
        let now = sim.now();
        let end_ns = start_ns + self.settings.policy.window_ns(&sim.timing().links(), bytes);
        // A repeated message repeats the answer, not the booking.
        let same = |s: &Standing| (s.from, s.round, s.start_ns, s.end_ns) == (from, round, start_ns, end_ns);
        if self.standing[target as usize].iter().any(same) {
            return Ok(());
        }
        self.settle(sim, target, from, round)?;
        let standing = &mut self.standing[target as usize];
        if self.settings.has_faults() || self.settings.control_queues {
            // What the target forgot because its data never came; what was sent on time is here by then.
            let forget_ns = 2 * self.settings.policy.patience_ns + sim.timing().trip_ns;
            let gone = standing.iter().filter(|s| s.end_ns + forget_ns <= now);
            let gone: Vec<Standing> = gone.copied().collect();
            for old in gone {
                self.settle(sim, target, old.from, old.round)?;
            }
        }
        self.counts.bookings += 1;
        sim.audit.bid(now, target, ChunkId(from), round)?;
        self.standing[target as usize].push(Standing { from, round, start_ns, end_ns });
        sim.audit.targets.add(now, target, start_ns, end_ns)
    }

    /// A later booking of the round was refused: an earlier one, made by a repeated message, is no more.
    fn superseded(&mut self, sim: &mut Loop<'_>, target: u32, event: &TargetEvent) -> Result<(), Violation> {
        let TargetEvent::Book { from, round, start_ns, .. } = *event else { return Ok(()) };
        let earlier = |s: &Standing| s.from == from && s.round == round && s.start_ns < start_ns;
        if self.standing[target as usize].iter().any(earlier) {
            self.settle(sim, target, from, round)?;
        }
        Ok(())
    }

    /// A booking ends; `false` when there is none.
    fn settle(&mut self, sim: &mut Loop<'_>, target: u32, from: u32, round: u32) -> Result<bool, Violation> {
        let standing = &mut self.standing[target as usize];
        let Some(at) = standing.iter().position(|s| s.from == from && s.round == round) else { return Ok(false) };
        let old = standing.swap_remove(at);
        let now = sim.now();
        // What of the window is still to come is free again.
        sim.audit.targets.shorten(target, old.start_ns, Some(now).filter(|now| *now > old.start_ns));
        sim.audit.settle(now, target, ChunkId(from), round)?;
        Ok(true)
    }

    fn received(&mut self, sim: &mut Loop<'_>, target: u32, chunk: ChunkId, round: u32) -> Result<(), Violation> {
        let now = sim.now();
        let from = sim.chunk(chunk).initiator;
        let bytes = self.piece_bytes(sim, chunk);
        if !self.settle(sim, target, from, round)? {
            return Err(Violation::Unbooked { now_ns: now, target, chunk: chunk.0 });
        }
        self.step_target(sim, target, TargetEvent::Received { from, round, bytes })?;
        let takes_ns = sim.scenario().drive_ns(target, bytes);
        let drive = &mut self.drives[target as usize];
        let backlog_ns = drive.done_ns.saturating_sub(now);
        drive.done_ns = drive.done_ns.max(now) + takes_ns;
        let done_ns = drive.done_ns;
        sim.audit.received(now, target, bytes, done_ns, takes_ns)?;
        let queue = ((256 << 10) / bytes).max(2);
        let at_once = sim.scenario().acknowledge == Acknowledge::WriteBack && backlog_ns + takes_ns < queue * takes_ns;
        if at_once {
            sim.audit.vouched(target, chunk);
            let to = sim.initiator_node(from);
            self.send(sim, target, to, Event::Acknowledged { chunk, from: target });
        }
        sim.post(done_ns, target, Event::Stored { chunk, acknowledge: !at_once });
        Ok(())
    }

    fn stored(&mut self, sim: &mut Loop<'_>, target: u32, chunk: ChunkId, acknowledge: bool) -> Result<(), Violation> {
        let (now, bytes) = (sim.now(), self.piece_bytes(sim, chunk));
        sim.audit.stored(now, target, chunk, bytes)?;
        self.step_target(sim, target, TargetEvent::Stored { bytes })?;
        if acknowledge {
            let to = sim.initiator_node(sim.chunk(chunk).initiator);
            self.send(sim, target, to, Event::Acknowledged { chunk, from: target });
        }
        Ok(())
    }
}

/// The k-th candidate group of a chunk.
const fn nth_group(k: u32, first: u32, second: u32, groups: u32) -> u32 {
    match k {
        0 => first,
        1 => second,
        // Those that follow the first, but for the second.
        _ => {
            let step = k - 1;
            let distance = (second + groups - first) % groups;
            let skip = if step >= distance { 1 } else { 0 };
            (first + step + skip) % groups
        }
    }
}

impl Protocol for World {
    type Event = Event;

    fn arrive(&mut self, sim: &mut Loop<'_>, initiator: u32, chunk: ChunkId) -> Result<(), Violation> {
        self.backlog[initiator as usize].push_back(chunk);
        self.feed(sim, initiator)
    }

    fn event(&mut self, sim: &mut Loop<'_>, node: u32, event: Event) -> Result<(), Violation> {
        let targets = sim.scenario().targets;
        if node < targets && self.settings.faults.is_dead(sim.now(), node) {
            sim.audit.lost(self.carries(sim, &event));
            return Ok(());
        }
        let n = node.wrapping_sub(targets);
        match event {
            Event::Ask { from, round, bytes, from_ns } => {
                self.step_target(sim, node, TargetEvent::Ask { from, round, bytes, from_ns })
            }
            Event::Book { from, round, attempt, bytes, start_ns } => {
                self.step_target(sim, node, TargetEvent::Book { from, round, attempt, bytes, start_ns })
            }
            Event::Release { from, round } => {
                self.settle(sim, node, from, round)?;
                self.step_target(sim, node, TargetEvent::Release { from, round })
            }
            Event::Received { chunk, round } => self.received(sim, node, chunk, round),
            Event::Stored { chunk, acknowledge } => self.stored(sim, node, chunk, acknowledge),
            Event::Offer { from, round, offer } => {
                self.step_initiator(sim, n, InitiatorEvent::Offer { from, round, offer })
            }
            Event::Booked { from, round, attempt } => {
                self.step_initiator(sim, n, InitiatorEvent::Booked { from, round, attempt })
            }
            Event::Refused { from, round, attempt, offer } => {
                self.step_initiator(sim, n, InitiatorEvent::Refused { from, round, attempt, offer })
            }
            Event::Acknowledged { chunk, from } => {
                let id = WriteId(u64::from(chunk.0));
                self.step_initiator(sim, n, InitiatorEvent::Acknowledged { id, from })
            }
            Event::Tick => self.step_initiator(sim, n, InitiatorEvent::Tick),
        }
    }

    const COUNTED: bool = true;

    fn carries(&self, sim: &Loop<'_>, event: &Event) -> Carried {
        match *event {
            Event::Received { chunk, .. } => Carried::on_the_way(self.piece_bytes(sim, chunk)),
            Event::Stored { chunk, .. } => Carried::in_a_drive(self.piece_bytes(sim, chunk)),
            _ => Carried::default(),
        }
    }

    fn fingerprint(event: &Event) -> u64 {
        match *event {
            Event::Ask { from, round, .. } => 1 << 60 | u64::from(from) << 32 | u64::from(round),
            Event::Book { from, start_ns, .. } => (2 << 60 | u64::from(from) << 32) ^ start_ns,
            Event::Release { from, round } => 3 << 60 | u64::from(from) << 32 | u64::from(round),
            Event::Received { chunk, round } => 4 << 60 | u64::from(chunk.0) << 28 ^ u64::from(round),
            Event::Stored { chunk, .. } => 5 << 60 | u64::from(chunk.0),
            Event::Offer { from, offer, .. } => {
                (6 << 60 | u64::from(from) << 32) ^ offer.map_or(0, |o| o.start_ns ^ o.done_ns << 20)
            }
            Event::Booked { from, round, .. } => 7 << 60 | u64::from(from) << 32 | u64::from(round),
            Event::Refused { from, round, .. } => 8 << 60 | u64::from(from) << 32 | u64::from(round),
            Event::Acknowledged { chunk, from } => 9 << 60 | u64::from(chunk.0) << 28 ^ u64::from(from),
            Event::Tick => 10 << 60,
        }
    }

    fn counters(&self, _: &Loop<'_>) -> Vec<(&'static str, u64)> {
        let sum = |of: fn(&Initiator) -> u64| self.initiators.iter().map(of).sum();
        vec![
            ("control_messages", self.counts.messages),
            ("rounds", sum(|i| i.rounds)),
            ("renegotiations", sum(|i| i.asked_again)),
            ("windows", self.counts.bookings),
            ("refused", self.counts.refused),
            ("released", self.counts.released),
            ("lost_messages", self.counts.lost_messages),
            ("failed", self.counts.failed),
        ]
    }
}
