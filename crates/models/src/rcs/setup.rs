//! One run's setting: cores, groups, policy, bounds, mappings, faults, length.
//!
//! Owns: how the paper's rows become options of the shipped scheduler. Never: touches the workload's numbers.
//! Invariant: every group has a bound and a home pool.

use super::workload::{CACHE_STANDARD, CORES, DISPATCHES_PER_FAULT, GROUPS, RECOVERY_NS, Workload};
use segue_sched::rcs::{Bounds, BoundsOptions, Group, LoopCounts, Mapping, Overflow, Policy, Pool, Rcs, RcsOptions};
use segue_types::Nanos;

/// What one run simulates.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setup {
    /// The policy under test.
    pub policy: Policy,
    /// Whether bounds are kept.
    pub proactive: bool,
    /// Whether recovering groups are suspended.
    pub reactive: bool,
    /// What dynamic does when every group with work is at its bound.
    pub overflow: Overflow,
    /// Whether bounds set themselves from what is observed, in place of [`Setup::bounds`].
    pub self_set: bool,
    /// Copies of the 8-way controller's work, groups and hosts that share `8 * copies` cores.
    pub copies: u16,
    /// The paper's 16 groups of a copy are merged into this many: 1, 4 or 16.
    pub groups: u16,
    /// The work of one copy.
    pub work: Workload,
    /// Faults happen: the bad path.
    pub faults: bool,
    /// Mean time to clean up, nanoseconds.
    pub recovery_ns: Nanos,
    /// Dispatches of group 5 per fault.
    pub dispatches_per_fault: u64,
    /// Simulated and not counted at first, nanoseconds.
    pub warm_up_ns: Nanos,
    /// Simulated and counted, nanoseconds.
    pub measure_ns: Nanos,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            policy: Policy::Performance,
            proactive: true,
            reactive: true,
            overflow: Overflow::Never,
            self_set: false,
            copies: 1,
            groups: GROUPS,
            work: CACHE_STANDARD,
            faults: false,
            recovery_ns: RECOVERY_NS,
            dispatches_per_fault: DISPATCHES_PER_FAULT,
            warm_up_ns: 500_000_000,
            measure_ns: 4_000_000_000,
        }
    }
}

/// Tasks that may wait of one group, and in all per copy: a suspended group's work piles up.
const GROUP_TASKS_MAX: u32 = 1 << 20;
const COPY_TASKS_MAX: u32 = 1 << 18;
/// A group's bound over the cores that its load keeps busy (inferred: the paper says how bounds are used, not set).
const BOUND_OVER_LOAD: f64 = 1.5;

impl Setup {
    /// Cores of the machine.
    pub const fn cores(&self) -> u16 {
        CORES * self.copies
    }

    /// The scheduler's group of the paper's group `g` of a copy.
    pub const fn group(&self, copy: u16, g: u16) -> Group {
        Group(copy * self.groups + g * self.groups / GROUPS)
    }

    /// The scheduler that ships, set up for this run.
    pub fn scheduler(&self) -> Rcs {
        let groups = self.groups * self.copies;
        let home = self.home();
        let mut alternative = home.clone();
        for copy in 0..self.copies {
            alternative.open_everywhere(self.group(copy, 4));
            alternative.open_everywhere(self.group(copy, 5));
        }
        let options = RcsOptions {
            groups,
            pools: self.cores(),
            tasks_max: GROUP_TASKS_MAX + COPY_TASKS_MAX * u32::from(self.copies),
            group_tasks_max: GROUP_TASKS_MAX,
            loops: LoopCounts { high: 2, medium: 2 },
            policy: self.policy,
            proactive: self.proactive,
            reactive: self.reactive,
            overflow: self.overflow,
            home: Some(home),
            alternative: Some(alternative),
            ..RcsOptions::default()
        };
        let mut rcs = Rcs::new(options).expect("the model's options are sound");
        for copy in 0..self.copies {
            for (g, bound) in self.bounds().into_iter().enumerate() {
                let group = Group(copy * self.groups + g as u16);
                rcs.set_bound(group, bound).expect("bounds are at least 1");
            }
        }
        rcs
    }

    /// The machine that sets bounds, if this run has it: shipped rule, shorter times to fit a run of seconds.
    pub fn self_setting(&self) -> Option<Bounds> {
        let options = BoundsOptions {
            groups: self.groups * self.copies,
            pools: self.cores(),
            interval_ns: 10_000_000,
            load_memory_ns: 100_000_000,
            fault_memory_ns: 1_000_000_000,
            ..BoundsOptions::default()
        };
        self.self_set.then(|| Bounds::new(options).expect("the model's rule is sound"))
    }

    /// The groups in order over the pools: 16 groups and 8 pools make two neighbours per pool.
    fn home(&self) -> Mapping {
        let mut home = Mapping::none(self.groups * self.copies, self.cores());
        for copy in 0..self.copies {
            for g in 0..GROUPS {
                home.open(self.group(copy, g), Pool(copy * CORES + g * CORES / GROUPS));
            }
        }
        home
    }

    /// The bounds of one copy's groups: the cores that a group's load needs at the good path's rate and half of
    /// it more, rounded up.
    pub fn bounds(&self) -> Vec<u16> {
        let mut cores = vec![0.0; usize::from(self.groups)];
        let per_io_ns = self.work.group_load_ns();
        let total_ns: f64 = per_io_ns.iter().sum();
        for (g, ns) in per_io_ns.iter().enumerate() {
            let merged = usize::from(self.group(0, g as u16).0);
            cores[merged] += ns / total_ns * f64::from(CORES);
        }
        cores.into_iter().map(|c| ((c * BOUND_OVER_LOAD).ceil() as u16).clamp(1, CORES)).collect()
    }
}
