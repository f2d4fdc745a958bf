//! What waits: one first-in first-out queue per volume, in one table.
//!
//! Owns: the waiting requests. Never: allocates but in `grow`, which the driver calls when the table is full.
//! Invariant: requests of a volume leave in the order in which they came.

use super::cost::Charge;
use segue_types::Nanos;

const END: u32 = u32::MAX;

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// The driver's own number for it.
    pub key: u32,
    /// What it costs.
    pub charge: Charge,
    /// When it came.
    pub arrived: Nanos,
    /// Its place in the order of all arrivals.
    pub(super) sequence: u64,
}

#[derive(Clone, Copy)]
struct Line {
    head: u32,
    tail: u32,
    len: u32,
}

pub(super) struct Queues {
    items: Vec<(Item, u32)>,
    free: u32,
    lines: Vec<Line>,
    waiting: usize,
}

impl Queues {
    pub(super) fn new(slots: usize, items: usize) -> Queues {
        let lines = vec![Line { head: END, tail: END, len: 0 }; slots];
        let mut queues = Queues { items: Vec::new(), free: END, lines, waiting: 0 };
        queues.grow(items);
        queues
    }

    /// Makes room for `items` more.
    pub(super) fn grow(&mut self, items: usize) {
        let charge = super::CostModel::DRIVE.charge(super::Kind::Other, 0, false);
        let blank = Item { key: END, charge, arrived: 0, sequence: 0 };
        self.items.reserve_exact(items);
        for _ in 0..items {
            self.items.push((blank, self.free));
            self.free = (self.items.len() - 1) as u32;
        }
    }

    pub(super) fn push(&mut self, slot: usize, item: Item) -> bool {
        let at = self.free;
        if at == END {
            return false;
        }
        self.free = self.items[at as usize].1;
        self.items[at as usize] = (item, END);
        let line = &mut self.lines[slot];
        match line.tail {
            END => line.head = at,
            tail => self.items[tail as usize].1 = at,
        }
        line.tail = at;
        line.len += 1;
        self.waiting += 1;
        true
    }

    pub(super) fn head(&self, slot: usize) -> Option<&Item> {
        match self.lines[slot].head {
            END => None,
            at => Some(&self.items[at as usize].0),
        }
    }

    pub(super) fn pop(&mut self, slot: usize) -> Option<Item> {
        let line = &mut self.lines[slot];
        let at = line.head;
        if at == END {
            return None;
        }
        let (item, next) = self.items[at as usize];
        line.head = next;
        line.len -= 1;
        if next == END {
            line.tail = END;
        }
        self.items[at as usize].1 = self.free;
        self.free = at;
        self.waiting -= 1;
        Some(item)
    }

    pub(super) fn len(&self, slot: usize) -> u32 {
        self.lines[slot].len
    }

    /// Requests that wait, of all volumes.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
}
