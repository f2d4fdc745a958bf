//! A pool whose engine panics: the step is carried on, or the engine restarted, or the pool taken out of service.
//!
//! Owns: what the pool's clients and operators wait for, until it is answered. Never: gives up while a restart may help.
//! Invariant: every request that was fed gets exactly one answer, whatever the engine does.

use super::PoolHost;
use crate::guard::{Caught, guard};
use crate::io::Backend;
use crate::options::OpenFailure;
use crate::pool::Machine;
use segue_types::{IoStatus, Nanos, RecoveryLevel, TaskKind};
use segue_volume::device::BlockDev;
use segue_volume::fault::Faults;
use segue_volume::mem::Mem;
use segue_volume::op::{
    AdminError, AdminOp, AdminReply, Alarm, AlarmKind, AttachId, Event, Op, Out, Reply, Tag, Ticket,
};
use std::collections::VecDeque;
use std::time::Instant;

/// Restarts that a request may cause before it is answered with an error instead of being given to the next engine.
const BLAMES_MAX: u8 = 3;
/// Restarts in a row in which nothing is answered; then the pool is taken out of service.
const RESTARTS_MAX: u32 = 16;

/// What a failed machine leaves.
pub trait Wreck: Send {
    /// An I/O that it had submitted ended.
    fn io_ended(&mut self, ticket: Ticket, errno: i32);
    /// A new machine that goes on where this one failed. Called once, when all its I/O has ended.
    ///
    /// # Errors
    /// Why the pool cannot be served any more.
    fn revive(self: Box<Self>, dev: &mut dyn BlockDev, mem: &mut Mem) -> Result<Revived, OpenFailure>;
}

/// A new machine, and what is to be told.
pub struct Revived {
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// Requests that are done.
    pub done: Vec<Tag>,
    /// Admin operations that are done.
    pub admin: Vec<(Tag, AdminReply)>,
    /// Admin operations to be given again.
    pub admin_again: Vec<(Tag, AdminOp)>,
    /// What a person must look at.
    pub alarms: Vec<Alarm>,
}

/// A recovery, for those who count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    pub(crate) task: TaskKind,
    pub(crate) level: RecoveryLevel,
    /// From the panic to the next step of a whole machine, ns.
    pub(crate) took_ns: u64,
    pub(crate) said: String,
}

/// What serves the pool now.
pub(super) enum State {
    Serving(Box<dyn Machine>),
    /// The failed machine's I/O is still with the kernel.
    Failed {
        wreck: Box<dyn Wreck>,
        since: Instant,
        task: TaskKind,
        said: String,
    },
    /// Out of service.
    Dead,
}

/// A request that the machine has, or will get.
#[derive(Clone, Copy)]
struct Held {
    /// Order of arrival.
    order: u64,
    attach: AttachId,
    op: Op,
    /// Restarts it caused.
    blames: u8,
}

/// Everything that waits for an answer.
pub(super) struct Waiting {
    /// By the number of the request's tag: small and dense.
    requests: Vec<Option<Held>>,
    count: u64,
    admins: Vec<Tag>,
    /// To be given to the machine, in order.
    again: VecDeque<Event>,
    restarts_in_row: u32,
    faults: Faults,
}

impl Waiting {
    pub(super) fn new() -> Waiting {
        Waiting {
            requests: Vec::with_capacity(1024),
            count: 0,
            admins: Vec::with_capacity(16),
            again: VecDeque::new(),
            restarts_in_row: 0,
            faults: Faults::OFF,
        }
    }

    /// Notes what will have to be answered.
    #[inline]
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Request { tag, attach, op } => {
                let at = tag.0 as usize;
                if at >= self.requests.len() {
                    self.requests.resize(at + 1, None);
                }
                self.count += 1;
                self.requests[at] = Some(Held { order: self.count, attach: *attach, op: *op, blames: 0 });
            }
            Event::Admin { tag, .. } => self.admins.push(*tag),
            Event::IoDone { .. } | Event::Tick | Event::Lend { .. } | Event::Shrink => {}
        }
    }

    /// Forgets what has been answered: the answers from `replies` and `admins` on.
    #[inline]
    pub(super) fn answered(&mut self, out: &Out, replies: usize, admins: usize) {
        for reply in &out.replies[replies..] {
            self.requests[reply.tag.0 as usize] = None;
            self.restarts_in_row = 0;
        }
        for (tag, _) in &out.admin[admins..] {
            self.admins.retain(|waiting| waiting != tag);
            self.restarts_in_row = 0;
        }
    }

    /// All requests that have no answer, in the order they came.
    fn requests(&self) -> Vec<(Tag, Held)> {
        let held = |(at, held): (usize, &Option<Held>)| held.map(|held| (Tag(at as u64), held));
        let mut all: Vec<_> = self.requests.iter().enumerate().filter_map(held).collect();
        all.sort_by_key(|(_, held)| held.order);
        all
    }
}

