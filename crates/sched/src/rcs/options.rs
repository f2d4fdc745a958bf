//! What a scheduler is made with, and what it refuses.
//!
//! Owns: the settings, their defaults and their check. Never: keeps state.
//! Invariant: options that pass the check cannot make a group wait for ever.

use super::{Group, LoopCounts, Mapping};
use std::fmt;
use std::str::FromStr;

/// Which pools may serve which groups, and what the bounds mean (FAST 2008, section 4). Changes online.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Policy {
    /// The baseline: every pool takes any task in order of arrival. Knows no bounds and suspends nothing.
    Performance,
    /// Each pool serves the groups of the home mapping only.
    Static,
    /// As static; a pool that finds no work takes a lease on the alternative mapping for some dispatches.
    PartialDynamic,
    /// Every pool may serve every group that is under its bound.
    Dynamic,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] = [Policy::Performance, Policy::Static, Policy::PartialDynamic, Policy::Dynamic];

    /// The name used in settings and results.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Performance => "performance",
            Policy::Static => "static",
            Policy::PartialDynamic => "partial_dynamic",
            Policy::Dynamic => "dynamic",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = RcsError;

    /// Reads a name; `-` and `_` are the same.
    fn from_str(text: &str) -> Result<Policy, RcsError> {
        let text = text.replace('-', "_");
        Policy::ALL.into_iter().find(|p| p.name() == text).ok_or(RcsError::UnknownPolicy)
    }
}

/// What [`Policy::Dynamic`] does when work waits and every group that has some is at its bound.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Overflow {
    /// The pool stays idle; bounds hold always.
    #[default]
    Never,
    /// Takes from the group that holds the fewest pools (the paper's rule): never idle, bounds are a preference.
    FewestHeld,
}

/// What a scheduler is made with.
#[derive(Clone, Debug)]
pub struct RcsOptions {
    /// Recovery groups, 1..=4096.
    pub groups: u16,
    /// Resource pools, each running one task at a time, 1..=4096.
    pub pools: u16,
    /// Tasks that may wait in all. Memory: 24 bytes each.
    pub tasks_max: u32,
    /// Tasks of one group that may wait.
    pub group_tasks_max: u32,
    /// Loop counts of the three priorities.
    pub loops: LoopCounts,
    /// The policy at first.
    pub policy: Policy,
    /// Whether bounds are kept at first.
    pub proactive: bool,
    /// Whether recovering groups are suspended at first.
    pub reactive: bool,
    /// What dynamic does when only groups at their bound have work.
    pub overflow: Overflow,
    /// Dispatches of a lease, at least 1. The paper's default is one.
    pub lease_dispatches: u32,
    /// The bound of every group at first, pools, at least 1.
    pub bound: u16,
    /// Home pools of the groups, for static and partial dynamic; every group needs one. `None`: dealt out in turn.
    pub home: Option<Mapping>,
    /// What a lease opens. `None`: nothing beyond home, which makes partial dynamic the same as static.
    pub alternative: Option<Mapping>,
}

impl Default for RcsOptions {
    fn default() -> Self {
        RcsOptions {
            groups: 1,
            pools: 1,
            tasks_max: 16_384,
            group_tasks_max: 4_096,
            loops: LoopCounts::default(),
            policy: Policy::Dynamic,
            proactive: true,
            reactive: true,
            overflow: Overflow::Never,
            lease_dispatches: 1,
            bound: 1,
            home: None,
            alternative: None,
        }
    }
}

/// Most groups, and most pools, of one scheduler.
pub(super) const COUNT_MAX: u16 = 4096;

impl RcsOptions {
    pub(super) fn check(&self) -> Result<(), RcsError> {
        if self.groups == 0 || self.pools == 0 || self.groups > COUNT_MAX || self.pools > COUNT_MAX {
            return Err(RcsError::Count { groups: self.groups, pools: self.pools });
        }
        if self.loops.high == 0 || self.loops.medium == 0 || self.lease_dispatches == 0 || self.bound == 0 {
            return Err(RcsError::Zero);
        }
        if self.tasks_max == 0 || self.group_tasks_max == 0 || self.tasks_max == u32::MAX {
            return Err(RcsError::Room);
        }
        if let Some(home) = &self.home {
            check_home(home, self.groups, self.pools)?;
        }
        self.alternative.as_ref().map_or(Ok(()), |m| check_shape(m, self.groups, self.pools))
    }
}

/// A mapping must speak of the scheduler's groups and pools.
pub(super) fn check_shape(mapping: &Mapping, groups: u16, pools: u16) -> Result<(), RcsError> {
    let ok = mapping.shape() == (usize::from(groups), usize::from(pools));
    if ok { Ok(()) } else { Err(RcsError::Shape { groups, pools }) }
}

/// A home mapping must leave no group without a pool.
pub(super) fn check_home(mapping: &Mapping, groups: u16, pools: u16) -> Result<(), RcsError> {
    check_shape(mapping, groups, pools)?;
    mapping.orphan().map_or(Ok(()), |group| Err(RcsError::Orphan { group }))
}

/// Settings that make no scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RcsError {
    /// Too few or too many. Choose numbers in the range.
    #[error("a scheduler has 1 to 4096 groups and 1 to 4096 pools; groups=`{groups}` pools=`{pools}`")]
    Count {
        /// Groups asked for.
        groups: u16,
        /// Pools asked for.
        pools: u16,
    },
    /// A count is zero. Use 1 or more.
    #[error("loop counts, lease_dispatches and bounds are at least 1")]
    Zero,
    /// No room for a task, or more than can be numbered. Use 1 to 2^32-2.
    #[error("tasks_max and group_tasks_max are 1 to 4294967294")]
    Room,
    /// A mapping made for other counts. Make it for these.
    #[error("the mapping is not for the scheduler's counts; groups=`{groups}` pools=`{pools}`")]
    Shape {
        /// The scheduler's groups.
        groups: u16,
        /// The scheduler's pools.
        pools: u16,
    },
    /// A group that no pool serves would wait for ever. Give it a home pool.
    #[error("the home mapping gives a group no pool; group=`{}`", group.0)]
    Orphan {
        /// The group.
        group: Group,
    },
    /// A number of the rule that sets bounds is out of its range. See [`super::BoundsOptions`].
    #[error(
        "the rule of bounds: times are above 0, headroom is 1.0 or more, cap and recovery_budget are above 0 and up to 1"
    )]
    Rule,
    /// A policy's name is none of the four.
    #[error("policies are performance, static, partial_dynamic and dynamic")]
    UnknownPolicy,
}

/// A task was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The group's queues hold as much as they may. Stop admitting for this group until some of it has run.
    #[error("the queues of the group are full; group=`{}` tasks=`{tasks}`", group.0)]
    GroupFull {
        /// The group.
        group: Group,
        /// How many of it wait.
        tasks: u32,
    },
    /// All room is taken. Stop admitting until some task has run.
    #[error("all queues are full; tasks=`{tasks}`")]
    Full {
        /// How many tasks wait.
        tasks: u32,
    },
}
