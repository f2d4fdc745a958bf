//! SURGE m7: basic Replicast, multicast control and multicast data.
//!
//! Owns: who bids, which bids are taken, when data goes. Never: a target's queue of windows; that is in `regular`.
//! Invariant: one multicast transfer stores all copies, inside windows that all its targets accepted.
//!
//! An initiator asks all targets of a group. Each bids a window of 140 % of a transfer. The initiator sorts the bids by their
//! beginnings and takes the first run of as many neighbours as it wants copies whose windows have enough in common; it tells all
//! of the group who was taken. When there is no such run it cancels them all and asks again.
//!
//! Stated by SURGE: the windows, their reuse, the run, the delay of a target with a long drive queue, reads of one of the chosen
//! in turn. Two of its rules are called corner cases, and a setting chooses:
//! - `published=true`: the last run is never tried; a chunk that found no run is given up for another one of another group, so
//!   that the time it lost is in no latency.
//! - The default: all runs are tried; the chunk is asked for again, its time goes on.
//!
//! Inferred: by default the next attempt goes to the other of the two groups that the chunk's name gives (asking the same busy
//! group at once meets the same bids); with open arrivals the next chunk begins when the last one is sent.

use super::common::{Drives, Lengths, Waiting, fingerprint, multicast_lengths, reads};
use super::regular::{Ask, Regular};
use crate::storage::registry::{Model, RunError};
use crate::storage::{Carried, ChunkId, Key, Options, Protocol, Scenario, Sim, Sizes, Violation, run};
use segue_types::Nanos;

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// With SURGE's two corner cases.
    pub published: bool,
    /// Thousandths of the operations that are reads: 0 to 500.
    pub reads_permille: u64,
}

/// The keys of [`Rules`], for `--set`.
pub const KEYS: &[Key] = &[
    Key { name: "published", about: "with the corner cases of SURGE: true or false", default: "false" },
    Key { name: "reads_permille", about: "thousandths of all operations that are reads, 0 to 500", default: "0" },
];

impl Rules {
    /// Takes the model's keys.
    ///
    /// # Errors
    /// Names the key and what it takes.
    pub fn with(options: &mut Options) -> Result<Rules, RunError> {
        let published = options.truth("published")?.unwrap_or(false);
        let reads_permille = options.number("reads_permille")?.unwrap_or(0);
        if reads_permille > 500 {
            return Err(crate::storage::OptionError::Range { key: "reads_permille", range: "0 to 500" }.into());
        }
        Ok(Rules { published, reads_permille })
    }
}

/// For the list of models.
pub const MODEL: Model = Model {
    name: "surge-7",
    about: "Replicast: multicast control, one multicast transfer stores all copies",
    source: "SURGE m7",
    keys: KEYS,
    run: |scenario, mut options, seed, progress| {
        let rules = Rules::with(&mut options)?;
        options.finish()?;
        Ok(run(&mut Replicast::new(rules, scenario, Plant::None), scenario, seed, progress)?)
    },
};

/// Bugs that tests plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plant {
    /// None.
    None,
    /// A target understands an earlier window than the one it was told.
    #[cfg(test)]
    Shifted,
    /// A target bids a window that another one has.
    #[cfg(test)]
    DoubleGrant,
    /// The initiator accepts a bid and cancels it, too.
    #[cfg(test)]
    AcceptAndCancel,
    /// A target that was not taken does not hear of it.
    #[cfg(test)]
    LostCancel,
    /// An acknowledgement counts twice.
    #[cfg(test)]
    CountTwice,
    /// Bytes of a multicast count once, whatever the receivers.
    #[cfg(test)]
    CountOnce,
    /// The drive is idle with a read to do.
    #[cfg(test)]
    IdleDrive,
}

/// What happens to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// To a target: a request for bids.
    Request(ChunkId),
    /// To an initiator: a bid.
    Bid { chunk: ChunkId, target: u32, left_ns: Nanos, right_ns: Nanos, made_ns: Nanos },
    /// To a target: its bid is taken, data comes from then on.
    Accept { chunk: ChunkId, left_ns: Nanos },
    /// To a target: its bid is not taken.
    Cancel(ChunkId),
    /// To a target: the last byte.
    Last { chunk: ChunkId, reads: bool },
    /// To a target: its drive has written the chunk.
    Stored(ChunkId),
    /// To an initiator: a target's acknowledgement.
    Acknowledged { chunk: ChunkId, target: u32 },
    /// To an initiator: its link is free.
    Sent,
}

