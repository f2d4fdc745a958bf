//! Formatting a drive, opening a pool, and replaying its journal.
//!
//! Owns: the order in which a pool comes to life. Never: serves a request before the replay is checkpointed.
//! Invariant: opening the same drive twice without writes between gives the same pool.

use super::checkpoint::{BitmapPage, Checkpoint, STAGE_BYTES};
use super::clean::Clean;
use super::commit::{Commit, Log};
use super::data::BLOCK;
use super::lending::Lending;
use super::move_read::MoveRead;
use super::move_write::MoveWrite;
use super::punch::ZERO_RUN_BLOCKS;
use super::recover::Recover;
use super::restart::Tail;
use super::scrub::{SCRUB_BLOCKS, Scrub};
use super::slots::{Ios, OP_BLOCKS_MAX, Ops};
use super::space::Space;
use super::{Engine, Halt};
use crate::alloc::Alloc;
use crate::cache::{Cache, PageKey};
use crate::catalog::{Catalog, GROUP_MAX};
use crate::codec::{Malformed, Reader, Writer};
use crate::crc::{data_crc, plain_crc};
use crate::device::{BlockDev, DriveError};
use crate::entry::{Entry, FANOUT};
use crate::fault::Faults;
use crate::journal::{Change, HEADER_BYTES, Header, read_change};
use crate::layout::{
    FORMAT_VERSION, Layout, POOL_BYTES_MAX, POOL_BYTES_MIN, RECORD_BYTES_MAX, SLICES_MAX, Superblock, SuperblockError,
};
use crate::mem::{Buf, MAX_BUF_BYTES, Mem};
use crate::op::{CHUNK_BLOCKS, Event, IoKind, Out};
use segue_types::{BLOCK_BYTES, LayerId};
use std::collections::VecDeque;

/// Fewest pages a cache can work with: 4 MiB.
const CACHE_PAGES_MIN: usize = 1024;
const SCRATCH_BLOCKS: usize = 32;
/// Generations skipped at each open, past any that a write in flight may have used.
const GENERATION_SKIP: u64 = 1 << 20;

/// How to open a pool.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Bytes of map pages kept in memory. At least 4 MiB are used.
    pub cache_bytes: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { cache_bytes: 16 << 20 }
    }
}

/// How to format a drive.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// The pool's identity, drawn by the caller. Never use one twice: it is what tells old journal records apart.
    pub uuid: [u8; 16],
    /// Overwrite a pool that is already there.
    pub force: bool,
}

/// Why a drive was not formatted. It was left as it was except after a drive error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The drive's size is out of range.
    #[error("a pool needs a drive of {POOL_BYTES_MIN} to {POOL_BYTES_MAX} bytes, this one has {0}")]
    Size(u64),
    /// The drive cannot be divided so: take fewer slices.
    #[error(
        "a drive has 1 to {SLICES_MAX} slices of at least {POOL_BYTES_MIN} bytes each, {slices} do not fit {bytes} bytes"
    )]
    Slices {
        /// As asked.
        slices: u64,
        /// What the drive has.
        bytes: u64,
    },
    /// There is a pool on it already.
    #[error("the drive holds a pool already; format with force to destroy it")]
    Exists,
    /// The drive failed.
    #[error("format the drive")]
    Drive(#[from] DriveError),
}

/// Why a pool could not be opened. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No pool, or one this program cannot read.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The drive failed.
    #[error("read the pool")]
    Drive(#[from] DriveError),
    /// The checkpoint's root does not match its checksum or makes no sense.
    #[error("the checkpoint root is damaged (offset {offset} bytes)")]
    Root {
        /// Where on the drive, bytes.
        offset: u64,
    },
    /// A page of the allocation bitmap does not match its checksum.
    #[error("allocation bitmap page {page} is damaged")]
    Bitmap {
        /// Which page.
        page: u64,
    },
    /// A journal record that was durable does not match its checksum, or makes no sense.
    #[error("journal record {sequence} is damaged: what was promised after it would be lost")]
    Journal {
        /// Its number.
        sequence: u64,
    },
    /// A volume has a setting that a newer version wrote.
    #[error("a volume has a setting (number {tag}) that this program does not know: use a newer segue")]
    Setting {
        /// Its number in the format.
        tag: u8,
    },
    /// A map page that the replay needs is damaged.
    #[error("a map page is damaged; see `segue pool check`")]
    Map,
    /// The memory region is too small: see [`Engine::mem_bytes`].
    #[error("the memory region is too small for the pool's cache")]
    Memory,
}

