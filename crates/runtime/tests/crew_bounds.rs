//! Bounds of a crew that set themselves, on real threads.
//!
//! Owns: tasks that hold their worker until they are let go. Never: measures time; `now` is made up.
//! Invariant: every wait has a bound.

use segue_runtime::crew::{Crew, CrewOptions, Cx, End, Entry, Next, Work};
use segue_sched::cleanup::{Code, Failure, Point};
use segue_sched::rcs::{Bounds, BoundsOptions, Group, Priority, RcsOptions};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Longer than the test takes; a worker that is not woken fails it instead of hanging.
const BOUND: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Gate {
    running: Mutex<u32>,
    changed: Condvar,
    open: AtomicBool,
}

impl Gate {
    /// Waits until so many tasks run; says how many did.
    fn reaches(&self, tasks: u32) -> u32 {
        let running = self.running.lock().unwrap();
        *self.changed.wait_timeout_while(running, BOUND, |n| *n < tasks).unwrap().0
    }
}

/// Holds its worker until the gate opens.
struct Holds {
    gate: Arc<Gate>,
    ended: Sender<()>,
}

impl Work for Holds {
    type Resource = ();

    fn run(&mut self, _: Entry, _: &mut Cx<'_, ()>) -> Result<Next, Failure> {
        let mut running = self.gate.running.lock().unwrap();
        *running += 1;
        self.gate.changed.notify_all();
        let shut = |_: &mut u32| !self.gate.open.load(SeqCst);
        drop(self.gate.changed.wait_timeout_while(running, BOUND, shut).unwrap());
        Ok(Next::Done)
    }

    fn give_back(&mut self, (): ()) {}

    fn correct(&mut self, _: Point, code: Code) -> Result<(), Code> {
        Err(code)
    }

    fn ended(&mut self, _: End) {
        let _ = self.ended.send(());
    }
}

#[test]
fn conform_a_group_that_is_held_back_while_workers_idle_gets_them() {
    let (groups, pools) = (4, 4);
    let rcs = RcsOptions { groups, pools, tasks_max: 16, bound: 1, ..RcsOptions::default() };
    let crew = Crew::start(CrewOptions { rcs, ..CrewOptions::default() }).unwrap();
    let mut bounds = Bounds::new(BoundsOptions { groups, pools, ..BoundsOptions::default() }).unwrap();
    let gate = Arc::new(Gate::default());
    let (sender, ends) = channel();
    for _ in 0..6 {
        let task = Holds { gate: gate.clone(), ended: sender.clone() };
        assert!(crew.handle().submit(Group(0), Priority::High, task).is_ok());
    }
    assert_eq!(gate.reaches(1), 1, "its bound");
    let idle = || crew.handle().adjust(|rcs| rcs.held_back(Group(0)));
    let start = std::time::Instant::now();
    let mut now = 0;
    while crew.handle().status().groups[0].bound < 3 {
        // A look may wake idle workers; the next one is for when they have found nothing and sleep again.
        while !idle() {
            assert!(start.elapsed() < BOUND, "the workers do not sleep");
            std::thread::yield_now();
        }
        now += 100_000_000;
        assert!(now < 100_000_000_000, "the bound does not rise");
        crew.handle().watch(&mut bounds, now);
    }
    assert_eq!(gate.reaches(3), 3, "three of four workers: the most for one of several groups");
    gate.open.store(true, SeqCst);
    gate.changed.notify_all();
    (0..6).for_each(|_| ends.recv_timeout(BOUND).expect("every task ends"));
    crew.stop();
}
