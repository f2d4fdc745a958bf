//! The race under random faults: lost answers, slow commands, dying and healing instances, a monitor that crashes.
//!
//! Owns: a model of node, slots and endpoint, and the checks. Never: knows the race's inner states.
//! Invariant: one seed is one run; a failure prints the seed that replays it.

// A test harness speaks to people and reads which seed to replay; the machine it drives does neither.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use segue_failover::limit::Rate;
use segue_failover::note::{Note, Slot};
use segue_failover::race::{Answer, Command, Config, Event, Failure, Mode, OpId, Order, Out, Race, View};
use segue_types::api::{CollapseOutcome, SuperPhase};
use segue_types::{LeaseId, Nanos, SuperId};
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
const TICK_NS: u64 = 50 * MS;
const FAULTS_END_NS: u64 = 60_000 * MS;
const CALM_BY_NS: u64 = 400_000 * MS;

struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What the node keeps.
#[derive(Default)]
struct Node {
    note: String,
    /// The lease that may write the primary version.
    writer: Option<LeaseId>,
    racing: Option<Racing>,
    outcomes: BTreeMap<u64, CollapseOutcome>,
    last_super: u64,
    last_lease: u128,
}

struct Racing {
    super_id: u64,
    child: LeaseId,
    observed: bool,
}

struct Instance {
    lease: LeaseId,
    ready_at: Nanos,
    dead: bool,
    hung_until: Nanos,
    /// The kernel below a dead instance writes back until then.
    writes_until: Nanos,
}

