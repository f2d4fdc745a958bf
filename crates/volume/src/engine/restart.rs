//! After any other panic: the engine is started again from its journal, and nothing that was acknowledged is lost.
//!
//! Owns: what outlives a failed engine (the journal's tail in memory, attachments, answers that are due). Never: takes a
//! map page, a bitmap or a record of the failed engine over.
//! Invariant: a change of the tail is used only after the drive was asked for the data that it names, in order.

use super::Engine;
use super::commit::Waiter;
use super::data::BLOCK;
use super::keys::Key;
use super::lease::Attach;
use super::move_write::Reached;
use super::open::{OpenError, data_arrived, or_too_new};
use super::slots::{IoUse, Work};
use crate::catalog::Lease;
use crate::codec::Reader;
use crate::device::{BlockDev, DriveError};
use crate::fault::Faults;
use crate::journal::{Change, read_change};
use crate::mem::{Buf, Mem};
use crate::op::{AdminOp, AdminReply, Alarm, AlarmKind, AttachId, Out, Tag, Ticket};
use segue_types::{BLOCK_BYTES, Nanos, TaskKind, VolumeId};

/// Changes that were acknowledged, or are about to be, and that the journal on the drive may not have.
#[derive(Default)]
pub(crate) struct Tail {
    /// Number of the record that was on its way, and its changes.
    flying: Option<(u64, Vec<u8>)>,
    /// Changes since.
    pending: Vec<u8>,
    verified: u64,
    alarms: Vec<Alarm>,
}

/// What a failed engine leaves: enough to start the next one.
///
/// Keep it until every I/O that the failed engine had submitted has ended ([`Salvage::io_ended`]), then hand it to
/// [`Engine::restart`].
pub struct Salvage {
    options: super::EngineOptions,
    slice: u64,
    uses: Vec<Option<IoUse>>,
    holdings: Vec<Buf>,
    tail: Tail,
    attaches: Vec<Attach>,
    keys: Vec<Option<Key>>,
    /// Writes whose bytes lie encrypted in their clients' buffers.
    sealed: Vec<(AttachId, u64, Buf, usize)>,
    leases: Vec<(VolumeId, Lease)>,
    applied: Vec<Tag>,
    admin: Vec<(Tag, AdminReply)>,
    admin_again: Vec<(Tag, AdminOp)>,
    scrubbing: bool,
    reached: Option<Reached>,
    closing: bool,
    /// Why the pool cannot be trusted any more.
    broken: Option<i32>,
    counts: Counts,
    faults: Faults,
    now: Nanos,
}

/// Counters that go on.
#[derive(Clone, Copy)]
struct Counts {
    integrity_errors: u64,
    bytes_copied: u64,
    commits: u64,
    checkpoints: u64,
}

/// What the driver must do after a restart, and what it may tell.
pub struct Restarted {
    /// The new engine. Every attachment is open in it under its old handle, in its old epoch.
    pub engine: Engine,
    /// Requests that had been applied and waited to become durable: they are. Answer them Ok.
    pub done: Vec<Tag>,
    /// Admin operations likewise, with their answers.
    pub admin: Vec<(Tag, AdminReply)>,
    /// Admin operations to be given to the new engine again. Client requests that have no answer are the driver's to
    /// give again, in the order they came.
    pub admin_again: Vec<(Tag, AdminOp)>,
    /// Blocks of the tail whose data was compared with its checksum.
    pub verified: u64,
    /// Blocks of the tail whose data does not match: reads of them fail from now on.
    pub alarms: Vec<Alarm>,
}

impl Salvage {
    /// An I/O of the failed engine ended.
    ///
    /// # Panics
    /// When the ticket is not in flight.
    pub fn io_ended(&mut self, ticket: Ticket, errno: i32) {
        let used = self.uses[ticket.0 as usize].take().expect("each I/O completes once");
        let vital = matches!(used, IoUse::Record | IoUse::CommitFlush | IoUse::CkptPage { .. } | IoUse::Ckpt);
        // A failed flush may have taken data with it that was acknowledged, and the next one will not tell.
        if errno != 0 && vital {
            self.broken = self.broken.or(Some(errno));
        }
    }

