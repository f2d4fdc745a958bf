//! A crew from outside: starting it, giving it tasks, changing its settings, stopping it.
//!
//! Owns: the threads' handles. Never: runs a task.
//! Invariant: every task that was taken is ended once, also when the crew stops.

use super::shared::{Job, Shared};
use super::work::{End, Entry, Work};
use super::worker;
use crate::sync::{self, Arc, JoinHandle};
use segue_sched::cleanup::{Code, CodeSet, Stack};
use segue_sched::rcs::{Bounds, Counters, Group, Policy, Pool, Priority, Rcs, RcsError, RcsOptions};
use segue_types::Nanos;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a crew is made with.
#[derive(Clone, Debug)]
pub struct CrewOptions {
    /// The scheduler's settings. Its `pools` are the workers; `tasks_max` is the number of tasks that the crew holds, those
    /// that run included; `group_tasks_max` is not used.
    pub rcs: RcsOptions,
    /// Failures that make the whole group recover.
    pub spreads: CodeSet,
    /// Begins the names of the threads.
    pub name: &'static str,
    /// Called first on each thread.
    pub starts: fn(),
}

impl Default for CrewOptions {
    fn default() -> CrewOptions {
        let spreads = CodeSet::of(&[Code::STATE, Code::LOGIC, Code::PANIC, Code::INVARIANT, Code::INJECTED]);
        CrewOptions { rcs: RcsOptions::default(), spreads, name: "segue-crew", starts: || {} }
    }
}

/// Why a crew did not start.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// A setting of the scheduler; the message names it.
    #[error(transparent)]
    Options(#[from] RcsError),
    /// The system gave no thread. Start fewer workers, or raise the limit of threads.
    #[error("cannot start a worker thread: {0}")]
    Thread(std::io::Error),
}

/// A task that was not taken; here it is again.
#[derive(Debug, thiserror::Error)]
pub enum Refused<W> {
    /// As many tasks as there may be are waiting or running. Try again when some have ended.
    #[error("the crew holds as many tasks as it may")]
    Full(W),
    /// The crew stops.
    #[error("the crew is stopping")]
    Stopping(W),
}

/// What a crew has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The policy.
    pub policy: Policy,
    /// Per group.
    pub groups: Vec<GroupStatus>,
}

/// What a crew has done for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Tasks that wait.
    pub waiting: u32,
    /// Tasks that run.
    pub running: u16,
    /// Most that may run.
    pub bound: u16,
    /// Whether it recovers now.
    pub recovering: bool,
    /// Since the start.
    pub counters: Counters,
}

/// A running crew. Dropping it stops it.
pub struct Crew<W: Work> {
    handle: CrewHandle<W>,
    threads: Vec<JoinHandle<()>>,
}

/// Gives tasks to a crew, from any thread.
pub struct CrewHandle<W: Work> {
    shared: Arc<Shared<W>>,
}

impl<W: Work> Clone for CrewHandle<W> {
    fn clone(&self) -> CrewHandle<W> {
        CrewHandle { shared: self.shared.clone() }
    }
}

impl<W: Work> Crew<W> {
    /// Starts the workers. Nothing is allocated later, except by tasks.
    ///
    /// # Errors
    /// [`CrewError`].
    pub fn start(options: CrewOptions) -> Result<Crew<W>, CrewError> {
        let CrewOptions { rcs: mut settings, spreads, name, starts } = options;
        settings.group_tasks_max = settings.tasks_max;
        let (workers, places) = (settings.pools, settings.tasks_max);
        let shared = Arc::new(Shared::new(Rcs::new(settings)?, places, spreads));
        let mut crew = Crew { handle: CrewHandle { shared }, threads: Vec::with_capacity(usize::from(workers)) };
        for number in 0..workers {
            let shared = crew.handle.shared.clone();
            let thread = sync::spawn(format!("{name}-{number}"), move || {
                starts();
                worker::work(&shared, Pool(number));
            });
            crew.threads.push(thread.map_err(CrewError::Thread)?);
        }
        Ok(crew)
    }

    /// For giving tasks to it.
    pub fn handle(&self) -> &CrewHandle<W> {
        &self.handle
    }

    /// Stops: steps that run are finished, tasks that wait end as [`End::Stopped`]. Returns when every thread is gone.
    pub fn stop(mut self) {
        self.stop_now();
    }

    fn stop_now(&mut self) {
        let shared = &self.handle.shared;
        shared.lock().stopping = true;
        shared.wake_all();
        for thread in self.threads.drain(..) {
            // A worker ends by a panic only when the scheduler is broken; say so, unless this is already unwinding.
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a worker of a crew broke");
        }
        for place in &shared.jobs {
            let job = place.lock().expect("panics of tasks are caught").take();
            if let Some(mut job) = job {
                let _ = catch_unwind(AssertUnwindSafe(|| job.work.ended(End::Stopped)));
            }
        }
    }
}

impl<W: Work> Drop for Crew<W> {
    fn drop(&mut self) {
        self.stop_now();
    }
}

impl<W: Work> CrewHandle<W> {
    /// Gives a task to the crew.
    ///
    /// # Errors
    /// [`Refused`], with the task.
    ///
    /// # Panics
    /// When the group does not exist.
    pub fn submit(&self, group: Group, priority: Priority, work: W) -> Result<(), Refused<W>> {
        let mut state = self.shared.lock();
        assert!(usize::from(group.0) < state.rcs.shape().0, "group {} does not exist", group.0);
        if state.stopping {
            return Err(Refused::Stopping(work));
        }
        let Some(place) = state.free.pop() else { return Err(Refused::Full(work)) };
        let job = Job { work, stack: Stack::new(), entry: Entry::Start };
        *self.shared.jobs[place as usize].lock().expect("panics of tasks are caught") = Some(job);
        state.queue(group, priority, place as usize);
        self.shared.unlock_and_wake(state);
        Ok(())
    }

    /// Changes settings of the scheduler, at once: `change` calls its setters, and nothing else of it.
    pub fn adjust<T>(&self, change: impl FnOnce(&mut Rcs) -> T) -> T {
        let mut state = self.shared.lock();
        let result = change(&mut state.rcs);
        // What changed may be good for any worker; each that is woken in vain sleeps again.
        drop(state);
        self.shared.wake_all();
        result
    }

    /// Lets bounds set themselves: call it every few milliseconds of `now`, from one thread.
    pub fn watch(&self, bounds: &mut Bounds, now: Nanos) {
        let mut state = self.shared.lock();
        if bounds.watch(now, &mut state.rcs) {
            self.shared.unlock_and_wake(state);
        }
    }

    /// What it has done. Allocates.
    pub fn status(&self) -> Status {
        let state = self.shared.lock();
        let rcs = &state.rcs;
        let group = |n: usize| {
            let group = Group(n as u16);
            GroupStatus {
                waiting: rcs.waiting(group),
                running: rcs.running(group),
                bound: rcs.bound(group),
                recovering: rcs.recovering(group),
                counters: rcs.counters(group),
            }
        };
        Status { policy: rcs.policy(), groups: (0..rcs.shape().0).map(group).collect() }
    }
}
