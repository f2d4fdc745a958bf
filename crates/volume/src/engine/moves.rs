//! Moves of volumes to other pools: what each step does to the records of this pool.
//!
//! Owns: the stages of a move in the volume's record, and its layers. Never: copies blocks (see `move_read`, `move_write`).
//! Invariant: each step is one journal record, and a step asked again after a crash finds its work done.
//!
//! The protocol and its crash matrix: docs/migration.md. After Decibel's capacity migration (NSDI 2017, section 4.4).

use super::Engine;
use crate::catalog::{Branch, RaceRef, Volume};
use crate::journal::Change;
use crate::moving::{Moving, Stage};
use crate::op::{
    AdminError, AdminReply, MoveOp, MoveReply, MoveStage, MoveState, ObservationRule, Passport, VolumeKind,
};
use crate::settings::Settings;
use crate::superposition::Race;
use segue_types::{LayerId, MoveId, VolumeId};
use std::collections::BTreeSet;

const NO_MOVE: AdminError = AdminError::Conflict("no such move here: it was given up, or ended by a superposition");

impl Engine {
    /// Runs an operation on a move that needs no I/O of its own.
    pub(crate) fn move_op(&mut self, op: MoveOp) -> Result<AdminReply, AdminError> {
        match op {
            MoveOp::Measure { name } => self.move_measure(&name),
            MoveOp::Expect { id, name, peer, size_bytes, blocks } => {
                self.move_expect(id, name, peer, size_bytes, blocks)
            }
            MoveOp::Begin { id, name, peer } => self.move_begin(id, &name, peer),
            MoveOp::Freeze { id, round } => self.move_freeze(id, round),
            MoveOp::Seal { id, round } => self.move_seal(id, round),
            MoveOp::Unseal { id } => self.move_unseal(id),
            MoveOp::Commit { id, round, passport } => self.move_commit(id, round, passport),
            MoveOp::Finish { id } => self.move_finish(id),
            MoveOp::Settle { id } => self.move_settle(id),
            MoveOp::Abort { id } => self.move_abort(id),
            MoveOp::List => Ok(AdminReply::Move(self.move_list())),
            MoveOp::Read { .. } | MoveOp::Write { .. } => unreachable!("handled before"),
        }
    }

    /// The volume of a move, and its part in it.
    pub(crate) fn find_move(&self, id: MoveId) -> Option<(VolumeId, Moving)> {
        let part = |v: &Volume| v.settings.moving.filter(|m| m.id == id).map(|m| (v.id, m));
        self.catalog.volumes.values().find_map(part)
    }

    /// The layers that moves need as they are.
    pub(crate) fn move_pins(&self) -> BTreeSet<LayerId> {
        self.catalog.volumes.values().filter_map(|v| v.settings.moving).flat_map(|m| m.pins()).flatten().collect()
    }

    /// True while the volume is being copied to another pool.
    pub(crate) fn is_leaving(&self, id: VolumeId) -> bool {
        let moving = self.catalog.volumes.get(&id).and_then(|v| v.settings.moving);
        moving.is_some_and(|m| matches!(m.stage, Stage::Leaving { .. } | Stage::Sealed { .. }))
    }

    pub(crate) fn set_moving(&mut self, volume: VolumeId, moving: Option<Moving>) {
        self.catalog.volumes.get_mut(&volume).expect("looked up before").settings.moving = moving;
        self.log_volume(volume);
    }

    /// Blocks held by the layers from `frozen` down to `base`, which is not counted.
    fn blocks_between(&self, frozen: LayerId, base: Option<LayerId>) -> u64 {
        let (mut at, mut blocks) = (Some(frozen), 0);
        while let Some(layer) = at.filter(|id| Some(*id) != base).and_then(|id| self.catalog.layers.get(&id)) {
            blocks += layer.blocks;
            at = layer.parent;
        }
        blocks
    }

    fn movable(&self, name: &str) -> Result<&Volume, AdminError> {
        let volume = &self.catalog.volumes[&self.volume_id(name)?];
        if volume.kind == VolumeKind::Snapshot {
            return Err(AdminError::Invalid("a snapshot stays with its pool; make a clone of it and move that"));
        }
        if volume.child.is_some() {
            return Err(AdminError::Conflict("a superposition is running; collapse or abort it first"));
        }
        Ok(volume)
    }

    fn move_measure(&self, name: &str) -> Result<AdminReply, AdminError> {
        let volume = self.movable(name)?;
        match volume.settings.moving.map(|m| m.stage) {
            None => {}
            Some(Stage::Arrived) => {
                return Err(AdminError::Conflict(
                    "the pool it came from has not confirmed its last move; open that pool on this node first",
                ));
            }
            Some(_) => return Err(AdminError::Conflict("it is being moved already")),
        }
        let (size_bytes, blocks) = (volume.primary.size_bytes, self.blocks_between(volume.primary.head, None));
        Ok(AdminReply::Move(MoveReply::Measured { pool: self.uuid, size_bytes, blocks }))
    }