#[derive(Clone, Copy)]
struct Offer {
    target: u32,
    left_ns: Nanos,
    right_ns: Nanos,
    made_ns: Nanos,
}

#[derive(Default)]
struct Initiator {
    chunk: Option<ChunkId>,
    group: u32,
    offers: Vec<Offer>,
}

pub(super) struct Replicast {
    rules: Rules,
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests plant bugs"))]
    plant: Plant,
    waiting: Waiting,
    drives: Drives,
    initiators: Vec<Initiator>,
    targets: Vec<Regular>,
    attempts: u64,
    aborted: u64,
    messages: u64,
    reads: u64,
}

type World<'a> = Sim<'a, Event>;

impl Replicast {
    pub(super) fn new(rules: Rules, scenario: &Scenario, plant: Plant) -> Replicast {
        let (Sizes::Fixed(least) | Sizes::Powers(least, _)) = scenario.sizes;
        let narrow_ns = multicast_lengths(&scenario.fabric.timing(), least, PERMILLE).window_ns;
        Replicast {
            rules,
            plant,
            waiting: Waiting::new(scenario),
            drives: Drives::new(scenario),
            initiators: (0..scenario.initiators).map(|_| Initiator::default()).collect(),
            targets: (0..scenario.targets).map(|_| Regular::new(narrow_ns)).collect(),
            attempts: 0,
            aborted: 0,
            messages: 0,
            reads: 0,
        }
    }

    fn begin(&mut self, sim: &mut World<'_>, initiator: u32, chunk: ChunkId) {
        let state = &mut self.initiators[initiator as usize];
        state.chunk = Some(chunk);
        state.group = sim.chunk(chunk).group;
        self.ask(sim, initiator);
    }

    fn ask(&mut self, sim: &mut World<'_>, initiator: u32) {
        let state = &mut self.initiators[initiator as usize];
        let chunk = state.chunk.expect("an initiator that asks has a chunk");
        state.offers.clear();
        self.attempts += 1;
        let at = sim.now() + sim.timing().message_ns();
        for target in members(sim.scenario(), state.group) {
            sim.post(at, target, Event::Request(chunk));
            self.messages += 1;
        }
    }

    fn request(&mut self, sim: &mut World<'_>, target: u32, chunk: ChunkId) -> Result<(), Violation> {
        let (now, facts, timing) = (sim.now(), *sim.chunk(chunk), *sim.timing());
        let ask = Ask {
            chunk,
            window_ns: lengths(sim, chunk).window_ns,
            idle_ns: 2 * timing.transfer_ns(facts.bytes),
            delay_ns: self.drives.delay_ns(sim.scenario(), now, target, facts.bytes),
        };
        let window = self.targets[target as usize].bid(&timing, now, &ask);
        #[cfg(test)]
        let window = match self.plant {
            Plant::DoubleGrant => self.targets[target as usize].double(window),
            _ => window,
        };
        sim.audit.bid(now, target, chunk, 0)?;
        let (left_ns, right_ns, made_ns) = (window.left_ns, window.right_ns, window.made_ns);
        let node = sim.initiator_node(facts.initiator);
        sim.post(now + timing.message_ns(), node, Event::Bid { chunk, target, left_ns, right_ns, made_ns });
        self.messages += 1;
        Ok(())
    }

    fn offered(&mut self, sim: &mut World<'_>, initiator: u32, offer: Offer) -> Result<(), Violation> {
        let state = &mut self.initiators[initiator as usize];
        let key = |o: &Offer| (o.left_ns, o.made_ns);
        let at = state.offers.iter().position(|o| key(o) > key(&offer)).unwrap_or(state.offers.len());
        state.offers.insert(at, offer);
        if state.offers.len() < sim.scenario().group_targets as usize {
            return Ok(());
        }
        let chunk = state.chunk.expect("bids are for a chunk");
        let taken_ns = lengths(sim, chunk).taken_ns;
        let earliest = sim.now() + sim.timing().control_ns;
        let copies = sim.scenario().copies as usize;
        match common_window(&state.offers, copies, taken_ns, earliest, self.rules.published) {
            Some((first, left_ns)) => self.take(sim, initiator, first, left_ns),
            None => {
                self.give_up(sim, initiator);
                Ok(())
            }
        }
    }

