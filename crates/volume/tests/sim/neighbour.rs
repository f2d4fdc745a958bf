//! The other slices of a shared drive, at their worst: they write over everything that is theirs, and are short of space.
//!
//! Owns: the home of the drive's extents, and what neighbours do with theirs. Never: touches an extent that is leased to the slice under test.
//! Invariant: an extent that the slice has given back, or never had, holds garbage soon.

use segue_des::{Chance, Drive, DriveOp};
use segue_types::BLOCK_BYTES;
use segue_volume::engine::Engine;
use segue_volume::home::Home;
use segue_volume::op::{Event, Out};
use std::collections::BTreeSet;

const ME: u16 = 1;
const THEY: u16 = 0;

/// The neighbours, as one.
pub struct Neighbour {
    home: Home,
    chance: Chance,
    /// Extents of theirs, and those lent to the slice as far as the home knows.
    theirs: Vec<u32>,
    mine: BTreeSet<u32>,
    /// How often extents were lent, refused, given back, asked for.
    pub lent: u64,
    pub refused: u64,
    pub returned: u64,
    pub pressed: u64,
    /// They write over what is leased to the slice: for the canary.
    pub rude: bool,
}

impl Neighbour {
    pub fn new(engine: &Engine, chance: Chance) -> Neighbour {
        let mut home = Home::new(engine.extents() as u32, 2);
        let mine = engine.leased_extents().expect("a slice of a shared drive");
        home.claim(ME, &mine).expect("the first claim");
        home.claim(THEY, &[]).expect("an empty claim");
        let mut neighbour = Neighbour {
            home,
            chance,
            theirs: Vec::new(),
            mine: mine.into_iter().collect(),
            lent: 0,
            refused: 0,
            returned: 0,
            pressed: 0,
            rude: false,
        };
        let take = neighbour.home.free() / 2;
        neighbour.theirs = neighbour.home.lend(THEY, take);
        neighbour
    }

    /// Does what the engine's last step asks for; the event for its next step, if any.
    pub fn answer(&mut self, engine: &Engine, drive: &mut Drive, out: &mut Out) -> Option<Event> {
        if !out.returned.is_empty() {
            self.home.put_back(ME, &out.returned);
            self.returned += out.returned.len() as u64;
            out.returned.iter().for_each(|extent| assert!(self.mine.remove(extent), "{extent} was not lent"));
            out.returned.clear();
            // They take what is free and write there at once.
            let n = self.chance.below(4) as u32;
            let taken = self.home.lend(THEY, n);
            taken.iter().for_each(|extent| self.scribble(engine, drive, *extent));
            self.theirs.extend(taken);
        }
        if self.rude && self.chance.odds(1, 50) && !self.mine.is_empty() {
            let victim = *self.chance.pick(&self.mine.iter().copied().collect::<Vec<_>>());
            self.scribble(engine, drive, victim);
        }
        let wanted = std::mem::take(&mut out.want_extents);
        if wanted > 0 {
            return Some(self.lend(engine, drive, wanted));
        }
        if self.chance.odds(1, 150) {
            self.pressed += 1;
            return Some(Event::Shrink);
        }
        None
    }

    fn lend(&mut self, engine: &Engine, drive: &mut Drive, wanted: u32) -> Event {
        if self.chance.odds(1, 4) {
            self.refused += 1;
            return Event::Lend { extents: Vec::new() };
        }
        if self.home.free() < wanted {
            let give = self.theirs.len().min(2 + wanted as usize);
            let back: Vec<u32> = self.theirs.drain(..give).collect();
            self.home.put_back(THEY, &back);
        }
        let some = self.chance.between(1, u64::from(wanted)) as u32;
        let extents = self.home.lend(ME, some);
        // What comes is not zeroed: whatever stood there before stands there now.
        extents.iter().for_each(|extent| self.scribble(engine, drive, *extent));
        self.lent += extents.len() as u64;
        self.mine.extend(&extents);
        Event::Lend { extents }
    }

    fn scribble(&mut self, engine: &Engine, drive: &mut Drive, extent: u32) {
        assert!(self.rude || !self.mine.contains(&extent), "neighbours write where they may not");
        let range = engine.extent_range(extent);
        for _ in 0..3 {
            let block = range.start / BLOCK_BYTES + self.chance.below((range.end - range.start) / BLOCK_BYTES);
            let data = vec![self.chance.bits() as u8 | 1; BLOCK_BYTES as usize];
            drive.run(DriveOp::Write { offset: block * BLOCK_BYTES, data });
        }
    }

    /// The slice's engine was started again: it has what its journal and its tail say, and no more than it was lent.
    pub fn reclaim(&mut self, engine: &Engine) {
        let mine: BTreeSet<u32> = engine.leased_extents().expect("a slice").into_iter().collect();
        assert!(mine.is_subset(&self.mine), "after the restart the slice claims extents that it had given back");
        let list: Vec<u32> = mine.iter().copied().collect();
        self.home.claim(ME, &list).expect("nobody else has them");
        self.mine = mine;
    }

    /// After a power cut: the journal may claim only what had been lent before it.
    pub fn check(&self, before: &Neighbour) {
        let stolen: Vec<&u32> = self.mine.difference(&before.mine).collect();
        assert!(stolen.is_empty(), "after the cut the slice claims extents {stolen:?}, which it had given back");
    }
}
