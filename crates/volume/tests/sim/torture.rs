//! A random life of a pool, checked against the model: requests, admin operations, power cuts.
//!
//! Owns: the choice of what happens and the judgement of what came back. Never: looks inside the engine.
//! Invariant: one seed and one plan give one run, whatever else the machine does.

use super::content::{SECTOR, SECTORS, ZERO, fill};
use super::model::{Branch, Low};
use super::{Done, DriveDev, Setup, Sim, formatted};
use segue_des::{Chance, Cut, Drive, Faults, Image, Timing};
use segue_types::{BLOCK_BYTES, IoStatus, LeaseId, SuperId};
use segue_volume::engine::EngineOptions;
use segue_volume::op::{
    AdminError, AdminOp, AdminReply, Alarm, AlarmKind, AttachId, AttachMode, ObservationRule, Op, SuperPhase, Tag,
    VolumeKind,
};
use segue_volume::{CheckReport, check};
use std::collections::{BTreeMap, BTreeSet};

/// What a run is made of.
#[derive(Clone)]
pub struct Plan {
    pub drive_bytes: u64,
    pub options: EngineOptions,
    /// Actions between power cuts.
    pub actions: u64,
    pub power_cuts: u64,
    pub volumes_max: usize,
    /// Most blocks of a write.
    pub blocks_max: u64,
    /// Weights of: write, part of a block, read, flush, discard, zeroes, block status, admin, let time pass.
    pub weights: [u64; 9],
    /// Requests in flight at most.
    pub depth: usize,
    /// Running out of space is part of the plan.
    pub tight: bool,
    /// Only whole blocks are changed: then nothing may ever be copied.
    pub aligned: bool,
    /// Half of all places are far apart, so that map pages do not all fit into the cache.
    pub scatter: bool,
    /// The drive lies about flushes.
    pub lying_flush: bool,
    /// The first power cut comes with this operation of the drive in flight; 0: after `actions`.
    pub power_off_at: u64,
    /// In the first life, operations of the drive from this one on fail, so many of them; (0, 0): none.
    pub fail: (u64, u64),
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            drive_bytes: 48 << 20,
            options: EngineOptions::default(),
            actions: 250,
            power_cuts: 2,
            volumes_max: 5,
            blocks_max: 8,
            weights: [16, 6, 10, 6, 4, 4, 2, 8, 60],
            depth: 12,
            tight: false,
            aligned: false,
            scatter: false,
            lying_flush: false,
            power_off_at: 0,
            fail: (0, 0),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fence {
    No,
    May,
    Must,
}

#[derive(Clone, Debug)]
struct Att {
    id: AttachId,
    volume: usize,
    branch: usize,
    read_only: bool,
    fence: Fence,
    flying: u32,
    gone: bool,
}

#[derive(Clone, Debug)]
struct RaceM {
    sid: SuperId,
    members: Vec<usize>,
    /// An observing request of the primary was acknowledged; one was at least submitted.
    must: bool,
    may: bool,
}

#[derive(Clone, Debug)]
struct ChildM {
    branch: usize,
    lease: LeaseId,
    size: u64,
}

#[derive(Clone, Debug)]
struct Vol {
    name: String,
    size: u64,
    snapshot: bool,
    rule: ObservationRule,
    head: usize,
    lease: Option<LeaseId>,
    child: Option<ChildM>,
    race: Option<usize>,
    deleted: bool,
}

/// An admin operation in flight and what it will have done.
#[derive(Clone, Debug)]
enum Intent {
    Create {
        name: String,
        size: u64,
        rule: ObservationRule,
    },
    Copy {
        of: usize,
        name: String,
        snapshot: bool,
        size: u64,
        lows: BTreeMap<u64, usize>,
    },
    Delete {
        volume: usize,
    },
    Resize {
        volume: usize,
        size: u64,
    },
    Rename {
        volume: usize,
        to: String,
    },
    Acquire {
        volume: usize,
        lease: LeaseId,
    },
    Release {
        volume: usize,
    },
    /// `observers`: how many observing requests had been submitted when it was, if none was in flight.
    Super {
        members: Vec<usize>,
        leases: Vec<LeaseId>,
        lows: Vec<BTreeMap<u64, usize>>,
        observers: Option<u64>,
    },
    Collapse {
        race: usize,
    },
    Abort {
        race: usize,
    },
    Break {
        volume: usize,
    },
    Nothing,
}

#[derive(Debug)]
enum Flying {
    Change { cells: Vec<(u64, usize)>, fua: bool, promises: bool },
    Read { first_sector: u64, lows: Vec<Low> },
    Flush { list: Vec<(u64, usize)> },
    Status { offset: u64, len: u64, lows: Vec<(u64, Low)> },
}

struct Fly {
    att: usize,
    what: Flying,
    /// It was submitted while the attachment was certainly fenced.
    after_fence: bool,
    /// By its volume's rule it shows the primary's version to the world.
    observing: bool,
    /// The race it observes for certain if it is acknowledged.
    observes: Option<usize>,
}

/// A pool and its model.
pub struct Torture {
    pub sim: Sim,
    pub setup: Setup,
    plan: Plan,
    chance: Chance,
    branches: Vec<Branch>,
    vols: Vec<Vol>,
    atts: Vec<Att>,
    races: Vec<RaceM>,
    flying: BTreeMap<u64, Fly>,
    intent: Option<(Tag, Intent)>,
    dead_leases: Vec<(usize, LeaseId)>,
    /// Observing requests submitted so far.
    observers: u64,
    next_write: u32,
    next_name: u32,
    next_lease: u128,
    boots: u64,
    free_at_start: u64,
    /// How often each kind of thing succeeded, to see that the plan exercises what it should.
    pub counts: BTreeMap<&'static str, u64>,
}

/// Runs a plan for a seed; returns the run's trace hash and what it did.
pub fn run(seed: u64, plan: &Plan) -> (u64, BTreeMap<&'static str, u64>) {
    let mut torture = Torture::new(seed, plan);
    let mut trace = segue_des::TraceHash::new();
    for cut in 0..=plan.power_cuts {
        torture.live(plan.actions);
        trace.number(torture.sim.trace.value());
        if cut < plan.power_cuts {
            torture = torture.cut_power();
        }
    }
    torture.finish();
    trace.number(torture.sim.trace.value());
    (trace.value(), torture.counts)
}

impl Torture {
    pub fn new(seed: u64, plan: &Plan) -> Torture {
        let setup = Setup {
            seed,
            drive_bytes: plan.drive_bytes,
            mem_bytes: 32 << 20,
            options: plan.options,
            timing: Timing::default(),
        };
        let (lying_flush, power_off_at) = (plan.lying_flush, plan.power_off_at);
        let (fail_first, fail_count) = plan.fail;
        let faults = Faults { lying_flush, power_off_at, fail_first, fail_count, errno: 5, ..Faults::default() };
        let mut sim = Sim::boot(&setup, formatted(&setup), faults, "boot 0").expect("a fresh pool opens");
        let free_at_start = sim.pool().free_bytes;
        Torture {
            sim,
            setup,
            plan: plan.clone(),
            chance: Chance::new(seed).stream("torture"),
            branches: Vec::new(),
            vols: Vec::new(),
            atts: Vec::new(),
            races: Vec::new(),
            flying: BTreeMap::new(),
            intent: None,
            dead_leases: Vec::new(),
            observers: 0,
            next_write: 0,
            next_name: 0,
            next_lease: u128::from(seed) << 64,
            boots: 0,
            free_at_start,
            counts: BTreeMap::new(),
        }
    }

