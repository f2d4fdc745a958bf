//! A crew under shuttle, which chooses the order of threads: waking, suspension and stopping in every order it tries.
//!
//! Owns: the crew's sources with shuttle's primitives in place of the system's. Never: uses a real thread.
//! Invariant: a schedule that fails is printed by shuttle and replays (`shuttle::replay`).

// The sources are the shipped ones; a small test uses a part of them.
#![allow(dead_code, unused_imports)]

#[path = "../src/crew/mod.rs"]
mod crew;

/// The module of this name that the sources find here.
mod sync {
    pub use shuttle::sync::atomic::{AtomicU32, Ordering};
    pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub use shuttle::thread::JoinHandle;

    pub fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        shuttle::thread::Builder::new().name(name).spawn(work)
    }
}

use crew::{Crew, CrewOptions, Cx, End, Entry, Next, Work};
use segue_sched::cleanup::{Action, Block, Code, CodeSet, Failure, Point};
use segue_sched::rcs::{Group, Policy, Priority, RcsOptions};
use shuttle::sync::atomic::{AtomicU32, Ordering::SeqCst};
use shuttle::sync::{Arc, Condvar, Mutex};

const ITERATIONS: usize = 3_000;
const POINT: Point = Point::new(1, "work");
static RETRY: Block = Block::new(POINT, CodeSet::ALL, Action::RetryNow { retries_max: 9 });

#[derive(Default)]
struct World {
    ended: Mutex<u32>,
    all: Condvar,
    cleaning: AtomicU32,
    /// Noted, not asserted in place: a crew catches panics of its tasks.
    started_in_recovery: AtomicU32,
    odd_ends: AtomicU32,
}

impl World {
    fn check(&self) {
        assert_eq!(self.started_in_recovery.load(SeqCst), 0, "a task started while its group recovered");
        assert_eq!(self.odd_ends.load(SeqCst), 0, "a task was given up");
    }

    fn wait_for(&self, count: u32) {
        let mut ended = self.ended.lock().unwrap();
        while *ended < count {
            ended = self.all.wait(ended).unwrap();
        }
    }
}

struct Task {
    world: Arc<World>,
    fails: bool,
}

impl Work for Task {
    type Resource = u8;

    fn run(&mut self, _entry: Entry, cx: &mut Cx<'_, u8>) -> Result<Next, Failure> {
        cx.point(&RETRY)?;
        let cleaning = self.world.cleaning.load(SeqCst);
        cx.check()?;
        self.world.started_in_recovery.fetch_add(cleaning, SeqCst);
        if std::mem::take(&mut self.fails) {
            return Err(Code::INVARIANT.into());
        }
        shuttle::thread::yield_now();
        cx.check()?;
        cx.disarm(&RETRY);
        Ok(Next::Done)
    }

    fn give_back(&mut self, _resource: u8) {}

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        self.world.cleaning.fetch_add(1, SeqCst);
        shuttle::thread::yield_now();
        self.world.cleaning.fetch_sub(1, SeqCst);
        Ok(())
    }

    fn ended(&mut self, end: End) {
        self.world.odd_ends.fetch_add(u32::from(!matches!(end, End::Done | End::Stopped)), SeqCst);
        *self.world.ended.lock().unwrap() += 1;
        self.world.all.notify_all();
    }
}

fn crew(reactive: bool) -> (Crew<Task>, Arc<World>) {
    let rcs = RcsOptions {
        groups: 1,
        pools: 2,
        tasks_max: 4,
        policy: Policy::Dynamic,
        bound: 2,
        reactive,
        ..RcsOptions::default()
    };
    (Crew::start(CrewOptions { rcs, ..CrewOptions::default() }).unwrap(), Arc::default())
}

fn give(crew: &Crew<Task>, world: &Arc<World>, fails: &[bool]) {
    for &fails in fails {
        let task = Task { world: world.clone(), fails };
        assert!(crew.handle().submit(Group(0), Priority::High, task).is_ok());
    }
}

#[test]
fn sim_no_task_is_forgotten_and_no_worker_oversleeps() {
    shuttle::check_random(
        || {
            let (crew, world) = crew(true);
            give(&crew, &world, &[false]);
            world.wait_for(1);
            // By now both workers may sleep, or be about to.
            give(&crew, &world, &[false, false]);
            world.wait_for(3);
            crew.stop();
            world.check();
        },
        ITERATIONS,
    );
}

#[test]
fn sim_nothing_starts_in_a_recovering_group() {
    shuttle::check_random(
        || {
            let (crew, world) = crew(true);
            give(&crew, &world, &[true, false, true, false]);
            world.wait_for(4);
            let group = crew.handle().status().groups[0];
            assert!(group.counters.recoveries >= 1);
            crew.stop();
            world.check();
        },
        ITERATIONS,
    );
}

#[test]
fn sim_stopping_ends_every_task_once() {
    shuttle::check_random(
        || {
            let (crew, world) = crew(true);
            give(&crew, &world, &[true, false, false]);
            crew.stop();
            world.check();
            assert_eq!(*world.ended.lock().unwrap(), 3);
        },
        ITERATIONS,
    );
}

#[test]
#[should_panic(expected = "a task started while its group recovered")]
fn canary_without_the_reactive_part_a_schedule_fails() {
    shuttle::check_random(
        || {
            let (crew, world) = crew(false);
            give(&crew, &world, &[true, false, false]);
            world.wait_for(3);
            crew.stop();
            world.check();
        },
        ITERATIONS,
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn canary_a_lost_wake_up_is_found() {
    shuttle::check_random(
        || {
            let pair = Arc::new((Mutex::new(()), Condvar::new()));
            let sleeper = pair.clone();
            // No token: a bell that rings before the sleep is not heard.
            let thread = shuttle::thread::spawn(move || drop(sleeper.1.wait(sleeper.0.lock().unwrap())));
            pair.1.notify_one();
            thread.join().unwrap();
        },
        ITERATIONS,
    );
}
