//! Model 6: unicast consistent hashing with additive increase and multiplicative decrease (UCH-AIMD), frame by frame.
//!
//! Owns: each transfer's rate, its frames, and the targets' congestion signals. Never: a drive's or an initiator's own business.
//! Invariant: frames leave an initiator and reach a target no faster than their links carry them.
//!
//! SURGE (reference 1.1, 1.3): a transfer begins at a tenth of the raw link rate and adds as much whenever a frame and a control
//! message's worth of bits was sent without a signal; a signal ("ding") halves the rate, down to the first. Frames are spaced
//! by the rate and take their time at the rate. Every frame time and three trips a target looks at the frames that are on
//! their way to it: if two or more arrive within a frame time of the one before, the transfer of the first is signalled, unless it
//! got a signal less than two frames ago or has no more than three frames to come; if the drive is behind, all are.
//! A frame may leave when the target's link has room for it.
//!
//! A frame time in the two rules of the target is at the raw rate (SURGE computes it before it takes headers off).
//!
//! Inferred: transfers that wait for the target's link are served in the order they began to wait. (SURGE's nodes poll, so that
//! under load the lowest-numbered initiator wins: `served=number`. That is unfair, shortens the median and lengthens the tail.)
//! A target looks at multiples of the period, while it has transfers; the next copy is requested when the last bit of the one
//! before has left; the last frame of a copy uses the links like any other.

use super::unicast::{Ask, Nodes};
use crate::storage::registry::Model;
use crate::storage::{ChunkId, Key, Protocol, Scenario, Sim, Violation, run};
use segue_des::bytes_ns;
use segue_types::Nanos;
use std::collections::VecDeque;

/// A control message beyond which the rate grows, bytes (reference 1.1).
const ADD_CONTROL_BYTES: u64 = 300;
/// Arrivals too close to the one before that make a signal.
const CLOSE_ARRIVALS: u32 = 2;

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A target is asked to take a copy.
    Request(Ask),
    /// An initiator may begin.
    Begin(Ask),
    /// An initiator's next frame is due.
    Next(u32),
    /// A target's link is free for a frame that waits.
    Room,
    /// A frame came: of this copy, so many bytes.
    Frame(Ask, u32),
    /// A target looks at what is on its way.
    Look,
    /// An initiator is signalled.
    Ding(Ask),
    /// A copy was sent: its last bit has left.
    Sent(Ask),
    /// A copy is stored by the rule of acknowledgement.
    Stored(Ask),
    /// An initiator hears of it.
    Acked(Ask),
}

/// Who of those that wait for a target's link sends next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Served {
    /// Who waits longest.
    Turn,
    /// The lowest number.
    Number,
}

/// A copy that its initiator sends.
#[derive(Clone, Copy)]
struct Sending {
    ask: Ask,
    left_bytes: u64,
    rate_bits_per_s: u64,
    /// Bits to send until the rate grows.
    until_add_bits: i64,
}

/// A transfer as its target sees it.
struct Coming {
    ask: Ask,
    total_bytes: u64,
    came_bytes: u64,
    /// Where it was when it was signalled, and a frame more.
    signalled_bytes: u64,
}

#[derive(Default)]
struct Target {
    link_free_ns: Nanos,
    waiting: VecDeque<u32>,
    coming: Vec<Coming>,
    /// Frames on their way, by arrival.
    on_way: VecDeque<(Nanos, Ask)>,
    looking: bool,
}

pub(super) struct Aimd {
    nodes: Nodes,
    sending: Vec<Option<Sending>>,
    link_free_ns: Vec<Nanos>,
    targets: Vec<Target>,
    served: Served,
    frame_bytes: u64,
    /// At the raw rate.
    frame_ns: Nanos,
    period_ns: Nanos,
    first_bits_per_s: u64,
    dings: u64,
    frames: u64,
    /// A planted bug: frames go although the target's link is busy.
    #[cfg(test)]
    pub(super) blind: bool,
}

