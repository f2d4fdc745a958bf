//! Clean-up blocks against a naive twin: random lives of a task, compared after every act.
//!
//! Owns: the twin and the lives. Never: looks inside the stack.
//! Invariant: every resource that was ever held is given back or released exactly once.

// A test harness speaks to people and reads which seed to replay.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use segue_des::Chance;
use segue_sched::cleanup::{
    Action, Block, Code, CodeSet, Context, DEPTH_MAX, Environment, Failure, HELD_MAX, Point, Ran, Resource, Stack,
    Verdict, run,
};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the environment was asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    GaveBack(u64),
    Corrected(u16, Code),
}

/// Answers corrections by a script that stack and twin share.
#[derive(Clone)]
struct Script {
    seed: u64,
    corrections: u64,
    log: Vec<Act>,
}

impl Environment<u64> for Script {
    fn give_back(&mut self, resource: u64) {
        self.log.push(Act::GaveBack(resource));
    }

    fn correct(&mut self, at: Point, code: Code) -> Result<(), Code> {
        self.log.push(Act::Corrected(at.id(), code));
        self.corrections += 1;
        let mut chance = Chance::new(self.seed ^ self.corrections);
        if chance.odds(1, 8) { Err(Code::from_number(chance.below(6) as u8)) } else { Ok(()) }
    }
}

/// Bugs that the comparison must find.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Planted {
    Nothing,
    OldestFirst,
    AttemptsForgotten,
    OuterSkipped,
    CorrectedAfterGivingBack,
}

struct Entered {
    block: &'static Block,
    attempts: u8,
    took: Vec<u64>,
}

/// The naive twin: each block keeps its own list of what it took.
struct Twin {
    outside: Vec<u64>,
    open: Vec<Entered>,
    attempts: BTreeMap<u16, u8>,
    attempts_from_start: u8,
    planted: Planted,
}

impl Twin {
    fn mine(&mut self) -> &mut Vec<u64> {
        self.open.last_mut().map_or(&mut self.outside, |entered| &mut entered.took)
    }

    fn enter(&mut self, block: &'static Block) {
        // Only one point is being resumed at a time.
        let attempts = self.attempts.remove(&block.point.id()).unwrap_or(0);
        self.open.push(Entered { block, attempts, took: Vec::new() });
    }

    fn leave(&mut self) {
        let took = self.open.pop().unwrap().took;
        self.mine().extend(took);
    }

    fn release(&mut self, resource: u64) {
        for list in self.open.iter_mut().map(|e| &mut e.took).chain([&mut self.outside]) {
            list.retain(|held| *held != resource);
        }
    }

    fn return_all(&self, mut took: Vec<u64>, script: &mut Script) {
        if self.planted != Planted::OldestFirst {
            took.reverse();
        }
        took.into_iter().for_each(|resource| script.give_back(resource));
    }

    /// Corrects and gives back one block; the code it is left with.
    fn clean(&self, block: &Block, took: Vec<u64>, code: Option<Code>, script: &mut Script) -> Result<(), Code> {
        let asked = |script: &mut Script| code.map_or(Ok(()), |code| script.correct(block.point, code));
        if self.planted == Planted::CorrectedAfterGivingBack {
            self.return_all(took, script);
            return asked(script);
        }
        let answer = asked(script);
        self.return_all(took, script);
        answer
    }

    /// A failure looks for a handler.
    fn fail(&mut self, code: Code, script: &mut Script) -> Verdict {
        let Some(Entered { block, attempts, took }) = self.open.pop() else {
            return self.end(Verdict::Unhandled { code }, script);
        };
        if self.planted == Planted::OuterSkipped && took.len() > 2 {
            self.leave_one();
        }
        if !block.codes.contains(code) {
            self.clean(block, took, None, script).unwrap();
            return self.fail(code, script);
        }
        if let Err(worse) = self.clean(block, took, Some(code), script) {
            return self.fail(worse, script);
        }
        let point = block.point;
        match block.action {
            Action::Ignore => Verdict::GoOn { point, code },
            Action::Propagate => self.fail(code, script),
            Action::Abort => self.abort(point, code, script),
            Action::RetryNow { retries_max } => self.again(point, attempts, retries_max, false, code, script),
            Action::RetryLater { from, retries_max } if from == point => {
                self.again(point, attempts, retries_max, true, code, script)
            }
            Action::RetryLater { from, retries_max } => self.later(from, retries_max, code, script),
        }
    }

    fn leave_one(&mut self) {
        self.open.pop();
    }

