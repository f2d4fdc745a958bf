//! `super`, `collapse`, `abort` and the lease break, applied to layers, leases and records.
//!
//! Owns: what each decision of the race does to its volumes. Never: decides who wins (see `superposition`).
//! Invariant: every member of a group changes in the same journal record.

use super::Engine;
use super::lease::{Role, check_holder};
use crate::catalog::{Branch, GROUP_MAX, Lease, RaceRef};
use crate::journal::Change;
use crate::op::{AdminError, AdminReply, VolumeKind};
use crate::superposition::{CollapseVerdict, EndVerdict, Phase, Race};
use segue_types::{LayerId, LeaseId, SuperId, TaskKind, VolumeId};

impl Engine {
    /// Starts a superposition: two new empty layers per volume, whatever its size.
    pub(crate) fn super_(
        &mut self,
        names: &[String],
        leases: &[LeaseId],
        holder: &str,
        now_unix_ms: u64,
    ) -> Result<AdminReply, AdminError> {
        check_holder(holder)?;
        if names.is_empty() || names.len() > GROUP_MAX || leases.len() != names.len() {
            return Err(AdminError::Invalid("a group has 1 to 16 volumes and one lease for each"));
        }
        let mut members = Vec::with_capacity(names.len());
        for name in names {
            let id = self.volume_id(name)?;
            let volume = &self.catalog.volumes[&id];
            if volume.kind == VolumeKind::Snapshot {
                return Err(AdminError::Invalid("a snapshot has no superposition"));
            }
            if volume.child.is_some() {
                return Err(AdminError::Conflict("a superposition is running; collapse or abort it first"));
            }
            if members.contains(&id) {
                return Err(AdminError::Invalid("a volume is named twice"));
            }
            members.push(id);
        }
        self.catalog_room(4 * members.len())?;
        let super_id = SuperId(self.catalog.next_super);
        self.catalog.next_super += 1;
        let mut epochs = Vec::with_capacity(members.len());
        for (id, lease) in members.iter().zip(leases) {
            let base = self.catalog.volumes[id].primary.head;
            let (primary, child) = (self.new_layer(Some(base)), self.new_layer(Some(base)));
            let lease = Lease { id: *lease, holder: holder.to_owned(), since_unix_ms: now_unix_ms, durable: true };
            let volume = self.catalog.volumes.get_mut(id).expect("looked up before");
            // Recovery goes before housekeeping: a move of the volume ends here and may begin again later.
            volume.settings.moving = None;
            volume.primary.head = primary;
            let size_bytes = volume.primary.size_bytes;
            volume.child = Some(Branch { head: child, size_bytes, lease: Some(lease) });
            volume.race = Some(RaceRef { race: Race::start(super_id), members: members.clone() });
            epochs.push(volume.epoch);
            self.log_volume(*id);
        }
        Ok(AdminReply::Super { super_id, epochs })
    }

    /// A new empty layer, journaled.
    pub(crate) fn new_layer(&mut self, parent: Option<LayerId>) -> LayerId {
        let layer = LayerId(self.catalog.next_layer);
        self.catalog.put_layer(layer, parent, false, false);
        self.fault_point(TaskKind::Admin, "layer made, not logged");
        self.log_change(&Change::PutLayer { layer, parent, merging: false, dropping: false });
        layer
    }

    /// Who won; if nobody yet, the children.
    pub(crate) fn collapse(&mut self, name: &str, sid: SuperId) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        let part = self.race_mut(id)?;
        match part.race.collapse(sid) {
            CollapseVerdict::Promote => {
                for member in self.spread_race_quietly(id) {
                    self.promote(member);
                }
                Ok(AdminReply::Collapsed { promoted: true })
            }
            // The caller waits for everything pending either way, so both kinds of `When` are met.
            CollapseVerdict::AlreadyPromoted(_) => Ok(AdminReply::Collapsed { promoted: true }),
            CollapseVerdict::PrimaryObserved(_) => Ok(AdminReply::Collapsed { promoted: false }),
            CollapseVerdict::Unknown => Err(AdminError::Conflict("the volume has no superposition of this id")),
        }
    }

    fn promote(&mut self, id: VolumeId) {
        self.fence_attaches(id, Role::Primary);
        self.promote_attaches(id);
        let volume = self.catalog.volumes.get_mut(&id).expect("members exist");
        volume.primary = volume.child.take().expect("a racing volume has a child");
        volume.epoch += 1;
        self.log_volume(id);
        self.clean.scan();
    }

    /// Ends a superposition in favour of the primary.
    pub(crate) fn abort(&mut self, name: &str, sid: SuperId) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        match self.race_mut(id)?.race.abort(sid) {
            EndVerdict::End => {
                for member in self.spread_race_quietly(id) {
                    self.drop_child(member);
                    self.log_volume(member);
                }
                Ok(AdminReply::Done)
            }
            EndVerdict::AlreadyEnded(_) => Ok(AdminReply::Done),
            EndVerdict::AlreadyPromoted(_) => Err(AdminError::Conflict("the child was promoted; it cannot be aborted")),
            EndVerdict::Unknown => Err(AdminError::Conflict("the volume has no superposition of this id")),
        }
    }

    fn drop_child(&mut self, id: VolumeId) {
        self.fence_attaches(id, Role::Child);
        self.catalog.volumes.get_mut(&id).expect("members exist").child = None;
        self.clean.scan();
    }

    /// Takes the right to write away from whoever has it, in the whole group if a race runs.
    pub(crate) fn break_lease(&mut self, name: &str) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        let mut members = vec![id];
        let racing = self.catalog.volumes[&id].child.is_some();
        if racing && self.race_mut(id)?.race.fence() == EndVerdict::End {
            members = self.spread_race_quietly(id);
            for member in &members {
                self.drop_child(*member);
            }
        }
        for member in members {
            self.fence_attaches(member, Role::Primary);
            let volume = self.catalog.volumes.get_mut(&member).expect("members exist");
            volume.primary.lease = None;
            volume.epoch += 1;
            self.log_volume(member);
        }
        Ok(AdminReply::Done)
    }

    fn race_mut(&mut self, id: VolumeId) -> Result<&mut RaceRef, AdminError> {
        let volume = self.catalog.volumes.get_mut(&id).expect("looked up before");
        volume.race.as_mut().ok_or(AdminError::Conflict("the volume has no superposition"))
    }

    /// Copies the race of one member to all, so that they stay equal. Returns the members.
    fn spread_race_quietly(&mut self, id: VolumeId) -> Vec<VolumeId> {
        let part = self.catalog.volumes[&id].race.clone().expect("the volume is in a race");
        for member in &part.members {
            if let Some(volume) = self.catalog.volumes.get_mut(member)
                && let Some(theirs) = volume.race.as_mut().filter(|r| r.race.sid() == part.race.sid())
            {
                theirs.race = part.race;
            }
        }
        part.members
    }

    /// The same, journaled: the primary was marked observed.
    pub(crate) fn spread_race(&mut self, id: VolumeId) {
        for member in self.spread_race_quietly(id) {
            self.log_volume(member);
        }
        self.commit.want();
    }

    /// A phase of a volume's race is on the drive.
    pub(crate) fn race_durable(&mut self, id: VolumeId, sid: SuperId, phase: Phase) {
        if let Some(volume) = self.catalog.volumes.get_mut(&id)
            && let Some(part) = volume.race.as_mut().filter(|r| r.race.sid() == sid)
        {
            part.race.made_durable(phase);
        }
    }
}
