//! Writes of an initiator that are not done.
//!
//! Owns: which targets were chosen for a write, and which copies are under way. Never: a negotiation.
//! Invariant: copies acknowledged and under way together are never more than are wanted, but for those that come late.

use super::links::Span;
use super::message::{COPIES_MAX, WriteId};
use super::rules::Rules;
use segue_types::Nanos;

/// A write that is not done.
#[derive(Clone, Copy)]
pub(super) struct Write {
    pub id: WriteId,
    pub span: Span,
    pub round: u32,
    /// Members that were chosen for it; they are not asked again while others are left.
    pub chosen: u64,
    pub ever_chosen: u64,
    pub acknowledged: u64,
    /// Copies whose acknowledgement is awaited until a time.
    pub under_way: [(u8, Nanos); COPIES_MAX],
    pub under_way_count: u8,
    /// A round for it ended without all bids, so its windows are asked for later than the wait for bids.
    pub incomplete: bool,
}

impl Write {
    pub const fn new(id: WriteId, span: Span) -> Write {
        Write {
            id,
            span,
            round: 0,
            chosen: 0,
            ever_chosen: 0,
            acknowledged: 0,
            under_way: [(0, 0); COPIES_MAX],
            under_way_count: 0,
            incomplete: false,
        }
    }

    pub fn under_way_members(&self) -> u64 {
        self.under_way[..usize::from(self.under_way_count)].iter().fold(0, |all, (member, _)| all | 1 << member)
    }

    /// Forgets copies that are under way; how many.
    pub fn forget(&mut self, gone: impl Fn(&(u8, Nanos)) -> bool) -> u8 {
        let (mut kept, before) = (0, self.under_way_count);
        for at in 0..usize::from(before) {
            if !gone(&self.under_way[at]) {
                self.under_way[kept] = self.under_way[at];
                kept += 1;
            }
        }
        self.under_way_count = kept as u8;
        before - self.under_way_count
    }
}

impl Rules {
    /// Copies of a write that are neither acknowledged nor under way.
    pub(super) fn missing(&self, write: &Write) -> u32 {
        let there = write.acknowledged.count_ones() + u32::from(write.under_way_count);
        u32::from(self.copies).saturating_sub(there)
    }
}