    fn again(&mut self, point: Point, done: u8, max: u8, later: bool, code: Code, script: &mut Script) -> Verdict {
        if done >= max {
            return self.fail(code, script);
        }
        self.attempts.clear();
        if self.planted != Planted::AttemptsForgotten {
            self.attempts.insert(point.id(), done + 1);
        }
        Verdict::Retry { point, later, attempt: done + 1, code }
    }

    fn later(&mut self, from: Point, max: u8, code: Code, script: &mut Script) -> Verdict {
        while let Some(Entered { block, attempts, took }) = self.open.pop() {
            self.clean(block, took, None, script).unwrap();
            if block.point == from {
                return self.again(from, attempts, max, true, code, script);
            }
        }
        if self.attempts_from_start >= max {
            return self.end(Verdict::Unhandled { code }, script);
        }
        let outside = std::mem::take(&mut self.outside);
        self.return_all(outside, script);
        self.attempts_from_start += 1;
        Verdict::Retry { point: Point::START, later: true, attempt: self.attempts_from_start, code }
    }

    fn abort(&mut self, point: Point, code: Code, script: &mut Script) -> Verdict {
        while let Some(Entered { block, took, .. }) = self.open.pop() {
            let told = block.codes.contains(Code::ABORTED).then_some(Code::ABORTED);
            if let Err(worse) = self.clean(block, took, told, script) {
                return self.fail(worse, script);
            }
        }
        self.end(Verdict::Abort { point, code }, script)
    }

    fn end(&mut self, verdict: Verdict, script: &mut Script) -> Verdict {
        let outside = std::mem::take(&mut self.outside);
        self.return_all(outside, script);
        self.attempts.clear();
        self.attempts_from_start = 0;
        verdict
    }

    fn held(&self) -> Vec<u64> {
        let mut held: Vec<u64> = self.outside.clone();
        held.extend(self.open.iter().flat_map(|entered| entered.took.iter().copied()));
        held
    }
}

fn random_blocks(chance: &mut Chance) -> Vec<&'static Block> {
    let point = |n: u64| Point::new(n as u16, "of a random block");
    (1..=6)
        .map(|n| {
            let retries_max = chance.below(3) as u8;
            let from = match chance.below(7) {
                0 => Point::START,
                from => point(from),
            };
            let action = match chance.below(6) {
                0 => Action::Ignore,
                1 => Action::Abort,
                2 => Action::Propagate,
                3 => Action::RetryLater { from, retries_max },
                _ => Action::RetryNow { retries_max },
            };
            let codes = CodeSet::from_bits(chance.bits() | chance.bits());
            &*Box::leak(Box::new(Block::new(point(n), codes, action)))
        })
        .collect()
}

/// One random life. The error says how stack and twin differ.
fn life(seed: u64, planted: Planted) -> Result<(), String> {
    let mut chance = Chance::new(seed);
    let blocks = random_blocks(&mut chance);
    let script = Script { seed, corrections: 0, log: Vec::new() };
    let (mut real, mut naive) = (script.clone(), script);
    let mut stack: Stack<u64> = Stack::new();
    let mut twin = Twin { outside: vec![], open: vec![], attempts: BTreeMap::new(), attempts_from_start: 0, planted };
    let (mut next, mut again, mut released) = (0, None, Vec::new());
    for act in 0..200 {
        match chance.below(10) {
            0..=2 if twin.open.len() < DEPTH_MAX => {
                // Most often the task resumes where it was told to.
                let block = again.take().filter(|_| chance.odds(3, 4));
                let block = block.unwrap_or(blocks[chance.below(blocks.len() as u64) as usize]);
                stack.arm(block);
                twin.enter(block);
            }
            3 if !twin.open.is_empty() => {
                stack.disarm(twin.open.last().unwrap().block);
                twin.leave();
            }
            4..=6 if twin.held().len() < HELD_MAX => {
                next += 1;
                stack.hold(next);
                twin.mine().push(next);
            }
            7 if !twin.held().is_empty() => {
                let held = twin.held();
                let resource = held[chance.below(held.len() as u64) as usize];
                stack.release(resource);
                twin.release(resource);
                released.push(resource);
            }
            8 => {
                let code = Code::from_number(chance.below(16) as u8);
                let (a, b) = (stack.unwind(code, &mut real), twin.fail(code, &mut naive));
                if a != b {
                    return Err(format!("act {act}: {code:?} gave {a:?}, expected {b:?}"));
                }
                if let Verdict::Retry { point, .. } = a {
                    again = blocks.iter().copied().find(|block| block.point == point);
                }
            }
            _ => {}
        }
        if stack.held().collect::<Vec<_>>() != twin.held() || stack.depth() != twin.open.len() {
            return Err(format!("act {act}: {stack:?} holds something else than {:?}", twin.held()));
        }
        if real.log != naive.log {
            return Err(format!("act {act}: {:?}, expected {:?}", real.log, naive.log));
        }
    }
    exactly_once(next, &released, &real.log, &twin.held())
}

