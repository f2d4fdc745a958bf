//! The order of a move: one volume from one pool to another, as a machine.
//!
//! Owns: what the two pools are asked next, the rate, and what a restart finds. Never: touches a pool by itself.
//! Invariant: the destination is asked to commit only after the source said it is sealed and all of its last round was written.
//!
//! Two engines, one driver: the driver carries each [`Ask`] to the pool it names and gives the answer back. At most
//! one ask is out at each pool, so an answer needs no number. Source: Decibel (NSDI 2017, section 4.4), rounds instead
//! of mirrored writes; what a crash leaves is told in docs/migration.md.

use crate::op::{
    AdminError, AdminReply, CHUNK_BLOCKS, Chunk, END_BLOCK, MoveOp, MoveReply, MoveStage, MoveState, Passport,
};
use segue_types::{BLOCK_BYTES, MoveId, Nanos};
use std::collections::VecDeque;

/// A round of at most so many blocks is small enough to be the last one, under quiesce: 4 MiB.
const LAST_BLOCKS: u64 = 1024;
/// After so many rounds the next is the last, however large.
const ROUNDS_MAX: u32 = 12;
/// So often clients that cannot be held back at once are given another round.
const HOLDS_MAX: u32 = 5;

/// Something the driver must carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Ask the pool that has the volume.
    Source(MoveOp),
    /// Ask the pool that gets it.
    Dest(MoveOp),
    /// Hold the volume's clients back and finish what is in flight; then [`Event::Held`].
    Hold,
    /// Let them go on: with `moved` at the destination; then [`Event::Released`].
    Release {
        /// The destination is the volume now.
        moved: bool,
    },
}

/// What the driver tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Begin, or go on after the time of [`Out::wake_at`].
    Tick,
    /// The source's answer.
    Source(Result<AdminReply, AdminError>),
    /// The destination's answer.
    Dest(Result<AdminReply, AdminError>),
    /// No request of a client is in flight, and none comes (`true`); or that could not be had in time (`false`).
    Held(bool),
    /// The clients go on.
    Released,
    /// Bytes per second from now on; 0: no limit.
    Rate(u64),
    /// Give the move up.
    Cancel,
}

/// How a move ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The destination is the volume.
    Moved,
    /// It was given up, as asked; the source is the volume.
    Cancelled,
    /// It was given up for this reason; the source is the volume.
    Failed(AdminError),
    /// A pool did not answer as it must (its drive failed): the records stand as they are, and the move goes on when
    /// both pools are opened again.
    Stopped(AdminError),
    /// The source is sealed and the destination knows nothing of the move: a person must say which drive is right.
    InDoubt,
}

/// Where the machine puts what follows.
#[derive(Default)]
pub struct Out {
    /// To be carried out in order.
    pub asks: Vec<Ask>,
    /// Give a [`Event::Tick`] at this time.
    pub wake_at: Option<Nanos>,
    /// It is over.
    pub ended: Option<Ending>,
}

/// What the move is doing, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The two pools agree.
    Preparing,
    /// A round is copied while clients go on.
    Copying,
    /// Clients wait, the rest is copied.
    HandingOver,
    /// The destination is the volume; the source tidies up.
    Settling,
    /// Being given up.
    GivingUp,
    /// Over.
    Over,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// The round being copied, from 0.
    pub round: u32,
    /// Blocks of this round that are copied, since this process began with it.
    pub round_blocks_done: u64,
    /// Blocks of this round at most.
    pub round_blocks: u64,
    /// Bytes copied in all, since this process began.
    pub copied_bytes: u64,
    /// Cap, bytes per second; 0: none.
    pub rate_bytes_per_s: u64,
}

/// Which volume goes where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Drawn at random, once for each move.
    pub id: MoveId,
    /// The volume.
    pub name: String,
    /// Identities of the pools.
    pub source: [u8; 16],
    /// Of the destination.
    pub dest: [u8; 16],
    /// Bytes per second at most; 0: no limit.
    pub rate_bytes_per_s: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Start,
    Measure,
    Expect,
    Begin,
    Copy,
    Freeze,
    Hold,
    Seal,
    Commit,
    Release,
    Finish,
    Settle,
    Unseal,
    AbortSource,
    AbortDest,
    AbortRelease,
    Over,
}

