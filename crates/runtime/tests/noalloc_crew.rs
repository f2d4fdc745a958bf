//! A crew allocates nothing for a task, whether it fails or not.
//!
//! Owns: a counting allocator and the threads it counts. Never: counts panics, which allocate by themselves.
//! Invariant: only allocations of workers, between arming and disarming, are counted; a canary shows that they are seen.

use segue_runtime::crew::{Crew, CrewOptions, Cx, End, Entry, Next, Work};
use segue_sched::cleanup::{Action, Block, Code, CodeSet, Failure, Point};
use segue_sched::rcs::{Group, Policy, Priority, RcsOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if ARMED.load(Ordering::Relaxed) && WORKER.try_with(Cell::get).unwrap_or(false) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static BLOCK: Block = Block::new(Point::new(1, "step"), CodeSet::ALL, Action::Ignore);

/// Goes on for ever; fails now and then.
struct Step {
    steps: Arc<AtomicU64>,
    wasteful: bool,
}

impl Work for Step {
    type Resource = u8;

    fn run(&mut self, entry: Entry, cx: &mut Cx<'_, u8>) -> Result<Next, Failure> {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        if entry != Entry::Start {
            return Ok(Next::Again);
        }
        cx.point(&BLOCK)?;
        cx.hold(7);
        if step.is_multiple_of(13) {
            return Err(Code::INVARIANT.into());
        }
        if self.wasteful {
            drop(Box::new(step));
        }
        cx.release(7);
        cx.disarm(&BLOCK);
        Ok(Next::Again)
    }

    fn give_back(&mut self, _resource: u8) {}

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        Ok(())
    }

    fn ended(&mut self, _end: End) {}
}

/// Allocations of the workers during some thousand steps.
fn allocations(wasteful: bool) -> u64 {
    let rcs = RcsOptions { groups: 3, pools: 2, tasks_max: 12, policy: Policy::Dynamic, ..RcsOptions::default() };
    let options = CrewOptions { rcs, starts: || WORKER.set(true), ..CrewOptions::default() };
    let (crew, steps) = (Crew::start(options).unwrap(), Arc::new(AtomicU64::new(0)));
    for n in 0..12 {
        let step = Step { steps: steps.clone(), wasteful };
        assert!(crew.handle().submit(Group(n % 3), Priority::ALL[usize::from(n % 3)], step).is_ok());
    }
    let wait = |until: u64| {
        let start = Instant::now();
        while steps.load(Ordering::Relaxed) < until {
            assert!(start.elapsed() < Duration::from_secs(60), "the crew stands still");
            std::thread::yield_now();
        }
    };
    wait(1_000);
    COUNT.store(0, Ordering::Relaxed);
    ARMED.store(true, Ordering::Relaxed);
    wait(steps.load(Ordering::Relaxed) + 5_000);
    ARMED.store(false, Ordering::Relaxed);
    COUNT.load(Ordering::Relaxed)
}

#[test]
fn noalloc_tasks_and_their_failures() {
    assert_eq!(allocations(false), 0);
    assert!(allocations(true) > 1_000, "the counter sees allocations of workers");
}
