//! The controller in virtual time: hosts, channels, disks and cores around the shipped scheduler.
//!
//! Owns: time, chance and what tasks lead to. Never: chooses a task; the scheduler does.
//! Invariant: one seed and setup give one run, and the number of I/Os in the system never changes.

use super::setup::Setup;
use super::workload::{FAULTY, MILLION, RARE_GROUPS, Step};
use segue_des::{Chance, EventId, Queue};
use segue_sched::rcs::{Bounds, Dispatch, Group, Policy, Pool, Rcs, Task};
use segue_types::Nanos;
use std::collections::VecDeque;

/// What a run showed, within its measured time.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// I/Os answered per millisecond (thousands per second).
    pub kiops: f64,
    /// Mean time from a host's request to its reply, milliseconds.
    pub response_ms: f64,
    /// Share of the cores' time spent in tasks, cleaning included, 0..=1.
    pub busy: f64,
    /// Dispatches per minute, in all.
    pub dispatches_per_minute: f64,
    /// Dispatches per minute of group 4 and of group 5, all copies together.
    pub heavy_per_minute: [f64; 2],
    /// Faults per minute.
    pub faults_per_minute: f64,
    /// Tasks that cleaned up per fault, the faulty one included.
    pub cleaned_per_fault: f64,
    /// Tasks that waited at the end.
    pub waiting: u32,
}

enum Event {
    /// A host has thought.
    Ask(u32),
    /// A channel has carried an I/O.
    Carried(u32),
    /// A disk is done: submit this.
    Disk(Task),
    /// A pool's task is over.
    Over(u16),
    /// A group has recovered from a fault at this time.
    Recovered(Group, Nanos),
}

#[derive(Clone, Copy)]
struct Host {
    asked_at: Nanos,
    miss: bool,
}

#[derive(Clone, Copy)]
struct Running {
    task: Task,
    since: Nanos,
    over: EventId,
    /// It cleans up.
    cleans: bool,
}

/// One copy's channels.
struct Channels {
    free: u32,
    waiting: VecDeque<u32>,
}

#[derive(Default)]
struct Tally {
    replies: u64,
    response_ns: u128,
    busy_ns: u128,
    dispatches: u64,
    heavy: [u64; 2],
    faults: u64,
    cleaned: u64,
}

struct World {
    setup: Setup,
    rcs: Rcs,
    bounds: Option<Bounds>,
    queue: Queue<Event>,
    service: Chance,
    kinds: Chance,
    faults: Chance,
    hosts: Vec<Host>,
    channels: Vec<Channels>,
    pools: Vec<Option<Running>>,
    /// Dispatches of the faulty group until its next fault, per copy.
    until_fault: Vec<u64>,
    scratch: Vec<Pool>,
    counting: bool,
    tally: Tally,
}

/// Runs one setup with one seed.
pub fn run(setup: &Setup, seed: u64) -> Figures {
    let mut world = World::new(*setup, seed);
    world.run_until(setup.warm_up_ns);
    world.counting = true;
    let end = setup.warm_up_ns + setup.measure_ns;
    world.run_until(end);
    world.figures(end)
}

const fn task(step: Step, who: u32) -> Task {
    (step as Task) << 32 | who as Task
}

impl World {
    fn new(setup: Setup, seed: u64) -> World {
        let chance = Chance::new(seed);
        let copies = usize::from(setup.copies);
        let hosts = setup.work.hosts * u32::from(setup.copies);
        let mut faults = chance.stream("faults");
        let until_fault = (0..copies).map(|_| faults.between(1, setup.dispatches_per_fault)).collect();
        let mut world = World {
            rcs: setup.scheduler(),
            bounds: setup.self_setting(),
            queue: Queue::new(),
            service: chance.stream("service"),
            kinds: chance.stream("kinds"),
            faults,
            until_fault,
            hosts: vec![Host { asked_at: 0, miss: false }; hosts as usize],
            channels: (0..copies).map(|_| Channels { free: setup.work.channels, waiting: VecDeque::new() }).collect(),
            pools: vec![None; usize::from(setup.cores())],
            scratch: Vec::new(),
            counting: false,
            tally: Tally::default(),
            setup,
        };
        // Hosts begin spread over about one round trip.
        for host in 0..hosts {
            let at = world.service.below(15_000_000);
            world.queue.at(at, Event::Ask(host));
        }
        for p in 0..world.pools.len() {
            world.fill(Pool(p as u16));
        }
        world
    }

