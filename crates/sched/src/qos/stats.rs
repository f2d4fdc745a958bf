//! What the machine of a drive can tell about itself and its volumes.
//!
//! Owns: the shapes of the counters. Never: decides by them.
//! Invariant: sums only grow.

use super::params::{PolicyKind, Reason};
use segue_types::Nanos;

/// One volume's use of a drive since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeStats {
    /// Requests that passed, as the tenant issued them.
    pub ops: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Cost of those, units.
    pub cost: u64,
    /// Requests, or pieces, that had to wait.
    pub waited: u64,
    /// Time they waited in all, ns, by [`Reason::ALL`].
    pub waited_ns: [Nanos; Reason::ALL.len()],
    /// Requests, or pieces, that wait now.
    pub queued: u32,
    /// Why the first of them waits.
    pub reason: Reason,
}

/// A drive's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriveStats {
    /// The policy in force.
    pub policy: PolicyKind,
    /// Cost of what the drive has now, units.
    pub outstanding: u64,
    /// The most it may have, units.
    pub window: u64,
    /// Target of the governor, ns; 0 when it has none.
    pub target_ns: Nanos,
    /// p95 that it saw last, ns.
    pub p95_ns: Nanos,
    /// What the drive can do, units per second; 0 when nobody calibrated it.
    pub capacity: u64,
    /// What is reserved of it, units per second.
    pub reserved: u64,
    /// Requests, or pieces, that wait, of all volumes.
    pub queued: u64,
    /// Cost of all that passed, units.
    pub cost: u64,
}
