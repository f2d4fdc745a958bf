//! A crew of real threads: nothing lost, nothing beyond a bound, nothing of a recovering group started.
//!
//! Owns: tasks that fail in every way there is. Never: measures time.
//! Invariant: every task ends once, and every resource comes back once, whatever fails.

use segue_runtime::crew::{Crew, CrewOptions, Cx, End, Entry, Next, Refused, Work};
use segue_sched::cleanup::{Action, Block, Code, CodeSet, Failure, Point};
use segue_sched::rcs::{Group, Policy, Priority, RcsOptions};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once};
use std::time::Duration;

/// Longer than any test takes; a crew that forgot a task fails instead of hanging.
const BOUND: Duration = Duration::from_secs(60);

const GROUPS: u16 = 4;

/// What tasks share and check.
#[derive(Default)]
struct World {
    running: [AtomicI64; GROUPS as usize],
    cleaning: [AtomicI64; GROUPS as usize],
    /// Buffers and credits that are out.
    out: AtomicI64,
    retries: AtomicU64,
    started_in_recovery: AtomicBool,
    beyond_bound: AtomicBool,
    bound: i64,
}

const POINT: Point = Point::new(1, "work");
const INNER: Point = Point::new(2, "inner");
/// A task of a failed group always gets another chance; it may meet many recoveries of others.
static RETRY: Block = Block::new(POINT, CodeSet::ALL, Action::RetryNow { retries_max: u8::MAX });
static ONCE: Block = Block::new(INNER, CodeSet::of(&[Code::IO]), Action::RetryNow { retries_max: 1 });

/// Fails in its first runs, in ways that its seed chooses.
struct Faulty {
    world: Arc<World>,
    group: u16,
    seed: u64,
    failures_left: u32,
    steps_left: u32,
    ends: Sender<End>,
}

impl Faulty {
    fn chance(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed >> 8
    }

    fn body(&mut self, entry: Entry, cx: &mut Cx<'_, i64>) -> Result<Next, Failure> {
        let (world, group) = (self.world.clone(), usize::from(self.group));
        if entry == Entry::Retry(INNER) {
            world.retries.fetch_add(1, SeqCst);
        } else {
            cx.point(&RETRY)?;
        }
        // Whoever cleans up between two checks that find nothing belongs to a recovery that began before this step.
        let cleaning = world.cleaning[group].load(SeqCst);
        cx.check()?;
        world.started_in_recovery.fetch_or(cleaning > 0, SeqCst);
        self.take(cx, 1);
        cx.arm(&ONCE);
        self.take(cx, 10);
        if self.failures_left > 0 {
            self.failures_left -= 1;
            match self.chance() % 4 {
                0 => panic!("planned"),
                1 => return Err(Code::INVARIANT.into()),
                2 => return Err(Code::IO.into()),
                _ => self.failures_left += 1,
            }
        }
        cx.check()?;
        self.put(cx, 10);
        cx.disarm(&ONCE);
        self.put(cx, 1);
        if entry != Entry::Retry(INNER) || cx.depth() > 0 {
            cx.disarm(&RETRY);
        }
        // What an outer point of an earlier try held is still held after a retry of the inner one.
        for held in cx.held().collect::<Vec<_>>() {
            self.put(cx, held);
        }
        self.failures_left = self.failures_left.saturating_sub(1);
        self.steps_left -= 1;
        Ok(if self.steps_left == 0 { Next::Done } else { Next::Again })
    }

    fn take(&self, cx: &mut Cx<'_, i64>, resource: i64) {
        self.world.out.fetch_add(resource, SeqCst);
        cx.hold(resource);
    }

    fn put(&self, cx: &mut Cx<'_, i64>, resource: i64) {
        cx.release(resource);
        self.world.out.fetch_sub(resource, SeqCst);
    }
}

/// Counts a task as running, also when it panics.
struct Running(Arc<World>, usize);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running[self.1].fetch_sub(1, SeqCst);
    }
}

impl Work for Faulty {
    type Resource = i64;

    fn run(&mut self, entry: Entry, cx: &mut Cx<'_, i64>) -> Result<Next, Failure> {
        let running = Running(self.world.clone(), usize::from(self.group));
        let count = self.world.running[running.1].fetch_add(1, SeqCst) + 1;
        self.world.beyond_bound.fetch_or(count > self.world.bound, SeqCst);
        self.body(entry, cx)
    }

    fn give_back(&mut self, resource: i64) {
        self.world.out.fetch_sub(resource, SeqCst);
    }