impl PoolHost {
    /// Lets the machine's tasks panic on purpose.
    pub(crate) fn set_faults(&mut self, faults: &Faults) {
        self.waiting.faults = faults.clone();
        if let State::Serving(machine) = &mut self.state {
            machine.set_faults(faults.clone());
        }
    }

    /// Steps the machine, or keeps the event for the next one.
    pub(super) fn step(&mut self, now: Nanos, event: Event, mem: &mut Mem) {
        let (replies, admins) = (self.out.replies.len(), self.out.admin.len());
        match &mut self.state {
            State::Serving(machine) => {
                let out = &mut self.out;
                if let Err(caught) = guard(|| machine.step(now, event, mem, out)) {
                    self.panicked(caught, mem);
                }
            }
            State::Failed { wreck, .. } => match event {
                Event::IoDone { ticket, errno } => wreck.io_ended(ticket, errno),
                // Requests are noted, and given in their order to the next machine.
                Event::Request { .. } | Event::Tick | Event::Shrink => {}
                later @ (Event::Admin { .. } | Event::Lend { .. }) => self.waiting.again.push_back(later),
            },
            State::Dead => self.refuse(event),
        }
        self.waiting.answered(&self.out, replies, admins);
    }

    #[cold]
    fn panicked(&mut self, mut caught: Caught, mem: &mut Mem) {
        let since = Instant::now();
        loop {
            let State::Serving(machine) = &mut self.state else { unreachable!("a machine panicked") };
            let (blamed, tag) = machine.suspect();
            let task = caught.injected.unwrap_or(blamed);
            let out = &mut self.out;
            let said = caught.message;
            match guard(|| machine.recover(mem, out)) {
                Ok(true) => return self.recovered(task, RecoveryLevel::Task, since, said),
                Err(again) => {
                    self.recovered(task, RecoveryLevel::Task, since, said);
                    caught = again;
                }
                Ok(false) => {
                    // What was injected is nobody's fault.
                    let blame = tag.filter(|_| caught.injected.is_none());
                    return self.give_machine_up(task, blame, since, said);
                }
            }
        }
    }

    fn give_machine_up(&mut self, task: TaskKind, blame: Option<Tag>, since: Instant, said: String) {
        if let Some(Some(held)) = blame.and_then(|tag| self.waiting.requests.get_mut(tag.0 as usize)) {
            held.blames += 1;
        }
        let State::Serving(machine) = std::mem::replace(&mut self.state, State::Dead) else {
            unreachable!("a machine panicked")
        };
        self.waiting.restarts_in_row += 1;
        let out = &mut self.out;
        let wreck = match guard(|| machine.wreck(out)) {
            Ok(wreck) if self.waiting.restarts_in_row <= RESTARTS_MAX => wreck,
            _ => None,
        };
        // The machine's I/O that ended within the step.
        let ended: Vec<_> = self.ended.drain(..).collect();
        match wreck {
            Some(mut wreck) => {
                ended.into_iter().for_each(|(ticket, errno)| wreck.io_ended(ticket, errno));
                self.state = State::Failed { wreck, since, task, said };
            }
            None => {
                // Nothing of what the step left can be trusted.
                self.out.ios.clear();
                self.die(task, since, said);
            }
        }
    }

    /// Restarts a failed machine as soon as the kernel has none of its I/O, and gives it everything again.
    #[inline]
    pub(super) fn revive(&mut self, now: Nanos, mem: &mut Mem, io: &mut dyn Backend, place: usize) {
        while matches!(self.state, State::Failed { .. }) && self.is_quiet() {
            self.restart(mem);
            while matches!(self.state, State::Serving(_)) {
                let Some(event) = self.waiting.again.pop_front() else { break };
                self.step(now, event, mem);
                self.start_all(now, mem, io, place);
            }
        }
    }

