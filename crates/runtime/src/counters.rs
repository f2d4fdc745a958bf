//! What a core counts, readable from other threads at any time.
//!
//! Owns: the counters and the buckets of latency. Never: takes a lock, or an atomic read-modify-write.
//! Invariant: only the core's own thread writes; readers see each number grow, never a sum that is exact at an instant.

use crate::pool::Recovery;
use segue_types::{RecoveryLevel, TaskKind};
use std::sync::atomic::{AtomicU64, Ordering};

const KINDS: usize = TaskKind::ALL.len();
const LEVELS: usize = RecoveryLevel::ALL.len();

/// Buckets of a latency histogram: bucket `n` counts latencies below `2^(n + 10)` ns (1 us, 2 us, ... 2^33 ns = 8.6 s),
/// the last one all that were longer.
pub const LATENCY_BUCKETS: usize = 25;

/// Upper bound of a bucket, ns; `None` for the last, which has none.
pub const fn latency_bucket_ns_max(bucket: usize) -> Option<u64> {
    if bucket + 1 < LATENCY_BUCKETS { Some(1 << (bucket + 10)) } else { None }
}

/// The bucket of a latency.
pub(crate) fn latency_bucket(latency_ns: u64) -> usize {
    let bucket = (u64::BITS - (latency_ns >> 10).leading_zeros()) as usize;
    bucket.min(LATENCY_BUCKETS - 1)
}

/// Kinds of request that are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpClass {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Flushes.
    Flush = 2,
    /// Discards and write-zeroes.
    Trim = 3,
    /// Block status and prefetch.
    Other = 4,
}

impl OpClass {
    /// All kinds, in the order of [`Snapshot::ops`].
    pub const ALL: [OpClass; 5] = [OpClass::Read, OpClass::Write, OpClass::Flush, OpClass::Trim, OpClass::Other];

    /// A word for labels.
    pub const fn label(self) -> &'static str {
        match self {
            OpClass::Read => "read",
            OpClass::Write => "write",
            OpClass::Flush => "flush",
            OpClass::Trim => "trim",
            OpClass::Other => "other",
        }
    }
}

#[derive(Default)]
struct Class {
    requests: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    latency_ns_sum: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

/// The counters of one core.
#[derive(Default)]
pub(crate) struct Counters {
    classes: [Class; 5],
    pub(crate) turns: AtomicU64,
    pub(crate) kernel_calls: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) cut: AtomicU64,
    pub(crate) handshakes_elsewhere: AtomicU64,
    pub(crate) mem_used_bytes: AtomicU64,
    pub(crate) mem_waits: AtomicU64,
    pub(crate) send_stalls: AtomicU64,
    pub(crate) requests_in_flight: AtomicU64,
    recoveries: [[AtomicU64; LEVELS]; KINDS],
    recovery_ns_sum: AtomicU64,
    recovery_ns_max: AtomicU64,
}

impl Counters {
    /// Adds without a locked instruction: only the owner writes.
    #[inline]
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set(counter: &AtomicU64, n: u64) {
        counter.store(n, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn request(&self, class: OpClass, ok: bool, bytes: u64, latency_ns: u64) {
        let class = &self.classes[class as usize];
        Self::add(&class.requests, 1);
        if ok {
            Self::add(&class.bytes, bytes);
        } else {
            Self::add(&class.errors, 1);
        }
        Self::add(&class.latency_ns_sum, latency_ns);
        Self::add(&class.latency[latency_bucket(latency_ns)], 1);
    }

    /// Counts a recovery from a panic.
    pub(crate) fn recovered(&self, recovery: &Recovery) {
        Self::add(&self.recoveries[recovery.task as usize][recovery.level as usize], 1);
        Self::add(&self.recovery_ns_sum, recovery.took_ns);
        let max = self.recovery_ns_max.load(Ordering::Relaxed);
        Self::set(&self.recovery_ns_max, max.max(recovery.took_ns));
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let class = |class: &Class| OpCounters {
            requests: get(&class.requests),
            errors: get(&class.errors),
            bytes: get(&class.bytes),
            latency_ns_sum: get(&class.latency_ns_sum),
            latency: std::array::from_fn(|n| get(&class.latency[n])),
        };
        Snapshot {
            ops: std::array::from_fn(|n| class(&self.classes[n])),
            turns: get(&self.turns),
            kernel_calls: get(&self.kernel_calls),
            connections: get(&self.connections),
            accepted: get(&self.accepted),
            refused: get(&self.refused),
            cut: get(&self.cut),
            handshakes_elsewhere: get(&self.handshakes_elsewhere),
            mem_used_bytes: get(&self.mem_used_bytes),
            mem_waits: get(&self.mem_waits),
            send_stalls: get(&self.send_stalls),
            requests_in_flight: get(&self.requests_in_flight),
            recoveries: std::array::from_fn(|kind| std::array::from_fn(|level| get(&self.recoveries[kind][level]))),
            recovery_ns_sum: get(&self.recovery_ns_sum),
            recovery_ns_max: get(&self.recovery_ns_max),
        }
    }
}

/// Counters of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounters {
    /// Requests answered.
    pub requests: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Bytes read, written or trimmed with success.
    pub bytes: u64,
    /// Sum of latencies, ns, from the turn that parsed a request to the turn that queued its reply. The clock is
    /// read once per turn, so what begins and ends within one turn counts as 0.
    pub latency_ns_sum: u64,
    /// Latencies by [`latency_bucket_ns_max`].
    pub latency: [u64; LATENCY_BUCKETS],
}

/// The counters of one core at about one moment. All but the gauges only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By [`OpClass::ALL`].
    pub ops: [OpCounters; 5],
    /// Turns of the loop.
    pub turns: u64,
    /// Calls into the kernel for drives and sockets.
    pub kernel_calls: u64,
    /// Connections now (gauge).
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections turned away because there were too many.
    pub refused: u64,
    /// Connections cut: broken protocol, handshake too slow, stalled while others starved.
    pub cut: u64,
    /// Steps of TLS handshakes that helpers did for the core.
    pub handshakes_elsewhere: u64,
    /// Bytes of I/O memory in use now, the engines' caches included (gauge).
    pub mem_used_bytes: u64,
    /// Times that a connection had to wait for I/O memory.
    pub mem_waits: u64,
    /// Times that a client's socket had no room for replies.
    pub send_stalls: u64,
    /// Requests in flight now (gauge).
    pub requests_in_flight: u64,
    /// Recoveries from panics, by the places of [`TaskKind::ALL`] and [`RecoveryLevel::ALL`].
    pub recoveries: [[u64; LEVELS]; KINDS],
    /// Sum of the times of recoveries, ns.
    pub recovery_ns_sum: u64,
    /// The longest recovery, ns (gauge).
    pub recovery_ns_max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_their_bucket() {
        let counters = Counters::default();
        for (ns, bucket) in [(0, 0), (1023, 0), (1024, 1), (2047, 1), (2048, 2), (u64::MAX, LATENCY_BUCKETS - 1)] {
            let before = counters.snapshot().ops[0].latency[bucket];
            counters.request(OpClass::Read, true, 1, ns);
            assert_eq!(counters.snapshot().ops[0].latency[bucket], before + 1, "{ns}");
            assert!(latency_bucket_ns_max(bucket).is_none_or(|max| ns < max));
        }
    }
}
