//! The recovery-conscious scheduler's published evaluation (FAST 2008) in virtual time.
//!
//! Owns: the controller's model and the table of its rows. Never: a scheduling decision; it drives the shipped scheduler.
//! Invariant: all rows share one workload; only what a row names differs.
//!
//! ## What is the paper's
//! An 8-way controller, one processor per pool, 16 recovery groups of which 8 are nearly idle, three priorities; a
//! CPU-bound workload with a read/write ratio of 3, 0.735 of the reads answered from the cache and a destage rate of
//! 11.6 %; about 6.5 million dispatches of group 4 and 5 million of group 5 a minute, more than 20 million in all; a
//! fault per 10,000 dispatches of group 5; 20 ms for every task of the group that is executing when the fault strikes
//! or is dispatched while the group recovers.
//!
//! ## What is inferred, once, for all rows
//! - *Hosts.* Throughput times response is 1,420 to 1,520 in every row of the paper's table: a closed loop. 1,590 I/Os
//!   outstanding with 1.57 ms of thought fit all rows within 2 % (Little's law).
//! - *CPU per I/O* is what makes the baseline's good path 107 KIOPS.
//! - *Channels.* Recoveries alone cost `8.2 a second * 20 ms / 8 = 2.0 %` of the processors, yet the paper's dynamic
//!   row loses less than 0.5 % on its bad path. So its processors were not quite full; here the hosts' channels
//!   carry 107 KIOPS and the processors could do 1.5 % more. The rows `*_saturated` take the channels away.
//! - *Group 4 and 5* share a pool of the static mapping (16 groups dealt in order over 8 pools) and must need 0.30 of
//!   the CPU together, or static would not stop at 44.6 KIOPS. Group 5's part is short tasks with bound 1: with two of
//!   them in flight, dynamic would lose 4 % and not nothing.
//! - *Group 5 works after the reply*: if hosts waited for it, its being suspended a sixth of the time would show in the
//!   response, and 13.5 ms are 13.5 ms in both paths.
//! - *The third busiest group* needs 0.19 of the CPU, or partial dynamic, which bounds it to its own pool and opens the
//!   spare ones to groups 4 and 5, would not stop at 69.9 KIOPS.
//! - *Bounds* are the cores of a group's load and half of it more, rounded up; loop counts are 2 and 2.
//! - *20 ms* are "about": 10 % more or less. *Recovered* is a group when the last task that was executing at the fault is
//!   done; the baseline's dispatches in this time clean up too, but do not prolong it, or it would never end.
//!
//! So two good-path cells (static, partial dynamic) are used to infer how the CPU divides over groups, which the paper does
//! not say. The bad paths, dynamic, fewer groups, proactive only and larger machines follow; nothing is set per row.

mod setup;
mod table;
#[cfg(test)]
mod tests;
mod workload;
mod world;

pub use setup::Setup;
pub use table::{Cell, Larger, Row, larger, rows};
pub use workload::{CACHE_STANDARD, CORES, DISPATCHES_PER_FAULT, GROUPS, RECOVERY_NS, SPARSE, Step, Workload};
pub use world::{Figures, run};
