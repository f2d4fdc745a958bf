//! SURGE m9: Replicast-H with double booking and late rejection.
//!
//! Owns: the messages between the initiators and targets beside, and their accounts. Never: a decision of either.
//! Invariant: accepted windows of a target are disjoint, although bids are not; each bid is accepted, cancelled or rejected late,
//! once.
//!
//! Replicast-H (SURGE m8): multicast control, one unicast transfer after the other. An initiator asks a group for windows, takes
//! the earliest bid and those that can follow it at once, and asks for the missing copies when the last taken transfer begins. A
//! bid that is too far, against a limit, is not taken: the initiator doubles the limit and asks again after a quarter of it.
//! Here a target may bid one window to two initiators, when there is time to reject the second one: when the first accepts, the
//! second gets a late rejection and asks for another copy.
//!
//! Stated by SURGE: all of this; its defects only with `published=true`: an initiator's transfers may overlap on its own link
//! after it asked again, the first limit is six trips and is tested twofold, a hole needs no gap behind it, and an initiator that
//! chooses sees a rejection before its message came.
//!
//! By default: the own link is respected, and waiting for it is not counted; the first limit is three control round trips and is
//! tested as it is; a hole needs a gap; rejections are known when their message came.
//!
//! Inferred: a second booking may not be longer than the first (chunks of mixed sizes); when all bids of a round are rejected
//! the initiator asks again after a quarter of its limit; with open arrivals the next chunk begins when the last transfer ends.

mod initiator;
mod select;
mod target;

use self::initiator::{Initiator, Transfer};
use self::select::{Offer, select};
use self::target::{Accepted, Ask, Bids};
use super::common::{Drives, Waiting, fingerprint};
use super::replicast::members;
use crate::storage::registry::Model;
use crate::storage::{Carried, ChunkId, Key, Protocol, Scenario, Sim, Violation, run};
use segue_types::Nanos;

/// The keys of the model, for `--set`.
pub const KEYS: &[Key] =
    &[Key { name: "published", about: "with the defects of SURGE: true or false", default: "false" }];

/// For the list of models.
pub const MODEL: Model = Model {
    name: "surge-9",
    about: "Replicast-H with double booking and late rejection",
    source: "SURGE m9",
    keys: KEYS,
    run: |scenario, mut options, seed, progress| {
        let published = options.truth("published")?.unwrap_or(false);
        options.finish()?;
        Ok(run(&mut LateReject::new(published, scenario, Plant::None), scenario, seed, progress)?)
    },
};

/// Bugs that tests plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plant {
    /// None.
    None,
    /// A target does not reject the second initiator.
    #[cfg(test)]
    NoReject,
    /// A target rejects late and settles the bid once more when its initiator answers.
    #[cfg(test)]
    RejectAndSettle,
    /// An initiator sends a copy that was rejected.
    #[cfg(test)]
    SendRejected,
    /// An initiator takes the first target for all copies.
    #[cfg(test)]
    SameTarget,
}

/// What happens to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// To a target: a request for a bid.
    Request { chunk: ChunkId, round: u32, left_ns: Nanos },
    /// To an initiator: a bid.
    Bid { chunk: ChunkId, target: u32, left_ns: Nanos, right_ns: Nanos, made_ns: Nanos },
    /// To a target: its bid is taken.
    Accept { chunk: ChunkId, left_ns: Nanos },
    /// To a target: its bid is not taken.
    Cancel(ChunkId),
    /// To an initiator: the window went to another one.
    LateReject { chunk: ChunkId, target: u32, round: u32 },
    /// To an initiator: it is time to ask for more copies.
    More { chunk: ChunkId, round: u32 },
    /// To an initiator: a window begins.
    Start { chunk: ChunkId, target: u32 },
    /// To a target: the last byte.
    Last(ChunkId),
    /// To a target: its drive has written the chunk.
    Stored(ChunkId),
    /// To an initiator: a target's acknowledgement.
    Acknowledged { chunk: ChunkId, target: u32 },
    /// To an initiator: its link is free.
    Sent,
}

#[derive(Default)]
struct Counts {
    rounds: u64,
    renegotiations: u64,
    double_bookings: u64,
    late_rejects: u64,
    messages: u64,
    windows: u64,
}

pub(super) struct LateReject {
    published: bool,
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests plant bugs"))]
    plant: Plant,
    waiting: Waiting,
    drives: Drives,
    initiators: Vec<Initiator>,
    targets: Vec<Bids>,
    counts: Counts,
}

