//! Client requests: reads, writes, flushes, block status.
//!
//! Owns: the life of a read and of a write. Never: touches the journal's bytes or checkpoints.
//! Invariant: a write's blocks enter the map only after the drive holds them, and a read is checked before it is answered.

use super::commit::Waiter;
use super::map::Look;
use super::recover::Unit;
use super::slots::{IoUse, Stage};
use super::{Engine, Halt};
use crate::cache::NIL;
use crate::crc::data_crc;
use crate::entry::{Entry, FANOUT};
use crate::journal::put_map;
use crate::mem::{Buf, Mem};
use crate::op::{Alarm, AlarmKind, Extent, IoKind, MAX_REQUEST_BYTES, Op, Out, aligned_span};
use crate::superposition::{PrimaryAct, PrimaryVerdict};
use segue_types::{BLOCK_BYTES, IoStatus, LayerId, SECTOR_BYTES, TaskKind};

pub(crate) const BLOCK: usize = BLOCK_BYTES as usize;
/// Leaves a block status looks at before it answers with what it has.
const STATUS_LEAVES_MAX: u64 = 4096;

impl Engine {
    /// Starts or goes on with a client's operation.
    pub(crate) fn run_client(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        match self.ops[op].stage {
            Stage::Start => self.start_client(op, mem, out),
            Stage::Installing => self.install(op, mem, out),
            Stage::Punching => self.punch(op, mem, out),
            Stage::EdgeReading => self.edges_read(op, mem, out),
            Stage::Reading | Stage::Writing | Stage::Committing => unreachable!("nothing wakes these but I/O"),
        }
    }

    fn start_client(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        let request = self.ops[op].op;
        self.task_begins(task_of(request));
        let (head, size_bytes) = match self.checked(|engine| engine.admit(op, request)) {
            Ok(bound) => bound,
            Err(status) => {
                self.reply(op, status, 0, out);
                return Ok(());
            }
        };
        match request {
            Op::Read { offset, len, buf } => {
                if len == 0 {
                    self.reply(op, IoStatus::Ok, 0, out);
                    return Ok(());
                }
                self.start_read(op, head, offset, len, buf, mem, out)
            }
            Op::Write { offset, len, .. } => {
                self.ops[op].first = offset / BLOCK_BYTES;
                self.ops[op].end = (offset + u64::from(len)).div_ceil(BLOCK_BYTES);
                self.start_write(op, mem, out)
            }
            Op::Flush => {
                self.start_flush(op, out);
                Ok(())
            }
            Op::Discard { offset, len, .. } => {
                // A trim gives whole blocks back; what it covers only in part stays as it is.
                self.ops[op].first = offset.div_ceil(BLOCK_BYTES);
                self.ops[op].end = (offset + len) / BLOCK_BYTES;
                self.ops[op].edges_done = true;
                self.start_punch(op, mem, out)
            }
            Op::WriteZeroes { offset, len, .. } => {
                self.ops[op].first = offset.div_ceil(BLOCK_BYTES);
                self.ops[op].end = (offset + len) / BLOCK_BYTES;
                self.start_punch(op, mem, out)
            }
            Op::BlockStatus { offset, len, extents_max } => {
                self.block_status(op, head, offset, len, extents_max, mem, out)
            }
            Op::Cache { offset, len } => {
                for leaf in offset / (BLOCK_BYTES * FANOUT)..(offset + len).div_ceil(BLOCK_BYTES * FANOUT) {
                    self.resolve(head, leaf * FANOUT, mem, out)?;
                }
                self.reply(op, IoStatus::Ok, 0, out);
                debug_assert!(size_bytes >= offset + len);
                Ok(())
            }
        }
    }

