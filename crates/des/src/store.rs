//! A drive as a performance model: how long a write or read takes, and when it is acknowledged.
//!
//! Owns: until when the drive is busy, its queue's depth, slow and failing spans. Never: holds content or an event queue.
//! Invariant: operations are served in order, one at a time; a drive with a backlog is never idle.
//!
//! What a drive holds, tears and loses is `Drive`'s business; here only time counts.

use crate::framing::SECOND_NS;
use crate::span::{Span, Spans};
use crate::{Chance, Dist};
use segue_types::Nanos;
use std::collections::VecDeque;

/// When a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// When it is on the medium.
    WriteThrough,
    /// At once while the drive needs less than the buffer's time for all it has, this write included; else when it is
    /// on the medium.
    WriteBack {
        /// What the buffer holds.
        buffer_bytes: u64,
    },
}

/// What a drive is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreSpec {
    /// Bytes a second, both ways.
    pub bytes_per_s: u64,
    /// Occupies the drive before each operation, whatever it is, nanoseconds.
    pub access_ns: Nanos,
    /// Comes on top of that, differently each time, nanoseconds.
    pub access: Dist,
    /// Added to each answer without occupying the drive, nanoseconds.
    pub answer: Dist,
    /// Added to an answer by the backlog, without occupying the drive: `(depth, times)`, depths rising. The backlog, this
    /// operation included, is counted in the operation's own transfer times, to the nearest; the last entry whose depth
    /// it reaches adds that many transfer times.
    pub crowding: &'static [(u64, u64)],
    /// Operations that may be waiting or in service.
    pub depth_max: usize,
    /// When writes are acknowledged.
    pub policy: Policy,
}

impl StoreSpec {
    /// SURGE's `DiskConstLatency`: bandwidth alone, MB is MiB (reference 1).
    pub const fn surge(mib_per_s: u64, policy: Policy) -> StoreSpec {
        StoreSpec {
            bytes_per_s: mib_per_s << 20,
            access_ns: 0,
            access: Dist::Constant(0),
            answer: Dist::Constant(0),
            crowding: &[],
            depth_max: usize::MAX,
            policy,
        }
    }

    /// SURGE's `DiskVarLatency`: 0, 1, 2, 3, 4, 8 more transfer times at depths below 4, 8, 12, 16, 20 and from 20 on.
    pub fn surge_crowded(mib_per_s: u64, policy: Policy) -> StoreSpec {
        StoreSpec { crowding: &[(4, 1), (8, 2), (12, 3), (16, 4), (20, 8)], ..StoreSpec::surge(mib_per_s, policy) }
    }

    fn crowding_ns(&self, backlog_ns: Nanos, own_ns: Nanos) -> Nanos {
        let depth = (backlog_ns + own_ns / 2) / own_ns.max(1);
        self.crowding.iter().rev().find(|(from, _)| *from <= depth).map_or(0, |(_, times)| own_ns * times)
    }

    /// Time to move `bytes` to or from the medium, rounded down.
    pub fn transfer_ns(&self, bytes: u64) -> Nanos {
        let ns = u128::from(bytes) * u128::from(SECOND_NS) / u128::from(self.bytes_per_s);
        u64::try_from(ns).expect("an operation of less than 584 years")
    }
}

/// How a failing drive behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failing {
    /// Operations fail, each after its service time.
    Errors,
    /// Operations are taken and never answered.
    Silence,
}

/// What became of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// It will be done.
    Done {
        /// Answered.
        ack_ns: Nanos,
        /// On the medium, or read from it.
        medium_ns: Nanos,
    },
    /// It fails; answered then.
    Failed {
        /// Answered.
        ack_ns: Nanos,
    },
    /// It is never answered.
    Silent,
    /// The queue is full: nothing was taken.
    Full,
}

/// Counters since the drive was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStats {
    /// Writes taken that will be done.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Reads taken that will be done.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Operations refused, failed or unanswered.
    pub failed: u64,
    /// Writes acknowledged before they were on the medium.
    pub early_acks: u64,
    /// Time in service.
    pub busy_ns: u64,
}

/// A drive.
#[derive(Clone, Debug)]
pub struct Store {
    spec: StoreSpec,
    free_ns: Nanos,
    /// Ends of service of what was taken, oldest first.
    ends: VecDeque<Nanos>,
    slow: Spans<u64>,
    failing: Spans<Failing>,
    stats: StoreStats,
}