type World<'a> = Sim<'a, Event>;

impl LateReject {
    pub(super) fn new(published: bool, scenario: &Scenario, plant: Plant) -> LateReject {
        let timing = scenario.fabric.timing();
        LateReject {
            published,
            plant,
            waiting: Waiting::new(scenario),
            drives: Drives::new(scenario),
            initiators: (0..scenario.initiators).map(|_| Initiator::new(&timing, published)).collect(),
            targets: (0..scenario.targets).map(|_| Bids::default()).collect(),
            counts: Counts::default(),
        }
    }

    fn begin(&mut self, sim: &mut World<'_>, initiator: u32, chunk: ChunkId) {
        self.initiators[initiator as usize].begin(sim.now(), chunk);
        self.ask(sim, initiator);
    }

    /// Asks the targets of the group that have no copy yet.
    fn ask(&mut self, sim: &mut World<'_>, initiator: u32) {
        let now = sim.now();
        let state = &mut self.initiators[initiator as usize];
        let (Some(chunk), Some(plan)) = (state.chunk, state.plan) else { return };
        let left_ns = state.ask(plan);
        let round = state.round;
        self.counts.rounds += 1;
        state.said_ns = now + sim.timing().control_ns;
        state.wanted = 0;
        let at = now + sim.timing().message_ns();
        for target in members(sim.scenario(), sim.chunk(chunk).group) {
            if state.transfers.iter().all(|t| t.target != target) {
                sim.post(at, target, Event::Request { chunk, round, left_ns });
                state.wanted += 1;
                self.counts.messages += 1;
            }
        }
    }

    fn request(
        &mut self,
        sim: &mut World<'_>,
        target: u32,
        (chunk, round): (ChunkId, u32),
        left_ns: Nanos,
    ) -> Result<(), Violation> {
        let (now, facts, timing) = (sim.now(), *sim.chunk(chunk), *sim.timing());
        let ask = Ask {
            chunk,
            round,
            left_ns,
            window_ns: timing.window_ns(facts.bytes),
            delay_ns: self.drives.delay_ns(sim.scenario(), now, target, facts.bytes),
            gap_ns: if self.published { 0 } else { timing.trip_ns },
        };
        let (bid, double) = self.targets[target as usize].bid(&timing, now, &ask);
        sim.audit.bid(now, target, chunk, round)?;
        self.counts.double_bookings += u64::from(double);
        let (left_ns, right_ns, made_ns) = (bid.left_ns, bid.right_ns, bid.made_ns);
        let node = sim.initiator_node(facts.initiator);
        sim.post(now + timing.message_ns(), node, Event::Bid { chunk, target, left_ns, right_ns, made_ns });
        self.counts.messages += 1;
        Ok(())
    }

    fn offered(&mut self, sim: &mut World<'_>, initiator: u32, offer: Offer) {
        let now = sim.now();
        let state = &mut self.initiators[initiator as usize];
        if !state.offered(offer) {
            return;
        }
        let chunk = state.chunk.expect("bids are for a chunk");
        if self.published {
            // SURGE's bids are shared objects: the choosing initiator sees what the target has decided.
            for offer in &mut state.offers {
                offer.rejected |= self.targets[offer.target as usize].rejected(chunk);
            }
        }
        let group = state.offers.len();
        let mut asked = [0; 64];
        asked.iter_mut().zip(&state.offers).for_each(|(target, offer)| *target = offer.target);
        let missing = sim.scenario().copies as usize - state.transfers.len();
        let taken_ns = sim.timing().window_ns(sim.chunk(chunk).bytes) - sim.timing().trip_ns;
        select(&mut state.offers, missing, taken_ns, sim.timing().message_ns());
        if state.offers.is_empty() || state.too_far(now) {
            state.offers.clear();
            self.counts.renegotiations += 1;
        }
        self.decide(sim, initiator, &asked[..group]);
    }

