//! The load of `segue bench rcs`: groups of tasks that never end, on a crew of real threads.
//!
//! Owns: the tasks, their faults and emulated recoveries, and one measured point. Never: reads a clock inside a task.
//! Invariant: each group always has the same number of tasks waiting or running, so the machine is never short of work.

use anyhow::{Result, bail};
use segue_runtime::crew::{Crew, CrewOptions, Cx, End, Entry, Next, Work};
use segue_sched::cleanup::{Action, Block, Code, CodeSet, Failure, Point};
use segue_sched::rcs::{Group, Mapping, Policy, Priority, RcsOptions};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a recovering task spends its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Emulation {
    /// Sleeps: its worker is taken, its processor is free for other workers.
    Sleep,
    /// Spins: its processor is taken too.
    Spin,
}

/// One point to measure.
#[derive(Clone, Debug)]
pub struct Setup {
    pub policy: Policy,
    pub workers: u16,
    pub groups: u16,
    /// Groups with tasks, the first so many.
    pub busy: u16,
    pub bound: u16,
    /// Tasks in all.
    pub tasks: u32,
    /// Turns of the loop that stands for the work of one step.
    pub turns: u32,
    pub faults: Arc<Faults>,
    pub recovery: Duration,
    pub emulation: Emulation,
    pub time: Duration,
}

/// What one point measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Seconds.
    pub seconds: f64,
    /// Seconds of processor time.
    pub cpu_s: f64,
    /// Dispatches.
    pub dispatched: f64,
    /// Of these, of the faulty group.
    pub faulty: f64,
    /// Recoveries of the faulty group.
    pub recoveries: f64,
}

impl Sample {
    /// This and another piece of the same point.
    pub fn and(&self, other: &Sample) -> Sample {
        Sample {
            seconds: self.seconds + other.seconds,
            cpu_s: self.cpu_s + other.cpu_s,
            dispatched: self.dispatched + other.dispatched,
            faulty: self.faulty + other.faulty,
            recoveries: self.recoveries + other.recoveries,
        }
    }

    /// Dispatches per second.
    pub fn rate(&self) -> f64 {
        self.dispatched / self.seconds
    }

    /// Dispatches of all groups but the faulty one, per second.
    pub fn others_rate(&self) -> f64 {
        (self.dispatched - self.faulty) / self.seconds
    }

    /// Dispatches of the faulty group per second.
    pub fn faulty_rate(&self) -> f64 {
        self.faulty / self.seconds
    }

    /// Dispatches per second of processor time.
    pub fn rate_per_cpu(&self) -> f64 {
        self.dispatched / self.cpu_s.max(1e-9)
    }
}

/// The group that has faults.
pub const FAULTY: u16 = 5;

const STEP: Point = Point::new(1, "step");
/// A recovery puts the state right, and the task goes on with its next step.
static RECOVER: Block = Block::new(STEP, CodeSet::of(&[Code::INJECTED, Code::GROUP]), Action::Ignore);

/// Decides which steps of the faulty group fail; goes on counting from one piece of a point to the next.
#[derive(Debug)]
pub struct Faults {
    steps: AtomicU64,
    next: AtomicU64,
    every: u64,
    seed: u64,
}

impl Faults {
    /// A fault every so many steps, by the mean; 0 for none.
    pub fn new(every: u64, seed: u64) -> Faults {
        let faults = Faults { steps: AtomicU64::new(0), next: AtomicU64::new(0), every, seed };
        faults.next.store(if every == 0 { 0 } else { faults.gap(u64::MAX) }, Ordering::Relaxed);
        faults
    }

    /// The gap before the `n`-th fault: uniform around the mean, so that runs do not fall into step with anything.
    fn gap(&self, n: u64) -> u64 {
        let mut z = (self.seed ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        1 + (z ^ (z >> 31)) % (2 * self.every - 1)
    }

    fn hit(&self) -> bool {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        if self.every == 0 || step != self.next.load(Ordering::Relaxed) {
            return false;
        }
        self.next.store(step + self.gap(step), Ordering::Relaxed);
        true
    }
}

struct Shared {
    faults: Arc<Faults>,
    turns: u32,
    recovery: Duration,
    emulation: Emulation,
}

/// One task.
struct Step {
    shared: Arc<Shared>,
}

impl Work for Step {
    type Resource = u32;

    fn run(&mut self, entry: Entry, cx: &mut Cx<'_, u32>) -> Result<Next, Failure> {
        if entry != Entry::Start {
            return Ok(Next::Again);
        }
        cx.point(&RECOVER)?;
        cx.hold(1);
        spin(self.shared.turns);
        if cx.group() == Group(FAULTY) && self.shared.faults.hit() {
            return Err(Code::INJECTED.into());
        }
        cx.check()?;
        cx.release(1);
        cx.disarm(&RECOVER);
        Ok(Next::Again)
    }

