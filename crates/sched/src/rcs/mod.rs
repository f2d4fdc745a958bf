//! The recovery-conscious scheduler: which task a pool runs next, so that a fault stops one group and not the node.
//!
//! Owns: waiting tasks, who holds which pool, and the policies. Never: runs a task, reads a clock, or allocates after
//! construction.
//! Invariant: a group never holds more pools than its bound, except by a lease of [`Policy::PartialDynamic`], by the
//! choice of [`Overflow::FewestHeld`], or while it gives back what it took before the bound or the policy changed.
//!
//! Source: Seshadri et al., "Enhancing Storage System Availability on Multi-Core Architectures with Recovery-Conscious
//! Scheduling", FAST 2008. The words are the paper's: a *recovery group* is the unit that cleans up together, a
//! *resource pool* is a unit of processing (here it runs one task at a time: a core), and the *recoverability
//! constraint* or *bound* of a group is the most pools it may hold at once. *Proactive* scheduling keeps to the
//! bounds while all is well; *reactive* scheduling dispatches nothing of a group that recovers.
//!
//! ## Where this scheduler decides what the paper leaves open or says twice
//!
//! - **Dynamic and its bound.** The paper's dynamic mapping prefers groups under their constraint and, when there is
//!   none, takes from the group that holds the fewest pools: it never idles, and a bound is then a preference. A bound
//!   that is only a preference does not bound a recovery, and an idle machine with one busy group is exactly where a
//!   fault would catch every core. So the default is [`Overflow::Never`]: the pool stays idle and the bound
//!   holds. [`Overflow::FewestHeld`] is the paper's clause, for who would rather have the throughput.
//! - **Leases do not use up a bound.** What a group runs by a lease is counted apart from what it holds in its own
//!   right, else a leased core would push the group out of its own pools.
//! - **Priority and round-robin together.** A pool picks the level by its own loop counts and then the next group,
//!   in turn, that has work at this level; so a high task of one group does not wait for the low ones of 255 others.
//!   Within the group its own loop counts decide which of its tasks goes, so a group that is often at its bound
//!   still gets to its low tasks. Neither a group nor a priority can starve.
//! - **Order of arrival.** The baseline takes tasks in order of arrival across all groups. Waiting tasks are linked in
//!   both orders at once, so that policies change online and nothing moves or gets lost.
//!
//! ```
//! use segue_sched::rcs::{Group, Pool, Priority, Rcs, RcsOptions};
//! let mut rcs = Rcs::new(RcsOptions { groups: 2, pools: 2, ..RcsOptions::default() })?;
//! rcs.submit(Group(0), Priority::High, 7)?;
//! rcs.submit(Group(0), Priority::High, 8)?;
//! rcs.submit(Group(1), Priority::Low, 9)?;
//! assert_eq!(rcs.dispatch(Pool(0)).map(|d| d.task), Some(7));
//! // Group 0 holds one pool, which is its bound: the idle pool helps group 1.
//! assert_eq!(rcs.dispatch(Pool(1)).map(|d| d.task), Some(9));
//! // A fault in group 0: nothing of it is dispatched until it has recovered.
//! rcs.recovery_begins(Group(0));
//! rcs.finished(Pool(0));
//! assert!(rcs.dispatch(Pool(0)).is_none());
//! rcs.recovery_ends(Group(0));
//! assert_eq!(rcs.wake(), Some(Pool(0)));
//! assert_eq!(rcs.dispatch(Pool(0)).map(|d| d.task), Some(8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bits;
mod bounds;
mod choose;
mod loops;
mod machine;
mod mapping;
mod options;
mod queues;
#[cfg(test)]
mod tests;

pub use bounds::{Bounds, BoundsOptions, Estimate};
pub use loops::{LoopCounts, Priority};
pub use machine::{Dispatch, DispatchKind, Rcs};
pub use mapping::Mapping;
pub use options::{Overflow, Policy, RcsError, RcsOptions, SubmitError};

/// A task as its driver knows it; the scheduler only hands it back.
pub type Task = u64;

/// A recovery group, by number from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group(pub u16);

/// A resource pool (a core, a worker), by number from 0. Not a pool of storage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pool(pub u16);

/// What happened to a group, or to all groups together, since construction. Numbers of tasks unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Accepted.
    pub submitted: u64,
    /// Not accepted because a queue was full.
    pub refused: u64,
    /// Given to a pool, by whatever right.
    pub dispatched: u64,
    /// Of these, given by a lease of [`Policy::PartialDynamic`].
    pub leased: u64,
    /// Of these, given beyond the bound by [`Overflow::FewestHeld`].
    pub overflowed: u64,
    /// Finished.
    pub finished: u64,
    /// Taken out of the queue again without running.
    pub withdrawn: u64,
    /// Recoveries that began.
    pub recoveries: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, other: &Counters) {
        self.submitted += other.submitted;
        self.refused += other.refused;
        self.dispatched += other.dispatched;
        self.leased += other.leased;
        self.overflowed += other.overflowed;
        self.finished += other.finished;
        self.withdrawn += other.withdrawn;
        self.recoveries += other.recoveries;
    }
}