impl Engine {
    /// Bytes of [`Mem`] that opening a pool with these options may take from the region.
    ///
    /// A pool last used with a larger cache takes as much again, so give the region some room.
    pub fn mem_bytes(options: &EngineOptions) -> u64 {
        let pages = (options.cache_bytes / BLOCK_BYTES).max(CACHE_PAGES_MIN as u64);
        let fixed = RECORD_BYTES_MAX + STAGE_BYTES as u64 + (SCRUB_BLOCKS as u64) * BLOCK_BYTES;
        let moves = 2 * CHUNK_BLOCKS as u64 * BLOCK_BYTES;
        let small = moves + (SCRATCH_BLOCKS as u64 + ZERO_RUN_BLOCKS) * BLOCK_BYTES;
        (pages + pages / 2) * BLOCK_BYTES + fixed + small + 2 * MAX_BUF_BYTES as u64
    }

    /// Makes an empty pool on a drive.
    ///
    /// # Errors
    /// [`FormatError`] says what to do.
    pub fn format(dev: &mut dyn BlockDev, options: &FormatOptions) -> Result<(), FormatError> {
        Engine::format_sliced(dev, options, 1)
    }

    /// Makes an empty pool of 1 to [`SLICES_MAX`] slices on a drive. Each slice has its own journal and can be served by
    /// its own core; free space is lent to them in extents.
    ///
    /// # Errors
    /// [`FormatError`] says what to do.
    pub fn format_sliced(dev: &mut dyn BlockDev, options: &FormatOptions, slices: u64) -> Result<(), FormatError> {
        let capacity = dev.capacity_bytes();
        Layout::for_capacity(capacity).ok_or(FormatError::Size(capacity))?;
        let layout_of = |slice| Layout::of_slice(capacity, slices, slice);
        layout_of(0).ok_or(FormatError::Slices { slices, bytes: capacity })?;
        let layouts: Vec<Layout> = (0..slices).filter_map(layout_of).collect();
        let mut mem = Mem::new(MAX_BUF_BYTES);
        let buf = mem.alloc(BLOCK).expect("a fresh region has a page");
        for slot in 0..2 {
            dev.read(slot * BLOCK_BYTES, mem.get_mut(buf))?;
            let old = Superblock::decode(mem.get(buf));
            if !options.force && !matches!(old, Err(SuperblockError::NotAPool)) {
                return Err(FormatError::Exists);
            }
        }
        // The old superblocks go first, so that a crash in between leaves no pool rather than half of two.
        mem.get_mut(buf).fill(0);
        for layout in &layouts {
            dev.write(layout.superblock(0) * BLOCK_BYTES, mem.get(buf))?;
            dev.write(layout.superblock(1) * BLOCK_BYTES, mem.get(buf))?;
        }
        dev.flush()?;
        // The first slice comes last: without it there is no pool.
        for layout in layouts.iter().rev() {
            format_slice(dev, &mut mem, buf, *layout, slice_uuid(options.uuid, layout.slice))?;
        }
        Ok(())
    }

    /// How many slices the pool on a drive has: 1 when it is undivided.
    ///
    /// # Errors
    /// [`OpenError`]: there is no pool that this program can read.
    pub fn slices(dev: &mut dyn BlockDev) -> Result<u64, OpenError> {
        let mut mem = Mem::new(MAX_BUF_BYTES);
        Ok(read_superblock(dev, &mut mem, 0)?.layout.slices)
    }

    /// Opens a pool: reads its checkpoint, replays its journal, and writes a checkpoint if there was anything
    /// to replay. Takes seconds even for large pools: 32 MiB of bitmap per TiB and at most 64 MiB of journal are read.
    ///
    /// # Errors
    /// [`OpenError`] names what is damaged.
    pub fn open(dev: &mut dyn BlockDev, mem: &mut Mem, options: &EngineOptions) -> Result<Engine, OpenError> {
        Engine::open_slice(dev, mem, options, 0)
    }

