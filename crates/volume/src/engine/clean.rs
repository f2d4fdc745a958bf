//! Clean-up in the background: layers nobody needs are dropped, layers nobody tells apart are merged.
//!
//! Owns: which layer is cleaned next and each step of it. Never: copies data; only map entries move.
//! Invariant: every step leaves every volume reading the same, and a crash between steps loses none of them.

use super::map::{LEAVES_MAX, Look};
use super::slots::{OpSlot, Ops, Work};
use super::{Engine, Halt};
use crate::cache::{NIL, PageKey, PageState};
use crate::entry::{Entry, FANOUT};
use crate::journal::Change;
use crate::mem::Mem;
use crate::op::Out;
use segue_types::{LayerId, TaskKind};
use std::collections::{BTreeMap, BTreeSet};

/// Leaves cleaned in one turn, so that clients wait at most for these.
const LEAVES_PER_TURN: usize = 8;

/// The clean-up in progress.
pub(crate) struct Clean {
    op: u32,
    layer: Option<LayerId>,
    cursor: u64,
    parked: bool,
    scan: bool,
    failed: bool,
}

impl Clean {
    pub(crate) fn new(ops: &mut Ops) -> Clean {
        let op = ops.take(OpSlot::background(Work::Clean));
        Clean { op, layer: None, cursor: 0, parked: false, scan: true, failed: false }
    }

    /// Something changed that may leave a layer without use.
    pub(crate) fn scan(&mut self) {
        self.scan = true;
    }

    pub(crate) fn runnable(&self) -> bool {
        !self.parked && !self.failed && (self.layer.is_some() || self.scan)
    }

    pub(crate) fn unpark(&mut self) {
        self.parked = false;
    }

    /// A map page below could not be read: leave the layer as it is until the pool is opened again.
    pub(crate) fn fail(&mut self) {
        (self.parked, self.failed) = (false, true);
    }
}

impl Engine {
    /// Does one turn's worth of clean-up.
    pub(crate) fn run_cleaning(&mut self, mem: &mut Mem, out: &mut Out) {
        for _ in 0..LEAVES_PER_TURN {
            if !self.clean.runnable() {
                return;
            }
            let stepped = self.clean_step(mem, out);
            self.settle(out);
            if let Err(halt) = stepped {
                self.clean.parked = true;
                let op = self.clean.op;
                if halt == Halt::Stall {
                    self.commit.want();
                }
                self.park(op, halt, out);
            }
        }
    }

    /// Layers that are being or wait to be cleaned.
    pub(crate) fn cleaning_count(&self) -> u64 {
        self.catalog.layers.values().filter(|l| l.dropping || l.merging).count() as u64
    }

    fn clean_step(&mut self, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        self.log.room(256)?;
        self.task_begins(TaskKind::Cleanup);
        let Some(id) = self.clean.layer else {
            self.pick_layer();
            return Ok(());
        };
        let Some(layer) = self.catalog.layers.get(&id).copied() else {
            self.clean.layer = None;
            self.clean.scan = true;
            return Ok(());
        };
        match self.next_leaf(id, self.clean.cursor, mem, out)? {
            Some(leaf) if layer.dropping => {
                self.drop_leaf(id, leaf, mem, out)?;
                self.clean.cursor = leaf + 1;
            }
            Some(leaf) => {
                self.merge_leaf(id, leaf, mem, out)?;
                self.clean.cursor = leaf + 1;
            }
            // A head that merges may have grown behind the cursor only through the parent, so one pass is enough.
            None => {
                let change = if layer.dropping { Change::DeleteLayer(id) } else { Change::MergeDone(id) };
                if !self.finish_layer(id, mem) {
                    return Ok(());
                }
                self.fault_point(TaskKind::Cleanup, "layer finished, not logged");
                self.log_change(&change);
                self.clean.layer = None;
                self.clean.scan = true;
            }
        }
        Ok(())
    }

    /// Marks what can be cleaned and chooses one layer of it.
    fn pick_layer(&mut self) {
        self.clean.scan = false;
        let mut children: BTreeMap<LayerId, u32> = BTreeMap::new();
        let mut heads: BTreeMap<LayerId, u32> = BTreeMap::new();
        for layer in self.catalog.layers.values() {
            if let Some(parent) = layer.parent {
                *children.entry(parent).or_default() += 1;
            }
        }
        for volume in self.catalog.volumes.values() {
            *heads.entry(volume.primary.head).or_default() += 1;
            if let Some(child) = &volume.child {
                *heads.entry(child.head).or_default() += 1;
            }
        }
        let pinned: BTreeSet<LayerId> = self.move_pins();
        let mut best: Option<LayerId> = None;
        let mut mark = None;
        for layer in self.catalog.layers.values() {
            if layer.dropping || layer.merging {
                best = Some(layer.id);
                break;
            }
            if !heads.contains_key(&layer.id) && !children.contains_key(&layer.id) {
                mark = Some((layer.id, layer.parent, false));
            } else if let Some(parent) = layer.parent.and_then(|p| self.catalog.layers.get(&p)) {
                let apart = pinned.contains(&layer.id) || pinned.contains(&parent.id);
                let alone = children.get(&parent.id) == Some(&1) && !heads.contains_key(&parent.id) && !apart;
                if alone && mark.is_none() {
                    mark = Some((layer.id, layer.parent, true));
                }
            }
        }
        if best.is_none()
            && let Some((layer, parent, merging)) = mark
        {
            self.catalog.put_layer(layer, parent, merging, !merging);
            self.fault_point(TaskKind::Cleanup, "layer chosen, not logged");
            self.log_change(&Change::PutLayer { layer, parent, merging, dropping: !merging });
            best = Some(layer);
        }
        (self.clean.layer, self.clean.cursor) = (best, 0);
    }

