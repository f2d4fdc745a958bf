//! What models share: drives with their acknowledgements; of the negotiated ones chunks that wait at an initiator, and reads.
//!
//! Owns: the drives' completion times, the waiting chunks, the counts of acknowledgements. Never: a window; who may send when
//! is a model's business.
//! Invariant: drives are first in, first out, and never idle with work; every byte of theirs is in the audit.

use crate::storage::{Acknowledge, Arrivals, ChunkId, Scenario, Sim, Timing, Violation};
use segue_types::Nanos;
use std::collections::VecDeque;

/// Bytes of a target's write buffer when chunks are smaller than half of it (SURGE `-diskqueue`; reference 1.4).
pub(super) const BUFFER_BYTES: u64 = 256 << 10;

/// Chunks of a size that a target lets wait for its drive: SURGE's Q.
pub(super) const fn queue_chunks(bytes: u64) -> u64 {
    let chunks = BUFFER_BYTES / bytes;
    if chunks < 2 { 2 } else { chunks }
}

/// Lengths of the windows that targets bid with, and of those that initiators take, nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    /// What a target bids.
    pub window_ns: Nanos,
    /// What an initiator takes of it.
    pub taken_ns: Nanos,
}

/// SURGE's lengths for multicast data: bids of `permille` of transfer and trip; taken is the transfer and one frame, or a third
/// of what the bid has over that when it has more than four frames. For chunks of few frames a bid has a frame more than is taken.
pub(super) fn multicast_lengths(timing: &Timing, bytes: u64, permille: u64) -> Lengths {
    let (transfer, frame) = (timing.transfer_ns(bytes), timing.frame_ns());
    let window_ns = (transfer + timing.trip_ns) * permille / 1_000;
    let taken_ns = transfer + frame;
    if window_ns < taken_ns {
        return Lengths { window_ns: taken_ns + frame, taken_ns };
    }
    let spare_frames = (window_ns - taken_ns) / frame;
    let taken_ns = if spare_frames > 4 { transfer + frame * (spare_frames / 3) } else { taken_ns };
    Lengths { window_ns, taken_ns }
}

/// Whether writing a chunk comes with reading one: `permille` of all operations are reads (SURGE `-r`: 500, one each), spread
/// evenly by the chunks' numbers.
pub(super) fn reads(chunk: ChunkId, permille: u64) -> bool {
    let reads = |chunks: u64| chunks * permille / (1_000 - permille);
    reads(u64::from(chunk.0) + 1) > reads(u64::from(chunk.0))
}

/// An event for trace hashes: its kind with who takes part, its chunk by number (0 for none), and what else it says.
pub(super) fn fingerprint((kind, chunk, more): (u64, u32, u64)) -> u64 {
    (u64::from(chunk) << 32).wrapping_add(kind) ^ more.rotate_left(17)
}

/// Chunks that wait for their initiator's link: it negotiates and sends one at a time. Acknowledgements may come later.
pub(super) struct Waiting {
    queues: Vec<VecDeque<ChunkId>>,
    busy: Vec<bool>,
    acknowledged: Vec<u8>,
    /// Whether a chunk may come before the last one is done.
    open: bool,
}

impl Waiting {
    pub(super) fn new(scenario: &Scenario) -> Waiting {
        let initiators = scenario.initiators as usize;
        let open = matches!(scenario.arrivals, Arrivals::Open { .. });
        Waiting {
            queues: vec![VecDeque::new(); initiators],
            busy: vec![false; initiators],
            acknowledged: Vec::new(),
            open,
        }
    }

    /// The initiator's link will be free at `at`. It is told when a chunk may come before the last one is done; else nobody waits.
    pub(super) fn sends_until<E: Copy>(&self, sim: &mut Sim<'_, E>, initiator: u32, at: Nanos, free: E) {
        if self.open {
            let node = sim.initiator_node(initiator);
            sim.post(at, node, free);
        }
    }

    /// A chunk came; it is given back when the initiator may begin with it at once.
    pub(super) fn arrive(&mut self, initiator: u32, chunk: ChunkId) -> Option<ChunkId> {
        if self.acknowledged.len() <= chunk.0 as usize {
            self.acknowledged.resize(chunk.0 as usize + 1, 0);
        }
        if std::mem::replace(&mut self.busy[initiator as usize], true) {
            self.queues[initiator as usize].push_back(chunk);
            return None;
        }
        Some(chunk)
    }

    /// The initiator's link is free: what it may begin with.
    pub(super) fn free(&mut self, initiator: u32) -> Option<ChunkId> {
        let next = self.queues[initiator as usize].pop_front();
        self.busy[initiator as usize] = next.is_some();
        next
    }