    /// As [`Engine::open`], of one slice of a shared drive. It has the extents that it had leased; see
    /// [`Engine::leased_extents`] and [`crate::home`].
    ///
    /// # Errors
    /// [`OpenError`] names what is damaged.
    pub fn open_slice(
        dev: &mut dyn BlockDev,
        mem: &mut Mem,
        options: &EngineOptions,
        slice: u64,
    ) -> Result<Engine, OpenError> {
        // A process that ended in the middle of a checkpoint may have left a superblock in the drive's cache. What
        // the one before it needs must not be overwritten until this one is safe.
        dev.flush()?;
        let (mut engine, replayed) = Engine::load(dev, mem, options, slice, None)?;
        // A pool of an older version is of this one from now on. Both superblocks must say so: with one left behind, the
        // older program would open the checkpoint before this one.
        let upgrade = engine.ckpt.current.version < FORMAT_VERSION;
        for _ in 0..if upgrade { 2 } else { u64::from(replayed) } {
            engine.checkpoint_now(dev, mem)?;
        }
        Ok(engine)
    }

    /// Writes a checkpoint before anything else happens.
    pub(crate) fn checkpoint_now(&mut self, dev: &mut dyn BlockDev, mem: &mut Mem) -> Result<(), OpenError> {
        self.ckpt.want();
        let mut out = Out::default();
        let (before, mut idle) = (self.ckpt.complete, 0);
        while self.ckpt.complete == before {
            self.step(0, Event::Tick, mem, &mut out);
            let moved = self.drive(dev, mem, &mut out)? > 0;
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < 1000, "a checkpoint that nothing disturbs ends");
            if !moved && self.poisoned.is_some() {
                return Err(OpenError::Drive(DriveError { errno: self.poisoned.unwrap_or(5) }));
            }
        }
        Ok(())
    }

    /// Reads a pool, its journal, and the journal's tail that a failed engine left in memory, without writing. Also
    /// tells whether there was anything to replay.
    pub(crate) fn load(
        dev: &mut dyn BlockDev,
        mem: &mut Mem,
        options: &EngineOptions,
        slice: u64,
        tail: Option<&mut Tail>,
    ) -> Result<(Engine, bool), OpenError> {
        let sb = read_superblock(dev, mem, slice)?;
        let blob = read_root(dev, mem, &sb)?;
        let damaged = OpenError::Root { offset: sb.layout.area_start(sb.area) * BLOCK_BYTES };
        let mut r = Reader::new(&blob);
        let next_generation = r.u64().map_err(|_| damaged)?;
        let catalog = Catalog::decode(&mut r).map_err(|e| or_too_new(e, damaged))?;
        let mut lending = (sb.layout.slices > 1).then(|| Lending::new(sb.layout));
        if let Some(lending) = &mut lending {
            lending.decode(&mut r).map_err(|_| damaged)?;
        }
        let mut table = Vec::with_capacity(sb.layout.bitmap_pages as usize);
        for _ in 0..sb.layout.bitmap_pages {
            let (crc, flags) = (r.u32().map_err(|_| damaged)?, r.u32().map_err(|_| damaged)?);
            table.push(BitmapPage { written: flags & 1 != 0, copy: (flags >> 1 & 1) as u8, crc });
        }
        let heads_exist = catalog
            .volumes
            .values()
            .all(|v| std::iter::once(&v.primary).chain(&v.child).all(|b| catalog.layers.contains_key(&b.head)));
        let parents_exist = catalog.layers.values().all(|l| l.parent.is_none_or(|p| catalog.layers.contains_key(&p)));
        if !heads_exist || !parents_exist {
            return Err(damaged);
        }
        let mut alloc = read_bitmap(dev, mem, &sb.layout, &table)?;
        if let Some(lending) = &lending {
            lending.close_off(&mut alloc);
        }
        let mut engine = Engine::assemble(sb, alloc, catalog, table, next_generation, mem, options)?;
        engine.lending = lending;
        match engine.replay(dev, mem, tail) {
            Ok(replayed) => Ok((engine, replayed)),
            Err(error) => {
                engine.release(mem);
                Err(error)
            }
        }
    }

    fn assemble(
        sb: Superblock,
        alloc: Alloc,
        catalog: Catalog,
        table: Vec<BitmapPage>,
        next_generation: u64,
        mem: &mut Mem,
        options: &EngineOptions,
    ) -> Result<Engine, OpenError> {
        let pages = (options.cache_bytes / BLOCK_BYTES).max(sb.cache_pages).max(CACHE_PAGES_MIN as u64) as usize;
        let data_blocks = (sb.layout.blocks - sb.layout.data_start()) / sb.layout.slices;
        let dirty_max = (pages * 2 / 5).min(8192).min((data_blocks / 32) as usize).max(24);
        let overwrite_blocks = (data_blocks / 32).clamp(2 * OP_BLOCKS_MAX as u64, 4096);
        let cache = Cache::new(pages, mem).ok_or(OpenError::Memory)?;
        let mut ops = Ops::new(1024);
        let record = mem.alloc(RECORD_BYTES_MAX as usize).ok_or(OpenError::Memory)?;
        let stage = mem.alloc(STAGE_BYTES).ok_or(OpenError::Memory)?;
        let scrub_buf = mem.alloc(SCRUB_BLOCKS * BLOCK).ok_or(OpenError::Memory)?;
        let move_out = mem.alloc(CHUNK_BLOCKS * BLOCK).ok_or(OpenError::Memory)?;
        let move_in = mem.alloc(CHUNK_BLOCKS * BLOCK).ok_or(OpenError::Memory)?;
        let zeroes = mem.alloc(ZERO_RUN_BLOCKS as usize * BLOCK).ok_or(OpenError::Memory)?;
        mem.get_mut(zeroes).fill(0);
        let scratch: Option<Vec<Buf>> = (0..SCRATCH_BLOCKS).map(|_| mem.alloc(BLOCK)).collect();
        let scratch = scratch.ok_or(OpenError::Memory)?;
        let fixed = [record, stage, scrub_buf, zeroes, move_out, move_in];
        let holdings = [cache.buffers(), &fixed, &scratch].concat();
        Ok(Engine {
            now: 0,
            layout: sb.layout,
            uuid: sb.uuid,
            alloc,
            cache,
            catalog,
            attaches: Vec::new(),
            keys: Vec::new(),
            lending: None,
            clean: Clean::new(&mut ops),
            scrub: Scrub::new(&mut ops, scrub_buf),
            move_read: MoveRead::new(&mut ops, move_out),
            move_write: MoveWrite::new(&mut ops, move_in),
            ops,
            ios: Ios::new(1024),
            ready: VecDeque::with_capacity(1024),
            stalled: VecDeque::with_capacity(1024),
            conflicts: VecDeque::with_capacity(64),
            mutators: Vec::with_capacity(1024),
            rmw: Vec::with_capacity(64),
            admin_queue: VecDeque::new(),
            log: Log::new(),
            commit: Commit::new(record, sb.journal_position, sb.journal_sequence, sb.durable_sequence),
            ckpt: Checkpoint::new(stage, sb, table),
            space: Space::new(),
            scratch,
            zeroes,
            next_generation: next_generation + GENERATION_SKIP,
            dirty_max,
            reserve_blocks: 2 * dirty_max as u64 + GROUP_MAX as u64 + overwrite_blocks,
            overwrite_blocks,
            poisoned: None,
            closing: false,
            replaying: true,
            integrity_errors: 0,
            bytes_copied: 0,
            broken_page: None,
            options: *options,
            holdings,
            faults: Faults::OFF,
            recover: Recover::new(),
        })
    }

    /// Does every I/O the engine asked for, at once. Returns how many there were.
    pub(crate) fn drive(&mut self, dev: &mut dyn BlockDev, mem: &mut Mem, out: &mut Out) -> Result<usize, DriveError> {
        let mut count = 0;
        while let Some(io) = out.ios.pop() {
            count += 1;
            let done = match io.kind {
                IoKind::Read { offset, buf } => dev.read(offset, mem.get_mut(buf)),
                IoKind::Write { offset, buf } => dev.write(offset, mem.get(buf)),
                IoKind::Flush => dev.flush(),
                IoKind::Discard { .. } => Ok(()),
            };
            let errno = done.err().map_or(0, |e| e.errno);
            self.step(0, Event::IoDone { ticket: io.ticket, errno }, mem, out);
        }
        out.alarms.clear();
        Ok(count)
    }

    /// Runs `step` until it no longer waits for a map page.
    pub(crate) fn insist<T>(
        &mut self,
        dev: &mut dyn BlockDev,
        mem: &mut Mem,
        out: &mut Out,
        mut step: impl FnMut(&mut Engine, &mut Mem, &mut Out) -> Result<T, Halt>,
    ) -> Result<T, OpenError> {
        loop {
            match step(self, mem, out) {
                Ok(value) => return Ok(value),
                Err(Halt::Page(_)) => {
                    self.drive(dev, mem, out)?;
                }
                Err(Halt::Broken) => return Err(OpenError::Map),
                Err(Halt::Stall) => return Err(OpenError::Memory),
            }
        }
    }

    fn replay(&mut self, dev: &mut dyn BlockDev, mem: &mut Mem, tail: Option<&mut Tail>) -> Result<bool, OpenError> {
        let records = self.find_records(dev, mem)?;
        let trusted = records.iter().map(|r| r.1.durable_sequence).fold(self.commit.durable_sequence, u64::max);
        let mut out = Out::default();
        for (position, header) in &records {
            let damaged = OpenError::Journal { sequence: header.sequence };
            let body = read_record(dev, mem, &self.layout, *position, header)?.ok_or(damaged)?;
            // With the tail came the word that every record's data was written before it, and flushed since.
            let confirmed = header.sequence <= trusted || tail.is_some();
            let mut r = Reader::new(&body[HEADER_BYTES..HEADER_BYTES + header.body_bytes as usize]);
            while !r.is_empty() {
                let change = read_change(&mut r).map_err(|e| or_too_new(e, damaged))?;
                self.apply(change, confirmed, damaged, dev, mem, &mut out)?;
            }
            self.space.replayed(confirmed, &mut self.alloc);
        }
        let mut replayed = !records.is_empty();
        if let Some(tail) = tail {
            replayed |= self.replay_tail(tail, dev, mem, &mut out)?;
        }
        self.replaying = false;
        self.log.begin_at(self.commit.next_sequence);
        // What was read back may still be in the drive's cache; the checkpoint that follows flushes before it counts.
        self.commit.durable_sequence = self.commit.next_sequence - 1;
        Ok(replayed)
    }

    /// Finds the records after the checkpoint, in order, and moves the journal's head behind them.
    fn find_records(&mut self, dev: &mut dyn BlockDev, mem: &mut Mem) -> Result<Vec<(u64, Header)>, OpenError> {
        let mut found = Vec::new();
        loop {
            let mut next = None;
            let mut places = [self.commit.position, 0].into_iter();
            for position in places.by_ref() {
                let header = peek_record(dev, mem, &self.layout, position)?;
                let Some(header) = header else { continue };
                if header.uuid != self.uuid || header.sequence != self.commit.next_sequence {
                    continue;
                }
                if read_record(dev, mem, &self.layout, position, &header)?.is_some() {
                    next = Some((position, header));
                    break;
                }
            }
            let Some((position, header)) = next else { break };
            let blocks = header.record_bytes() / BLOCK_BYTES;
            if position < self.commit.position {
                self.commit.used_blocks += self.layout.journal_blocks - self.commit.position;
            }
            self.commit.used_blocks += blocks;
            self.commit.position = position + blocks;
            self.commit.next_sequence += 1;
            found.push((position, header));
        }
        self.nothing_follows(dev, mem)?;
        Ok(found)
    }

    /// The journal ends where no whole record follows. A power cut tears only the newest record, so if the
    /// superblock or a later record vouches for the one that is missing, it rotted, and with it what was promised.
    fn nothing_follows(&self, dev: &mut dyn BlockDev, mem: &mut Mem) -> Result<(), OpenError> {
        let missing = self.commit.next_sequence;
        let damaged = Err(OpenError::Journal { sequence: missing });
        if self.commit.durable_sequence >= missing {
            return damaged;
        }
        // Whatever length the missing record had, its successor begins within the largest record's length of it,
        // or of the region's start.
        let reach = RECORD_BYTES_MAX / BLOCK_BYTES;
        for position in (self.commit.position..=self.commit.position + reach).chain(0..=reach) {
            let Some(header) = peek_record(dev, mem, &self.layout, position)? else { continue };
            if header.uuid == self.uuid
                && header.sequence > missing
                && read_record(dev, mem, &self.layout, position, &header)?.is_some()
            {
                return damaged;
            }
        }
        Ok(())
    }

    pub(crate) fn apply(
        &mut self,
        change: Change,
        confirmed: bool,
        damaged: OpenError,
        dev: &mut dyn BlockDev,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<(), OpenError> {
        match change {
            Change::Map { layer, block, at, generation, crcs } => {
                self.known(layer).ok_or(damaged)?;
                for (i, crc) in crcs.iter().enumerate() {
                    let (block, at) = (block + i as u64, at + i as u64);
                    if !self.alloc.is_data_block(at) {
                        return Err(damaged);
                    }
                    // The record's flush may not have happened: its data may be missing although it is there.
                    if confirmed || data_arrived(dev, mem, at, generation, block, *crc)? {
                        let entry = Entry::pointer(at, generation, *crc);
                        self.insist(dev, mem, out, |e, mem, out| e.replay_map(layer, block, entry, mem, out))?;
                    }
                    self.next_generation = self.next_generation.max(generation + GENERATION_SKIP);
                }
            }
            Change::Punch { layer, block, count } => {
                self.known(layer).ok_or(damaged)?;
                self.insist(dev, mem, out, |e, mem, out| e.punch_leaf(layer, block, u64::from(count), mem, out))?;
            }
            Change::MergeLeaf { layer, leaf } => {
                self.known(layer).and_then(|l| l.parent).and_then(|p| self.known(p)).ok_or(damaged)?;
                self.insist(dev, mem, out, |e, mem, out| e.merge_leaf(layer, leaf, mem, out))?;
            }
            Change::DropLeaf { layer, leaf } => {
                self.known(layer).ok_or(damaged)?;
                self.insist(dev, mem, out, |e, mem, out| e.drop_leaf(layer, leaf, mem, out))?;
            }
            Change::PutVolume(volume) => {
                let heads = std::iter::once(&volume.primary).chain(&volume.child);
                if !heads.into_iter().all(|b| self.catalog.layers.contains_key(&b.head)) {
                    return Err(damaged);
                }
                self.catalog.put_volume(*volume);
            }
            Change::Lease { first, count } | Change::Return { first, count } => {
                let leased = matches!(change, Change::Lease { .. });
                if !self.replay_lease(first, count, leased) {
                    return Err(damaged);
                }
            }
            Change::DeleteVolume(id) => {
                self.catalog.volumes.remove(&id);
            }
            Change::PutLayer { layer, parent, merging, dropping } => {
                if parent.is_some_and(|p| self.known(p).is_none()) {
                    return Err(damaged);
                }
                self.catalog.put_layer(layer, parent, merging, dropping);
            }
            Change::DeleteLayer(id) | Change::MergeDone(id) => {
                self.known(id).ok_or(damaged)?;
                if !self.finish_layer(id, mem) {
                    return Err(damaged);
                }
            }
        }
        Ok(())
    }

    fn known(&self, layer: LayerId) -> Option<crate::catalog::Layer> {
        self.catalog.layers.get(&layer).copied()
    }

    fn replay_map(
        &mut self,
        layer: LayerId,
        block: u64,
        entry: Entry,
        mem: &mut Mem,
        out: &mut Out,
    ) -> Result<(), Halt> {
        let slot = self.page_mut(PageKey { layer, level: 0, index: block / FANOUT }, mem, out)?;
        let page = mem.get_mut(self.cache.slot(slot).buf);
        let old = Entry::get(page, block % FANOUT);
        entry.put(page, block % FANOUT);
        self.alloc.set(entry.block());
        if !old.is_pointer() {
            self.count_blocks(layer, 1);
        } else if old.block() != entry.block() {
            self.space.free_data(old.block());
        }
        Ok(())
    }
}

