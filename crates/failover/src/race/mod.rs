//! The race: from a primary that went quiet to exactly one instance that serves.
//!
//! Owns: the state of a failover and the order of its steps. Never: does a step by itself; drivers run the commands.
//! Invariant: the endpoint points only at the seat, and the seat changes only by "promoted" or after a durable fence.
//!
//! The life of a speculative failover: `Watching` -> (suspect) `Supering` -> `Recovering` -> (ready) `Collapsing` ->
//! (promoted) `Watching` with the child as the seat. Whatever goes wrong on the way, and a primary that was seen or
//! answers again, leads through `Dropping` back to `Watching` with the old seat. After the deadline, and in the modes
//! without speculation, `Seating` fences the seat and recovers from the fenced image.
//!
//! Three steps wait until the note that tells a successor about them is durable: `Super` (the last outcome), `Collapse`
//! (the child's leases) and `Fence` (that nobody has the right to serve). So a monitor that stops at any point can be
//! replaced by [`Race::resume`] with the note, and one look at the volumes, alone.

mod advance;
mod answers;
mod op;

pub use op::{Answer, Command, Config, Event, Failure, Mark, Mode, OpId, Order, Out, View};

use crate::limit::Bucket;
use crate::note::{Note, Seat, Slot, Stage};
use segue_types::{LeaseId, Nanos, SuperId};

/// A command that is out, or the time to issue it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    /// To be issued at this time.
    At(Nanos),
    /// Issued.
    Out(OpId),
}

impl Ask {
    fn is(self, op: OpId) -> bool {
        self == Ask::Out(op)
    }
}

/// What the machine is about.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Doing {
    /// Asking the node how things are, after a restart (`resume`) or a `super` with an unknown outcome.
    Looking { resume: bool, ask: Ask },
    /// Making an instance serve that has the right to serve alone.
    Seating(Seating),
    /// The seat serves.
    Watching,
    /// `super` was asked.
    Supering { op: OpId },
    /// The child recovers.
    Recovering { super_id: SuperId, child: Vec<LeaseId>, start: OpId, until: Nanos, look: Ask },
    /// The child is ready (or `resume`: perhaps it won before the restart): who won?
    Collapsing { super_id: SuperId, child: Vec<LeaseId>, ask: Ask, asked: bool },
    /// The child lost: stop its instance, then end the superposition.
    Dropping { super_id: SuperId, stopped: bool, ask: Ask },
}

/// Steps of taking the seat without a race.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Seating {
    /// Break every lease; waits for the note that says so.
    Fence { slot: Slot, ask: Ask },
    /// Get new leases. `fenced`: a fence made room for them.
    Acquire { slot: Slot, fenced: bool, ask: Ask },
    /// Attach, start, recover; `ready` then waits for the note.
    Start { ask: Ask, ready: bool },
}

/// The machine. One per application.
pub struct Race {
    config: Config,
    doing: Doing,
    seat: Option<Seat>,
    /// Where the endpoint points.
    pointed: Option<Slot>,
    /// Since when the seat is suspected.
    suspected: Option<Nanos>,
    /// The seat's processes have certainly ended.
    gone: bool,
    /// The oracle's order.
    told: Option<Order>,
    /// A slot whose leftovers are being removed.
    clearing: Option<(Slot, Ask)>,
    /// The note as it should be, as it is known to be, and as it is being written.
    note: Note,
    note_durable: Option<Note>,
    note_saving: Option<(OpId, Note)>,
    note_retry_at: Nanos,
    /// Speculations tried during this suspicion.
    tries: u32,
    /// A speculation of this suspicion found no token.
    limited: bool,
    backoff_ns: u64,
    next_try_at: Nanos,
    bucket: Bucket,
    last_op: u64,
}

