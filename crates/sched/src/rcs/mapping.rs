//! Which pools serve which groups.
//!
//! Owns: the relation, seen from the pools. Never: changes by itself.
//! Invariant: every group and pool named is below the counts it was made for.

use super::bits::Bits;
use super::{Group, Pool};

/// A relation between groups and pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    groups: usize,
    pools: Box<[Bits]>,
}

impl Mapping {
    /// No pool serves any group yet.
    pub fn none(groups: u16, pools: u16) -> Mapping {
        let groups = usize::from(groups);
        Mapping { groups, pools: vec![Bits::empty(groups); usize::from(pools)].into_boxed_slice() }
    }

    /// Every pool serves every group.
    pub fn all(groups: u16, pools: u16) -> Mapping {
        let mut all = Mapping::none(groups, pools);
        (0..groups).for_each(|g| all.open_everywhere(Group(g)));
        all
    }

    /// Groups and pools dealt out in turn: group `g` on pool `g % pools`; with more pools than groups, pool `p`
    /// serves group `p % groups`.
    pub fn dealt(groups: u16, pools: u16) -> Mapping {
        let mut dealt = Mapping::none(groups, pools);
        for n in 0..groups.max(pools) {
            dealt.open(Group(n % groups.max(1)), Pool(n % pools.max(1)));
        }
        dealt
    }

    /// Lets a pool serve a group.
    ///
    /// # Panics
    /// When the group or the pool does not exist.
    pub fn open(&mut self, group: Group, pool: Pool) {
        self.pools[usize::from(pool.0)].set(usize::from(group.0), true);
    }

    /// Lets every pool serve a group.
    pub fn open_everywhere(&mut self, group: Group) {
        self.pools.iter_mut().for_each(|groups| groups.set(usize::from(group.0), true));
    }

    /// True when the pool serves the group.
    pub fn serves(&self, pool: Pool, group: Group) -> bool {
        self.pools[usize::from(pool.0)].has(usize::from(group.0))
    }

    /// How many groups and pools it speaks of.
    pub fn shape(&self) -> (usize, usize) {
        (self.groups, self.pools.len())
    }

    /// The groups of a pool.
    pub(super) fn of(&self, pool: usize) -> &Bits {
        &self.pools[pool]
    }

    /// The first group that no pool serves.
    pub(super) fn orphan(&self) -> Option<Group> {
        (0..self.groups).find(|g| !self.pools.iter().any(|p| p.has(*g))).map(|g| Group(g as u16))
    }

    /// The groups that this mapping opens to pools which `home` keeps them from.
    pub(super) fn beyond(&self, home: &Mapping) -> Bits {
        let mut wider = Bits::empty(self.groups);
        for (mine, theirs) in self.pools.iter().zip(&home.pools) {
            mine.iter().filter(|g| !theirs.has(*g)).for_each(|g| wider.set(g, true));
        }
        wider
    }
}
