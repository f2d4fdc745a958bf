//! A client that writes to a node over links that lose and are cut, while the node crashes and stalls and its drive fails.
//!
//! Owns: a small protocol, and the proof that links, drives, nodes and clocks work together in one loop. Never: a real machine.
//! Invariant: every write the client believes in is on the medium, and its time is what the links, the drive and the faults make of it.

use segue_des::{
    Chance, Class, Delivery, Dist, EventId, Failing, Host, HostClock, Life, Link, LinkSpec, Policy, Queue, Sent,
    Served, Span, Store, StoreSpec, TraceHash,
};
use std::collections::BTreeSet;

const MS: u64 = 1_000_000;
const WRITES: u64 = 60;
const BYTES: u64 = 64 << 10;
/// What the client waits for an answer, on its own clock.
const PATIENCE_NS: u64 = 3 * MS;

#[derive(Clone, Copy)]
enum Event {
    /// The client's clock says that this try has taken too long.
    Patience(u64),
    /// A write came to the node's door, sent at this time.
    Door {
        write: u64,
        sent_ns: u64,
        at: Life,
    },
    /// The drive answers a write of that life of the node.
    Done {
        write: u64,
        at: Life,
    },
    /// An answer came to the client, sent at this time.
    Answer {
        write: u64,
        sent_ns: u64,
    },
    Crash,
    Back,
}

struct World {
    queue: Queue<Event>,
    to: Link,
    from: Link,
    node: Host,
    clock: HostClock,
    drive: Store,
    chance: Chance,
    /// A planted bug: what was meant for an earlier life of the node is done all the same.
    forgets_lives: bool,
    patience: Option<EventId>,
    stored: BTreeSet<u64>,
    answered: BTreeSet<u64>,
    /// Acknowledged by the node in a life that ended before the write was on the medium.
    ghosts: u64,
    tries: u64,
    trace: TraceHash,
}

impl World {
    fn new(seed: u64, faulty: bool, forgets_lives: bool) -> World {
        let chance = Chance::new(seed);
        let mut dice = chance.stream("faults");
        let spec = LinkSpec { loss_per_million: if faulty { 100_000 } else { 0 }, ..LinkSpec::SURGE };
        let store =
            StoreSpec { access: Dist::Exponential { mean: 200_000 }, ..StoreSpec::surge(400, Policy::WriteThrough) };
        let mut world = World {
            queue: Queue::new(),
            to: Link::new(spec),
            from: Link::new(spec),
            node: Host::default(),
            clock: HostClock { since_ns: 0, offset_ns: -70_000, drift_ppb: dice.below(200_000) as i64 - 100_000 },
            drive: Store::new(store),
            chance: chance.stream("draws"),
            forgets_lives,
            patience: None,
            stored: BTreeSet::new(),
            answered: BTreeSet::new(),
            ghosts: 0,
            tries: 0,
            trace: TraceHash::new(),
        };
        if faulty {
            world.plan(&mut dice);
        }
        world
    }

    /// Faults that end, so that the client gets through.
    fn plan(&mut self, dice: &mut Chance) {
        for n in 0..4 {
            let from = |dice: &mut Chance| n * 12 * MS + dice.below(10 * MS);
            let span = |dice: &mut Chance| {
                let start = from(dice);
                Span::new(start, start + dice.between(1, 5) * MS)
            };
            self.to.cut(span(dice));
            self.from.cut(span(dice));
            self.from.delay(span(dice), dice.below(MS));
            self.drive.slow(span(dice), dice.between(50, 500));
            self.drive.fail(span(dice), *dice.pick(&[Failing::Errors, Failing::Silence]));
            self.node.stall(span(dice));
            let crash = from(dice);
            self.queue.at(crash, Event::Crash);
            self.queue.at(crash + dice.between(1, 4) * MS, Event::Back);
        }
    }

    fn put(&mut self, at_ns: u64, event: Event) {
        self.queue.at(at_ns, event);
    }

