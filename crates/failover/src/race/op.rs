//! What goes into the race and what comes out.
//!
//! Owns: the event, command and answer types and the configuration. Never: holds behaviour.
//! Invariant: every command with an `op` gets exactly one `Done` or `Failed`, unless the monitor itself ends.

use crate::limit::Rate;
use crate::note::{Note, Slot};
use segue_types::api::{CollapseOutcome, SuperPhase};
use segue_types::{LeaseId, Nanos, SuperId};

/// The machine's mark on a command; comes back with its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

/// How to fail over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Race a backup on a child against the primary's return.
    Speculative,
    /// Wait `timeout_ns` since the primary last was well, fence it, recover.
    Reds { timeout_ns: u64 },
    /// Do what one is told, at once: for comparison in drills.
    Oracle,
}

/// Settings of the race. Times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How to fail over.
    pub mode: Mode,
    /// Speculative: fence first once the primary has been suspected for this long.
    pub deadline_ns: u64,
    /// Wait after a dropped child before the next `super`; doubles with each within one suspicion.
    pub backoff_ns_min: u64,
    /// It doubles up to this.
    pub backoff_ns_max: u64,
    /// A backup that is not ready after this is dropped.
    pub recovery_ns_max: u64,
    /// While a backup recovers, look this often whether the primary was observed.
    pub look_ns: u64,
    /// Wait before a command is tried again that failed.
    pub retry_ns: u64,
    /// How many backups may be started.
    pub rate: Rate,
    /// The end of the seat's processes means that it will not come back by itself: after one lost race, fence at once.
    pub exit_is_certain: bool,
}

/// What an oracle knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Recovery on a backup will end sooner than the primary's return.
    FailOver,
    /// The primary will be back sooner.
    Wait,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Nothing, or the time of [`Out::wake_at`] came.
    Tick,
    /// The seat is suspected; it last was well at `since`.
    Suspect { since: Nanos },
    /// The seat answers as it should.
    Trust,
    /// The seat's processes have certainly ended.
    Gone,
    /// The oracle spoke (mode [`Mode::Oracle`] only).
    Told(Order),
    /// A command was carried out.
    Done { op: OpId, answer: Answer },
    /// A command was not carried out, or nobody knows.
    Failed { op: OpId, failure: Failure },
}

/// Answers to commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To `SaveNote`, `Abort`, `Fence`, and to `Start` once the instance is ready.
    Nothing,
    /// To `Super`: its id and the children's leases.
    Supered { super_id: SuperId, leases: Vec<LeaseId> },
    /// To `Collapse`.
    Collapsed(CollapseOutcome),
    /// To `Acquire`.
    Acquired(Vec<LeaseId>),
    /// To `Stop`: nothing of the slot is left. CPU time its processes had used, as far as known.
    Stopped { cpu_ms: u64 },
    /// To `Look`.
    Looked(View),
}

/// How things are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Phase of the volumes' superposition.
    pub phase: SuperPhase,
    /// Its id, if there is one.
    pub super_id: Option<SuperId>,
    /// The leases that the instance in slot A and in slot B was started with; empty where no process of one lives.
    pub running: [Vec<LeaseId>; 2],
}

/// How a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It was not carried out, and the state of things does not allow it.
    Refused,
    /// It may or may not have been carried out (no answer, a lost node).
    Unknown,
}

/// Something to do. All but `Point` run in the background and end with one event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Write the note into the first volume's record, durably.
    SaveNote { op: OpId, note: Note },
    /// Look at the volumes and the slots.
    Look { op: OpId },
    /// Start a superposition of all volumes.
    Super { op: OpId },
    /// Ask who won; promotes and fences if nobody was observed.
    Collapse { op: OpId, super_id: SuperId },
    /// End a superposition in favour of the primary. Done also when it had ended.
    Abort { op: OpId, super_id: SuperId },
    /// Break every lease of every volume, durably. Done also when there was none.
    Fence { op: OpId },
    /// Get a durable lease of every volume. Refused while a stranger has one; a lease that was granted to this
    /// application before, and whose answer was lost, is broken first.
    Acquire { op: OpId },
    /// Attach, mount and start an instance in the slot, after removing what was left there; done when it is ready.
    /// If an instance with these leases already runs there, wait for its readiness alone. `backup`: it races.
    Start { op: OpId, slot: Slot, leases: Vec<LeaseId>, backup: bool },
    /// Stop what runs or is being started in the slot, unmount, detach. An unanswered `Start` there fails.
    Stop { op: OpId, slot: Slot },
    /// Cut every client connection to anything but the slot, and send clients there; `None`: hold them.
    Point { to: Option<Slot> },
}

/// Steps worth a line in the timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The primary is suspected.
    Suspected,
    /// It answers again.
    Trusted,
    /// No token: speculation must wait.
    RateLimited,
    /// `super` was asked.
    SuperAsked,
    /// `super` was answered; the backup is started.
    BackupStarted,
    /// The backup serves queries on its private port.
    RecoveryDone,
    /// `collapse` was asked.
    CollapseAsked,
    /// The child won.
    Promoted,
    /// The primary won.
    PrimaryObserved,
    /// The backup failed or took too long.
    BackupFailed,
    /// The child is being dropped.
    Dropping,
    /// The child is gone.
    Dropped,
    /// The primary is being fenced.
    FenceAsked,
    /// It is fenced.
    Fenced,
    /// The endpoint points at the seat.
    EndpointMoved,
    /// The endpoint holds new clients and has cut the old.
    EndpointHeld,
    /// What was left of the loser is gone.
    LoserStopped,
}

impl Mark {
    /// The name in timelines and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Mark::Suspected => "suspected",
            Mark::Trusted => "trusted",
            Mark::RateLimited => "rate_limited",
            Mark::SuperAsked => "super",
            Mark::BackupStarted => "backup_started",
            Mark::RecoveryDone => "recovery_done",
            Mark::CollapseAsked => "collapse",
            Mark::Promoted => "promoted",
            Mark::PrimaryObserved => "primary_observed",
            Mark::BackupFailed => "backup_failed",
            Mark::Dropping => "backup_dropping",
            Mark::Dropped => "backup_dropped",
            Mark::FenceAsked => "fence",
            Mark::Fenced => "fenced",
            Mark::EndpointMoved => "endpoint_moved",
            Mark::EndpointHeld => "endpoint_held",
            Mark::LoserStopped => "primary_stopped",
        }
    }
}

/// Where the machine puts what is to be done. The driver empties it before each step.
#[derive(Default, Debug)]
pub struct Out {
    /// Commands, in order.
    pub commands: Vec<Command>,
    /// Lines for the timeline.
    pub marks: Vec<Mark>,
    /// The machine wants a [`Event::Tick`] at this time at the latest.
    pub wake_at: Option<Nanos>,
}

impl Out {
    /// Makes it ready for the next step.
    pub fn clear(&mut self) {
        self.commands.clear();
        self.marks.clear();
        self.wake_at = None;
    }
}