    /// Whether the request may go on: its attachment, its range, the pool's state.
    fn admit(&self, op: u32, request: Op) -> Result<(LayerId, u64), IoStatus> {
        let bound = self.bind(self.ops[op].attach)?;
        if self.closing {
            return Err(IoStatus::Fenced);
        }
        let (offset, len, changes) = match request {
            Op::Read { offset, len, .. } => (offset, u64::from(len), false),
            Op::Write { offset, len, .. } => (offset, u64::from(len), true),
            Op::Flush => (0, 0, false),
            Op::Discard { offset, len, .. } | Op::WriteZeroes { offset, len, .. } => (offset, len, true),
            Op::BlockStatus { offset, len, .. } | Op::Cache { offset, len } => (offset, len, false),
        };
        let aligned = offset.is_multiple_of(SECTOR_BYTES) && len.is_multiple_of(SECTOR_BYTES);
        let inside = offset.checked_add(len).is_some_and(|end| end <= bound.size_bytes);
        if !aligned || !inside {
            return Err(IoStatus::Invalid);
        }
        if let Op::Read { len, buf, .. } | Op::Write { len, buf, .. } = request {
            let room = buf.len() >= aligned_span(offset, len);
            assert!(room && len <= MAX_REQUEST_BYTES, "the driver splits requests and sizes their buffers");
        }
        let permitted = matches!(request, Op::Flush) || (offset >= bound.range.0 && offset + len <= bound.range.1);
        if !permitted || (changes && bound.read_only) {
            return Err(IoStatus::ReadOnly);
        }
        if self.poisoned.is_some() && (changes || matches!(request, Op::Flush)) && !bound.read_only {
            return Err(IoStatus::Io);
        }
        Ok((bound.head, bound.size_bytes))
    }