impl Store {
    /// An idle drive.
    ///
    /// # Panics
    /// When it moves nothing, has no place for an operation, or a latency cannot be drawn.
    pub fn new(spec: StoreSpec) -> Store {
        assert!(spec.bytes_per_s > 0 && spec.depth_max > 0, "a drive that does nothing: {spec:?}");
        assert!(spec.access.check().is_ok() && spec.answer.check().is_ok(), "latencies without a draw: {spec:?}");
        assert!(spec.crowding.windows(2).all(|pair| pair[0].0 < pair[1].0), "depths rise: {:?}", spec.crowding);
        Store {
            spec,
            free_ns: 0,
            ends: VecDeque::new(),
            slow: Spans::none(),
            failing: Spans::none(),
            stats: StoreStats::default(),
        }
    }

    /// What it is.
    pub const fn spec(&self) -> &StoreSpec {
        &self.spec
    }

    /// What it did.
    pub const fn stats(&self) -> StoreStats {
        self.stats
    }

    /// Takes a write at `now`, which must not go back from call to call.
    pub fn write(&mut self, now: Nanos, bytes: u64, chance: &mut Chance) -> Served {
        let (medium_ns, answer_ns) = match self.serve(now, bytes, chance) {
            Ok(served) => served,
            Err(served) => return served,
        };
        self.stats.writes += 1;
        self.stats.written_bytes += bytes;
        let early = match self.spec.policy {
            Policy::WriteThrough => false,
            Policy::WriteBack { buffer_bytes } => medium_ns - now < self.spec.transfer_ns(buffer_bytes),
        };
        self.stats.early_acks += u64::from(early);
        let ack_ns = answer_ns + if early { now } else { medium_ns };
        Served::Done { ack_ns, medium_ns }
    }

    /// Takes a read at `now`, in the same queue as the writes.
    pub fn read(&mut self, now: Nanos, bytes: u64, chance: &mut Chance) -> Served {
        let (medium_ns, answer_ns) = match self.serve(now, bytes, chance) {
            Ok(served) => served,
            Err(served) => return served,
        };
        self.stats.reads += 1;
        self.stats.read_bytes += bytes;
        Served::Done { ack_ns: medium_ns + answer_ns, medium_ns }
    }

    /// Time until all that was taken is served, nanoseconds; 0 when idle.
    pub fn backlog_ns(&self, now: Nanos) -> Nanos {
        self.free_ns.saturating_sub(now)
    }

    /// Operations waiting or in service.
    pub fn depth(&mut self, now: Nanos) -> usize {
        while self.ends.front().is_some_and(|end_ns| *end_ns <= now) {
            self.ends.pop_front();
        }
        self.ends.len()
    }

    /// Services that begin in the span run at `permille` thousandths of the drive's own speed.
    ///
    /// # Panics
    /// When `permille` is 0: a drive that does not move fails silently.
    pub fn slow(&mut self, span: Span, permille: u64) {
        assert!(permille > 0, "a drive that never ends a service");
        self.slow.add(span, permille);
    }

    /// Operations that arrive in the span fail.
    pub fn fail(&mut self, span: Span, how: Failing) {
        self.failing.add(span, how);
    }

    /// Ends every slow and failing span at `now`.
    pub fn heal(&mut self, now: Nanos) {
        self.slow.end(now);
        self.failing.end(now);
    }

    /// End of service and what the answer takes besides, or how it goes wrong.
    fn serve(&mut self, now: Nanos, bytes: u64, chance: &mut Chance) -> Result<(Nanos, Nanos), Served> {
        let depth = self.depth(now);
        let failing = self.failing.at(now).last().map(|(_, how)| how);
        if depth >= self.spec.depth_max || failing == Some(Failing::Silence) {
            self.stats.failed += 1;
            return Err(if failing.is_some() { Served::Silent } else { Served::Full });
        }
        let start_ns = now.max(self.free_ns);
        let own_ns = self.spec.transfer_ns(bytes);
        let factors = self.slow.at(start_ns).map(|(_, permille)| permille);
        let plain_ns = own_ns + self.spec.access_ns + self.spec.access.draw(chance);
        let service_ns = factors.fold(plain_ns, |ns, permille| ns * 1000 / permille);
        self.free_ns = start_ns + service_ns;
        let answer_ns = self.spec.answer.draw(chance) + self.spec.crowding_ns(self.free_ns - now, own_ns);
        self.stats.busy_ns += service_ns;
        self.ends.push_back(self.free_ns);
        if failing.is_some() {
            self.stats.failed += 1;
            return Err(Served::Failed { ack_ns: self.free_ns + answer_ns });
        }
        Ok((self.free_ns, answer_ns))
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