    /// Accepts the bids from `first` on, sends to their targets at `left_ns`.
    fn take(&mut self, sim: &mut World<'_>, initiator: u32, first: usize, left_ns: Nanos) -> Result<(), Violation> {
        let state = &mut self.initiators[initiator as usize];
        let chunk = state.chunk.take().expect("bids are for a chunk");
        let (now, bytes, copies) = (sim.now(), sim.chunk(chunk).bytes, sim.scenario().copies as usize);
        let told_ns = now + sim.timing().message_ns();
        let sent_ns = left_ns + sim.timing().framed_ns(bytes);
        let came_ns = sent_ns + sim.timing().trip_ns;
        let reader = reads(chunk, self.rules.reads_permille).then_some(first + chunk.0 as usize % copies);
        for (at, offer) in state.offers.iter().enumerate() {
            self.messages += 1;
            if !(first..first + copies).contains(&at) {
                #[cfg(test)]
                if self.plant == Plant::LostCancel && at + 1 == state.offers.len() {
                    continue;
                }
                sim.post(told_ns, offer.target, Event::Cancel(chunk));
                continue;
            }
            sim.post(told_ns, offer.target, Event::Accept { chunk, left_ns });
            #[cfg(test)]
            if self.plant == Plant::AcceptAndCancel {
                sim.post(told_ns + 1, offer.target, Event::Cancel(chunk));
            }
            sim.post(came_ns, offer.target, Event::Last { chunk, reads: reader == Some(at) });
        }
        #[cfg(test)]
        let copies = if self.plant == Plant::CountOnce { 1 } else { copies };
        sim.audit.sent(bytes * copies as u64);
        sim.audit.initiators.add(now, initiator, left_ns, sent_ns)?;
        self.waiting.sends_until(sim, initiator, sent_ns, Event::Sent);
        Ok(())
    }

    fn give_up(&mut self, sim: &mut World<'_>, initiator: u32) {
        let state = &mut self.initiators[initiator as usize];
        let chunk = state.chunk.expect("bids are for a chunk");
        self.aborted += 1;
        let at = sim.now() + sim.timing().message_ns();
        for offer in &state.offers {
            sim.post(at, offer.target, Event::Cancel(chunk));
            self.messages += 1;
        }
        if self.rules.published {
            sim.renew(chunk);
            state.group = sim.chunk(chunk).group;
        } else {
            let facts = sim.chunk(chunk);
            state.group = if state.group == facts.group { facts.second_group } else { facts.group };
        }
        self.ask(sim, initiator);
    }

    fn accepted(&mut self, sim: &mut World<'_>, target: u32, chunk: ChunkId, left_ns: Nanos) -> Result<(), Violation> {
        let now = sim.now();
        #[cfg(test)]
        let left_ns = if self.plant == Plant::Shifted { left_ns.saturating_sub(50_000) } else { left_ns };
        let right_ns = left_ns + lengths(sim, chunk).taken_ns;
        sim.audit.settle(now, target, chunk, 0)?;
        let timing = *sim.timing();
        if !self.targets[target as usize].accept(&timing, now, chunk, left_ns, right_ns) {
            return Err(Violation::NoSuchBid { now_ns: now, target, chunk: chunk.0 });
        }
        sim.audit.targets.add(now, target, left_ns, right_ns)
    }

    fn cancelled(&mut self, sim: &mut World<'_>, target: u32, chunk: ChunkId) -> Result<(), Violation> {
        let (now, timing) = (sim.now(), *sim.timing());
        sim.audit.settle(now, target, chunk, 0)?;
        let was = self.targets[target as usize].cancel(&timing, now, chunk);
        assert!(was, "a bid that is open in the accounts has a window");
        Ok(())
    }

