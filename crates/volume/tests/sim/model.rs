//! What each block of each version may hold: histories of whole-block states.
//!
//! Owns: the contract of a block as sets of allowed states. Never: talks to an engine.
//! Invariant: a live read may see states from the last acknowledged on; after a power cut, from the last flushed on.

use super::content::{Marks, SECTOR, SECTORS, ZERO, recognise};
use std::collections::{BTreeMap, BTreeSet};

/// One block's history.
#[derive(Clone, Debug)]
pub struct Cell {
    states: Vec<Marks>,
    /// Index of the last acknowledged state: what a live read may see at the oldest.
    live: usize,
    /// Index of the last flushed state: what a power cut may leave at the oldest.
    floor: usize,
    /// Changes in flight.
    flying: u32,
    /// Leading states of which one was the truth when this version was made; which, a read will tell.
    inherited: usize,
    /// Counts changes, so that a read knows whether it was alone.
    version: u32,
}

impl Cell {
    fn zero() -> Cell {
        Cell { states: vec![ZERO], live: 0, floor: 0, flying: 0, inherited: 1, version: 0 }
    }
}

/// What a read noted when it began.
#[derive(Clone, Copy, Debug)]
pub struct Low {
    live: usize,
    version: u32,
}

/// One version of a volume: its blocks' histories. Blocks never mentioned are zero.
#[derive(Clone, Debug, Default)]
pub struct Branch {
    cells: BTreeMap<u64, Cell>,
    unflushed: BTreeSet<u64>,
}

impl Branch {
    /// Blocks that were ever touched.
    pub fn touched(&self) -> Vec<u64> {
        self.cells.keys().copied().collect()
    }

    /// True when no change is in flight and the content is known.
    pub fn is_certain(&self, block: u64) -> bool {
        self.cells.get(&block).is_none_or(|c| c.flying == 0 && c.live + 1 == c.states.len())
    }

    /// True when no change is in flight.
    pub fn is_quiet(&self, block: u64) -> bool {
        self.cells.get(&block).is_none_or(|c| c.flying == 0)
    }

    /// A change of the block begins; returns the index of the state it leads to.
    pub fn begin(&mut self, block: u64, change: impl FnOnce(Marks) -> Marks) -> usize {
        let cell = self.cells.entry(block).or_insert_with(Cell::zero);
        let next = change(*cell.states.last().expect("a history is never empty"));
        cell.states.push(next);
        cell.flying += 1;
        cell.version += 1;
        cell.states.len() - 1
    }

    /// The change was acknowledged; with `durable` it survives power cuts from now on.
    pub fn acknowledge(&mut self, block: u64, state: usize, durable: bool) {
        let cell = self.cells.get_mut(&block).expect("it began");
        cell.flying -= 1;
        cell.version += 1;
        cell.live = cell.live.max(state);
        if durable {
            cell.floor = cell.floor.max(state);
        }
        if cell.live > cell.floor {
            self.unflushed.insert(block);
        }
    }

    /// The change failed, or was of a kind that promises nothing: it may or may not have happened.
    pub fn give_up(&mut self, block: u64) {
        let cell = self.cells.get_mut(&block).expect("it began");
        cell.flying -= 1;
        cell.version += 1;
    }

    /// What a flush that begins now will make durable.
    pub fn acknowledged(&self) -> Vec<(u64, usize)> {
        self.unflushed.iter().map(|b| (*b, self.cells[b].live)).collect()
    }

    /// That flush completed.
    pub fn flushed(&mut self, list: &[(u64, usize)]) {
        for (block, state) in list {
            let cell = self.cells.get_mut(block).expect("blocks are not forgotten");
            cell.floor = cell.floor.max(*state);
            if cell.floor >= cell.live {
                self.unflushed.remove(block);
            }
        }
    }

    /// A read of the block begins.
    pub fn low(&self, block: u64) -> Low {
        self.cells.get(&block).map_or(Low { live: 0, version: 0 }, |c| Low { live: c.live, version: c.version })
    }

    /// A read of some sectors of the block saw `bytes`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn saw(&mut self, block: u64, first_sector: usize, bytes: &[u8], low: Low) -> Result<(), String> {
        let mut seen = Vec::new();
        for (i, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            match recognise(block, first_sector + i, sector) {
                Some(write) => seen.push(write),
                None => return Err(format!("block {block} sector {} is foreign or torn", first_sector + i)),
            }
        }
        let Some(cell) = self.cells.get_mut(&block) else {
            let zero = seen.iter().all(|w| *w == 0);
            return if zero { Ok(()) } else { Err(format!("block {block} was never written and holds {seen:?}")) };
        };
        let fits = |marks: &Marks| marks[first_sector..first_sector + seen.len()] == seen[..];
        let Some(at) = cell.states[low.live..].iter().rposition(fits).map(|i| i + low.live) else {
            return Err(format!(
                "block {block} holds {seen:?} from sector {first_sector}; allowed from state {} on: {:?}",
                low.live, cell
            ));
        };
        // Alone and whole: from now on nothing but this may be seen.
        if cell.flying == 0 && cell.version == low.version && seen.len() == SECTORS {
            cell.states.truncate(at + 1);
            cell.live = at;
            if at < cell.inherited {
                *cell = Cell { states: vec![cell.states[at]], version: cell.version, ..Cell::zero() };
            }
        }
        Ok(())
    }

    /// True when the block may read as zero in part or whole: what a hole promises.
    pub fn may_be_zero(&self, block: u64, low: Low) -> bool {
        self.cells.get(&block).is_none_or(|c| c.states[low.live..].contains(&ZERO))
    }

    /// Where each block stands now: the start of a snapshot, clone or `super`.
    pub fn lows(&self) -> BTreeMap<u64, usize> {
        self.cells.iter().map(|(b, c)| (*b, c.live)).collect()
    }

    /// A version that was made of this one between `lows` and now.
    pub fn offspring(&self, lows: &BTreeMap<u64, usize>) -> Branch {
        let copy = |(block, cell): (&u64, &Cell)| {
            let from = lows.get(block).copied().unwrap_or(0);
            let states = cell.states[from..].to_vec();
            let inherited = states.len();
            (*block, Cell { states, inherited, ..Cell::zero() })
        };
        Branch { cells: self.cells.iter().map(copy).collect(), unflushed: BTreeSet::new() }
    }

    /// The power went off: nothing is in flight, and each block is at one of its states since the last flush.
    pub fn power_cut(&mut self) {
        self.unflushed.clear();
        for cell in self.cells.values_mut() {
            let states = cell.states.split_off(cell.floor);
            let inherited = states.len();
            *cell = Cell { states, inherited, ..Cell::zero() };
        }
    }
}
