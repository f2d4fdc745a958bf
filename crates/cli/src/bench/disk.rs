//! The three kinds of disk that are compared: a regular volume, a super child, and the copy-on-write baseline.
//!
//! Owns: making a fresh one of each, and running requests on it with their latencies. Never: favours one.
//! Invariant: all three take the same requests through the same pool, drive and thread.

use super::cow::CowDisk;
use super::pool::Pool;
use super::trace::OBJECT_BYTES;
use anyhow::{Context, Result};
use segue_types::SuperId;
use segue_volume::op::AttachId;
use std::collections::BTreeMap;
use std::time::Instant;

/// Which disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// A volume without any superposition.
    Regular,
    /// The child of a superposition, fresh: every first write of a block is a first touch.
    Child,
    /// A child by copy-on-write of 64 KiB objects, fresh.
    Cow,
}

/// All three, in the order of reports.
pub const VARIANTS: [Variant; 3] = [Variant::Regular, Variant::Child, Variant::Cow];

impl Variant {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Regular => "regular",
            Variant::Child => "child",
            Variant::Cow => "cow_64k",
        }
    }
}

/// `VARIANTS`, beginning with another one each turn, so that none always goes first.
pub fn rotated(turn: usize) -> [Variant; 3] {
    std::array::from_fn(|i| VARIANTS[(i + turn) % VARIANTS.len()])
}

enum Kind {
    Plain(AttachId),
    Cow(Box<CowDisk>),
}

/// A request that ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// The caller's number of it.
    pub id: u64,
    /// From its submission to its completion.
    pub latency_us: f64,
}

/// A disk under test.
pub struct Disk {
    kind: Kind,
    /// Tag of a plain request, to its id.
    tags: BTreeMap<u64, u64>,
    started: BTreeMap<u64, Instant>,
}

impl Disk {
    fn new(kind: Kind) -> Disk {
        Disk { kind, tags: BTreeMap::new(), started: BTreeMap::new() }
    }

    /// Starts a request; `id` is any number not in flight.
    pub fn submit(&mut self, pool: &mut Pool, id: u64, write: bool, offset: u64, len: u32) -> Result<()> {
        self.started.insert(id, Instant::now());
        match &mut self.kind {
            Kind::Plain(attach) => {
                let tag = if write { pool.write(*attach, offset, len)? } else { pool.read(*attach, offset, len)? };
                self.tags.insert(tag.0, id);
            }
            Kind::Cow(cow) => cow.submit(pool, id, write, offset, len)?,
        }
        Ok(())
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.started.len()
    }

    /// Waits for ends, at most until `deadline` (without one: for at least one end), and appends them.
    pub fn wait(&mut self, pool: &mut Pool, deadline: Option<Instant>, finished: &mut Vec<Finished>) -> Result<()> {
        let before = finished.len();
        while finished.len() == before {
            for done in pool.turn(deadline)? {
                let id = match &mut self.kind {
                    Kind::Plain(_) => self.tags.remove(&done.tag.0),
                    Kind::Cow(cow) => cow.on_done(pool, done)?,
                };
                if let Some(id) = id {
                    let start = self.started.remove(&id).expect("what ends was started");
                    finished.push(Finished { id, latency_us: start.elapsed().as_secs_f64() * 1e6 });
                }
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                break;
            }
        }
        Ok(())
    }

    /// Waits until nothing is in flight.
    pub fn drain(&mut self, pool: &mut Pool, finished: &mut Vec<Finished>) -> Result<()> {
        while self.in_flight() > 0 {
            self.wait(pool, None, finished)?;
        }
        Ok(())
    }
}

/// The volumes behind the three disks: equal in size and content.
pub struct Bed {
    size_bytes: u64,
    populated: Vec<bool>,
    regular: AttachId,
    superposed: &'static str,
    cow_parent: AttachId,
    turn: u32,
}

/// Three fresh disks and what it takes to undo them.
pub struct Fresh {
    disks: [Disk; 3],
    super_id: SuperId,
    child: AttachId,
    cow_child: (String, AttachId),
}

impl Bed {
    /// Makes three volumes of `populated.len()` objects and fills those that are populated, whole.
    pub fn new(pool: &mut Pool, populated: Vec<bool>) -> Result<Bed> {
        let size_bytes = populated.len() as u64 * OBJECT_BYTES;
        let mut attached = Vec::new();
        for name in ["regular", "superposed", "cow-parent"] {
            pool.create_volume(name, size_bytes)?;
            let attach = pool.attach(name)?;
            populate(pool, attach, &populated).with_context(|| format!("populate {name}"))?;
            pool.flush(attach)?;
            attached.push(attach);
        }
        // The primary of the superposed volume stays away: that is what made somebody call super.
        pool.detach(attached[1])?;
        pool.checkpoint()?;
        Ok(Bed {
            size_bytes,
            populated,
            regular: attached[0],
            superposed: "superposed",
            cow_parent: attached[2],
            turn: 0,
        })
    }

    /// A fresh disk of each kind.
    pub fn fresh(&mut self, pool: &mut Pool) -> Result<Fresh> {
        self.turn += 1;
        let (super_id, lease) = pool.superpose(self.superposed)?;
        let child = pool.attach_with(self.superposed, lease)?;
        let name = format!("cow-child-{}", self.turn);
        pool.create_volume(&name, self.size_bytes)?;
        let cow_child = pool.attach(&name)?;
        let cow = CowDisk::new(self.cow_parent, cow_child, self.populated.clone());
        let disks = [Kind::Plain(self.regular), Kind::Plain(child), Kind::Cow(Box::new(cow))].map(Disk::new);
        Ok(Fresh { disks, super_id, child, cow_child: (name, cow_child) })
    }

    /// Undoes them: the child is aborted, the copy deleted, and the pool has cleaned up.
    pub fn undo(&mut self, pool: &mut Pool, fresh: Fresh) -> Result<()> {
        pool.detach(fresh.child)?;
        pool.abort(self.superposed, fresh.super_id)?;
        pool.detach(fresh.cow_child.1)?;
        pool.delete(&fresh.cow_child.0)?;
        pool.settle()
    }
}

impl Fresh {
    /// One of the disks.
    pub fn disk(&mut self, variant: Variant) -> &mut Disk {
        &mut self.disks[variant as usize]
    }

    /// Bytes the baseline copied.
    pub fn cow_copied_bytes(&self) -> u64 {
        match &self.disks[Variant::Cow as usize].kind {
            Kind::Cow(cow) => cow.copied_bytes(),
            Kind::Plain(_) => 0,
        }
    }
}

/// Writes every populated object whole, a few at a time.
fn populate(pool: &mut Pool, attach: AttachId, populated: &[bool]) -> Result<()> {
    let mut disk = Disk::new(Kind::Plain(attach));
    let mut finished = Vec::new();
    for (object, _) in populated.iter().enumerate().filter(|(_, p)| **p) {
        disk.submit(pool, object as u64, true, object as u64 * OBJECT_BYTES, OBJECT_BYTES as u32)?;
        while disk.in_flight() >= 16 {
            disk.wait(pool, None, &mut finished)?;
        }
    }
    disk.drain(pool, &mut finished)
}
