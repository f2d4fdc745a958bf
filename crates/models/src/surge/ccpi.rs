//! Model 5: unicast consistent hashing with a captive congestion point (UCH-CCPi).
//!
//! Owns: rates that targets hand out, and the transfers at those rates. Never: a drive's or an initiator's own business.
//! Invariant: the transfers of a target together never exceed its link, nor those of an initiator its own.
//!
//! SURGE (reference 1.3): a target divides its link evenly between the transfers it has admitted, and tells all of them when their
//! number changes (RATE-SET); the first word of a new one (RATE-INIT) is held back while the drive is behind, but the
//! transfer counts from its request on. A transfer of which no more than a frame is unsent is left alone.
//!
//! Here a transfer is a flow whose cap is the last rate its initiator heard of, over the initiator's link and the target's
//! ([`segue_des::Flows`]); SURGE's buckets send a frame whenever all of them allow it. The rate level is within a few frame times
//! of that.
//!
//! Inferred: the next copy is requested when the last bit of the one before has left.

use super::unicast::{Ask, Nodes};
use crate::storage::registry::Model;
use crate::storage::{ChunkId, Protocol, Scenario, Sim, Violation, run};
use segue_des::{FlowId, Flows};

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A target is asked to take a copy.
    Request(Ask),
    /// An initiator may begin, at this rate in bits per second.
    RateInit(Ask, u64),
    /// An initiator's rate changes.
    RateSet(Ask, u64),
    /// Some flow may have ended.
    FlowDue,
    /// The last byte of a copy came.
    Came(Ask),
    /// A copy is stored by the rule of acknowledgement.
    Stored(Ask),
    /// An initiator hears of it.
    Acked(Ask),
}

/// A copy that its initiator sends or waits to send.
#[derive(Clone, Copy)]
struct Sending {
    ask: Ask,
    /// Heard before it may begin.
    heard_bits_per_s: Option<u64>,
    flow: Option<FlowId>,
}

struct Ccpi {
    nodes: Nodes,
    flows: Flows,
    /// By the slot of a flow.
    of_flow: Vec<Ask>,
    sending: Vec<Option<Sending>>,
    /// Transfers that each target has admitted.
    admitted: Vec<Vec<Ask>>,
    posted_ns: Option<u64>,
    ended: Vec<FlowId>,
    rate_sets: u64,
}

/// The model as `segue sim` knows it.
pub const MODEL: Model = Model {
    name: "surge-5",
    about: "unicast consistent hashing, targets divide their links evenly (UCH-CCPi)",
    source: "SURGE m5",
    keys: &[],
    run: |scenario, options, seed, progress| {
        options.finish()?;
        Ok(run(&mut Ccpi::new(scenario, seed), scenario, seed, progress)?)
    },
};

impl Ccpi {
    fn new(scenario: &Scenario, seed: u64) -> Ccpi {
        let nodes = Nodes::new(scenario, seed);
        let links = (scenario.initiators + scenario.targets) as usize;
        Ccpi {
            flows: Flows::new(&vec![nodes.link_bits_per_s; links]),
            nodes,
            of_flow: Vec::new(),
            sending: vec![None; scenario.initiators as usize],
            admitted: vec![Vec::new(); scenario.targets as usize],
            posted_ns: None,
            ended: Vec::new(),
            rate_sets: 0,
        }
    }

    /// Asks the target of the initiator's next copy.
    fn request(&mut self, sim: &mut Sim<'_, Event>, initiator: u32, chunk: ChunkId, target: u32) {
        let ask = Ask { initiator, chunk, target };
        self.sending[initiator as usize] = Some(Sending { ask, heard_bits_per_s: None, flow: None });
        sim.post(sim.now() + self.nodes.message_ns, sim.target_node(target), Event::Request(ask));
    }

    fn begin(&mut self, sim: &mut Sim<'_, Event>, initiator: u32, chunk: ChunkId) {
        if let Some(target) = self.nodes.arrive(sim, initiator, chunk) {
            self.request(sim, initiator, chunk, target);
        }
    }

    /// A target takes a copy and says when it may come, and at what rate.
    fn admit(&mut self, sim: &mut Sim<'_, Event>, ask: Ask) {
        let (now, bytes) = (sim.now(), sim.chunk(ask.chunk).bytes);
        let delay_ns = self.nodes.put_off_ns(sim.scenario(), now, ask.target, bytes);
        self.admitted[ask.target as usize].push(ask);
        self.share(sim, ask.target);
        let rate = self.rate(ask.target);
        let node = sim.initiator_node(ask.initiator);
        sim.post(now + delay_ns + self.nodes.message_ns, node, Event::RateInit(ask, rate));
    }

    fn rate(&self, target: u32) -> u64 {
        self.nodes.link_bits_per_s / self.admitted[target as usize].len().max(1) as u64
    }

    /// The number of a target's transfers changed: all hear of their new rate.
    fn share(&mut self, sim: &mut Sim<'_, Event>, target: u32) {
        let (now, rate) = (sim.now(), self.rate(target));
        for ask in self.admitted[target as usize].iter().copied() {
            let flow = self.sending[ask.initiator as usize].filter(|s| s.ask == ask);
            // What is sent and not there yet belongs to no sending copy any more.
            let left = flow.map(|s| s.flow.map_or(u64::MAX, |id| self.flows.left_bytes(now, id).unwrap_or(0)));
            if left.is_some_and(|left| left > sim.scenario().fabric.frame_bytes) {
                self.rate_sets += 1;
                let node = sim.initiator_node(ask.initiator);
                sim.post(now + self.nodes.message_ns, node, Event::RateSet(ask, rate));
            }
        }
    }

