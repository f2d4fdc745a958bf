//! What models 5 and 6 share: who writes what where, one copy after the other, and the drives behind it.
//!
//! Owns: an initiator's chunks, targets and acknowledgements; when a target puts a transfer off. Never: how bytes travel.
//! Invariant: an initiator sends one copy at a time; a chunk ends with the acknowledgement of its last copy.
//!
//! SURGE (reference 1.3): a chunk goes to as many random targets as there are copies, all different and different from those of
//! the initiator's chunk before. These models reserve nothing for control: data may use the whole link but for headers, and a
//! control message is 100 bytes. A target puts a transfer off when its drive is behind (reference 3.3, by the rule of
//! acknowledgement).
//!
//! Inferred: with hot spots or given groups the targets are drawn from the chunk's group; with open arrivals an initiator writes
//! its chunks one after the other; control messages take no bandwidth from data (100 bytes are 81 ns).

use super::common::{Drives, queue_chunks};
use crate::storage::{Acknowledge, ChunkId, Placement, Scenario, Sim, Violation};
use segue_des::{Chance, bytes_ns};
use segue_types::Nanos;
use std::collections::VecDeque;

/// A control message of models 5 and 6, bytes (reference 1.1).
const CONTROL_BYTES: u64 = 100;
/// Most copies of a chunk.
const COPIES_MAX: usize = 8;

/// A copy that a target is asked to store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub(super) initiator: u32,
    pub(super) chunk: ChunkId,
    pub(super) target: u32,
}

impl Ask {
    /// For trace hashes: different for each copy of a run and each kind of event.
    pub(super) fn fingerprint(&self, kind: u64) -> u64 {
        (kind << 60) | (u64::from(self.target) << 32) | u64::from(self.chunk.0)
    }
}

/// What an initiator is busy with.
#[derive(Clone, Copy)]
struct Writing {
    chunk: ChunkId,
    targets: [u32; COPIES_MAX],
    sent: u32,
    acked: u32,
}

struct Initiator {
    waiting: VecDeque<ChunkId>,
    writing: Option<Writing>,
    last: Option<[u32; COPIES_MAX]>,
    chance: Chance,
}

/// All nodes of a run.
pub(super) struct Nodes {
    initiators: Vec<Initiator>,
    drives: Drives,
    /// What data may use of a link, bits per second.
    pub(super) link_bits_per_s: u64,
    /// From sending a control message to its being handled.
    pub(super) message_ns: Nanos,
    /// Propagation.
    pub(super) trip_ns: Nanos,
    /// Transfers that a target put off for its drive.
    pub(super) put_off: u64,
}

impl Nodes {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Nodes {
        let root = Chance::new(seed);
        let initiator = |n: u32| Initiator {
            waiting: VecDeque::new(),
            writing: None,
            last: None,
            chance: root.stream(&format!("targets of {n}")),
        };
        let fabric = &scenario.fabric;
        let link_bits_per_s = fabric.link_bits_per_s / 1000 * (1000 - fabric.overhead_permille);
        Nodes {
            initiators: (0..scenario.initiators).map(initiator).collect(),
            drives: Drives::new(scenario),
            link_bits_per_s,
            message_ns: bytes_ns(CONTROL_BYTES, link_bits_per_s) + fabric.trip_ns,
            trip_ns: fabric.trip_ns,
            put_off: 0,
        }
    }

    /// A chunk comes: the target of its first copy, unless the initiator is busy.
    pub(super) fn arrive<E: Copy>(&mut self, sim: &Sim<'_, E>, n: u32, chunk: ChunkId) -> Option<u32> {
        let (scenario, group) = (sim.scenario(), sim.chunk(chunk).group);
        if self.initiators[n as usize].writing.is_some() {
            self.initiators[n as usize].waiting.push_back(chunk);
            return None;
        }
        let (base, of) = match scenario.placement {
            Placement::Random => (0, scenario.targets),
            Placement::Given(_) | Placement::Hot { .. } => (group * scenario.group_targets, scenario.group_targets),
        };
        let initiator = &mut self.initiators[n as usize];
        let targets = initiator.draw(base, of, scenario.copies as usize);
        initiator.writing = Some(Writing { chunk, targets, sent: 0, acked: 0 });
        Some(targets[0])
    }

