//! What the workers of a crew share: the scheduler, the free places of the slab, and who has yet to clean up.
//!
//! Owns: the crew's one lock. Never: runs a task, or wakes a thread, with the lock held.
//! Invariant: a group recovers exactly as long as some worker that ran a task of it at the failure is not clean.

use super::parker::Parker;
use super::work::{Entry, Work};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};
use segue_sched::cleanup::{CodeSet, Stack};
use segue_sched::rcs::{Dispatch, Group, Pool, Priority, Rcs};

/// A task in its place.
pub struct Job<W: Work> {
    pub work: W,
    pub stack: Stack<W::Resource>,
    pub entry: Entry,
}

/// Behind the lock.
pub struct State {
    pub rcs: Rcs,
    pub free: Vec<u32>,
    pub stopping: bool,
    /// Per worker: it runs a task of a group that failed meanwhile, and is not clean.
    unclean: Box<[bool]>,
    /// Per group: such workers.
    unclean_of: Box<[u16]>,
}

/// One crew.
pub struct Shared<W: Work> {
    state: Mutex<State>,
    /// The tasks. A place's lock is free whenever anyone asks: only the worker that was given the task, or the one that
    /// puts it there, does.
    pub jobs: Box<[Mutex<Option<Job<W>>>]>,
    /// Per group: recoveries so far.
    pub recoveries: Box<[AtomicU32]>,
    parkers: Box<[Parker]>,
    pub spreads: CodeSet,
}

/// A task for a worker.
#[derive(Clone, Copy)]
pub struct Assignment {
    pub place: usize,
    pub group: Group,
    pub priority: Priority,
    /// Recoveries of the group at the time.
    pub recoveries: u32,
    /// The group is recovering: the policy does not suspend it.
    pub late: bool,
}

/// What became of the worker's last task.
#[derive(Clone, Copy)]
pub enum Over {
    /// It has another step to do, some time.
    Requeue,
    /// It is gone, and its place is empty.
    Gone,
}

impl<W: Work> Shared<W> {
    pub fn new(rcs: Rcs, places: u32, spreads: CodeSet) -> Shared<W> {
        let (groups, workers) = rcs.shape();
        let state = State {
            rcs,
            free: (0..places).rev().collect(),
            stopping: false,
            unclean: vec![false; workers].into(),
            unclean_of: vec![0; groups].into(),
        };
        Shared {
            state: Mutex::new(state),
            jobs: (0..places).map(|_| Mutex::new(None)).collect(),
            recoveries: (0..groups).map(|_| AtomicU32::new(0)).collect(),
            parkers: (0..workers).map(|_| Parker::default()).collect(),
            spreads,
        }
    }

    /// The lock.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the scheduler of a crew broke an invariant")
    }

    /// Lets go of the lock and wakes a worker that would find something now.
    pub fn unlock_and_wake(&self, mut state: MutexGuard<'_, State>) {
        let woken = state.rcs.wake();
        drop(state);
        if let Some(pool) = woken {
            self.parkers[usize::from(pool.0)].unpark();
        }
    }

    pub fn wake_all(&self) {
        self.parkers.iter().for_each(Parker::unpark);
    }

    /// The worker's last task is over; the next one. `None`: the crew stops.
    pub fn next(&self, pool: Pool, last: Option<(Assignment, Over)>) -> Option<Assignment> {
        let mut state = self.lock();
        if let Some((assignment, over)) = last {
            state.rcs.finished(pool);
            state.cleaned(pool, assignment.group);
            match over {
                Over::Requeue => state.queue(assignment.group, assignment.priority, assignment.place),
                Over::Gone => state.free.push(assignment.place as u32),
            }
        }
        loop {
            if state.stopping {
                return None;
            }
            let dispatch = state.rcs.dispatch(pool);
            let assignment = dispatch.map(|dispatch| self.assign(dispatch));
            self.unlock_and_wake(state);
            if assignment.is_some() {
                return assignment;
            }
            self.parkers[usize::from(pool.0)].park();
            state = self.lock();
        }
    }

    /// Under the lock: a recovery of the group begins before this or after it.
    fn assign(&self, dispatch: Dispatch) -> Assignment {
        let Dispatch { task, group, priority, recovering, .. } = dispatch;
        let recoveries = self.recoveries[usize::from(group.0)].load(Ordering::Relaxed);
        Assignment { place: task as usize, group, priority, recoveries, late: recovering }
    }

    /// The worker's task failed with a code that spreads: its group recovers.
    pub fn group_failed(&self, pool: Pool, group: Group) {
        let mut state = self.lock();
        let g = usize::from(group.0);
        if state.unclean_of[g] > 0 {
            // The recovery that is under way waits for this worker too.
            if !std::mem::replace(&mut state.unclean[usize::from(pool.0)], true) {
                state.unclean_of[g] += 1;
            }
            return;
        }
        let State { rcs, unclean, .. } = &mut *state;
        let executing = rcs.recovery_begins(group);
        rcs.pools_of(group).for_each(|pool| unclean[usize::from(pool.0)] = true);
        state.unclean_of[g] = executing;
        self.recoveries[g].fetch_add(1, Ordering::Release);
    }

    /// The worker's task has cleaned up and wants to go on at once: it may, unless its group is suspended for others.
    pub fn goes_on(&self, pool: Pool, assignment: &mut Assignment) -> bool {
        let mut state = self.lock();
        state.cleaned(pool, assignment.group);
        let suspended = state.rcs.suspended(assignment.group);
        assignment.recoveries = self.recoveries[usize::from(assignment.group.0)].load(Ordering::Relaxed);
        // It has done its part in the recovery that a policy without suspension lets it meet.
        assignment.late = false;
        self.unlock_and_wake(state);
        !suspended
    }
}

impl State {
    /// Puts a task at the end of its queue.
    pub fn queue(&mut self, group: Group, priority: Priority, place: usize) {
        // There are as many places in the queues as in the slab.
        self.rcs.submit(group, priority, place as u64).expect("a task in the slab has room in its queue");
    }

    fn cleaned(&mut self, pool: Pool, group: Group) {
        if std::mem::replace(&mut self.unclean[usize::from(pool.0)], false) {
            let left = &mut self.unclean_of[usize::from(group.0)];
            *left -= 1;
            if *left == 0 {
                self.rcs.recovery_ends(group);
            }
        }
    }
}
