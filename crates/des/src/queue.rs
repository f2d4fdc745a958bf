//! The event queue of virtual time.
//!
//! Owns: the order of events and their cancellation. Never: looks into an event.
//! Invariant: events leave in the order (time, tie, rule of ties), whatever the structure inside.

use crate::ladder::{Key, Ladder};
use segue_types::Nanos;

/// Names a scheduled event until it is popped or cancelled. Never reused within one queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventId {
    slot: u32,
    rank: u64,
}

/// Which of several events with equal time and equal tie happens first. Total and the same on every machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ties {
    /// The one scheduled first.
    #[default]
    Fifo,
    /// The one scheduled last, as in SURGE.
    Lifo,
    /// Any, by this seed: a result that changes with it depends on the order of simultaneous events.
    Shuffled(u64),
}

impl Ties {
    /// The place of the `seq`-th event. A bijection, so ranks are unique.
    const fn rank(self, seq: u64) -> u64 {
        match self {
            Ties::Fifo => seq,
            Ties::Lifo => !seq,
            Ties::Shuffled(seed) => crate::chance::mixed(seq ^ seed),
        }
    }
}

struct Slot<E> {
    rank: u64,
    event: Option<E>,
}

/// Events in virtual time. Time never goes back: an event scheduled in the past happens now.
///
/// Scheduling and popping cost a constant number of moves for events of plain data, nearly whatever is pending;
/// `cargo run --release -p segue-des --example queue_rate` measures it.
pub struct Queue<E> {
    now: Nanos,
    seq: u64,
    ties: Ties,
    ladder: Ladder,
    slots: Vec<Slot<E>>,
    free: Vec<u32>,
    /// Events that will happen.
    live: usize,
    /// Keys in the ladder whose event was cancelled.
    dead: usize,
}

/// Keys of cancelled events are swept out when they are more than this and than the live ones.
const DEAD_KEYS: usize = 256;

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue::new()
    }
}

impl<E> Queue<E> {
    /// An empty queue at time 0; among equals, first in is first out.
    pub const fn new() -> Queue<E> {
        Queue::with_ties(Ties::Fifo)
    }

    /// An empty queue at time 0 with this rule of ties.
    pub const fn with_ties(ties: Ties) -> Queue<E> {
        Queue { now: 0, seq: 0, ties, ladder: Ladder::new(), slots: Vec::new(), free: Vec::new(), live: 0, dead: 0 }
    }

    /// Time of the last popped event, nanoseconds.
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Events that are scheduled.
    pub const fn len(&self) -> usize {
        self.live
    }

    /// True when nothing is scheduled.
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Schedules an event; among events of one time, the rule of ties says which happens first.
    #[inline]
    pub fn at(&mut self, time: Nanos, event: E) -> EventId {
        self.at_tie(time, 0, event)
    }

