//! Locks that were seen lately, each with a small number.
//!
//! Owns: the numbers. Never: grows, or forgets a lock between two sweeps.
//! Invariant: a lock of a declared scope has at most one number, and no two locks share one.

/// No number.
const NONE: u32 = u32::MAX;

/// A lock as one declared scope sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Index of the declared scope.
    pub declared: u16,
    /// The lock.
    pub lock: u64,
}

/// What came of looking a lock up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has this number.
    Known(u32),
    /// It has this number now. `crossed`: another declared scope took the same lock lately.
    New { number: u32, crossed: Option<u16> },
    /// Every number is taken.
    Full,
}

/// An open-addressing table (linear probing, at most half full) from locks to numbers.
#[derive(Clone, Debug)]
pub struct Table {
    keys: Vec<Option<Key>>,
    buckets: Vec<u32>,
    free: Vec<u32>,
}

impl Table {
    /// Room for `count` locks.
    pub fn new(count: u32) -> Table {
        let buckets = (count as usize * 2).next_power_of_two().max(2);
        Table { keys: vec![None; count as usize], buckets: vec![NONE; buckets], free: (0..count).rev().collect() }
    }

    /// The lock's number, given out now when it has none. Locks of several scopes hash alike, so that a probe meets
    /// those who took the same one.
    pub fn find_or_add(&mut self, key: Key) -> Found {
        let mut crossed = None;
        let mut at = self.start(key.lock);
        while self.buckets[at] != NONE {
            let number = self.buckets[at];
            let seen = self.keys[number as usize].expect("a numbered lock has a key");
            if seen == key {
                return Found::Known(number);
            }
            if seen.lock == key.lock {
                crossed = Some(seen.declared);
            }
            at = (at + 1) & (self.buckets.len() - 1);
        }
        let Some(number) = self.free.pop() else { return Found::Full };
        self.keys[number as usize] = Some(key);
        self.buckets[at] = number;
        Found::New { number, crossed }
    }

    /// The lock of a number.
    pub fn key(&self, number: u32) -> Option<Key> {
        self.keys[number as usize]
    }

    /// Forgets the locks that `keep` does not want.
    pub fn sweep(&mut self, keep: impl Fn(u32) -> bool) {
        self.buckets.fill(NONE);
        for number in 0..self.keys.len() as u32 {
            let Some(key) = self.keys[number as usize] else { continue };
            if !keep(number) {
                self.keys[number as usize] = None;
                self.free.push(number);
                continue;
            }
            let mut at = self.start(key.lock);
            while self.buckets[at] != NONE {
                at = (at + 1) & (self.buckets.len() - 1);
            }
            self.buckets[at] = number;
        }
    }

    fn start(&self, lock: u64) -> usize {
        // Fibonacci hashing: neighbouring locks (block numbers) spread over the table.
        let hash = lock.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }
}
