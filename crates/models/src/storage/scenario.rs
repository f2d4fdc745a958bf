//! What is simulated: how many nodes, which load, which drives.
//!
//! Owns: the parameters that all models share, and their limits. Never: a protocol's own settings.
//! Invariant: a scenario that [`Scenario::check`] accepts can be run by every model.

use super::fabric::Fabric;
use super::options::{Key, OptionError, Options};
use segue_types::Nanos;
use serde::Serialize;
use std::sync::Arc;

/// Sizes of chunks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// All of this many bytes.
    Fixed(u64),
    /// A power of two, each as likely as the next, from the first to the second, bytes.
    Powers(u64, u64),
}

/// When chunks come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Each initiator has one chunk outstanding and the next one at once; the first at a random time below this, nanoseconds.
    Closed {
        /// Spread of the first chunks, nanoseconds; 0 is SURGE's cold start.
        stagger_ns: Nanos,
    },
    /// Poisson at each initiator, whatever is still outstanding.
    Open {
        /// Load, thousandths of what the slower of drives and target links can carry.
        load_permille: u64,
    },
}

/// Which group of targets a chunk belongs to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// SURGE's: at random; drawn once more when it is the initiator's last, and then the next one.
    Random,
    /// The group of each initiator's n-th chunk; repeats from its start when it is used up.
    #[serde(skip)]
    Given(Arc<Vec<Vec<u32>>>),
    /// Hot spots: the first `groups` groups get `permille` of the chunks.
    Hot {
        /// How many groups are hot.
        groups: u32,
        /// Their share, thousandths.
        permille: u64,
    },
}

/// When a target acknowledges a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Acknowledge {
    /// When it is on the medium (SURGE when its results were published).
    WriteThrough,
    /// At once while the drive's backlog is below `max(2, 256 KiB / chunk)` chunks, else when it is on the medium (SURGE now).
    WriteBack,
}

/// A drive that is slower than the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Slow {
    /// Which target.
    pub target: u32,
    /// Its speed, thousandths of the others'.
    pub permille: u64,
}

/// Everything that a run is about, but for the protocol and the seed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Scenario {
    /// Nodes that write.
    pub initiators: u32,
    /// Nodes that store; rounded down to whole groups by [`Scenario::groups`].
    pub targets: u32,
    /// Targets of a negotiating group.
    pub group_targets: u32,
    /// Copies of each chunk.
    pub copies: u32,
    /// Sizes of chunks.
    pub sizes: Sizes,
    /// When chunks come.
    pub arrivals: Arrivals,
    /// Which group each belongs to.
    pub placement: Placement,
    /// Links.
    pub fabric: Fabric,
    /// Each drive's rate, bytes per second.
    pub drive_bytes_per_s: u64,
    /// When a copy is acknowledged.
    pub acknowledge: Acknowledge,
    /// Drives that are slower.
    pub slow: Vec<Slow>,
    /// Virtual time of the run, nanoseconds.
    pub run_ns: Nanos,
    /// Chunks created before this are not counted in figures, nanoseconds.
    pub warm_up_ns: Nanos,
}

impl Default for Scenario {
    /// SURGE's: 90 initiators, 90 targets, 128 KiB, 400 MiB/s, 10 ms from a cold start.
    fn default() -> Scenario {
        Scenario {
            initiators: 90,
            targets: 90,
            group_targets: 9,
            copies: 3,
            sizes: Sizes::Fixed(128 << 10),
            arrivals: Arrivals::Closed { stagger_ns: 0 },
            placement: Placement::Random,
            fabric: Fabric::default(),
            drive_bytes_per_s: 400 << 20,
            acknowledge: Acknowledge::WriteThrough,
            slow: Vec::new(),
            run_ns: 10_000_000,
            warm_up_ns: 0,
        }
    }
}

