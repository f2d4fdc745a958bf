//! A file-backed pool in this thread, as the benches use it.
//!
//! Owns: the pool's file, its buffers in flight, short names for admin operations. Never: copies data for a request.
//! Invariant: a request's buffer is freed once, when its reply was taken, unless the caller asked to keep it.

use anyhow::{Context, Result, bail};
use segue_runtime::{DriveSpec, IoChoice, Local, LocalDone, secret, unix_ms};
use segue_types::api::ObservationRule;
use segue_types::{LeaseId, SuperId};
use segue_volume::engine::EngineOptions;
use segue_volume::mem::Buf;
use segue_volume::op::{AdminOp, AdminReply, AttachId, AttachMode, Op, PoolState, Tag, aligned_span};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// What clients write: not zero, so that nothing can be saved.
const PATTERN: u8 = 0xa5;
/// Longest wait for a clean-up.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// A request that ended well.
#[derive(Clone, Copy)]
pub struct Done {
    /// The request.
    pub tag: Tag,
    /// Its buffer, when it was read with [`Pool::read_kept`]; else no bytes.
    pub kept: Buf,
}

/// A pool on a fresh file, driven by this thread.
pub struct Pool {
    local: Local,
    next: u64,
    /// Buffers of reads in flight that their callers will use.
    kept: BTreeMap<u64, Buf>,
    ended: Vec<LocalDone>,
    _dir: tempfile::TempDir,
}

impl Pool {
    /// Makes a file of `bytes` below `base`, writes all of it once (so that no later write makes the file system
    /// allocate), formats it and opens it.
    pub fn create(base: &Path, bytes: u64) -> Result<Pool> {
        let dir = tempfile::tempdir_in(base).with_context(|| format!("make a folder in {}", base.display()))?;
        let path = dir.path().join("pool.img");
        write_through(&path, bytes).with_context(|| format!("write {}", path.display()))?;
        let drive = DriveSpec::File { path };
        segue_runtime::format_drive(&drive, true).context("format the pool")?;
        let local = Local::open(&drive, &EngineOptions::default(), IoChoice::Auto).context("open the pool")?;
        Ok(Pool { local, next: 0, kept: BTreeMap::new(), ended: Vec::with_capacity(1024), _dir: dir })
    }

    /// Starts a read whose bytes nobody looks at.
    pub fn read(&mut self, attach: AttachId, offset: u64, len: u32) -> Result<Tag> {
        self.start_read(attach, offset, len, false)
    }

    /// Starts a read whose buffer comes back in [`Done::kept`]; it is the caller's until written with `write_from`.
    pub fn read_kept(&mut self, attach: AttachId, offset: u64, len: u32) -> Result<Tag> {
        self.start_read(attach, offset, len, true)
    }

    fn start_read(&mut self, attach: AttachId, offset: u64, len: u32, keep: bool) -> Result<Tag> {
        let buf = self.buffer(offset, len)?;
        let tag = self.tag();
        if keep {
            self.kept.insert(tag.0, buf);
        }
        let free = if keep { Buf::EMPTY } else { buf };
        self.local.submit(attach, tag.0 as usize, Op::Read { offset, len, buf }, free);
        Ok(tag)
    }

    fn tag(&mut self) -> Tag {
        self.next += 1;
        Tag(self.next)
    }

    /// Starts a write of the pattern.
    pub fn write(&mut self, attach: AttachId, offset: u64, len: u32) -> Result<Tag> {
        let buf = self.buffer(offset, len)?;
        self.fill(buf);
        self.write_from(attach, offset, buf)
    }

    /// Starts a write of a whole buffer, which is freed when the write has ended.
    pub fn write_from(&mut self, attach: AttachId, offset: u64, buf: Buf) -> Result<Tag> {
        let tag = self.tag();
        let op = Op::Write { offset, len: buf.len() as u32, buf, fua: false };
        self.local.submit(attach, tag.0 as usize, op, buf);
        Ok(tag)
    }

    fn buffer(&mut self, offset: u64, len: u32) -> Result<Buf> {
        self.local.mem().alloc(aligned_span(offset, len)).context("no memory for a request's buffer")
    }

    /// Fills a buffer, or a part of one, with the pattern.
    pub fn fill(&mut self, buf: Buf) {
        self.local.mem().get_mut(buf).fill(PATTERN);
    }

    /// Waits for ends, at most until `deadline`; without one, until there is at least one. May give none.
    pub fn turn(&mut self, deadline: Option<Instant>) -> Result<Vec<Done>> {
        let wait = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        self.local.wait(wait, &mut self.ended);
        let mut done = Vec::with_capacity(self.ended.len());
        for end in self.ended.drain(..) {
            if !end.status.is_ok() {
                bail!("a request of the bench failed: {:?}", end.status);
            }
            let kept = self.kept.remove(&(end.index as u64)).unwrap_or(Buf::EMPTY);
            done.push(Done { tag: Tag(end.index as u64), kept });
        }
        Ok(done)
    }

