//! Operations on volumes and the pool: create, list, resize, snapshot, clone, delete, status.
//!
//! Owns: their checks and effects. Never: answers a change before it is durable.
//! Invariant: an operation that is refused has changed nothing.

use super::Engine;
use super::commit::Waiter;
use super::recover::AdminUndo;
use crate::catalog::{Branch, NOTE_BYTES_MAX, VOLUME_BYTES_MAX, Volume};
use crate::crypt::NewEncryption;
use crate::journal::Change;
use crate::mem::Mem;
use crate::op::{AccessState, TokenSecret};
use crate::op::{AdminError, AdminOp, AdminReply, MoveOp, Out, PoolState, SuperPhase, Tag, VolumeKind, VolumeState};
use crate::settings::Settings;
use crate::superposition::Phase;
use segue_types::api::ObservationRule;
use segue_types::{BLOCK_BYTES, ExportAccess, ExportName, LayerId, Share, TaskKind, VolumeId, check_volume_name};

/// Bytes of the catalogue kept free so that every operation on existing volumes still fits.
const CATALOGUE_MARGIN_BYTES: usize = 16 << 10;

impl Engine {
    /// Runs queued operations while the journal has room for what they change.
    pub(crate) fn run_admin_queue(&mut self, mem: &mut Mem, out: &mut Out) {
        while !self.admin_queue.is_empty() {
            if !self.log.admin_room() && self.poisoned.is_none() {
                self.commit.want();
                return;
            }
            self.task_begins(TaskKind::Admin);
            let (tag, op) = self.admin_queue.pop_front().expect("not empty");
            let (attaches, leases) = (self.copy_attaches(), self.ephemeral_leases());
            self.recover.admin = Some(Box::new(AdminUndo { tag, op: op.clone(), attaches, leases }));
            self.run_admin(tag, op, mem, out);
            self.fault_point(TaskKind::Admin, "before the answer");
            self.settle(out);
        }
    }

    fn run_admin(&mut self, tag: Tag, op: AdminOp, mem: &mut Mem, out: &mut Out) {
        let reads = matches!(
            op,
            AdminOp::List
                | AdminOp::Show { .. }
                | AdminOp::PoolStatus
                | AdminOp::ScrubStatus
                | AdminOp::Detach { .. }
                | AdminOp::Attach { .. }
                | AdminOp::AttachToken { .. }
                | AdminOp::Unlock { .. }
                | AdminOp::Lock { .. }
                | AdminOp::Move(MoveOp::List | MoveOp::Measure { .. })
        );
        if self.poisoned.is_some() && !reads {
            out.admin.push((tag, Err(AdminError::Poisoned)));
            return;
        }
        if matches!(op, AdminOp::Checkpoint | AdminOp::Shutdown) {
            self.closing |= op == AdminOp::Shutdown;
            self.ckpt.want_for(tag);
            return;
        }
        let op = match op {
            AdminOp::Move(MoveOp::Read { id, round, from_block }) => {
                return self.start_move_read(tag, id, round, from_block, mem, out);
            }
            AdminOp::Move(MoveOp::Write { id, round, chunk, durable }) => {
                return self.start_move_write(tag, id, round, chunk, durable, mem, out);
            }
            op => op,
        };
        match self.admin(op) {
            Err(error) => out.admin.push((tag, Err(error))),
            Ok(reply) if reads => out.admin.push((tag, Ok(reply))),
            Ok(reply) => self.wait_for_commit(Waiter::Admin(tag, reply), out),
        }
    }

