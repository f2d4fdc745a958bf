//! The admin operations of a random life and what they do to the model.
//!
//! Owns: volumes, leases and races of the model. Never: has more than one operation in flight.
//! Invariant: the model changes when the answer comes, and not at all on a refusal.

use super::{Att, ChildM, Fence, Intent, RaceM, Torture, Vol};
use crate::sim::encryption;
use crate::sim::model::Branch;
use segue_types::{BLOCK_BYTES, LeaseId, SuperId};
use segue_volume::op::{AdminError, AdminOp, AdminReply, AttachMode, ObservationRule, Tag};

impl Torture {
    // Admin operations.

    pub(super) fn admin(&mut self) {
        if self.intent.is_some() {
            return;
        }
        let vols = self.live_vols();
        if vols.is_empty() {
            return;
        }
        let volume = *self.chance.pick(&vols);
        match self.chance.weighted(&[6, 4, 4, 4, 3, 2, 8, 3, 10, 9, 4, 2, 3, 2, 12, 4]) {
            0 if vols.len() < self.plan.volumes_max => self.create(),
            1 if vols.len() < self.plan.volumes_max => self.copy(volume, true),
            2 if vols.len() < self.plan.volumes_max => self.copy(volume, false),
            3 => self.delete(volume),
            4 => self.resize(volume),
            5 => self.rename(volume),
            6 => self.acquire(volume),
            7 => self.release(volume),
            8 => self.start_race(volume),
            9 => self.collapse(volume),
            10 => self.abort(volume),
            11 => self.break_lease(volume),
            12 => self.begin_admin(AdminOp::Checkpoint, Intent::Nothing),
            13 => self.begin_admin(AdminOp::ScrubStart, Intent::Nothing),
            14 => self.attach(volume),
            15 => self.detach_one(),
            _ => {}
        }
    }

    pub(super) fn begin_admin(&mut self, op: AdminOp, intent: Intent) {
        let tag = self.sim.submit_admin(op);
        self.intent = Some((tag, intent));
    }

    pub(super) fn create(&mut self) {
        let name = self.name();
        let size = *self.chance.pick(&[64 << 10, 2 << 20, 1 << 30, 300 << 30]);
        let rule = *self.chance.pick(&[ObservationRule::Write, ObservationRule::Flush]);
        let salt = self.next_name as u8;
        let encryption = self.chance.odds(self.plan.encrypted, 4).then(|| encryption(salt));
        let op = AdminOp::Create { name: name.clone(), size_bytes: size, rule, token_sha256: None, encryption };
        self.begin_admin(op, Intent::Create { name, size, rule });
    }

    pub(super) fn copy(&mut self, of: usize, snapshot: bool) {
        let to = self.name();
        let name = self.vols[of].name.clone();
        let (size, lows) = (self.vols[of].size, self.branches[self.vols[of].head].lows());
        let intent = Intent::Copy { of, name: to.clone(), snapshot, size, lows };
        let op = if snapshot { AdminOp::Snapshot { name, to } } else { AdminOp::Clone { name, to } };
        self.begin_admin(op, intent);
    }

    pub(super) fn is_attached(&self, volume: usize) -> bool {
        self.atts.iter().any(|a| a.volume == volume && !a.gone)
    }

    pub(super) fn delete(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if v.lease.is_none() && v.race.is_none() && !self.is_attached(volume) {
            self.begin_admin(AdminOp::Delete { name: v.name.clone() }, Intent::Delete { volume });
        }
    }

    pub(super) fn resize(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if !v.snapshot {
            let size = v.size + BLOCK_BYTES * self.chance.between(1, 3000);
            let op = AdminOp::Resize { name: v.name.clone(), size_bytes: size };
            self.begin_admin(op, Intent::Resize { volume, size });
        }
    }

    pub(super) fn rename(&mut self, volume: usize) {
        let to = self.name();
        let op = AdminOp::Rename { name: self.vols[volume].name.clone(), to: to.clone() };
        self.begin_admin(op, Intent::Rename { volume, to });
    }

