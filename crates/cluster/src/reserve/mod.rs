//! Replicast-H: initiators reserve windows of time at targets, so that copies of a chunk never meet another transfer.
//!
//! Owns: the machines of both sides, and the rules they follow. Never: a clock, chance, a message on a wire, a transfer.
//! Invariant: one machine per side for all rules; a bid ends in exactly one acceptance, cancellation or expiry.
//!
//! # The protocol
//! (SURGE, model 8: multicast control, unicast data.) An initiator that has a chunk to write asks all targets of the
//! chunk's group at once: [`Ask`] says from when on it could send, and which targets have the chunk already. Each other
//! target answers with a [`Bid`]: the first window of time in which its link is free and its drive keeps up, which it
//! holds until it hears more. When all bids are there, the initiator takes the earliest window, and others that follow
//! it closely enough for the same initiator to serve them one after the other. One multicast message accepts the chosen
//! bids and cancels all others. Data goes out when a window begins; the target acknowledges a copy when it is stored
//! (or, write-back, while its drive's backlog is short). Copies that are still missing are asked for when the last
//! accepted transfer begins.
//!
//! An initiator that *chooses* does not accept a window that is too far away: when the wait exceeds its limit it cancels
//! all bids, doubles the limit, and asks again a quarter of the new limit later, when others may have let go of better
//! windows.
//!
//! # Two sets of rules
//! - [`Rules::published`]: what SURGE did when its results were published, to the nanosecond, with what is wrong in it:
//!   windows of one initiator overlap after a renegotiation, the limit starts at six propagation times, it is twice the
//!   limit that is tested, and the average is one of limits and not of waits.
//! - [`Rules::corrected`]: no two windows overlap on any link; the limit starts at three control round trips, is tested
//!   against itself, and averages the waits that happened. Lost messages and dead targets cost time, never safety.
//!
//! # Driving the machines
//! Call `step(now, event, &mut out)` with everything that happens and carry out everything in `out`, in order. Time is
//! any count of nanoseconds that all nodes of a run share to within far less than [`Links::trip_ns`]. `Wake` asks for a
//! call at a time; late and surplus calls do no harm.
//!
//! ```
//! use segue_cluster::reserve::*;
//! let links = Links::surge();
//! let mut initiator = Initiator::new(Rules::corrected(&links, 3), links, 9);
//! let mut out = Vec::new();
//! initiator.step(0, InitiatorEvent::Write { write: WriteId(1), bytes: 1 << 20 }, &mut out);
//! let InitiatorOut::Request { to, ask } = out[0] else { panic!("it asks the group") };
//! assert_eq!((to, ask.not_before_ns), (0x1ff, 0));
//! ```

mod initiator;
mod limit;
mod links;
mod message;
mod rules;
mod select;
mod target;
#[cfg(test)]
mod tests;
mod writes;

pub use initiator::{Counts, Initiator, InitiatorEvent, InitiatorOut};
pub use limit::{Limit, LimitRule};
pub use links::{Links, Span};
pub use message::{Ask, Bid, COPIES_MAX, GROUP_MAX, Grant, Grants, Window, WriteId};
pub use rules::{Patience, Rules};
pub use select::{Choice, choose};
pub use target::{Backlog, DriveRule, Reply, Target, TargetEvent, TargetOut};
