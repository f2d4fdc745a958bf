//! The stack of a task: blocks entered, resources held.
//!
//! Owns: their order. Never: decides about a failure; `walk` does.
//! Invariant: a resource belongs to the innermost block that was entered before it was taken and is not left yet.

use super::block::{Action, Block, Failure, Point, Verdict};
use super::code::{Code, CodeSet};
use super::walk::{self, Context};
use std::ops::{Deref, DerefMut};

/// Blocks that a task may be inside at once.
pub const DEPTH_MAX: usize = 8;
/// Resources that a task may hold at once.
pub const HELD_MAX: usize = 16;

/// Fills unused frames; never entered.
static NO_BLOCK: Block = Block { point: Point::START, codes: CodeSet::NONE, action: Action::Propagate };

/// A block that was entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub block: &'static Block,
    /// Resources held when it was entered.
    pub held_before: u8,
    /// Retries from here so far.
    pub attempts: u8,
}

/// Blocks entered and resources held by one task. `R` is what a resource is: small and `Copy`.
#[derive(Clone, Debug)]
pub struct Stack<R> {
    frames: [Frame; DEPTH_MAX],
    held: [Option<R>; HELD_MAX],
    depth: u8,
    held_len: u8,
    /// Retries from the start of the task so far.
    pub(super) attempts_from_start: u8,
    /// The point from which the task is about to start again, with its retries; `START` when it is not.
    pub(super) resumed: (Point, u8),
}

impl<R: Copy> Default for Stack<R> {
    fn default() -> Stack<R> {
        Stack::new()
    }
}

impl<R: Copy> Stack<R> {
    /// Nothing entered, nothing held.
    pub const fn new() -> Stack<R> {
        Stack {
            frames: [Frame { block: &NO_BLOCK, held_before: 0, attempts: 0 }; DEPTH_MAX],
            held: [None; HELD_MAX],
            depth: 0,
            held_len: 0,
            attempts_from_start: 0,
            resumed: (Point::START, 0),
        }
    }

    /// Enters a block for straight code; see [`Scope`].
    ///
    /// # Panics
    /// When [`DEPTH_MAX`] blocks are entered already.
    #[inline]
    pub fn enter(&mut self, block: &'static Block) -> Scope<'_, R> {
        self.arm(block);
        Scope { depth: self.depth, stack: self }
    }

    /// Enters a block that may outlive this step; [`disarm`](Stack::disarm) leaves it.
    ///
    /// # Panics
    /// When [`DEPTH_MAX`] blocks are entered already.
    #[inline]
    pub fn arm(&mut self, block: &'static Block) {
        let mut attempts = 0;
        if self.resumed.1 != 0 && self.resumed.0 == block.point {
            (attempts, self.resumed) = (self.resumed.1, (Point::START, 0));
        }
        let frame = self.frames.get_mut(usize::from(self.depth)).expect("too many clean-up blocks entered");
        *frame = Frame { block, held_before: self.held_len, attempts };
        self.depth += 1;
    }

    /// Leaves the innermost block, which must be `block`. What it took and still holds is the next outer block's now.
    ///
    /// # Panics
    /// When `block` is not the innermost: one inside it was never left, or it was left twice.
    #[inline]
    pub fn disarm(&mut self, block: &'static Block) {
        assert!(self.depth > 0, "no clean-up block is entered");
        let innermost = self.frames[usize::from(self.depth) - 1].block;
        assert!(std::ptr::eq(innermost, block), "clean-up blocks must be left in reverse order");
        self.depth -= 1;
    }

    /// Says that the task holds `resource` now, so that a failure gives it back.
    ///
    /// # Panics
    /// When [`HELD_MAX`] are held already.
    #[inline]
    pub fn hold(&mut self, resource: R) {
        let slot = self.held.get_mut(usize::from(self.held_len)).expect("too many resources held");
        *slot = Some(resource);
        self.held_len += 1;
    }

    /// Blocks entered.
    #[inline]
    pub fn depth(&self) -> usize {
        usize::from(self.depth)
    }

    /// Points of the blocks entered, outermost first.
    pub fn points(&self) -> impl Iterator<Item = Point> + '_ {
        self.frames[..self.depth()].iter().map(|frame| frame.block.point)
    }