    pub(super) fn acquire(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if v.lease.is_none() && !v.snapshot {
            let name = v.name.clone();
            let lease = self.lease_id();
            let op = AdminOp::Acquire { name, lease, holder: "torture".into(), now_unix_ms: 7 };
            self.begin_admin(op, Intent::Acquire { volume, lease });
        }
    }

    pub(super) fn release(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if let Some(lease) = v.lease
            && v.race.is_none()
            && !self.is_attached(volume)
        {
            self.begin_admin(AdminOp::Release { name: v.name.clone(), lease }, Intent::Release { volume });
        }
    }

    pub(super) fn start_race(&mut self, volume: usize) {
        let able = |v: &Vol| !v.deleted && !v.snapshot && v.race.is_none() && v.lease.is_some();
        let mut members: Vec<usize> = (0..self.vols.len()).filter(|v| able(&self.vols[*v])).collect();
        self.chance.shuffle(&mut members);
        members.truncate(1 + self.chance.below(3) as usize);
        if members.is_empty() || (members.len() == 1 && members[0] != volume && self.chance.odds(1, 2)) {
            return;
        }
        let child_leases: Vec<LeaseId> = members.iter().map(|_| self.lease_id()).collect();
        let names = members.iter().map(|v| self.vols[*v].name.clone()).collect();
        let lows = members.iter().map(|v| self.branches[self.vols[*v].head].lows()).collect();
        let leases = child_leases.clone();
        let observers = (!self.observers_fly()).then_some(self.observers);
        let op = AdminOp::Super { names, child_leases, holder: "backup".into(), now_unix_ms: 8 };
        self.begin_admin(op, Intent::Super { members, leases, lows, observers });
    }

    pub(super) fn collapse(&mut self, volume: usize) {
        let Some(race) = self.vols[volume].race else { return };
        self.fence(race, true, Fence::May);
        let (name, super_id) = (self.vols[volume].name.clone(), self.races[race].sid);
        self.begin_admin(AdminOp::Collapse { name, super_id }, Intent::Collapse { race });
    }

    pub(super) fn abort(&mut self, volume: usize) {
        let Some(race) = self.vols[volume].race else { return };
        self.fence(race, false, Fence::May);
        let (name, super_id) = (self.vols[volume].name.clone(), self.races[race].sid);
        self.begin_admin(AdminOp::Abort { name, super_id }, Intent::Abort { race });
    }

    pub(super) fn break_lease(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if v.snapshot {
            return;
        }
        if let Some(race) = v.race {
            self.fence(race, false, Fence::May);
            self.fence(race, true, Fence::May);
        }
        self.fence_branch(self.vols[volume].head, Fence::May);
        let name = self.vols[volume].name.clone();
        self.begin_admin(AdminOp::BreakLease { name }, Intent::Break { volume });
    }

    /// Changes the fence of the primaries (or children) of a race.
    pub(super) fn fence(&mut self, race: usize, primaries: bool, to: Fence) {
        for volume in self.races[race].members.clone() {
            let child = self.vols[volume].child.as_ref().expect("racing volumes have children").branch;
            self.fence_branch(if primaries { self.vols[volume].head } else { child }, to);
        }
    }

    pub(super) fn fence_branch(&mut self, branch: usize, to: Fence) {
        let writers = self.atts.iter_mut().filter(|a| a.branch == branch && !a.read_only && a.fence != Fence::Must);
        writers.for_each(|a| a.fence = to);
    }

