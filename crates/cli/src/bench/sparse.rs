//! A pool file in which a great deal is mapped and almost nothing stored.
//!
//! Owns: an engine driven in this thread over a sparse file that keeps only blocks with something in them.
//! Never: invents metadata; the engine writes all of it.
//! Invariant: the file reads, block for block, as if every write had been stored.

use anyhow::{Context, Result, bail};
use segue_types::api::ObservationRule;
use segue_types::{BLOCK_BYTES, LeaseId};
use segue_volume::device::{BlockDev, DriveError};
use segue_volume::engine::{Engine, EngineOptions, FormatOptions};
use segue_volume::mem::{Buf, Mem};
use segue_volume::op::{AdminOp, AdminReply, AttachId, AttachMode, Event, Io, IoKind, MAX_REQUEST_BYTES, Op, Out, Tag};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Requests given to the engine before its I/O is done.
const BATCH: usize = 16;
/// Progress is told each time this much more is mapped.
const TELL_BYTES: u64 = 128 << 30;

/// A sparse file in which a block of zeroes is a hole.
struct SparseFile {
    file: File,
    bytes: u64,
    /// A bit for each block that holds something.
    stored: Vec<u64>,
}

impl SparseFile {
    fn bit(&mut self, block: u64) -> (&mut u64, u64) {
        (&mut self.stored[(block / 64) as usize], 1 << (block % 64))
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        for (i, bytes) in data.chunks(BLOCK_BYTES as usize).enumerate() {
            let at = offset + i as u64 * BLOCK_BYTES;
            let zero = bytes.chunks_exact(8).all(|w| w == [0; 8]);
            let (word, mask) = self.bit(at / BLOCK_BYTES);
            let stored = *word & mask != 0;
            if zero && !stored {
                continue;
            }
            *word |= mask;
            self.file.write_all_at(bytes, at)?;
        }
        Ok(())
    }
}

impl BlockDev for SparseFile {
    fn capacity_bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.file.read_exact_at(buf, offset).map_err(drive_error)
    }

    fn write(&mut self, offset: u64, buf: &[u8]) -> Result<(), DriveError> {
        self.write_at(offset, buf).map_err(drive_error)
    }

    fn flush(&mut self) -> Result<(), DriveError> {
        Ok(())
    }
}

fn drive_error(error: std::io::Error) -> DriveError {
    DriveError { errno: error.raw_os_error().unwrap_or(5) }
}

/// A pool with one volume, `mapped`, of which every block is written.
pub struct SparsePool {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl SparsePool {
    /// Makes it below `base`; `tell` hears of the progress.
    pub fn build(base: &Path, mapped: u64, mut tell: impl FnMut(u64)) -> Result<SparsePool> {
        let dir = tempfile::tempdir_in(base).with_context(|| format!("make a folder in {}", base.display()))?;
        let path = dir.path().join("pool.img");
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        let file = options.with_context(|| format!("create {}", path.display()))?;
        // The map takes 1/256 and its inner levels little; the rest is journal, bitmaps and room to move.
        let bytes = (mapped + mapped / 64 + (256 << 20)).next_multiple_of(BLOCK_BYTES);
        file.set_len(bytes).context("size the pool's file")?;
        let stored = vec![0; (bytes / BLOCK_BYTES).div_ceil(64) as usize];
        let mut drive = SparseFile { file, bytes, stored };
        let uuid = segue_runtime::secret().to_le_bytes();
        Engine::format(&mut drive, &FormatOptions { uuid, force: false }).context("format the pool")?;
        let mut mem = Mem::new(256 << 20);
        let engine = Engine::open(&mut drive, &mut mem, &EngineOptions::default()).context("open the pool")?;
        let mut driver = Driver { engine, drive, mem, out: Out::with_capacity(4096), now: 0, done: 0 };
        driver.fill(mapped, &mut tell)?;
        driver.drive.file.sync_all().context("sync the pool's file")?;
        Ok(SparsePool { path, _dir: dir })
    }

