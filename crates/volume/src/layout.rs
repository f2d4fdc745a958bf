//! Where things lie on the drive, and the superblock that says so.
//!
//! Owns: the regions' arithmetic, the superblock's bytes. Never: does I/O.
//! Invariant: regions never overlap, and a superblock that decodes describes regions inside its drive.

use crate::crc::plain_crc;
use segue_types::BLOCK_BYTES;

/// Version of the format this code writes.
pub const FORMAT_VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"SEGUEPL\x01";
/// Smallest drive that can hold a pool, bytes.
pub const POOL_BYTES_MIN: u64 = 8 << 20;
/// Largest drive that can hold a pool, bytes (40-bit block numbers).
pub const POOL_BYTES_MAX: u64 = 1 << 52;
/// Blocks whose allocation one bitmap page tells.
pub(crate) const BITS_PER_PAGE: u64 = BLOCK_BYTES * 8;
/// Largest journal record, bytes.
pub(crate) const RECORD_BYTES_MAX: u64 = 256 << 10;

/// Most slices of a drive.
pub const SLICES_MAX: u64 = 64;

/// The regions of a slice, in blocks: two superblocks, two checkpoint areas, two bitmaps, journal. The slices' regions
/// stand one after another from block 0 on; behind them are the data blocks, which all slices share. A pool that is not
/// divided is one slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) blocks: u64,
    pub(crate) area_blocks: u64,
    pub(crate) bitmap_pages: u64,
    pub(crate) journal_blocks: u64,
    /// How many slices share the drive, and which one this is.
    pub(crate) slices: u64,
    pub(crate) slice: u64,
}

impl Layout {
    /// The layout of an undivided drive of this many bytes, or `None` when it is too small or too large.
    pub(crate) fn for_capacity(bytes: u64) -> Option<Layout> {
        Layout::of_slice(bytes, 1, 0)
    }

    /// The layout of one slice of a drive, or `None` when the drive is too small for so many, or too large.
    pub(crate) fn of_slice(bytes: u64, slices: u64, slice: u64) -> Option<Layout> {
        let few = (1..=SLICES_MAX).contains(&slices) && slice < slices;
        if !few || !(POOL_BYTES_MIN.saturating_mul(slices)..=POOL_BYTES_MAX).contains(&bytes) {
            return None;
        }
        let blocks = bytes / BLOCK_BYTES;
        let share = blocks / slices;
        let bitmap_pages = blocks.div_ceil(BITS_PER_PAGE);
        // The bitmap's table takes 16 bytes a page; the rest is for the catalogue of volumes and layers.
        let table = (bitmap_pages * 16).div_ceil(BLOCK_BYTES);
        let catalogue = (share / 64).clamp(32, 16384);
        let journal_blocks = (share / 32).clamp(512, 16384);
        Some(Layout { blocks, area_blocks: 1 + table + catalogue, bitmap_pages, journal_blocks, slices, slice })
    }

    /// Blocks of the regions of one slice.
    fn own_blocks(&self) -> u64 {
        2 + 2 * self.area_blocks + 2 * self.bitmap_pages + self.journal_blocks
    }

    /// Block of superblock 0 or 1.
    pub(crate) fn superblock(&self, which: u64) -> u64 {
        self.slice * self.own_blocks() + which
    }

    /// First block of checkpoint area 0 or 1.
    pub(crate) fn area_start(&self, which: u64) -> u64 {
        self.superblock(0) + 2 + which * self.area_blocks
    }

    /// Block of bitmap page `page` in copy 0 or 1.
    pub(crate) fn bitmap_block(&self, page: u64, copy: u64) -> u64 {
        self.superblock(0) + 2 + 2 * self.area_blocks + copy * self.bitmap_pages + page
    }

    /// First block of the journal.
    pub(crate) fn journal_start(&self) -> u64 {
        self.superblock(0) + 2 + 2 * self.area_blocks + 2 * self.bitmap_pages
    }

