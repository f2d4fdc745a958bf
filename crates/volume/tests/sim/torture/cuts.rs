//! Power cuts, recovery, and the end of a life.
//!
//! Owns: what must be true after a power cut and after everything was deleted. Never: goes on after a doubt.
//! Invariant: every block of every version is read after every cut.

use super::{Att, Fence, Intent, Torture, Vol};
use crate::sim::content::SECTORS;
use crate::sim::model::Branch;
use crate::sim::{DriveDev, Setup, Sim};
use segue_des::{Chance, Cut, Drive, Faults, Image};
use segue_types::{BLOCK_BYTES, SuperId};
use segue_volume::op::{AdminOp, AdminReply, AttachMode, SuperPhase, VolumeKind};
use segue_volume::{CheckReport, check};
use std::collections::{BTreeMap, BTreeSet};

impl Torture {
    // Power cuts.

    /// The power goes off; the pool is opened again (perhaps after more cuts while it recovers) and checked.
    pub fn cut_power(mut self) -> Torture {
        if self.sim.drive.is_powered() {
            self.collect();
        }
        self.boots += 1;
        let how = *self.chance.pick(&[Cut::Chance, Cut::Chance, Cut::Chance, Cut::KeepsAll, Cut::KeepsNone]);
        let mut image = self.sim.drive.cut(how);
        if how == Cut::Chance && self.chance.odds(1, 4) {
            check_offline(&self.setup, &image);
        }
        let lying_flush = self.plan.lying_flush;
        let mut attempt = 0;
        let sim = loop {
            attempt += 1;
            let power_off_at = if attempt < 3 && self.chance.odds(1, 3) { self.chance.between(1, 60) } else { 0 };
            let faults = Faults { power_off_at, lying_flush, ..Faults::default() };
            let round = format!("boot {} {attempt}", self.boots);
            match Sim::boot(&self.setup, image, faults, &round) {
                Ok(mut sim) if power_off_at > 0 => image = sim.drive.cut(Cut::Chance),
                Ok(sim) => break sim,
                Err((error, mut drive)) => {
                    assert!(power_off_at > 0, "the pool does not open after a power cut: {error}");
                    image = drive.cut(Cut::Chance);
                }
            }
        };
        self.count_rescues();
        if let (Some(now), Some(before)) = (&sim.neighbour, &self.sim.neighbour) {
            now.check(before);
        }
        self.sim = sim;
        self.branches.iter_mut().for_each(Branch::power_cut);
        self.flying.clear();
        self.atts.clear();
        if let Some((_, intent)) = self.intent.take() {
            self.resolve(intent);
        }
        self.count("power cut");
        self.check_catalogue();
        self.check_everything();
        let seed = self.chance.below(u64::MAX);
        self.sim.endanger(seed, &self.plan.panics.clone());
        self
    }

    /// Finds out whether the admin operation that was in flight happened.
    pub(super) fn resolve(&mut self, intent: Intent) {
        let states = self.states();
        let by_name = |name: &str| states.get(name);
        let names: Vec<String> = self.vols.iter().map(|v| v.name.clone()).collect();
        let name = |v: usize| names[v].clone();
        let happened = match &intent {
            Intent::Create { name, .. } | Intent::Copy { name, .. } => by_name(name).is_some(),
            Intent::Delete { volume } => by_name(&name(*volume)).is_none(),
            Intent::Resize { volume, size } => by_name(&name(*volume)).is_some_and(|s| s.0 == *size),
            Intent::Rename { to, .. } => by_name(to).is_some(),
            Intent::Acquire { volume, .. } => by_name(&name(*volume)).is_some_and(|s| s.1),
            Intent::Release { volume } | Intent::Break { volume } => by_name(&name(*volume)).is_some_and(|s| !s.1),
            Intent::Super { members, .. } => by_name(&name(members[0])).is_some_and(|s| s.2.is_some()),
            Intent::Collapse { race } | Intent::Abort { race } => {
                by_name(&name(self.races[*race].members[0])).is_some_and(|s| s.2.is_none())
            }
            Intent::Nothing => true,
        };
        self.count(if happened { "admin survived a cut" } else { "admin undone by a cut" });
        match intent {
            Intent::Super { members, leases, .. } if happened => {
                let sid = by_name(&name(members[0])).and_then(|s| s.2).expect("it happened");
                // After the cut every block is at one state; the versions begin from it.
                let lows = members.iter().map(|_| BTreeMap::new()).collect();
                self.super_happened(Intent::Super { members, leases, lows, observers: None }, sid);
            }
            Intent::Copy { of, name, snapshot, size, .. } if happened => {
                self.happened(Intent::Copy { of, name, snapshot, size, lows: BTreeMap::new() }, false);
            }
            intent if happened => self.happened(intent, true),
            intent => self.did_not_happen(&intent, "undone"),
        }
    }

    /// Size, leased, superposition, read only; by name.
    pub(super) fn states(&mut self) -> BTreeMap<String, (u64, bool, Option<SuperId>, bool)> {
        match self.sim.admin(AdminOp::List) {
            Ok(AdminReply::Volumes(list)) => {
                let state = |v: &segue_volume::op::VolumeState| {
                    let racing = v.super_id.filter(|_| v.phase != SuperPhase::None);
                    (v.size_bytes, v.lease.is_some(), racing, v.kind == VolumeKind::Snapshot)
                };
                list.iter().map(|v| (v.name.clone(), state(v))).collect()
            }
            other => panic!("list answered {other:?}"),
        }
    }