    fn admin(&mut self, op: AdminOp) -> Result<AdminReply, AdminError> {
        match op {
            AdminOp::Create { name, size_bytes, rule, token_sha256, encryption } => {
                self.create(name, size_bytes, rule, token_sha256, encryption)
            }
            AdminOp::List => {
                let mut all: Vec<_> = {
                    let shown = self.catalog.volumes.values().filter(|v| !v.is_incoming());
                    shown.map(|v| self.state_of(v)).collect()
                };
                all.sort_by(|a, b| a.name.cmp(&b.name));
                Ok(AdminReply::Volumes(all))
            }
            AdminOp::Show { name } => {
                let id = self.catalog.by_name(&name).ok_or(AdminError::NotFound)?.id;
                self.volume_reply(id)
            }
            AdminOp::Resize { name, size_bytes } => self.resize(&name, size_bytes),
            AdminOp::Rename { name, to } => self.rename(&name, to),
            AdminOp::Delete { name } => self.delete(&name),
            AdminOp::Snapshot { name, to } => self.branch_off(&name, to, VolumeKind::Snapshot),
            AdminOp::Clone { name, to } => self.branch_off(&name, to, VolumeKind::Volume),
            AdminOp::SetNote { name, note } => self.set_note(&name, note),
            AdminOp::Unlock { name, secret } => self.unlock(&name, &secret),
            AdminOp::Lock { name } => self.lock(&name),
            AdminOp::SetShare { name, share } => self.set_share(&name, share),
            AdminOp::Attach { name, mode, token_sha256 } => self.attach(&name, mode, token_sha256, None),
            AdminOp::AttachToken { name, mode, token_sha256, token } => {
                self.attach(&name, mode, Some(token_sha256), Some(&token))
            }
            AdminOp::RequireTokens { name, secret } => self.require_tokens(&name, secret.0),
            AdminOp::Revoke { name, plain } => self.revoke(&name, plain),
            AdminOp::DropTokens { name } => self.drop_tokens(&name),
            AdminOp::Detach { attach } => self.detach(attach),
            AdminOp::Acquire { name, lease, holder, now_unix_ms } => self.acquire(&name, lease, holder, now_unix_ms),
            AdminOp::Release { name, lease } => self.release_lease(&name, lease),
            AdminOp::BreakLease { name } => self.break_lease(&name),
            AdminOp::Super { names, child_leases, holder, now_unix_ms } => {
                self.super_(&names, &child_leases, &holder, now_unix_ms)
            }
            AdminOp::Collapse { name, super_id } => self.collapse(&name, super_id),
            AdminOp::Abort { name, super_id } => self.abort(&name, super_id),
            AdminOp::Move(op) => self.move_op(op),
            AdminOp::PoolStatus => Ok(AdminReply::Pool(self.pool_state())),
            AdminOp::ScrubStart => {
                self.start_scrub();
                Ok(AdminReply::Done)
            }
            AdminOp::ScrubStatus => Ok(self.scrub_status()),
            AdminOp::Checkpoint | AdminOp::Shutdown => unreachable!("handled before"),
        }
    }

    /// Errs when the catalogue has no room for `records` more.
    pub(crate) fn catalog_room(&self, records: usize) -> Result<(), AdminError> {
        let mut bytes = Vec::new();
        self.catalog.encode(&mut bytes);
        let room = (self.layout.area_blocks * BLOCK_BYTES) as usize;
        let leases = self.lending.as_ref().map_or(0, super::lending::Lending::encoded_bytes);
        let table = self.layout.bitmap_pages as usize * 8 + leases;
        if bytes.len() + table + records * 512 + CATALOGUE_MARGIN_BYTES > room {
            return Err(AdminError::NoSpace);
        }
        Ok(())
    }

    pub(crate) fn check_new_name(&self, name: &str) -> Result<(), AdminError> {
        check_volume_name(name).map_err(|_| {
            AdminError::Invalid("a name is 1 to 64 of a-z A-Z 0-9 . _ - and does not begin with . or -")
        })?;
        match self.catalog.by_name(name) {
            Some(_) => Err(AdminError::Exists),
            None => Ok(()),
        }
    }

    fn create(
        &mut self,
        name: String,
        size_bytes: u64,
        rule: ObservationRule,
        token_sha256: Option<[u8; 32]>,
        encryption: Option<NewEncryption>,
    ) -> Result<AdminReply, AdminError> {
        self.check_new_name(&name)?;
        check_size(size_bytes)?;
        self.catalog_room(2)?;
        if let Some(new) = &encryption {
            self.adopt_key(new);
        }
        let settings = Settings { encryption: encryption.map(|e| e.record()), ..Settings::default() };
        let primary = Branch { head: self.new_layer(None), size_bytes, lease: None };
        self.enrol(name, VolumeKind::Volume, rule, token_sha256, settings, primary)
    }

