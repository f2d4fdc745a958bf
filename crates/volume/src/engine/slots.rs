//! What is in flight: operations and I/O, in slabs that are reused.
//!
//! Owns: the slots and their free lists. Never: decides anything.
//! Invariant: a ticket names one I/O from submission to completion, an operation slot one operation until its reply.

use crate::cache::NIL;
use crate::entry::Entry;
use crate::mem::Buf;
use crate::op::{AttachId, MAX_REQUEST_BYTES, Op, Tag, Ticket};
use std::ops::{Index, IndexMut};

/// Most blocks one request touches: 256 KiB that begin inside a block.
pub(crate) const OP_BLOCKS_MAX: usize = (MAX_REQUEST_BYTES / 4096) as usize + 1;

/// Whose operation it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Client,
    Clean,
    Scrub,
    MoveRead,
    MoveWrite,
}

/// How far an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Nothing done yet: may start over.
    Start,
    /// Data is being read for the client.
    Reading,
    /// Unaligned edges are being read.
    EdgeReading,
    /// Blocks `done..count` of `entries` are allocated and being written.
    Writing,
    /// Blocks `done..count` are written and wait to be put into the map.
    Installing,
    /// Blocks from `punched` on wait to be punched (or written as zeroes).
    Punching,
    /// Applied; waits for a commit.
    Committing,
}

/// An operation.
pub(crate) struct OpSlot {
    pub(crate) work: Work,
    pub(crate) tag: Tag,
    pub(crate) attach: AttachId,
    pub(crate) op: Op,
    pub(crate) stage: Stage,
    /// Next in a page's list of waiters.
    pub(crate) next: u32,
    /// Its place in the list of operations that change blocks, or `NIL`.
    pub(crate) mutator: u32,
    /// I/O in flight.
    pub(crate) ios: u32,
    /// Errno of the first I/O that failed.
    pub(crate) errno: i32,
    /// Era in which its reads began.
    pub(crate) era: u64,
    /// Whole blocks it covers (those a write touches): first and one past the last.
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// First block of the entries in use.
    pub(crate) cursor: u64,
    /// Next block to punch.
    pub(crate) punched: u64,
    /// Blocks covered only in part: which, how many, how many are done with, and whether they hold data.
    pub(crate) edge_blocks: [u64; 2],
    pub(crate) edge_live: [bool; 2],
    pub(crate) edges: u8,
    pub(crate) edge: u8,
    /// Entries in use, and how many of them are done with.
    pub(crate) count: u32,
    pub(crate) done: u32,
    pub(crate) edges_done: bool,
    /// The client's bytes are encrypted where they lie.
    pub(crate) sealed: bool,
    /// Times it panicked.
    pub(crate) tries: u8,
    pub(crate) scratch: [Buf; 2],
    pub(crate) entries: [Entry; OP_BLOCKS_MAX],
}

impl OpSlot {
    pub(crate) fn client(tag: Tag, attach: AttachId, op: Op) -> OpSlot {
        OpSlot {
            work: Work::Client,
            tag,
            attach,
            op,
            stage: Stage::Start,
            next: NIL,
            mutator: NIL,
            ios: 0,
            errno: 0,
            era: 0,
            first: 0,
            end: 0,
            cursor: 0,
            punched: 0,
            edge_blocks: [0; 2],
            edge_live: [false; 2],
            edges: 0,
            edge: 0,
            count: 0,
            done: 0,
            edges_done: false,
            sealed: false,
            tries: 0,
            scratch: [Buf::EMPTY; 2],
            entries: [Entry::ABSENT; OP_BLOCKS_MAX],
        }
    }

    pub(crate) fn background(work: Work) -> OpSlot {
        OpSlot { work, ..OpSlot::client(Tag(0), AttachId(NIL), Op::Flush) }
    }
}

/// The operations in flight.
pub(crate) struct Ops {
    slots: Vec<OpSlot>,
    free: Vec<u32>,
    background: usize,
}