/// Keys of the shared parameters, for `--set`.
pub const KEYS: &[Key] = &[
    Key { name: "chunk", about: "bytes of every chunk, for example 1MiB", default: "128KiB" },
    Key { name: "chunk_max", about: "with it, sizes are powers of two from chunk to this", default: "" },
    Key { name: "drive_mbps", about: "each drive's rate, MiB/s", default: "400" },
    Key { name: "group", about: "targets of a negotiating group", default: "9" },
    Key { name: "copies", about: "copies of each chunk", default: "3" },
    Key {
        name: "load_permille",
        about: "open arrivals: thousandths of the capacity; 0 is the closed loop",
        default: "0",
    },
    Key { name: "stagger", about: "closed loop: spread of the first chunks, for example 2ms", default: "0ns" },
    Key { name: "hot_groups", about: "the first so many groups are hot", default: "0" },
    Key { name: "hot_permille", about: "their share of all chunks, thousandths", default: "500" },
    Key {
        name: "slow_targets",
        about: "so many targets, the first of each group in turn, have slow drives",
        default: "0",
    },
    Key { name: "slow_permille", about: "their speed, thousandths", default: "250" },
    Key {
        name: "write_back",
        about: "acknowledge before the medium while the backlog is short: true or false",
        default: "false",
    },
    Key { name: "link_gbps", about: "raw rate of each link, Gbit/s", default: "10" },
    Key { name: "trip", about: "propagation, for example 1us", default: "1us" },
    Key { name: "run", about: "virtual time, for example 40ms", default: "10ms" },
    Key { name: "warm_up", about: "chunks created before this are not in the figures", default: "0ns" },
];

impl Scenario {
    /// The scenario that the shared keys of `options` describe, over `self` for what they do not name.
    ///
    /// # Errors
    /// Names the key and what it takes.
    pub fn with(mut self, options: &mut Options) -> Result<Scenario, OptionError> {
        let chunk = options.size("chunk")?;
        let chunk_max = options.size("chunk_max")?;
        self.sizes = match (chunk, chunk_max, &self.sizes) {
            (None, None, sizes) => sizes.clone(),
            (chunk, Some(max), _) => Sizes::Powers(chunk.unwrap_or(4 << 10), max),
            (Some(chunk), None, _) => Sizes::Fixed(chunk),
        };
        if let Some(mbps) = options.number("drive_mbps")? {
            self.drive_bytes_per_s = mbps.saturating_mul(1 << 20);
        }
        options.number("group")?.inspect(|n| self.group_targets = clipped(*n));
        options.number("copies")?.inspect(|n| self.copies = clipped(*n));
        if let Some(stagger_ns) = options.duration("stagger")? {
            self.arrivals = Arrivals::Closed { stagger_ns };
        }
        if let Some(load_permille) = options.number("load_permille")?.filter(|n| *n > 0) {
            self.arrivals = Arrivals::Open { load_permille };
        }
        let permille = options.number("hot_permille")?.unwrap_or(500);
        if let Some(groups) = options.number("hot_groups")?.filter(|n| *n > 0) {
            self.placement = Placement::Hot { groups: clipped(groups), permille };
        }
        let permille = options.number("slow_permille")?.unwrap_or(250);
        if let Some(slow) = options.number("slow_targets")? {
            if slow > u64::from(self.targets) {
                return Err(OptionError::Range { key: "slow_targets", range: "at most all targets" });
            }
            let groups = u64::from(self.groups().max(1));
            let place = |n: u64| (n % groups * u64::from(self.group_targets) + n / groups) as u32;
            self.slow = (0..slow).map(|n| Slow { target: place(n), permille }).collect();
        }
        if let Some(back) = options.truth("write_back")? {
            self.acknowledge = if back { Acknowledge::WriteBack } else { Acknowledge::WriteThrough };
        }
        options.number("link_gbps")?.inspect(|n| self.fabric.link_bits_per_s = n.saturating_mul(1_000_000_000));
        options.duration("trip")?.inspect(|ns| self.fabric.trip_ns = *ns);
        options.duration("run")?.inspect(|ns| self.run_ns = *ns);
        options.duration("warm_up")?.inspect(|ns| self.warm_up_ns = *ns);
        self.check()?;
        Ok(self)
    }

    /// Whole groups of targets.
    pub const fn groups(&self) -> u32 {
        match self.targets.checked_div(self.group_targets) {
            Some(groups) => groups,
            None => 0,
        }
    }

