//! Finding map pages, reading them in, and making them changeable.
//!
//! Owns: the walk from a layer's root to a leaf. Never: frees data blocks or writes the journal.
//! Invariant: the pages above a dirty page are in the cache and dirty too, so a checkpoint finds a path to the root.

use super::slots::IoUse;
use super::{Engine, Halt};
use crate::cache::{NIL, PageKey, PageState, TOP_LEVEL};
use crate::crc::page_crc;
use crate::entry::{Entry, FANOUT};
use crate::mem::Mem;
use crate::op::{Alarm, AlarmKind, IoKind, Out};
use segue_types::{BLOCK_BYTES, LayerId};

/// Leaves of the largest volume.
pub(crate) const LEAVES_MAX: u64 = 1 << 24;

/// What a walk found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// The page, in this slot.
    Page(u32),
    /// Nothing below an entry of this level: 256^level leaves have no page.
    Nothing(u8),
    /// The whole leaf is a hole.
    Hole,
}

impl Engine {
    /// Finds a page, starting to read it if it is only on the drive.
    pub(crate) fn look(&mut self, key: PageKey, mem: &mut Mem, out: &mut Out) -> Result<Look, Halt> {
        if let Some(slot) = self.cache.find(key) {
            return match self.cache.slot(slot).state {
                PageState::Loading => Err(Halt::Page(slot)),
                _ => Ok(Look::Page(slot)),
            };
        }
        let at = if key.level == TOP_LEVEL {
            self.catalog.layers.get(&key.layer).map_or(Entry::ABSENT, |l| l.root)
        } else {
            let (up, index) = key.up();
            match self.look(up, mem, out)? {
                Look::Page(slot) => Entry::get(mem.get(self.cache.slot(slot).buf), index),
                other => return Ok(other),
            }
        };
        if at.is_absent() {
            return Ok(Look::Nothing(key.level));
        }
        if at.is_hole() {
            return Ok(Look::Hole);
        }
        if self.broken_page == Some(key) {
            self.broken_page = None;
            return Err(Halt::Broken);
        }
        let slot = self.cache.insert(key, PageState::Loading).ok_or(Halt::Stall)?;
        self.cache.slot_mut(slot).at = at;
        let buf = self.cache.slot(slot).buf;
        self.submit(IoUse::Page(slot), IoKind::Read { offset: at.block() * BLOCK_BYTES, buf }, out);
        Err(Halt::Page(slot))
    }

    /// Finds a leaf.
    pub(crate) fn look_leaf(&mut self, layer: LayerId, leaf: u64, mem: &mut Mem, out: &mut Out) -> Result<Look, Halt> {
        self.look(PageKey { layer, level: 0, index: leaf }, mem, out)
    }

    /// Where a block's data lies, seen from this layer down: a pointer, a hole, or absent.
    pub(crate) fn resolve(&mut self, head: LayerId, block: u64, mem: &mut Mem, out: &mut Out) -> Result<Entry, Halt> {
        let mut layer = head;
        loop {
            match self.look_leaf(layer, block / FANOUT, mem, out)? {
                Look::Page(slot) => {
                    let entry = Entry::get(mem.get(self.cache.slot(slot).buf), block % FANOUT);
                    if !entry.is_absent() {
                        return Ok(entry);
                    }
                }
                Look::Hole => return Ok(Entry::HOLE),
                Look::Nothing(_) => {}
            }
            match self.catalog.layers.get(&layer).and_then(|l| l.parent) {
                Some(parent) => layer = parent,
                None => return Ok(Entry::ABSENT),
            }
        }
    }

