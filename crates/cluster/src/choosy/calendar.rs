//! The windows of one target's link, and what its drive will make of them.
//!
//! Owns: bookings and the drive's forecast. Never: who is told.
//! Invariant: bookings are sorted and disjoint.

use super::messages::{NodeId, Offer};
use super::policy::FAR_NS;
use segue_types::Nanos;

/// An idle drive's observed pace loses half of its difference to the one it was said to have in this time, nanoseconds.
const FADE_NS: Nanos = 1_000_000_000;

/// A window that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Booking {
    pub start_ns: Nanos,
    pub end_ns: Nanos,
    pub bytes: u64,
    pub from: NodeId,
    pub round: u32,
    /// Which booking of the round; 0 for an offer that is held for who asked.
    pub attempt: u32,
}

/// The drive as it was lately: what a byte costs and what is waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Picoseconds per byte: a decayed mean (weight 1/8) of what was observed.
    ps_per_byte: u64,
    /// The same as it was said to be at first.
    said_ps_per_byte: u64,
    waiting_bytes: u64,
    last_end_ns: Nanos,
    free_ns: Nanos,
}

impl Pace {
    pub const fn new(bytes_per_s: u64) -> Pace {
        let ps_per_byte = 1_000_000_000_000 / bytes_per_s;
        Pace { ps_per_byte, said_ps_per_byte: ps_per_byte, waiting_bytes: 0, last_end_ns: 0, free_ns: 0 }
    }

    pub fn takes_ns(&self, bytes: u64) -> Nanos {
        (u128::from(bytes) * u128::from(self.ps_per_byte) / 1_000).min(u128::from(FAR_NS)) as Nanos
    }

    /// An idle drive's observed pace fades into the one it was said to have: a drive that was slow once would otherwise never
    /// be written to, and never seen to be fast again.
    pub fn fade(&mut self, now: Nanos) {
        let halvings = now.saturating_sub(self.last_end_ns) / FADE_NS;
        if self.waiting_bytes > 0 || halvings == 0 {
            return;
        }
        self.last_end_ns += halvings * FADE_NS;
        let fade = |distance: u64| distance.checked_shr(halvings.min(64) as u32).unwrap_or(0);
        let (now_ps, said_ps) = (self.ps_per_byte, self.said_ps_per_byte);
        self.ps_per_byte =
            if now_ps > said_ps { said_ps + fade(now_ps - said_ps) } else { said_ps - fade(said_ps - now_ps) };
    }

    pub fn given(&mut self, now: Nanos, bytes: u64) {
        if self.waiting_bytes == 0 {
            self.last_end_ns = now;
        }
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        self.free_ns = self.free_ns.max(now).saturating_add(self.takes_ns(bytes));
    }

    /// A write ended: what it took since the drive turned to it corrects the pace and the forecast.
    pub fn ended(&mut self, now: Nanos, bytes: u64) {
        let took_ps = u128::from(now.saturating_sub(self.last_end_ns)) * 1_000;
        let observed = (took_ps / u128::from(bytes.max(1))).min(u128::from(u64::MAX / 16)) as u64;
        self.ps_per_byte = (self.ps_per_byte * 7 + observed) / 8;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        self.last_end_ns = now;
        self.free_ns = now + self.takes_ns(self.waiting_bytes);
    }
}

/// The calendar of one target.
pub struct Calendar {
    bookings: Vec<Booking>,
    max: usize,
    pub pace: Pace,
}

impl Calendar {
    pub fn new(max: usize, pace: Pace) -> Calendar {
        Calendar { bookings: Vec::with_capacity(max), max, pace }
    }

    pub const fn is_full(&self) -> bool {
        self.bookings.len() >= self.max
    }

    pub fn len(&self) -> usize {
        self.bookings.len()
    }

    /// Forgets windows whose data never came.
    pub fn expire(&mut self, now: Nanos, grace_ns: Nanos) -> usize {
        let before = self.bookings.len();
        self.bookings.retain(|b| b.end_ns + grace_ns > now);
        before - self.bookings.len()
    }

    /// The earliest window of `length_ns` from `from_ns` on, and when its data would be on the medium.
    pub fn offer(&self, from_ns: Nanos, length_ns: Nanos, bytes: u64) -> Offer {
        let mut start_ns = from_ns;
        for booking in &self.bookings {
            if start_ns + length_ns <= booking.start_ns {
                break;
            }
            start_ns = start_ns.max(booking.end_ns);
        }
        // The drive takes what comes before it in order; what comes later does not delay this.
        let mut free_ns = self.pace.free_ns;
        for booking in self.bookings.iter().take_while(|b| b.start_ns < start_ns) {
            free_ns = free_ns.max(booking.end_ns).saturating_add(self.pace.takes_ns(booking.bytes));
        }
        let done_ns = free_ns.max(start_ns + length_ns).saturating_add(self.pace.takes_ns(bytes));
        Offer { start_ns, done_ns }
    }

    /// Takes a window unless it clashes with another.
    pub fn take(&mut self, booking: Booking) -> bool {
        let at = self.bookings.partition_point(|b| b.start_ns < booking.start_ns);
        let before = at.checked_sub(1).is_none_or(|n| self.bookings[n].end_ns <= booking.start_ns);
        let after = self.bookings.get(at).is_none_or(|b| booking.end_ns <= b.start_ns);
        if self.is_full() || !before || !after {
            return false;
        }
        self.bookings.insert(at, booking);
        true
    }

    /// A booking, or an offer that is held; there is one at most.
    pub fn find(&self, from: NodeId, round: u32) -> Option<&Booking> {
        self.bookings.iter().find(|b| b.from == from && b.round == round)
    }

    /// Takes a booking out.
    pub fn remove(&mut self, from: NodeId, round: u32) -> Option<Booking> {
        let at = self.bookings.iter().position(|b| b.from == from && b.round == round)?;
        Some(self.bookings.remove(at))
    }
}