/// The identity of a slice, so that no slice takes another's journal records for its own.
fn slice_uuid(mut uuid: [u8; 16], slice: u64) -> [u8; 16] {
    uuid[15] ^= slice as u8;
    uuid
}

/// Writes the empty root and the superblock of a slice.
fn format_slice(
    dev: &mut dyn BlockDev,
    mem: &mut Mem,
    buf: Buf,
    layout: Layout,
    uuid: [u8; 16],
) -> Result<(), DriveError> {
    let mut blob = Vec::new();
    blob.put_u64(1);
    Catalog::new().encode(&mut blob);
    if layout.slices > 1 {
        Lending::new(layout).encode(&mut blob);
    }
    for _ in 0..layout.bitmap_pages {
        blob.put_u64(0);
    }
    let sb = Superblock {
        version: FORMAT_VERSION,
        layout,
        uuid,
        sequence: 1,
        area: 0,
        root_bytes: blob.len() as u64,
        root_crc: plain_crc(&blob),
        journal_position: 0,
        journal_sequence: 1,
        durable_sequence: 0,
        cache_pages: 0,
    };
    for (i, chunk) in blob.chunks(BLOCK).enumerate() {
        let bytes = mem.get_mut(buf);
        bytes.fill(0);
        bytes[..chunk.len()].copy_from_slice(chunk);
        dev.write((layout.area_start(0) + i as u64) * BLOCK_BYTES, mem.get(buf))?;
    }
    dev.flush()?;
    sb.encode(mem.get_mut(buf));
    dev.write(layout.superblock(sb.sequence % 2) * BLOCK_BYTES, mem.get(buf))?;
    dev.flush()
}

