//! One direction of a link: a queue for data, one for control, and what may go wrong on the way.
//!
//! Owns: until when each queue is busy, what waits, cuts, added delay and loss. Never: owns an event queue or a message.
//! Invariant: within a class nothing overtakes; data and control never delay each other when control has its own share.
//!
//! `send` says when the last bit leaves and when it arrives; put that into the event queue. A cut that begins
//! afterwards takes what is on its way: ask `survives` when the arrival is due.

use crate::Chance;
use crate::framing::Framing;
use crate::span::{Span, Spans};
use segue_types::Nanos;
use std::collections::VecDeque;

/// Odds are out of this many.
pub const MILLION: u64 = 1_000_000;

/// What a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkSpec {
    /// Bandwidth, frames and shares.
    pub framing: Framing,
    /// Time from the end of sending to arrival.
    pub propagation_ns: Nanos,
    /// Data that may wait or be under way, bytes. What does not fit is refused.
    pub queue_bytes_max: u64,
    /// Odds that a message is lost, in a million.
    pub loss_per_million: u64,
}

impl LinkSpec {
    /// SURGE's links (reference 1.1): [`Framing::SURGE`], 1 us, no loss, no bound.
    pub const SURGE: LinkSpec =
        LinkSpec { framing: Framing::SURGE, propagation_ns: 1000, queue_bytes_max: u64::MAX, loss_per_million: 0 };
}

/// What a message is, for the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Bulk; bounded by the queue.
    Data,
    /// Small; in the reserved share.
    Control,
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is on its way.
    Sent {
        /// The first bit leaves.
        start_ns: Nanos,
        /// The last bit has left: the sender may send the next.
        done_ns: Nanos,
        /// The last bit is there.
        arrives_ns: Nanos,
    },
    /// It takes its time on the link and does not arrive; the sender cannot tell.
    Lost {
        /// The last bit has left.
        done_ns: Nanos,
    },
    /// The queue is full: nothing was taken.
    Full,
    /// The link is cut: nothing was taken.
    Down,
}

/// When a link's queue is free, and where its last arrival was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Lane {
    free_ns: Nanos,
    arrived_ns: Nanos,
}

/// Counters since the link was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStats {
    /// Bytes accepted for sending, by class: data, control.
    pub taken_bytes: [u64; 2],
    /// Messages accepted.
    pub taken: u64,
    /// Messages lost by chance.
    pub lost: u64,
    /// Messages refused: queue full or link cut.
    pub refused: u64,
    /// Time spent sending, by class: data, control.
    pub busy_ns: [u64; 2],
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Link {
    spec: LinkSpec,
    lanes: [Lane; 2],
    /// Data not sent yet: (end of its sending, bytes), oldest first.
    waiting: VecDeque<(Nanos, u64)>,
    waiting_bytes: u64,
    cuts: Spans<()>,
    delays: Spans<Nanos>,
    stats: LinkStats,
}

impl Link {
    /// An idle link.
    ///
    /// # Panics
    /// When the spec carries nothing.
    pub fn new(spec: LinkSpec) -> Link {
        spec.framing.check();
        assert!(spec.loss_per_million <= MILLION, "{} odds in a million", spec.loss_per_million);
        Link {
            spec,
            lanes: [Lane::default(); 2],
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            cuts: Spans::none(),
            delays: Spans::none(),
            stats: LinkStats::default(),
        }
    }

    /// What it is.
    pub const fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// What it did.
    pub const fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Takes a message at `now`, which must not go back from call to call. Loss is drawn from `chance` only when the
    /// link has any, so links without loss leave the stream alone.
    pub fn send(&mut self, now: Nanos, bytes: u64, class: Class, chance: &mut Chance) -> Sent {
        let framing = self.spec.framing;
        let ns = match class {
            Class::Data => framing.data_ns(bytes),
            Class::Control => framing.control_ns(bytes),
        };
        self.take(now, (bytes, ns), class, chance)
    }

    /// Takes data that the sender paces itself: it holds the link for `ns`, not for what the bytes would take.
    ///
    /// # Panics
    /// When `ns` is less than the bytes need.
    pub fn send_paced(&mut self, now: Nanos, bytes: u64, ns: Nanos, chance: &mut Chance) -> Sent {
        assert!(ns >= self.spec.framing.data_ns(bytes), "{bytes} bytes do not fit into {ns} ns");
        self.take(now, (bytes, ns), Class::Data, chance)
    }

    fn take(&mut self, now: Nanos, (bytes, ns): (u64, Nanos), class: Class, chance: &mut Chance) -> Sent {
        if self.cuts.any(now, now) {
            self.stats.refused += 1;
            return Sent::Down;
        }
        if class == Class::Data && bytes > self.spec.queue_bytes_max.saturating_sub(self.waiting_bytes(now)) {
            self.stats.refused += 1;
            return Sent::Full;
        }
        let shared = self.spec.framing.control_permille == 0;
        let lane = &mut self.lanes[if shared { 0 } else { class as usize }];
        let start_ns = now.max(lane.free_ns);
        let done_ns = start_ns + ns;
        lane.free_ns = done_ns;
        self.stats.busy_ns[class as usize] += ns;
        self.stats.taken_bytes[class as usize] += bytes;
        self.stats.taken += 1;
        if class == Class::Data {
            self.waiting.push_back((done_ns, bytes));
            self.waiting_bytes += bytes;
        }
        if self.spec.loss_per_million > 0 && chance.odds(self.spec.loss_per_million, MILLION) {
            self.stats.lost += 1;
            return Sent::Lost { done_ns };
        }
        let added_ns: Nanos = self.delays.at(done_ns).map(|(_, ns)| ns).sum();
        let arrives_ns = (done_ns + self.spec.propagation_ns + added_ns).max(lane.arrived_ns);
        lane.arrived_ns = arrives_ns;
        // A planned cut is as good as one that begins later: the bits of its time are gone.
        if self.cuts.any(start_ns, arrives_ns) {
            self.stats.lost += 1;
            return Sent::Lost { done_ns };
        }
        Sent::Sent { start_ns, done_ns, arrives_ns }
    }

    /// Data accepted and not fully sent at `now`, bytes.
    pub fn waiting_bytes(&mut self, now: Nanos) -> u64 {
        while let Some((_, bytes)) = self.waiting.front().filter(|(done_ns, _)| *done_ns <= now) {
            self.waiting_bytes -= bytes;
            self.waiting.pop_front();
        }
        self.waiting_bytes
    }

    /// When the queue of a class is empty: no earlier than this a message sent now would leave.
    pub fn free_ns(&self, class: Class) -> Nanos {
        self.lanes[if self.spec.framing.control_permille == 0 { 0 } else { class as usize }].free_ns
    }

    /// Cuts the link for a span, which may begin in the past or in the future.
    pub fn cut(&mut self, span: Span) {
        self.cuts.add(span, ());
    }

    /// Ends every cut at `now`, those planned for later too.
    pub fn heal(&mut self, now: Nanos) {
        self.cuts.end(now);
    }

    /// True when it is not cut at `now`.
    pub fn is_up(&self, now: Nanos) -> bool {
        !self.cuts.any(now, now)
    }

    /// What a message sent in `start_ns..` and due at `arrives_ns` meets: false when a cut took it on the way.
    pub fn survives(&self, start_ns: Nanos, arrives_ns: Nanos) -> bool {
        !self.cuts.any(start_ns, arrives_ns)
    }

    /// Adds `added_ns` to the way of what leaves in a span. What leaves after it does not overtake.
    pub fn delay(&mut self, span: Span, added_ns: Nanos) {
        self.delays.add(span, added_ns);
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