    /// The catalogue is exactly what was answered.
    pub fn check_catalogue(&mut self) {
        let expect = |v: &Vol| (v.size, v.lease.is_some(), v.race.map(|r| self.races[r].sid), v.snapshot);
        let expect: BTreeMap<String, _> =
            self.vols.iter().filter(|v| !v.deleted).map(|v| (v.name.clone(), expect(v))).collect();
        assert_eq!(self.states(), expect, "the catalogue (size, leased, racing, snapshot)");
        let racing = self.live_vols().into_iter().filter(|v| self.vols[*v].race.is_some()).collect::<Vec<_>>();
        for volume in racing {
            let phase = self.sim.show(&self.vols[volume].name.clone()).phase;
            let race = &self.races[self.vols[volume].race.expect("it races")];
            assert!(race.may || phase == SuperPhase::Racing, "phase {phase:?} of {race:?}");
            assert!(!race.must || phase == SuperPhase::Observed, "phase {phase:?} of {race:?}");
        }
    }

    /// Reads every block that was ever touched, of every version, through an attachment of its own.
    pub fn check_everything(&mut self) {
        for volume in self.live_vols() {
            let v = self.vols[volume].clone();
            self.check_branch(volume, AttachMode::ReadOnly, v.head);
            if let Some(child) = v.child {
                self.check_branch(volume, AttachMode::Lease(child.lease), child.branch);
            }
        }
        self.collect();
    }

    pub(super) fn check_branch(&mut self, volume: usize, mode: AttachMode, branch: usize) {
        let name = self.vols[volume].name.clone();
        let read_only = mode == AttachMode::ReadOnly;
        let id = self.sim.attach(&name, mode).unwrap_or_else(|e| panic!("{name}: cannot attach to check: {e}")).attach;
        let att = Att { id, volume, branch, read_only, fence: Fence::No, flying: 0, gone: false };
        let mut blocks: BTreeSet<u64> = self.branches[branch].touched().into_iter().collect();
        self.atts.push(att);
        let att = self.atts.len() - 1;
        let size = self.att_size(att);
        blocks.extend([0, size / BLOCK_BYTES - 1]);
        while let Some(first) = blocks.pop_first() {
            let mut end = first + 1;
            while end - first < 64 && blocks.remove(&end) {
                end += 1;
            }
            if end * BLOCK_BYTES <= size {
                self.read_range(att, first * SECTORS as u64, end * SECTORS as u64);
                self.collect_done();
                while self.atts[att].flying > 0 {
                    assert!(self.sim.turn(), "a read is not answered");
                    self.collect_done();
                }
            }
        }
        self.detach(att);
    }

    pub(super) fn collect_done(&mut self) {
        for done in std::mem::take(&mut self.sim.done) {
            self.answered(&done);
        }
    }

    // The end.

    /// Waits for everything, checks everything, deletes everything, and expects the pool to be as new.
    pub fn finish(&mut self) {
        self.quiesce();
        self.check_catalogue();
        self.check_everything();
        for race in 0..self.races.len() {
            let members = self.races[race].members.clone();
            if let Some(v) = members.iter().find(|v| self.vols[**v].race == Some(race)) {
                self.abort(*v);
                self.quiesce();
            }
        }
        for att in 0..self.atts.len() {
            if !self.atts[att].gone {
                self.detach(att);
            }
        }
        for volume in self.live_vols() {
            self.release(volume);
            self.quiesce();
            self.delete(volume);
            self.quiesce();
            assert!(self.vols[volume].deleted, "{} could not be deleted", self.vols[volume].name);
        }
        self.expect_all_space_back();
    }

    /// Waits until nothing is in flight.
    pub fn quiesce(&mut self) {
        let mut turns = 0u64;
        // A rescue may have answered within the step that asked.
        self.collect();
        while !self.flying.is_empty() || self.intent.is_some() {
            let (requests, intent) = (self.flying.len(), &self.intent);
            let moves = self.sim.turn() && turns < 3_000_000;
            assert!(moves, "stuck: {requests} requests, {intent:?}, {:?}", self.sim.rescues);
            self.collect();
            turns += 1;
        }
    }

    pub(super) fn expect_all_space_back(&mut self) {
        for _ in 0..200 {
            self.sim.settle(2_000);
            assert_eq!(self.sim.admin(AdminOp::Checkpoint), Ok(AdminReply::Done));
            let pool = self.sim.pool();
            // Of a shared drive there is as much free as is leased; that nothing is lost the offline check tells.
            let free = self.setup.slices > 1 || pool.free_bytes == self.free_at_start;
            if free && pool.layers == 0 && pool.cleaning == 0 {
                let report = check_offline(&self.setup, self.sim.drive.visible());
                assert_eq!(report.leaked_blocks, 0, "blocks that nothing uses are marked taken");
                assert!(pool.bytes_copied == 0 || !self.plan.aligned, "{} bytes were copied", pool.bytes_copied);
                return;
            }
        }
        panic!("space is missing: {} free at start, now {:?}", self.free_at_start, self.sim.pool());
    }
}

/// The offline check finds nothing wrong, whatever a power cut left.
pub fn check_offline(setup: &Setup, image: &Image) -> CheckReport {
    let mut drive = Drive::new(image.clone(), setup.timing, Chance::new(0));
    let report = check(&mut DriveDev(&mut drive)).expect("what a power cut leaves can be walked");
    assert!(report.is_clean(), "the offline check after a power cut: {:?}", report.findings);
    report
}