/// The valid superblock of a slice.
fn read_superblock(dev: &mut dyn BlockDev, mem: &mut Mem, slice: u64) -> Result<Superblock, OpenError> {
    let first = read_superblock_at(dev, mem, 0, 0)?;
    if slice == 0 {
        return Ok(first);
    }
    let bytes = first.layout.blocks * BLOCK_BYTES;
    let layout = Layout::of_slice(bytes, first.layout.slices, slice).ok_or(SuperblockError::NotAPool)?;
    read_superblock_at(dev, mem, layout.superblock(0), slice)
}

fn read_superblock_at(
    dev: &mut dyn BlockDev,
    mem: &mut Mem,
    first_block: u64,
    slice: u64,
) -> Result<Superblock, OpenError> {
    let buf = mem.alloc(BLOCK).ok_or(OpenError::Memory)?;
    let mut best: Result<Superblock, SuperblockError> = Err(SuperblockError::NotAPool);
    let mut failed = None;
    let mut oldest = FORMAT_VERSION;
    for slot in 0..2 {
        if let Err(error) = dev.read((first_block + slot) * BLOCK_BYTES, mem.get_mut(buf)) {
            failed = Some(error);
            continue;
        }
        let read = Superblock::decode(mem.get(buf));
        oldest = oldest.min(read.as_ref().map_or(oldest, |sb| sb.version));
        match (read, &best) {
            // Whole and of a newer version: the other copy is what that program left behind.
            (_, Err(SuperblockError::TooNew(_))) => {}
            (Err(error @ SuperblockError::TooNew(_)), _) => best = Err(error),
            (Ok(sb), Ok(old)) if sb.sequence <= old.sequence => {}
            (Ok(sb), _) if sb.layout.slice == slice => best = Ok(sb),
            (Ok(_), _) => {}
            (Err(_), _) => {}
        }
    }
    mem.free(buf);
    // With one copy unreadable the other could be the older one, and opening that would undo what was promised.
    if let Some(error) = failed {
        return Err(error.into());
    }
    let sb = Superblock { version: oldest, ..best? };
    let drive_blocks = dev.capacity_bytes() / BLOCK_BYTES;
    if drive_blocks < sb.layout.blocks {
        return Err(SuperblockError::DriveTooSmall { pool_blocks: sb.layout.blocks, drive_blocks }.into());
    }
    Ok(sb)
}