    /// Whether every model can run it.
    ///
    /// # Errors
    /// Names the parameter that is out of range, and its range.
    pub fn check(&self) -> Result<(), OptionError> {
        let rules: [(bool, &'static str, &'static str); 12] = [
            ((1..=1_000_000).contains(&self.initiators), "initiators", "1 to 1,000,000"),
            ((1..=64).contains(&self.group_targets), "group", "1 to 64 targets"),
            (self.groups() >= 2 && self.targets <= 1_000_000, "targets", "at least two groups, at most 1,000,000"),
            ((1..=self.group_targets.min(8)).contains(&self.copies), "copies", "1 to 8, and at most a group"),
            (self.sizes_are_sound(), "chunk", "512 bytes to 1 GiB; chunk_max at least chunk, both powers of two"),
            ((1 << 20..=1 << 44).contains(&self.drive_bytes_per_s), "drive_mbps", "1 to 16,777,216 MiB/s"),
            ((1_000_000_000..=1_000_000_000_000).contains(&self.fabric.link_bits_per_s), "link_gbps", "1 to 1,000"),
            (self.fabric.trip_ns <= 1_000_000_000, "trip", "at most 1s"),
            (
                self.run_ns > self.warm_up_ns && self.run_ns <= 3_600_000_000_000,
                "run",
                "longer than warm_up, at most 1h",
            ),
            (self.arrivals_are_sound(), "load_permille", "1 to 100,000"),
            (self.placement_is_sound(), "hot_groups", "fewer than there are groups; hot_permille at most 1000"),
            (
                self.slow.iter().all(|s| s.target < self.targets && (1..=1_000).contains(&s.permille)),
                "slow_targets",
                "at most all targets; slow_permille 1 to 1000",
            ),
        ];
        OptionError::unless(&rules)
    }

    fn sizes_are_sound(&self) -> bool {
        let sound = |bytes: u64| (512..=1 << 30).contains(&bytes);
        match self.sizes {
            Sizes::Fixed(bytes) => sound(bytes),
            Sizes::Powers(min, max) => {
                sound(min) && sound(max) && min <= max && min.is_power_of_two() && max.is_power_of_two()
            }
        }
    }

    const fn arrivals_are_sound(&self) -> bool {
        match self.arrivals {
            Arrivals::Closed { .. } => true,
            Arrivals::Open { load_permille } => load_permille >= 1 && load_permille <= 100_000,
        }
    }

    fn placement_is_sound(&self) -> bool {
        match &self.placement {
            Placement::Random => true,
            Placement::Given(of) => {
                of.len() == self.initiators as usize
                    && of.iter().all(|list| !list.is_empty() && list.iter().all(|g| *g < self.groups()))
            }
            Placement::Hot { groups, permille } => *groups < self.groups() && *permille <= 1_000,
        }
    }

    /// Time on the medium of `bytes` at `target`, nanoseconds.
    pub fn drive_ns(&self, target: u32, bytes: u64) -> Nanos {
        let rate = u128::from(self.drive_bytes_per_s);
        let time = u128::from(bytes) * 1_000_000_000 / rate;
        let slow = self.slow.iter().find(|s| s.target == target);
        slow.map_or(time, |s| time * 1_000 / u128::from(s.permille)) as Nanos
    }

    /// The mean chunk, bytes.
    pub fn mean_bytes(&self) -> u64 {
        match self.sizes {
            Sizes::Fixed(bytes) => bytes,
            Sizes::Powers(min, max) => (2 * max - min) / u64::from(max.ilog2() - min.ilog2() + 1),
        }
    }

    /// What all targets together can store of users' data, bytes per second: the slower of their drives and of their links.
    pub fn capacity_bytes_per_s(&self) -> u64 {
        let link = self.fabric.timing().data_bits_per_s() / 8;
        let drive = |t: u32| {
            let slow = self.slow.iter().find(|s| s.target == t).map_or(1_000, |s| s.permille);
            (self.drive_bytes_per_s / 1_000 * slow).min(link)
        };
        (0..self.groups() * self.group_targets).map(drive).sum::<u64>() / u64::from(self.copies)
    }
}

/// A number as a parameter takes it; what is too large stays too large.
fn clipped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
