//! Recovery scopes against a naive search through a graph of tasks and locks.
//!
//! Owns: the naive twin and random histories. Never: looks inside the machine.
//! Invariant: with room enough, machine and twin agree on every pair of tasks; without, the machine is coarser.

// A test harness speaks to people and reads which seed to replay.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use segue_des::Chance;
use segue_sched::scopes::{Config, Declared, Kind, Scope, Scopes, Task};

const WINDOW_NS: u64 = 1_000;

struct History {
    task: Task,
    declared: usize,
    locks: Vec<u64>,
    /// The half window in which it ended.
    ended: Option<u64>,
}

/// Every task there ever was, and when.
#[derive(Default)]
struct Twin {
    tasks: Vec<History>,
    rotations: u64,
    /// A planted bug: how many half windows too early a lock set is forgotten.
    forgets_early: u64,
}

impl Twin {
    fn counts(&self, history: &History) -> bool {
        history.ended.is_none_or(|ended| ended + 1 >= self.rotations + self.forgets_early)
    }

    /// All histories reachable from `from` by common locks, by breadth-first search.
    fn reach(&self, from: usize) -> Vec<usize> {
        let mut reached = vec![from];
        let mut next = 0;
        while let Some(&at) = reached.get(next) {
            next += 1;
            for (other, history) in self.tasks.iter().enumerate() {
                let common = history.locks.iter().any(|lock| self.tasks[at].locks.contains(lock));
                let near = history.declared == self.tasks[at].declared && common && self.counts(history);
                if near && !reached.contains(&other) {
                    reached.push(other);
                }
            }
        }
        reached
    }

    fn live(&self) -> Vec<usize> {
        (0..self.tasks.len()).filter(|&at| self.tasks[at].ended.is_none()).collect()
    }
}

struct World {
    chance: Chance,
    scopes: Scopes,
    declared: Vec<Declared>,
    twin: Twin,
    now: u64,
}

impl World {
    fn new(seed: u64, config: Config, forgets_early: u64) -> World {
        let mut scopes = Scopes::new(config);
        let device = scopes.declare(Kind::Device, 1, None).unwrap();
        let declared = (0..3).map(|id| scopes.declare(Kind::Volume, id, Some(device)).unwrap()).collect();
        scopes.tick(0);
        let twin = Twin { forgets_early, ..Twin::default() };
        World { chance: Chance::new(seed), scopes, declared, twin, now: 0 }
    }

    fn act(&mut self) {
        let live = self.twin.live();
        let some = |chance: &mut Chance| live[chance.below(live.len() as u64) as usize];
        match self.chance.below(12) {
            0..=2 if live.len() < 12 => {
                let declared = self.chance.below(3) as usize;
                let task = self.scopes.begin(self.declared[declared]);
                self.twin.tasks.push(History { task, declared, locks: vec![], ended: None });
            }
            3..=7 if !live.is_empty() => {
                let at = some(&mut self.chance);
                let lock = self.chance.below(24);
                self.scopes.acquired(self.twin.tasks[at].task, lock);
                self.twin.tasks[at].locks.push(lock);
            }
            8..=10 if !live.is_empty() => {
                let at = some(&mut self.chance);
                self.scopes.end(self.twin.tasks[at].task);
                self.twin.tasks[at].ended = Some(self.twin.rotations);
            }
            _ => {
                self.now += self.chance.below(WINDOW_NS / 4);
                let before = self.scopes.report().rotations;
                self.scopes.tick(self.now);
                self.twin.rotations += self.scopes.report().rotations - before;
                let twin = &mut self.twin;
                let old = twin.rotations;
                twin.tasks.retain(|history| history.ended.is_none_or(|ended| ended + 3 > old));
            }
        }
    }

    /// Compares every pair of live tasks.
    fn compare(&self) -> Result<(), String> {
        let live = self.twin.live();
        for &a in &live {
            let reached = self.twin.reach(a);
            let task = self.twin.tasks[a].task;
            for &b in &live {
                let (expected, found) = (reached.contains(&b), self.scopes.together(task, self.twin.tasks[b].task));
                let coarse = matches!(self.scopes.scope(task), Scope::Whole(_));
                if (expected && !found) || (found && !expected && !coarse) {
                    return Err(format!("tasks {a} and {b}: together {found}, expected {expected}"));
                }
            }
        }
        Ok(())
    }