/// What a failed decoding means for opening.
pub(crate) fn or_too_new(error: Malformed, damaged: OpenError) -> OpenError {
    match error {
        Malformed::Bytes => damaged,
        Malformed::TooNew(tag) => OpenError::Setting { tag },
    }
}

fn read_root(dev: &mut dyn BlockDev, mem: &mut Mem, sb: &Superblock) -> Result<Vec<u8>, OpenError> {
    let buf = mem.alloc(BLOCK).ok_or(OpenError::Memory)?;
    let mut blob = Vec::with_capacity(sb.root_bytes as usize);
    let start = sb.layout.area_start(sb.area);
    for i in 0..sb.root_bytes.div_ceil(BLOCK_BYTES) {
        if let Err(error) = dev.read((start + i) * BLOCK_BYTES, mem.get_mut(buf)) {
            mem.free(buf);
            return Err(error.into());
        }
        let left = sb.root_bytes as usize - blob.len();
        blob.extend_from_slice(&mem.get(buf)[..left.min(BLOCK)]);
    }
    mem.free(buf);
    if plain_crc(&blob) != sb.root_crc {
        return Err(OpenError::Root { offset: start * BLOCK_BYTES });
    }
    Ok(blob)
}

fn read_bitmap(
    dev: &mut dyn BlockDev,
    mem: &mut Mem,
    layout: &Layout,
    table: &[BitmapPage],
) -> Result<Alloc, OpenError> {
    let mut alloc = Alloc::new(layout);
    let buf = mem.alloc(MAX_BUF_BYTES).ok_or(OpenError::Memory)?;
    let result = read_bitmap_pages(dev, mem, layout, table, buf, &mut alloc);
    mem.free(buf);
    result?;
    alloc.recount();
    Ok(alloc)
}