fn exactly_once(taken: u64, released: &[u64], log: &[Act], held: &[u64]) -> Result<(), String> {
    let gave = log.iter().filter_map(|act| if let Act::GaveBack(resource) = act { Some(*resource) } else { None });
    let mut all: Vec<u64> = released.iter().copied().chain(gave).chain(held.iter().copied()).collect();
    all.sort_unstable();
    if all == (1..=taken).collect::<Vec<_>>() { Ok(()) } else { Err(format!("{taken} were taken; seen: {all:?}")) }
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("SEGUE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

#[test]
fn model_random_lives_match_the_twin() {
    for seed in seeds(3_000) {
        if let Err(difference) = life(seed, Planted::Nothing) {
            panic!(
                "{difference}\nreplay: SEGUE_SEED={seed} cargo test -p segue-sched --test model_cleanup random_lives"
            );
        }
    }
}

#[test]
fn canary_planted_bugs_are_found() {
    let all =
        [Planted::OldestFirst, Planted::AttemptsForgotten, Planted::OuterSkipped, Planted::CorrectedAfterGivingBack];
    for planted in all {
        let found = (0..200).any(|seed| life(seed, planted).is_err());
        assert!(found, "{planted:?} was not noticed");
    }
}

/// An environment that panics at its `fatal`-th call.
struct Fragile {
    calls: u64,
    fatal: u64,
    given_back: Vec<u64>,
}

impl Fragile {
    fn call(&mut self) {
        self.calls += 1;
        assert!(self.calls != self.fatal, "planned");
    }
}

impl Environment<u64> for Fragile {
    fn give_back(&mut self, resource: u64) {
        self.given_back.push(resource);
        self.call();
    }

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        self.call();
        Ok(())
    }
}

#[test]
fn fault_a_panic_in_a_clean_up_loses_nothing() {
    static INNER: Block = Block::new(Point::new(1, "inner"), CodeSet::ALL, Action::Propagate);
    static OUTER: Block = Block::new(Point::new(2, "outer"), CodeSet::ALL, Action::Abort);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut ends = Vec::new();
    for fatal in 1..=8 {
        let mut env = Fragile { calls: 0, fatal, given_back: Vec::new() };
        let mut stack = Stack::new();
        stack.hold(1);
        stack.arm(&OUTER);
        stack.hold(2);
        stack.hold(3);
        stack.arm(&INNER);
        stack.hold(4);
        let mut code = Code::IO;
        let verdict = loop {
            match catch_unwind(AssertUnwindSafe(|| stack.unwind(code, &mut env))) {
                Ok(verdict) => break verdict,
                Err(_) => code = Code::PANIC,
            }
        };
        ends.push((env.given_back, verdict, stack.depth()));
    }
    std::panic::set_hook(quiet);
    for (given_back, verdict, depth) in ends {
        assert_eq!((given_back, depth), (vec![4, 3, 2, 1], 0), "{verdict:?}");
        assert!(matches!(verdict, Verdict::Abort { .. } | Verdict::Unhandled { code: Code::PANIC }), "{verdict:?}");
    }
}

/// A task whose code is a closure: stack and environment in one.
#[derive(Default)]
struct Task {
    stack: Stack<Resource>,
    given_back: Vec<Resource>,
    corrected: Vec<(&'static str, Code)>,
    tries: u32,
}

impl Environment<Resource> for Task {
    fn give_back(&mut self, resource: Resource) {
        self.given_back.push(resource);
    }

    fn correct(&mut self, at: Point, code: Code) -> Result<(), Code> {
        self.corrected.push((at.name(), code));
        Ok(())
    }
}

impl Context for Task {
    type Resource = Resource;

    fn stack(&mut self) -> &mut Stack<Resource> {
        &mut self.stack
    }
}

const OUTER_POINT: Point = Point::new(1, "outer");
const INNER_POINT: Point = Point::new(2, "inner");
static OUTER_TWICE: Block = Block::new(OUTER_POINT, CodeSet::of(&[Code::IO]), Action::RetryNow { retries_max: 2 });
static INNER_ONCE: Block = Block::new(INNER_POINT, CodeSet::of(&[Code::IO]), Action::RetryNow { retries_max: 1 });

fn nested(task: &mut Task, fails: u32) -> Result<Ran<Ran<u32>>, Failure> {
    run(task, &OUTER_TWICE, |task| {
        task.stack.hold(Resource::Credits(1));
        let result = run(task, &INNER_ONCE, |task| {
            task.tries += 1;
            task.stack.hold(Resource::Lock { first: 8, blocks: 1 });
            segue_sched::cleanup::check(task.tries > fails, Code::IO)?;
            task.stack.release(Resource::Lock { first: 8, blocks: 1 });
            Ok(task.tries)
        })?;
        task.stack.release(Resource::Credits(1));
        Ok(result)
    })
}

#[test]
fn closures_retry_in_place_within_their_bounds() {
    // Two tries of the inner block for each of the three of the outer one.
    for fails in 0..=6 {
        let mut task = Task::default();
        let result = nested(&mut task, fails);
        assert_eq!(task.stack.depth(), 0);
        if fails < 6 {
            assert_eq!(result, Ok(Ran::Done(Ran::Done(fails + 1))));
            task.stack.finish();
        } else {
            let failure = result.unwrap_err();
            assert_eq!(failure.code(), Code::IO);
            let mut env = Task::default();
            assert_eq!(task.stack.unwind(failure, &mut env), Verdict::Unhandled { code: Code::IO });
        }
        let locks = task.given_back.iter().filter(|held| matches!(held, Resource::Lock { .. })).count();
        assert_eq!(locks as u32, fails, "a lock for each failed try");
    }
}

#[test]
fn closures_ignore_and_go_on_or_abort_to_the_driver() {
    static IGNORE: Block = Block::new(INNER_POINT, CodeSet::of(&[Code::STATE]), Action::Ignore);
    static ABORT: Block = Block::new(OUTER_POINT, CodeSet::ALL, Action::Abort);
    let mut task = Task::default();
    task.stack.hold(Resource::Buffer(9));
    let ended = run(&mut task, &ABORT, |task| {
        let odd: Ran<()> = run(task, &IGNORE, |_| Err(Code::STATE.into()))?;
        assert_eq!(odd.done(), None);
        task.stack.hold(Resource::Ticket(5));
        let never: Ran<()> = run(task, &IGNORE, |_| Err(Code::RANGE.into()))?;
        Ok(never)
    });
    let failure = ended.unwrap_err();
    assert_eq!(task.given_back, [Resource::Ticket(5)]);
    let verdict = segue_sched::cleanup::unwind(&mut task, failure);
    assert_eq!(verdict, Verdict::Abort { point: OUTER_POINT, code: Code::RANGE });
    assert_eq!(task.given_back, [Resource::Ticket(5), Resource::Buffer(9)]);
    assert_eq!(task.corrected, [("inner", Code::STATE), ("outer", Code::RANGE)]);
}

#[test]
fn a_scope_that_is_not_left_stays_armed() {
    fn step(stack: &mut Stack<Resource>) -> Result<(), Failure> {
        let mut outer = stack.enter(&OUTER_TWICE);
        outer.hold(Resource::Credits(3));
        let inner = outer.enter(&INNER_ONCE);
        segue_sched::cleanup::check(inner.depth() != 2, Code::IO)?;
        inner.leave();
        outer.leave();
        Ok(())
    }
    let (mut stack, mut env) = (Stack::new(), Task::default());
    let failure = step(&mut stack).unwrap_err();
    assert_eq!(stack.points().collect::<Vec<_>>(), [OUTER_POINT, INNER_POINT]);
    let retry = |point, attempt| Verdict::Retry { point, later: false, attempt, code: Code::IO };
    assert_eq!(stack.unwind(failure, &mut env), retry(INNER_POINT, 1));
    assert_eq!(
        (stack.depth(), env.given_back.len()),
        (1, 0),
        "the outer block is still entered, and holds its credits"
    );
    // The task enters the inner block again, as it was told, and fails again: its bound is used up.
    drop(stack.enter(&INNER_ONCE));
    assert_eq!(stack.unwind(Code::IO, &mut env), retry(OUTER_POINT, 1));
    assert_eq!(env.given_back, [Resource::Credits(3)]);
    let left = stack.enter(&OUTER_TWICE);
    left.leave();
    stack.finish();
}

#[test]
#[should_panic(expected = "a task ended inside a clean-up block")]
fn canary_a_forgotten_leave_is_noticed() {
    let mut stack: Stack<Resource> = Stack::new();
    drop(stack.enter(&INNER_ONCE));
    stack.finish();
}

#[test]
#[should_panic(expected = "gave back what it does not hold")]
fn canary_giving_back_twice_is_noticed() {
    let mut stack = Stack::new();
    stack.hold(Resource::Credits(1));
    stack.release(Resource::Credits(1));
    stack.release(Resource::Credits(1));
}