/// The machine.
pub struct Mover {
    plan: Plan,
    step: Step,
    round: u32,
    /// Next block to read.
    cursor: u64,
    reading: bool,
    writing: bool,
    /// Read and not yet written.
    ready: VecDeque<Chunk>,
    /// The whole round has been read.
    read_all: bool,
    /// When the rate allows the next read.
    next_read_at: Nanos,
    passport: Option<Passport>,
    held: bool,
    holds: u32,
    last_round_blocks: u64,
    cancel: Option<Ending>,
    progress: Progress,
}

impl Mover {
    /// A move that begins.
    pub fn new(plan: Plan) -> Mover {
        let progress = Progress {
            phase: Phase::Preparing,
            round: 0,
            round_blocks_done: 0,
            round_blocks: 0,
            copied_bytes: 0,
            rate_bytes_per_s: plan.rate_bytes_per_s,
        };
        Mover {
            plan,
            step: Step::Start,
            round: 0,
            cursor: 0,
            reading: false,
            writing: false,
            ready: VecDeque::with_capacity(2),
            read_all: false,
            next_read_at: 0,
            passport: None,
            held: false,
            holds: 0,
            last_round_blocks: u64::MAX,
            cancel: None,
            progress,
        }
    }

    /// A move that a restart found in the records of the two pools. Begins with settling what is in doubt.
    ///
    /// # Errors
    /// The ending, when there is nothing to go on with and nothing to ask.
    pub fn resume(plan: Plan, source: Option<&MoveState>, dest: Option<&MoveState>) -> Result<Mover, Ending> {
        use MoveStage::{Arrived, Incoming, Leaving, Sealed};
        let mut mover = Mover::new(plan);
        mover.step = match (source.map(|s| s.stage), dest.map(|d| d.stage)) {
            (Some(Leaving { blocks }), Some(Incoming { cursor_block })) => {
                mover.progress.round_blocks = blocks;
                mover.enter(source.map_or(0, |s| s.round), dest.map_or(0, |d| d.round), cursor_block);
                Step::Copy
            }
            // Sealed, and surely not committed: the destination says so itself.
            (Some(Sealed), Some(Incoming { cursor_block })) => {
                mover.enter(source.map_or(0, |s| s.round), dest.map_or(0, |d| d.round), cursor_block);
                Step::Unseal
            }
            (Some(Sealed), Some(Arrived)) => Step::Finish,
            (None, Some(Arrived)) => Step::Settle,
            (Some(Leaving { .. }), None) => {
                mover.cancel = Some(Ending::Failed(AdminError::NotFound));
                Step::AbortSource
            }
            (None, Some(Incoming { .. })) => {
                mover.cancel = Some(Ending::Cancelled);
                Step::AbortDest
            }
            (None, None) => return Err(Ending::Cancelled),
            (Some(Sealed | Leaving { .. }), _) | (Some(Incoming { .. } | Arrived), _) | (None, Some(_)) => {
                return Err(Ending::InDoubt);
            }
        };
        Ok(mover)
    }

    fn enter(&mut self, source_round: u32, dest_round: u32, dest_cursor: u64) {
        self.round = source_round;
        self.cursor = if source_round == dest_round { dest_cursor } else { 0 };
        self.read_all = self.cursor == END_BLOCK;
    }

    /// True from a restart until it is certain which pool has the volume.
    pub fn in_doubt(&self) -> bool {
        matches!(self.step, Step::Unseal | Step::Finish)
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let phase = match self.step {
            Step::Start | Step::Measure | Step::Expect | Step::Begin | Step::Unseal => Phase::Preparing,
            Step::Copy | Step::Freeze if !self.held => Phase::Copying,
            Step::Copy | Step::Freeze | Step::Hold | Step::Seal | Step::Commit | Step::Release => Phase::HandingOver,
            Step::Finish | Step::Settle => Phase::Settling,
            Step::AbortSource | Step::AbortDest | Step::AbortRelease => Phase::GivingUp,
            Step::Over => Phase::Over,
        };
        Progress { phase, round: self.round, rate_bytes_per_s: self.plan.rate_bytes_per_s, ..self.progress }
    }

