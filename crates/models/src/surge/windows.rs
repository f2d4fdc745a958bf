//! Model b: each initiator writes to its own target, with a window of commands.
//!
//! Owns: commands on their way and in the drive. Never: more than one copy.
//! Invariant: the commands of an initiator are sent whole and in order.
//!
//! SURGE (reference 1.3): initiator i writes to target i; a command is a control message and the chunk's frames, and is acknowledged by
//! the drive, whose answers are late by 1, 2, 3, 4, 8 chunk times when 4, 8, 12, 16, 20 chunks wait
//! ([`StoreSpec::surge_crowded`]). Control and data share the whole link. So the larger the window, the closer the drive is to its rate, and the longer
//! each command takes: the model shows where the window stops paying.
//!
//! Inferred: commands of one initiator are sent one after the other (SURGE interleaves their frames at random); initiators beyond
//! the number of targets stay idle; with write-back the acknowledgement may come early, as in models 5 and 6.

use super::commands::{Commands, buffer_bytes, command_ns, largest_bytes, served};
use crate::storage::registry::Model;
use crate::storage::{Acknowledge, ChunkId, Key, OptionError, Protocol, Scenario, Sim, Violation, run};
use segue_des::{Chance, Class, Framing, Link, LinkSpec, Policy, Span, Store, StoreSpec};

/// Largest window, commands.
const WINDOW_MAX: u64 = 1024;

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A command's last byte came.
    Came(ChunkId),
    /// The drive answers.
    Stored(ChunkId),
    /// The initiator hears of it.
    Acked(ChunkId),
}

struct Windows {
    commands: Commands,
    /// By window, which is by pair of initiator and target.
    links: Vec<Link>,
    stores: Vec<Store>,
    control_bytes: u64,
    message_ns: u64,
    deepest: usize,
    /// Nothing here is left to chance; links and drives want a stream.
    chance: Chance,
}

/// The model as `segue sim` knows it.
pub const MODEL: Model = Model {
    name: "surge-b",
    about: "initiator i writes to target i with a window of commands, on a drive that answers late when crowded",
    source: "SURGE mb",
    keys: &[Key { name: "window", about: "commands under way per initiator, 1 to 1024", default: "2" }],
    run: |scenario, mut options, seed, progress| {
        let window = options.number("window")?.unwrap_or(2);
        options.finish()?;
        if !(1..=WINDOW_MAX).contains(&window) {
            return Err(OptionError::Range { key: "window", range: "1 to 1024" }.into());
        }
        let mut windows = Windows::new(scenario, window as u32, seed);
        let scenario = windows.commands.scenario(scenario);
        let outcome = run(&mut windows, &scenario, seed, progress)?;
        Ok(windows.commands.relabel(outcome))
    },
};

/// The link of models that reserve nothing for control.
fn link_spec(scenario: &Scenario) -> LinkSpec {
    let fabric = &scenario.fabric;
    let framing = Framing {
        bits_per_s: fabric.link_bits_per_s,
        frame_bytes: fabric.frame_bytes,
        overhead_permille: fabric.overhead_permille,
        control_permille: 0,
    };
    LinkSpec { framing, propagation_ns: fabric.trip_ns, ..LinkSpec::SURGE }
}

/// SURGE's crowded drive at the scenario's rate.
pub(super) fn store(scenario: &Scenario, target: u32) -> Store {
    let policy = match scenario.acknowledge {
        Acknowledge::WriteThrough => Policy::WriteThrough,
        Acknowledge::WriteBack => Policy::WriteBack { buffer_bytes: buffer_bytes(largest_bytes(scenario)) },
    };
    let bytes_per_s = scenario.drive_bytes_per_s;
    let mut store = Store::new(StoreSpec { bytes_per_s, ..StoreSpec::surge_crowded(1, policy) });
    for slow in scenario.slow.iter().filter(|s| s.target == target) {
        store.slow(Span::from(0), slow.permille);
    }
    store
}

