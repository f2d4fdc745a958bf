//! The hold model: an event queue with nothing behind it.
//!
//! Owns: the limit that the queue alone sets to a simulation's events per second. Never: reads a clock; the caller times [`Hold::run`].
//! Invariant: so many events are pending before and after every step.
//!
//! Each popped event schedules one more (Jones, An Empirical Comparison of Priority-Queue and Event-Set Implementations, CACM 1986). Delays
//! are those of a reservation protocol: mostly control messages, some transfers, few long waits.

use segue_des::{Chance, Queue, Ties};
use segue_types::Nanos;

/// What a model of storage nodes schedules: plain data.
#[derive(Clone, Copy)]
struct Event {
    node: u32,
    chunk: u32,
    at_ns: Nanos,
}

/// A queue that is held at a number of pending events.
pub struct Hold {
    queue: Queue<(u32, Event)>,
    /// Drawn beforehand: the queue is measured, not the generator.
    delays_ns: Vec<Nanos>,
    next: usize,
}

const DELAYS: usize = 1 << 16;

fn delay_ns(chance: &mut Chance) -> Nanos {
    match chance.below(8) {
        0..=4 => 3_400 + chance.below(100),
        5 | 6 => chance.below(200_000),
        _ => chance.below(4_000_000),
    }
}

impl Hold {
    /// With so many events pending.
    pub fn new(pending: u32, seed: u64) -> Hold {
        let mut chance = Chance::new(seed).stream("hold");
        let delays_ns: Vec<Nanos> = (0..DELAYS).map(|_| delay_ns(&mut chance)).collect();
        let mut queue = Queue::with_ties(Ties::Lifo);
        for node in 0..pending {
            let at_ns = delays_ns[node as usize % DELAYS];
            queue.at_tie(at_ns, u64::from(node), (node, Event { node, chunk: 0, at_ns }));
        }
        Hold { queue, delays_ns, next: 0 }
    }

    /// Pops and schedules so many events; the sum depends on their order.
    ///
    /// # Panics
    /// When nothing is pending.
    pub fn run(&mut self, events: u64) -> u64 {
        let mut sum = 0u64;
        for _ in 0..events {
            let (now, (node, event)) = self.queue.pop().expect("each event schedules another");
            sum = sum.wrapping_mul(31).wrapping_add(now ^ u64::from(event.node) ^ u64::from(event.chunk) ^ event.at_ns);
            self.next = (self.next + 1) % DELAYS;
            let at_ns = now + self.delays_ns[self.next];
            self.queue.at_tie(at_ns, u64::from(node), (node, Event { node, chunk: event.chunk + 1, at_ns: now }));
        }
        sum
    }

    /// Events pending.
    pub const fn pending(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_holds_its_events_in_one_order() {
        let of = |pending, seed| {
            let mut hold = Hold::new(pending, seed);
            let sum = hold.run(10_000);
            assert_eq!(hold.pending(), pending as usize);
            sum
        };
        assert_eq!(of(100, 1), of(100, 1));
        assert_ne!(of(100, 1), of(100, 2), "the seed decides");
        assert_ne!(of(100, 1), of(1_000, 1));
    }
}
