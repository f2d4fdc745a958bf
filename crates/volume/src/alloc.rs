//! Which blocks of the drive are taken: a bitmap with a count per page.
//!
//! Owns: the bits in memory and which bitmap pages changed. Never: decides when a freed block may be reused.
//! Invariant: `free` is the number of clear bits, and bits outside the data region are always set.

use crate::layout::{BITS_PER_PAGE, Layout};

const WORDS_PER_PAGE: usize = (BITS_PER_PAGE / 64) as usize;
/// Words looked at to find a run long enough before the first free block is taken instead.
const RUN_SEARCH_WORDS: u64 = 64;

/// The allocation bitmap.
pub(crate) struct Alloc {
    words: Vec<u64>,
    /// Free blocks per bitmap page, so that full pages are skipped without reading them.
    free_in_page: Vec<u16>,
    dirty: Vec<bool>,
    dirty_count: usize,
    free: u64,
    cursor: u64,
    start: u64,
    end: u64,
    /// Taken blocks per extent, where the drive is shared: a power of two of blocks each. Empty where it is not.
    taken_in_extent: Vec<u32>,
    /// Extents that are not this slice's: all their blocks count as taken, and none can be freed.
    closed: Vec<bool>,
    extent_shift: u32,
}

impl Alloc {
    /// All data blocks free.
    pub(crate) fn new(layout: &Layout) -> Alloc {
        let pages = layout.bitmap_pages as usize;
        let (start, end) = (layout.data_start(), layout.blocks);
        let mut alloc = Alloc {
            words: vec![0; pages * WORDS_PER_PAGE],
            free_in_page: vec![0; pages],
            dirty: vec![false; pages],
            dirty_count: 0,
            free: end - start,
            cursor: start,
            start,
            end,
            taken_in_extent: vec![0; if layout.slices > 1 { layout.extents() as usize } else { 0 }],
            closed: vec![false; if layout.slices > 1 { layout.extents() as usize } else { 0 }],
            extent_shift: layout.extent_blocks().trailing_zeros(),
        };
        for block in (0..start).chain(end..layout.bitmap_pages * BITS_PER_PAGE) {
            alloc.words[(block / 64) as usize] |= 1 << (block % 64);
        }
        alloc.recount();
        alloc
    }

    /// Counts again after pages were loaded.
    pub(crate) fn recount(&mut self) {
        self.free = 0;
        for page in 0..self.free_in_page.len() {
            let words = &self.words[page * WORDS_PER_PAGE..(page + 1) * WORDS_PER_PAGE];
            let free: u32 = words.iter().map(|w| w.count_zeros()).sum();
            self.free_in_page[page] = free as u16;
            self.free += u64::from(free);
        }
        for extent in 0..self.taken_in_extent.len() {
            self.taken_in_extent[extent] =
                self.extent_blocks(extent as u64).filter(|block| self.is_set(*block)).count() as u32;
        }
    }

    /// Clear bits.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Bytes of memory the bitmap may take.
    pub(crate) fn bytes(&self) -> u64 {
        (self.words.len() * 8) as u64
    }