    /// Takes one event; what follows is appended to `out`.
    pub fn step(&mut self, now: Nanos, event: Event, out: &mut Out) {
        out.wake_at = None;
        if self.step == Step::Over {
            return;
        }
        match event {
            Event::Tick if self.step == Step::Start => {
                self.step = Step::Measure;
                out.asks.push(Ask::Source(MoveOp::Measure { name: self.plan.name.clone() }));
            }
            Event::Tick => self.resume_step(out),
            Event::Rate(bytes) => {
                self.plan.rate_bytes_per_s = bytes;
                self.next_read_at = self.next_read_at.min(now);
            }
            Event::Cancel => {
                if !matches!(self.step, Step::Commit | Step::Release | Step::Finish | Step::Settle | Step::Over) {
                    self.cancel.get_or_insert(Ending::Cancelled);
                }
            }
            Event::Source(answer) => self.source_said(now, answer, out),
            Event::Dest(answer) => self.dest_said(answer, out),
            Event::Held(held) => self.held(held, out),
            Event::Released => self.released(out),
        }
        self.pump(now, out);
    }

    /// After a restart: asks what the step wants.
    fn resume_step(&mut self, out: &mut Out) {
        let id = self.plan.id;
        if self.reading || self.writing {
            return;
        }
        match self.step {
            Step::Unseal => self.ask_source(MoveOp::Unseal { id }, out),
            Step::Finish => self.ask_source(MoveOp::Finish { id }, out),
            Step::Settle => self.ask_dest(MoveOp::Settle { id }, out),
            Step::AbortSource => self.ask_source(MoveOp::Abort { id }, out),
            Step::AbortDest => self.ask_dest(MoveOp::Abort { id }, out),
            _ => {}
        }
    }

    fn ask_source(&mut self, op: MoveOp, out: &mut Out) {
        self.reading = true;
        out.asks.push(Ask::Source(op));
    }

    fn ask_dest(&mut self, op: MoveOp, out: &mut Out) {
        self.writing = true;
        out.asks.push(Ask::Dest(op));
    }

    fn over(&mut self, ending: Ending, out: &mut Out) {
        self.step = Step::Over;
        self.ready.clear();
        out.ended = Some(ending);
    }

    /// Copies on; decides what comes after a round; gives up when asked and nothing is out.
    fn pump(&mut self, now: Nanos, out: &mut Out) {
        if self.step != Step::Copy {
            return;
        }
        if self.cancel.is_some() {
            if !self.reading && !self.writing {
                self.give_up(out);
            }
            return;
        }
        if !self.reading && !self.read_all && self.ready.len() < 2 {
            if self.held || self.plan.rate_bytes_per_s == 0 || now >= self.next_read_at {
                let (id, round, from_block) = (self.plan.id, self.round, self.cursor);
                self.ask_source(MoveOp::Read { id, round, from_block }, out);
            } else {
                out.wake_at = Some(self.next_read_at);
            }
        }
        if !self.writing
            && let Some(chunk) = self.ready.pop_front()
        {
            let (id, round) = (self.plan.id, self.round);
            // The source goes on only when all of a round is durable here, and so does the commit: its own record
            // may be found after a crash without the data that was written together with it.
            let durable = chunk.next_block == END_BLOCK;
            self.ask_dest(MoveOp::Write { id, round, chunk, durable }, out);
        }
        if self.read_all && self.ready.is_empty() && !self.reading && !self.writing {
            self.round_done(out);
        }
    }

    fn round_done(&mut self, out: &mut Out) {
        let id = self.plan.id;
        if self.held {
            return self.ask_commit(out);
        }
        let blocks = self.progress.round_blocks;
        let shrinks = blocks < self.last_round_blocks / 2;
        let small = blocks <= LAST_BLOCKS && self.round > 0;
        self.last_round_blocks = blocks;
        if small || (self.round > 2 && !shrinks) || self.round + 1 >= ROUNDS_MAX {
            self.step = Step::Hold;
            out.asks.push(Ask::Hold);
        } else {
            self.step = Step::Freeze;
            let round = self.round + 1;
            self.ask_source(MoveOp::Freeze { id, round }, out);
        }
    }