    fn correct(&mut self, _at: Point, code: Code) -> Result<(), Code> {
        if code == Code::GROUP || code == Code::IO {
            return Ok(());
        }
        self.world.cleaning[usize::from(self.group)].fetch_add(1, SeqCst);
        let odd = self.chance() % 8;
        std::thread::yield_now();
        self.world.cleaning[usize::from(self.group)].fetch_sub(1, SeqCst);
        if odd == 0 {
            panic!("planned, in a correction");
        }
        Ok(())
    }

    fn ended(&mut self, end: End) {
        self.ends.send(end).unwrap();
    }
}

/// Planned panics are not worth a line each.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let old = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let planned = info.payload().downcast_ref::<&str>().is_some_and(|text| text.starts_with("planned"));
            if !planned {
                old(info);
            }
        }));
    });
}

fn options(policy: Policy, bound: u16) -> CrewOptions {
    let rcs = RcsOptions { groups: GROUPS, pools: 3, tasks_max: 64, policy, bound, ..RcsOptions::default() };
    CrewOptions { rcs, ..CrewOptions::default() }
}

fn ends(from: &Receiver<End>, count: usize) -> Vec<End> {
    (0..count).map(|n| from.recv_timeout(BOUND).unwrap_or_else(|e| panic!("task {n} never ended: {e}"))).collect()
}

fn live(policy: Policy, bound: u16, seed: u64) -> (Arc<World>, Vec<End>) {
    quiet();
    let world = Arc::new(World { bound: i64::from(bound), ..World::default() });
    let crew = Crew::start(options(policy, bound)).unwrap();
    let (sender, receiver) = channel();
    let count = 3_000;
    for n in 0..count {
        let group = (n % u64::from(GROUPS)) as u16;
        let mut work = Faulty {
            world: world.clone(),
            group,
            seed: (seed << 32 | n) + 1,
            failures_left: u32::from(n.is_multiple_of(7)) * 3,
            steps_left: 1 + (n % 3) as u32,
            ends: sender.clone(),
        };
        let priority = Priority::ALL[(n % 3) as usize];
        // A full crew is the usual case here.
        while let Err(refused) = crew.handle().submit(Group(group), priority, work) {
            match refused {
                Refused::Full(again) => work = again,
                Refused::Stopping(_) => unreachable!("nobody stops it"),
            }
            std::thread::yield_now();
        }
    }
    let ends = ends(&receiver, count as usize);
    crew.stop();
    assert_eq!(receiver.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout), "a task ended twice");
    (world, ends)
}

#[test]
fn fault_tasks_that_fail_are_retried_and_nothing_is_lost() {
    for (seed, policy) in (1..).zip(Policy::ALL) {
        let (world, ends) = live(policy, 2, seed);
        assert_eq!(world.out.load(SeqCst), 0, "{policy}: resources are out");
        let odd: Vec<_> = ends.iter().filter(|end| **end != End::Done).collect();
        // A correction that panics is thrown to the next outer block, of which the outer one has none.
        assert!(odd.iter().all(|end| **end == End::Unhandled { code: Code::PANIC }), "{policy}: {odd:?}");
        assert!(odd.len() < ends.len() / 10, "{policy}: {} tasks failed", odd.len());
        assert!(world.retries.load(SeqCst) > 0);
        if policy != Policy::Performance {
            assert!(!world.started_in_recovery.load(SeqCst), "{policy}: a task started while its group recovered");
            assert!(!world.beyond_bound.load(SeqCst), "{policy}: a group ran more tasks than its bound");
        }
    }
}

/// Fails, and is not clean before another task of its group has run.
struct Waits {
    other_ran: Arc<AtomicBool>,
    first: bool,
    ends: Sender<End>,
}

impl Work for Waits {
    type Resource = i64;

    fn run(&mut self, entry: Entry, cx: &mut Cx<'_, i64>) -> Result<Next, Failure> {
        if entry == Entry::Retry(POINT) {
            return Ok(Next::Done);
        }
        cx.arm(&RETRY);
        if self.first {
            return Err(Code::INVARIANT.into());
        }
        self.other_ran.store(true, SeqCst);
        cx.disarm(&RETRY);
        Ok(Next::Done)
    }