    /// A page, made if it was not there, dirty, and with a buffer that may be changed.
    pub(crate) fn page_mut(&mut self, key: PageKey, mem: &mut Mem, out: &mut Out) -> Result<u32, Halt> {
        match self.look(key, mem, out)? {
            Look::Page(slot) => {
                if self.cache.slot(slot).state != PageState::Dirty {
                    if key.level < TOP_LEVEL {
                        self.page_mut(key.up().0, mem, out)?;
                    }
                    self.check_dirty_room()?;
                    // Dirtying the pages above may have evicted this one.
                    let Look::Page(again) = self.look(key, mem, out)? else { unreachable!("the page was just there") };
                    self.cache.mark_dirty(again);
                    self.cache.own(again, mem);
                    return Ok(again);
                }
                self.cache.own(slot, mem);
                Ok(slot)
            }
            found => self.make_page(key, found == Look::Hole, mem, out),
        }
    }

    fn make_page(&mut self, key: PageKey, was_hole: bool, mem: &mut Mem, out: &mut Out) -> Result<u32, Halt> {
        let above = match key.level < TOP_LEVEL {
            true => Some(self.page_mut(key.up().0, mem, out)?),
            false => None,
        };
        self.check_dirty_room()?;
        let slot = self.cache.insert(key, PageState::Clean).ok_or(Halt::Stall)?;
        self.cache.mark_dirty(slot);
        let page = mem.get_mut(self.cache.slot(slot).buf);
        page.fill(0);
        if was_hole {
            (0..FANOUT).for_each(|i| Entry::HOLE.put(page, i));
            let above = self.cache.slot(above.expect("only leaves are holes")).buf;
            Entry::ABSENT.put(mem.get_mut(above), key.up().1);
        }
        Ok(slot)
    }

    fn check_dirty_room(&mut self) -> Result<(), Halt> {
        if self.cache.dirty.len() >= self.dirty_max && !self.replaying {
            self.ckpt.want();
            return Err(Halt::Stall);
        }
        Ok(())
    }

    /// A map page arrived.
    pub(crate) fn page_io_done(&mut self, slot: u32, errno: i32, mem: &mut Mem, out: &mut Out) {
        let (key, at, buf) = (self.cache.slot(slot).key, self.cache.slot(slot).at, self.cache.slot(slot).buf);
        let found = page_crc(at.generation(), key.level, key.index, mem.get(buf));
        let good = errno == 0 && found == at.crc();
        let mut waiter = std::mem::replace(&mut self.cache.slot_mut(slot).waiters, NIL);
        if good {
            self.cache.slot_mut(slot).state = PageState::Clean;
        } else {
            if errno == 0 {
                self.integrity_errors += 1;
                out.alarms.push(Alarm {
                    kind: AlarmKind::Map { layer: key.layer, level: key.level, index: key.index },
                    offset: at.block() * BLOCK_BYTES,
                    expected_crc32c: at.crc(),
                    found_crc32c: found,
                    generation: at.generation(),
                });
            }
            self.cache.slot_mut(slot).state = PageState::Clean;
            self.cache.remove(slot);
        }
        while waiter != NIL {
            let op = waiter;
            waiter = std::mem::replace(&mut self.ops[op].next, NIL);
            if good {
                self.ready.push_back(op);
            } else {
                self.fail_parked(op, out);
            }
        }
        if !good && self.replaying {
            self.broken_page = Some(key);
        }
    }

    /// Takes a page out of its layer for good: its place on the drive is given back with the next checkpoint.
    /// The page above must be changeable (`above` is its slot) and gets `instead` for it.
    pub(crate) fn cut_leaf(&mut self, key: PageKey, above: u32, instead: Entry, mem: &mut Mem) {
        let up = mem.get_mut(self.cache.slot(above).buf);
        let old = Entry::get(up, key.up().1);
        instead.put(up, key.up().1);
        match self.cache.find(key) {
            Some(slot) => {
                let at = self.cache.slot(slot).at;
                debug_assert!(old == at || !old.is_pointer());
                self.cache.remove(slot);
                self.free_page(at);
            }
            None => self.free_page(old),
        }
    }

    /// The place of a map page on the drive is needed only until the next checkpoint.
    pub(crate) fn free_page(&mut self, at: Entry) {
        if at.is_pointer() {
            self.space.free_page(at.block());
        }
    }
}
