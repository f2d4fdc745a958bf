//! What a task is to a crew, and what a crew is to a task.
//!
//! Owns: the contract between them. Never: touches the scheduler.
//! Invariant: a task's stack of blocks lives as long as the task, from step to step.

use crate::sync::{AtomicU32, Ordering};
use segue_sched::cleanup::{Block, Code, Failure, Point, Stack};
use segue_sched::rcs::Group;
use std::ops::{Deref, DerefMut};

/// A short task, run to completion in one or more steps.
pub trait Work: Send + 'static {
    /// What it holds while it works.
    type Resource: Copy + Send;

    /// One step, some microseconds long. It begins where `entry` says.
    ///
    /// # Errors
    /// A failure; blocks that are still entered handle it. A panic is the failure [`Code::PANIC`].
    fn run(&mut self, entry: Entry, cx: &mut Cx<'_, Self::Resource>) -> Result<Next, Failure>;

    /// Takes a resource back that the failed task held.
    fn give_back(&mut self, resource: Self::Resource);

    /// Puts the state that the block of `at` guards right again; its resources are still held.
    ///
    /// # Errors
    /// Another code, for the next outer block, when it cannot.
    fn correct(&mut self, at: Point, code: Code) -> Result<(), Code>;

    /// The last call, on the worker's thread or on the one that stops the crew.
    fn ended(&mut self, end: End);
}

/// Where a step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// At the beginning of the task's next step: nothing failed since the last.
    Start,
    /// At a point again, after a failure. Blocks outside of the point's are still entered; for [`Point::START`] none is.
    Retry(Point),
    /// After the block of a point, whose failure was corrected.
    After(Point),
}

/// What a step leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The task is done.
    Done,
    /// The task waits in its queue for another step.
    Again,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its last step said so.
    Done,
    /// A block gave it up.
    Aborted {
        /// The block's point.
        at: Point,
        /// Why.
        code: Code,
    },
    /// No block handled its failure.
    Unhandled {
        /// Why.
        code: Code,
    },
    /// The crew stopped before it was done.
    Stopped,
}

/// What a step sees of its crew. It is the task's [`Stack`] too.
pub struct Cx<'a, R> {
    pub(super) stack: &'a mut Stack<R>,
    pub(super) group: Group,
    pub(super) worker: u16,
    /// How many recoveries the group had when the step was dispatched.
    pub(super) recoveries: u32,
    pub(super) now: &'a AtomicU32,
    /// The group was recovering already.
    pub(super) late: bool,
}

impl<R: Copy> Cx<'_, R> {
    /// A recovery point: asks whether another task of the group failed. Costs a load.
    ///
    /// # Errors
    /// [`Code::GROUP`]: clean up now.
    #[inline]
    pub fn check(&self) -> Result<(), Failure> {
        if self.late || self.now.load(Ordering::Acquire) != self.recoveries { Err(Code::GROUP.into()) } else { Ok(()) }
    }

    /// Enters a block, and asks first as [`Cx::check`] does.
    ///
    /// # Errors
    /// [`Code::GROUP`], with the block entered: it gets the failure.
    #[inline]
    pub fn point(&mut self, block: &'static Block) -> Result<(), Failure> {
        self.stack.arm(block);
        self.check()
    }

    /// The task's recovery group.
    pub fn group(&self) -> Group {
        self.group
    }

    /// The worker that runs this step, from 0.
    pub fn worker(&self) -> u16 {
        self.worker
    }
}

impl<R> Deref for Cx<'_, R> {
    type Target = Stack<R>;

    fn deref(&self) -> &Stack<R> {
        self.stack
    }
}

impl<R> DerefMut for Cx<'_, R> {
    fn deref_mut(&mut self) -> &mut Stack<R> {
        self.stack
    }
}