    fn move_expect(
        &mut self,
        id: MoveId,
        name: String,
        peer: [u8; 16],
        size_bytes: u64,
        blocks: u64,
    ) -> Result<AdminReply, AdminError> {
        if self.find_move(id).is_some() {
            return Ok(AdminReply::Done);
        }
        if peer == self.uuid {
            return Err(AdminError::Invalid("the volume is in this pool already"));
        }
        self.check_new_name(&name)?;
        self.catalog_room(2)?;
        // A map page for each 256 blocks at best; scattered ones take more and are seen when they come.
        let need = blocks + blocks.div_ceil(256) + 8;
        if self.alloc.free() < need + self.reserve_blocks {
            return Err(AdminError::NoSpace);
        }
        let head = self.new_layer(None);
        let stage = Stage::Incoming { cursor: 0 };
        let moving = Some(Moving { id, peer, round: 0, stage });
        let volume = VolumeId(self.catalog.next_volume);
        self.catalog.put_volume(Volume {
            id: volume,
            name,
            kind: VolumeKind::Volume,
            rule: ObservationRule::Flush,
            token_sha256: None,
            epoch: 0,
            note: String::new(),
            primary: Branch { head, size_bytes, lease: None },
            child: None,
            race: None,
            settings: Settings { moving, ..Settings::default() },
        });
        self.log_volume(volume);
        Ok(AdminReply::Done)
    }

    fn move_begin(&mut self, id: MoveId, name: &str, peer: [u8; 16]) -> Result<AdminReply, AdminError> {
        if let Some((_, Moving { stage: Stage::Leaving { frozen, base }, round: 0, .. })) = self.find_move(id) {
            return Ok(self.frozen(frozen, base));
        }
        let volume = self.movable(name)?;
        if volume.settings.moving.is_some() {
            return Err(AdminError::Conflict("it is being moved already"));
        }
        let (volume, frozen) = (volume.id, volume.primary.head);
        self.catalog_room(2)?;
        self.put_head(volume, frozen);
        self.set_moving(volume, Some(Moving { id, peer, round: 0, stage: Stage::Leaving { frozen, base: None } }));
        Ok(self.frozen(frozen, None))
    }

    /// Gives a volume a fresh layer to write to; what it had is frozen.
    fn put_head(&mut self, volume: VolumeId, frozen: LayerId) {
        let head = self.new_layer(Some(frozen));
        self.catalog.volumes.get_mut(&volume).expect("looked up before").primary.head = head;
    }

    fn frozen(&self, frozen: LayerId, base: Option<LayerId>) -> AdminReply {
        AdminReply::Move(MoveReply::Frozen { blocks: self.blocks_between(frozen, base) })
    }

    /// Freezes what was written since; returns the new part of the volume.
    fn next_round(&mut self, id: MoveId, round: u32) -> Result<(VolumeId, Moving), AdminError> {
        let (volume, moving) = self.find_move(id).ok_or(NO_MOVE)?;
        let Stage::Leaving { frozen: before, .. } = moving.stage else { return Err(NO_MOVE) };
        if moving.round + 1 != round {
            return Err(AdminError::Conflict("a move's rounds come one after another"));
        }
        self.catalog_room(1)?;
        let frozen = self.catalog.volumes[&volume].primary.head;
        self.put_head(volume, frozen);
        // The round before is in the other pool: its layer need not stand apart from what is below it any more.
        self.clean.scan();
        Ok((volume, Moving { round, stage: Stage::Leaving { frozen, base: Some(before) }, ..moving }))
    }

    fn move_freeze(&mut self, id: MoveId, round: u32) -> Result<AdminReply, AdminError> {
        if let Some((_, Moving { stage: Stage::Leaving { frozen, base }, round: now, .. })) = self.find_move(id)
            && now == round
        {
            return Ok(self.frozen(frozen, base));
        }
        let (volume, moving) = self.next_round(id, round)?;
        self.set_moving(volume, Some(moving));
        let Stage::Leaving { frozen, base } = moving.stage else { unreachable!("a fresh round is being copied") };
        Ok(self.frozen(frozen, base))
    }

    fn move_seal(&mut self, id: MoveId, round: u32) -> Result<AdminReply, AdminError> {
        let (volume, _) = self.find_move(id).ok_or(NO_MOVE)?;
        if self.is_busy(volume) {
            return Err(AdminError::Conflict("requests are in flight; hold them back first"));
        }
        let (volume, moving) = self.next_round(id, round)?;
        let Stage::Leaving { frozen, base } = moving.stage else { unreachable!("a fresh round is being copied") };
        self.set_moving(volume, Some(Moving { stage: Stage::Sealed { frozen, base }, ..moving }));
        let record = &self.catalog.volumes[&volume];
        let passport = Passport { volume: Box::new(record.clone()), key: self.carry_key(record) };
        Ok(AdminReply::Move(MoveReply::Sealed { blocks: self.blocks_between(frozen, base), passport }))
    }