    fn last(&mut self, sim: &mut World<'_>, target: u32, chunk: ChunkId, reads: bool) -> Result<(), Violation> {
        let now = sim.now();
        let Some(window) = self.targets[target as usize].done(chunk) else {
            return Err(Violation::NoSuchBid { now_ns: now, target, chunk: chunk.0 });
        };
        sim.audit.targets.shorten(target, window.left_ns, Some(now));
        self.drives.keep(sim, target, chunk, (Event::Stored(chunk), Event::Acknowledged { chunk, target }))?;
        self.messages += 1;
        if reads {
            #[cfg(test)]
            if self.plant == Plant::IdleDrive {
                self.drives.read(sim, target, chunk)?;
                sim.audit.worked(now, target, 0, 1)?;
            }
            self.drives.read(sim, target, chunk)?;
            self.reads += 1;
        }
        Ok(())
    }
}

/// Bids are this much longer than a transfer, thousandths.
const PERMILLE: u64 = 1_400;

fn lengths(sim: &World<'_>, chunk: ChunkId) -> Lengths {
    multicast_lengths(sim.timing(), sim.chunk(chunk).bytes, PERMILLE)
}

/// The targets of a group.
pub(super) fn members(scenario: &Scenario, group: u32) -> std::ops::Range<u32> {
    group * scenario.group_targets..(group + 1) * scenario.group_targets
}

/// The first run of `copies` neighbours, by their beginnings, whose windows have `taken_ns` in common from `earliest` on: where
/// it begins among them, and in time. SURGE never tries the last run.
fn common_window(
    offers: &[Offer],
    copies: usize,
    taken_ns: Nanos,
    earliest: Nanos,
    published: bool,
) -> Option<(usize, Nanos)> {
    let runs = offers.windows(copies).enumerate();
    let mut runs = runs.take(offers.len() - copies + usize::from(!published));
    runs.find_map(|(at, run)| {
        let left = run[copies - 1].left_ns.max(earliest);
        let right = run.iter().map(|o| o.right_ns).min()?;
        (left + taken_ns <= right).then_some((at, left))
    })
}

impl Protocol for Replicast {
    type Event = Event;

    fn arrive(&mut self, sim: &mut World<'_>, initiator: u32, chunk: ChunkId) -> Result<(), Violation> {
        if let Some(chunk) = self.waiting.arrive(initiator, chunk) {
            self.begin(sim, initiator, chunk);
        }
        Ok(())
    }

    fn event(&mut self, sim: &mut World<'_>, node: u32, event: Event) -> Result<(), Violation> {
        let initiator = node.wrapping_sub(sim.scenario().targets);
        match event {
            Event::Request(chunk) => self.request(sim, node, chunk),
            Event::Bid { target, left_ns, right_ns, made_ns, .. } => {
                self.offered(sim, initiator, Offer { target, left_ns, right_ns, made_ns })
            }
            Event::Accept { chunk, left_ns } => self.accepted(sim, node, chunk, left_ns),
            Event::Cancel(chunk) => self.cancelled(sim, node, chunk),
            Event::Last { chunk, reads } => self.last(sim, node, chunk, reads),
            Event::Stored(chunk) => Drives::stored(sim, node, chunk),
            Event::Acknowledged { chunk, target } => {
                #[cfg(test)]
                if self.plant == Plant::CountTwice {
                    self.waiting.acknowledge(sim, target, chunk)?;
                }
                self.waiting.acknowledge(sim, target, chunk)
            }
            Event::Sent => {
                if let Some(chunk) = self.waiting.free(initiator) {
                    self.begin(sim, initiator, chunk);
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
            Event::Bid { chunk, target, left_ns, right_ns, .. } => {
                (1 + u64::from(target) * 8, chunk.0, left_ns ^ right_ns)
            }
            Event::Accept { chunk, left_ns } => (2, chunk.0, left_ns),
            Event::Cancel(chunk) => (3, chunk.0, 0),
            Event::Last { chunk, reads } => (4, chunk.0, u64::from(reads)),
            Event::Acknowledged { chunk, target } => (5 + u64::from(target) * 8, chunk.0, 0),
            Event::Sent => (6, 0, 0),
            Event::Stored(chunk) => (7, chunk.0, 0),
        })
    }

    fn counters(&self, sim: &World<'_>) -> Vec<(&'static str, u64)> {
        vec![
            ("rounds", self.attempts),
            ("aborted", self.aborted),
            ("control_messages", self.messages),
            ("reads", self.reads),
            ("open_bids", sim.audit.open_bids() as u64),
            ("in_flight_bytes", sim.audit.in_flight_bytes()),
        ]
    }
}