    /// First block that may hold data or map pages.
    pub(crate) fn data_start(&self) -> u64 {
        self.slices * self.own_blocks()
    }

    /// Blocks of an extent, the unit in which slices lease data blocks: 1 to 16 MiB, about a thousand to a drive.
    pub(crate) fn extent_blocks(&self) -> u64 {
        let data = self.blocks - self.data_start();
        (data / 1024).next_power_of_two().clamp(256, 4096)
    }

    /// Extents of the drive; the last may be short.
    pub(crate) fn extents(&self) -> u64 {
        (self.blocks - self.data_start()).div_ceil(self.extent_blocks())
    }

    /// The blocks of an extent.
    pub(crate) fn extent(&self, number: u64) -> std::ops::Range<u64> {
        let first = self.data_start() + number * self.extent_blocks();
        first..(first + self.extent_blocks()).min(self.blocks)
    }
}

/// The root of everything: which checkpoint is valid and where the journal goes on from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    /// The oldest version of the format among the pool's superblocks; written is always [`FORMAT_VERSION`].
    pub(crate) version: u32,
    pub(crate) layout: Layout,
    pub(crate) uuid: [u8; 16],
    /// Grows by one each time a superblock is written; the larger of the two is the valid one.
    pub(crate) sequence: u64,
    /// Which checkpoint area holds the root, how many bytes, and their checksum.
    pub(crate) area: u64,
    pub(crate) root_bytes: u64,
    pub(crate) root_crc: u32,
    /// Where the first journal record after the checkpoint will be (block of the journal region), and its number.
    pub(crate) journal_position: u64,
    pub(crate) journal_sequence: u64,
    /// Records up to this number are known to be durable together with the data they speak of.
    pub(crate) durable_sequence: u64,
    /// Map pages the writer's cache could hold: replay needs as many.
    pub(crate) cache_pages: u64,
}

/// Why a drive does not hold a pool that this program can open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// Neither superblock decodes: not a pool, or both are damaged.
    #[error("no valid superblock: this drive holds no pool (or both copies are damaged)")]
    NotAPool,
    /// Written by a newer version of the format.
    #[error("the pool has format version {0}, newer than {FORMAT_VERSION}: use a newer segue")]
    TooNew(u32),
    /// The drive is smaller than the pool.
    #[error("the pool has {pool_blocks} blocks of 4 KiB but the drive only {drive_blocks}: the drive is cut short")]
    DriveTooSmall {
        /// Blocks the pool was formatted with.
        pool_blocks: u64,
        /// Blocks the drive has.
        drive_blocks: u64,
    },
}