    fn wait_for(&mut self, tag: Tag) -> Result<()> {
        while !self.turn(None)?.iter().any(|done| done.tag == tag) {}
        Ok(())
    }

    /// Writes the pattern and waits for it. Nothing else may be in flight.
    pub fn write_and_wait(&mut self, attach: AttachId, offset: u64, len: u32) -> Result<()> {
        let tag = self.write(attach, offset, len)?;
        self.wait_for(tag)
    }

    /// Makes durable what was written. Nothing else may be in flight.
    pub fn flush(&mut self, attach: AttachId) -> Result<()> {
        let tag = self.tag();
        self.local.submit(attach, tag.0 as usize, Op::Flush, Buf::EMPTY);
        self.wait_for(tag)
    }

    fn admin(&mut self, op: AdminOp) -> Result<AdminReply> {
        self.local.admin(op.clone()).with_context(|| format!("the engine refused {op:?}"))
    }

    /// Makes a volume.
    pub fn create_volume(&mut self, name: &str, size_bytes: u64) -> Result<()> {
        let name = name.to_owned();
        self.admin(AdminOp::Create {
            name,
            size_bytes,
            rule: ObservationRule::Flush,
            token_sha256: None,
            encryption: None,
        })?;
        Ok(())
    }

    /// Deletes a volume.
    pub fn delete(&mut self, name: &str) -> Result<()> {
        self.admin(AdminOp::Delete { name: name.to_owned() }).map(drop)
    }

    /// Attaches to a volume, under an ephemeral lease.
    pub fn attach(&mut self, name: &str) -> Result<AttachId> {
        let (lease, now_unix_ms) = (LeaseId(secret()), unix_ms());
        self.attach_as(name, AttachMode::Implicit { lease, holder: "bench".to_owned(), now_unix_ms })
    }

    /// Attaches under a lease granted before.
    pub fn attach_with(&mut self, name: &str, lease: LeaseId) -> Result<AttachId> {
        self.attach_as(name, AttachMode::Lease(lease))
    }

    fn attach_as(&mut self, name: &str, mode: AttachMode) -> Result<AttachId> {
        match self.admin(AdminOp::Attach { name: name.to_owned(), mode, token_sha256: None })? {
            AdminReply::Attached(state) => Ok(state.attach),
            other => bail!("attach was answered with {other:?}"),
        }
    }

    /// Closes an attachment.
    pub fn detach(&mut self, attach: AttachId) -> Result<()> {
        self.admin(AdminOp::Detach { attach }).map(drop)
    }

    /// Puts a volume into superposition; gives the id and the child's lease.
    pub fn superpose(&mut self, name: &str) -> Result<(SuperId, LeaseId)> {
        let lease = LeaseId(secret());
        let op = AdminOp::Super {
            names: vec![name.to_owned()],
            child_leases: vec![lease],
            holder: "bench".to_owned(),
            now_unix_ms: unix_ms(),
        };
        match self.admin(op)? {
            AdminReply::Super { super_id, .. } => Ok((super_id, lease)),
            other => bail!("super was answered with {other:?}"),
        }
    }

    /// Asks who won; true when the child was promoted.
    pub fn collapse(&mut self, name: &str, super_id: SuperId) -> Result<bool> {
        match self.admin(AdminOp::Collapse { name: name.to_owned(), super_id })? {
            AdminReply::Collapsed { promoted } => Ok(promoted),
            other => bail!("collapse was answered with {other:?}"),
        }
    }

    /// Ends a superposition in favour of the primary.
    pub fn abort(&mut self, name: &str, super_id: SuperId) -> Result<()> {
        self.admin(AdminOp::Abort { name: name.to_owned(), super_id }).map(drop)
    }

    /// Writes a checkpoint.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.admin(AdminOp::Checkpoint).map(drop)
    }

    fn state(&mut self) -> Result<PoolState> {
        match self.admin(AdminOp::PoolStatus)? {
            AdminReply::Pool(state) => Ok(state),
            other => bail!("pool status was answered with {other:?}"),
        }
    }

    /// Bytes of data the engine copied because of superpositions, by its own count.
    pub fn engine_bytes_copied(&mut self) -> Result<u64> {
        Ok(self.state()?.bytes_copied)
    }

    /// Waits until all clean-ups are over and their space is back. Nothing may be in flight.
    pub fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.state()?.cleaning > 0 {
            if start.elapsed() > SETTLE_LIMIT {
                bail!("a clean-up was not over after {SETTLE_LIMIT:?}");
            }
            self.turn(Some(Instant::now() + Duration::from_millis(1)))?;
        }
        self.checkpoint()
    }
}

fn write_through(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    let zeroes = vec![0u8; 4 << 20];
    let mut left = bytes;
    while left > 0 {
        let take = left.min(zeroes.len() as u64);
        file.write_all(&zeroes[..take as usize])?;
        left -= take;
    }
    file.sync_all()?;
    Ok(())
}
