//! The bounded cache of map pages.
//!
//! Owns: which pages are in memory, their state, and who waits for one. Never: does I/O or follows a pointer.
//! Invariant: a page that differs from the drive is never evicted, and at most one copy of a page is current.

use crate::entry::Entry;
use crate::mem::{Buf, Mem, PAGE_BYTES};
use segue_types::LayerId;

/// No slot, no operation.
pub(crate) const NIL: u32 = u32::MAX;

/// Which page: layer, level (0 = leaf), index within the level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageKey {
    pub(crate) layer: LayerId,
    pub(crate) level: u8,
    pub(crate) index: u64,
}

impl PageKey {
    /// The page above, and this page's entry in it. The top level (3) has none.
    pub(crate) fn up(self) -> (PageKey, u64) {
        debug_assert!(self.level < TOP_LEVEL);
        (PageKey { layer: self.layer, level: self.level + 1, index: self.index >> 8 }, self.index & 255)
    }

    fn hash(self) -> u64 {
        let x = self.layer.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (self.index << 2 | u64::from(self.level)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^ (x >> 29)
    }
}

/// Level of a layer's topmost page.
pub(crate) const TOP_LEVEL: u8 = 3;

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageState {
    /// Not in use.
    Free,
    /// Being read.
    Loading,
    /// As on the drive.
    Clean,
    /// Newer than on the drive.
    Dirty,
}

/// A slot of the cache.
pub(crate) struct Slot {
    pub(crate) key: PageKey,
    pub(crate) state: PageState,
    pub(crate) buf: Buf,
    /// Where the page lies on the drive as of the last cut, or absent.
    pub(crate) at: Entry,
    /// A checkpoint is writing `buf`: change a copy instead.
    pub(crate) writing: bool,
    /// First operation that waits for the load.
    pub(crate) waiters: u32,
    used: bool,
}

/// The cache.
pub(crate) struct Cache {
    slots: Vec<Slot>,
    /// Open addressing, linear probing; holds slot numbers.
    table: Vec<u32>,
    free: Vec<u32>,
    spare: Vec<Buf>,
    hand: usize,
    /// Slots that are dirty, in the order they became so.
    pub(crate) dirty: Vec<u32>,
    in_use: usize,
}

impl Cache {
    /// Room for `pages` pages and half as many copies for a running checkpoint. `None` when `mem` is too small.
    pub(crate) fn new(pages: usize, mem: &mut Mem) -> Option<Cache> {
        let spare = (0..pages + pages / 2).map(|_| mem.alloc(PAGE_BYTES)).collect::<Option<Vec<Buf>>>()?;
        let key = PageKey { layer: LayerId(0), level: 0, index: 0 };
        let slots = (0..pages)
            .map(|_| Slot {
                key,
                state: PageState::Free,
                buf: Buf::EMPTY,
                at: Entry::ABSENT,
                writing: false,
                waiters: NIL,
                used: false,
            })
            .collect();
        Some(Cache {
            slots,
            table: vec![NIL; (pages * 2).next_power_of_two()],
            free: (0..pages as u32).rev().collect(),
            spare,
            hand: 0,
            dirty: Vec::with_capacity(pages),
            in_use: 0,
        })
    }

    /// The buffers of a fresh cache.
    pub(crate) fn buffers(&self) -> &[Buf] {
        &self.spare
    }

