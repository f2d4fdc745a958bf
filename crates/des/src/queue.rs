//! The event queue of virtual time.
//!
//! Owns: the order of events and their cancellation. Never: looks into an event.
//! Invariant: events leave in the order (time, tie, order of insertion), whatever the heap does inside.

use segue_types::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Names a scheduled event until it is popped or cancelled. Never reused within one queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventId {
    slot: u32,
    seq: u64,
}

struct Slot<E> {
    seq: u64,
    event: Option<E>,
}

/// What comes first among events of equal time and tie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ties {
    /// The one scheduled first.
    #[default]
    Fifo,
    /// The one scheduled last.
    Lifo,
}

/// Events in virtual time. Time never goes back: an event scheduled in the past happens now.
pub struct Queue<E> {
    now: Nanos,
    seq: u64,
    ties: Ties,
    heap: BinaryHeap<Reverse<(Nanos, u64, u64, u32)>>,
    slots: Vec<Slot<E>>,
    free: Vec<u32>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue::new()
    }
}

impl<E> Queue<E> {
    /// An empty queue at time 0.
    pub const fn new() -> Queue<E> {
        Queue::with_ties(Ties::Fifo)
    }

    /// An empty queue at time 0 with a rule for equal times and ties.
    pub const fn with_ties(ties: Ties) -> Queue<E> {
        Queue { now: 0, seq: 0, ties, heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new() }
    }

    /// Time of the last popped event, nanoseconds.
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Schedules an event; among events of one time those scheduled first happen first.
    pub fn at(&mut self, time: Nanos, event: E) -> EventId {
        self.at_tie(time, 0, event)
    }

    /// Schedules an event with an explicit place among events of the same time: smaller ties first. Draw ties
    /// from a [`crate::Chance`] to explore orders.
    pub fn at_tie(&mut self, time: Nanos, tie: u64, event: E) -> EventId {
        self.seq += 1;
        let filled = Slot { seq: self.seq, event: Some(event) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = filled;
                slot
            }
            None => {
                self.slots.push(filled);
                (self.slots.len() - 1) as u32
            }
        };
        let order = match self.ties {
            Ties::Fifo => self.seq,
            Ties::Lifo => !self.seq,
        };
        self.heap.push(Reverse((time.max(self.now), tie, order, slot)));
        EventId { slot, seq: self.seq }
    }

    /// Takes an event out before it happens. `None` when it happened or was cancelled already.
    pub fn cancel(&mut self, id: EventId) -> Option<E> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|s| s.seq == id.seq)?;
        // The heap's entry stays and frees the slot when it surfaces.
        slot.event.take()
    }

    /// The earliest event, with its time; time moves there.
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        while let Some(Reverse((time, _, _, slot))) = self.heap.pop() {
            self.free.push(slot);
            if let Some(event) = self.slots[slot as usize].event.take() {
                self.now = time;
                return Some((time, event));
            }
        }
        None
    }

    /// Time of the earliest event.
    pub fn next_time(&mut self) -> Option<Nanos> {
        while let Some(Reverse((time, _, _, slot))) = self.heap.peek() {
            if self.slots[*slot as usize].event.is_some() {
                return Some(*time);
            }
            let Reverse((_, _, _, slot)) = self.heap.pop().expect("peeked");
            self.free.push(slot);
        }
        None
    }

    /// True when nothing is scheduled.
    pub fn is_empty(&mut self) -> bool {
        self.next_time().is_none()
    }

    /// Forgets all events (a power cut); time stays.
    pub fn clear(&mut self) {
        self.heap.clear();
        self.slots.clear();
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    #[test]
    fn order_is_time_then_tie_then_insertion() {
        let mut queue = Queue::new();
        queue.at_tie(5, 1, 'd');
        queue.at(5, 'b');
        queue.at(5, 'c');
        queue.at(1, 'a');
        let gone = queue.at(2, 'x');
        assert_eq!(queue.cancel(gone), Some('x'));
        assert_eq!(queue.cancel(gone), None);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(1, 'a'), (5, 'b'), (5, 'c'), (5, 'd')]);
        assert_eq!(queue.now(), 5);
        queue.at(0, 'z');
        assert_eq!(queue.pop(), Some((5, 'z')), "the past is now");
    }

    #[test]
    fn model_agrees_with_a_sorted_list() {
        let mut chance = Chance::new(3);
        let mut queue = Queue::new();
        let mut list: Vec<((Nanos, u64, u64), EventId)> = Vec::new();
        for n in 0..20_000u64 {
            match chance.below(4) {
                0 | 1 => {
                    let (time, tie) = (queue.now() + chance.below(50), chance.below(3));
                    list.push(((time, tie, n), queue.at_tie(time, tie, n)));
                }
                2 if !list.is_empty() => {
                    let (key, id) = list.swap_remove(chance.below(list.len() as u64) as usize);
                    assert_eq!(queue.cancel(id), Some(key.2));
                }
                _ => {
                    list.sort();
                    let expect = (!list.is_empty()).then(|| list.remove(0).0);
                    assert_eq!(queue.next_time(), expect.map(|k| k.0));
                    assert_eq!(queue.pop(), expect.map(|k| (k.0, k.2)));
                }
            }
        }
    }
}