    /// Gives the failed engine's memory back. Only when none of its I/O is in flight, and once.
    pub fn free(&mut self, mem: &mut Mem) {
        for buf in self.holdings.drain(..) {
            mem.free(buf);
        }
    }

    /// Forgets what was not in the journal: for tests that must see that this loses acknowledged writes.
    #[doc(hidden)]
    pub fn forget_tail(&mut self) {
        self.tail = Tail::default();
    }
}

impl Engine {
    /// Takes what outlives the engine out of it. The engine is good for nothing afterwards but to be dropped.
    pub fn salvage(&mut self) -> Salvage {
        let settled = self.recover.settled;
        let (mut flying, mut pending) = self.log.take();
        let next = self.log.record();
        if settled.record == next {
            pending.truncate(settled.log_bytes);
        } else {
            // The record was begun by the unit that failed; its I/O was taken back, so its changes are still pending.
            assert_eq!(settled.record + 1, next, "a unit begins at most one record");
            flying.truncate(settled.log_bytes);
            pending.clear();
        }
        let flying = (!flying.is_empty()).then_some((next - 1, flying));
        let (attaches, leases, again) = match self.recover.admin.take().map(|undo| *undo) {
            Some(undo) => (undo.attaches, undo.leases, Some((undo.tag, undo.op))),
            None => (std::mem::take(&mut self.attaches), self.ephemeral_leases(), None),
        };
        let (mut applied, mut admin) = (Vec::new(), Vec::new());
        for waiter in self.commit.take_waiters(settled.waiters) {
            match waiter {
                Waiter::Op(op) => applied.extend((self.ops[op].work == Work::Client).then_some(self.ops[op].tag)),
                Waiter::Admin(tag, reply) => admin.push((tag, reply)),
                // The tail has their changes, and the home asks the new engine what it has.
                Waiter::Leased(_) | Waiter::Returned(_) => {}
            }
        }
        // Whoever waits for a checkpoint gets one: the restart writes it.
        let undone = again.as_ref().map(|(tag, _)| *tag);
        let waiters = self.ckpt.take_waiters().filter(|tag| Some(*tag) != undone);
        admin.extend(waiters.map(|tag| (tag, AdminReply::Done)));
        let moves = self.move_read.take_over().into_iter().chain(self.move_write.take_over());
        let moves = moves.filter(|(tag, _)| Some(*tag) != undone).map(|(tag, op)| (tag, AdminOp::Move(op)));
        let admin_again = again.into_iter().chain(moves).chain(self.admin_queue.drain(..)).collect();
        Salvage {
            options: self.options,
            slice: self.layout.slice,
            uses: self.ios.take_uses(),
            holdings: std::mem::take(&mut self.holdings),
            tail: Tail { flying, pending, ..Tail::default() },
            attaches,
            keys: std::mem::take(&mut self.keys),
            sealed: self.ops.sealed(),
            leases,
            applied,
            admin,
            admin_again,
            scrubbing: self.scrub.is_on(),
            reached: self.move_write.reached(),
            closing: self.closing,
            broken: self.poisoned,
            counts: Counts {
                integrity_errors: self.integrity_errors,
                bytes_copied: self.bytes_copied,
                commits: self.commit.commits,
                checkpoints: self.ckpt.complete,
            },
            faults: self.faults.clone(),
            now: self.now,
        }
    }

    /// Opens the pool again after its engine failed: from the drive, and from what the failed engine left. Ends with
    /// a checkpoint, so that the new engine owes nothing to the old one's memory.
    ///
    /// # Errors
    /// [`OpenError`]: the pool cannot be served any more; take it out of service. `mem` is as before the failed engine.
    pub fn restart(dev: &mut dyn BlockDev, mem: &mut Mem, mut salvage: Salvage) -> Result<Restarted, OpenError> {
        salvage.free(mem);
        if let Some(errno) = salvage.broken {
            return Err(DriveError { errno }.into());
        }
        salvage.faults.point(TaskKind::Restart, "before the load", true);
        // The record and the superblock that were on their way are durable from here on, or not there at all.
        dev.flush()?;
        let (mut engine, replayed) = Engine::load(dev, mem, &salvage.options, salvage.slice, Some(&mut salvage.tail))?;
        let ended = engine.take_over(&mut salvage, replayed, dev, mem);
        if let Err(error) = ended {
            engine.release(mem);
            return Err(error);
        }
        let Salvage { applied: done, admin, admin_again, tail, .. } = salvage;
        Ok(Restarted { engine, done, admin, admin_again, verified: tail.verified, alarms: tail.alarms })
    }

