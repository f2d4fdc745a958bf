//! The side that stores.
//!
//! Owns: one target's calendar and its answers. Never: the data; the driver receives and stores it.
//! Invariant: two bookings never overlap; a message that comes again gets its answer again and changes nothing.

use super::calendar::{Booking, Calendar, Pace};
use super::messages::{NodeId, Offer};
use super::policy::{BYTES_MAX, FAR_NS, Policy};
use crate::reserve::Links;
use segue_types::Nanos;

/// What happens to a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetEvent {
    /// An initiator asks for an offer.
    Ask {
        /// Who.
        from: NodeId,
        /// Its round.
        round: u32,
        /// How much it would send.
        bytes: u64,
        /// Not before, nanoseconds.
        from_ns: Nanos,
    },
    /// An initiator books a window.
    Book {
        /// Who.
        from: NodeId,
        /// Its round.
        round: u32,
        /// Which booking of the round, from 1 on.
        attempt: u32,
        /// How much it will send.
        bytes: u64,
        /// From when, nanoseconds.
        start_ns: Nanos,
    },
    /// An initiator gives a booking, or an offer that was held, back.
    Release {
        /// Who.
        from: NodeId,
        /// The round of the booking.
        round: u32,
    },
    /// The last byte of a booking's data is here and goes to the drive.
    Received {
        /// From whom.
        from: NodeId,
        /// The round of its booking.
        round: u32,
        /// How much.
        bytes: u64,
    },
    /// The drive ended a write, well or not, in the order given.
    Stored {
        /// How much.
        bytes: u64,
    },
}

/// What a target wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetCommand {
    /// Send an offer.
    Offer {
        /// To whom.
        to: NodeId,
        /// Its round.
        round: u32,
        /// The offer; nothing when there is no room for a booking.
        offer: Option<Offer>,
    },
    /// The window is the asker's.
    Booked {
        /// To whom.
        to: NodeId,
        /// Its round.
        round: u32,
        /// Which booking of the round.
        attempt: u32,
    },
    /// The window is not free any more.
    Refused {
        /// To whom.
        to: NodeId,
        /// Its round.
        round: u32,
        /// Which booking of the round.
        attempt: u32,
        /// What could be had instead.
        offer: Option<Offer>,
    },
}

/// Names a booking: who made it, its round, and which one of the round it is.
type Name = (NodeId, u32, u32);

/// One target.
pub struct Target {
    policy: Policy,
    links: Links,
    calendar: Calendar,
    /// Bookings whose data never came.
    pub expired: u64,
}

impl Target {
    /// A target with an idle drive of about this rate, bytes per second; the true rate is learned.
    ///
    /// # Panics
    /// When the policy cannot be used ([`Policy::check`]) or the rate is 0.
    pub fn new(policy: Policy, links: Links, drive_bytes_per_s: u64) -> Target {
        assert!(policy.check() && drive_bytes_per_s > 0, "a target needs a usable policy and a drive that moves");
        let calendar = Calendar::new(usize::from(policy.bookings_max), Pace::new(drive_bytes_per_s));
        Target { policy, links, calendar, expired: 0 }
    }

    /// Bookings now.
    pub fn bookings(&self) -> usize {
        self.calendar.len()
    }

    /// Steps the machine. Commands are appended to `out`.
    pub fn step(&mut self, now: Nanos, event: TargetEvent, out: &mut Vec<TargetCommand>) {
        // A booking is kept twice its patience past its end: data that is late by more was lost with its sender.
        self.expired += self.calendar.expire(now, 2 * self.policy.patience_ns) as u64;
        self.calendar.pace.fade(now);
        match event {
            TargetEvent::Ask { from, round, bytes, from_ns } => {
                let booked = self.calendar.find(from, round).is_some_and(|b| b.attempt > 0);
                if !booked {
                    self.calendar.remove(from, round);
                }
                let offer = self.offer(now, bytes, from_ns);
                if let (true, false, Some(offer)) = (self.policy.hold, booked, offer) {
                    let held = self.booking((from, round, 0), bytes, offer.start_ns);
                    assert!(self.calendar.take(held), "an offer is free when it is made");
                }
                out.push(TargetCommand::Offer { to: from, round, offer });
            }
            TargetEvent::Book { from, round, attempt, bytes, start_ns } => {
                out.push(match self.book(now, (from, round, attempt), bytes, start_ns) {
                    Ok(()) => TargetCommand::Booked { to: from, round, attempt },
                    Err(offer) => TargetCommand::Refused { to: from, round, attempt, offer },
                });
            }
            TargetEvent::Release { from, round } => drop(self.calendar.remove(from, round)),
            TargetEvent::Received { from, round, bytes } => {
                self.calendar.remove(from, round);
                self.calendar.pace.given(now, bytes);
            }
            TargetEvent::Stored { bytes } => self.calendar.pace.ended(now, bytes),
        }
    }

    /// Books a window, or gives what could be had instead.
    fn book(&mut self, now: Nanos, name: Name, bytes: u64, start_ns: Nanos) -> Result<(), Option<Offer>> {
        if !is_plausible(now, start_ns, bytes) {
            return Err(None);
        }
        let (from, round, attempt) = name;
        match self.calendar.find(from, round) {
            // A repeated message. The window may have begun: the data is on its way.
            Some(known) if known.attempt == attempt => return Ok(()),
            // This was refused before, and comes again.
            Some(known) if known.attempt > attempt => return Err(None),
            // A held offer becomes the booking.
            _ => drop(self.calendar.remove(from, round)),
        }
        let booking = self.booking(name, bytes, start_ns);
        if start_ns >= now && self.calendar.take(booking) { Ok(()) } else { Err(self.offer(now, bytes, start_ns)) }
    }

    fn booking(&self, (from, round, attempt): Name, bytes: u64, start_ns: Nanos) -> Booking {
        let end_ns = start_ns + self.policy.window_ns(&self.links, bytes);
        Booking { start_ns, end_ns, bytes, from, round, attempt }
    }

    fn offer(&self, now: Nanos, bytes: u64, from_ns: Nanos) -> Option<Offer> {
        if self.calendar.is_full() || !is_plausible(now, from_ns, bytes) {
            return None;
        }
        // The booking cannot be here sooner than an offer and an answer take.
        let from_ns = from_ns.max(now + 2 * self.links.message_ns());
        Some(self.calendar.offer(from_ns, self.policy.window_ns(&self.links, bytes), bytes))
    }
}

/// Whether a message can be meant: what is not would run out of numbers.
const fn is_plausible(now: Nanos, start_ns: Nanos, bytes: u64) -> bool {
    bytes <= BYTES_MAX && start_ns.saturating_sub(now) <= FAR_NS
}