    fn move_unseal(&mut self, id: MoveId) -> Result<AdminReply, AdminError> {
        let (volume, moving) = self.find_move(id).ok_or(NO_MOVE)?;
        if let Stage::Sealed { frozen, base } = moving.stage {
            self.set_moving(volume, Some(Moving { stage: Stage::Leaving { frozen, base }, ..moving }));
        }
        Ok(AdminReply::Done)
    }

    fn move_commit(&mut self, id: MoveId, round: u32, passport: Passport) -> Result<AdminReply, AdminError> {
        let (at, moving) = self.find_move(id).ok_or(NO_MOVE)?;
        if moving.stage == Stage::Arrived {
            return Ok(AdminReply::Done);
        }
        if !self.is_copied(id, round) {
            return Err(AdminError::Conflict("the copy is not whole"));
        }
        let theirs = *passport.volume;
        if self.catalog.by_name(&theirs.name).is_some() {
            return Err(AdminError::Exists);
        }
        self.catalog_room(2)?;
        self.take_key(&theirs, &passport.key);
        let head = self.catalog.volumes[&at].primary.head;
        // Who won a race is remembered; its group was another pool's.
        let race = theirs.race.map(|r| {
            let race = Race::recover(r.race.sid(), r.race.phase());
            RaceRef { race, members: vec![at] }
        });
        let settings = Settings { moving: Some(Moving { stage: Stage::Arrived, ..moving }), ..theirs.settings };
        let primary = Branch { head, ..theirs.primary };
        let epoch = theirs.epoch + 1;
        self.catalog.put_volume(Volume { id: at, epoch, primary, race, child: None, settings, ..theirs });
        self.log_volume(at);
        Ok(AdminReply::Done)
    }

    fn move_finish(&mut self, id: MoveId) -> Result<AdminReply, AdminError> {
        let Some((volume, moving)) = self.find_move(id) else { return Ok(AdminReply::Done) };
        if !matches!(moving.stage, Stage::Sealed { .. }) {
            return Err(AdminError::Conflict("the volume was not handed over"));
        }
        self.fence_volume(volume);
        self.catalog.volumes.remove(&volume);
        self.log_change(&Change::DeleteVolume(volume));
        self.forget_keys();
        self.clean.scan();
        Ok(AdminReply::Done)
    }

    fn move_settle(&mut self, id: MoveId) -> Result<AdminReply, AdminError> {
        let Some((volume, moving)) = self.find_move(id) else { return Ok(AdminReply::Done) };
        if moving.stage != Stage::Arrived {
            return Err(AdminError::Conflict("the volume has not arrived"));
        }
        let attached = self.is_attached(volume);
        let v = self.catalog.volumes.get_mut(&volume).expect("looked up before");
        // The lease of connections that did not live to see the new place.
        if !attached && v.primary.lease.as_ref().is_some_and(|l| !l.durable) {
            v.primary.lease = None;
        }
        self.set_moving(volume, None);
        Ok(AdminReply::Done)
    }

    fn move_abort(&mut self, id: MoveId) -> Result<AdminReply, AdminError> {
        let Some((volume, moving)) = self.find_move(id) else { return Ok(AdminReply::Done) };
        match moving.stage {
            Stage::Arrived => return Err(AdminError::Conflict("the volume has moved already; move it back")),
            Stage::Leaving { .. } | Stage::Sealed { .. } => self.set_moving(volume, None),
            Stage::Incoming { .. } => {
                self.catalog.volumes.remove(&volume);
                self.log_change(&Change::DeleteVolume(volume));
            }
        }
        self.clean.scan();
        Ok(AdminReply::Done)
    }

    fn move_list(&self) -> MoveReply {
        let state = |v: &Volume| {
            let m = v.settings.moving?;
            let stage = match m.stage {
                Stage::Leaving { frozen, base } => MoveStage::Leaving { blocks: self.blocks_between(frozen, base) },
                Stage::Sealed { .. } => MoveStage::Sealed,
                Stage::Incoming { cursor } => MoveStage::Incoming { cursor_block: cursor },
                Stage::Arrived => MoveStage::Arrived,
            };
            Some(MoveState { id: m.id, name: v.name.clone(), peer: m.peer, round: m.round, stage })
        };
        MoveReply::Moves { pool: self.uuid, moves: self.catalog.volumes.values().filter_map(state).collect() }
    }

    /// The size of the moved volume may have grown since; the hidden copy takes blocks of any number.
    pub(crate) fn incoming_head(&self, id: MoveId) -> Option<(VolumeId, LayerId, Moving)> {
        let (volume, moving) = self.find_move(id)?;
        matches!(moving.stage, Stage::Incoming { .. })
            .then(|| (volume, self.catalog.volumes[&volume].primary.head, moving))
    }
}