    /// Records a new volume or snapshot, in its first epoch.
    fn enrol(
        &mut self,
        name: String,
        kind: VolumeKind,
        rule: ObservationRule,
        token_sha256: Option<[u8; 32]>,
        settings: Settings,
        primary: Branch,
    ) -> Result<AdminReply, AdminError> {
        let id = VolumeId(self.catalog.next_volume);
        self.catalog.put_volume(Volume {
            id,
            name,
            kind,
            rule,
            token_sha256,
            epoch: 1,
            note: String::new(),
            primary,
            child: None,
            race: None,
            settings,
        });
        self.log_volume(id);
        self.volume_reply(id)
    }

    /// Grows a volume, or the child of a running race when the name carries its lease (`NAME@LEASE`).
    fn resize(&mut self, name: &str, size_bytes: u64) -> Result<AdminReply, AdminError> {
        check_size(size_bytes)?;
        let export = ExportName::parse(name).map_err(|_| AdminError::NotFound)?;
        let id = self.volume_id(&export.volume)?;
        let volume = self.catalog.volumes.get_mut(&id).expect("looked up before");
        if volume.kind == VolumeKind::Snapshot {
            return Err(AdminError::Invalid("a snapshot keeps its size"));
        }
        let branch = match export.access {
            ExportAccess::Lease(lease) => std::iter::once(&mut volume.primary)
                .chain(volume.child.as_mut())
                .find(|b| b.lease.as_ref().is_some_and(|l| l.id == lease))
                .ok_or(AdminError::Fenced)?,
            _ => &mut volume.primary,
        };
        if size_bytes < branch.size_bytes {
            return Err(AdminError::Invalid("a volume can only grow"));
        }
        branch.size_bytes = size_bytes;
        self.log_volume(id);
        self.volume_reply(id)
    }

