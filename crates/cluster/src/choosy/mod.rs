//! The choosy initiator: copies go where they will be on the medium soonest, by unbinding forecasts and firm bookings.
//!
//! Owns: the negotiation between one who writes and those who store, as two machines. Never: a clock, a socket, chance, allocation
//! in steady state. Invariant: accepted windows of one link never overlap, at either end, whatever is lost on the way.
//!
//! ## The protocol
//! A write names its candidates: all targets that its name allows, wider than the copies need (two groups of nine, say). For each
//! copy the initiator
//! 1. **asks** a few candidates, drawn anew each time, when its own link is about to be free: not before, so that forecasts are fresh;
//! 2. collects **offers**: from when the target's link is free for so many bytes, and when they would be on its medium. An offer
//!    binds nobody and holds nothing, so the offers to others are not spoilt by those who only ask;
//! 3. **books** the window of the best offer. The target answers *booked*, or *refused* with a fresh offer when another was
//!    faster; after a refusal the next best offer is booked, and nothing is lost but a round trip that overlaps the transfer before;
//! 4. sends in the window. The target forgets the booking when the last byte is there: what was not used is free at once.
//!
//! *Best* is what delays this write least: the time its own link waits, and what the copy would be late past the time at which the
//! last copy can be on a medium (a deadline: the first copies have slack, the last one has none); then the earliest. When even the best
//! offer is late by more than twice what was lately usual (a decayed mean of the excess over the own-link-free time), the
//! candidates not yet asked are asked too, once, and the old offers stay in the race.
//!
//! ## Where it comes from
//! The idea of negotiating is Replicast-H's and of renegotiating long waits the choosy initiator's (both SURGE). What is
//! different: offers hold nothing (there, nine windows are held for each that is used), a forecast covers the drive and not
//! only the link, windows have no slack of 10 %, and the candidates are two groups (the power of two choices, Mitzenmacher 2001), which
//! is what wins in steady state. `segue reproduce choosy --stress` prints what each part contributes.
//!
//! ## Time
//! Times are the local clock's. The wire carries durations (from the sending of the message, plus the known trip), so clocks need not agree.

mod calendar;
#[cfg(test)]
mod fault_tests;
mod initiator;
mod messages;
mod policy;
mod round;
mod target;
#[cfg(test)]
mod tests;
mod writes;

pub use crate::reserve::Links;
pub use initiator::{Initiator, InitiatorCommand, InitiatorEvent, WriteError};
pub use messages::{NodeId, Offer, WriteId};
pub use policy::{ASKED_MAX, BYTES_MAX, CANDIDATES_MAX, COPIES_MAX, Choose, Policy, TIMES_MAX_NS};
pub use target::{Target, TargetCommand, TargetEvent};