impl Windows {
    fn new(scenario: &Scenario, window: u32, seed: u64) -> Windows {
        let pairs = scenario.initiators.min(scenario.targets);
        let spec = link_spec(scenario);
        Windows {
            commands: Commands::new((0..pairs).map(|_| window)),
            links: (0..pairs).map(|_| Link::new(spec)).collect(),
            stores: (0..pairs).map(|n| store(scenario, n)).collect(),
            control_bytes: scenario.fabric.control_bytes,
            message_ns: spec.framing.control_ns(scenario.fabric.control_bytes) + spec.propagation_ns,
            deepest: 0,
            chance: Chance::new(seed).stream("windows"),
        }
    }

    fn issue(&mut self, sim: &mut Sim<'_, Event>, pair: u32, chunk: ChunkId) {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let link = &mut self.links[pair as usize];
        let arrives_ns = command_ns(link, now, (self.control_bytes, bytes), &mut self.chance);
        sim.audit.sent(bytes);
        sim.post(arrives_ns, sim.target_node(pair), Event::Came(chunk));
    }

    fn came(&mut self, sim: &mut Sim<'_, Event>, chunk: ChunkId, pair: u32) -> Result<(), Violation> {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let store = &mut self.stores[pair as usize];
        let (ack_ns, medium_ns) = served(store.write(now, bytes, &mut self.chance));
        self.deepest = self.deepest.max(store.depth(now));
        let takes_ns = sim.scenario().drive_ns(pair, bytes);
        sim.audit.received(now, pair, bytes, medium_ns, takes_ns)?;
        sim.post(ack_ns, sim.target_node(pair), Event::Stored(chunk));
        Ok(())
    }
}

impl Protocol for Windows {
    type Event = Event;

    fn arrive(&mut self, sim: &mut Sim<'_, Event>, source: u32, chunk: ChunkId) -> Result<(), Violation> {
        if self.commands.arrive(source, chunk) {
            self.issue(sim, self.commands.window(source), chunk);
        }
        Ok(())
    }

    fn event(&mut self, sim: &mut Sim<'_, Event>, _: u32, event: Event) -> Result<(), Violation> {
        match event {
            Event::Came(chunk) => {
                let pair = self.commands.window(sim.chunk(chunk).initiator);
                self.came(sim, chunk, pair)?;
            }
            Event::Stored(chunk) => {
                let (bytes, source) = (sim.chunk(chunk).bytes, sim.chunk(chunk).initiator);
                sim.audit.stored(sim.now(), self.commands.window(source), chunk, bytes)?;
                sim.post(sim.now() + self.message_ns, sim.initiator_node(source), Event::Acked(chunk));
            }
            Event::Acked(chunk) => {
                let pair = self.commands.window(sim.chunk(chunk).initiator);
                // Its place is free before the loop brings the source's next chunk.
                let next = self.commands.done(pair);
                sim.finish(chunk)?;
                if let Some(next) = next {
                    self.issue(sim, pair, next);
                }
            }
        }
        Ok(())
    }

    fn fingerprint(event: &Event) -> u64 {
        match event {
            Event::Came(chunk) => u64::from(chunk.0),
            Event::Stored(chunk) => (1 << 60) | u64::from(chunk.0),
            Event::Acked(chunk) => (2 << 60) | u64::from(chunk.0),
        }
    }

    fn counters(&self, sim: &Sim<'_, Event>) -> Vec<(&'static str, u64)> {
        let taken: u64 = self.links.iter().map(|link| link.stats().taken_bytes[Class::Data as usize]).sum();
        let written: u64 = self.stores.iter().map(|store| store.stats().written_bytes).sum();
        assert_eq!(taken - written, sim.audit.in_flight_bytes(), "what links took and drives did not is under way");
        let early = self.stores.iter().map(|store| store.stats().early_acks).sum();
        vec![("deepest_queue", self.deepest as u64), ("early_acks", early)]
    }
}