    #[allow(clippy::too_many_arguments)]
    fn start_read(
        &mut self,
        op: u32,
        head: LayerId,
        offset: u64,
        len: u32,
        buf: Buf,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<(), Halt> {
        let first = offset / BLOCK_BYTES;
        let count = aligned_span(offset, len) / BLOCK;
        for i in 0..count {
            let entry = self.resolve(head, first + i as u64, mem, out)?;
            self.ops[op].entries[i] = entry;
        }
        self.recovery_point(TaskKind::Read, "found");
        let slot = &mut self.ops[op];
        (slot.first, slot.count, slot.stage) = (first, count as u32, Stage::Reading);
        let mut i = 0;
        let mut reads = 0;
        while i < count {
            let entry = self.ops[op].entries[i];
            if !entry.is_pointer() {
                mem.get_mut(buf.part(i * BLOCK, BLOCK)).fill(0);
                i += 1;
                continue;
            }
            let mut run = 1;
            while i + run < count && adjacent(self.ops[op].entries[i + run], entry, run) {
                run += 1;
            }
            let kind = IoKind::Read { offset: entry.block() * BLOCK_BYTES, buf: buf.part(i * BLOCK, run * BLOCK) };
            self.submit(IoUse::Op(op), kind, out);
            self.fault_point(TaskKind::Read, "reads half submitted");
            reads += 1;
            i += run;
        }
        self.ops[op].ios = reads;
        if reads == 0 {
            self.reply(op, IoStatus::Ok, 0, out);
        } else {
            self.ops[op].era = self.space.read_begins();
        }
        Ok(())
    }

    /// An I/O of a client's operation ended.
    pub(crate) fn op_io_done(&mut self, op: u32, errno: i32, mem: &mut Mem, out: &mut Out) {
        let slot = &mut self.ops[op];
        slot.ios -= 1;
        if errno != 0 && slot.errno == 0 {
            slot.errno = errno;
        }
        if slot.ios == 0 {
            self.ios_over(op, mem, out);
        }
    }

    /// Every I/O of a client's operation ended.
    pub(crate) fn ios_over(&mut self, op: u32, mem: &mut Mem, out: &mut Out) {
        self.recover.unit = Unit::Done(op);
        self.recovery_point(task_of(self.ops[op].op), "I/O over");
        let (stage, failed) = (self.ops[op].stage, self.ops[op].errno != 0);
        match stage {
            Stage::Reading => self.read_done(op, failed, mem, out),
            Stage::EdgeReading => {
                let era = self.ops[op].era;
                self.space.read_ends(era, &mut self.alloc);
                match failed || !self.edges_good(op, mem, out) {
                    true => self.fail_client(op, IoStatus::Io, out),
                    false => self.ready.push_back(op),
                }
            }
            Stage::Writing if failed => self.fail_client(op, IoStatus::Io, out),
            Stage::Writing => {
                self.ops[op].stage = Stage::Installing;
                self.run(op, mem, out);
            }
            _ => unreachable!("no I/O is out in this stage"),
        }
    }

    fn read_done(&mut self, op: u32, failed: bool, mem: &mut Mem, out: &mut Out) {
        let era = self.ops[op].era;
        self.space.read_ends(era, &mut self.alloc);
        if !self.stalled.is_empty() {
            // A write may wait for the blocks that this read kept from being reused.
            self.retry_stalled();
        }
        let Op::Read { buf, .. } = self.ops[op].op else { unreachable!("only reads read") };
        let mut good = !failed;
        if good {
            for i in 0..self.ops[op].count as usize {
                let (entry, block) = (self.ops[op].entries[i], self.ops[op].first + i as u64);
                if entry.is_pointer() && !self.verify(entry, op, block, mem.get(buf.part(i * BLOCK, BLOCK)), out) {
                    good = false;
                }
            }
        }
        if good {
            self.decrypt_read(op, buf, mem);
        }
        self.fault_point(TaskKind::Read, "before the reply");
        self.reply(op, if good { IoStatus::Ok } else { IoStatus::Io }, 0, out);
    }

    /// Decrypts what was read of an encrypted volume; holes are zeroes already.
    fn decrypt_read(&mut self, op: u32, buf: Buf, mem: &mut Mem) {
        let slot = &self.ops[op];
        for i in (0..slot.count as usize).filter(|i| slot.entries[*i].is_pointer()) {
            self.decrypt(slot.attach, slot.first + i as u64, mem.get_mut(buf.part(i * BLOCK, BLOCK)));
        }
    }

    /// Compares a block with its entry and raises the alarm when they differ.
    fn verify(&mut self, entry: Entry, op: u32, block: u64, bytes: &[u8], out: &mut Out) -> bool {
        let found = data_crc(entry.generation(), block, bytes);
        if found == entry.crc() {
            return true;
        }
        let layer = self.bind(self.ops[op].attach).map_or(LayerId(0), |b| b.head);
        self.data_alarm(layer, entry, block, found, out);
        false
    }

    pub(crate) fn data_alarm(&mut self, layer: LayerId, entry: Entry, block: u64, found: u32, out: &mut Out) {
        self.integrity_errors += 1;
        out.alarms.push(Alarm {
            kind: AlarmKind::Data { layer, block },
            offset: entry.block() * BLOCK_BYTES,
            expected_crc32c: entry.crc(),
            found_crc32c: found,
            generation: entry.generation(),
        });
    }

    /// Enters the list of changing operations unless it overlaps one that reads before it writes.
    /// `false`: it was put aside and will start over.
    pub(crate) fn enter_mutators(&mut self, op: u32, reads_first: bool) -> bool {
        if self.ops[op].mutator != NIL {
            return true;
        }
        let span = |o: &super::slots::OpSlot| {
            let (offset, len) = match o.op {
                Op::Write { offset, len, .. } => (offset, u64::from(len)),
                Op::Discard { offset, len, .. } | Op::WriteZeroes { offset, len, .. } => (offset, len),
                _ => (0, 0),
            };
            (offset / BLOCK_BYTES, (offset + len).div_ceil(BLOCK_BYTES))
        };
        let others = if reads_first { &self.mutators } else { &self.rmw };
        if !others.is_empty() {
            let (me, branch) = (span(&self.ops[op]), self.branch_of(self.ops[op].attach));
            for other in others {
                let o = &self.ops[*other];
                let them = span(o);
                if me.0 < them.1 && them.0 < me.1 && self.branch_of(o.attach) == branch {
                    self.conflicts.push_back(op);
                    return false;
                }
            }
        }
        self.ops[op].mutator = self.mutators.len() as u32;
        self.mutators.push(op);
        if reads_first {
            self.rmw.push(op);
        }
        true
    }

    pub(crate) fn start_write(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        let Op::Write { offset, len, buf, .. } = self.ops[op].op else { unreachable!("only writes write") };
        if len == 0 {
            return self.applied(op, out);
        }
        let end = offset + u64::from(len);
        let ragged = !offset.is_multiple_of(BLOCK_BYTES) || !end.is_multiple_of(BLOCK_BYTES);
        if !self.enter_mutators(op, ragged) {
            return Ok(());
        }
        if ragged && !self.ops[op].edges_done {
            return self.read_edges(op, offset, end, mem, out);
        }
        self.recovery_point(TaskKind::Write, "admitted");
        let (first, count) = (self.ops[op].first, self.ops[op].end - self.ops[op].first);
        self.write_blocks(op, first, buf, count, mem, out)
    }

    /// Allocates `count` blocks for the volume's blocks from `first` on and writes `buf` there.
    pub(crate) fn write_blocks(
        &mut self,
        op: u32,
        first: u64,
        buf: Buf,
        count: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<(), Halt> {
        if self.alloc.free() < count + self.reserve_blocks {
            // In a full pool an overwrite still goes on, out of what is kept back: it gives back as much as it takes.
            let enough = self.alloc.free() >= count + self.reserve_blocks - self.overwrite_blocks;
            if !enough || !self.overwrites(op, first, count, mem, out)? {
                return self.no_space(op, out);
            }
        }
        // From here on nothing makes the operation start over, so the bytes are encrypted once.
        self.encrypt(self.ops[op].attach, first, buf, count as usize, mem);
        self.ops[op].sealed = true;
        let generation = self.next_generation;
        self.next_generation += 1;
        let mut done = 0;
        let mut writes = 0;
        while done < count {
            let (at, run) = self.alloc.take_run(count - done).expect("room was checked");
            self.fault_point(TaskKind::Write, "allocated");
            for i in done..done + run {
                let crc = data_crc(generation, first + i, mem.get(buf.part(i as usize * BLOCK, BLOCK)));
                self.ops[op].entries[i as usize] = Entry::pointer(at + i - done, generation, crc);
            }
            let part = buf.part(done as usize * BLOCK, run as usize * BLOCK);
            self.submit(IoUse::Op(op), IoKind::Write { offset: at * BLOCK_BYTES, buf: part }, out);
            writes += 1;
            done += run;
        }
        let slot = &mut self.ops[op];
        (slot.cursor, slot.count, slot.done, slot.ios, slot.stage) = (first, count as u32, 0, writes, Stage::Writing);
        Ok(())
    }

    /// True when each of these blocks is held by the layer that the write goes to.
    fn overwrites(&mut self, op: u32, first: u64, count: u64, mem: &mut Mem, out: &mut Out) -> Result<bool, Halt> {
        let Ok(bound) = self.bind(self.ops[op].attach) else { return Ok(false) };
        self.log.room(256).inspect_err(|_| self.commit.want())?;
        for block in first..first + count {
            let layer = self.target_layer(bound.head, block / FANOUT, mem, out)?;
            let held = match self.look_leaf(layer, block / FANOUT, mem, out)? {
                Look::Page(slot) => Entry::get(mem.get(self.cache.slot(slot).buf), block % FANOUT).is_pointer(),
                _ => false,
            };
            if !held {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The pool is full: wait if space is on its way, else fail.
    fn no_space(&mut self, op: u32, out: &mut Out) -> Result<(), Halt> {
        if self.space.pending_blocks() > 0 && self.poisoned.is_none() {
            self.commit.want();
            self.ckpt.want_if(self.space.waits_for_checkpoint());
            return Err(Halt::Stall);
        }
        if self.poisoned.is_none() && self.lending.as_ref().is_some_and(|lending| lending.may_come(self.now)) {
            return Err(Halt::Stall);
        }
        self.reply(op, IoStatus::NoSpace, 0, out);
        Ok(())
    }

    /// Puts written blocks into the map.
    fn install(&mut self, op: u32, mem: &mut Mem, out: &mut Out) -> Result<(), Halt> {
        let bound = match self.bind(self.ops[op].attach) {
            Ok(bound) => bound,
            Err(status) => {
                self.fail_client(op, status, out);
                return Ok(());
            }
        };
        if self.poisoned.is_some() {
            self.fail_client(op, IoStatus::Io, out);
            return Ok(());
        }
        while self.ops[op].done < self.ops[op].count {
            self.recovery_point(TaskKind::Write, "before the map");
            let block = self.ops[op].cursor + u64::from(self.ops[op].done);
            let left = u64::from(self.ops[op].count - self.ops[op].done);
            let n = left.min(FANOUT - block % FANOUT);
            self.log.room(40 * n as usize + 128).inspect_err(|_| self.commit.want())?;
            let (layer, slot) = self.target_leaf(bound.head, block / FANOUT, mem, out)?;
            let from = self.ops[op].done as usize;
            self.put_entries(layer, slot, block, op, from, n as usize, mem);
            self.ops[op].done += n as u32;
        }
        let slot = &mut self.ops[op];
        match slot.op {
            Op::WriteZeroes { .. } => {
                slot.stage = Stage::Punching;
                self.zeroes_written(op, mem, out)
            }
            _ => self.applied(op, out),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn put_entries(&mut self, layer: LayerId, slot: u32, block: u64, op: u32, from: usize, n: usize, mem: &mut Mem) {
        let page = mem.get_mut(self.cache.slot(slot).buf);
        let mut fresh = 0;
        for i in 0..n {
            let entry = self.ops[op].entries[from + i];
            let index = (block + i as u64) % FANOUT;
            let old = Entry::get(page, index);
            if old.is_pointer() {
                self.space.free_data(old.block());
            } else {
                fresh += 1;
            }
            entry.put(page, index);
            if i == n / 2 {
                self.faults.point(TaskKind::Write, "map half changed", false);
            }
            // The bitmap's copy on the drive leaves blocks in flight out; this one is in flight no more.
            self.alloc.touch(entry.block());
        }
        self.catalog.layers.get_mut(&layer).expect("a head's layer exists").blocks += fresh;
        let mut i = 0;
        while i < n {
            let first = self.ops[op].entries[from + i];
            let mut run = 1;
            while i + run < n && follows(self.ops[op].entries[from + i + run], first, run) {
                run += 1;
            }
            let crcs = self.ops[op].entries[from + i..from + i + run].iter().map(|e| e.crc());
            let bytes = self.log.append(self.now);
            put_map(bytes, layer, block + i as u64, first.block(), first.generation(), crcs);
            self.faults.point(TaskKind::Write, "map half logged", false);
            i += run;
        }
    }

    /// A change is in the map: acknowledge it now, or when it is durable.
    pub(crate) fn applied(&mut self, op: u32, out: &mut Out) -> Result<(), Halt> {
        let fua = match self.ops[op].op {
            Op::Write { fua, .. } | Op::Discard { fua, .. } | Op::WriteZeroes { fua, .. } => fua,
            _ => false,
        };
        self.recovery_point(TaskKind::Write, "before the reply");
        let act = if fua { PrimaryAct::ChangeDurably } else { PrimaryAct::Change };
        let verdict = self.ask_race(self.ops[op].attach, act);
        match verdict {
            PrimaryVerdict::Refuse => {
                self.ops[op].stage = Stage::Committing;
                self.reply(op, IoStatus::Fenced, 0, out);
            }
            PrimaryVerdict::Acknowledge if !fua => self.reply(op, IoStatus::Ok, 0, out),
            _ => {
                self.ops[op].stage = Stage::Committing;
                self.wait_for_commit(Waiter::Op(op), out);
            }
        }
        Ok(())
    }

    fn start_flush(&mut self, op: u32, out: &mut Out) {
        let read_only = self.bind(self.ops[op].attach).is_ok_and(|b| b.read_only);
        if read_only {
            self.reply(op, IoStatus::Ok, 0, out);
            return;
        }
        match self.ask_race(self.ops[op].attach, PrimaryAct::Flush) {
            PrimaryVerdict::Refuse => self.reply(op, IoStatus::Fenced, 0, out),
            _ => {
                self.ops[op].stage = Stage::Committing;
                self.wait_for_commit(Waiter::Op(op), out);
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn block_status(
        &mut self,
        op: u32,
        head: LayerId,
        offset: u64,
        len: u64,
        extents_max: u32,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<(), Halt> {
        let base = out.extents.len();
        let walked = self.walk_status(head, offset, len, extents_max.max(1) as usize, base, mem, out);
        if let Err(halt) = walked {
            out.extents.truncate(base);
            return Err(halt);
        }
        let extents = (out.extents.len() - base) as u32;
        self.reply(op, IoStatus::Ok, extents, out);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn walk_status(
        &mut self,
        head: LayerId,
        offset: u64,
        len: u64,
        extents_max: usize,
        base: usize,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<(), Halt> {
        let end = offset + len;
        let mut at = offset;
        let mut leaves = 0;
        while at < end {
            let block = at / BLOCK_BYTES;
            let (hole, to_block) = if block.is_multiple_of(FANOUT) && self.nothing_here(head, block, mem, out)? > 0 {
                leaves += 1;
                (true, block + FANOUT * self.nothing_here(head, block, mem, out)?)
            } else {
                leaves += u64::from(block.is_multiple_of(FANOUT));
                (!self.resolve(head, block, mem, out)?.is_pointer(), block + 1)
            };
            let to = (to_block * BLOCK_BYTES).min(end);
            let full = out.extents.len() - base == extents_max || leaves > STATUS_LEAVES_MAX;
            match out.extents[base..].last_mut() {
                Some(last) if last.hole == hole => last.len += to - at,
                _ if full => break,
                _ => out.extents.push(Extent { len: to - at, hole }),
            }
            at = to;
            if leaves > STATUS_LEAVES_MAX && to_block.is_multiple_of(FANOUT) {
                break;
            }
        }
        Ok(())
    }

    /// How many whole leaves from this block on have no page in any layer (0 when the first has one).
    pub(crate) fn nothing_here(
        &mut self,
        head: LayerId,
        block: u64,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<u64, Halt> {
        let leaf = block / FANOUT;
        let mut least = u64::MAX;
        let mut layer = Some(head);
        while let Some(id) = layer {
            match self.look_leaf(id, leaf, mem, out)? {
                Look::Page(_) => return Ok(0),
                Look::Hole => return Ok(least.min(1)),
                Look::Nothing(level) => {
                    let leaves = 1u64 << (8 * level);
                    least = least.min(leaves - leaf % leaves);
                }
            }
            layer = self.catalog.layers.get(&id).and_then(|l| l.parent);
        }
        Ok(least)
    }
}

/// Whose faults a client's operation has.
pub(crate) fn task_of(op: Op) -> TaskKind {
    match op {
        Op::Read { .. } | Op::BlockStatus { .. } | Op::Cache { .. } => TaskKind::Read,
        Op::Write { .. } | Op::Discard { .. } | Op::WriteZeroes { .. } => TaskKind::Write,
        Op::Flush => TaskKind::Journal,
    }
}

/// True when `entry` lies `run` blocks after `first` on the drive.
fn adjacent(entry: Entry, first: Entry, run: usize) -> bool {
    entry.is_pointer() && entry.block() == first.block() + run as u64
}

/// The same, and written together: such a run is one journal entry.
fn follows(entry: Entry, first: Entry, run: usize) -> bool {
    adjacent(entry, first, run) && entry.generation() == first.generation()
}