    /// The report adds up.
    fn check_report(&self) -> Result<(), String> {
        let report = self.scopes.report();
        let names: Vec<_> = report.declared.iter().map(|d| (d.kind, d.id)).collect();
        if names != [(Kind::Volume, 0), (Kind::Volume, 1), (Kind::Volume, 2), (Kind::Device, 1)] {
            return Err(format!("declared: {names:?}"));
        }
        for (at, declared) in report.declared.iter().take(3).enumerate() {
            let mine = |h: &&History| h.declared == at && h.ended.is_none();
            let (tasks, alone) = (
                self.twin.tasks.iter().filter(mine).count() as u64,
                self.twin.tasks.iter().filter(mine).filter(|h| h.locks.is_empty()).count() as u64,
            );
            let parts: u64 = declared.observed.iter().map(|part| part.tasks).sum();
            if (declared.tasks, declared.tasks_alone, parts) != (tasks, alone, tasks - alone) && !declared.coarse {
                return Err(format!("{declared:?} does not add up: {tasks} tasks, {alone} of them alone"));
            }
            if declared.observed.iter().any(|part| part.tasks_seen < part.tasks || part.locks == 0) {
                return Err(format!("{declared:?} has an odd part"));
            }
        }
        Ok(())
    }
}

fn life(seed: u64, config: Config, forgets_early: u64) -> Result<bool, String> {
    let mut world = World::new(seed, config, forgets_early);
    let mut coarse = false;
    for act in 0..400 {
        world.act();
        world.compare().and_then(|()| world.check_report()).map_err(|what| format!("act {act}: {what}"))?;
        coarse |= world.scopes.report().declared.iter().any(|declared| declared.coarse);
    }
    Ok(coarse)
}

const ROOMY: Config = Config { declared_max: 4, tasks_max: 12, locks_max: 100, edges_max: 4_000, window_ns: WINDOW_NS };
const TIGHT: Config = Config { tasks_max: 6, locks_max: 20, edges_max: 24, ..ROOMY };

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("SEGUE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..300,
    }
}

fn replay(seed: u64, test: &str) -> String {
    format!("replay: SEGUE_SEED={seed} cargo test -p segue-sched --test model_scopes {test}")
}

#[test]
fn model_scopes_are_connected_components() {
    for seed in seeds() {
        match life(seed, ROOMY, 0) {
            Ok(coarse) => assert!(!coarse, "there was room; {}", replay(seed, "connected_components")),
            Err(what) => panic!("{what}\n{}", replay(seed, "connected_components")),
        }
    }
}

#[test]
fn model_without_room_scopes_are_coarser_never_finer() {
    let mut coarse = 0;
    for seed in seeds() {
        coarse += match life(seed, TIGHT, 0) {
            Ok(coarse) => u32::from(coarse),
            Err(what) => panic!("{what}\n{}", replay(seed, "coarser")),
        };
    }
    assert!(coarse > 0, "the room was never short");
}

#[test]
fn canary_forgetting_too_early_is_noticed() {
    assert!((0..50).any(|seed| life(seed, ROOMY, 1).is_err()));
}

#[test]
fn scopes_join_and_split_again() {
    let mut scopes = Scopes::new(ROOMY);
    let volume = scopes.declare(Kind::Volume, 7, None).unwrap();
    scopes.tick(0);
    let (a, b, bridge) = (scopes.begin(volume), scopes.begin(volume), scopes.begin(volume));
    scopes.acquired(a, 1);
    scopes.acquired(b, 2);
    assert!(!scopes.together(a, b));
    scopes.acquired(bridge, 1);
    scopes.acquired(bridge, 2);
    assert!(scopes.together(a, b), "a third task took both locks");
    scopes.end(bridge);
    scopes.tick(WINDOW_NS / 2);
    assert!(scopes.together(a, b), "it may have left both in a wrong state");
    scopes.tick(WINDOW_NS);
    assert!(!scopes.together(a, b), "that was long ago");
    let observed = &scopes.report().declared[0].observed;
    assert_eq!(observed.iter().map(|part| (part.lock_first, part.tasks)).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
}

#[test]
fn a_lock_across_declared_scopes_is_reported_and_joins_nothing() {
    let mut scopes = Scopes::new(ROOMY);
    let (one, two) = (scopes.declare(Kind::Volume, 1, None).unwrap(), scopes.declare(Kind::Volume, 2, None).unwrap());
    let (a, b) = (scopes.begin(one), scopes.begin(two));
    scopes.acquired(a, 9);
    scopes.acquired(b, 9);
    assert!(!scopes.together(a, b));
    let report = scopes.report();
    assert_eq!((report.declared[0].crossings, report.declared[0].crossed_last), (1, Some((Kind::Volume, 2))));
    assert_eq!((report.declared[1].crossings, report.declared[1].crossed_last), (1, Some((Kind::Volume, 1))));
}

#[test]
fn retired_scopes_give_their_place_back() {
    let mut scopes = Scopes::new(Config { declared_max: 1, ..ROOMY });
    for id in 0..5 {
        let declared = scopes.declare(Kind::Connection, id, None).unwrap();
        assert!(scopes.declare(Kind::Connection, id + 1, None).is_err());
        let task = scopes.begin(declared);
        scopes.acquired(task, id);
        scopes.end(task);
        scopes.retire(declared);
        for half in 1..=4 {
            scopes.tick(id * 10_000 + half * WINDOW_NS);
        }
    }
    assert_eq!(scopes.report().declared, []);
}