    /// The pool's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes it takes on the disk below it.
    pub fn disk_bytes(&self) -> Result<u64> {
        Ok(self.path.metadata().context("look at the pool's file")?.blocks() * 512)
    }
}

/// An engine and its drive in one thread: every I/O ends at once.
struct Driver {
    engine: Engine,
    drive: SparseFile,
    mem: Mem,
    out: Out,
    now: u64,
    done: u64,
}

impl Driver {
    fn fill(&mut self, mapped: u64, tell: &mut impl FnMut(u64)) -> Result<()> {
        let name = || "mapped".to_owned();
        self.admin(AdminOp::Create {
            name: name(),
            size_bytes: mapped,
            rule: ObservationRule::Flush,
            token_sha256: None,
            encryption: None,
        })?;
        let mode = AttachMode::Implicit { lease: LeaseId(1), holder: "bench".to_owned(), now_unix_ms: 0 };
        let attached = self.admin(AdminOp::Attach { name: name(), mode, token_sha256: None })?;
        let AdminReply::Attached(state) = attached else { bail!("attach was answered with something else") };
        let zeroes: Vec<Buf> = (0..BATCH).map(|_| self.zeroed_buffer()).collect::<Result<_>>()?;
        let mut offset = 0;
        while offset < mapped {
            for buf in &zeroes {
                let len = (mapped - offset).min(u64::from(MAX_REQUEST_BYTES)) as u32;
                if len > 0 {
                    self.request(state.attach, Op::Write { offset, len, buf: *buf, fua: false });
                    offset += u64::from(len);
                }
            }
            self.settle()?;
            if offset % TELL_BYTES < BATCH as u64 * u64::from(MAX_REQUEST_BYTES) {
                tell(offset);
            }
        }
        self.request(state.attach, Op::Flush);
        self.settle()?;
        self.admin(AdminOp::Detach { attach: state.attach })?;
        self.admin(AdminOp::Shutdown)?;
        Ok(())
    }

    fn zeroed_buffer(&mut self) -> Result<Buf> {
        let buf = self.mem.alloc(MAX_REQUEST_BYTES as usize).context("no memory for buffers")?;
        self.mem.get_mut(buf).fill(0);
        Ok(buf)
    }

    fn request(&mut self, attach: AttachId, op: Op) {
        self.done += 1;
        self.step(Event::Request { tag: Tag(self.done), attach, op });
    }

    fn admin(&mut self, op: AdminOp) -> Result<AdminReply> {
        let what = format!("{op:?}");
        self.step(Event::Admin { tag: Tag(0), op });
        for _ in 0..100_000 {
            if let Some((_, answer)) = self.out.admin.pop() {
                return answer.with_context(|| format!("the engine refused {what}"));
            }
            self.turn()?;
        }
        bail!("the engine does not answer {what}")
    }

    fn step(&mut self, event: Event) {
        self.now += 1_000;
        self.engine.step(self.now, event, &mut self.mem, &mut self.out);
    }

    /// Does all I/O there is, and ticks when the engine wants to go on.
    fn turn(&mut self) -> Result<()> {
        let ios: Vec<Io> = self.out.ios.drain(..).collect();
        if ios.is_empty() {
            self.now = self.now.max(self.out.wake_at.unwrap_or(0));
            self.step(Event::Tick);
        }
        for io in ios {
            let result = match io.kind {
                IoKind::Read { offset, buf } => self.drive.read(offset, self.mem.get_mut(buf)),
                IoKind::Write { offset, buf } => self.drive.write(offset, self.mem.get(buf)),
                IoKind::Flush | IoKind::Discard { .. } => Ok(()),
            };
            let errno = result.map_or_else(|e| e.errno, |()| 0);
            self.step(Event::IoDone { ticket: io.ticket, errno });
        }
        if let Some(alarm) = self.out.alarms.first() {
            bail!("the engine raised an alarm: {alarm:?}");
        }
        if let Some(reply) = self.out.replies.iter().find(|r| !r.status.is_ok()) {
            bail!("a request failed: {:?}", reply.status);
        }
        self.out.replies.clear();
        Ok(())
    }

    /// Goes on until every request is answered.
    fn settle(&mut self) -> Result<()> {
        while self.engine.in_flight() > 0 || !self.out.ios.is_empty() {
            self.turn()?;
        }
        Ok(())
    }
}
