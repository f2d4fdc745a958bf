//! What a clean-up block costs when nothing fails.
//!
//! Owns: the loops that are timed. Never: times a failure.
//! Invariant: the compiler cannot see through a loop; what the loop itself costs is counted in, what other programs take is not.

use super::load::cpu_s;
use segue_sched::cleanup::{Action, Block, Code, CodeSet, Context, Environment, Point, Resource, Stack, run};
use std::hint::black_box;

static OUTER: Block = Block::new(Point::new(1, "outer"), CodeSet::ALL, Action::Abort);

/// Nanoseconds of each, the loop included.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Entering and leaving a block.
    pub scope_ns: f64,
    /// The same, and holding and releasing a resource inside.
    pub scope_and_resource_ns: f64,
    /// The same as the first, around a closure that may be called again.
    pub run_ns: f64,
}

/// Times `count` of each.
pub fn measure(count: u32) -> Costs {
    let mut task = Task { stack: Stack::new() };
    let scope_ns = time(count, |n| {
        let scope = black_box(&mut task.stack).enter(black_box(&OUTER));
        black_box(n);
        scope.leave();
    });
    let scope_and_resource_ns = time(count, |n| {
        let mut scope = black_box(&mut task.stack).enter(black_box(&OUTER));
        scope.hold(Resource::Buffer(u64::from(n)));
        black_box(n);
        scope.release(Resource::Buffer(u64::from(n)));
        scope.leave();
    });
    let run_ns = time(count, |n| {
        let ran = run(black_box(&mut task), &OUTER, |_| Ok(black_box(n)));
        black_box(ran.is_ok());
    });
    task.stack.finish();
    Costs { scope_ns, scope_and_resource_ns, run_ns }
}

fn time(count: u32, mut once: impl FnMut(u32)) -> f64 {
    let start = cpu_s(libc::CLOCK_THREAD_CPUTIME_ID);
    (0..count).for_each(&mut once);
    (cpu_s(libc::CLOCK_THREAD_CPUTIME_ID) - start) * 1e9 / f64::from(count)
}

struct Task {
    stack: Stack<Resource>,
}

impl Environment<Resource> for Task {
    fn give_back(&mut self, _resource: Resource) {}

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        Ok(())
    }
}

impl Context for Task {
    type Resource = Resource;

    fn stack(&mut self) -> &mut Stack<Resource> {
        &mut self.stack
    }
}
