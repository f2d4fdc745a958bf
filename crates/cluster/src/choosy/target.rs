//! The side that stores.
//!
//! Owns: one target's calendar and its answers. Never: the data; the driver receives and stores it.
//! Invariant: two bookings never overlap; each booking is answered once.

use super::calendar::{Booking, Calendar, Pace};
use super::messages::{NodeId, Offer};
use super::policy::Policy;
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
    /// The drive ended a write, in the order given.
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
    },
    /// The window is not free any more.
    Refused {
        /// To whom.
        to: NodeId,
        /// Its round.
        round: u32,
        /// What could be had instead.
        offer: Option<Offer>,
    },
}

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
        match event {
            TargetEvent::Ask { from, round, bytes, from_ns } => {
                let offer = self.offer(now, bytes, from_ns);
                if let (true, Some(offer)) = (self.policy.hold, offer) {
                    let held = self.booking(from, round, bytes, offer.start_ns);
                    assert!(self.calendar.take(held), "an offer is free when it is made");
                }
                out.push(TargetCommand::Offer { to: from, round, offer });
            }
            TargetEvent::Book { from, round, bytes, start_ns } => {
                // A held offer becomes the booking; a repeated message finds its booking and is answered again.
                self.calendar.remove(from, round);
                let booking = self.booking(from, round, bytes, start_ns);
                if start_ns >= now && self.calendar.take(booking) {
                    out.push(TargetCommand::Booked { to: from, round });
                } else {
                    let offer = self.offer(now, bytes, start_ns);
                    out.push(TargetCommand::Refused { to: from, round, offer });
                }
            }
            TargetEvent::Release { from, round } => drop(self.calendar.remove(from, round)),
            TargetEvent::Received { from, round, bytes } => {
                self.calendar.remove(from, round);
                self.calendar.pace.given(now, bytes);
            }
            TargetEvent::Stored { bytes } => self.calendar.pace.ended(now, bytes),
        }
    }

    fn booking(&self, from: NodeId, round: u32, bytes: u64, start_ns: Nanos) -> Booking {
        Booking { start_ns, end_ns: start_ns + self.policy.window_ns(&self.links, bytes), bytes, from, round }
    }

    fn offer(&self, now: Nanos, bytes: u64, from_ns: Nanos) -> Option<Offer> {
        if self.calendar.is_full() {
            return None;
        }
        // The booking cannot be here sooner than an offer and an answer take.
        let from_ns = from_ns.max(now + 2 * self.links.message_ns());
        Some(self.calendar.offer(from_ns, self.policy.window_ns(&self.links, bytes), bytes))
    }
}