    /// A copy is acknowledged to its initiator. The chunk ends with the last one.
    pub(super) fn acknowledge<E: Copy>(
        &mut self,
        sim: &mut Sim<'_, E>,
        target: u32,
        chunk: ChunkId,
    ) -> Result<(), Violation> {
        let facts = *sim.chunk(chunk);
        if sim.scenario().acknowledge == Acknowledge::WriteBack {
            sim.audit.vouched(target, chunk);
        }
        let copies = &mut self.acknowledged[chunk.0 as usize];
        *copies += 1;
        if u32::from(*copies) < sim.scenario().copies {
            return Ok(());
        }
        if !self.open {
            let next = self.free(facts.initiator);
            assert!(next.is_none(), "in the closed loop nothing waits");
        }
        sim.finish(chunk)
    }
}

/// What becomes of a copy that a target has.
#[derive(Clone, Copy)]
pub(super) struct Written {
    /// When the target acknowledges it, nanoseconds.
    pub acknowledged_ns: Nanos,
    /// When it is on the medium, nanoseconds.
    pub stored_ns: Nanos,
}

/// The targets' drives.
pub(super) struct Drives {
    until_ns: Vec<Nanos>,
}

impl Drives {
    pub(super) fn new(scenario: &Scenario) -> Drives {
        Drives { until_ns: vec![0; scenario.targets as usize] }
    }

    /// When the drive will have done all it has, nanoseconds.
    pub(super) fn until_ns(&self, target: u32) -> Nanos {
        self.until_ns[target as usize]
    }

    /// How long a transfer to `target` should wait so that it finds less than Q chunks before it, as if it came now (SURGE now).
    pub(super) fn delay_ns(&self, scenario: &Scenario, now: Nanos, target: u32, bytes: u64) -> Nanos {
        let allowed = (queue_chunks(bytes) - 1) * scenario.drive_ns(target, bytes);
        self.until_ns(target).saturating_sub(now).saturating_sub(allowed)
    }

    /// The last byte of a copy came: the drive takes it.
    pub(super) fn write<E: Copy>(
        &mut self,
        sim: &mut Sim<'_, E>,
        target: u32,
        chunk: ChunkId,
    ) -> Result<Written, Violation> {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let takes = sim.scenario().drive_ns(target, bytes);
        let until = self.until_ns(target).max(now) + takes;
        self.until_ns[target as usize] = until;
        sim.audit.received(now, target, bytes, until, takes)?;
        let buffered = until - now < queue_chunks(bytes) * takes;
        let back = sim.scenario().acknowledge == Acknowledge::WriteBack;
        Ok(Written { acknowledged_ns: if back && buffered { now } else { until }, stored_ns: until })
    }

    /// The last byte of a copy came: the drive takes it. The target will know when it is on the medium (`stored`), the
    /// initiator when it is acknowledged.
    pub(super) fn keep<E: Copy>(
        &mut self,
        sim: &mut Sim<'_, E>,
        target: u32,
        chunk: ChunkId,
        (stored, acknowledged): (E, E),
    ) -> Result<(), Violation> {
        let Written { acknowledged_ns, stored_ns } = self.write(sim, target, chunk)?;
        sim.post(stored_ns, target, stored);
        let node = sim.initiator_node(sim.chunk(chunk).initiator);
        sim.post(acknowledged_ns + sim.timing().message_ns(), node, acknowledged);
        Ok(())
    }

    /// A copy is on the medium.
    pub(super) fn stored<E: Copy>(sim: &mut Sim<'_, E>, target: u32, chunk: ChunkId) -> Result<(), Violation> {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        sim.audit.stored(now, target, chunk, bytes)
    }

    /// The drive reads as much as a chunk has, after all it has to do.
    pub(super) fn read<E: Copy>(&mut self, sim: &mut Sim<'_, E>, target: u32, chunk: ChunkId) -> Result<(), Violation> {
        let (now, bytes) = (sim.now(), sim.chunk(chunk).bytes);
        let takes = sim.scenario().drive_ns(target, bytes);
        let until = self.until_ns(target).max(now) + takes;
        self.until_ns[target as usize] = until;
        sim.audit.worked(now, target, until, takes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Fabric;

    #[test]
    fn lengths_are_surges() {
        let timing = Fabric::default().timing();
        let lengths = |bytes| {
            let l = multicast_lengths(&timing, bytes, 1_400);
            (l.window_ns, l.taken_ns)
        };
        assert_eq!(lengths(128 << 10), (166_159, 117_685 + 8_080));
        assert_eq!(lengths(1 << 20), (1_319_474, 941_482 + 15 * 8_080));
        let (window, taken) = lengths(4 << 10);
        assert_eq!(window - taken, 8_080, "small chunks can still overlap");
        assert_eq!((queue_chunks(4 << 10), queue_chunks(128 << 10), queue_chunks(1 << 20)), (64, 2, 2));
    }

    #[test]
    fn reads_come_in_their_share() {
        let count = |permille| (0..9_000).filter(|n| reads(ChunkId(*n), permille)).count();
        assert_eq!((count(0), count(100), count(250), count(500)), (0, 1_000, 3_000, 9_000));
    }
}