    /// A copy was sent: the target of the next, if there is one.
    pub(super) fn sent(&mut self, n: u32, copies: u32) -> Option<u32> {
        let writing = self.initiators[n as usize].writing.as_mut().expect("who sends writes");
        writing.sent += 1;
        (writing.sent < copies).then(|| writing.targets[writing.sent as usize])
    }

    /// A copy was acknowledged. When it was the last: the chunk that waited longest, if one does.
    pub(super) fn acked<E: Copy>(&mut self, sim: &mut Sim<'_, E>, ask: Ask) -> Result<Option<ChunkId>, Violation> {
        let initiator = &mut self.initiators[ask.initiator as usize];
        let writing =
            initiator.writing.as_mut().filter(|w| w.chunk == ask.chunk).expect("acks are for what is written");
        writing.acked += 1;
        if writing.acked < sim.scenario().copies {
            return Ok(None);
        }
        initiator.writing = None;
        sim.finish(ask.chunk)?;
        Ok(self.initiators[ask.initiator as usize].waiting.pop_front())
    }

    /// How long a target puts a transfer off because of its drive (reference 3.3), nanoseconds.
    pub(super) fn put_off_ns(&mut self, scenario: &Scenario, now: Nanos, target: u32, bytes: u64) -> Nanos {
        let over_ns = self.drives.delay_ns(scenario, now, target, bytes);
        let delay_ns = match scenario.acknowledge {
            Acknowledge::WriteBack => over_ns,
            Acknowledge::WriteThrough if self.is_behind(scenario, now, target, bytes) => {
                over_ns.saturating_sub(bytes_ns(bytes, self.link_bits_per_s))
            }
            Acknowledge::WriteThrough => 0,
        };
        self.put_off += u64::from(delay_ns > 0);
        delay_ns
    }

    /// True when the drive is behind by as many chunks as its buffer holds.
    pub(super) fn is_behind(&self, scenario: &Scenario, now: Nanos, target: u32, bytes: u64) -> bool {
        let drive_ns = scenario.drive_ns(target, bytes);
        let backlog_ns = self.drives.until_ns(target).saturating_sub(now);
        (backlog_ns + drive_ns / 2) / drive_ns >= queue_chunks(bytes)
    }

    /// The last byte of a copy is there: it goes to the drive. `stored` comes when the acknowledgement leaves.
    pub(super) fn received<E: Copy>(&mut self, sim: &mut Sim<'_, E>, ask: Ask, stored: E) -> Result<(), Violation> {
        let written = self.drives.write(sim, ask.target, ask.chunk)?;
        sim.post(written.acknowledged_ns, sim.target_node(ask.target), stored);
        Ok(())
    }

    /// A copy is stored by the rule of acknowledgement: the initiator will hear of it.
    pub(super) fn stored<E: Copy>(&mut self, sim: &mut Sim<'_, E>, ask: Ask, acked: E) -> Result<(), Violation> {
        Drives::stored(sim, ask.target, ask.chunk)?;
        sim.post(sim.now() + self.message_ns, sim.initiator_node(ask.initiator), acked);
        Ok(())
    }
}

impl Initiator {
    /// `copies` different targets of `base..base + of`, and others than last time where there are enough.
    fn draw(&mut self, base: u32, of: u32, copies: usize) -> [u32; COPIES_MAX] {
        assert!(copies <= COPIES_MAX && copies as u32 <= of, "{copies} copies on {of} targets");
        let mut drawn = [u32::MAX; COPIES_MAX];
        let avoid = self.last.filter(|_| 2 * copies as u32 <= of).unwrap_or([u32::MAX; COPIES_MAX]);
        let mut count = 0;
        while count < copies {
            let target = base + self.chance.below(u64::from(of)) as u32;
            if !drawn.contains(&target) && !avoid.contains(&target) {
                drawn[count] = target;
                count += 1;
            }
        }
        self.last = Some(drawn);
        drawn
    }
}
