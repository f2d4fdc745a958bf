//! What is declared: points, blocks, actions; and what travels: failures and verdicts.
//!
//! Owns: these values. Never: changes one.
//! Invariant: no block guards the start of a task; that is the driver's, below every block.

use super::code::{Code, CodeSet};
use std::fmt;

/// A recovery point: a place in a task's life from which it can start again.
#[derive(Clone, Copy)]
pub struct Point {
    id: u16,
    name: &'static str,
}

impl Point {
    /// The start of the task, below all its blocks.
    pub const START: Point = Point { id: 0, name: "start" };

    /// A point of a component; `id` is the component's choice, 1 or more, `name` is for people.
    ///
    /// # Panics
    /// When `id` is 0.
    pub const fn new(id: u16, name: &'static str) -> Point {
        assert!(id != 0, "point 0 is the start of the task");
        Point { id, name }
    }

    /// The number.
    pub const fn id(self) -> u16 {
        self.id
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// Points are the same when their numbers are.
impl PartialEq for Point {
    fn eq(&self, other: &Point) -> bool {
        self.id == other.id
    }
}

impl Eq for Point {}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.id)
    }
}

/// What a block does about a failure it handles, after the state was corrected and the block's resources were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start again from this block's point, at most so many times; after that the failure is re-thrown outwards.
    RetryNow {
        /// Retries, not counting the first attempt.
        retries_max: u8,
    },
    /// Start again later from an outer point: everything entered since is unwound. A point that is not entered means the
    /// start of the task. After so many times the failure is re-thrown outwards from there.
    RetryLater {
        /// The point, this block's own, an outer one's, or [`Point::START`].
        from: Point,
        /// Retries, not counting the first attempt.
        retries_max: u8,
    },
    /// The correction was all there was to do: go on after the block.
    Ignore,
    /// Give the task up, with everything it holds.
    Abort,
    /// Correct and give back, then let the next outer block decide.
    Propagate,
}

/// A clean-up block, declared as a `static`.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The point it guards.
    pub point: Point,
    /// What it handles.
    pub codes: CodeSet,
    /// What it does then.
    pub action: Action,
}

impl Block {
    /// A block.
    ///
    /// # Panics
    /// When the point is [`Point::START`].
    pub const fn new(point: Point, codes: CodeSet, action: Action) -> Block {
        assert!(point.id != 0, "no block guards the start of a task");
        Block { point, codes, action }
    }
}

/// A usual resource of a storage task. Tasks with other things to give back bring a type of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A buffer, by its place in its region.
    Buffer(u64),
    /// A lock on a run of blocks.
    Lock {
        /// First block.
        first: u64,
        /// Blocks.
        blocks: u32,
    },
    /// Credits taken from a budget.
    Credits(u32),
    /// An I/O in flight. Given back means: nobody waits for it; free its buffer when it answers.
    Ticket(u64),
}

/// A code on its way outwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub(super) code: Code,
    pub(super) heading: Heading,
}

/// What a failure is looking for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heading {
    /// The innermost block that handles the code.
    Handler,
    /// The block of a point, to retry there.
    Retry { from: Point, retries_max: u8 },
    /// The end of the task.
    Abort { at: Point },
}

impl Failure {
    /// The code.
    pub const fn code(self) -> Code {
        self.code
    }
}

impl From<Code> for Failure {
    fn from(code: Code) -> Failure {
        Failure { code, heading: Heading::Handler }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the task failed: {}", self.code)
    }
}

impl std::error::Error for Failure {}

/// What the driver does with the task now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start again at `point`: the task enters the point's block anew, and holds nothing it took since.
    Retry {
        /// Where.
        point: Point,
        /// Whether to queue it behind others instead of at once.
        later: bool,
        /// How many-th retry from here, from 1.
        attempt: u8,
        /// Why.
        code: Code,
    },
    /// Go on after the block of `point`, as if it had been left.
    GoOn {
        /// Which block.
        point: Point,
        /// What was corrected.
        code: Code,
    },
    /// Answer with an error: the task holds nothing any more.
    Abort {
        /// The block that gave it up.
        point: Point,
        /// Why.
        code: Code,
    },
    /// No block handled it: the task holds nothing any more, and what is larger than the task must recover.
    Unhandled {
        /// Why.
        code: Code,
    },
}

/// Raises `code` when an invariant does not hold; use it where the task's blocks can put things right.
///
/// # Errors
/// The failure, for `?`.
#[inline]
pub fn check(holds: bool, code: Code) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(code.into()) }
}
