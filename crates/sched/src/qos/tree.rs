//! The smallest of many keys, one per slot: a winner tree.
//!
//! Owns: one key per slot. Never: allocates after it was made.
//! Invariant: the root is the slot with the smallest key; among equals the smallest slot.

/// The key of a slot that takes no part.
const ABSENT: u64 = u64::MAX;

pub(super) struct Tree {
    /// Leaves from `half` on, each inner node the slot that won below it.
    winners: Vec<u32>,
    keys: Vec<u64>,
    half: usize,
    present: usize,
}

impl Tree {
    pub(super) fn new(slots: usize) -> Tree {
        let half = slots.next_power_of_two();
        let mut tree = Tree { winners: vec![0; 2 * half], keys: vec![ABSENT; half], half, present: 0 };
        tree.clear();
        tree
    }

    pub(super) fn clear(&mut self) {
        self.present = 0;
        self.keys.fill(ABSENT);
        for leaf in 0..self.half {
            self.winners[self.half + leaf] = leaf as u32;
        }
        for node in (1..self.half).rev() {
            self.winners[node] = self.winners[2 * node];
        }
    }

    /// Gives a slot its key. `u64::MAX` is cut to the largest key there is.
    pub(super) fn set(&mut self, slot: usize, key: u64) {
        self.put(slot, key.min(ABSENT - 1));
    }

    pub(super) fn remove(&mut self, slot: usize) {
        self.put(slot, ABSENT);
    }

    fn put(&mut self, slot: usize, key: u64) {
        let before = self.keys[slot];
        if before == key {
            return;
        }
        self.present = self.present + (before == ABSENT) as usize - (key == ABSENT) as usize;
        self.keys[slot] = key;
        let mut node = (self.half + slot) / 2;
        while node > 0 {
            let (left, right) = (self.winners[2 * node], self.winners[2 * node + 1]);
            let right_wins = self.keys[right as usize] < self.keys[left as usize];
            self.winners[node] = if right_wins { right } else { left };
            node /= 2;
        }
    }

    /// The slot with the smallest key, and the key.
    pub(super) fn first(&self) -> Option<(usize, u64)> {
        let slot = if self.half == 1 { 0 } else { self.winners[1] as usize };
        let key = self.keys[slot];
        (key != ABSENT).then_some((slot, key))
    }

    pub(super) fn has(&self, slot: usize) -> bool {
        self.keys[slot] != ABSENT
    }

    pub(super) fn len(&self) -> usize {
        self.present
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn model_the_first_is_the_smallest(
            slots in 1usize..70,
            steps in proptest::collection::vec((0usize..70, proptest::option::of(0u64..20)), 1..200),
        ) {
            let mut tree = Tree::new(slots);
            let mut naive = vec![None; slots];
            for (slot, key) in steps {
                let slot = slot % slots;
                naive[slot] = key;
                match key {
                    Some(key) => tree.set(slot, key),
                    None => tree.remove(slot),
                }
                let want = naive.iter().enumerate().filter_map(|(s, k)| k.map(|k| (k, s))).min();
                prop_assert_eq!(tree.first(), want.map(|(k, s)| (s, k)));
                prop_assert_eq!(tree.len(), naive.iter().flatten().count());
            }
        }
    }
}
