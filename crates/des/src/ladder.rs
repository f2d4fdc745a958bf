//! Puts keys into order: near ones sorted, far ones only sorted into buckets.
//!
//! Owns: keys and where they wait. Never: knows events, cancellation or the meaning of a tie.
//! Invariant: keys leave in ascending order of (time, tie, rank), whatever buckets they went through.
//!
//! Level `l` has 64 buckets, each `64^l` ns wide. A key waits at the level of the highest digit (base 64) in which
//! its time differs from `last`; every key at or before `last` is in the `run` (sorted) or in `late` (a heap). When
//! both are empty, the first bucket of the lowest level becomes the next run if it is short, and is else dealt over
//! the levels below. So a key is moved at most once per level, and comparisons happen only among a few neighbours.

use segue_types::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The place of an event in the order, and where it is stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub time: Nanos,
    pub tie: u64,
    /// Unique within a queue.
    pub rank: u64,
    pub slot: u32,
}

/// Bits of a time per level.
const DIGIT: u32 = 6;
/// Buckets of a level.
const BUCKETS: usize = 1 << DIGIT;
/// A bucket of at most this many keys is sorted at once rather than dealt further.
const RUN_KEYS: usize = 256;
/// Emptied buffers are kept for other buckets up to this capacity; larger ones would pile up.
const SPARE_KEYS: usize = 256;

struct Level {
    /// Bit `b` is set while bucket `b` has keys.
    occupied: u64,
    buckets: [Vec<Key>; BUCKETS],
}

pub(crate) struct Ladder {
    /// Keys up to this time are in `run` or `late`, later ones in `levels`.
    last: Nanos,
    /// Descending, so that the earliest is at the end.
    run: Vec<Key>,
    late: BinaryHeap<Reverse<Key>>,
    levels: Vec<Level>,
    spare: Vec<Vec<Key>>,
}

impl Ladder {
    pub const fn new() -> Ladder {
        Ladder { last: 0, run: Vec::new(), late: BinaryHeap::new(), levels: Vec::new(), spare: Vec::new() }
    }

    pub fn push(&mut self, key: Key) {
        if key.time <= self.last {
            self.late.push(Reverse(key));
        } else {
            self.file(key);
        }
    }

    /// The earliest key.
    pub fn peek(&mut self) -> Option<&Key> {
        self.refill();
        match (self.run.last(), self.late.peek()) {
            (Some(run), Some(Reverse(late))) => Some(run.min(late)),
            (run, late) => run.or(late.map(|Reverse(key)| key)),
        }
    }

    /// A key that will come soon, `n` after the next one, if it is known already.
    #[inline]
    pub fn upcoming(&self, n: usize) -> Option<&Key> {
        self.run.len().checked_sub(n + 1).map(|at| &self.run[at])
    }

    /// Takes the earliest key out.
    pub fn pop(&mut self) -> Option<Key> {
        self.refill();
        match (self.run.last(), self.late.peek()) {
            (Some(run), Some(Reverse(late))) if late < run => self.late.pop().map(|Reverse(key)| key),
            (None, _) => self.late.pop().map(|Reverse(key)| key),
            _ => self.run.pop(),
        }
    }

    /// Drops the keys that `keep` refuses.
    pub fn retain(&mut self, mut keep: impl FnMut(&Key) -> bool) {
        self.run.retain(&mut keep);
        self.late.retain(|Reverse(key)| keep(key));
        for level in &mut self.levels {
            for (b, bucket) in level.buckets.iter_mut().enumerate().filter(|(_, bucket)| !bucket.is_empty()) {
                bucket.retain(&mut keep);
                if bucket.is_empty() {
                    level.occupied &= !(1 << b);
                }
            }
        }
    }