/// The model as `segue sim` knows it.
pub const MODEL: Model = Model {
    name: "surge-6",
    about: "unicast consistent hashing, rates by additive increase and multiplicative decrease (UCH-AIMD)",
    source: "SURGE m6",
    keys: &[Key {
        name: "served",
        about: "who of those that wait for a target's link sends next: turn (longest wait) or number (SURGE)",
        default: "turn",
    }],
    run: |scenario, mut options, seed, progress| {
        let served = options.word("served", "turn, number", |word| match word {
            "turn" => Some(Served::Turn),
            "number" => Some(Served::Number),
            _ => None,
        })?;
        options.finish()?;
        Ok(run(&mut Aimd::new(scenario, served.unwrap_or(Served::Turn), seed), scenario, seed, progress)?)
    },
};

impl Aimd {
    pub(super) fn new(scenario: &Scenario, served: Served, seed: u64) -> Aimd {
        let nodes = Nodes::new(scenario, seed);
        let frame_bytes = scenario.fabric.frame_bytes;
        let frame_ns = bytes_ns(frame_bytes, scenario.fabric.link_bits_per_s);
        Aimd {
            sending: vec![None; scenario.initiators as usize],
            link_free_ns: vec![0; scenario.initiators as usize],
            targets: (0..scenario.targets).map(|_| Target::default()).collect(),
            served,
            frame_bytes,
            frame_ns,
            period_ns: frame_ns + 3 * nodes.trip_ns + 1,
            first_bits_per_s: scenario.fabric.link_bits_per_s / 10,
            nodes,
            dings: 0,
            frames: 0,
            #[cfg(test)]
            blind: false,
        }
    }

    fn until_add_bits(&self) -> i64 {
        8 * (self.frame_bytes + ADD_CONTROL_BYTES) as i64
    }

    fn request(&mut self, sim: &mut Sim<'_, Event>, initiator: u32, chunk: ChunkId, target: u32) {
        let ask = Ask { initiator, chunk, target };
        sim.post(sim.now() + self.nodes.message_ns, sim.target_node(target), Event::Request(ask));
    }

    fn start(&mut self, sim: &mut Sim<'_, Event>, initiator: u32, chunk: ChunkId) {
        if let Some(target) = self.nodes.arrive(sim, initiator, chunk) {
            self.request(sim, initiator, chunk, target);
        }
    }

    fn admit(&mut self, sim: &mut Sim<'_, Event>, ask: Ask) {
        let (now, total_bytes) = (sim.now(), sim.chunk(ask.chunk).bytes);
        let delay_ns = self.nodes.put_off_ns(sim.scenario(), now, ask.target, total_bytes);
        let target = &mut self.targets[ask.target as usize];
        target.coming.push(Coming { ask, total_bytes, came_bytes: 0, signalled_bytes: 0 });
        if !std::mem::replace(&mut target.looking, true) {
            let next_ns = (now / self.period_ns + 1) * self.period_ns;
            sim.post(next_ns, sim.target_node(ask.target), Event::Look);
        }
        let node = sim.initiator_node(ask.initiator);
        sim.post(now + delay_ns + self.nodes.message_ns, node, Event::Begin(ask));
    }

    fn begin(&mut self, sim: &mut Sim<'_, Event>, ask: Ask) -> Result<(), Violation> {
        let sending = Sending {
            ask,
            left_bytes: sim.chunk(ask.chunk).bytes,
            rate_bits_per_s: self.first_bits_per_s,
            until_add_bits: self.until_add_bits(),
        };
        sim.audit.sent(sending.left_bytes);
        self.sending[ask.initiator as usize] = Some(sending);
        self.next(sim, ask.initiator)
    }

    /// An initiator's next frame is due: it goes when both links are free.
    fn next(&mut self, sim: &mut Sim<'_, Event>, initiator: u32) -> Result<(), Violation> {
        let now = sim.now();
        let free_ns = self.link_free_ns[initiator as usize];
        if free_ns > now {
            sim.post(free_ns, sim.initiator_node(initiator), Event::Next(initiator));
            return Ok(());
        }
        let ask = self.sending[initiator as usize].expect("who has a frame sends").ask;
        let target = &mut self.targets[ask.target as usize];
        let has_room = target.link_free_ns <= now;
        #[cfg(test)]
        let has_room = has_room || self.blind;
        if target.waiting.is_empty() && has_room {
            return self.send(sim, initiator);
        }
        target.waiting.push_back(initiator);
        if target.waiting.len() == 1 {
            sim.post(target.link_free_ns, sim.target_node(ask.target), Event::Room);
        }
        Ok(())
    }

