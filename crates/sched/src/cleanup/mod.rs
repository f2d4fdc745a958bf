//! Recovery points and clean-up blocks: what a task undoes, and what happens next, when it fails.
//!
//! Owns: the codes of failures, the stack of entered blocks of a task, and the walk from a failure to a verdict.
//! Never: catches a panic (a driver does), reads a clock, allocates.
//! Invariant: a resource that a task holds is given back exactly once, in reverse order of taking, whatever fails.
//!
//! Source: recovery points, clean-up blocks and recovery actions of Seshadri et al., FAST 2008, section 3 ("tier 1").
//!
//! # The parts
//! - A [`Block`] is declared once, as a `static`: the [`Point`] it guards, the [`CodeSet`] it handles, its [`Action`].
//! - A [`Stack`] lives in each task. It holds the blocks the task has entered and the resources it holds now.
//!   It is a plain value of fixed size: it may stay in a slab while the task waits for its drive.
//! - A [`Failure`] is a code on its way outwards. Code raises one with `?`; a driver makes one of a caught panic.
//! - An [`Environment`] is the driver's: it takes resources back and corrects state.
//! - A [`Verdict`] is what the driver does next: resume the task at a point, go on after it, answer with an error, or
//!   restart what is larger than a task.
//!
//! # Three ways to enter a block, and which to use
//! 1. [`Stack::enter`] gives a [`Scope`]: for straight code inside one step. It ends with [`Scope::leave`]. A scope
//!    that is dropped any other way (`?`, a panic) *stays armed*: that is the point of it. A guard that popped its block on
//!    drop could not tell an early return from a success, and would disarm the block at the very moment it is needed.
//! 2. [`Stack::arm`] and [`Stack::disarm`]: for a block that spans events. Arm it in the step that submits the I/O, hold
//!    the ticket, disarm it in the step that reaps. In between nothing of the task is on the machine's call stack, and the
//!    task's blocks are where they were.
//! 3. [`run`]: for a closure that can be called again. Retrying at once and going on happen in place, without the
//!    driver; what is left travels on as an `Err`.
//!
//! The three mix: a step may `run` closures while blocks armed by earlier steps lie below.
//!
//! # A run-to-completion machine, step by step
//! ```
//! use segue_sched::cleanup::{Action, Block, Code, CodeSet, Environment, Failure, Point, Resource, Stack, Verdict};
//!
//! const READ: Point = Point::new(1, "read");
//! static READ_BLOCK: Block = Block::new(
//!     READ,
//!     CodeSet::of(&[Code::PANIC, Code::INVARIANT, Code::IO]),
//!     Action::RetryNow { retries_max: 2 },
//! );
//!
//! struct Core {
//!     free: Vec<u64>,
//! }
//! impl Environment<Resource> for Core {
//!     fn give_back(&mut self, resource: Resource) {
//!         if let Resource::Buffer(at) = resource {
//!             self.free.push(at);
//!         }
//!     }
//!     fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
//!         Ok(())
//!     }
//! }
//!
//! // The step that starts the read: it arms the block and holds what it takes.
//! fn start(task: &mut Stack<Resource>, core: &mut Core) -> Result<(), Failure> {
//!     task.arm(&READ_BLOCK);
//!     task.hold(Resource::Buffer(core.free.pop().ok_or(Code::BUSY)?));
//!     Ok(())
//! }
//! // The step that ends it; here the drive's answer breaks an invariant.
//! fn finish(task: &mut Stack<Resource>, bytes: usize) -> Result<(), Failure> {
//!     segue_sched::cleanup::check(bytes == 4096, Code::INVARIANT)?;
//!     task.disarm(&READ_BLOCK);
//!     Ok(())
//! }
//!
//! let (mut task, mut core) = (Stack::new(), Core { free: vec![7] });
//! start(&mut task, &mut core).unwrap();
//! let failure = finish(&mut task, 17).unwrap_err();
//! // The driver: the buffer is back, and the task starts again from the point of its innermost matching block.
//! let verdict = task.unwind(failure, &mut core);
//! assert_eq!(verdict, Verdict::Retry { point: READ, later: false, attempt: 1, code: Code::INVARIANT });
//! assert_eq!(core.free, [7]);
//! start(&mut task, &mut core).unwrap();
//! finish(&mut task, 4096).unwrap();
//! ```
//!
//! # Tickets of I/O in flight
//! A drive that was told to fill a buffer goes on doing so whatever the task thinks. Hold the buffer first and the ticket
//! after it: the ticket is given back first, and means "nobody waits for this any more". The environment then keeps the
//! buffer until the drive answers, and frees it there.
//!
//! # Panics
//! A driver wraps a step in `catch_unwind`, makes [`Code::PANIC`] of what it caught, and unwinds the task's stack.
//! [`unwind`] itself survives panics of the environment: the block and the resource in hand count as done, and a second
//! call goes on with the rest.

mod block;
mod code;
mod stack;
mod walk;

pub use block::{Action, Block, Failure, Point, Resource, Verdict, check};
pub use code::{Code, CodeSet};
pub use stack::{DEPTH_MAX, Environment, HELD_MAX, Scope, Stack};
pub use walk::{Context, Ran, run, unwind};