    fn give_back(&mut self, _resource: u32) {}

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        match self.shared.emulation {
            Emulation::Sleep => std::thread::sleep(self.shared.recovery),
            Emulation::Spin => {
                let start = Instant::now();
                while start.elapsed() < self.shared.recovery {
                    spin(100);
                }
            }
        }
        Ok(())
    }

    fn ended(&mut self, _end: End) {}
}

/// Works for so many turns: a chain of multiplications that no processor can shorten.
fn spin(turns: u32) {
    let mut x = black_box(1u64);
    for _ in 0..turns {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (x >> 29);
    }
    black_box(x);
}

/// Turns that take `us` microseconds here, by the fastest of some tries.
pub fn calibrate(us: f64) -> u32 {
    const TURNS: u32 = 1_000_000;
    let fastest = (0..9).map(|_| {
        let start = Instant::now();
        spin(TURNS);
        start.elapsed().as_secs_f64()
    });
    let turn_us = fastest.fold(f64::INFINITY, f64::min) * 1e6 / f64::from(TURNS);
    (us / turn_us) as u32
}

/// Measures one point.
pub fn measure(setup: &Setup) -> Result<Sample> {
    let shared = Arc::new(Shared {
        faults: setup.faults.clone(),
        turns: setup.turns,
        recovery: setup.recovery,
        emulation: setup.emulation,
    });
    let rcs = RcsOptions {
        groups: setup.groups,
        pools: setup.workers,
        tasks_max: setup.tasks,
        policy: setup.policy,
        bound: setup.bound,
        alternative: Some(alternative(setup)),
        ..RcsOptions::default()
    };
    let crew = Crew::start(CrewOptions { rcs, name: "bench", ..CrewOptions::default() })?;
    for n in 0..setup.tasks {
        let (group, priority) = ((n % u32::from(setup.busy)) as u16, Priority::ALL[(n / 7 % 3) as usize]);
        if crew.handle().submit(Group(group), priority, Step { shared: shared.clone() }).is_err() {
            bail!("the crew refused task {n} of {}", setup.tasks);
        }
    }
    // Threads start and caches warm up.
    std::thread::sleep(setup.time / 10);
    let before = Reading::of(&crew);
    std::thread::sleep(setup.time);
    let after = Reading::of(&crew);
    crew.stop();
    Ok(after.since(&before))
}

/// Every pool serves its own groups; a lease opens the two heaviest of the paper, 4 and 5, to all.
fn alternative(setup: &Setup) -> Mapping {
    let mut mapping = Mapping::dealt(setup.groups, setup.workers);
    (4..=FAULTY).filter(|g| *g < setup.groups).for_each(|g| mapping.open_everywhere(Group(g)));
    mapping
}

struct Reading {
    at: Instant,
    cpu_s: f64,
    dispatched: u64,
    faulty: u64,
    recoveries: u64,
}

impl Reading {
    fn of(crew: &Crew<Step>) -> Reading {
        let groups = crew.handle().status().groups;
        let faulty = groups.get(usize::from(FAULTY)).map(|group| group.counters).unwrap_or_default();
        Reading {
            at: Instant::now(),
            cpu_s: cpu_s(libc::CLOCK_PROCESS_CPUTIME_ID),
            dispatched: groups.iter().map(|group| group.counters.dispatched).sum(),
            faulty: faulty.dispatched,
            recoveries: faulty.recoveries,
        }
    }

    fn since(&self, before: &Reading) -> Sample {
        Sample {
            seconds: (self.at - before.at).as_secs_f64(),
            cpu_s: self.cpu_s - before.cpu_s,
            dispatched: (self.dispatched - before.dispatched) as f64,
            faulty: (self.faulty - before.faulty) as f64,
            recoveries: (self.recoveries - before.recoveries) as f64,
        }
    }
}

/// Processor time by one of the system's clocks of processes and threads, seconds.
pub fn cpu_s(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let ok = unsafe { libc::clock_gettime(clock, &mut time) };
    assert!(ok == 0, "every Linux has this clock");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_at_their_rate_and_replay() {
        let hits = |seed| {
            let faults = Faults::new(100, seed);
            (0..100_000u64).filter(|_| faults.hit()).collect::<Vec<_>>()
        };
        let first = hits(7);
        assert!((900..=1_100).contains(&first.len()), "{} faults in 100,000 steps", first.len());
        assert_eq!(first, hits(7));
        assert_ne!(first, hits(8));
    }

    #[test]
    fn no_faults_when_none_are_wanted() {
        let faults = Faults::new(0, 1);
        assert!((0..1_000).all(|_| !faults.hit()));
    }
}
