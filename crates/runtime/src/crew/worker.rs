//! One worker: runs what it is given, and cleans up after what fails.
//!
//! Owns: the catching of panics. Never: holds the crew's lock while a task runs.
//! Invariant: whatever a task does, its worker asks for the next.

use super::shared::{Assignment, Job, Over, Shared};
use super::work::{Cx, End, Entry, Next, Work};
use segue_sched::cleanup::{Code, Context, Environment, Failure, Point, Stack, Verdict, unwind};
use segue_sched::rcs::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Works until the crew stops.
pub fn work<W: Work>(shared: &Shared<W>, pool: Pool) {
    let mut last = None;
    while let Some(mut assignment) = shared.next(pool, last) {
        let over = perform(shared, pool, &mut assignment);
        last = Some((assignment, over));
    }
}

fn perform<W: Work>(shared: &Shared<W>, pool: Pool, assignment: &mut Assignment) -> Over {
    let mut place = shared.jobs[assignment.place].lock().expect("panics of tasks are caught");
    let job = place.as_mut().expect("a task that is dispatched is in its place");
    let end = loop {
        let failure = match step(shared, pool, assignment, job) {
            Ok(Next::Again) => {
                job.entry = Entry::Start;
                return Over::Requeue;
            }
            Ok(Next::Done) => break End::Done,
            Err(failure) => failure,
        };
        if shared.spreads.contains(failure.code()) {
            shared.group_failed(pool, assignment.group);
        }
        let (entry, later) = match clean_up(job, failure) {
            Verdict::Abort { point, code } => break End::Aborted { at: point, code },
            Verdict::Unhandled { code } => break End::Unhandled { code },
            Verdict::Retry { point, later, .. } => (Entry::Retry(point), later),
            Verdict::GoOn { point, .. } => (Entry::After(point), false),
        };
        job.entry = entry;
        if later || !shared.goes_on(pool, assignment) {
            return Over::Requeue;
        }
    };
    // The last call of a task may panic too; there is nobody left to tell.
    let _ = catch_unwind(AssertUnwindSafe(|| job.work.ended(end)));
    let gone = place.take();
    drop(place);
    let _ = catch_unwind(AssertUnwindSafe(|| drop(gone)));
    Over::Gone
}

/// One step. A task that says it is done has left its blocks and holds nothing, or that is a failure too.
fn step<W: Work>(shared: &Shared<W>, pool: Pool, assignment: &Assignment, job: &mut Job<W>) -> Result<Next, Failure> {
    let Job { work, stack, entry } = job;
    let mut cx = Cx {
        stack,
        group: assignment.group,
        worker: pool.0,
        recoveries: assignment.recoveries,
        now: &shared.recoveries[usize::from(assignment.group.0)],
        late: assignment.late,
    };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let next = work.run(*entry, &mut cx)?;
        match next {
            Next::Done => cx.stack.finish(),
            Next::Again if cx.stack.depth() == 0 => cx.stack.progressed(),
            Next::Again => {}
        }
        Ok(next)
    }));
    ran.unwrap_or_else(|_| Err(Code::PANIC.into()))
}

/// Unwinds the task's blocks. A correction that panics counts as the failure of the next outer block.
#[cold]
fn clean_up<W: Work>(job: &mut Job<W>, failure: Failure) -> Verdict {
    let mut failure = failure;
    loop {
        let Job { work, stack, .. } = job;
        let walked = catch_unwind(AssertUnwindSafe(|| unwind(&mut Cleaning { work, stack }, failure)));
        match walked {
            Ok(verdict) => return verdict,
            // Each walk takes a block or a resource off before it calls the task, so this ends.
            Err(_) => failure = Code::PANIC.into(),
        }
    }
}

struct Cleaning<'a, W: Work> {
    work: &'a mut W,
    stack: &'a mut Stack<W::Resource>,
}

impl<W: Work> Environment<W::Resource> for Cleaning<'_, W> {
    fn give_back(&mut self, resource: W::Resource) {
        self.work.give_back(resource);
    }

    fn correct(&mut self, at: Point, code: Code) -> Result<(), Code> {
        self.work.correct(at, code)
    }
}

impl<W: Work> Context for Cleaning<'_, W> {
    type Resource = W::Resource;

    fn stack(&mut self) -> &mut Stack<W::Resource> {
        self.stack
    }
}