    fn take_over(
        &mut self,
        salvage: &mut Salvage,
        replayed: bool,
        dev: &mut dyn BlockDev,
        mem: &mut Mem,
    ) -> Result<(), OpenError> {
        salvage.faults.point(TaskKind::Restart, "before the checkpoint", false);
        if replayed {
            self.checkpoint_now(dev, mem)?;
        }
        salvage.faults.point(TaskKind::Restart, "before the attachments", false);
        self.attaches = std::mem::take(&mut salvage.attaches);
        self.attaches.iter_mut().for_each(Attach::none_in_flight);
        self.keys = std::mem::take(&mut salvage.keys);
        for (attach, first, buf, count) in salvage.sealed.drain(..) {
            for i in 0..count {
                self.decrypt(attach, first + i as u64, mem.get_mut(buf.part(i * BLOCK, BLOCK)));
            }
        }
        for (id, lease) in salvage.leases.drain(..) {
            if let Some(volume) = self.catalog.volumes.get_mut(&id).filter(|v| v.primary.lease.is_none()) {
                volume.primary.lease = Some(lease);
            }
        }
        self.move_write.restore(salvage.reached.take());
        if salvage.scrubbing {
            self.start_scrub();
        }
        let counts = salvage.counts;
        self.closing = salvage.closing;
        self.integrity_errors += counts.integrity_errors + salvage.tail.alarms.len() as u64;
        self.bytes_copied = counts.bytes_copied;
        self.commit.commits += counts.commits;
        self.ckpt.complete += counts.checkpoints;
        self.now = salvage.now;
        self.faults = salvage.faults.clone();
        Ok(())
    }

    /// Applies the tail behind the records of the drive. True when it held anything.
    pub(crate) fn replay_tail(
        &mut self,
        tail: &mut Tail,
        dev: &mut dyn BlockDev,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<bool, OpenError> {
        // The record that was on its way may have arrived; then it has been replayed.
        let flying = tail.flying.take().filter(|(number, _)| *number >= self.commit.next_sequence);
        let mut bytes = flying.map_or(Vec::new(), |(_, bytes)| bytes);
        bytes.append(&mut tail.pending);
        let damaged = OpenError::Journal { sequence: self.commit.next_sequence };
        let mut r = Reader::new(&bytes);
        while !r.is_empty() {
            let change = read_change(&mut r).map_err(|e| or_too_new(e, damaged))?;
            self.verify_tail(&change, tail, dev, mem)?;
            self.apply(change, true, damaged, dev, mem, out)?;
            // Nothing that the tail frees is used again before the checkpoint behind it.
            self.space.replayed(false, &mut self.alloc);
        }
        Ok(!bytes.is_empty())
    }

    /// Asks the drive for the data of a change. What does not match stays in the map all the same: a read of it must
    /// fail, not find what was there before.
    fn verify_tail(
        &mut self,
        change: &Change,
        tail: &mut Tail,
        dev: &mut dyn BlockDev,
        mem: &mut Mem,
    ) -> Result<(), OpenError> {
        let Change::Map { layer, block, at, generation, crcs } = change else { return Ok(()) };
        for (i, crc) in crcs.iter().enumerate() {
            let (block, at) = (block + i as u64, at + i as u64);
            tail.verified += 1;
            if self.alloc.is_data_block(at) && !data_arrived(dev, mem, at, *generation, block, *crc)? {
                tail.alarms.push(Alarm {
                    kind: AlarmKind::Data { layer: *layer, block },
                    offset: at * BLOCK_BYTES,
                    expected_crc32c: *crc,
                    found_crc32c: 0,
                    generation: *generation,
                });
            }
        }
        Ok(())
    }
}