    pub(super) fn attach(&mut self, volume: usize) {
        let v = self.vols[volume].clone();
        // What is in flight could end the lease meanwhile.
        if self.intent.is_some() || self.atts.iter().filter(|a| !a.gone).count() > 12 {
            return;
        }
        let mut modes = vec![];
        if let Some(lease) = v.lease {
            modes.push((AttachMode::Lease(lease), v.head));
        }
        if let Some(child) = &v.child {
            modes.push((AttachMode::Lease(child.lease), child.branch));
        }
        if v.snapshot {
            modes.push((AttachMode::ReadOnly, v.head));
        }
        if modes.is_empty() {
            return;
        }
        let (mode, branch) = self.chance.pick(&modes).clone();
        let read_only = mode == AttachMode::ReadOnly;
        match self.sim.attach(&v.name, mode) {
            Ok(state) => {
                assert_eq!(state.read_only, read_only);
                let (id, fence) = (state.attach, Fence::No);
                self.atts.push(Att { id, volume, branch, read_only, fence, flying: 0, gone: false });
                assert_eq!(state.size_bytes, self.att_size(self.atts.len() - 1), "size of {}", v.name);
            }
            Err(_) if !self.sim.drive.is_powered() => return,
            Err(error) => panic!("{}: a good lease cannot attach: {error}", v.name),
        }
        self.try_dead_leases();
    }

    /// No lease that ended ever attaches again.
    pub(super) fn try_dead_leases(&mut self) {
        if self.dead_leases.is_empty() {
            return;
        }
        let (volume, lease) = *self.chance.pick(&self.dead_leases);
        if self.vols[volume].deleted {
            return;
        }
        let name = self.vols[volume].name.clone();
        let got = self.sim.attach(&name, AttachMode::Lease(lease));
        if !self.sim.drive.is_powered() {
            return;
        }
        let refused = matches!(got, Err(AdminError::Fenced | AdminError::Denied | AdminError::NotFound));
        assert!(refused, "a lease that ended attached to {name}: {got:?}");
        self.count("dead lease refused");
    }

    pub(super) fn detach_one(&mut self) {
        let idle: Vec<usize> =
            (0..self.atts.len()).filter(|a| !self.atts[*a].gone && self.atts[*a].flying == 0).collect();
        if !idle.is_empty() {
            let att = *self.chance.pick(&idle);
            self.detach(att);
        }
    }

    pub(super) fn detach(&mut self, att: usize) {
        self.atts[att].gone = true;
        let attach = self.atts[att].id;
        let got = self.sim.admin(AdminOp::Detach { attach });
        assert!(got == Ok(AdminReply::Done) || !self.sim.drive.is_powered(), "detach answered {got:?}");
    }

    pub(super) fn admin_answered(&mut self, intent: Intent, result: Result<AdminReply, AdminError>) {
        match result {
            Ok(reply) => {
                if let (Intent::Super { .. }, AdminReply::Super { super_id, .. }) = (&intent, &reply) {
                    return self.super_happened(intent, *super_id);
                }
                let promoted = matches!(reply, AdminReply::Collapsed { promoted: true });
                self.happened(intent, promoted);
            }
            Err(AdminError::Conflict(_) | AdminError::Busy(_)) => self.did_not_happen(&intent, "admin refused"),
            Err(AdminError::NoSpace) if self.plan.tight => self.did_not_happen(&intent, "admin no space"),
            // Whether it happened will be seen when the pool is opened again.
            Err(AdminError::Poisoned) if self.plan.fail.1 > 0 => {
                self.count("poisoned");
                self.intent = Some((Tag(0), intent));
            }
            Err(error) => panic!("{intent:?} failed: {error}"),
        }
    }

    pub(super) fn did_not_happen(&mut self, intent: &Intent, count: &'static str) {
        self.count(count);
        match intent {
            Intent::Collapse { race } => self.fence(*race, true, Fence::No),
            Intent::Abort { race } => self.fence(*race, false, Fence::No),
            Intent::Break { volume } => {
                if let Some(race) = self.vols[*volume].race {
                    self.fence(race, true, Fence::No);
                    self.fence(race, false, Fence::No);
                }
                self.fence_branch(self.vols[*volume].head, Fence::No);
            }
            _ => {}
        }
    }