    fn ask_commit(&mut self, out: &mut Out) {
        self.step = Step::Commit;
        let (id, round) = (self.plan.id, self.round);
        let passport = self.passport.take().expect("a sealed source gave one");
        self.ask_dest(MoveOp::Commit { id, round, passport }, out);
    }

    fn begin_round(&mut self, round: u32, blocks: u64) {
        self.step = Step::Copy;
        (self.round, self.cursor, self.read_all) = (round, 0, false);
        (self.progress.round_blocks, self.progress.round_blocks_done) = (blocks, 0);
    }

    fn source_said(&mut self, now: Nanos, answer: Result<AdminReply, AdminError>, out: &mut Out) {
        self.reading = false;
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => return self.source_refused(error, out),
        };
        let id = self.plan.id;
        match (self.step, reply) {
            (Step::Measure, AdminReply::Move(MoveReply::Measured { size_bytes, blocks, .. })) => {
                self.step = Step::Expect;
                let (name, peer) = (self.plan.name.clone(), self.plan.source);
                self.ask_dest(MoveOp::Expect { id, name, peer, size_bytes, blocks }, out);
            }
            (Step::Begin, AdminReply::Move(MoveReply::Frozen { blocks })) => self.begin_round(0, blocks),
            (Step::Freeze, AdminReply::Move(MoveReply::Frozen { blocks })) => self.begin_round(self.round + 1, blocks),
            (Step::Seal, AdminReply::Move(MoveReply::Sealed { blocks, passport })) => {
                self.passport = Some(passport);
                self.begin_round(self.round + 1, blocks);
            }
            (Step::Copy, AdminReply::Move(MoveReply::Chunk(chunk))) => self.read(now, chunk),
            (Step::Unseal, AdminReply::Done) => self.step = Step::Copy,
            (Step::Finish, AdminReply::Done) => {
                self.step = Step::Settle;
                self.ask_dest(MoveOp::Settle { id }, out);
            }
            (Step::AbortSource, AdminReply::Done) => {
                self.step = Step::AbortDest;
                self.ask_dest(MoveOp::Abort { id }, out);
            }
            (step, reply) => unreachable!("the source answered {reply:?} in step {step:?}"),
        }
    }

    fn read(&mut self, now: Nanos, chunk: Chunk) {
        self.cursor = chunk.next_block;
        self.read_all = chunk.next_block == END_BLOCK;
        let bytes = chunk.pieces.len() as u64 * BLOCK_BYTES;
        self.progress.round_blocks_done += chunk.pieces.len() as u64;
        self.progress.copied_bytes += bytes;
        let rate = u128::from(self.plan.rate_bytes_per_s);
        let takes_ns = |bytes: u64| (u128::from(bytes) * 1_000_000_000).checked_div(rate).unwrap_or(0) as Nanos;
        // An idle while is not saved up: at most one chunk's worth of it.
        let from = self.next_read_at.max(now.saturating_sub(takes_ns(CHUNK_BLOCKS as u64 * BLOCK_BYTES)));
        self.next_read_at = from + takes_ns(bytes);
        self.ready.push_back(chunk);
    }

    fn source_refused(&mut self, error: AdminError, out: &mut Out) {
        match (self.step, error) {
            // Nothing was recorded anywhere yet.
            (Step::Measure, error) => self.over(Ending::Failed(error), out),
            (_, AdminError::Poisoned) => self.stop(AdminError::Poisoned, out),
            (Step::Begin, error) => {
                self.cancel.get_or_insert(Ending::Failed(error));
                self.step = Step::AbortDest;
                let id = self.plan.id;
                self.ask_dest(MoveOp::Abort { id }, out);
            }
            (Step::Copy, error) => {
                // Gives up when the destination has answered too.
                self.cancel.get_or_insert(Ending::Failed(error));
            }
            (Step::Freeze | Step::Seal, error) => {
                self.cancel.get_or_insert(Ending::Failed(error));
                self.give_up(out);
            }
            (_, error) => self.stop(error, out),
        }
    }

    fn dest_said(&mut self, answer: Result<AdminReply, AdminError>, out: &mut Out) {
        self.writing = false;
        if let Err(error) = answer {
            return self.dest_refused(error, out);
        }
        let id = self.plan.id;
        match self.step {
            Step::Expect if self.cancel.is_some() => {
                self.step = Step::AbortDest;
                self.ask_dest(MoveOp::Abort { id }, out);
            }
            Step::Expect => {
                self.step = Step::Begin;
                let (name, peer) = (self.plan.name.clone(), self.plan.dest);
                self.ask_source(MoveOp::Begin { id, name, peer }, out);
            }
            Step::Copy => {}
            Step::Commit => {
                self.step = Step::Release;
                out.asks.push(Ask::Release { moved: true });
            }
            Step::Settle => self.over(Ending::Moved, out),
            Step::AbortDest if self.held => {
                self.step = Step::AbortRelease;
                out.asks.push(Ask::Release { moved: false });
            }
            Step::AbortDest => self.aborted(out),
            step => unreachable!("the destination answered in step {step:?}"),
        }
    }

    fn dest_refused(&mut self, error: AdminError, out: &mut Out) {
        match (self.step, error) {
            (Step::Expect, error) => self.over(Ending::Failed(error), out),
            (_, AdminError::Poisoned) => self.stop(AdminError::Poisoned, out),
            (Step::Copy, error) => {
                self.cancel.get_or_insert(Ending::Failed(error));
            }
            // A refusal is not a commit: nothing of it was recorded.
            (Step::Commit, error) => {
                self.cancel.get_or_insert(Ending::Failed(error));
                self.give_up(out);
            }
            (_, error) => self.stop(error, out),
        }
    }

    /// The source first: from its record on it is the volume for certain.
    fn give_up(&mut self, out: &mut Out) {
        self.ready.clear();
        self.step = Step::AbortSource;
        let id = self.plan.id;
        self.ask_source(MoveOp::Abort { id }, out);
    }

    fn aborted(&mut self, out: &mut Out) {
        let ending = self.cancel.take().unwrap_or(Ending::Cancelled);
        self.over(ending, out);
    }

    /// A pool is out of order: nothing more can be decided before it is opened again.
    fn stop(&mut self, error: AdminError, out: &mut Out) {
        if self.held {
            self.held = false;
            out.asks.push(Ask::Release { moved: false });
        }
        self.over(Ending::Stopped(error), out);
    }

    fn held(&mut self, held: bool, out: &mut Out) {
        if self.step != Step::Hold {
            return;
        }
        let id = self.plan.id;
        if !held {
            self.holds += 1;
            if self.holds >= HOLDS_MAX {
                self.cancel.get_or_insert(Ending::Failed(AdminError::Conflict(
                    "its clients cannot be held back: one of them leaves a request unfinished",
                )));
                return self.give_up(out);
            }
            self.step = Step::Freeze;
            let round = self.round + 1;
            return self.ask_source(MoveOp::Freeze { id, round }, out);
        }
        self.held = true;
        if self.cancel.is_some() {
            return self.give_up(out);
        }
        self.step = Step::Seal;
        let round = self.round + 1;
        self.ask_source(MoveOp::Seal { id, round }, out);
    }

    fn released(&mut self, out: &mut Out) {
        self.held = false;
        let id = self.plan.id;
        match self.step {
            Step::Release => {
                self.step = Step::Finish;
                self.ask_source(MoveOp::Finish { id }, out);
            }
            Step::AbortRelease => self.aborted(out),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers for a source of endless full chunks.
    fn answer(ask: Ask) -> Event {
        let done = AdminReply::Done;
        match ask {
            Ask::Source(MoveOp::Measure { .. }) => Event::Source(Ok(AdminReply::Move(MoveReply::Measured {
                pool: [1; 16],
                size_bytes: 1 << 40,
                blocks: 1 << 28,
            }))),
            Ask::Source(MoveOp::Begin { .. }) => {
                Event::Source(Ok(AdminReply::Move(MoveReply::Frozen { blocks: 1 << 28 })))
            }
            Ask::Source(MoveOp::Read { from_block, .. }) => {
                let piece = |i| crate::op::Piece { block: from_block + i, generation: 1, crc32c: 1 };
                let pieces: Vec<_> = (0..CHUNK_BLOCKS as u64).map(piece).collect();
                let next_block = from_block + CHUNK_BLOCKS as u64;
                let chunk = Chunk { pieces, holes: Vec::new(), data: Default::default(), next_block };
                Event::Source(Ok(AdminReply::Move(MoveReply::Chunk(chunk))))
            }
            Ask::Dest(_) => Event::Dest(Ok(done)),
            other => panic!("not in this test: {other:?}"),
        }
    }

    #[test]
    fn model_the_rate_is_kept_and_may_change() {
        let rate = 10 << 20;
        let plan = Plan { id: MoveId(1), name: "a".into(), source: [1; 16], dest: [2; 16], rate_bytes_per_s: rate };
        let mut mover = Mover::new(plan);
        let (mut now, mut events) = (0, VecDeque::from([Event::Tick]));
        let mut copied_at_change = 0;
        while now < 20_000_000_000 {
            let mut out = Out::default();
            match events.pop_front() {
                Some(event) => mover.step(now, event, &mut out),
                None => mover.step(now, Event::Tick, &mut out),
            }
            events.extend(out.asks.into_iter().map(answer));
            let copied = mover.progress().copied_bytes;
            if copied_at_change == 0 && now >= 10_000_000_000 {
                assert!(copied.abs_diff(10 * rate) < rate, "{copied} bytes in ten seconds");
                copied_at_change = copied;
                mover.step(now, Event::Rate(2 * rate), &mut Out::default());
            }
            now = match out.wake_at.filter(|_| events.is_empty()) {
                Some(at) => at,
                None => now + 1_000,
            };
        }
        let later = mover.progress().copied_bytes - copied_at_change;
        assert!(later.abs_diff(20 * rate) < rate, "{later} bytes in the ten seconds after the change");
    }

    #[test]
    fn a_restart_settles_every_pair_of_records_one_way() {
        let state = |stage| MoveState { id: MoveId(1), name: "a".into(), peer: [0; 16], round: 3, stage };
        let plan = Plan { id: MoveId(1), name: "a".into(), source: [1; 16], dest: [2; 16], rate_bytes_per_s: 0 };
        let leaving = MoveStage::Leaving { blocks: 1 };
        let incoming = MoveStage::Incoming { cursor_block: 5 };
        let first_ask = |source: Option<MoveStage>, dest: Option<MoveStage>| {
            let (source, dest) = (source.map(state), dest.map(state));
            let mut mover = Mover::resume(plan.clone(), source.as_ref(), dest.as_ref())?;
            let mut out = Out::default();
            mover.step(0, Event::Tick, &mut out);
            Ok(out.asks.remove(0))
        };
        let id = MoveId(1);
        let read = Ask::Source(MoveOp::Read { id, round: 3, from_block: 5 });
        assert_eq!(first_ask(Some(leaving), Some(incoming)), Ok(read));
        assert_eq!(first_ask(Some(MoveStage::Sealed), Some(incoming)), Ok(Ask::Source(MoveOp::Unseal { id })));
        let arrived = Some(MoveStage::Arrived);
        assert_eq!(first_ask(Some(MoveStage::Sealed), arrived), Ok(Ask::Source(MoveOp::Finish { id })));
        assert_eq!(first_ask(None, arrived), Ok(Ask::Dest(MoveOp::Settle { id })));
        assert_eq!(first_ask(Some(leaving), None), Ok(Ask::Source(MoveOp::Abort { id })));
        assert_eq!(first_ask(None, Some(incoming)), Ok(Ask::Dest(MoveOp::Abort { id })));
        assert_eq!(first_ask(Some(MoveStage::Sealed), None), Err(Ending::InDoubt));
        assert_eq!(first_ask(Some(leaving), arrived), Err(Ending::InDoubt));
    }
}