    fn restart(&mut self, mem: &mut Mem) {
        let State::Failed { wreck, since, task, said } = std::mem::replace(&mut self.state, State::Dead) else {
            unreachable!("only a failed machine is restarted")
        };
        let dev = self.drive.block_dev();
        let revived = match guard(|| wreck.revive(dev, mem)) {
            Ok(Ok(revived)) => revived,
            Ok(Err(error)) => return self.die(task, since, format!("{said}; the restart failed: {error}")),
            Err(caught) => return self.die(task, since, format!("{said}; the restart panicked: {}", caught.message)),
        };
        let row = self.waiting.restarts_in_row;
        let (replies, admins) = (self.out.replies.len(), self.out.admin.len());
        let done = revived.done.into_iter().map(|tag| Reply { tag, status: IoStatus::Ok, extents: 0 });
        self.out.replies.extend(done);
        self.out.admin.extend(revived.admin.into_iter().map(|(tag, reply)| (tag, Ok(reply))));
        self.out.alarms.extend(revived.alarms);
        let waiting = &mut self.waiting;
        // What came meanwhile, or an earlier restart had not given yet, follows what the failed machine had begun.
        let mut later = std::mem::take(&mut waiting.again);
        later.retain(|event| matches!(event, Event::Admin { .. } | Event::Lend { .. }));
        waiting.again.extend(revived.admin_again.into_iter().map(|(tag, op)| Event::Admin { tag, op }));
        waiting.again.extend(later);
        let answered = self.out.admin[admins..].iter().map(|(tag, _)| *tag);
        let known = |event: &Event| if let Event::Admin { tag, .. } = event { Some(*tag) } else { None };
        let known: Vec<Tag> = answered.chain(waiting.again.iter().filter_map(known)).collect();
        for tag in waiting.admins.iter().filter(|tag| !known.contains(tag)) {
            let why = "the engine failed while it did this; look whether it is done, and ask again if not";
            self.out.admin.push((*tag, Err(AdminError::Conflict(why))));
        }
        waiting.answered(&self.out, replies, admins);
        let replies = self.out.replies.len();
        for (tag, held) in waiting.requests() {
            if held.blames > BLAMES_MAX {
                self.out.replies.push(Reply { tag, status: IoStatus::Io, extents: 0 });
            } else {
                waiting.again.push_back(Event::Request { tag, attach: held.attach, op: held.op });
            }
        }
        let admins = self.out.admin.len();
        waiting.answered(&self.out, replies, admins);
        waiting.restarts_in_row = row;
        waiting.again.push_back(Event::Tick);
        self.state = State::Serving(revived.machine);
        self.recovered(task, RecoveryLevel::Engine, since, said);
    }

    /// Out of service: everybody who waits gets an error, and so does whoever comes.
    fn die(&mut self, task: TaskKind, since: Instant, said: String) {
        self.state = State::Dead;
        let kind = AlarmKind::Poisoned { errno: libc::EIO };
        self.out.alarms.push(Alarm { kind, offset: 0, expected_crc32c: 0, found_crc32c: 0, generation: 0 });
        self.out.wake_at = None;
        self.waiting.answered(&self.out, 0, 0);
        let (replies, admins) = (self.out.replies.len(), self.out.admin.len());
        self.waiting.again.clear();
        for (tag, _) in self.waiting.requests() {
            self.out.replies.push(Reply { tag, status: IoStatus::Io, extents: 0 });
        }
        self.out.admin.extend(self.waiting.admins.iter().map(|tag| (*tag, Err(AdminError::Poisoned))));
        self.waiting.answered(&self.out, replies, admins);
        self.recovered(task, RecoveryLevel::Pool, since, said);
    }

    /// What a pool out of service answers.
    fn refuse(&mut self, event: Event) {
        match event {
            Event::Request { tag, .. } => self.out.replies.push(Reply { tag, status: IoStatus::Io, extents: 0 }),
            Event::Admin { tag, op: AdminOp::Detach { .. } | AdminOp::Shutdown } => {
                self.out.admin.push((tag, Ok(AdminReply::Done)));
            }
            Event::Admin { tag, .. } => self.out.admin.push((tag, Err(AdminError::Poisoned))),
            // Whoever has no use for extents has none.
            Event::Lend { extents } => self.out.returned.extend(extents),
            Event::IoDone { .. } | Event::Tick | Event::Shrink => {}
        }
    }

    fn recovered(&mut self, task: TaskKind, level: RecoveryLevel, since: Instant, said: String) {
        let took_ns = since.elapsed().as_nanos() as u64;
        self.recoveries.push(Recovery { task, level, took_ns, said });
    }
}
