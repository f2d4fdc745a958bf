//! Attachments and leases: who may read or write which version now.
//!
//! Owns: the attachments, granting and ending leases. Never: decides a race (see `race` and `superposition`).
//! Invariant: at most one lease may write a version, and an attachment whose lease is over is fenced for good.

use super::Engine;
use super::access::{Pass, narrowed};
use crate::catalog::{Branch, HOLDER_BYTES_MAX, Lease, Volume};
use crate::op::{AdminError, AdminReply, AttachId, AttachMode, AttachState, Holder, TokenShown, VolumeKind};
use crate::superposition::{Phase, PrimaryAct, PrimaryVerdict};
use segue_types::{IoStatus, LayerId, LeaseId, TaskKind, VolumeId};

/// Which version an attachment uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Primary,
    Child,
    ReadOnly,
}

/// An open attachment.
#[derive(Clone)]
pub(crate) struct Attach {
    live: bool,
    fenced: bool,
    volume: VolumeId,
    role: Role,
    lease: Option<LeaseId>,
    in_flight: u32,
    /// Place of its volume's key; `NIL` when it is not encrypted.
    key: u32,
    pass: Pass,
}

impl Attach {
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// True when it is a session that counts under this mark of a token.
    pub(crate) fn counts_under(&self, volume: VolumeId, under: u64) -> bool {
        self.live && !self.fenced && self.volume == volume && self.pass.counts_under(under)
    }

    /// Fences it if it came with a token, or whatever it came with.
    pub(crate) fn end_by_revocation(&mut self, volume: VolumeId, all: bool) {
        self.fenced |= self.volume == volume && (all || self.pass.by_token);
    }

    /// True while it may still encrypt or decrypt with this key.
    pub(crate) fn uses_key(&self, key: u32) -> bool {
        self.key == key && (self.live || self.in_flight > 0)
    }
}

impl Attach {
    /// Its requests in flight died with the engine that had them.
    pub(crate) fn none_in_flight(&mut self) {
        self.in_flight = 0;
    }
}

/// What an attachment is bound to at this moment.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) head: LayerId,
    pub(crate) size_bytes: u64,
    pub(crate) read_only: bool,
    /// Bytes its token lets it touch.
    pub(crate) range: (u64, u64),
}

impl Engine {
    /// What the attachment may use now. Asked again at each stage of a request, because `super` and collapse
    /// change it in between.
    pub(crate) fn bind(&self, id: AttachId) -> Result<Bound, IoStatus> {
        let attach = self.attaches.get(id.0 as usize).filter(|a| a.live && !a.fenced).ok_or(IoStatus::Fenced)?;
        if self.now >= attach.pass.ends_at {
            return Err(IoStatus::Fenced);
        }
        let volume = self.catalog.volumes.get(&attach.volume).filter(|v| !v.is_sealed()).ok_or(IoStatus::Fenced)?;
        let branch = match attach.role {
            Role::Primary | Role::ReadOnly => &volume.primary,
            Role::Child => volume.child.as_ref().ok_or(IoStatus::Fenced)?,
        };
        let read_only = attach.role == Role::ReadOnly;
        Ok(Bound { head: branch.head, size_bytes: branch.size_bytes, read_only, range: attach.pass.range })
    }

    /// Names the version an attachment writes, to tell whether two requests may overlap.
    pub(crate) fn branch_of(&self, id: AttachId) -> (VolumeId, bool) {
        self.attaches.get(id.0 as usize).map_or((VolumeId(0), false), |a| (a.volume, a.role == Role::Child))
    }

    /// Asks the race of the attachment's volume, if it is the primary of one, and journals the mark if one is due.
    pub(crate) fn ask_race(&mut self, id: AttachId, act: PrimaryAct) -> PrimaryVerdict {
        let Some(attach) = self.attaches.get(id.0 as usize).filter(|a| a.live && !a.fenced) else {
            return PrimaryVerdict::Refuse;
        };
        if attach.role != Role::Primary {
            return PrimaryVerdict::Acknowledge;
        }
        let Some(volume) = self.catalog.volumes.get_mut(&attach.volume) else { return PrimaryVerdict::Refuse };
        let rule = volume.rule;
        let Some(part) = &mut volume.race else { return PrimaryVerdict::Acknowledge };
        // After a promotion the attachment is the winner's; the loser's are fenced already.
        if !matches!(part.race.phase(), Phase::Racing | Phase::Observed | Phase::Aborted) {
            return PrimaryVerdict::Acknowledge;
        }
        let verdict = part.race.primary(act, rule);
        if verdict == PrimaryVerdict::MarkThenAcknowledge {
            let volume = attach.volume;
            self.spread_race(volume);
        }
        verdict
    }