    fn run_until(&mut self, end: Nanos) {
        while self.queue.next_time().is_some_and(|time| time < end) {
            let (now, event) = self.queue.pop().expect("just seen");
            match event {
                Event::Ask(host) => self.ask(now, host),
                Event::Carried(host) => self.carried(now, host),
                Event::Disk(task) => self.submit(task),
                Event::Over(pool) => self.over(now, Pool(pool)),
                Event::Recovered(group, since) => {
                    self.rcs.recovery_ends(group);
                    if let Some(bounds) = &mut self.bounds {
                        bounds.recovered(group, now - since);
                    }
                    self.wake();
                }
            }
        }
    }

    fn copy_of(&self, host: u32) -> u16 {
        (host / self.setup.work.hosts) as u16
    }

    /// Uniform within half the mean of the mean.
    fn around(&mut self, mean: Nanos) -> Nanos {
        mean / 2 + self.service.below(mean.max(1))
    }

    fn ask(&mut self, now: Nanos, host: u32) {
        let read = self.kinds.odds(self.setup.work.reads, MILLION);
        let miss = read && !self.kinds.odds(self.setup.work.read_hits, MILLION);
        self.hosts[host as usize] = Host { asked_at: now, miss };
        if self.setup.work.channel_ns == 0 {
            return self.submit(task(Step::Front, host));
        }
        let copy = usize::from(self.copy_of(host));
        self.channels[copy].waiting.push_back(host);
        self.carry(now, copy);
    }

    fn carry(&mut self, now: Nanos, copy: usize) {
        let channels = &mut self.channels[copy];
        if channels.free > 0
            && let Some(host) = channels.waiting.pop_front()
        {
            channels.free -= 1;
            let busy = self.around(self.setup.work.channel_ns);
            self.queue.at(now + busy, Event::Carried(host));
        }
    }

    fn carried(&mut self, now: Nanos, host: u32) {
        let copy = usize::from(self.copy_of(host));
        self.channels[copy].free += 1;
        self.carry(now, copy);
        self.submit(task(Step::Front, host));
    }

    fn submit(&mut self, task: Task) {
        let (step, who) = (step_of(task), task as u32);
        // A task behind the hosts' backs carries its group where others carry their host.
        let group = match step {
            Step::Front | Step::Cache | Step::Stage | Step::Staged => self.setup.group(self.copy_of(who), step.group()),
            _ => Group(who as u16),
        };
        self.rcs.submit(group, step.priority(), task).expect("the model gives queues room for every task");
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(pool) = self.rcs.wake() {
            self.fill(pool);
        }
    }

    /// Lets an idle pool dispatch, and then every other that still sleeps beside work.
    fn fill(&mut self, pool: Pool) {
        let mut next = Some(pool);
        while let Some(pool) = next {
            match self.rcs.dispatch(pool) {
                Some(dispatch) => self.start(pool, dispatch),
                None => break,
            }
            next = self.rcs.wake();
        }
    }

    fn start(&mut self, pool: Pool, dispatch: Dispatch) {
        let now = self.queue.now();
        let step = step_of(dispatch.task);
        let mut cpu = self.around(step.cpu_ns(&self.setup.work));
        if self.setup.policy != Policy::Performance {
            cpu += self.setup.work.group_dispatch_ns;
        }
        let cleans = dispatch.recovering;
        if cleans {
            cpu = self.cleaning();
        }
        let over = self.queue.at(now + cpu, Event::Over(pool.0));
        self.pools[usize::from(pool.0)] = Some(Running { task: dispatch.task, since: now, over, cleans });
        if self.counting {
            self.tally.dispatches += 1;
            self.tally.cleaned += u64::from(cleans);
            self.tally.heavy[0] += u64::from(step == Step::Front);
            self.tally.heavy[1] += u64::from(step == Step::Release);
        }
        let fails = self.setup.faults && step.group() == FAULTY && !cleans && self.is_due(dispatch.group);
        if fails {
            self.fail(now, dispatch.group);
        }
    }

    /// Counts a dispatch that may fail; true for the one that does.
    fn is_due(&mut self, group: Group) -> bool {
        let left = &mut self.until_fault[usize::from(group.0 / self.setup.groups)];
        *left -= 1;
        let due = *left == 0;
        if due {
            *left = self.setup.dispatches_per_fault;
        }
        due
    }

    /// Time to clean up.
    fn cleaning(&mut self) -> Nanos {
        let spread = self.setup.recovery_ns / 1_000 * self.setup.work.recovery_spread;
        self.setup.recovery_ns - spread + self.faults.below(2 * spread + 1)
    }