    /// True when the block is taken.
    pub(crate) fn is_set(&self, block: u64) -> bool {
        self.words[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    /// True when the number is that of a data block.
    pub(crate) fn is_data_block(&self, block: u64) -> bool {
        (self.start..self.end).contains(&block)
    }

    /// Takes a run of 1 to `want` free blocks: a full run if one is near the cursor, else what comes first.
    /// `None` when nothing is free. Returns the first block and the length.
    pub(crate) fn take_run(&mut self, want: u64) -> Option<(u64, u64)> {
        if self.free == 0 {
            return None;
        }
        let first = self.next_free(self.cursor).or_else(|| self.next_free(self.start))?;
        let mut best = (first, self.run_at(first, want));
        let limit = first + RUN_SEARCH_WORDS * 64;
        while best.1 < want {
            let Some(next) = self.next_free(best.0 + best.1).filter(|n| *n < limit) else { break };
            let run = self.run_at(next, want);
            if run == want {
                best = (next, run);
                break;
            }
            // Remember the place reached but keep the first run as the answer if no full one turns up.
            if self.next_free(next + run).is_none_or(|n| n >= limit) {
                break;
            }
            best = (next, run);
        }
        if best.1 < want {
            best = (first, self.run_at(first, want));
        }
        for block in best.0..best.0 + best.1 {
            self.set(block);
        }
        self.cursor = best.0 + best.1;
        Some(best)
    }

    /// Marks a block taken. Idempotent.
    pub(crate) fn set(&mut self, block: u64) {
        let word = &mut self.words[(block / 64) as usize];
        let bit = 1 << (block % 64);
        if *word & bit == 0 {
            *word |= bit;
            self.free -= 1;
            self.free_in_page[(block / BITS_PER_PAGE) as usize] -= 1;
            self.count(block, 1);
            self.touch(block);
        }
    }

    /// Marks a block free. Idempotent.
    pub(crate) fn clear(&mut self, block: u64) {
        assert!(self.is_data_block(block), "block {block} is outside the data region");
        if !self.closed.is_empty() && self.closed[self.extent_of(block)] {
            return;
        }
        let word = &mut self.words[(block / 64) as usize];
        let bit = 1 << (block % 64);
        if *word & bit != 0 {
            *word &= !bit;
            self.free += 1;
            self.free_in_page[(block / BITS_PER_PAGE) as usize] += 1;
            self.count(block, u32::MAX);
            self.touch(block);
        }
    }

    /// Adds to the count of the block's extent, wrapping.
    fn count(&mut self, block: u64, n: u32) {
        if !self.taken_in_extent.is_empty() {
            let extent = self.extent_of(block);
            self.taken_in_extent[extent] = self.taken_in_extent[extent].wrapping_add(n);
        }
    }

    fn extent_of(&self, block: u64) -> usize {
        ((block - self.start) >> self.extent_shift) as usize
    }

    fn extent_blocks(&self, extent: u64) -> std::ops::Range<u64> {
        let first = self.start + (extent << self.extent_shift);
        first..(first + (1 << self.extent_shift)).min(self.end)
    }

    /// An extent of a shared drive becomes this slice's: all its blocks are free.
    pub(crate) fn open_extent(&mut self, extent: u64) {
        self.closed[extent as usize] = false;
        self.extent_blocks(extent).for_each(|block| self.clear(block));
    }

    /// An extent is not this slice's, or no longer: all its blocks count as taken.
    pub(crate) fn close_extent(&mut self, extent: u64) {
        self.closed[extent as usize] = true;
        self.extent_blocks(extent).for_each(|block| self.set(block));
    }

    /// Taken blocks of an extent of a shared drive.
    pub(crate) fn taken_in_extent(&self, extent: u64) -> u32 {
        self.taken_in_extent[extent as usize]
    }

    /// Bitmap pages in all.
    pub(crate) fn pages(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// Next bitmap page from `from` on that changed since it was last taken for writing.
    pub(crate) fn next_dirty(&self, from: u64) -> Option<u64> {
        if self.dirty_count == 0 {
            return None;
        }
        (from..self.pages()).find(|p| self.dirty[*p as usize])
    }

    /// Copies a page out for writing and counts it as clean.
    pub(crate) fn take_page(&mut self, page: u64, out: &mut [u8]) {
        let words = &self.words[page as usize * WORDS_PER_PAGE..][..WORDS_PER_PAGE];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        if std::mem::replace(&mut self.dirty[page as usize], false) {
            self.dirty_count -= 1;
        }
    }

    /// Loads a page that was read from the drive; call `recount` after the last one.
    pub(crate) fn load_page(&mut self, page: u64, bytes: &[u8]) {
        let words = &mut self.words[page as usize * WORDS_PER_PAGE..][..WORDS_PER_PAGE];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
    }

    /// Counts a page as changed: its copy on the drive differs from memory in a bit that was in limbo.
    pub(crate) fn touch(&mut self, block: u64) {
        let page = (block / BITS_PER_PAGE) as usize;
        if !std::mem::replace(&mut self.dirty[page], true) {
            self.dirty_count += 1;
        }
    }

    /// First free block at or after `from`.
    fn next_free(&self, from: u64) -> Option<u64> {
        let mut block = from;
        while block < self.end {
            let page = block / BITS_PER_PAGE;
            if self.free_in_page[page as usize] == 0 {
                block = (page + 1) * BITS_PER_PAGE;
                continue;
            }
            let open = !self.words[(block / 64) as usize] & (u64::MAX << (block % 64));
            if open != 0 {
                let found = block / 64 * 64 + u64::from(open.trailing_zeros());
                return (found < self.end).then_some(found);
            }
            block = (block / 64 + 1) * 64;
        }
        None
    }

    /// Length of the free run at `block`, at most `want`.
    fn run_at(&self, block: u64, want: u64) -> u64 {
        let mut n = 0;
        while n < want && block + n < self.end && !self.is_set(block + n) {
            n += 1;
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn model_runs_are_free_and_counted(ops in prop::collection::vec((1u64..70, any::<u64>()), 1..400)) {
            let layout = Layout::for_capacity(8 << 20).unwrap();
            let mut alloc = Alloc::new(&layout);
            let all = alloc.free();
            let mut taken = BTreeSet::new();
            for (want, pick) in ops {
                if pick % 3 == 0 {
                    let drop: Vec<u64> = taken.iter().copied().filter(|b| (b ^ pick) % 3 == 0).collect();
                    for b in drop {
                        alloc.clear(b);
                        taken.remove(&b);
                    }
                } else if let Some((first, n)) = alloc.take_run(want) {
                    prop_assert!(n >= 1 && n <= want);
                    for b in first..first + n {
                        prop_assert!(alloc.is_data_block(b) && taken.insert(b));
                    }
                } else {
                    prop_assert_eq!(alloc.free(), 0);
                }
                prop_assert_eq!(alloc.free(), all - taken.len() as u64);
            }
        }
    }
}