impl Superblock {
    /// Writes the superblock into a 4096-byte block.
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        // An undivided pool says nothing of slices, as in version 1.
        let slices = if self.layout.slices == 1 { 0 } else { self.layout.slices as u16 };
        block[12..14].copy_from_slice(&slices.to_le_bytes());
        block[14..16].copy_from_slice(&(self.layout.slice as u16).to_le_bytes());
        block[16..32].copy_from_slice(&self.uuid);
        let words = [
            self.layout.blocks,
            self.layout.area_blocks,
            self.layout.bitmap_pages,
            self.layout.journal_blocks,
            self.sequence,
            self.area,
            self.root_bytes,
            u64::from(self.root_crc),
            self.journal_position,
            self.journal_sequence,
            self.durable_sequence,
            self.cache_pages,
        ];
        for (i, word) in words.iter().enumerate() {
            block[32 + i * 8..40 + i * 8].copy_from_slice(&word.to_le_bytes());
        }
        let crc = plain_crc(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads one superblock.
    ///
    /// # Errors
    /// [`SuperblockError::NotAPool`] or [`SuperblockError::TooNew`].
    pub(crate) fn decode(block: &[u8]) -> Result<Superblock, SuperblockError> {
        let crc = u32::from_le_bytes(block[4092..4096].try_into().expect("four bytes"));
        if &block[..8] != MAGIC || plain_crc(&block[..4092]) != crc {
            return Err(SuperblockError::NotAPool);
        }
        let version = u32::from_le_bytes(block[8..12].try_into().expect("four bytes"));
        if version == 0 {
            return Err(SuperblockError::NotAPool);
        }
        if version > FORMAT_VERSION {
            return Err(SuperblockError::TooNew(version));
        }
        let word = |i: usize| u64::from_le_bytes(block[32 + i * 8..40 + i * 8].try_into().expect("eight bytes"));
        let small = |at: usize| u64::from(u16::from_le_bytes(block[at..at + 2].try_into().expect("two bytes")));
        let (slices, slice) = (small(12).max(1), small(14));
        let (area_blocks, bitmap_pages) = (word(1), word(2));
        let layout = Layout { blocks: word(0), area_blocks, bitmap_pages, journal_blocks: word(3), slices, slice };
        let sb = Superblock {
            version,
            layout,
            uuid: block[16..32].try_into().expect("sixteen bytes"),
            sequence: word(4),
            area: word(5),
            root_bytes: word(6),
            root_crc: word(7) as u32,
            journal_position: word(8),
            journal_sequence: word(9),
            durable_sequence: word(10),
            cache_pages: word(11),
        };
        // A block that passed its checksum but makes no sense was not written by this code.
        if Layout::of_slice(layout.blocks.saturating_mul(BLOCK_BYTES), slices, slice) != Some(layout)
            || sb.area > 1
            || sb.root_bytes > layout.area_blocks * BLOCK_BYTES
            || sb.journal_position > layout.journal_blocks
            || sb.cache_pages > 1 << 32
            // A checkpoint is complete only when everything before its journal position is durable; and numbers that
            // grow by one do not come near the end of their range.
            || sb.journal_sequence > sb.durable_sequence.saturating_add(1)
            || sb.journal_sequence == 0
            || sb.sequence.max(sb.durable_sequence) >= 1 << 62
        {
            return Err(SuperblockError::NotAPool);
        }
        Ok(sb)
    }
}

/// Decodes a superblock and writes it back: for fuzzing and tools that must not see the inside.
///
/// # Errors
/// As a pool's opening would.
pub fn superblock_round_trip(block: &[u8; 4096]) -> Result<[u8; 4096], SuperblockError> {
    let mut out = [0; 4096];
    Superblock::decode(block)?.encode(&mut out);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_in_order_and_leave_room_for_data() {
        for bytes in [POOL_BYTES_MIN, 64 << 20, 1 << 30, 1 << 40, POOL_BYTES_MAX] {
            let l = Layout::for_capacity(bytes).unwrap();
            assert!(l.area_start(1) == l.area_start(0) + l.area_blocks);
            assert!(l.data_start() < l.blocks, "{bytes}");
            assert!(l.blocks - l.data_start() > l.blocks / 2, "{bytes} {l:?}");
        }
        assert_eq!(Layout::for_capacity(POOL_BYTES_MIN - 1), None);
    }

    #[test]
    fn slices_stand_side_by_side_and_extents_cover_the_data() {
        for (bytes, slices) in [(16 << 20, 2), (1 << 30, 3), (1 << 40, 8), (1 << 40, SLICES_MAX)] {
            let all: Vec<Layout> = (0..slices).map(|s| Layout::of_slice(bytes, slices, s).unwrap()).collect();
            for pair in all.windows(2) {
                assert_eq!(pair[0].journal_start() + pair[0].journal_blocks, pair[1].superblock(0));
            }
            let last = all.last().unwrap();
            assert_eq!(last.journal_start() + last.journal_blocks, last.data_start());
            let mut at = last.data_start();
            for extent in 0..last.extents() {
                assert_eq!(last.extent(extent).start, at);
                at = last.extent(extent).end;
            }
            assert_eq!(at, last.blocks);
        }
        assert_eq!(Layout::of_slice(1 << 30, SLICES_MAX + 1, 0), None);
        assert_eq!(Layout::of_slice(POOL_BYTES_MIN, 2, 0), None);
    }
}