    pub(super) fn happened(&mut self, intent: Intent, promoted: bool) {
        match intent {
            Intent::Create { name, size, rule } => {
                self.count("create");
                self.branches.push(Branch::default());
                self.add_volume(name, size, false, rule);
            }
            Intent::Copy { of, name, snapshot, size, lows } => {
                self.count(if snapshot { "snapshot" } else { "clone" });
                let branch = self.branches[self.vols[of].head].offspring(&lows);
                self.branches.push(branch);
                self.add_volume(name, size, snapshot, self.vols[of].rule);
            }
            Intent::Delete { volume } => {
                self.count("delete");
                self.vols[volume].deleted = true;
            }
            Intent::Resize { volume, size } => {
                self.count("resize");
                self.vols[volume].size = size;
            }
            Intent::Rename { volume, to } => {
                self.count("rename");
                self.vols[volume].name = to;
            }
            Intent::Acquire { volume, lease } => {
                self.count("acquire");
                self.vols[volume].lease = Some(lease);
            }
            Intent::Release { volume } => self.lease_ended(volume),
            Intent::Super { .. } => unreachable!("a super tells its id"),
            Intent::Collapse { race } => self.collapsed(race, promoted),
            Intent::Abort { race } => {
                self.count("abort");
                self.fence(race, false, Fence::Must);
                self.race_ended(race);
            }
            Intent::Break { volume } => {
                self.count("break");
                let mut members = vec![volume];
                if let Some(race) = self.vols[volume].race {
                    // The group's leases are broken together: one of them alone is no application.
                    members = self.races[race].members.clone();
                    self.fence(race, true, Fence::Must);
                    self.fence(race, false, Fence::Must);
                    self.race_ended(race);
                }
                for member in members {
                    self.fence_branch(self.vols[member].head, Fence::Must);
                    self.lease_ended(member);
                }
            }
            Intent::Nothing => {}
        }
    }

    pub(super) fn add_volume(&mut self, name: String, size: u64, snapshot: bool, rule: ObservationRule) {
        let head = self.branches.len() - 1;
        let vol = Vol { name, size, snapshot, rule, head, lease: None, child: None, race: None, deleted: false };
        self.vols.push(vol);
    }

    pub(super) fn lease_ended(&mut self, volume: usize) {
        if let Some(lease) = self.vols[volume].lease.take() {
            self.dead_leases.push((volume, lease));
        }
    }

    pub(super) fn super_happened(&mut self, intent: Intent, sid: SuperId) {
        let Intent::Super { members, leases, lows, observers } = intent else { unreachable!("called for supers") };
        self.count("super");
        // Observing requests that were in flight at any time since may be part of the race.
        let may = observers != Some(self.observers) || self.observers_fly();
        self.races.push(RaceM { sid, members: members.clone(), must: false, may });
        for ((volume, lease), low) in members.iter().zip(leases).zip(lows) {
            let branch = self.branches[self.vols[*volume].head].offspring(&low);
            self.branches.push(branch);
            let (branch, size) = (self.branches.len() - 1, self.vols[*volume].size);
            self.vols[*volume].child = Some(ChildM { branch, lease, size });
            self.vols[*volume].race = Some(self.races.len() - 1);
        }
    }

    pub(super) fn collapsed(&mut self, race: usize, promoted: bool) {
        let RaceM { must, may, .. } = self.races[race];
        assert!(!(promoted && must), "promoted although the primary was observed: {:?}", self.races[race]);
        assert!(promoted || may, "told 'primary observed' and it did nothing: {:?}", self.races[race]);
        if !promoted {
            self.count("primary observed");
            return self.fence(race, true, Fence::No);
        }
        self.count("promoted");
        self.fence(race, true, Fence::Must);
        for volume in self.races[race].members.clone() {
            let child = self.vols[volume].child.clone().expect("racing volumes have children");
            self.lease_ended(volume);
            let v = &mut self.vols[volume];
            (v.head, v.size, v.lease) = (child.branch, child.size, Some(child.lease));
            (v.child, v.race) = (None, None);
        }
        // Whoever is acknowledged from now on as an observer of this race is a second observed version.
        self.races[race].may = false;
    }

    /// Over without promotion.
    pub(super) fn race_ended(&mut self, race: usize) {
        for volume in self.races[race].members.clone() {
            let child = self.vols[volume].child.take().expect("racing volumes have children");
            self.dead_leases.push((volume, child.lease));
            self.vols[volume].race = None;
        }
    }
}
