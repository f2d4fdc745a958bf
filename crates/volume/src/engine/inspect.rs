//! What the offline check may see of an engine.
//!
//! Owns: read-only views. Never: changes anything.
//! Invariant: the views describe the pool as the next open would serve it.

use super::map::Look;
use super::{Engine, Halt};
use crate::cache::{PageKey, PageState};
use crate::entry::Entry;
use crate::mem::Mem;
use crate::op::Out;
use segue_types::{BLOCK_BYTES, LayerId, VolumeId};
use std::ops::Range;

impl Engine {
    /// Words of a bitmap with a bit for each block.
    pub(crate) fn bitmap_words(&self) -> usize {
        (self.alloc.bytes() / 8) as usize
    }

    /// Every layer and the blocks it is recorded to hold.
    pub(crate) fn layer_counts(&self) -> Vec<(LayerId, u64)> {
        self.catalog.layers.values().map(|l| (l.id, l.blocks)).collect()
    }

    /// Every volume's top layers with the version's size in blocks.
    pub(crate) fn volume_heads(&self) -> Vec<(VolumeId, LayerId, u64)> {
        let branches = |v: &crate::catalog::Volume| {
            let id = v.id;
            let heads: Vec<_> =
                std::iter::once(&v.primary).chain(&v.child).map(|b| (id, b.head, b.size_bytes / BLOCK_BYTES)).collect();
            heads
        };
        self.catalog.volumes.values().flat_map(branches).collect()
    }

    /// Blocks that are taken only until the next commit or checkpoint.
    pub(crate) fn limbo_blocks(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.space.limbo(&mut blocks);
        self.space.pages_waiting(&mut blocks);
        blocks
    }

    /// Block numbers of the data region.
    pub(crate) fn data_range(&self) -> Range<u64> {
        self.layout.data_start()..self.layout.blocks
    }

    /// True when the bitmap says the block is taken.
    pub(crate) fn is_taken(&self, block: u64) -> bool {
        self.alloc.is_set(block)
    }

    /// True when the block is this slice's to use.
    pub(crate) fn is_leased(&self, block: u64) -> bool {
        self.lending.as_ref().is_none_or(|lending| lending.covers(block))
    }

    /// True when the page is in memory, perhaps newer than on the drive.
    pub(crate) fn is_cached(&mut self, key: PageKey) -> bool {
        self.cache.find(key).is_some_and(|s| self.cache.slot(s).state != PageState::Loading)
    }

    /// A page's place on the drive and a copy of its bytes; `None` when there is no such page.
    pub(crate) fn page_copy(
        &mut self,
        key: PageKey,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<Option<(Entry, Vec<u8>)>, Halt> {
        // A page that did not match is only remembered while replaying; the check wants the same here.
        self.replaying = true;
        match self.look(key, mem, out)? {
            Look::Page(slot) => {
                let slot = self.cache.slot(slot);
                Ok(Some((slot.at, mem.get(slot.buf).to_vec())))
            }
            Look::Nothing(_) | Look::Hole => Ok(None),
        }
    }
}
