//! The loop of a run in virtual time.
//!
//! Owns: the queue, arrivals, the trace hash, the end of a run. Never: a protocol's decision.
//! Invariant: events of one time happen by node (targets by number, then initiators by number), within a node the last one
//! scheduled first: SURGE's order, which exact comparison needs.

use super::audit::{Audit, Carried, Violation};
use super::chunks::{Chunk, ChunkId, Chunks};
use super::fabric::Timing;
use super::outcome::{Done, Outcome, Pending};
use super::scenario::{Arrivals, Scenario};
use segue_des::{Queue, TraceHash};
use segue_types::Nanos;

/// A protocol under simulation: the state of all its nodes.
pub trait Protocol {
    /// What happens to a node: plain data.
    type Event: Copy;

    /// A chunk is this initiator's to write. Call [`Sim::finish`] when all its copies are acknowledged.
    ///
    /// # Errors
    /// When a rule is broken.
    fn arrive(&mut self, sim: &mut Sim<'_, Self::Event>, initiator: u32, chunk: ChunkId) -> Result<(), Violation>;

    /// An event that was posted for `node` happens.
    ///
    /// # Errors
    /// When a rule is broken.
    fn event(&mut self, sim: &mut Sim<'_, Self::Event>, node: u32, event: Self::Event) -> Result<(), Violation>;

    /// An event of this node is near: ask for the node's own memory ([`segue_des::prefetch`]). A hint.
    fn soon(&self, _node: u32) {}

    /// This event is nearer still: ask for memory that the node's memory names. A hint.
    fn sooner(&self, _node: u32, _event: &Self::Event) {}

    /// Whether [`Protocol::carries`] says of every byte on its way where it is; then what vanishes is found at the end of a run.
    const COUNTED: bool = false;

    /// The data that an event brings. When one is dropped on purpose, [`Audit::lost`] must hear of it.
    fn carries(&self, _sim: &Sim<'_, Self::Event>, _event: &Self::Event) -> Carried {
        Carried::default()
    }

    /// A number that tells events apart, for the trace hash.
    fn fingerprint(event: &Self::Event) -> u64;

    /// The protocol's own counts, at the end.
    fn counters(&self, sim: &Sim<'_, Self::Event>) -> Vec<(&'static str, u64)>;
}

/// So many events ahead a node's memory is asked for, and what it points to.
const SOON: usize = 12;
const SOONER: usize = 5;

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Virtual time, nanoseconds.
    pub now_ns: Nanos,
    /// Events handled.
    pub events: u64,
}

#[derive(Clone, Copy)]
enum Step<E> {
    Arrival,
    Protocol(E),
}

/// What a protocol sees of its world.
pub struct Sim<'a, E> {
    scenario: &'a Scenario,
    timing: Timing,
    queue: Queue<(u32, Step<E>)>,
    chunks: Chunks,
    finished: Vec<bool>,
    done: Vec<Done>,
    /// The initiators that are due their next chunk.
    due: Vec<u32>,
    scheduled_max: usize,
    /// The accounts that are checked.
    pub audit: Audit,
}

impl<'a, E: Copy> Sim<'a, E> {
    /// Virtual time, nanoseconds.
    pub fn now(&self) -> Nanos {
        self.queue.now()
    }