    fn rename(&mut self, name: &str, to: String) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        self.check_new_name(&to)?;
        self.catalog.volumes.get_mut(&id).expect("looked up before").name = to;
        self.log_volume(id);
        self.volume_reply(id)
    }

    fn delete(&mut self, name: &str) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        let volume = &self.catalog.volumes[&id];
        if let Some(holder) = Engine::holder(volume) {
            return Err(AdminError::Busy(holder));
        }
        if volume.child.is_some() {
            return Err(AdminError::Conflict("a superposition is running; collapse or abort it first"));
        }
        if self.is_leaving(id) {
            return Err(AdminError::Conflict("it is being moved to another pool; abort the move first"));
        }
        if self.is_attached(id) {
            return Err(AdminError::Conflict("somebody is attached to it; detach first"));
        }
        self.catalog.volumes.remove(&id);
        self.forget_keys();
        self.log_change(&Change::DeleteVolume(id));
        self.clean.scan();
        Ok(AdminReply::Done)
    }

    /// Makes a snapshot or clone: the present top layer stays as it is and each side goes on in a layer of its own.
    fn branch_off(&mut self, name: &str, to: String, kind: VolumeKind) -> Result<AdminReply, AdminError> {
        let source = self.volume_id(name)?;
        self.check_new_name(&to)?;
        self.catalog_room(4)?;
        let Volume { kind: source_kind, rule, ref primary, token_sha256, settings, .. } = self.catalog.volumes[&source];
        let (base, size_bytes) = (primary.head, primary.size_bytes);
        if source_kind == VolumeKind::Volume {
            let head = self.new_layer(Some(base));
            self.catalog.volumes.get_mut(&source).expect("looked up before").primary.head = head;
            self.log_volume(source);
        }
        let head = match kind {
            VolumeKind::Snapshot => base,
            VolumeKind::Volume => self.new_layer(Some(base)),
        };
        // The blocks are shared and with them the key; a share is granted to each volume by name, and a move takes the
        // volume along, not its snapshots and clones.
        let settings = Settings { share: None, moving: None, ..settings };
        self.enrol(to, kind, rule, token_sha256, settings, Branch { head, size_bytes, lease: None })
    }

    fn set_note(&mut self, name: &str, note: String) -> Result<AdminReply, AdminError> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(AdminError::Invalid("a note is at most 1024 bytes"));
        }
        let id = self.volume_id(name)?;
        self.catalog.volumes.get_mut(&id).expect("looked up before").note = note;
        self.log_volume(id);
        Ok(AdminReply::Done)
    }

    fn set_share(&mut self, name: &str, share: Option<Share>) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        share.map_or(Ok(()), |s| s.check()).map_err(AdminError::Invalid)?;
        self.catalog_room(1)?;
        self.catalog.volumes.get_mut(&id).expect("looked up before").settings.share = share;
        self.log_volume(id);
        self.volume_reply(id)
    }

    pub(crate) fn volume_reply(&self, id: VolumeId) -> Result<AdminReply, AdminError> {
        Ok(AdminReply::Volume(Box::new(self.state_of(&self.catalog.volumes[&id]))))
    }

    fn state_of(&self, volume: &Volume) -> VolumeState {
        let head = volume.primary.head;
        let running = volume.child.is_some();
        let phase = match &volume.race {
            Some(r) if running && r.race.phase() == Phase::Racing => SuperPhase::Racing,
            Some(_) if running => SuperPhase::Observed,
            _ => SuperPhase::None,
        };
        VolumeState {
            id: volume.id,
            name: volume.name.clone(),
            kind: volume.kind,
            size_bytes: volume.primary.size_bytes,
            own_bytes: self.catalog.layers[&head].blocks * BLOCK_BYTES,
            depth: self.catalog.depth(head),
            epoch: volume.epoch,
            rule: volume.rule,
            token_sha256: volume.token_sha256,
            lease: Engine::holder(volume),
            phase,
            super_id: volume.race.as_ref().filter(|_| running).map(|r| r.race.sid()),
            note: volume.note.clone(),
            cleaning: self.is_cleaned(head),
            access: volume
                .settings
                .access
                .map(|a| AccessState { generation: a.generation, secret: TokenSecret(a.secret) }),
            encrypted: volume.settings.encryption.is_some(),
            locked: !self.is_unlocked(volume),
            share: volume.settings.share,
        }
    }

    fn is_cleaned(&self, head: LayerId) -> bool {
        let mut at = Some(head);
        while let Some(layer) = at.and_then(|id| self.catalog.layers.get(&id)) {
            if layer.merging || self.catalog.layers.values().any(|l| l.dropping && l.parent == Some(layer.id)) {
                return true;
            }
            at = layer.parent;
        }
        false
    }

    fn pool_state(&self) -> PoolState {
        PoolState {
            capacity_bytes: self.layout.blocks * BLOCK_BYTES,
            free_bytes: self.alloc.free().saturating_sub(self.reserve_blocks) * BLOCK_BYTES,
            pending_bytes: self.space.pending_blocks() * BLOCK_BYTES,
            volumes: self.catalog.volumes.len() as u64,
            layers: self.catalog.layers.len() as u64,
            journal_used_bytes: self.journal_used_bytes(),
            journal_bytes: self.layout.journal_blocks * BLOCK_BYTES,
            cache_used_bytes: self.cache.in_use() as u64 * BLOCK_BYTES,
            cache_bytes: self.cache.capacity() as u64 * BLOCK_BYTES,
            bitmap_bytes: self.alloc.bytes(),
            poisoned: self.poisoned.is_some(),
            integrity_errors: self.integrity_errors,
            cleaning: self.cleaning_count() + u64::from(self.clean.runnable()),
            commits: self.commit.commits,
            checkpoints: self.ckpt.complete,
            bytes_copied: self.bytes_copied,
        }
    }
}

fn check_size(size_bytes: u64) -> Result<(), AdminError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK_BYTES) || size_bytes > VOLUME_BYTES_MAX {
        return Err(AdminError::Invalid("a size is a multiple of 4096 bytes, at most 16 TiB"));
    }
    Ok(())
}