    /// A request of the attachment was answered.
    pub(crate) fn attach_request_ended(&mut self, id: AttachId) {
        if let Some(attach) = self.attaches.get_mut(id.0 as usize) {
            attach.in_flight -= 1;
        }
    }

    /// A request of the attachment came in: its slot is not used for another attachment before the answer.
    pub(crate) fn attach_request_begins(&mut self, id: AttachId) {
        if let Some(attach) = self.attaches.get_mut(id.0 as usize) {
            attach.in_flight += 1;
        }
    }

    /// The leases that are in no record: those taken by connecting.
    pub(crate) fn ephemeral_leases(&self) -> Vec<(VolumeId, Lease)> {
        let held = |v: &Volume| v.primary.lease.clone().filter(|l| !l.durable).map(|l| (v.id, l));
        self.catalog.volumes.values().filter_map(held).collect()
    }

    /// The attachments, to be brought back if an operation on them fails.
    pub(crate) fn copy_attaches(&self) -> Vec<Attach> {
        self.attaches.clone()
    }

    /// True while a request on the volume has no answer.
    pub(crate) fn is_busy(&self, volume: VolumeId) -> bool {
        self.attaches.iter().any(|a| a.volume == volume && a.in_flight > 0)
    }

    /// Fences every attachment of this role.
    pub(crate) fn fence_attaches(&mut self, volume: VolumeId, role: Role) {
        self.fault_point(TaskKind::Admin, "before a fence");
        for attach in self.attaches.iter_mut().filter(|a| a.volume == volume && a.role == role) {
            attach.fenced = true;
        }
    }

    /// Fences every attachment of the volume.
    pub(crate) fn fence_volume(&mut self, volume: VolumeId) {
        for attach in self.attaches.iter_mut().filter(|a| a.volume == volume) {
            attach.fenced = true;
        }
    }

    /// The child's attachments are the volume's now.
    pub(crate) fn promote_attaches(&mut self, volume: VolumeId) {
        for attach in self.attaches.iter_mut().filter(|a| a.volume == volume && a.role == Role::Child) {
            attach.role = Role::Primary;
        }
    }

    /// True when an attachment to the volume is open and not fenced.
    pub(crate) fn is_attached(&self, volume: VolumeId) -> bool {
        self.attaches.iter().any(|a| a.live && !a.fenced && a.volume == volume)
    }

    pub(crate) fn attach(
        &mut self,
        name: &str,
        mode: AttachMode,
        sha256: Option<[u8; 32]>,
        shown: Option<&TokenShown>,
    ) -> Result<AdminReply, AdminError> {
        let volume = self.catalog.by_name(name).ok_or(AdminError::NotFound)?;
        let (pass, read_only) = self.admit_client(volume, sha256.as_ref(), shown)?;
        let mode = narrowed(mode, read_only)?;
        check_open(volume)?;
        let (id, key) = (volume.id, self.key_of(volume)?);
        let (role, lease) = match mode {
            AttachMode::ReadOnly => (Role::ReadOnly, None),
            _ if volume.kind == VolumeKind::Snapshot => (Role::ReadOnly, None),
            AttachMode::Lease(lease) => {
                let holds = |b: &Branch| b.lease.as_ref().is_some_and(|l| l.id == lease);
                match (holds(&volume.primary), volume.child.as_ref().is_some_and(holds)) {
                    (true, _) => (Role::Primary, Some(lease)),
                    (false, true) => (Role::Child, Some(lease)),
                    (false, false) => return Err(AdminError::Fenced),
                }
            }
            AttachMode::Implicit { lease, holder, now_unix_ms } => {
                (Role::Primary, Some(self.share_or_take(id, lease, holder, now_unix_ms)?))
            }
        };
        let fresh = Attach { live: true, fenced: false, volume: id, role, lease, in_flight: 0, key, pass };
        let slot = match self.attaches.iter().position(|a| !a.live && a.in_flight == 0) {
            Some(slot) => {
                self.attaches[slot] = fresh;
                slot
            }
            None => {
                self.attaches.push(fresh);
                self.attaches.len() - 1
            }
        };
        let attach = AttachId(slot as u32);
        let bound = self.bind(attach).expect("the attachment was just made");
        let epoch = self.catalog.volumes[&id].epoch;
        Ok(AdminReply::Attached(AttachState {
            attach,
            size_bytes: bound.size_bytes,
            read_only: bound.read_only,
            epoch,
        }))
    }

