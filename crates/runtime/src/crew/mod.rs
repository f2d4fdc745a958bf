//! A crew: worker threads that run short tasks of recovery groups, as the recovery-conscious scheduler says.
//!
//! Owns: the threads, the slab of tasks, and the recovery of a group whose task failed. Never: decides what runs next
//! (`segue_sched::rcs`) or what follows a failure (`segue_sched::cleanup`); reads a clock; allocates for a task.
//! Invariant: while a group recovers under the reactive part, no task of it starts, and it resumes only when every
//! task that was executing when it failed has cleaned up.
//!
//! A task is a [`Work`]: a machine whose [`run`](Work::run) is one short step. Each worker is one pool of the scheduler
//! and runs one step at a time. It takes the one lock of the crew once per step: to say that the last one is over, to put it
//! back in its queue when it wants another, and to get the next.
//!
//! # When a task fails
//! 1. It returns an error, or panics; the worker catches that. Blocks that it did not leave are still entered.
//! 2. If the code is one that *spreads* (by default panics, broken invariants, injected faults, wrong states), its
//!    group begins to recover: the scheduler dispatches nothing more of it, and tasks of it that execute now find
//!    [`Code::GROUP`](segue_sched::cleanup::Code::GROUP) at their next recovery point ([`Cx::check`]). An error of one request alone (an
//!    I/O error, a full queue) stops nobody else.
//! 3. The worker unwinds the task's blocks: it corrects state and gives resources back through the work itself.
//! 4. The verdict: the task starts again from a point, goes on after a block, or ends with an error. A task whose
//!    group still recovers waits in its queue for that.
//! 5. When the last task that was executing is clean, the group resumes.
//!
//! Workers sleep when there is nothing that they may run; there is no polling.

mod handle;
mod parker;
mod shared;
mod work;
mod worker;

pub use handle::{Crew, CrewError, CrewHandle, CrewOptions, GroupStatus, Refused, Status};
pub use work::{Cx, End, Entry, Next, Work};