    fn start(&mut self, sim: &mut Sim<'_, Event>, ask: Ask, rate: u64) {
        let sending = self.sending[ask.initiator as usize].as_mut().filter(|s| s.ask == ask);
        let sending = sending.expect("an initiator waits for the word to begin");
        let cap = sending.heard_bits_per_s.unwrap_or(rate);
        let bytes = sim.chunk(ask.chunk).bytes;
        let path = [ask.initiator, sim.scenario().initiators + ask.target];
        let flow = self.flows.start(sim.now(), &path, bytes, cap);
        sending.flow = Some(flow);
        if self.of_flow.len() <= flow.slot() {
            self.of_flow.resize(flow.slot() + 1, ask);
        }
        self.of_flow[flow.slot()] = ask;
        sim.audit.sent(bytes);
    }

    fn hear(&mut self, sim: &Sim<'_, Event>, ask: Ask, rate: u64) {
        let Some(sending) = self.sending[ask.initiator as usize].as_mut().filter(|s| s.ask == ask) else {
            return;
        };
        match sending.flow {
            None => sending.heard_bits_per_s = Some(rate),
            Some(flow) => self.flows.set_cap(sim.now(), flow, rate),
        }
    }

    /// Ends the flows that are due.
    fn due(&mut self, sim: &mut Sim<'_, Event>) {
        let now = sim.now();
        self.posted_ns = self.posted_ns.filter(|at| *at != now);
        if self.flows.next_finish() != Some(now) {
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.flows.finish(now, &mut ended);
        for flow in ended.drain(..) {
            let ask = self.of_flow[flow.slot()];
            let Ask { initiator, chunk, .. } = ask;
            self.sending[initiator as usize] = None;
            sim.post(now + self.nodes.trip_ns, sim.target_node(ask.target), Event::Came(ask));
            if let Some(target) = self.nodes.sent(initiator, sim.scenario().copies) {
                self.request(sim, initiator, chunk, target);
            }
        }
        self.ended = ended;
    }

    fn came(&mut self, sim: &mut Sim<'_, Event>, ask: Ask) -> Result<(), Violation> {
        let admitted = &mut self.admitted[ask.target as usize];
        let at = admitted.iter().position(|other| *other == ask).expect("only what was admitted comes");
        admitted.remove(at);
        self.share(sim, ask.target);
        self.nodes.received(sim, ask, Event::Stored(ask))
    }

    /// The one event for the next end of a flow; those of earlier plans find nothing due and are ignored.
    fn plan(&mut self, sim: &mut Sim<'_, Event>) {
        #[cfg(test)]
        self.flows.check();
        let next = self.flows.next_finish();
        if let Some(at_ns) = next.filter(|_| next != self.posted_ns) {
            sim.post(at_ns, sim.target_node(0), Event::FlowDue);
            self.posted_ns = next;
        }
    }
}

impl Protocol for Ccpi {
    type Event = Event;

    fn arrive(&mut self, sim: &mut Sim<'_, Event>, initiator: u32, chunk: ChunkId) -> Result<(), Violation> {
        self.begin(sim, initiator, chunk);
        Ok(())
    }

    fn event(&mut self, sim: &mut Sim<'_, Event>, _: u32, event: Event) -> Result<(), Violation> {
        match event {
            Event::Request(ask) => self.admit(sim, ask),
            Event::RateInit(ask, rate) => self.start(sim, ask, rate),
            Event::RateSet(ask, rate) => self.hear(sim, ask, rate),
            Event::FlowDue => self.due(sim),
            Event::Came(ask) => self.came(sim, ask)?,
            Event::Stored(ask) => self.nodes.stored(sim, ask, Event::Acked(ask))?,
            Event::Acked(ask) => {
                if let Some(chunk) = self.nodes.acked(sim, ask)? {
                    self.begin(sim, ask.initiator, chunk);
                }
            }
        }
        self.plan(sim);
        Ok(())
    }

    fn fingerprint(event: &Event) -> u64 {
        match event {
            Event::Request(ask) => ask.fingerprint(0),
            Event::RateInit(ask, rate) => ask.fingerprint(1) ^ (rate << 8),
            Event::RateSet(ask, rate) => ask.fingerprint(2) ^ (rate << 8),
            Event::FlowDue => 3 << 60,
            Event::Came(ask) => ask.fingerprint(4),
            Event::Stored(ask) => ask.fingerprint(5),
            Event::Acked(ask) => ask.fingerprint(6),
        }
    }

    fn counters(&self, sim: &Sim<'_, Event>) -> Vec<(&'static str, u64)> {
        let begun =
            |ask: &&Ask| self.sending[ask.initiator as usize].is_none_or(|s| s.ask != **ask || s.flow.is_some());
        let on_way = self.admitted.iter().flatten().filter(begun).map(|ask| sim.chunk(ask.chunk).bytes);
        assert_eq!(
            on_way.sum::<u64>(),
            sim.audit.in_flight_bytes(),
            "what is under way is what was sent and did not come"
        );
        vec![("rate_sets", self.rate_sets), ("put_off", self.nodes.put_off)]
    }
}