    /// What is held, in order of taking.
    pub fn held(&self) -> impl Iterator<Item = R> + '_ {
        self.held[..usize::from(self.held_len)].iter().flatten().copied()
    }

    /// Says that the task is done.
    ///
    /// # Panics
    /// When it is still inside a block or holds something: it forgot to leave or to give back.
    #[inline]
    pub fn finish(&mut self) {
        assert!(self.depth == 0, "a task ended inside a clean-up block");
        assert!(self.held_len == 0, "a task ended with resources held");
        self.progressed();
    }

    /// Says that the task got further than any point it was retried from: its bounds of retries start afresh.
    ///
    /// # Panics
    /// When it is inside a block: that one counts its own retries.
    #[inline]
    pub fn progressed(&mut self) {
        assert!(self.depth == 0, "a task that got further is outside of its clean-up blocks");
        self.attempts_from_start = 0;
        self.resumed = (Point::START, 0);
    }

    /// Finds what to do about a failure: see [`unwind`](super::unwind). For drivers that keep stack and environment
    /// apart.
    pub fn unwind(&mut self, failure: impl Into<Failure>, environment: &mut impl Environment<R>) -> Verdict {
        walk::unwind(&mut Apart { stack: self, environment }, failure)
    }

    /// Takes the innermost block off. Its resources stay held, as the next outer block's.
    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.depth = self.depth.checked_sub(1)?;
        Some(self.frames[usize::from(self.depth)])
    }

    /// Takes the youngest resource off, down to the oldest `keep`.
    pub(super) fn take_above(&mut self, keep: u8) -> Option<R> {
        if self.held_len <= keep {
            return None;
        }
        self.held_len -= 1;
        self.held[usize::from(self.held_len)].take()
    }
}

impl<R: Copy + PartialEq> Stack<R> {
    /// Says that the task gave `resource` back itself. The youngest equal one counts, whichever block took it.
    ///
    /// # Panics
    /// When it is not held: it would be given back twice.
    #[inline]
    pub fn release(&mut self, resource: R) {
        let len = usize::from(self.held_len);
        let at = self.held[..len].iter().rposition(|held| *held == Some(resource));
        let at = at.expect("a task gave back what it does not hold");
        self.held[at..len].rotate_left(1);
        self.held_len -= 1;
        self.held[usize::from(self.held_len)] = None;
        for frame in &mut self.frames[..usize::from(self.depth)] {
            frame.held_before -= u8::from(usize::from(frame.held_before) > at);
        }
    }
}

/// A block that straight code is inside. Use it as the stack; end it with [`leave`](Scope::leave).
///
/// Dropped any other way the block stays entered, and a failure finds it. Forgetting to leave on success is noticed by
/// the next outer block's leave, or at the end of the task.
#[must_use = "a block that is not left stays armed"]
#[derive(Debug)]
pub struct Scope<'a, R> {
    stack: &'a mut Stack<R>,
    depth: u8,
}

impl<R: Copy> Scope<'_, R> {
    /// Leaves the block. What it took and still holds is the next outer block's now.
    ///
    /// # Panics
    /// When a block inside it was never left.
    #[inline]
    pub fn leave(self) {
        assert!(self.stack.depth == self.depth, "clean-up blocks must be left in reverse order");
        self.stack.depth -= 1;
    }
}

impl<R> Deref for Scope<'_, R> {
    type Target = Stack<R>;

    fn deref(&self) -> &Stack<R> {
        self.stack
    }
}

impl<R> DerefMut for Scope<'_, R> {
    fn deref_mut(&mut self) -> &mut Stack<R> {
        self.stack
    }
}

/// The driver's side of a clean-up.
pub trait Environment<R> {
    /// Takes a resource back. Called once for each, youngest first.
    fn give_back(&mut self, resource: R);

    /// Puts the state that the block of `at` guards right again. The block's resources (its locks) are still held.
    ///
    /// # Errors
    /// Another code: the state could not be corrected. It is thrown outwards from this block instead.
    fn correct(&mut self, at: Point, code: Code) -> Result<(), Code>;
}

/// A stack here and an environment there, as one context.
struct Apart<'a, R, E> {
    stack: &'a mut Stack<R>,
    environment: &'a mut E,
}

impl<R: Copy, E: Environment<R>> Environment<R> for Apart<'_, R, E> {
    fn give_back(&mut self, resource: R) {
        self.environment.give_back(resource);
    }

    fn correct(&mut self, at: Point, code: Code) -> Result<(), Code> {
        self.environment.correct(at, code)
    }
}

impl<R: Copy, E: Environment<R>> Context for Apart<'_, R, E> {
    type Resource = R;

    fn stack(&mut self) -> &mut Stack<R> {
        self.stack
    }
}