/// Reads in runs of pages that lie together, so that opening is bound by the drive's bandwidth.
fn read_bitmap_pages(
    dev: &mut dyn BlockDev,
    mem: &mut Mem,
    layout: &Layout,
    table: &[BitmapPage],
    buf: Buf,
    alloc: &mut Alloc,
) -> Result<(), OpenError> {
    let mut page = 0;
    while page < table.len() {
        let first = table[page];
        if !first.written {
            page += 1;
            continue;
        }
        let same = |p: &BitmapPage| p.written && p.copy == first.copy;
        let run = table[page..].iter().take(MAX_BUF_BYTES / BLOCK).take_while(|p| same(p)).count();
        let offset = layout.bitmap_block(page as u64, u64::from(first.copy)) * BLOCK_BYTES;
        let part = buf.part(0, run * BLOCK);
        dev.read(offset, mem.get_mut(part))?;
        for i in 0..run {
            let bytes = mem.get(part.part(i * BLOCK, BLOCK));
            if plain_crc(bytes) != table[page + i].crc {
                return Err(OpenError::Bitmap { page: (page + i) as u64 });
            }
            alloc.load_page((page + i) as u64, bytes);
        }
        page += run;
    }
    Ok(())
}

fn peek_record(
    dev: &mut dyn BlockDev,
    mem: &mut Mem,
    layout: &Layout,
    position: u64,
) -> Result<Option<Header>, OpenError> {
    if position >= layout.journal_blocks {
        return Ok(None);
    }
    let buf = mem.alloc(BLOCK).ok_or(OpenError::Memory)?;
    let read = dev.read((layout.journal_start() + position) * BLOCK_BYTES, mem.get_mut(buf));
    let header = Header::peek(mem.get(buf));
    mem.free(buf);
    read?;
    Ok(header)
}

