//! The work of the controller: hosts, kinds of I/O, tasks and what they cost.
//!
//! Owns: every number of the model, with its origin. Never: differs between the rows of the table.
//! Invariant: rows differ in policy, groups, cores and faults only; the work is the same.

use segue_sched::rcs::Priority;
use segue_types::Nanos;

/// Groups of one copy of the controller (paper).
pub const GROUPS: u16 = 16;
/// Processors of one copy (paper).
pub const CORES: u16 = 8;
/// The group whose tasks fail (paper).
pub const FAULTY: u16 = 5;
/// Dispatches of [`FAULTY`] per fault (paper).
pub const DISPATCHES_PER_FAULT: u64 = 10_000;
/// Time a task takes to clean up, on average (paper: "about 20 ms").
pub const RECOVERY_NS: Nanos = 20_000_000;

/// One million: probabilities below are parts of it.
pub const MILLION: u64 = 1_000_000;

/// The numbers of one copy's workload. All times in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    /// I/Os that the hosts keep outstanding, those in thought included.
    pub hosts: u32,
    /// Mean pause of a host between a reply and its next I/O.
    pub think_ns: Nanos,
    /// Host channels, and how long one is busy with an I/O; 0: the channels never limit.
    pub channels: u32,
    /// See `channels`.
    pub channel_ns: Nanos,
    /// Reads per million I/Os.
    pub reads: u64,
    /// Reads per million reads that find their data in the cache.
    pub read_hits: u64,
    /// I/Os per million that cause a destage.
    pub destages: u64,
    /// I/Os per million that leave a task for group 5 behind.
    pub releases: u64,
    /// I/Os per million that leave a task for one of the nearly idle groups behind.
    pub rare: u64,
    /// Mean time of a disk.
    pub disk_ns: Nanos,
    /// CPU time of a task of group 4 (front end).
    pub front_ns: Nanos,
    /// CPU time of a task of group 5 (release).
    pub release_ns: Nanos,
    /// CPU time of a task of group 0 (cache directory and copy).
    pub cache_ns: Nanos,
    /// CPU time of a task that stages or destages.
    pub stage_ns: Nanos,
    /// CPU time of a task of a nearly idle group.
    pub rare_ns: Nanos,
    /// What a dispatch from group queues costs beyond one from the shared queue.
    pub group_dispatch_ns: Nanos,
    /// A cleaning task takes this many parts of 1,000 more or less than the mean, uniformly.
    pub recovery_spread: u64,
}

/// Cache-Standard: CPU-bound, mostly answered from the cache.
pub const CACHE_STANDARD: Workload = Workload {
    hosts: 1_590,
    think_ns: 1_570_000,
    channels: 8,
    channel_ns: 74_770,
    reads: 750_000,
    read_hits: 735_000,
    destages: 116_000,
    releases: 779_000,
    rare: 16_000,
    disk_ns: 6_000_000,
    front_ns: 17_600,
    release_ns: 6_000,
    cache_ns: 14_200,
    stage_ns: 49_200,
    rare_ns: 20_000,
    group_dispatch_ns: 100,
    recovery_spread: 100,
};

/// Sparse: the same tasks, but few I/Os outstanding, most of which wait for a disk: a quarter of the CPU.
pub const SPARSE: Workload = Workload { hosts: 148, read_hits: 200_000, disk_ns: 10_000_000, ..CACHE_STANDARD };

impl Workload {
    /// The same load in fewer and longer tasks: `grain` times fewer I/Os, each `grain` times the CPU. For runs of
    /// many cores over many seconds, where each task alone is still far shorter than a recovery.
    pub fn coarser(self, grain: u32) -> Workload {
        let g = Nanos::from(grain);
        Workload {
            hosts: self.hosts / grain,
            channel_ns: self.channel_ns * g,
            front_ns: self.front_ns * g,
            release_ns: self.release_ns * g,
            cache_ns: self.cache_ns * g,
            stage_ns: self.stage_ns * g,
            rare_ns: self.rare_ns * g,
            group_dispatch_ns: self.group_dispatch_ns * g,
            ..self
        }
    }

    /// CPU time per I/O of each group, nanoseconds: what the bounds are made from.
    pub fn group_load_ns(&self) -> [f64; GROUPS as usize] {
        let of = |parts: u64, ns: Nanos| parts as f64 / MILLION as f64 * ns as f64;
        let misses = self.reads * (MILLION - self.read_hits) / MILLION;
        std::array::from_fn(|g| match g as u16 {
            4 => of(MILLION, self.front_ns),
            FAULTY => of(self.releases, self.release_ns),
            0 => of(MILLION, self.cache_ns),
            2 | 6 => of(misses, self.stage_ns),
            8 | 10 | 12 => of(self.destages, self.stage_ns),
            _ => of(self.rare / RARE_GROUPS.len() as u64, self.rare_ns),
        })
    }
}

/// The nearly idle groups: half of all (paper), here those that no step below names.
pub const RARE_GROUPS: [u16; 8] = [1, 3, 7, 9, 11, 13, 14, 15];

/// What a task does. A host I/O is the steps from `Front` to its reply; the rest happens behind the host's back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Step {
    /// Takes the command from the channel.
    Front,
    /// Looks the track up in the cache and copies; a hit or a write is answered after it.
    Cache,
    /// Asks the disk for a missing track.
    Stage,
    /// Puts the track into the cache; the miss is answered after it.
    Staged,
    /// After the reply: order in the cache, statistics.
    Release,
    /// Collects a track to write to disk.
    Destage,
    /// Its parity.
    Parity,
    /// The disk has written it.
    Destaged,
    /// Something in a nearly idle group.
    Rare,
}

impl Step {
    /// All steps, by number.
    pub const ALL: [Step; 9] = [
        Step::Front,
        Step::Cache,
        Step::Stage,
        Step::Staged,
        Step::Release,
        Step::Destage,
        Step::Parity,
        Step::Destaged,
        Step::Rare,
    ];

    /// The recovery group within its copy; the caller chooses for [`Step::Rare`].
    pub const fn group(self) -> u16 {
        match self {
            Step::Front => 4,
            Step::Cache => 0,
            Step::Stage => 2,
            Step::Staged => 6,
            Step::Release => FAULTY,
            Step::Destage => 8,
            Step::Parity => 10,
            Step::Destaged => 12,
            Step::Rare => RARE_GROUPS[0],
        }
    }

    /// Completions of disks first, the hosts' work next, destaging last.
    pub const fn priority(self) -> Priority {
        match self {
            Step::Staged | Step::Release => Priority::High,
            Step::Front | Step::Cache | Step::Stage => Priority::Medium,
            Step::Destage | Step::Parity | Step::Destaged | Step::Rare => Priority::Low,
        }
    }

    /// Mean CPU time, nanoseconds.
    pub const fn cpu_ns(self, work: &Workload) -> Nanos {
        match self {
            Step::Front => work.front_ns,
            Step::Release => work.release_ns,
            Step::Cache => work.cache_ns,
            Step::Rare => work.rare_ns,
            _ => work.stage_ns,
        }
    }
}