    /// Schedules an event with an explicit place among events of the same time: smaller ties first. A node's number
    /// as tie lets nodes act in their order; ties drawn from a [`crate::Chance`] explore orders.
    ///
    /// # Panics
    /// With 2^32 events pending.
    #[inline]
    pub fn at_tie(&mut self, time: Nanos, tie: u64, event: E) -> EventId {
        self.seq += 1;
        let rank = self.ties.rank(self.seq);
        let filled = Slot { rank, event: Some(event) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = filled;
                slot
            }
            None => {
                let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 events are pending");
                self.slots.push(filled);
                slot
            }
        };
        self.live += 1;
        self.ladder.push(Key { time: time.max(self.now), tie, rank, slot });
        EventId { slot, rank }
    }

    /// Takes an event out before it happens. `None` when it happened or was cancelled already.
    pub fn cancel(&mut self, id: EventId) -> Option<E> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|s| s.rank == id.rank)?;
        // The key stays and frees the slot when it surfaces or is swept.
        let event = slot.event.take()?;
        self.live -= 1;
        self.dead += 1;
        if self.dead > DEAD_KEYS.max(self.live) {
            self.sweep();
        }
        Some(event)
    }

    /// The earliest event, with its time; time moves there.
    #[inline]
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        loop {
            let key = self.ladder.pop()?;
            if let Some(popped) = self.take(key) {
                return Some(popped);
            }
        }
    }

    /// The earliest event, if it is before `end`: the loop of a run of a given length.
    #[inline]
    pub fn pop_before(&mut self, end: Nanos) -> Option<(Nanos, E)> {
        while self.ladder.peek()?.time < end {
            let key = self.ladder.pop()?;
            if let Some(popped) = self.take(key) {
                return Some(popped);
            }
        }
        None
    }

    /// The event of a key that left the ladder, with its time; time moves there. `None` when it was cancelled.
    #[inline]
    fn take(&mut self, key: Key) -> Option<(Nanos, E)> {
        self.free.push(key.slot);
        let Some(event) = self.slots[key.slot as usize].event.take() else {
            self.dead -= 1;
            return None;
        };
        self.live -= 1;
        self.now = key.time;
        Some((key.time, event))
    }

    /// The tie of an event that will come soon, about `n` after the next one, if that is known already; its memory is asked for.
    /// A hint: the event may be cancelled, and others may still come before it.
    #[inline]
    pub fn upcoming_tie(&self, n: usize) -> Option<u64> {
        let key = self.ladder.upcoming(n)?;
        crate::prefetch(&self.slots[key.slot as usize]);
        Some(key.tie)
    }

    /// An event that will come soon, about `n` after the next one, as [`Queue::upcoming_tie`].
    #[inline]
    pub fn upcoming(&self, n: usize) -> Option<&E> {
        let key = self.ladder.upcoming(n)?;
        self.slots[key.slot as usize].event.as_ref()
    }

    /// Time of the earliest event.
    pub fn next_time(&mut self) -> Option<Nanos> {
        while let Some(&Key { time, slot, .. }) = self.ladder.peek() {
            if self.slots[slot as usize].event.is_some() {
                return Some(time);
            }
            self.ladder.pop();
            self.free.push(slot);
            self.dead -= 1;
        }
        None
    }

    /// Forgets all events (a power cut); time stays.
    pub fn clear(&mut self) {
        self.ladder = Ladder::new();
        self.slots.clear();
        self.free.clear();
        (self.live, self.dead) = (0, 0);
    }

    fn sweep(&mut self) {
        let (slots, free) = (&self.slots, &mut self.free);
        self.ladder.retain(|key| {
            let alive = slots[key.slot as usize].event.is_some();
            if !alive {
                free.push(key.slot);
            }
            alive
        });
        self.dead = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_time_then_tie_then_insertion() {
        let mut queue = Queue::new();
        queue.at_tie(5, 1, 'd');
        queue.at(5, 'b');
        queue.at(5, 'c');
        queue.at(1, 'a');
        let gone = queue.at(2, 'x');
        assert_eq!(queue.len(), 5);
        assert_eq!(queue.cancel(gone), Some('x'));
        assert_eq!(queue.cancel(gone), None);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(1, 'a'), (5, 'b'), (5, 'c'), (5, 'd')]);
        assert_eq!(queue.now(), 5);
        let past = queue.at(0, 'z');
        assert_eq!(queue.pop(), Some((5, 'z')), "the past is now");
        assert_eq!(queue.cancel(past), None, "it happened");
        assert!(queue.is_empty());
    }

    #[test]
    fn an_old_id_never_names_a_new_event() {
        for ties in [Ties::Fifo, Ties::Lifo, Ties::Shuffled(9)] {
            let mut queue = Queue::with_ties(ties);
            let popped = queue.at(1, 1);
            queue.pop();
            let cancelled = queue.at(2, 2);
            queue.cancel(cancelled);
            assert_eq!(queue.next_time(), None);
            let cleared = queue.at(3, 3);
            queue.clear();
            for n in 0..10 {
                queue.at(n, n);
            }
            for id in [popped, cancelled, cleared] {
                assert_eq!(queue.cancel(id), None);
            }
            assert_eq!(queue.len(), 10);
        }
    }

    #[test]
    fn cancelled_events_leave_no_heap_of_keys() {
        let mut queue = Queue::new();
        for n in 0..100_000u64 {
            // A timer far away that is always put off.
            let id = queue.at(1_000_000_000 + n, n);
            assert_eq!(queue.cancel(id), Some(n));
            assert!(queue.slots.len() <= DEAD_KEYS + 2, "{} slots", queue.slots.len());
        }
        queue.at(7, 7);
        assert_eq!(queue.pop(), Some((7, 7)));
        assert_eq!(queue.pop(), None);
    }
}