    fn share_or_take(
        &mut self,
        id: VolumeId,
        lease: LeaseId,
        holder: String,
        now_unix_ms: u64,
    ) -> Result<LeaseId, AdminError> {
        check_holder(&holder)?;
        let volume = self.catalog.volumes.get_mut(&id).expect("looked up before");
        match &volume.primary.lease {
            Some(held) if !held.durable && held.holder == holder => Ok(held.id),
            Some(held) => Err(AdminError::Busy(holder_of(held))),
            None => {
                volume.primary.lease = Some(Lease { id: lease, holder, since_unix_ms: now_unix_ms, durable: false });
                volume.epoch += 1;
                // The epoch never goes back, not even across a restart; nobody needs to wait for that.
                self.log_volume(id);
                Ok(lease)
            }
        }
    }

    pub(crate) fn detach(&mut self, id: AttachId) -> Result<AdminReply, AdminError> {
        let attach = self.attaches.get_mut(id.0 as usize).filter(|a| a.live).ok_or(AdminError::NotFound)?;
        attach.live = false;
        let (volume, lease) = (attach.volume, attach.lease);
        let others = self.attaches.iter().any(|a| a.live && !a.fenced && a.volume == volume && a.lease == lease);
        if let Some(v) = self.catalog.volumes.get_mut(&volume)
            && !others
            && v.primary.lease.as_ref().is_some_and(|l| !l.durable && Some(l.id) == lease)
        {
            v.primary.lease = None;
        }
        Ok(AdminReply::Done)
    }

    pub(crate) fn acquire(
        &mut self,
        name: &str,
        lease: LeaseId,
        holder: String,
        now_unix_ms: u64,
    ) -> Result<AdminReply, AdminError> {
        check_holder(&holder)?;
        let id = self.volume_id(name)?;
        let volume = self.catalog.volumes.get_mut(&id).expect("looked up before");
        if volume.kind == VolumeKind::Snapshot {
            return Err(AdminError::Invalid("a snapshot is read-only and has no lease"));
        }
        if let Some(held) = &volume.primary.lease {
            return Err(AdminError::Busy(holder_of(held)));
        }
        volume.primary.lease = Some(Lease { id: lease, holder, since_unix_ms: now_unix_ms, durable: true });
        volume.epoch += 1;
        let epoch = volume.epoch;
        self.log_volume(id);
        Ok(AdminReply::Leased { epoch })
    }

    pub(crate) fn release_lease(&mut self, name: &str, lease: LeaseId) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        let volume = self.catalog.volumes.get_mut(&id).expect("looked up before");
        let holds = |b: &Branch| b.lease.as_ref().is_some_and(|l| l.id == lease);
        let role = if holds(&volume.primary) {
            volume.primary.lease = None;
            Role::Primary
        } else if let Some(child) = volume.child.as_mut().filter(|c| holds(c)) {
            child.lease = None;
            Role::Child
        } else {
            return Err(AdminError::Fenced);
        };
        volume.epoch += 1;
        self.fence_attaches(id, role);
        self.log_volume(id);
        Ok(AdminReply::Done)
    }

    /// The volume of this name, if it may be changed here and now.
    pub(crate) fn volume_id(&self, name: &str) -> Result<VolumeId, AdminError> {
        let volume = self.catalog.by_name(name).ok_or(AdminError::NotFound)?;
        check_open(volume)?;
        Ok(volume.id)
    }

    pub(crate) fn holder(volume: &Volume) -> Option<Holder> {
        volume.primary.lease.as_ref().map(holder_of)
    }
}

/// Errs while the volume is being handed to another pool.
fn check_open(volume: &Volume) -> Result<(), AdminError> {
    match volume.is_sealed() {
        true => Err(AdminError::Conflict("the volume is being handed over to another pool; ask again in a moment")),
        false => Ok(()),
    }
}

/// The public part of a lease.
pub(crate) fn holder_of(lease: &Lease) -> Holder {
    Holder { holder: lease.holder.clone(), since_unix_ms: lease.since_unix_ms, durable: lease.durable }
}

pub(crate) fn check_holder(holder: &str) -> Result<(), AdminError> {
    if holder.is_empty() || holder.len() > HOLDER_BYTES_MAX {
        return Err(AdminError::Invalid("a holder is 1 to 256 bytes of text"));
    }
    Ok(())
}