impl Ops {
    /// Room for `n` before it must grow.
    pub(crate) fn new(n: usize) -> Ops {
        Ops { slots: Vec::with_capacity(n), free: Vec::with_capacity(n), background: 0 }
    }

    pub(crate) fn take(&mut self, slot: OpSlot) -> u32 {
        if slot.work != Work::Client {
            self.background += 1;
        }
        match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = slot;
                number
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// The buffers of clients' writes that were encrypted in place: whose, from which block on, and how many.
    pub(crate) fn sealed(&self) -> Vec<(AttachId, u64, Buf, usize)> {
        let sealed = |slot: &OpSlot| match slot.op {
            Op::Write { buf, .. } if slot.sealed && slot.work == Work::Client => {
                Some((slot.attach, slot.first, buf, (slot.end - slot.first) as usize))
            }
            _ => None,
        };
        let in_use = |number: &usize| !self.free.contains(&(*number as u32));
        (0..self.slots.len()).filter(in_use).filter_map(|number| sealed(&self.slots[number])).collect()
    }

    /// A slot for a client's operation. The entries of its last use stay: copying a kilobyte of them for each
    /// request would cost as much as the request itself.
    pub(crate) fn take_client(&mut self, tag: Tag, attach: AttachId, op: Op) -> u32 {
        let Some(number) = self.free.pop() else { return self.take(OpSlot::client(tag, attach, op)) };
        let slot = &mut self.slots[number as usize];
        (slot.work, slot.tag, slot.attach, slot.op, slot.stage) = (Work::Client, tag, attach, op, Stage::Start);
        (slot.next, slot.mutator, slot.ios, slot.errno, slot.era) = (NIL, NIL, 0, 0, 0);
        (slot.first, slot.end, slot.cursor, slot.punched) = (0, 0, 0, 0);
        (slot.edges, slot.edge, slot.edges_done, slot.sealed) = (0, 0, false, false);
        (slot.count, slot.done, slot.tries, slot.scratch) = (0, 0, 0, [Buf::EMPTY; 2]);
        number
    }

    pub(crate) fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    pub(crate) fn clients(&self) -> usize {
        self.slots.len() - self.free.len() - self.background
    }
}

impl Index<u32> for Ops {
    type Output = OpSlot;
    fn index(&self, number: u32) -> &OpSlot {
        &self.slots[number as usize]
    }
}

impl IndexMut<u32> for Ops {
    fn index_mut(&mut self, number: u32) -> &mut OpSlot {
        &mut self.slots[number as usize]
    }
}

/// What an I/O is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoUse {
    /// Data of an operation.
    Op(u32),
    /// A map page into this slot.
    Page(u32),
    /// A journal record.
    Record,
    /// The flush behind a record.
    CommitFlush,
    /// A map page of a checkpoint.
    CkptPage {
        slot: u32,
        buf: Buf,
    },
    /// Anything else of a checkpoint.
    Ckpt,
    /// A run of blocks of the scrub.
    Scrub {
        read: u32,
    },
    /// Blocks of a volume that moves away, or to this pool.
    MoveRead,
    MoveWrite,
}

/// The I/O in flight.
pub(crate) struct Ios {
    uses: Vec<Option<IoUse>>,
    free: Vec<u32>,
}

impl Ios {
    pub(crate) fn new(n: usize) -> Ios {
        Ios { uses: Vec::with_capacity(n), free: Vec::with_capacity(n) }
    }

    pub(crate) fn take(&mut self, used: IoUse) -> Ticket {
        match self.free.pop() {
            Some(number) => {
                self.uses[number as usize] = Some(used);
                Ticket(number)
            }
            None => {
                self.uses.push(Some(used));
                Ticket(self.uses.len() as u32 - 1)
            }
        }
    }

    /// Everything in flight, by ticket.
    pub(crate) fn take_uses(&mut self) -> Vec<Option<IoUse>> {
        std::mem::take(&mut self.uses)
    }

    pub(crate) fn give_back(&mut self, ticket: Ticket) -> IoUse {
        let used = self.uses[ticket.0 as usize].take().expect("each I/O completes once");
        self.free.push(ticket.0);
        used
    }
}
