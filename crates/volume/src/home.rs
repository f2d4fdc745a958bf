//! The home of a shared drive's free extents: who has which, and who gets some.
//!
//! Owns: the list of free extents and the owners of the others. Never: keeps anything across a restart: the slices' journals do.
//! Invariant: an extent has one owner or is free; it becomes free only when its owner has given it back durably.
//!
//! Decibel (NSDI 2017) names the problem: static partitions strand space, one shared allocator is fought over. Slices take
//! extents from here in batches and allocate blocks from them without asking anybody.

use std::collections::BTreeSet;

/// Extents shown by two journals to be leased: the drive is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("slices {first} and {second} have both leased extent {extent}; see `segue pool check`")]
pub struct LeasedTwice {
    /// The extent.
    pub extent: u32,
    /// Its owner so far.
    pub first: u16,
    /// Who claims it too.
    pub second: u16,
}

/// The home of one drive.
#[derive(Debug)]
pub struct Home {
    owner: Vec<Option<u16>>,
    free: BTreeSet<u32>,
    /// Slices that have said what they own. Nothing is lent before all have.
    claimed: Vec<bool>,
    /// Somebody got less than asked for: the others should give back what they do not need.
    short: bool,
}

impl Home {
    /// A home of so many extents and slices, all still to be claimed.
    pub fn new(extents: u32, slices: u16) -> Home {
        let free = (0..extents).collect();
        Home { owner: vec![None; extents as usize], free, claimed: vec![false; slices as usize], short: false }
    }

    /// A slice says, when it is opened, what it owns by its journal. What it was said to own before is forgotten.
    ///
    /// # Errors
    /// [`LeasedTwice`]: the slice must not be served; nothing was changed for it.
    pub fn claim(&mut self, slice: u16, extents: &[u32]) -> Result<(), LeasedTwice> {
        for extent in extents {
            if let Some(first) = self.owner[*extent as usize].filter(|owner| *owner != slice) {
                return Err(LeasedTwice { extent: *extent, first, second: slice });
            }
        }
        for extent in 0..self.owner.len() {
            if self.owner[extent] == Some(slice) {
                self.owner[extent] = None;
                self.free.insert(extent as u32);
            }
        }
        for extent in extents {
            self.owner[*extent as usize] = Some(slice);
            self.free.remove(extent);
        }
        self.claimed[slice as usize] = true;
        Ok(())
    }

    /// True when every slice has said what it owns.
    pub fn is_open(&self) -> bool {
        self.claimed.iter().all(|claimed| *claimed)
    }

    /// Lends up to `wanted` extents, the lowest first. None before every slice has claimed its own.
    pub fn lend(&mut self, slice: u16, wanted: u32) -> Vec<u32> {
        if !self.is_open() {
            return Vec::new();
        }
        let lent: Vec<u32> = self.free.iter().copied().take(wanted as usize).collect();
        for extent in &lent {
            self.free.remove(extent);
            self.owner[*extent as usize] = Some(slice);
        }
        self.short = lent.is_empty() && wanted > 0;
        lent
    }

    /// A slice has given these back durably.
    ///
    /// # Panics
    /// When one of them was not its.
    pub fn put_back(&mut self, slice: u16, extents: &[u32]) {
        for extent in extents {
            let owner = self.owner[*extent as usize].take();
            assert!(owner == Some(slice), "slice {slice} gave back extent {extent} of {owner:?}");
            self.free.insert(*extent);
        }
        self.short &= self.free.is_empty();
    }

    /// The last question could not be answered with anything.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Free extents.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_lent_before_all_have_claimed() {
        let mut home = Home::new(8, 2);
        assert!(home.lend(0, 2).is_empty());
        home.claim(0, &[1, 5]).unwrap();
        assert!(home.lend(0, 2).is_empty());
        assert_eq!(home.claim(1, &[5]), Err(LeasedTwice { extent: 5, first: 0, second: 1 }));
        home.claim(1, &[0]).unwrap();
        assert_eq!(home.lend(1, 3), [2, 3, 4]);
        // A slice whose engine starts again owns what its journal says and no more.
        home.claim(1, &[0, 3]).unwrap();
        assert_eq!(home.free(), 4);
    }

    proptest! {
        #[test]
        fn model_every_extent_has_one_place(steps in prop::collection::vec((0u16..3, 0u32..5, any::<bool>()), 1..200)) {
            let mut home = Home::new(24, 3);
            let mut mine: Vec<Vec<u32>> = vec![Vec::new(); 3];
            for slice in 0..3 {
                home.claim(slice, &[]).unwrap();
            }
            for (slice, n, lend) in steps {
                let have = &mut mine[slice as usize];
                if lend {
                    let got = home.lend(slice, n);
                    prop_assert!(got.len() <= n as usize);
                    have.extend(got);
                } else {
                    let back: Vec<u32> = have.drain(..(n as usize).min(have.len())).collect();
                    home.put_back(slice, &back);
                }
                let mut all: Vec<u32> = mine.iter().flatten().copied().collect();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), mine.iter().map(Vec::len).sum::<usize>());
                prop_assert_eq!(all.len() as u32 + home.free(), 24);
            }
        }
    }
}
