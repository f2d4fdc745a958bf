//! One 16-byte entry of the map: where a block or page lies, its generation and its checksum.
//!
//! Owns: the packing. Never: follows a pointer.
//! Invariant: all zero bits mean "nothing here", so a fresh zeroed page is an empty page.

/// Entries in a map page.
pub(crate) const FANOUT: u64 = 256;
/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 16;
/// Block number that marks a hole; block 1 is the second superblock and never holds data.
const HOLE_BLOCK: u64 = 1;
const BLOCK_BITS: u32 = 40;

/// Where something lies. 40 bits of block number, 56 bits of generation, 32 bits of CRC32C.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    low: u64,
    high: u64,
}

impl Entry {
    /// Nothing here: look in the parent layer, or read as zero if there is none.
    pub(crate) const ABSENT: Entry = Entry { low: 0, high: 0 };
    /// Reads as zero, whatever the parent layer has.
    pub(crate) const HOLE: Entry = Entry { low: HOLE_BLOCK, high: 0 };

    /// A pointer.
    pub(crate) fn pointer(block: u64, generation: u64, crc: u32) -> Entry {
        debug_assert!(block > HOLE_BLOCK && block < 1 << BLOCK_BITS && generation < 1 << 56);
        Entry { low: block | generation << BLOCK_BITS, high: (generation >> 24) << 32 | u64::from(crc) }
    }

    pub(crate) fn is_absent(self) -> bool {
        self.low == 0
    }

    pub(crate) fn is_hole(self) -> bool {
        self.low == HOLE_BLOCK
    }

    pub(crate) fn is_pointer(self) -> bool {
        self.low > HOLE_BLOCK
    }

    /// Block number on the drive.
    pub(crate) fn block(self) -> u64 {
        self.low & ((1 << BLOCK_BITS) - 1)
    }

    pub(crate) fn generation(self) -> u64 {
        (self.high >> 32) << 24 | self.low >> BLOCK_BITS
    }

    pub(crate) fn crc(self) -> u32 {
        self.high as u32
    }

    /// Reads entry `index` of a page.
    pub(crate) fn get(page: &[u8], index: u64) -> Entry {
        let at = index as usize * ENTRY_BYTES;
        let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        Entry { low: word(at), high: word(at + 8) }
    }

    /// Writes entry `index` of a page.
    pub(crate) fn put(self, page: &mut [u8], index: u64) {
        let at = index as usize * ENTRY_BYTES;
        page[at..at + 8].copy_from_slice(&self.low.to_le_bytes());
        page[at + 8..at + 16].copy_from_slice(&self.high.to_le_bytes());
    }

    /// The two words, for codecs.
    pub(crate) fn words(self) -> (u64, u64) {
        (self.low, self.high)
    }

    /// From the two words.
    pub(crate) fn from_words(low: u64, high: u64) -> Entry {
        Entry { low, high }
    }
}

/// True when a page holds nothing.
pub(crate) fn page_is_empty(page: &[u8]) -> bool {
    // Whole words: this runs over every dirty page of a checkpoint.
    page.chunks_exact(8).all(|w| w == [0; 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_pack_and_unpack() {
        let e = Entry::pointer((1 << 40) - 1, (1 << 56) - 1, 0xdead_beef);
        assert_eq!((e.block(), e.generation(), e.crc()), ((1 << 40) - 1, (1 << 56) - 1, 0xdead_beef));
        let e = Entry::pointer(77, 0x12_3456_789a_bcde, 1);
        assert_eq!((e.block(), e.generation(), e.crc()), (77, 0x12_3456_789a_bcde, 1));
        let mut page = vec![0; 4096];
        assert!(page_is_empty(&page) && Entry::get(&page, 3).is_absent());
        e.put(&mut page, 255);
        assert_eq!(Entry::get(&page, 255), e);
        assert!(!page_is_empty(&page) && Entry::HOLE.is_hole() && !Entry::HOLE.is_pointer());
    }
}