    /// Tells all `asked` targets which of them are taken, and plans what is next.
    fn decide(&mut self, sim: &mut World<'_>, initiator: u32, asked: &[u32]) {
        let (now, timing) = (sim.now(), *sim.timing());
        let (told_ns, node) = (now + timing.message_ns(), sim.initiator_node(initiator));
        let state = &mut self.initiators[initiator as usize];
        let chunk = state.chunk.expect("bids are for a chunk");
        for target in asked {
            let event = match state.offers.iter().find(|o| o.target == *target) {
                Some(offer) => Event::Accept { chunk, left_ns: offer.left_ns },
                None => Event::Cancel(chunk),
            };
            sim.post(told_ns, *target, event);
            self.counts.messages += 1;
        }
        state.said_ns = now + timing.control_ns;
        for offer in &state.offers {
            let Offer { target, left_ns, right_ns, .. } = *offer;
            #[cfg(test)]
            let target = if self.plant == Plant::SameTarget { asked[0] } else { target };
            state.transfers.push(Transfer { target, round: state.round, left_ns, right_ns });
            sim.post(left_ns, node, Event::Start { chunk, target });
            self.counts.windows += 1;
        }
        let last = (!state.offers.is_empty()).then(|| *state.transfers.last().expect("just pushed"));
        if state.transfers.len() < sim.scenario().copies as usize {
            state.plan_more(&timing, now, last.as_ref());
            self.wait(sim, initiator);
        }
    }

    /// Posts the time of the plan.
    fn wait(&mut self, sim: &mut World<'_>, initiator: u32) {
        let state = &self.initiators[initiator as usize];
        let (chunk, round) = (state.chunk.expect("a plan is for a chunk"), state.round);
        let at = state.plan.expect("a plan was made").at_ns;
        let node = sim.initiator_node(initiator);
        sim.post(at, node, Event::More { chunk, round });
    }

    fn more(&mut self, sim: &mut World<'_>, initiator: u32, chunk: ChunkId, round: u32) {
        let state = &self.initiators[initiator as usize];
        // A late rejection may have moved the plan; then this is not its time.
        let due = state.plan.is_some_and(|plan| plan.at_ns <= sim.now());
        if state.chunk == Some(chunk) && state.round == round && due {
            self.ask(sim, initiator);
        }
    }

    fn accepted(&mut self, sim: &mut World<'_>, target: u32, chunk: ChunkId, left_ns: Nanos) -> Result<(), Violation> {
        let (now, timing) = (sim.now(), *sim.timing());
        let right_ns = left_ns + timing.window_ns(sim.chunk(chunk).bytes) - timing.trip_ns;
        match self.targets[target as usize].accept(chunk, left_ns, right_ns) {
            Accepted::Never => Err(Violation::NoSuchBid { now_ns: now, target, chunk: chunk.0 }),
            Accepted::TooLate => {
                #[cfg(test)]
                if self.plant == Plant::RejectAndSettle {
                    sim.audit.settle(now, target, chunk, 1)?;
                }
                #[cfg(test)]
                if self.plant == Plant::NoReject {
                    sim.audit.targets.add(now, target, left_ns, right_ns)?;
                }
                Ok(())
            }
            Accepted::Taken(round, other) => {
                sim.audit.settle(now, target, chunk, round)?;
                sim.audit.targets.add(now, target, left_ns, right_ns)?;
                if let Some(other) = other {
                    sim.audit.settle(now, target, other.chunk, other.round)?;
                    let node = sim.initiator_node(sim.chunk(other.chunk).initiator);
                    let reject = Event::LateReject { chunk: other.chunk, target, round: other.round };
                    sim.post(now + timing.message_ns(), node, reject);
                    self.counts.late_rejects += 1;
                    self.counts.messages += 1;
                }
                Ok(())
            }
        }
    }

    fn cancelled(&mut self, sim: &mut World<'_>, target: u32, chunk: ChunkId) -> Result<(), Violation> {
        let now = sim.now();
        match self.targets[target as usize].cancel(chunk) {
            None => Err(Violation::NoSuchBid { now_ns: now, target, chunk: chunk.0 }),
            Some(bid) if bid.state == target::State::Rejected => Ok(()),
            Some(bid) => sim.audit.settle(now, target, chunk, bid.round),
        }
    }

    fn late_reject(&mut self, sim: &mut World<'_>, initiator: u32, target: u32, (chunk, round): (ChunkId, u32)) {
        #[cfg(test)]
        if self.plant == Plant::SendRejected {
            return;
        }
        let (now, timing) = (sim.now(), *sim.timing());
        let state = &mut self.initiators[initiator as usize];
        if state.chunk == Some(chunk) && state.late_reject(&timing, now, target, round) {
            self.wait(sim, initiator);
        }
    }

