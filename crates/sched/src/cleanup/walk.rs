//! The walk of a failure: from where it was raised, outwards through the blocks, to a verdict.
//!
//! Owns: the rules of matching, correcting, retrying and re-throwing. Never: runs when nothing failed.
//! Invariant: each step takes one block off, so a walk ends, and a panic of the environment loses no other resource.

use super::block::{Action, Block, Failure, Heading, Point, Verdict};
use super::code::Code;
use super::stack::{Environment, Frame, Stack};

/// A task in its environment: everything a failure needs.
pub trait Context: Environment<Self::Resource> {
    /// What a resource is.
    type Resource: Copy;

    /// The task's stack.
    fn stack(&mut self) -> &mut Stack<Self::Resource>;
}

/// How [`run`] ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran<T> {
    /// The closure's result.
    Done(T),
    /// It failed, the block corrected that, and the task goes on without its result.
    Ignored(Code),
}

impl<T> Ran<T> {
    /// The result, if there is one.
    pub fn done(self) -> Option<T> {
        match self {
            Ran::Done(value) => Some(value),
            Ran::Ignored(_) => None,
        }
    }
}

/// Calls `work` inside `block`; starts it again, or goes on without it, when the block says so.
///
/// A panic of `work` leaves the block entered; a driver that wants it caught here catches it inside `work`.
///
/// # Errors
/// The failure, when it is for an outer block or for the driver.
///
/// # Panics
/// When `work` succeeds inside a block it never left, or left one it did not enter.
#[inline]
pub fn run<C: Context, T>(
    cx: &mut C,
    block: &'static Block,
    mut work: impl FnMut(&mut C) -> Result<T, Failure>,
) -> Result<Ran<T>, Failure> {
    let depth = cx.stack().depth();
    loop {
        cx.stack().arm(block);
        match work(cx) {
            Ok(value) => {
                cx.stack().disarm(block);
                return Ok(Ran::Done(value));
            }
            Err(failure) => {
                if let Some(code) = settle_down_to(cx, depth, failure)? {
                    return Ok(Ran::Ignored(code));
                }
            }
        }
    }
}

/// Unwinds until `depth` blocks are left, the last one taken off being that of a `run`. `None` means: again.
#[cold]
fn settle_down_to<C: Context>(cx: &mut C, depth: usize, failure: Failure) -> Result<Option<Code>, Failure> {
    let mut failure = failure;
    loop {
        let frame = cx.stack().pop().expect("a clean-up block was left that `run` had entered");
        let last = cx.stack().depth() == depth;
        match settle(cx, frame, failure) {
            Settled::Rethrown(thrown) if last => return Err(thrown),
            Settled::Rethrown(thrown) => failure = thrown,
            Settled::Verdict(Verdict::Retry { .. }) if last => return Ok(None),
            Settled::Verdict(Verdict::GoOn { code, .. }) if last => return Ok(Some(code)),
            // A block inside that was entered without `run` cannot be resumed from here: its caller is gone.
            Settled::Verdict(verdict) => failure = verdict.code().into(),
        }
    }
}

/// Unwinds the task's stack from `failure`, outwards, until a block decides, and says what to do next.
///
/// Blocks that do not handle the failure only give back what they took, youngest first. The one that does is corrected
/// first, while its locks are held. A correction that fails throws its own code to the next outer block.
///
/// When the environment panics the driver may catch that and call this again with [`Code::PANIC`].
#[cold]
pub fn unwind<C: Context>(cx: &mut C, failure: impl Into<Failure>) -> Verdict {
    let mut failure = failure.into();
    loop {
        let settled = match cx.stack().pop() {
            Some(frame) => settle(cx, frame, failure),
            None => return at_start(cx, failure),
        };
        match settled {
            Settled::Verdict(verdict) => return verdict,
            Settled::Rethrown(thrown) => failure = thrown,
        }
    }
}

impl Verdict {
    /// Why.
    pub const fn code(self) -> Code {
        match self {
            Verdict::Retry { code, .. }
            | Verdict::GoOn { code, .. }
            | Verdict::Abort { code, .. }
            | Verdict::Unhandled { code } => code,
        }
    }
}

enum Settled {
    Verdict(Verdict),
    Rethrown(Failure),
}

/// What one block, already taken off, does about a failure.
fn settle<C: Context>(cx: &mut C, frame: Frame, failure: Failure) -> Settled {
    let Block { point, codes, action } = *frame.block;
    let Failure { code, heading } = failure;
    let told = if matches!(heading, Heading::Abort { .. }) { Code::ABORTED } else { code };
    let handles = codes.contains(told) && !matches!(heading, Heading::Retry { .. });
    let corrected = if handles { cx.correct(point, told) } else { Ok(()) };
    give_back(cx, frame.held_before);
    if let Err(worse) = corrected {
        return Settled::Rethrown(worse.into());
    }
    let heading = match (heading, action) {
        (Heading::Handler, _) if !handles => return Settled::Rethrown(failure),
        (Heading::Handler, Action::Ignore) => return Settled::Verdict(Verdict::GoOn { point, code }),
        (Heading::Handler, Action::Propagate) => return Settled::Rethrown(failure),
        (Heading::Handler, Action::RetryNow { retries_max }) => {
            return retry(cx, frame, retries_max, false, failure);
        }
        (Heading::Handler, Action::Abort) => Heading::Abort { at: point },
        (Heading::Handler, Action::RetryLater { from, retries_max }) => Heading::Retry { from, retries_max },
        (heading, _) => heading,
    };
    match heading {
        Heading::Retry { from, retries_max } if from == point => retry(cx, frame, retries_max, true, failure),
        heading => Settled::Rethrown(Failure { code, heading }),
    }
}

/// Retries from a block while its bound allows; then the failure looks for a handler further out.
fn retry<C: Context>(cx: &mut C, frame: Frame, retries_max: u8, later: bool, failure: Failure) -> Settled {
    let (point, code) = (frame.block.point, failure.code);
    if frame.attempts >= retries_max {
        return Settled::Rethrown(code.into());
    }
    let attempt = frame.attempts + 1;
    cx.stack().resumed = (point, attempt);
    Settled::Verdict(Verdict::Retry { point, later, attempt, code })
}

/// No block is left.
fn at_start<C: Context>(cx: &mut C, failure: Failure) -> Verdict {
    give_back(cx, 0);
    let Failure { code, heading } = failure;
    let stack = cx.stack();
    let verdict = match heading {
        Heading::Retry { retries_max, .. } if stack.attempts_from_start < retries_max => {
            stack.attempts_from_start += 1;
            let attempt = stack.attempts_from_start;
            return Verdict::Retry { point: Point::START, later: true, attempt, code };
        }
        Heading::Abort { at } => Verdict::Abort { point: at, code },
        Heading::Handler | Heading::Retry { .. } => Verdict::Unhandled { code },
    };
    stack.finish();
    verdict
}

/// Gives back what is held beyond the oldest `keep`, youngest first.
fn give_back<C: Context>(cx: &mut C, keep: u8) {
    while let Some(resource) = cx.stack().take_above(keep) {
        cx.give_back(resource);
    }
}