    /// Puts a key later than `last` into its bucket.
    fn file(&mut self, key: Key) {
        let level = (63 - (key.time ^ self.last).leading_zeros()) / DIGIT;
        while self.levels.len() <= level as usize {
            self.levels.push(Level { occupied: 0, buckets: [const { Vec::new() }; BUCKETS] });
        }
        let bucket = ((key.time >> (level * DIGIT)) & (BUCKETS as u64 - 1)) as usize;
        let level = &mut self.levels[level as usize];
        if level.occupied & (1 << bucket) == 0 {
            level.occupied |= 1 << bucket;
            if let Some(spare) = self.spare.pop() {
                level.buckets[bucket] = spare;
            }
        }
        level.buckets[bucket].push(key);
    }

    #[inline]
    fn refill(&mut self) {
        if self.run.is_empty() && self.late.is_empty() {
            self.deal();
        }
    }

    /// Makes the next run out of the first bucket that has keys.
    fn deal(&mut self) {
        while self.run.is_empty() {
            // Keys of a lower level share more digits with `last`, so they are earlier.
            let Some(l) = self.levels.iter().position(|level| level.occupied != 0) else { return };
            let b = self.levels[l].occupied.trailing_zeros();
            self.levels[l].occupied &= !(1 << b);
            let mut bucket = std::mem::take(&mut self.levels[l].buckets[b as usize]);
            if l == 0 || bucket.len() <= RUN_KEYS {
                bucket.sort_unstable_by(|a, b| b.cmp(a));
                self.last = bucket[0].time;
                std::mem::swap(&mut self.run, &mut bucket);
            } else {
                // The first time of the bucket: its keys differ from that only in lower digits.
                let shift = l as u32 * DIGIT;
                self.last = bucket[0].time >> shift << shift;
                for key in bucket.drain(..) {
                    if key.time == self.last {
                        self.run.push(key);
                    } else {
                        self.file(key);
                    }
                }
                self.run.sort_unstable_by(|a, b| b.cmp(a));
            }
            if bucket.capacity() > 0 && bucket.capacity() <= SPARE_KEYS {
                self.spare.push(bucket);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    /// Pushes and pops by chance; the first step at which the ladder and a binary heap differ. `spoil` changes
    /// the keys that the heap gets.
    fn first_difference(seed: u64, spread: u64, spoil: impl Fn(Key) -> Key) -> Option<u64> {
        let mut chance = Chance::new(seed);
        let (mut ladder, mut heap) = (Ladder::new(), BinaryHeap::new());
        let mut now = 0u64;
        for n in 0..30_000 {
            // Grows to some thousand keys, drains, grows.
            if chance.odds(if n % 10_000 < 5_000 { 7 } else { 3 }, 10) {
                let far = chance.below(spread) >> chance.below(64);
                let time = now.saturating_add(far);
                let key = Key { time, tie: chance.below(3), rank: crate::chance::mixed(n), slot: n as u32 };
                ladder.push(key);
                heap.push(Reverse(spoil(key)));
            } else {
                if chance.odds(1, 2) && ladder.peek() != heap.peek().map(|Reverse(key)| key) {
                    return Some(n);
                }
                let popped = ladder.pop();
                if popped != heap.pop().map(|Reverse(key)| key) {
                    return Some(n);
                }
                now = popped.map_or(now, |key| key.time);
            }
        }
        while let Some(Reverse(key)) = heap.pop() {
            if ladder.pop() != Some(key) {
                return Some(u64::MAX);
            }
        }
        ladder.pop().map(|_| u64::MAX)
    }

    #[test]
    fn model_the_order_is_that_of_a_binary_heap() {
        for (seed, spread) in [1, 5, 64, 1 << 13, 1 << 26, 1 << 40, u64::MAX].into_iter().enumerate() {
            assert_eq!(first_difference(seed as u64, spread, |key| key), None, "spread {spread}");
        }
    }

    #[test]
    fn canary_a_heap_with_another_order_is_told_apart() {
        for spread in [1, 1 << 13] {
            assert!(first_difference(1, spread, |key| Key { rank: !key.rank, ..key }).is_some());
        }
    }
}