    fn start(&mut self, sim: &mut World<'_>, initiator: u32, target: u32, chunk: ChunkId) -> Result<(), Violation> {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let sent_ns = now + sim.timing().framed_ns(bytes);
        let state = &mut self.initiators[initiator as usize];
        let agreed = |t: &Transfer| t.target == target && t.left_ns == now;
        if state.chunk != Some(chunk) || !state.transfers.iter().any(agreed) {
            return Ok(());
        }
        state.started += 1;
        sim.audit.sent(bytes);
        if let Err(overlap) = sim.audit.initiators.add(now, initiator, now, sent_ns) {
            // SURGE's known defect; the accounts count it.
            if !self.published {
                return Err(overlap);
            }
        }
        sim.post(sent_ns + sim.timing().trip_ns, target, Event::Last(chunk));
        if state.started == sim.scenario().copies {
            state.chunk = None;
            state.transfers.clear();
            self.waiting.sends_until(sim, initiator, sent_ns, Event::Sent);
        }
        Ok(())
    }

    fn last(&mut self, sim: &mut World<'_>, target: u32, chunk: ChunkId) -> Result<(), Violation> {
        let now = sim.now();
        let Some(bid) = self.targets[target as usize].done(chunk) else {
            return Err(Violation::NoSuchBid { now_ns: now, target, chunk: chunk.0 });
        };
        sim.audit.targets.shorten(target, bid.left_ns, Some(now));
        self.drives.keep(sim, target, chunk, (Event::Stored(chunk), Event::Acknowledged { chunk, target }))?;
        self.counts.messages += 1;
        Ok(())
    }
}

impl Protocol for LateReject {
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
            Event::Request { chunk, round, left_ns } => self.request(sim, node, (chunk, round), left_ns)?,
            Event::Bid { target, left_ns, right_ns, made_ns, .. } => {
                self.offered(sim, initiator, Offer { target, left_ns, right_ns, made_ns, rejected: false });
            }
            Event::Accept { chunk, left_ns } => self.accepted(sim, node, chunk, left_ns)?,
            Event::Cancel(chunk) => self.cancelled(sim, node, chunk)?,
            Event::LateReject { chunk, target, round } => self.late_reject(sim, initiator, target, (chunk, round)),
            Event::More { chunk, round } => self.more(sim, initiator, chunk, round),
            Event::Start { chunk, target } => self.start(sim, initiator, target, chunk)?,
            Event::Last(chunk) => self.last(sim, node, chunk)?,
            Event::Stored(chunk) => Drives::stored(sim, node, chunk)?,
            Event::Acknowledged { chunk, target } => self.waiting.acknowledge(sim, target, chunk)?,
            Event::Sent => {
                if let Some(chunk) = self.waiting.free(initiator) {
                    self.begin(sim, initiator, chunk);
                }
            }
        }
        Ok(())
    }

    const COUNTED: bool = true;

    fn carries(&self, sim: &World<'_>, event: &Event) -> Carried {
        match *event {
            Event::Last(chunk) => Carried::on_the_way(sim.chunk(chunk).bytes),
            Event::Stored(chunk) => Carried::in_a_drive(sim.chunk(chunk).bytes),
            _ => Carried::default(),
        }
    }

    fn fingerprint(event: &Event) -> u64 {
        fingerprint(match *event {
            Event::Request { chunk, round, left_ns } => (u64::from(round) * 16, chunk.0, left_ns),
            Event::Bid { chunk, target, left_ns, .. } => (1 + u64::from(target) * 16, chunk.0, left_ns),
            Event::Accept { chunk, left_ns } => (2, chunk.0, left_ns),
            Event::Cancel(chunk) => (3, chunk.0, 0),
            Event::LateReject { chunk, target, .. } => (4 + u64::from(target) * 16, chunk.0, 0),
            Event::More { chunk, round } => (5 + u64::from(round) * 16, chunk.0, 0),
            Event::Start { chunk, target } => (6 + u64::from(target) * 16, chunk.0, 0),
            Event::Last(chunk) => (7, chunk.0, 0),
            Event::Acknowledged { chunk, target } => (8 + u64::from(target) * 16, chunk.0, 0),
            Event::Sent => (9, 0, 0),
            Event::Stored(chunk) => (10, chunk.0, 0),
        })
    }

    fn counters(&self, sim: &World<'_>) -> Vec<(&'static str, u64)> {
        vec![
            ("rounds", self.counts.rounds),
            ("renegotiations", self.counts.renegotiations),
            ("double_bookings", self.counts.double_bookings),
            ("late_rejects", self.counts.late_rejects),
            ("control_messages", self.counts.messages),
            ("windows", self.counts.windows),
            ("overlaps", sim.audit.initiators.overlaps),
            ("open_bids", sim.audit.open_bids() as u64),
            ("in_flight_bytes", sim.audit.in_flight_bytes()),
        ]
    }
}