    /// A target's link is free: one of those that wait sends.
    fn room(&mut self, sim: &mut Sim<'_, Event>, at: u32) -> Result<(), Violation> {
        let waiting = &mut self.targets[at as usize].waiting;
        let turn = match self.served {
            Served::Turn => 0,
            Served::Number => (0..waiting.len()).min_by_key(|n| waiting[*n]).unwrap_or(0),
        };
        let initiator = waiting.remove(turn).expect("somebody waits for room");
        self.send(sim, initiator)?;
        let target = &self.targets[at as usize];
        if !target.waiting.is_empty() {
            sim.post(target.link_free_ns, sim.target_node(at), Event::Room);
        }
        Ok(())
    }

    fn send(&mut self, sim: &mut Sim<'_, Event>, initiator: u32) -> Result<(), Violation> {
        let (now, refill) = (sim.now(), self.until_add_bits());
        let max_bits_per_s = self.nodes.link_bits_per_s;
        let sending = self.sending[initiator as usize].as_mut().expect("who has a frame sends");
        let ask = sending.ask;
        let bytes = sending.left_bytes.min(self.frame_bytes);
        let (frame_ns, link_ns) = (bytes_ns(bytes, sending.rate_bits_per_s), bytes_ns(bytes, max_bits_per_s));
        sending.left_bytes -= bytes;
        sending.until_add_bits -= 8 * bytes as i64;
        if sending.until_add_bits <= 0 {
            sending.rate_bits_per_s = (sending.rate_bits_per_s + self.first_bits_per_s).min(max_bits_per_s);
            sending.until_add_bits = refill;
        }
        let last = sending.left_bytes == 0;
        self.frames += 1;
        sim.audit.initiators.add(now, initiator, now, now + link_ns)?;
        sim.audit.targets.add(now, ask.target, now, now + link_ns)?;
        self.link_free_ns[initiator as usize] = now + link_ns;
        let target = &mut self.targets[ask.target as usize];
        target.link_free_ns = now + link_ns;
        let arrives_ns = now + frame_ns + self.nodes.trip_ns;
        let at = target.on_way.partition_point(|(other_ns, _)| *other_ns <= arrives_ns);
        target.on_way.insert(at, (arrives_ns, ask));
        sim.post(arrives_ns, sim.target_node(ask.target), Event::Frame(ask, bytes as u32));
        let then = if last { Event::Sent(ask) } else { Event::Next(initiator) };
        sim.post(now + frame_ns, sim.initiator_node(initiator), then);
        Ok(())
    }

    fn frame(&mut self, sim: &mut Sim<'_, Event>, ask: Ask, bytes: u32) -> Result<(), Violation> {
        let target = &mut self.targets[ask.target as usize];
        let on_way = target.on_way.iter().position(|(_, other)| *other == ask).expect("a frame was on its way");
        target.on_way.remove(on_way);
        let at = target.coming.iter().position(|c| c.ask == ask).expect("only what was admitted comes");
        let coming = &mut target.coming[at];
        coming.came_bytes += u64::from(bytes);
        if coming.came_bytes < coming.total_bytes {
            return Ok(());
        }
        target.coming.remove(at);
        self.nodes.received(sim, ask, Event::Stored(ask))
    }

    /// A target looks at the frames on their way to it.
    fn look(&mut self, sim: &mut Sim<'_, Event>, at: u32) {
        let now = sim.now();
        if self.targets[at as usize].coming.is_empty() {
            self.targets[at as usize].looking = false;
            return;
        }
        sim.post(now + self.period_ns, sim.target_node(at), Event::Look);
        let target = &self.targets[at as usize];
        let Some((_, first)) = target.on_way.front().copied() else { return };
        let bytes = sim.chunk(first.chunk).bytes;
        if self.nodes.is_behind(sim.scenario(), now, at, bytes) {
            let all: Vec<Ask> = target.on_way.iter().map(|(_, ask)| *ask).collect();
            all.into_iter().for_each(|ask| self.signal(sim, ask));
            return;
        }
        let gaps = target.on_way.iter().zip(target.on_way.iter().skip(1));
        let close = gaps.filter(|(before, after)| after.0 - before.0 <= self.frame_ns).count() as u32;
        let frame = self.frame_bytes;
        let coming = target.coming.iter().find(|c| c.ask == first).expect("only what was admitted comes");
        let (came, total) = (coming.came_bytes, coming.total_bytes);
        if close >= CLOSE_ARRIVALS && came + 3 * frame < total && coming.signalled_bytes + frame < came {
            self.signal(sim, first);
        }
    }