    fn give_back(&mut self, _resource: i64) {}

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        let start = std::time::Instant::now();
        while !self.other_ran.load(SeqCst) && start.elapsed() < BOUND {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn ended(&mut self, end: End) {
        self.ends.send(end).unwrap();
    }
}

#[test]
fn canary_without_the_reactive_part_a_recovering_group_is_dispatched() {
    let mut options = options(Policy::Dynamic, 3);
    options.rcs.reactive = false;
    let crew = Crew::start(options).unwrap();
    let (sender, receiver) = channel();
    let other_ran = Arc::new(AtomicBool::new(false));
    for first in [true, false] {
        let work = Waits { other_ran: other_ran.clone(), first, ends: sender.clone() };
        assert!(crew.handle().submit(Group(0), Priority::High, work).is_ok());
    }
    assert_eq!(ends(&receiver, 2), [End::Done, End::Done]);
    assert!(other_ran.load(SeqCst));
}

/// Holds its worker until it is let go.
struct Holds {
    go: Option<Receiver<()>>,
    began: Sender<()>,
    ends: Sender<End>,
    /// Goes on until told that its group failed.
    until_told: bool,
}

impl Work for Holds {
    type Resource = i64;

    fn run(&mut self, entry: Entry, cx: &mut Cx<'_, i64>) -> Result<Next, Failure> {
        if entry != Entry::Start {
            return Ok(Next::Done);
        }
        cx.arm(&RETRY);
        self.began.send(()).unwrap();
        if let Some(go) = self.go.take() {
            go.recv_timeout(BOUND).unwrap();
        }
        if self.until_told {
            let start = std::time::Instant::now();
            while start.elapsed() < BOUND {
                cx.check()?;
                std::thread::yield_now();
            }
            panic!("nobody told this task that its group failed");
        }
        Err(Code::INVARIANT.into())
    }

    fn give_back(&mut self, _resource: i64) {}

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        Ok(())
    }

    fn ended(&mut self, end: End) {
        self.ends.send(end).unwrap();
    }
}

#[test]
fn fault_tasks_of_a_failed_group_are_told_and_others_never_notice() {
    let crew = Crew::start(options(Policy::Dynamic, 2)).unwrap();
    let (ended, ends_of) = channel();
    let (began, begins) = channel();
    let submit = |group, until_told, go| {
        let work = Holds { go, began: began.clone(), ends: ended.clone(), until_told };
        assert!(crew.handle().submit(Group(group), Priority::Medium, work).is_ok());
        begins.recv_timeout(BOUND).unwrap();
    };
    let (go_other, other) = channel();
    let (go_failing, failing) = channel();
    submit(1, false, Some(other));
    submit(0, true, None);
    submit(0, false, Some(failing));
    go_failing.send(()).unwrap();
    assert_eq!(ends(&ends_of, 2), [End::Done, End::Done], "the one that failed and the one that was told");
    let groups = crew.handle().status().groups;
    assert_eq!((groups[0].counters.recoveries, groups[0].recovering), (1, false));
    assert_eq!((groups[1].counters.recoveries, groups[1].running), (0, 1), "the other group's task runs on");
    go_other.send(()).unwrap();
    assert_eq!(ends(&ends_of, 1), [End::Done]);
}

#[test]
fn stopping_ends_what_waits_and_refuses_what_comes() {
    let crew = Crew::start(options(Policy::Dynamic, 1)).unwrap();
    let handle = crew.handle().clone();
    let (ended, ends_of) = channel();
    let (began, begins) = channel();
    let (go, gate) = channel();
    let work = |go| Holds { go, began: began.clone(), ends: ended.clone(), until_told: false };
    assert!(handle.submit(Group(0), Priority::Low, work(Some(gate))).is_ok());
    begins.recv_timeout(BOUND).unwrap();
    assert!(handle.submit(Group(0), Priority::Low, work(None)).is_ok());
    go.send(()).unwrap();
    crew.stop();
    let ends = ends(&ends_of, 2);
    assert!(ends.contains(&End::Stopped) || ends == [End::Done, End::Done], "{ends:?}");
    assert!(matches!(handle.submit(Group(0), Priority::Low, work(None)), Err(Refused::Stopping(_))));
}

#[test]
fn a_full_crew_hands_the_task_back() {
    let mut options = options(Policy::Static, 1);
    options.rcs.tasks_max = 1;
    let crew = Crew::start(options).unwrap();
    let (ended, ends_of) = channel();
    let (began, begins) = channel();
    let (go, gate) = channel();
    let work = |go| Holds { go, began: began.clone(), ends: ended.clone(), until_told: false };
    assert!(crew.handle().submit(Group(0), Priority::Low, work(Some(gate))).is_ok());
    begins.recv_timeout(BOUND).unwrap();
    let refused = crew.handle().submit(Group(0), Priority::Low, work(None)).unwrap_err();
    assert!(refused.to_string().contains("as many tasks as it may"));
    go.send(()).unwrap();
    assert_eq!(ends(&ends_of, 1), [End::Done]);
}
