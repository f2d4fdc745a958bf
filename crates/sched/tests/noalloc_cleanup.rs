//! Clean-up blocks and recovery scopes allocate nothing, whether something fails or not.
//!
//! Owns: a counting allocator. Never: counts other threads.
//! Invariant: the canary shows that an allocation would be seen.

#[path = "../../types/testing/calls.rs"]
mod calls;

use calls::calls;
use segue_sched::cleanup::{Action, Block, Code, CodeSet, Environment, Point, Resource, Stack, Verdict};
use segue_sched::scopes::{Config, Kind, Scopes};

static BLOCK: Block = Block::new(Point::new(1, "step"), CodeSet::ALL, Action::RetryNow { retries_max: 3 });

struct Nothing;

impl Environment<Resource> for Nothing {
    fn give_back(&mut self, _resource: Resource) {}

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        Ok(())
    }
}

fn live(stack: &mut Stack<Resource>) {
    for n in 0..1_000 {
        let mut outer = stack.enter(&BLOCK);
        outer.hold(Resource::Buffer(n));
        outer.arm(&BLOCK);
        outer.hold(Resource::Ticket(n));
        outer.release(Resource::Buffer(n));
        outer.release(Resource::Ticket(n));
        outer.disarm(&BLOCK);
        outer.leave();
    }
    drop(stack.enter(&BLOCK));
    stack.hold(Resource::Credits(1));
    while let Verdict::Retry { .. } = stack.unwind(Code::IO, &mut Nothing) {
        drop(stack.enter(&BLOCK));
    }
}

#[test]
fn noalloc_blocks() {
    let mut stack = Stack::new();
    let before = calls();
    live(&mut stack);
    assert_eq!(calls() - before, 0);
    // Seen by nobody, an allocation may be left out.
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(calls() - before, 2, "the counter sees allocations");
}

#[test]
fn noalloc_scopes() {
    let config = Config { declared_max: 2, tasks_max: 4, locks_max: 8, edges_max: 16, window_ns: 100 };
    let mut scopes = Scopes::new(config);
    let volume = scopes.declare(Kind::Volume, 1, None).unwrap();
    let before = calls();
    for n in 0..1_000 {
        let (a, b) = (scopes.begin(volume), scopes.begin(volume));
        scopes.acquired(a, n);
        scopes.acquired(b, n + 1);
        assert!(scopes.together(a, a));
        scopes.end(a);
        scopes.end(b);
        scopes.tick(n * 10);
    }
    assert_eq!(calls() - before, 0);
}