    fn signal(&mut self, sim: &mut Sim<'_, Event>, ask: Ask) {
        let frame = self.frame_bytes;
        let coming = self.targets[ask.target as usize].coming.iter_mut().find(|c| c.ask == ask);
        let coming = coming.expect("only what was admitted comes");
        coming.signalled_bytes = coming.came_bytes + frame;
        self.dings += 1;
        sim.post(sim.now() + self.nodes.message_ns, sim.initiator_node(ask.initiator), Event::Ding(ask));
    }

    fn is_sending(&self, ask: &Ask) -> bool {
        self.sending[ask.initiator as usize].is_some_and(|s| s.ask == *ask)
    }

    fn ding(&mut self, ask: Ask) {
        let (first, refill) = (self.first_bits_per_s, self.until_add_bits());
        if let Some(sending) = self.sending[ask.initiator as usize].as_mut().filter(|s| s.ask == ask) {
            sending.rate_bits_per_s = (sending.rate_bits_per_s / 2).max(first);
            sending.until_add_bits = refill;
        }
    }
}

impl Protocol for Aimd {
    type Event = Event;

    fn arrive(&mut self, sim: &mut Sim<'_, Event>, initiator: u32, chunk: ChunkId) -> Result<(), Violation> {
        self.start(sim, initiator, chunk);
        Ok(())
    }

    fn event(&mut self, sim: &mut Sim<'_, Event>, node: u32, event: Event) -> Result<(), Violation> {
        match event {
            Event::Request(ask) => self.admit(sim, ask),
            Event::Begin(ask) => self.begin(sim, ask)?,
            Event::Next(initiator) => self.next(sim, initiator)?,
            Event::Room => self.room(sim, node)?,
            Event::Frame(ask, bytes) => self.frame(sim, ask, bytes)?,
            Event::Look => self.look(sim, node),
            Event::Ding(ask) => self.ding(ask),
            Event::Sent(ask) => {
                self.sending[ask.initiator as usize] = None;
                if let Some(target) = self.nodes.sent(ask.initiator, sim.scenario().copies) {
                    self.request(sim, ask.initiator, ask.chunk, target);
                }
            }
            Event::Stored(ask) => self.nodes.stored(sim, ask, Event::Acked(ask))?,
            Event::Acked(ask) => {
                if let Some(chunk) = self.nodes.acked(sim, ask)? {
                    self.start(sim, ask.initiator, chunk);
                }
            }
        }
        Ok(())
    }

    fn fingerprint(event: &Event) -> u64 {
        match event {
            Event::Request(ask) => ask.fingerprint(0),
            Event::Begin(ask) => ask.fingerprint(1),
            Event::Next(initiator) => (2 << 60) | u64::from(*initiator),
            Event::Room => 3 << 60,
            Event::Frame(ask, bytes) => ask.fingerprint(4) ^ (u64::from(*bytes) << 8),
            Event::Look => 5 << 60,
            Event::Ding(ask) => ask.fingerprint(6),
            Event::Sent(ask) => ask.fingerprint(7),
            Event::Stored(ask) => ask.fingerprint(8),
            Event::Acked(ask) => ask.fingerprint(9),
        }
    }

    fn counters(&self, sim: &Sim<'_, Event>) -> Vec<(&'static str, u64)> {
        let begun = |target: &Target, c: &Coming| {
            c.came_bytes > 0 || self.is_sending(&c.ask) || target.on_way.iter().any(|(_, ask)| *ask == c.ask)
        };
        let of =
            |target: &Target| target.coming.iter().filter(|c| begun(target, c)).map(|c| c.total_bytes).sum::<u64>();
        let on_way_bytes: u64 = self.targets.iter().map(of).sum();
        assert_eq!(on_way_bytes, sim.audit.in_flight_bytes(), "what is under way is what was sent and did not come");
        vec![("frames", self.frames), ("dings", self.dings), ("put_off", self.nodes.put_off)]
    }
}
