//! What initiators and targets tell each other.
//!
//! Owns: the facts in the messages. Never: their bytes.
//! Invariant: plain data.

use segue_types::Nanos;

/// A node, as the driver numbers it. Rounds begin at 1 in every machine: an initiator that restarts gets another number, or waits until
/// its old bookings are over, lest targets take its new bookings for old ones that come again.
pub type NodeId = u32;

/// Names a write of one initiator; the driver's choice, unique while the write is under way (one that is done with its quorum is under
/// way until all copies are stored, so count up).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WriteId(pub u64);

/// A forecast that binds nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// From when the target's link is free for the whole transfer, nanoseconds.
    pub start_ns: Nanos,
    /// When the copy would be on the medium if it were sent then, nanoseconds.
    pub done_ns: Nanos,
}