    /// A fault: every executing task of the group cleans up from now on, and the group has recovered when the last of
    /// these is done.
    fn fail(&mut self, now: Nanos, group: Group) {
        self.rcs.recovery_begins(group);
        let mut affected = std::mem::take(&mut self.scratch);
        affected.extend(self.rcs.pools_of(group));
        let mut last = now;
        for pool in affected.drain(..) {
            let end = now + self.cleaning();
            let running = self.pools[usize::from(pool.0)].as_mut().expect("the scheduler says it runs");
            self.queue.cancel(running.over);
            running.over = self.queue.at(end, Event::Over(pool.0));
            self.tally.cleaned += u64::from(self.counting && !running.cleans);
            running.cleans = true;
            last = last.max(end);
        }
        self.scratch = affected;
        self.tally.faults += u64::from(self.counting);
        self.queue.at(last, Event::Recovered(group, now));
    }

    fn over(&mut self, now: Nanos, pool: Pool) {
        let running = self.pools[usize::from(pool.0)].take().expect("it was started");
        let group = self.rcs.finished(pool);
        if let Some(bounds) = &mut self.bounds {
            bounds.worked(group, now - running.since);
            if bounds.step(now, &mut self.rcs) {
                self.wake();
            }
        }
        if self.counting {
            self.tally.busy_ns += u128::from(now - running.since.max(self.setup.warm_up_ns));
        }
        let who = running.task as u32;
        match step_of(running.task) {
            Step::Front => self.submit(task(Step::Cache, who)),
            Step::Cache if self.hosts[who as usize].miss => self.submit(task(Step::Stage, who)),
            Step::Cache | Step::Staged => self.reply(now, who),
            Step::Stage => self.disk(now, Step::Staged, who),
            Step::Destage => self.submit(task(Step::Parity, who + u32::from(self.hop(8, 10)))),
            Step::Parity => self.disk(now, Step::Destaged, who + u32::from(self.hop(10, 12))),
            Step::Destaged | Step::Release | Step::Rare => {}
        }
        self.fill(pool);
    }

    /// How far apart two of the paper's groups are once merged.
    fn hop(&self, from: u16, to: u16) -> u16 {
        self.setup.group(0, to).0 - self.setup.group(0, from).0
    }

    fn disk(&mut self, now: Nanos, then: Step, who: u32) {
        let busy = self.around(self.setup.work.disk_ns);
        self.queue.at(now + busy, Event::Disk(task(then, who)));
    }

    fn reply(&mut self, now: Nanos, host: u32) {
        if self.counting {
            self.tally.replies += 1;
            self.tally.response_ns += u128::from(now - self.hosts[host as usize].asked_at);
        }
        let think = self.service.exponential(self.setup.work.think_ns);
        self.queue.at(now + think, Event::Ask(host));
        let (copy, work) = (self.copy_of(host), self.setup.work);
        let behind = |world: &mut World, step: Step, g: u16| {
            let group = world.setup.group(copy, g);
            world.submit(task(step, u32::from(group.0)));
        };
        if self.kinds.odds(work.releases, MILLION) {
            behind(self, Step::Release, FAULTY);
        }
        if self.kinds.odds(work.destages, MILLION) {
            behind(self, Step::Destage, Step::Destage.group());
        }
        if self.kinds.odds(work.rare, MILLION) {
            let g = *self.kinds.pick(&RARE_GROUPS);
            behind(self, Step::Rare, g);
        }
    }

    fn figures(mut self, end: Nanos) -> Figures {
        for running in self.pools.iter().flatten() {
            self.tally.busy_ns += u128::from(end - running.since.max(self.setup.warm_up_ns));
        }
        let (t, ms) = (&self.tally, self.setup.measure_ns as f64 / 1e6);
        let per_minute = |n: u64| n as f64 * 60_000.0 / ms;
        Figures {
            kiops: t.replies as f64 / ms,
            response_ms: t.response_ns as f64 / t.replies.max(1) as f64 / 1e6,
            busy: t.busy_ns as f64 / (self.setup.measure_ns as f64 * f64::from(self.setup.cores())),
            dispatches_per_minute: per_minute(t.dispatches),
            heavy_per_minute: t.heavy.map(per_minute),
            faults_per_minute: per_minute(t.faults),
            cleaned_per_fault: t.cleaned as f64 / t.faults.max(1) as f64,
            waiting: self.rcs.waiting_in_all(),
        }
    }
}

fn step_of(task: Task) -> Step {
    Step::ALL[(task >> 32) as usize]
}