struct World {
    chance: Chance,
    now: Nanos,
    node: Node,
    slots: [Option<Instance>; 2],
    endpoint: Option<Slot>,
    race: Option<Race>,
    restart_at: Nanos,
    config: Config,
    in_flight: Vec<(Nanos, Command)>,
    /// Last time the pointed instance answered a probe.
    answered_at: Nanos,
    wake_at: Option<Nanos>,
    trace: u64,
    promotions: u64,
    crashes: u64,
    verbose: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let mut chance = Chance(seed);
        let mode = match chance.below(4) {
            0 => Mode::Reds { timeout_ns: 3_000 * MS },
            1 => Mode::Oracle,
            _ => Mode::Speculative,
        };
        let config = Config {
            mode,
            deadline_ns: [2_000, 20_000][chance.below(2) as usize] * MS,
            backoff_ns_min: 500 * MS,
            backoff_ns_max: 4_000 * MS,
            recovery_ns_max: 8_000 * MS,
            look_ns: 250 * MS,
            retry_ns: 200 * MS,
            rate: Rate { burst: 3, per_hour: [0, 600][chance.below(2) as usize] },
            exit_is_certain: chance.one_in(2),
        };
        let race = Some(Race::resume(config, Note::default(), 0));
        World {
            chance,
            now: 0,
            node: Node::default(),
            slots: [None, None],
            endpoint: None,
            race,
            restart_at: 0,
            config,
            in_flight: Vec::new(),
            answered_at: 0,
            wake_at: None,
            trace: 0,
            promotions: 0,
            crashes: 0,
            verbose: std::env::var_os("SEGUE_SEED").is_some(),
        }
    }

    fn faulty(&self) -> bool {
        self.now < FAULTS_END_NS
    }

    fn step(&mut self, event: Event) {
        let Some(race) = self.race.as_mut() else { return };
        if self.verbose && !matches!(event, Event::Tick | Event::Trust | Event::Suspect { .. } | Event::Gone) {
            eprintln!("{:>9.3}   {event:?}", self.now as f64 / 1e9);
        }
        let mut out = Out::default();
        race.step(self.now, event, &mut out);
        self.wake_at = out.wake_at;
        for command in out.commands {
            if self.verbose {
                eprintln!("{:>9.3} {command:?}", self.now as f64 / 1e9);
            }
            for byte in format!("{} {command:?}", self.now).bytes() {
                self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            if let Command::Point { to } = command {
                self.point(to);
            } else {
                self.check_issue(&command);
                let slow = if self.faulty() { 400 } else { 20 };
                let at = self.now + self.chance.below(slow) * MS;
                self.in_flight.push((at, command));
            }
        }
    }

    fn point(&mut self, to: Option<Slot>) {
        if let Some(slot) = to {
            // A resumed monitor points at an instance that may have died or been hung; it must never be a fenced one.
            if let Some(instance) = &self.slots[slot.index()] {
                assert_eq!(Some(instance.lease), self.node.writer, "the endpoint moved to a fenced instance");
            }
        }
        self.endpoint = to;
        self.answered_at = self.now;
    }

    fn check_issue(&self, command: &Command) {
        match command {
            Command::Abort { super_id, .. } => {
                let promoted = self.node.outcomes.get(&super_id.0) == Some(&CollapseOutcome::Promoted);
                assert!(!promoted, "abort after promoted");
            }
            Command::Stop { slot, .. } => assert_ne!(self.endpoint, Some(*slot), "the serving instance is stopped"),
            Command::Start { slot, backup, .. } => {
                assert!(!*backup || self.endpoint != Some(*slot), "a backup where the seat serves");
                let stopping =
                    self.in_flight.iter().any(|(_, c)| matches!(c, Command::Stop { slot: s, .. } if s == slot));
                assert!(!stopping, "started where a stop is under way");
            }
            Command::Super { .. } | Command::Collapse { .. } | Command::Fence { .. } => {
                let saving = self.in_flight.iter().any(|(_, c)| matches!(c, Command::SaveNote { .. }));
                assert!(!saving, "{command:?} while the note is not durable");
                let known: Note = self.node.note.parse().unwrap();
                assert_eq!(&known, self.race.as_ref().unwrap().note());
            }
            _ => {}
        }
    }

    /// Carries a command out on the model.
    fn execute(&mut self, command: &Command) -> Result<Answer, Failure> {
        match command {
            Command::SaveNote { note, .. } => self.node.note = note.to_string(),
            Command::Look { .. } => {
                let phase = match &self.node.racing {
                    None => SuperPhase::None,
                    Some(racing) if racing.observed => SuperPhase::Observed,
                    Some(_) => SuperPhase::Racing,
                };
                let super_id = self.node.racing.as_ref().map(|racing| SuperId(racing.super_id));
                let alive = |i: usize| self.slots[i].iter().filter(|i| !i.dead).map(|i| i.lease).collect();
                let running = [alive(0), alive(1)];
                return Ok(Answer::Looked(View { phase, super_id, running }));
            }
            Command::Super { .. } => return self.execute_super(),
            Command::Collapse { super_id, .. } => return self.execute_collapse(super_id.0),
            Command::Abort { super_id, .. } => {
                if self.node.racing.as_ref().is_some_and(|racing| racing.super_id == super_id.0) {
                    self.node.racing = None;
                    self.node.outcomes.insert(super_id.0, CollapseOutcome::PrimaryObserved);
                }
            }
            Command::Fence { .. } => {
                if let Some(racing) = self.node.racing.take() {
                    self.node.outcomes.insert(racing.super_id, CollapseOutcome::PrimaryObserved);
                }
                self.node.writer = None;
            }
            Command::Acquire { .. } => {
                // Held by a stranger for a while; a lease of our own, whose answer was lost, is replaced.
                if self.faulty() && self.chance.one_in(8) {
                    return Err(Failure::Refused);
                }
                let lease = self.new_lease();
                self.node.writer = Some(lease);
                return Ok(Answer::Acquired(vec![lease]));
            }
            Command::Start { slot, leases, .. } => return self.execute_start(*slot, leases[0]),
            Command::Stop { slot, .. } => {
                self.slots[slot.index()] = None;
                return Ok(Answer::Stopped { cpu_ms: 7 });
            }
            Command::Point { .. } => unreachable!("carried out at once"),
        }
        Ok(Answer::Nothing)
    }

    fn new_lease(&mut self) -> LeaseId {
        self.node.last_lease += 1;
        LeaseId(self.node.last_lease)
    }

    fn execute_super(&mut self) -> Result<Answer, Failure> {
        if self.node.racing.is_some() {
            return Err(Failure::Refused);
        }
        self.node.last_super += 1;
        let super_id = self.node.last_super;
        let child = self.new_lease();
        self.node.racing = Some(Racing { super_id, child, observed: false });
        Ok(Answer::Supered { super_id: SuperId(super_id), leases: vec![child] })
    }

    fn execute_collapse(&mut self, super_id: u64) -> Result<Answer, Failure> {
        if let Some(&outcome) = self.node.outcomes.get(&super_id) {
            return Ok(Answer::Collapsed(outcome));
        }
        let Some(racing) = self.node.racing.as_ref().filter(|racing| racing.super_id == super_id) else {
            return Err(Failure::Refused);
        };
        if racing.observed {
            return Ok(Answer::Collapsed(CollapseOutcome::PrimaryObserved));
        }
        self.node.writer = Some(racing.child);
        self.node.racing = None;
        self.node.outcomes.insert(super_id, CollapseOutcome::Promoted);
        self.promotions += 1;
        Ok(Answer::Collapsed(CollapseOutcome::Promoted))
    }

    fn execute_start(&mut self, slot: Slot, lease: LeaseId) -> Result<Answer, Failure> {
        let may = self.node.writer == Some(lease) || self.node.racing.as_ref().is_some_and(|r| r.child == lease);
        if !may || (self.faulty() && self.chance.one_in(6)) {
            self.slots[slot.index()] = None;
            return Err(Failure::Refused);
        }
        let recovery = (200 + self.chance.below(4_000)) * MS;
        let place = &mut self.slots[slot.index()];
        if place.as_ref().is_none_or(|instance| instance.lease != lease || instance.dead) {
            let ready_at = self.now + recovery;
            *place = Some(Instance { lease, ready_at, dead: false, hung_until: 0, writes_until: 0 });
        }
        Ok(Answer::Nothing)
    }

    /// Runs commands whose time has come. A start is answered when its instance is ready.
    fn run_commands(&mut self) {
        while let Some(i) = self.in_flight.iter().position(|(at, _)| *at <= self.now) {
            let (_, command) = self.in_flight.remove(i);
            let op = op_of(&command);
            let lost = self.faulty() && self.chance.one_in(12);
            if lost && self.chance.one_in(2) {
                self.step(Event::Failed { op, failure: Failure::Unknown });
                continue;
            }
            // A stop ends a start in the same slot.
            if let Command::Stop { slot, .. } = command {
                self.fail_starts(slot);
            }
            let result = self.execute(&command);
            if lost {
                self.step(Event::Failed { op, failure: Failure::Unknown });
                continue;
            }
            match result {
                Err(failure) => self.step(Event::Failed { op, failure }),
                Ok(answer) => match command {
                    Command::Start { slot, leases, .. } => self.await_ready(op, slot, leases),
                    _ => self.step(Event::Done { op, answer }),
                },
            }
        }
    }

    fn fail_starts(&mut self, slot: Slot) {
        let is_start = |c: &Command| matches!(c, Command::Start { slot: s, .. } if *s == slot);
        while let Some(i) = self.in_flight.iter().position(|(_, c)| is_start(c)) {
            let (_, command) = self.in_flight.remove(i);
            self.step(Event::Failed { op: op_of(&command), failure: Failure::Refused });
        }
    }

    fn await_ready(&mut self, op: OpId, slot: Slot, leases: Vec<LeaseId>) {
        let ready = match &self.slots[slot.index()] {
            Some(instance) if !instance.dead => instance.ready_at,
            _ => return self.step(Event::Failed { op, failure: Failure::Refused }),
        };
        if ready <= self.now {
            return self.step(Event::Done { op, answer: Answer::Nothing });
        }
        self.in_flight.push((ready, Command::Start { op, slot, leases, backup: false }));
    }

    /// The instances live: they write, are fenced, die, hang and heal.
    fn live(&mut self) {
        for i in 0..2 {
            let faulty = self.faulty();
            let Some(instance) = &mut self.slots[i] else { continue };
            let hung = self.now < instance.hung_until;
            let serving = !instance.dead && !hung && instance.ready_at <= self.now;
            let writes = (serving && self.chance.one_in(3)) || (instance.dead && self.now < instance.writes_until);
            if writes && self.node.writer == Some(instance.lease) {
                if let Some(racing) = &mut self.node.racing {
                    racing.observed = true;
                }
            } else if writes && self.node.racing.as_ref().is_none_or(|racing| racing.child != instance.lease) {
                instance.dead = true;
            }
            if faulty && serving && self.chance.one_in(60) {
                match self.chance.below(3) {
                    0 => instance.hung_until = self.now + self.chance.below(20_000) * MS,
                    1 => instance.hung_until = Nanos::MAX,
                    _ => {
                        instance.dead = true;
                        instance.writes_until = self.now + self.chance.below(10_000) * MS;
                    }
                }
            }
        }
    }

    fn probe(&mut self) {
        let Some(slot) = self.endpoint else { return };
        let instance = self.slots[slot.index()].as_ref();
        let dead = instance.is_none_or(|instance| instance.dead);
        let answers = instance.is_some_and(|i| !i.dead && self.now >= i.hung_until && self.now >= i.ready_at);
        if answers && !(self.faulty() && self.chance.one_in(40)) {
            self.answered_at = self.now;
            self.step(Event::Trust);
        } else if self.now >= self.answered_at + 300 * MS || (self.faulty() && self.chance.one_in(20)) {
            self.step(Event::Suspect { since: self.answered_at });
            if dead {
                self.step(Event::Gone);
            }
            if self.config.mode == Mode::Oracle && self.now >= self.answered_at + 500 * MS {
                self.step(Event::Told(Order::FailOver));
            }
        }
    }

    fn crash(&mut self) {
        self.crashes += 1;
        if self.verbose {
            eprintln!("{:>9.3} -- the monitor crashes", self.now as f64 / 1e9);
        }
        self.race = None;
        self.endpoint = None;
        self.restart_at = self.now + self.chance.below(3_000) * MS;
        for (_, command) in std::mem::take(&mut self.in_flight) {
            if self.chance.one_in(2) {
                let _ = self.execute(&command);
            }
        }
    }

    fn run(&mut self) {
        while self.now < CALM_BY_NS {
            let woken = self.wake_at.filter(|&at| at > self.now).unwrap_or(Nanos::MAX);
            let due = self.in_flight.iter().map(|(at, _)| *at).filter(|&at| at > self.now).min().unwrap_or(Nanos::MAX);
            let next_tick = (self.now / TICK_NS + 1) * TICK_NS;
            self.now = next_tick.min(woken).min(due);
            if self.race.is_none() && self.now >= self.restart_at {
                let note = self.node.note.parse().expect("a note the race wrote");
                self.race = Some(Race::resume(self.config, note, self.now));
            }
            self.run_commands();
            self.step(Event::Tick);
            if self.now == next_tick {
                self.live();
                self.probe();
            }
            if self.race.is_some() && self.faulty() && self.chance.one_in(150) {
                self.crash();
            }
            if !self.faulty() && self.race.as_ref().is_some_and(Race::is_calm) && self.served_well() {
                return;
            }
        }
        panic!("never calm again: {}", self.race.as_ref().map_or("no monitor", Race::state));
    }

    /// Exactly one instance serves, it has the right to, and nothing is left over.
    fn served_well(&self) -> bool {
        let Some(slot) = self.endpoint else { return false };
        let well = |i: &Instance| !i.dead && self.now >= i.hung_until && Some(i.lease) == self.node.writer;
        self.slots[slot.index()].as_ref().is_some_and(well)
            && self.slots[slot.other().index()].is_none()
            && self.node.racing.is_none()
    }
}