impl Race {
    /// A machine that goes on from `note` (a default note: from nothing). It looks before it does anything else.
    pub fn resume(config: Config, note: Note, now: Nanos) -> Race {
        Race {
            doing: Doing::Looking { resume: true, ask: Ask::At(now) },
            seat: None,
            pointed: None,
            suspected: None,
            gone: false,
            told: None,
            clearing: None,
            note_durable: Some(note.clone()),
            note,
            note_saving: None,
            note_retry_at: now,
            tries: 0,
            limited: false,
            backoff_ns: config.backoff_ns_min,
            next_try_at: now,
            bucket: Bucket::new(config.rate, now),
            last_op: 0,
            config,
        }
    }

    /// Takes in one event and puts what is to be done into `out` (which the caller emptied).
    pub fn step(&mut self, now: Nanos, event: Event, out: &mut Out) {
        match event {
            Event::Tick => {}
            Event::Suspect { since } => self.suspect(since, out),
            Event::Trust => self.trust(now, out),
            Event::Gone => self.gone = true,
            Event::Told(order) => self.told = Some(order),
            Event::Done { op, answer } => self.done(now, op, answer, out),
            Event::Failed { op, failure } => self.failed(now, op, failure, out),
        }
        self.advance(now, out);
    }

    /// The instance that has the right to serve.
    pub fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    /// True while the seat serves and is not suspected, and nothing is left over from a failover.
    pub fn is_calm(&self) -> bool {
        self.doing == Doing::Watching && self.suspected.is_none() && self.clearing.is_none() && self.note_in_sync()
    }

    /// True while the seat is suspected.
    pub fn is_suspected(&self) -> bool {
        self.suspected.is_some()
    }

    /// A word for the status line.
    pub fn state(&self) -> &'static str {
        match &self.doing {
            Doing::Looking { .. } => "looking",
            Doing::Seating(Seating::Fence { .. }) => "fencing",
            Doing::Seating(_) => "starting",
            Doing::Watching if self.suspected.is_some() => "suspected",
            Doing::Watching => "serving",
            Doing::Supering { .. } => "super",
            Doing::Recovering { .. } => "recovering",
            Doing::Collapsing { .. } => "collapse",
            Doing::Dropping { .. } => "dropping",
        }
    }

    /// What is in, or on its way to, the volume's record.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// Backups started in the last 24 hours by this process.
    pub fn starts_last_day(&mut self, now: Nanos) -> u64 {
        self.bucket.starts_last_day(now)
    }

    fn suspect(&mut self, since: Nanos, out: &mut Out) {
        if self.suspected.is_none() && self.pointed.is_some() {
            self.suspected = Some(since);
            self.tries = 0;
            self.limited = false;
            out.marks.push(Mark::Suspected);
        }
    }

    fn trust(&mut self, now: Nanos, out: &mut Out) {
        if self.suspected.take().is_none() {
            return;
        }
        out.marks.push(Mark::Trusted);
        self.backoff_ns = self.config.backoff_ns_min;
        match self.doing {
            Doing::Recovering { super_id, .. } | Doing::Collapsing { super_id, asked: false, .. } => {
                self.drop_child(now, super_id, out);
            }
            _ => {}
        }
    }

    /// The child lost, or cannot be told from one that did.
    fn drop_child(&mut self, now: Nanos, super_id: SuperId, out: &mut Out) {
        out.marks.push(Mark::Dropping);
        self.doing = Doing::Dropping { super_id, stopped: false, ask: Ask::At(now) };
    }

    fn note_in_sync(&self) -> bool {
        self.note_saving.is_none() && self.note_durable.as_ref() == Some(&self.note)
    }

    fn set_stage(&mut self, stage: Stage) {
        self.note.stage = stage;
    }

    fn new_op(&mut self) -> OpId {
        self.last_op += 1;
        OpId(self.last_op)
    }

    /// Points the endpoint at the seat and forgets what was thought of the one before.
    fn point_at_seat(&mut self, out: &mut Out) {
        let slot = self.seat.as_ref().expect("only a seat is pointed at").slot;
        if self.pointed != Some(slot) {
            self.pointed = Some(slot);
            self.suspected = None;
            self.gone = false;
            self.told = None;
            out.commands.push(Command::Point { to: Some(slot) });
            out.marks.push(Mark::EndpointMoved);
        }
    }
}
