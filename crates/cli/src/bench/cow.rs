//! The baseline: a child that copies a whole 64 KiB object before its first write into it, as the paper's prototype does.
//!
//! Owns: which objects the child has, the copies, their count. Never: compares itself with anything.
//! Invariant: an object of the child appears whole, with the copied bytes and the new ones in one write, and requests
//! to one object do not overtake the copy of that object.

use super::pool::{Done, Pool};
use super::trace::{OBJECT_BYTES, ObjectPart, object_parts};
use anyhow::Result;
use segue_volume::mem::Buf;
use segue_volume::op::{AttachId, Tag};
use std::collections::{BTreeMap, VecDeque};

/// What the child has of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    /// Nothing: reads go to the parent.
    Nothing,
    /// It is being copied or first written; others wait.
    Coming,
    /// All of it.
    Whole,
}

/// A part of a request that waits for the drive.
enum Stage {
    /// A read, or a write into an object the child has.
    Plain { id: u64 },
    /// The parent's object comes in; the new bytes will be laid over it.
    CopyIn { id: u64, part: ObjectPart },
    /// The first write of an object goes out.
    First { id: u64, object: usize },
}

struct Waiting {
    id: u64,
    write: bool,
    part: ObjectPart,
}

/// A child by copy-on-write of 64 KiB objects, on two volumes of one pool.
pub struct CowDisk {
    parent: AttachId,
    child: AttachId,
    populated: Vec<bool>,
    has: Vec<Has>,
    stages: BTreeMap<u64, Stage>,
    queues: BTreeMap<usize, VecDeque<Waiting>>,
    /// Parts of each request that are not done.
    open_parts: BTreeMap<u64, u32>,
    copied_bytes: u64,
}

impl CowDisk {
    /// A child without objects, over `parent`, of which `populated` tells the objects that hold data.
    pub fn new(parent: AttachId, child: AttachId, populated: Vec<bool>) -> CowDisk {
        let has = vec![Has::Nothing; populated.len()];
        CowDisk {
            parent,
            child,
            populated,
            has,
            stages: BTreeMap::new(),
            queues: BTreeMap::new(),
            open_parts: BTreeMap::new(),
            copied_bytes: 0,
        }
    }

    /// Bytes copied so far.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Starts a request.
    pub fn submit(&mut self, pool: &mut Pool, id: u64, write: bool, offset: u64, len: u32) -> Result<()> {
        let parts: Vec<ObjectPart> = object_parts(offset, len).collect();
        self.open_parts.insert(id, parts.len() as u32);
        for part in parts {
            self.start(pool, Waiting { id, write, part })?;
        }
        Ok(())
    }

    fn start(&mut self, pool: &mut Pool, job: Waiting) -> Result<()> {
        let Waiting { id, write, part } = job;
        match (self.has[part.object], write) {
            (Has::Coming, _) => {
                self.queues.entry(part.object).or_default().push_back(job);
                return Ok(());
            }
            (Has::Nothing, false) => {
                let tag = pool.read(self.parent, part.offset, part.len)?;
                self.stages.insert(tag.0, Stage::Plain { id });
            }
            (Has::Whole, false) => {
                let tag = pool.read(self.child, part.offset, part.len)?;
                self.stages.insert(tag.0, Stage::Plain { id });
            }
            (Has::Whole, true) => {
                let tag = pool.write(self.child, part.offset, part.len)?;
                self.stages.insert(tag.0, Stage::Plain { id });
            }
            (Has::Nothing, true) => self.first_write(pool, id, part)?,
        }
        Ok(())
    }

    /// The first touch of an object: a copy, unless there is nothing to copy or all of it is written.
    fn first_write(&mut self, pool: &mut Pool, id: u64, part: ObjectPart) -> Result<()> {
        self.has[part.object] = Has::Coming;
        if self.populated[part.object] && !part.is_whole() {
            let tag = pool.read_kept(self.parent, part.object as u64 * OBJECT_BYTES, OBJECT_BYTES as u32)?;
            self.stages.insert(tag.0, Stage::CopyIn { id, part });
        } else {
            let tag = pool.write(self.child, part.offset, part.len)?;
            self.stages.insert(tag.0, Stage::First { id, object: part.object });
        }
        Ok(())
    }

    /// Takes what the drive has done; gives the request that is whole by it, if one is.
    pub fn on_done(&mut self, pool: &mut Pool, done: Done) -> Result<Option<u64>> {
        let Some(stage) = self.stages.remove(&done.tag.0) else { return Ok(None) };
        match stage {
            Stage::Plain { id } => Ok(self.part_done(id)),
            Stage::CopyIn { id, part } => {
                self.copied_bytes += OBJECT_BYTES;
                let tag = self.write_merged(pool, part, done.kept)?;
                self.stages.insert(tag.0, Stage::First { id, object: part.object });
                Ok(None)
            }
            Stage::First { id, object } => {
                self.has[object] = Has::Whole;
                for job in self.queues.remove(&object).unwrap_or_default() {
                    self.start(pool, job)?;
                }
                Ok(self.part_done(id))
            }
        }
    }

    /// Lays the client's bytes over the copied object and writes all of it at once.
    fn write_merged(&mut self, pool: &mut Pool, part: ObjectPart, object: Buf) -> Result<Tag> {
        let base = part.object as u64 * OBJECT_BYTES;
        pool.fill(object.part((part.offset - base) as usize, part.len as usize));
        pool.write_from(self.child, base, object)
    }

    fn part_done(&mut self, id: u64) -> Option<u64> {
        let open = self.open_parts.get_mut(&id).expect("a part belongs to an open request");
        *open -= 1;
        if *open > 0 {
            return None;
        }
        self.open_parts.remove(&id);
        Some(id)
    }
}
