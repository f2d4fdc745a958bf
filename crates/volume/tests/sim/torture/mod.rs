//! A random life of a pool, checked against the model: requests, admin operations, power cuts.
//!
//! Owns: the choice of what happens and the judgement of what came back. Never: looks inside the engine.
//! Invariant: one seed and one plan give one run, whatever else the machine does.

mod admin;
mod answers;
mod cuts;
mod requests;

use super::model::{Branch, Low};
use super::{Setup, Sim, formatted};
use segue_des::{Chance, Faults, Timing};
use segue_types::{LeaseId, SuperId};
use segue_volume::engine::EngineOptions;
use segue_volume::op::{AttachId, ObservationRule, Tag};
use std::collections::BTreeMap;

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
    /// Of each four new volumes so many are encrypted.
    pub encrypted: u64,
    /// Half of all places are far apart, so that map pages do not all fit into the cache.
    pub scatter: bool,
    /// Slices of the drive; with more than one, neighbours write where this one has no lease.
    pub slices: u64,
    /// The drive lies about flushes.
    pub lying_flush: bool,
    /// The first power cut comes with this operation of the drive in flight; 0: after `actions`.
    pub power_off_at: u64,
    /// Panics on purpose.
    pub panics: Panics,
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
            encrypted: 0,
            scatter: false,
            slices: 1,
            lying_flush: false,
            power_off_at: 0,
            panics: Panics::default(),
            fail: (0, 0),
        }
    }
}

/// How the engine panics in a life, and what its rescuers then do wrong.
#[derive(Clone, Copy, Default)]
pub struct Panics {
    /// Once in each life, at the point of this number; 0: never.
    pub at_point: u64,
    /// One task in so many, of every kind; 0: none.
    pub one_in: u64,
    /// The journal's tail in memory is not saved.
    pub forget_tail: bool,
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
        torture.count_rescues();
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
            slices: plan.slices,
        };
        let (lying_flush, power_off_at) = (plan.lying_flush, plan.power_off_at);
        let (fail_first, fail_count) = plan.fail;
        let faults = Faults { lying_flush, power_off_at, fail_first, fail_count, errno: 5, ..Faults::default() };
        let mut sim = Sim::boot(&setup, formatted(&setup), faults, "boot 0").expect("a fresh pool opens");
        let free_at_start = sim.pool().free_bytes;
        sim.endanger(seed, &plan.panics);
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

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Adds what was rescued since the last boot to the counts.
    pub fn count_rescues(&mut self) {
        let rescues = std::mem::take(&mut self.sim.rescues);
        *self.counts.entry("task recovered").or_default() += rescues.tasks;
        *self.counts.entry("engine restarted").or_default() += rescues.engines;
        rescues.places.into_iter().for_each(|place| *self.counts.entry(place).or_default() += 1);
    }

    pub(super) fn live_vols(&self) -> Vec<usize> {
        (0..self.vols.len()).filter(|v| !self.vols[*v].deleted).collect()
    }

    pub(super) fn lease_id(&mut self) -> LeaseId {
        self.next_lease += 1;
        LeaseId(self.next_lease)
    }

    pub(super) fn name(&mut self) -> String {
        self.next_name += 1;
        format!("v{}", self.next_name)
    }
}
