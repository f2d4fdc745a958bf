//! After a panic at a recovery point: the unit of work that failed is run again, or answered with an error.
//!
//! Owns: what unit is running, up to where the work before it is settled, and the recovery points. Never: mends a state.
//! Invariant: only a panic at a recovery point is recovered here: the state is whole there, because the unit could
//! as well have stopped to wait; whatever else panics needs `restart`.

use super::Engine;
use super::data::task_of;
use super::lease::Attach;
use super::slots::{Stage, Work};
use crate::catalog::Lease;
use crate::fault::Faults;
use crate::mem::Mem;
use crate::op::{AdminOp, Out, Tag};
use segue_types::{IoStatus, TaskKind, VolumeId};

/// Times a request is run again after it panicked; then it is answered with an error.
const TRIES_MAX: u8 = 8;
/// Times in a row that a step is carried on after a panic; then the engine is started again.
const RESUMES_MAX: u32 = 16;

/// The smallest piece of work that can be done again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// A client's operation, from its stage on.
    Run(u32),
    /// What follows from the last I/O of a client's operation.
    Done(u32),
    /// Anything whose state says by itself what is next.
    Other,
}

/// How far the work of the present step is settled: what lies behind may be taken back.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Settled {
    /// Record that the log was collecting, and its bytes.
    pub(crate) record: u64,
    pub(crate) log_bytes: usize,
    pub(crate) waiters: usize,
    replies: usize,
    extents: usize,
    admin: usize,
}

/// An admin operation that is being carried out, and what it may change that no journal holds.
pub(crate) struct AdminUndo {
    pub(crate) tag: Tag,
    pub(crate) op: AdminOp,
    pub(crate) attaches: Vec<Attach>,
    pub(crate) leases: Vec<(VolumeId, Lease)>,
}

/// What is needed to recover.
pub(crate) struct Recover {
    pub(crate) unit: Unit,
    /// Whose work it is, where the unit does not tell.
    pub(crate) task: TaskKind,
    /// The state is whole at this moment.
    whole: bool,
    resumes: u32,
    pub(crate) settled: Settled,
    pub(crate) admin: Option<Box<AdminUndo>>,
}

impl Recover {
    pub(crate) fn new() -> Recover {
        Recover {
            unit: Unit::Other,
            task: TaskKind::Admin,
            whole: false,
            resumes: 0,
            settled: Settled::default(),
            admin: None,
        }
    }

    pub(crate) fn step_ended(&mut self) {
        self.resumes = 0;
    }
}

impl Engine {
    /// Lets tasks panic on purpose from now on; [`Faults::OFF`] ends it.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// The faults as they are now: how many struck, and what will.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Call when a step panicked: carries it on if the panic came at a recovery point. The request that panicked is
    /// run again, or answered with [`IoStatus::Io`] when it has panicked too often. What the step put in `out` stays.
    ///
    /// `false`: the state is suspect. Take back what is not settled ([`Engine::take_back`]) and restart the engine from
    /// its [`super::Salvage`]. May panic as a step may, and is then to be called again.
    pub fn recover(&mut self, mem: &mut Mem, out: &mut Out) -> bool {
        let whole = std::mem::replace(&mut self.recover.whole, false);
        if !whole || self.recover.resumes == RESUMES_MAX {
            return false;
        }
        self.recover.resumes += 1;
        let unit = self.recover.unit;
        match unit {
            Unit::Run(op) | Unit::Done(op) if self.failed_too_often(op) => self.give_up(op, out),
            Unit::Run(op) => self.ready.push_front(op),
            Unit::Done(op) => self.ios_over(op, mem, out),
            Unit::Other => {}
        }
        self.settle(out);
        self.pump(mem, out);
        self.recover.step_ended();
        true
    }

    /// Who was at work when the step panicked: the kind of task, and the client's request if there was one.
    pub fn suspect(&self) -> (TaskKind, Option<Tag>) {
        match self.recover.unit {
            Unit::Run(op) | Unit::Done(op) if self.ops[op].work == Work::Client => {
                (task_of(self.ops[op].op), Some(self.ops[op].tag))
            }
            _ => (self.recover.task, None),
        }
    }

    /// Takes back what the panicked step put in `out` and did not settle, all its I/O included: as if the step had
    /// ended before. For a suspect engine only.
    pub fn take_back(&self, out: &mut Out) {
        let settled = self.recover.settled;
        out.ios.clear();
        out.replies.truncate(settled.replies);
        out.extents.truncate(settled.extents);
        out.admin.truncate(settled.admin);
        // What the engine has of a shared drive is asked anew after the restart.
        (out.want_extents, out.wake_at) = (0, None);
        out.returned.clear();
    }

    /// What was done so far in this step stays done, whatever comes.
    pub(crate) fn settle(&mut self, out: &Out) {
        self.recover.settled = Settled {
            record: self.log.record(),
            log_bytes: self.log.len(),
            waiters: self.commit.waiters(),
            replies: out.replies.len(),
            extents: out.extents.len(),
            admin: out.admin.len(),
        };
        if self.recover.admin.is_some() {
            self.recover.admin = None;
        }
    }

    /// A point where the state is whole: the unit could stop here and be run again later.
    #[inline]
    pub(crate) fn recovery_point(&mut self, task: TaskKind, place: &'static str) {
        self.at_whole_point(task, place, false);
    }

    /// The first recovery point of a task.
    #[inline]
    pub(crate) fn task_begins(&mut self, task: TaskKind) {
        self.at_whole_point(task, "entry", true);
    }

    #[inline]
    fn at_whole_point(&mut self, task: TaskKind, place: &'static str, entry: bool) {
        if self.faults.is_on() {
            self.recover.whole = self.faults.tells();
            self.faults.point(task, place, entry);
            self.recover.whole = false;
        }
    }

    /// A point in the middle of a change: a fault here leaves the state suspect.
    #[inline]
    pub(crate) fn fault_point(&mut self, task: TaskKind, place: &'static str) {
        self.faults.point(task, place, false);
    }

    /// Runs checks that change nothing, so that one that does not hold costs its request alone.
    #[inline]
    pub(crate) fn checked<T>(&mut self, check: impl FnOnce(&Engine) -> T) -> T {
        self.recover.whole = true;
        let result = check(self);
        self.recover.whole = false;
        result
    }

    fn failed_too_often(&mut self, op: u32) -> bool {
        let slot = &mut self.ops[op];
        slot.tries += 1;
        slot.tries > TRIES_MAX
    }

    fn give_up(&mut self, op: u32, out: &mut Out) {
        let reads = matches!(self.ops[op].stage, Stage::Reading | Stage::EdgeReading);
        if reads && self.recover.unit == Unit::Done(op) {
            let era = self.ops[op].era;
            self.space.read_ends(era, &mut self.alloc);
        }
        self.fail_client(op, IoStatus::Io, out);
    }
}