    /// The scenario.
    pub fn scenario(&self) -> &'a Scenario {
        self.scenario
    }

    /// The links' times.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// A chunk.
    pub fn chunk(&self, chunk: ChunkId) -> &Chunk {
        self.chunks.get(chunk)
    }

    /// The initiator gives a chunk up and writes another one in its place: another group, and the time begins anew.
    pub fn renew(&mut self, chunk: ChunkId) {
        let now = self.now();
        self.chunks.renew(self.scenario, chunk, now);
    }

    /// The node number of a target; it is also the rank of its events among those of one time.
    pub fn target_node(&self, target: u32) -> u32 {
        target
    }

    /// The node number of an initiator.
    pub fn initiator_node(&self, initiator: u32) -> u32 {
        self.scenario.targets + initiator
    }

    /// Schedules an event of a node at a time, nanoseconds.
    pub fn post(&mut self, at_ns: Nanos, node: u32, event: E) {
        self.put(at_ns, node, Step::Protocol(event));
    }

    /// Asks for the memory of what comes soon, in two steps: nodes, then what they point to.
    #[inline]
    fn look_ahead<P: Protocol<Event = E>>(&self, protocol: &P) {
        if let Some(node) = self.queue.upcoming_tie(SOON) {
            protocol.soon(node as u32);
            self.audit.soon(node as u32);
        }
        if let Some((node, Step::Protocol(event))) = self.queue.upcoming(SOONER) {
            protocol.sooner(*node, event);
            self.audit.sooner(*node);
        }
    }

    fn put(&mut self, at_ns: Nanos, node: u32, step: Step<E>) {
        self.queue.at_tie(at_ns, u64::from(node), (node, step));
        self.scheduled_max = self.scheduled_max.max(self.queue.len());
    }

    /// All copies of a chunk are acknowledged.
    ///
    /// # Errors
    /// When they are not.
    ///
    /// # Panics
    /// When it was finished before.
    pub fn finish(&mut self, chunk: ChunkId) -> Result<(), Violation> {
        self.finish_with(chunk, self.scenario.copies)
    }

    /// As [`Sim::finish`], for protocols that call a chunk done with `copies` copies.
    ///
    /// # Errors
    /// When fewer are acknowledged.
    ///
    /// # Panics
    /// When it was finished before.
    pub fn finish_with(&mut self, chunk: ChunkId, copies: u32) -> Result<(), Violation> {
        let now = self.now();
        let facts = *self.chunks.get(chunk);
        if self.finished.len() <= chunk.0 as usize {
            self.finished.resize(chunk.0 as usize + 1, false);
        }
        assert!(!std::mem::replace(&mut self.finished[chunk.0 as usize], true), "chunk {} ends twice", chunk.0);
        self.audit.done(now, chunk, copies)?;
        self.done.push(Done { chunk: facts, latency_ns: now - facts.created_ns });
        if matches!(self.scenario.arrivals, Arrivals::Closed { .. }) {
            self.due.push(facts.initiator);
        }
        Ok(())
    }
}

/// Runs a protocol to the scenario's end; what would happen at the end itself does not. `progress` is called now and then.
///
/// # Errors
/// The first rule that was broken.
pub fn run<P: Protocol>(
    protocol: &mut P,
    scenario: &Scenario,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, Violation> {
    let mut sim = Sim {
        scenario,
        timing: scenario.fabric.timing(),
        queue: Queue::with_ties(segue_des::Ties::Lifo),
        chunks: Chunks::new(scenario, seed),
        finished: Vec::new(),
        done: Vec::new(),
        due: Vec::new(),
        scheduled_max: 0,
        audit: Audit::new(scenario.initiators, scenario.targets),
    };
    for initiator in 0..scenario.initiators {
        let first_ns = sim.chunks.first_ns(scenario, initiator);
        let node = sim.initiator_node(initiator);
        sim.put(first_ns, node, Step::Arrival);
    }
    let (mut events, mut trace) = (0u64, TraceHash::new());
    while let Some((now, (node, step))) = sim.queue.pop_before(scenario.run_ns) {
        sim.look_ahead(protocol);
        events += 1;
        trace.number(now).number(u64::from(node));
        match step {
            Step::Arrival => sim.due.push(node - scenario.targets),
            Step::Protocol(event) => {
                trace.number(P::fingerprint(&event));
                protocol.event(&mut sim, node, event)?;
            }
        }
        while let Some(initiator) = sim.due.pop() {
            if let Arrivals::Open { .. } = scenario.arrivals {
                let next_ns = now + sim.chunks.gap_ns(initiator);
                sim.put(next_ns, scenario.targets + initiator, Step::Arrival);
            }
            let chunk = sim.chunks.make(scenario, initiator, now);
            protocol.arrive(&mut sim, initiator, chunk)?;
        }
        if events % 65_536 == 0 {
            progress(Progress { now_ns: now, events });
        }
    }
    sim.audit.conserved(scenario.run_ns)?;
    if P::COUNTED {
        let mut carried = Carried::default();
        while let Some((_, (_, step))) = sim.queue.pop() {
            if let Step::Protocol(event) = step {
                carried = carried.plus(protocol.carries(&sim, &event));
            }
        }
        sim.audit.nothing_vanished(scenario.run_ns, carried)?;
    }
    let counters = protocol.counters(&sim);
    let unfinished = |(n, _): &(usize, &Chunk)| !sim.finished.get(*n).copied().unwrap_or(false);
    let age = |c: &Chunk| scenario.run_ns - c.created_ns;
    let pending = sim.chunks.all().iter().enumerate().filter(unfinished);
    let pending = pending.map(|(_, chunk)| Pending { chunk: *chunk, age_ns: age(chunk) }).collect();
    let scheduled_max = sim.scheduled_max;
    Ok(Outcome { done: sim.done, pending, events, trace: trace.value(), counters, scheduled_max })
}