    /// Gives all memory back.
    pub(crate) fn release(&mut self, mem: &mut Mem) {
        for slot in &mut self.slots {
            mem.free(std::mem::replace(&mut slot.buf, Buf::EMPTY));
        }
        for buf in self.spare.drain(..) {
            mem.free(buf);
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    pub(crate) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// The slot of a page, if it is in the cache (perhaps still loading).
    pub(crate) fn find(&mut self, key: PageKey) -> Option<u32> {
        let mask = self.table.len() - 1;
        let mut at = key.hash() as usize & mask;
        loop {
            let slot = self.table[at];
            if slot == NIL {
                return None;
            }
            if self.slots[slot as usize].key == key {
                self.slots[slot as usize].used = true;
                return Some(slot);
            }
            at = (at + 1) & mask;
        }
    }

    /// A slot for a page that is not in the cache, evicting a clean page if need be; `None` when every page is
    /// dirty or loading. The buffer's bytes are unspecified.
    pub(crate) fn insert(&mut self, key: PageKey, state: PageState) -> Option<u32> {
        if self.free.is_empty() {
            self.evict()?;
        }
        let number = self.free.pop().expect("a slot was evicted");
        let buf = self.spare.pop().expect("each free slot has a spare buffer");
        self.slots[number as usize] =
            Slot { key, state, buf, at: Entry::ABSENT, writing: false, waiters: NIL, used: true };
        self.in_use += 1;
        let mask = self.table.len() - 1;
        let mut at = key.hash() as usize & mask;
        while self.table[at] != NIL {
            at = (at + 1) & mask;
        }
        self.table[at] = number;
        Some(number)
    }

    /// Forgets a page. Its buffer goes back to the spares unless a checkpoint is writing it (then it is the
    /// checkpoint's to give back by [`Cache::give_spare`]).
    pub(crate) fn remove(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        assert!(slot.state != PageState::Free && slot.waiters == NIL, "slot {number} is free or awaited");
        let key = slot.key;
        if slot.state == PageState::Dirty {
            self.dirty.retain(|n| *n != number);
        }
        let slot = &mut self.slots[number as usize];
        slot.state = PageState::Free;
        let buf = std::mem::replace(&mut slot.buf, Buf::EMPTY);
        if !slot.writing {
            self.spare.push(buf);
        }
        self.unlink(key, number);
        self.free.push(number);
        self.in_use -= 1;
    }

    /// Counts a page as newer than on the drive.
    pub(crate) fn mark_dirty(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        if slot.state != PageState::Dirty {
            slot.state = PageState::Dirty;
            self.dirty.push(number);
        }
    }

    /// Makes the page's buffer safe to change: a fresh copy when a checkpoint is writing the old one.
    pub(crate) fn own(&mut self, number: u32, mem: &mut Mem) {
        if !self.slots[number as usize].writing {
            return;
        }
        let fresh = self.spare.pop().expect("half the cache is spare for copies");
        let slot = &mut self.slots[number as usize];
        mem.copy(slot.buf, fresh);
        slot.buf = fresh;
        slot.writing = false;
    }

    /// Gives back a buffer that a checkpoint has written and no slot holds any more.
    pub(crate) fn give_spare(&mut self, buf: Buf) {
        self.spare.push(buf);
    }

    /// Every slot number, to look for pages of a layer. Not for the hot path.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    fn evict(&mut self) -> Option<()> {
        for _ in 0..2 * self.slots.len() {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if slot.state != PageState::Clean || slot.writing {
                continue;
            }
            if std::mem::replace(&mut slot.used, false) {
                continue;
            }
            self.remove(self.hand as u32);
            return Some(());
        }
        None
    }

    fn unlink(&mut self, key: PageKey, number: u32) {
        let mask = self.table.len() - 1;
        let mut hole = key.hash() as usize & mask;
        while self.table[hole] != number {
            hole = (hole + 1) & mask;
        }
        // Close the gap so that probing never stops early.
        let mut at = (hole + 1) & mask;
        while self.table[at] != NIL {
            let home = self.slots[self.table[at] as usize].key.hash() as usize & mask;
            let reachable = (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask);
            if reachable {
                self.table[hole] = self.table[at];
                hole = at;
            }
            at = (at + 1) & mask;
        }
        self.table[hole] = NIL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn model_cache_finds_what_it_holds(ops in prop::collection::vec((0u64..300, 0u8..4, any::<bool>()), 1..600)) {
            let mut mem = Mem::new(4 << 20);
            let mut cache = Cache::new(64, &mut mem).unwrap();
            let mut held: Vec<PageKey> = Vec::new();
            for (index, level, drop) in ops {
                let key = PageKey { layer: LayerId(index % 3), level, index };
                match cache.find(key) {
                    Some(slot) => {
                        prop_assert_eq!(cache.slot(slot).key, key);
                        if drop {
                            cache.remove(slot);
                            held.retain(|k| *k != key);
                        }
                    }
                    None => {
                        let slot = cache.insert(key, PageState::Clean).unwrap();
                        prop_assert_eq!(cache.slot(slot).key, key);
                        held.push(key);
                    }
                }
                held.retain(|k| cache.find(*k).is_some());
                prop_assert_eq!(held.len(), cache.in_use());
            }
            cache.release(&mut mem);
            prop_assert_eq!(mem.used_bytes(), 0);
        }
    }
}