    /// The client sends the oldest write without an answer.
    fn try_next(&mut self) {
        let write = self.answered.len() as u64;
        if write == WRITES {
            return;
        }
        self.tries += 1;
        let now = self.queue.now();
        if let Sent::Sent { start_ns: sent_ns, arrives_ns, .. } =
            self.to.send(now, BYTES, Class::Data, &mut self.chance)
        {
            let at = self.node.life();
            self.queue.at(arrives_ns, Event::Door { write, sent_ns, at });
        }
        let reading = self.clock.reads(now) + PATIENCE_NS;
        self.patience = Some(self.queue.at(self.clock.when(now, reading), Event::Patience(write)));
    }

    fn door(&mut self, write: u64, sent_ns: u64, at: Life) {
        let now = self.queue.now();
        if !self.to.survives(sent_ns, now) {
            return;
        }
        match self.node.deliver(now, at) {
            Delivery::Never => {}
            // It is there already: no cut takes it any more.
            Delivery::At(later_ns) => self.put(later_ns, Event::Door { write, sent_ns: later_ns, at }),
            Delivery::Now => match self.drive.write(now, BYTES, &mut self.chance) {
                Served::Done { ack_ns, .. } => self.put(ack_ns, Event::Done { write, at }),
                Served::Failed { .. } | Served::Silent | Served::Full => {}
            },
        }
    }

    fn done(&mut self, write: u64, at: Life) {
        let now = self.queue.now();
        match self.node.deliver(now, at) {
            Delivery::At(later_ns) => return self.put(later_ns, Event::Done { write, at }),
            Delivery::Never if !self.forgets_lives => return,
            Delivery::Never => self.ghosts += 1,
            Delivery::Now => {
                self.stored.insert(write);
            }
        }
        if let Sent::Sent { start_ns: sent_ns, arrives_ns, .. } =
            self.from.send(now, 300, Class::Control, &mut self.chance)
        {
            self.queue.at(arrives_ns, Event::Answer { write, sent_ns });
        }
    }

    fn run(mut self) -> World {
        self.try_next();
        while let Some((now, event)) = self.queue.pop() {
            self.trace.number(now);
            match event {
                Event::Patience(write) if write == self.answered.len() as u64 => self.try_next(),
                Event::Patience(_) => {}
                Event::Door { write, sent_ns, at } => self.door(write, sent_ns, at),
                Event::Done { write, at } => self.done(write, at),
                Event::Answer { write, sent_ns } if self.from.survives(sent_ns, now) && self.answered.insert(write) => {
                    self.patience.take().map(|id| self.queue.cancel(id));
                    self.try_next();
                }
                Event::Answer { .. } => {}
                Event::Crash => self.node.crash(now, None),
                Event::Back if !self.node.is_up() => {
                    self.node.restart();
                }
                Event::Back => {}
            }
        }
        self
    }
}

#[test]
fn sim_without_faults_each_write_takes_what_its_parts_take() {
    let world = World::new(3, false, false).run();
    assert_eq!((world.answered.len() as u64, world.tries), (WRITES, WRITES));
    let parts_ns = WRITES * (LinkSpec::SURGE.framing.data_ns(BYTES) + 1000 + 2424 + 1000) + world.drive.stats().busy_ns;
    // The last answer; timers that nobody waits for were cancelled.
    assert_eq!(world.queue.now(), parts_ns, "one write at a time: its parts add up");
}

#[test]
fn sim_writes_get_through_all_faults() {
    let (mut tries, mut refused) = (0, 0);
    for seed in 0..200 {
        let world = World::new(seed, true, false).run();
        assert_eq!(world.answered.len() as u64, WRITES, "seed {seed}: writes without an answer");
        assert!(world.answered.is_subset(&world.stored), "seed {seed}: believed and not stored");
        assert_eq!(World::new(seed, true, false).run().trace, world.trace, "seed {seed} does not repeat");
        tries += world.tries;
        refused += world.to.stats().refused + world.from.stats().lost + world.drive.stats().failed;
    }
    assert!(tries > 200 * WRITES * 11 / 10 && refused > 1000, "{tries} tries, {refused} faults met: too easy");
}

#[test]
fn canary_a_node_that_forgets_its_lives_is_caught() {
    let lied = |seed| {
        let world = World::new(seed, true, true).run();
        world.ghosts > 0 && !world.answered.is_subset(&world.stored)
    };
    assert!((0..200).any(lied), "an answer from a life that ended must be seen");
}