fn op_of(command: &Command) -> OpId {
    match command {
        Command::SaveNote { op, .. }
        | Command::Look { op }
        | Command::Super { op }
        | Command::Collapse { op, .. }
        | Command::Abort { op, .. }
        | Command::Fence { op }
        | Command::Acquire { op }
        | Command::Start { op, .. }
        | Command::Stop { op, .. } => *op,
        Command::Point { .. } => unreachable!("has no answer"),
    }
}

/// Says which seed failed, whatever the panic was.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: SEGUE_SEED={} cargo test -p segue-failover --test sim_race", self.0);
        }
    }
}

fn run(seed: u64) -> World {
    let _replay = Replay(seed);
    let mut world = World::new(seed);
    world.run();
    world
}

#[test]
fn sim_safe_and_live_through_faults_and_crashes() {
    if let Some(seed) = std::env::var("SEGUE_SEED").ok().and_then(|text| text.parse().ok()) {
        run(seed);
        return;
    }
    let (mut promotions, mut crashes) = (0, 0);
    for seed in 0..10_000 {
        let world = run(seed);
        promotions += world.promotions;
        crashes += world.crashes;
    }
    // A simulation in which nothing happens proves nothing.
    assert!(promotions > 1_000 && crashes > 1_000, "{promotions} promotions, {crashes} crashes");
}

#[test]
fn sim_same_seed_same_trace() {
    for seed in [1, 7, 42] {
        assert_eq!(run(seed).trace, run(seed).trace);
    }
    assert_ne!(run(1).trace, run(2).trace);
}