    /// Lives for so many actions.
    pub fn live(&mut self, actions: u64) {
        for _ in 0..actions {
            if self.live_vols().is_empty() && self.intent.is_none() {
                self.create();
            }
            match self.chance.weighted(&self.plan.weights.clone()) {
                0 => self.write(false),
                1 => self.write(true),
                2 => self.read(),
                3 => self.flush(),
                4 => self.punch(true),
                5 => self.punch(false),
                6 => self.block_status(),
                7 => self.admin(),
                _ => {
                    self.sim.turn();
                }
            }
            if !self.sim.drive.is_powered() {
                return;
            }
            self.collect();
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn live_vols(&self) -> Vec<usize> {
        (0..self.vols.len()).filter(|v| !self.vols[*v].deleted).collect()
    }

    fn lease_id(&mut self) -> LeaseId {
        self.next_lease += 1;
        LeaseId(self.next_lease)
    }

    fn name(&mut self) -> String {
        self.next_name += 1;
        format!("v{}", self.next_name)
    }

    // Requests.

    fn pick_att(&mut self) -> Option<usize> {
        if self.flying.len() >= self.plan.depth {
            return None;
        }
        let open: Vec<usize> = (0..self.atts.len()).filter(|a| !self.atts[*a].gone).collect();
        if !open.iter().any(|a| !self.atts[*a].read_only && self.atts[*a].fence == Fence::No) {
            self.get_going();
        }
        if open.is_empty() {
            return None;
        }
        let att = *self.chance.pick(&open);
        // A fenced attachment is asked a few times more and then closed.
        if self.atts[att].fence == Fence::Must && self.chance.odds(3, 4) {
            if self.atts[att].flying == 0 {
                self.detach(att);
            }
            return None;
        }
        Some(att)
    }

    /// Nobody can write: take a lease or attach.
    fn get_going(&mut self) {
        let vols: Vec<usize> = self.live_vols().into_iter().filter(|v| !self.vols[*v].snapshot).collect();
        if self.intent.is_some() || vols.is_empty() {
            return;
        }
        let volume = *self.chance.pick(&vols);
        match self.vols[volume].lease {
            None => self.acquire(volume),
            Some(_) => self.attach(volume),
        }
    }

    fn att_size(&self, att: usize) -> u64 {
        let (volume, branch) = (&self.vols[self.atts[att].volume], self.atts[att].branch);
        volume.child.as_ref().filter(|c| c.branch == branch).map_or(volume.size, |c| c.size)
    }

    /// A place that other requests like too: near a few borders of the map.
    fn place(&mut self, size: u64, blocks: u64) -> u64 {
        let total = size / BLOCK_BYTES;
        let homes = [0, 250, 65_530, 1 << 24, total.saturating_sub(16)];
        let home = match self.plan.scatter && self.chance.odds(1, 2) {
            true => self.chance.below(2_000) * 37 * 256 % total.max(1),
            false => *self.chance.pick(&homes),
        };
        let at = home + self.chance.below(16);
        at.min(total - blocks.min(total))
    }

    fn fly(&mut self, att: usize, tag: Tag, what: Flying, observing: bool) {
        let (branch, volume) = (self.atts[att].branch, self.atts[att].volume);
        let observing = observing && self.vols[volume].head == branch;
        let observes = self.vols[volume].race.filter(|_| observing);
        if let Some(race) = observes {
            self.races[race].may = true;
        }
        self.observers += u64::from(observing);
        self.atts[att].flying += 1;
        let after_fence = self.atts[att].fence == Fence::Must;
        self.flying.insert(tag.0, Fly { att, what, after_fence, observing, observes });
    }

    fn observers_fly(&self) -> bool {
        self.flying.values().any(|f| f.observing)
    }

    fn observes(&self, att: usize, fua: bool) -> bool {
        fua || self.vols[self.atts[att].volume].rule == ObservationRule::Write
    }

    fn write(&mut self, part: bool) {
        let part = part && !self.plan.aligned;
        let Some(att) = self.pick_att() else { return };
        let size = self.att_size(att);
        let blocks = if part { 1 + self.chance.below(2) } else { self.chance.between(1, self.plan.blocks_max) };
        let blocks = blocks.min(size / BLOCK_BYTES);
        let first = self.place(size, blocks) * SECTORS as u64;
        let (mut from, mut to) = (first, first + blocks * SECTORS as u64);
        if part {
            from += self.chance.below(SECTORS as u64);
            to -= self.chance.below(SECTORS as u64);
            to = to.max(from + 1);
        }
        let fua = self.chance.odds(1, 8);
        let branch = self.atts[att].branch;
        if !self.free_to_change(branch, from, to) {
            return;
        }
        self.next_write += 1;
        let write = self.next_write;
        let mut data = vec![0; (to - from) as usize * SECTOR];
        for (i, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
            let at = from + i as u64;
            fill(write, at / SECTORS as u64, (at % SECTORS as u64) as usize, sector);
        }
        let id = self.atts[att].id;
        let Some(tag) = self.sim.submit_write(id, from * SECTOR as u64, &data, fua) else { return };
        let cells = self.begin(branch, from, to, write);
        let observes = self.observes(att, fua);
        self.fly(att, tag, Flying::Change { cells, fua, promises: true }, observes);
    }

    /// No change in flight in the range, and at its ragged ends a known content.
    fn free_to_change(&self, branch: usize, from: u64, to: u64) -> bool {
        let s = SECTORS as u64;
        let ragged = |block: u64| from > block * s || to < (block + 1) * s;
        (from / s..to.div_ceil(s))
            .all(|b| self.branches[branch].is_quiet(b) && (!ragged(b) || self.branches[branch].is_certain(b)))
    }

    fn begin(&mut self, branch: usize, from: u64, to: u64, write: u32) -> Vec<(u64, usize)> {
        let s = SECTORS as u64;
        let mut cells = Vec::new();
        for block in from / s..to.div_ceil(s) {
            let state = self.branches[branch].begin(block, |mut marks| {
                for (i, mark) in marks.iter_mut().enumerate() {
                    if (from..to).contains(&(block * s + i as u64)) {
                        *mark = write;
                    }
                }
                marks
            });
            cells.push((block, state));
        }
        cells
    }

    fn read(&mut self) {
        let Some(att) = self.pick_att() else { return };
        let size = self.att_size(att);
        let blocks = self.chance.between(1, 12).min(size / BLOCK_BYTES);
        let first = self.place(size, blocks) * SECTORS as u64;
        let (mut from, mut to) = (first, first + blocks * SECTORS as u64);
        if self.chance.odds(1, 4) {
            from += self.chance.below(SECTORS as u64);
            to = (to - self.chance.below(SECTORS as u64)).max(from + 1);
        }
        self.read_range(att, from, to);
    }

    fn read_range(&mut self, att: usize, from: u64, to: u64) {
        let branch = self.atts[att].branch;
        let s = SECTORS as u64;
        let lows = (from / s..to.div_ceil(s)).map(|b| self.branches[branch].low(b)).collect();
        let (id, len) = (self.atts[att].id, (to - from) as u32 * SECTOR as u32);
        let Some(tag) = self.sim.submit_read(id, from * SECTOR as u64, len) else { return };
        self.fly(att, tag, Flying::Read { first_sector: from, lows }, false);
    }

    fn flush(&mut self) {
        let Some(att) = self.pick_att() else { return };
        let list = self.branches[self.atts[att].branch].acknowledged();
        let tag = self.sim.submit(self.atts[att].id, Op::Flush);
        let observes = self.vols[self.atts[att].volume].rule == ObservationRule::Flush;
        self.fly(att, tag, Flying::Flush { list }, observes && !self.atts[att].read_only);
    }

    fn punch(&mut self, discard: bool) {
        let Some(att) = self.pick_att() else { return };
        let size = self.att_size(att);
        let blocks = match self.chance.below(8) {
            0 => self.chance.between(1, 600),
            _ => self.chance.between(1, 8),
        };
        let blocks = blocks.min(size / BLOCK_BYTES);
        let first = self.place(size, blocks) * SECTORS as u64;
        let (mut from, mut to) = (first, first + blocks * SECTORS as u64);
        let ragged = self.chance.odds(1, 4) && !self.plan.aligned;
        if ragged {
            from += self.chance.below(SECTORS as u64);
            to = (to - self.chance.below(SECTORS as u64)).max(from + 1);
        }
        let branch = self.atts[att].branch;
        if !self.free_to_change(branch, from, to) {
            return;
        }
        let (offset, len) = (from * SECTOR as u64, (to - from) * SECTOR as u64);
        let fua = self.chance.odds(1, 8);
        let op = match discard {
            true => Op::Discard { offset, len, fua },
            false => Op::WriteZeroes { offset, len, no_hole: self.chance.odds(1, 3), fua },
        };
        let tag = self.sim.submit(self.atts[att].id, op);
        // A discard that is not of whole blocks leaves the rest as it was, or zeroes it.
        let cells = self.begin(branch, from, to, 0);
        let observes = self.observes(att, fua);
        self.fly(att, tag, Flying::Change { cells, fua, promises: !(discard && ragged) }, observes);
    }

    fn block_status(&mut self) {
        let Some(att) = self.pick_att() else { return };
        let size = self.att_size(att);
        let blocks = self.chance.between(1, 2000).min(size / BLOCK_BYTES);
        let first = self.place(size, blocks);
        let branch = &self.branches[self.atts[att].branch];
        let lows = (first..first + blocks).map(|b| (b, branch.low(b))).collect();
        let (offset, len) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
        let tag = self.sim.submit(self.atts[att].id, Op::BlockStatus { offset, len, extents_max: 64 });
        self.fly(att, tag, Flying::Status { offset, len, lows }, false);
    }

    // Answers.

    /// Judges everything that was answered.
    fn collect(&mut self) {
        for done in std::mem::take(&mut self.sim.done) {
            self.answered(&done);
        }
        for (tag, result) in std::mem::take(&mut self.sim.admin_done) {
            let (asked, intent) = self.intent.take().expect("an admin operation was in flight");
            assert_eq!(asked, tag);
            self.admin_answered(intent, result);
        }
        let failing = self.plan.fail.1 > 0;
        let of_drive = |a: &Alarm| matches!(a.kind, AlarmKind::Drive { .. } | AlarmKind::Poisoned { .. });
        let wrong = self.sim.alarms.iter().find(|a| !(failing && of_drive(a)));
        assert!(wrong.is_none(), "alarms that nothing explains: {:?}", self.sim.alarms);
    }

    fn answered(&mut self, done: &Done) {
        let fly = self.flying.remove(&done.tag.0).expect("it was in flight");
        let att = self.atts[fly.att].clone();
        self.atts[fly.att].flying -= 1;
        let changes = matches!(fly.what, Flying::Change { .. });
        let expected = match done.status {
            IoStatus::Ok => !(fly.after_fence || changes && att.read_only),
            IoStatus::Fenced => att.fence != Fence::No,
            IoStatus::ReadOnly => changes && att.read_only,
            IoStatus::NoSpace => changes && self.plan.tight,
            IoStatus::Io => self.plan.fail.1 > 0,
            IoStatus::Invalid | IoStatus::NotSupported => false,
        };
        let name = &self.vols[att.volume].name;
        assert!(
            expected,
            "{name}: {:?} was answered {:?} on {att:?} (after fence: {})",
            done.op, done.status, fly.after_fence
        );
        let ok = done.status.is_ok();
        if ok && let Some(race) = fly.observes {
            assert!(self.races[race].may, "an observing request in a race that ended: {:?}", done.op);
            self.races[race].must = true;
        }
        match fly.what {
            Flying::Change { cells, fua, promises } => {
                let kind = match done.op {
                    Op::Write { .. } => "write",
                    Op::Discard { .. } => "discard",
                    _ => "zeroes",
                };
                self.count(if ok { kind } else { "change refused" });
                if done.status == IoStatus::NoSpace {
                    self.count("no space");
                }
                for (block, state) in cells {
                    match ok && promises {
                        true => self.branches[att.branch].acknowledge(block, state, fua),
                        false => self.branches[att.branch].give_up(block),
                    }
                }
            }
            Flying::Flush { list } if ok => {
                self.count("flush");
                if !att.read_only {
                    self.branches[att.branch].flushed(&list);
                }
            }
            Flying::Read { first_sector, lows } if ok => self.saw(&att, first_sector, &lows, &done.data),
            Flying::Status { offset, len, lows } if ok => self.saw_status(&att, offset, len, &lows, done),
            Flying::Flush { .. } | Flying::Read { .. } | Flying::Status { .. } => self.count("look refused"),
        }
    }

    fn saw(&mut self, att: &Att, first_sector: u64, lows: &[Low], data: &[u8]) {
        self.count("read");
        let (mut at, mut rest) = (first_sector, data);
        for low in lows {
            let (block, sector) = (at / SECTORS as u64, (at % SECTORS as u64) as usize);
            let n = (SECTORS - sector).min(rest.len() / SECTOR);
            let (head, tail) = rest.split_at(n * SECTOR);
            if let Err(why) = self.branches[att.branch].saw(block, sector, head, *low) {
                panic!("{} ({att:?}, boot {}): {why}", self.vols[att.volume].name, self.boots);
            }
            rest = tail;
            at += n as u64;
        }
    }

    fn saw_status(&mut self, att: &Att, offset: u64, len: u64, lows: &[(u64, Low)], done: &Done) {
        self.count("block status");
        assert!(!done.extents.is_empty(), "a block status of {len} bytes tells nothing");
        let mut at = offset;
        for extent in &done.extents {
            assert!(extent.len > 0 && extent.len.is_multiple_of(SECTOR as u64), "{extent:?}");
            let range = at / BLOCK_BYTES..(at + extent.len).div_ceil(BLOCK_BYTES);
            for (block, low) in lows.iter().filter(|(b, _)| extent.hole && range.contains(b)) {
                let zero = self.branches[att.branch].may_be_zero(*block, *low);
                assert!(zero, "block {block} of {} is told to be a hole and holds data", self.vols[att.volume].name);
            }
            at += extent.len;
        }
        assert!(at <= offset + len, "a block status past its range");
    }

    // Admin operations.

    fn admin(&mut self) {
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

    fn begin_admin(&mut self, op: AdminOp, intent: Intent) {
        let tag = self.sim.submit_admin(op);
        self.intent = Some((tag, intent));
    }

    fn create(&mut self) {
        let name = self.name();
        let size = *self.chance.pick(&[64 << 10, 2 << 20, 1 << 30, 300 << 30]);
        let rule = *self.chance.pick(&[ObservationRule::Write, ObservationRule::Flush]);
        let op = AdminOp::Create { name: name.clone(), size_bytes: size, rule, token_sha256: None };
        self.begin_admin(op, Intent::Create { name, size, rule });
    }

    fn copy(&mut self, of: usize, snapshot: bool) {
        let to = self.name();
        let name = self.vols[of].name.clone();
        let (size, lows) = (self.vols[of].size, self.branches[self.vols[of].head].lows());
        let intent = Intent::Copy { of, name: to.clone(), snapshot, size, lows };
        let op = if snapshot { AdminOp::Snapshot { name, to } } else { AdminOp::Clone { name, to } };
        self.begin_admin(op, intent);
    }

    fn is_attached(&self, volume: usize) -> bool {
        self.atts.iter().any(|a| a.volume == volume && !a.gone)
    }

    fn delete(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if v.lease.is_none() && v.race.is_none() && !self.is_attached(volume) {
            self.begin_admin(AdminOp::Delete { name: v.name.clone() }, Intent::Delete { volume });
        }
    }

    fn resize(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if !v.snapshot {
            let size = v.size + BLOCK_BYTES * self.chance.between(1, 3000);
            let op = AdminOp::Resize { name: v.name.clone(), size_bytes: size };
            self.begin_admin(op, Intent::Resize { volume, size });
        }
    }

    fn rename(&mut self, volume: usize) {
        let to = self.name();
        let op = AdminOp::Rename { name: self.vols[volume].name.clone(), to: to.clone() };
        self.begin_admin(op, Intent::Rename { volume, to });
    }

    fn acquire(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if v.lease.is_none() && !v.snapshot {
            let name = v.name.clone();
            let lease = self.lease_id();
            let op = AdminOp::Acquire { name, lease, holder: "torture".into(), now_unix_ms: 7 };
            self.begin_admin(op, Intent::Acquire { volume, lease });
        }
    }

    fn release(&mut self, volume: usize) {
        let v = &self.vols[volume];
        if let Some(lease) = v.lease
            && v.race.is_none()
            && !self.is_attached(volume)
        {
            self.begin_admin(AdminOp::Release { name: v.name.clone(), lease }, Intent::Release { volume });
        }
    }

    fn start_race(&mut self, volume: usize) {
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

    fn collapse(&mut self, volume: usize) {
        let Some(race) = self.vols[volume].race else { return };
        self.fence(race, true, Fence::May);
        let (name, super_id) = (self.vols[volume].name.clone(), self.races[race].sid);
        self.begin_admin(AdminOp::Collapse { name, super_id }, Intent::Collapse { race });
    }

    fn abort(&mut self, volume: usize) {
        let Some(race) = self.vols[volume].race else { return };
        self.fence(race, false, Fence::May);
        let (name, super_id) = (self.vols[volume].name.clone(), self.races[race].sid);
        self.begin_admin(AdminOp::Abort { name, super_id }, Intent::Abort { race });
    }

    fn break_lease(&mut self, volume: usize) {
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
    fn fence(&mut self, race: usize, primaries: bool, to: Fence) {
        for volume in self.races[race].members.clone() {
            let child = self.vols[volume].child.as_ref().expect("racing volumes have children").branch;
            self.fence_branch(if primaries { self.vols[volume].head } else { child }, to);
        }
    }

    fn fence_branch(&mut self, branch: usize, to: Fence) {
        let writers = self.atts.iter_mut().filter(|a| a.branch == branch && !a.read_only && a.fence != Fence::Must);
        writers.for_each(|a| a.fence = to);
    }

    fn attach(&mut self, volume: usize) {
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
    fn try_dead_leases(&mut self) {
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

    fn detach_one(&mut self) {
        let idle: Vec<usize> =
            (0..self.atts.len()).filter(|a| !self.atts[*a].gone && self.atts[*a].flying == 0).collect();
        if !idle.is_empty() {
            let att = *self.chance.pick(&idle);
            self.detach(att);
        }
    }

    fn detach(&mut self, att: usize) {
        self.atts[att].gone = true;
        let attach = self.atts[att].id;
        let got = self.sim.admin(AdminOp::Detach { attach });
        assert!(got == Ok(AdminReply::Done) || !self.sim.drive.is_powered(), "detach answered {got:?}");
    }

    fn admin_answered(&mut self, intent: Intent, result: Result<AdminReply, AdminError>) {
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

    fn did_not_happen(&mut self, intent: &Intent, count: &'static str) {
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

    fn happened(&mut self, intent: Intent, promoted: bool) {
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

    fn add_volume(&mut self, name: String, size: u64, snapshot: bool, rule: ObservationRule) {
        let head = self.branches.len() - 1;
        let vol = Vol { name, size, snapshot, rule, head, lease: None, child: None, race: None, deleted: false };
        self.vols.push(vol);
    }

    fn lease_ended(&mut self, volume: usize) {
        if let Some(lease) = self.vols[volume].lease.take() {
            self.dead_leases.push((volume, lease));
        }
    }

    fn super_happened(&mut self, intent: Intent, sid: SuperId) {
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

    fn collapsed(&mut self, race: usize, promoted: bool) {
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
    fn race_ended(&mut self, race: usize) {
        for volume in self.races[race].members.clone() {
            let child = self.vols[volume].child.take().expect("racing volumes have children");
            self.dead_leases.push((volume, child.lease));
            self.vols[volume].race = None;
        }
    }

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
        self
    }

    /// Finds out whether the admin operation that was in flight happened.
    fn resolve(&mut self, intent: Intent) {
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
    fn states(&mut self) -> BTreeMap<String, (u64, bool, Option<SuperId>, bool)> {
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

    fn check_branch(&mut self, volume: usize, mode: AttachMode, branch: usize) {
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

    fn collect_done(&mut self) {
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
        while !self.flying.is_empty() || self.intent.is_some() {
            assert!(self.sim.turn() && turns < 3_000_000, "stuck: {} requests, {:?}", self.flying.len(), self.intent);
            self.collect();
            turns += 1;
        }
    }

    fn expect_all_space_back(&mut self) {
        for _ in 0..200 {
            self.sim.settle(2_000);
            assert_eq!(self.sim.admin(AdminOp::Checkpoint), Ok(AdminReply::Done));
            let pool = self.sim.pool();
            if pool.free_bytes == self.free_at_start && pool.layers == 0 && pool.cleaning == 0 {
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

/// A block's worth of zero marks, for tests that look at content by hand.
pub const ZERO_MARKS: super::content::Marks = ZERO;