/// The whole record, or `None` when it is torn.
fn read_record(
    dev: &mut dyn BlockDev,
    mem: &mut Mem,
    layout: &Layout,
    position: u64,
    header: &Header,
) -> Result<Option<Vec<u8>>, OpenError> {
    let bytes = header.record_bytes();
    if bytes > RECORD_BYTES_MAX || position + bytes / BLOCK_BYTES > layout.journal_blocks {
        return Ok(None);
    }
    let buf = mem.alloc(bytes as usize).ok_or(OpenError::Memory)?;
    let read = dev.read((layout.journal_start() + position) * BLOCK_BYTES, mem.get_mut(buf));
    let record = header.verify(mem.get(buf)).then(|| mem.get(buf).to_vec());
    mem.free(buf);
    read?;
    Ok(record)
}

pub(crate) fn data_arrived(
    dev: &mut dyn BlockDev,
    mem: &mut Mem,
    at: u64,
    generation: u64,
    block: u64,
    crc: u32,
) -> Result<bool, OpenError> {
    let buf = mem.alloc(BLOCK).ok_or(OpenError::Memory)?;
    let read = dev.read(at * BLOCK_BYTES, mem.get_mut(buf));
    let arrived = data_crc(generation, block, mem.get(buf)) == crc;
    mem.free(buf);
    read?;
    Ok(arrived)
}