    /// The next leaf from `from` on that has a page or is a hole.
    pub(crate) fn next_leaf(
        &mut self,
        layer: LayerId,
        from: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<Option<u64>, Halt> {
        let mut leaf = from;
        while leaf < LEAVES_MAX {
            match self.look_leaf(layer, leaf, mem, out)? {
                Look::Page(_) | Look::Hole => return Ok(Some(leaf)),
                Look::Nothing(level) => {
                    let leaves = 1u64 << (8 * level);
                    leaf += leaves - leaf % leaves;
                }
            }
        }
        Ok(None)
    }

    /// Gives a leaf of a dropped layer back.
    pub(crate) fn drop_leaf(&mut self, layer: LayerId, leaf: u64, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        let key = PageKey { layer, level: 0, index: leaf };
        if let Look::Nothing(_) = self.look_leaf(layer, leaf, mem, out)? {
            return Ok(());
        }
        let above = self.page_mut(key.up().0, mem, out)?;
        if let Look::Page(slot) = self.look_leaf(layer, leaf, mem, out)? {
            let freed = self.free_leaf_blocks(slot, mem);
            self.count_blocks(layer, -(freed as i64));
        }
        self.cut_leaf(key, above, Entry::ABSENT, mem);
        self.fault_point(TaskKind::Cleanup, "leaf dropped, not logged");
        self.log_change(&Change::DropLeaf { layer, leaf });
        Ok(())
    }

    /// Moves a leaf of a merging layer into its parent, where it wins over what the parent had.
    pub(crate) fn merge_leaf(&mut self, layer: LayerId, leaf: u64, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        let key = PageKey { layer, level: 0, index: leaf };
        if let Look::Nothing(_) = self.look_leaf(layer, leaf, mem, out)? {
            return Ok(());
        }
        let parent = self.catalog.layers[&layer].parent.expect("a merging layer has a parent");
        let hole = if self.catalog.layers[&parent].parent.is_some() { Entry::HOLE } else { Entry::ABSENT };
        let to = self.page_mut(PageKey { layer: parent, ..key }, mem, out)?;
        let above = self.page_mut(key.up().0, mem, out)?;
        let from = match self.look_leaf(layer, leaf, mem, out)? {
            Look::Page(slot) => Some(self.cache.slot(slot).buf),
            _ => None,
        };
        let to = self.cache.slot(to).buf;
        let (mut gained, mut lost) = (0i64, 0i64);
        for index in 0..FANOUT {
            let entry = from.map_or(Entry::HOLE, |from| Entry::get(mem.get(from), index));
            if entry.is_absent() {
                continue;
            }
            if index == FANOUT / 2 {
                self.fault_point(TaskKind::Cleanup, "leaf half moved");
            }
            let old = Entry::get(mem.get(to), index);
            if old.is_pointer() && old.block() != entry.block() {
                self.space.free_data(old.block());
                lost += 1;
            }
            gained += i64::from(entry.is_pointer());
            let entry = if entry.is_pointer() { entry } else { hole };
            entry.put(mem.get_mut(to), index);
        }
        self.count_blocks(layer, -gained);
        self.count_blocks(parent, gained - lost);
        self.cut_leaf(key, above, Entry::ABSENT, mem);
        self.fault_point(TaskKind::Cleanup, "leaf moved, not logged");
        self.log_change(&Change::MergeLeaf { layer, leaf });
        Ok(())
    }

    /// Removes a layer without leaves. `false` when one of its pages is still being read: try again.
    pub(crate) fn finish_layer(&mut self, id: LayerId, mem: &mut Mem) -> bool {
        let _ = mem;
        let pages: Vec<u32> = self
            .cache
            .numbers()
            .filter(|n| self.cache.slot(*n).state != PageState::Free && self.cache.slot(*n).key.layer == id)
            .collect();
        let busy = |n: &u32| self.cache.slot(*n).state == PageState::Loading || self.cache.slot(*n).waiters != NIL;
        if pages.iter().any(busy) {
            return false;
        }
        for slot in pages {
            let at = self.cache.slot(slot).at;
            self.cache.remove(slot);
            self.free_page(at);
        }
        let layer = self.catalog.layers.remove(&id).expect("the layer was there");
        debug_assert_eq!(layer.blocks, 0, "an empty layer holds no blocks");
        for other in self.catalog.layers.values_mut() {
            if other.parent == Some(id) {
                other.parent = layer.parent;
            }
        }
        for volume in self.catalog.volumes.values_mut() {
            if let Some(moving) = &mut volume.settings.moving {
                moving.merged(id, layer.parent);
            }
            for branch in std::iter::once(&mut volume.primary).chain(volume.child.as_mut()) {
                if branch.head == id {
                    branch.head = layer.parent.expect("only a merged layer is still a head");
                }
            }
        }
        true
    }

    /// The layer that a change of this leaf goes to, with the leaf moved there first if the head is merging.
    pub(crate) fn target_layer(
        &mut self,
        head: LayerId,
        leaf: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<LayerId, Halt> {
        let layer = self.catalog.layers[&head];
        if !layer.merging {
            return Ok(head);
        }
        self.merge_leaf(head, leaf, mem, out)?;
        Ok(layer.parent.expect("a merging layer has a parent"))
    }

    /// That layer and its leaf, changeable.
    pub(crate) fn target_leaf(
        &mut self,
        head: LayerId,
        leaf: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<(LayerId, u32), Halt> {
        let layer = self.target_layer(head, leaf, mem, out)?;
        let slot = self.page_mut(PageKey { layer, level: 0, index: leaf }, mem, out)?;
        Ok((layer, slot))
    }
}
