//! Chunks: what initiators write.
//!
//! Owns: the arrivals of a run, by the scenario's rules, and each chunk's facts. Never: a protocol's state.
//! Invariant: what arrives depends on the scenario and the seed alone, never on a protocol (in the closed loop: given the order of an
//! initiator's chunks).

use super::scenario::{Arrivals, Placement, Scenario, Sizes};
use segue_des::Chance;
use segue_types::Nanos;

/// Names a chunk of a run, in order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChunkId(pub u32);

/// A chunk to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Who writes it.
    pub initiator: u32,
    /// Its group, by name: `0..groups`. Targets of group g are `g * group_targets ..`.
    pub group: u32,
    /// A second group that the same name gives, other than `group`, for protocols that ask two.
    pub second_group: u32,
    /// Size, bytes.
    pub bytes: u64,
    /// When it came, nanoseconds.
    pub created_ns: Nanos,
}

/// Longest mean time between chunks of an initiator, nanoseconds: over two years.
const GAP_MAX_NS: u128 = 1 << 56;

struct Source {
    chance: Chance,
    second: Chance,
    made: usize,
    last_group: Option<u32>,
}

/// The chunks of a run.
pub struct Chunks {
    sources: Vec<Source>,
    all: Vec<Chunk>,
    gap_ns: u64,
}

impl Chunks {
    /// The sources of a scenario.
    pub fn new(scenario: &Scenario, seed: u64) -> Chunks {
        let root = Chance::new(seed);
        let source = |n: u32| Source {
            chance: root.stream(&format!("initiator {n}")),
            second: root.stream(&format!("second group {n}")),
            made: 0,
            last_group: None,
        };
        let gap_ns = match scenario.arrivals {
            Arrivals::Closed { .. } => 0,
            Arrivals::Open { load_permille } => {
                let bytes = u128::from(scenario.mean_bytes()) * u128::from(scenario.initiators) * 1_000_000_000_000;
                let mean_ns = bytes / (u128::from(scenario.capacity_bytes_per_s()) * u128::from(load_permille.max(1)));
                mean_ns.clamp(1, GAP_MAX_NS) as u64
            }
        };
        Chunks { sources: (0..scenario.initiators).map(source).collect(), all: Vec::new(), gap_ns }
    }

    /// When the initiator's first chunk comes, nanoseconds.
    pub fn first_ns(&mut self, scenario: &Scenario, initiator: u32) -> Nanos {
        match scenario.arrivals {
            Arrivals::Closed { stagger_ns: 0 } => 0,
            Arrivals::Closed { stagger_ns } => self.sources[initiator as usize].chance.below(stagger_ns),
            Arrivals::Open { .. } => self.gap_ns(initiator),
        }
    }

    /// Time to the initiator's next chunk, open arrivals, nanoseconds.
    pub fn gap_ns(&mut self, initiator: u32) -> Nanos {
        self.sources[initiator as usize].chance.exponential(self.gap_ns)
    }

    /// The initiator's next chunk.
    pub fn make(&mut self, scenario: &Scenario, initiator: u32, now: Nanos) -> ChunkId {
        let source = &mut self.sources[initiator as usize];
        let bytes = match scenario.sizes {
            Sizes::Fixed(bytes) => bytes,
            Sizes::Powers(min, max) => min << source.chance.below(u64::from(max.ilog2() - min.ilog2()) + 1),
        };
        let group = source.group(scenario, initiator);
        let second_group = source.second_group(scenario, group);
        self.all.push(Chunk { initiator, group, second_group, bytes, created_ns: now });
        ChunkId(u32::try_from(self.all.len() - 1).expect("fewer than 2^32 chunks"))
    }

    /// Draws another group for a chunk, other than its last one, and lets its time begin anew, as if another chunk had come in
    /// its place.
    pub fn renew(&mut self, scenario: &Scenario, chunk: ChunkId, now: Nanos) {
        let Chunk { initiator, bytes, group: last_group, .. } = *self.get(chunk);
        let source = &mut self.sources[initiator as usize];
        let mut group = source.group(scenario, initiator);
        if group == last_group {
            group = source.second_group(scenario, group);
        }
        let second_group = source.second_group(scenario, group);
        self.all[chunk.0 as usize] = Chunk { initiator, group, second_group, bytes, created_ns: now };
    }

    /// A chunk.
    pub fn get(&self, chunk: ChunkId) -> &Chunk {
        &self.all[chunk.0 as usize]
    }

    /// All chunks so far.
    pub fn all(&self) -> &[Chunk] {
        &self.all
    }
}

impl Source {
    fn second_group(&mut self, scenario: &Scenario, group: u32) -> u32 {
        let second = self.second.below(u64::from(scenario.groups()) - 1) as u32;
        if second >= group { second + 1 } else { second }
    }

    fn group(&mut self, scenario: &Scenario, initiator: u32) -> u32 {
        let groups = u64::from(scenario.groups());
        let group = match &scenario.placement {
            Placement::Random => {
                let mut group = self.chance.below(groups) as u32;
                if self.last_group == Some(group) {
                    group = self.chance.below(groups) as u32;
                }
                if self.last_group == Some(group) { (group + 1) % groups as u32 } else { group }
            }
            Placement::Given(of) => of[initiator as usize][self.made % of[initiator as usize].len()],
            Placement::Hot { groups: hot, permille } => {
                let hot = u64::from(*hot);
                if self.chance.odds(*permille, 1_000) {
                    self.chance.below(hot.max(1)) as u32
                } else {
                    (hot + self.chance.below(groups - hot)) as u32
                }
            }
        };
        self.made += 1;
        self.last_group = Some(group);
        group
    }
}
