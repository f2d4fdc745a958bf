//! The side that writes.
//!
//! Owns: the writes under way, the own link's calendar, one round at a time. Never: the data; the driver sends it.
//! Invariant: windows of the own link never overlap; a write is done or failed exactly once; nothing is waited for without a bound.

use super::messages::{NodeId, Offer, WriteId};
use super::policy::{BYTES_MAX, CANDIDATES_MAX, FAR_NS, Policy};
use super::round::{Pick, Round, Want, mix};
use super::writes::{Write, Writes};
use crate::reserve::Links;
use segue_types::Nanos;

/// What happens to an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitiatorEvent<'a> {
    /// Store this.
    Write {
        /// Its name.
        id: WriteId,
        /// Its size.
        bytes: u64,
        /// Where its copies may be, each once.
        candidates: &'a [NodeId],
        /// A number that differs from write to write and from initiator to initiator: it decides who is asked.
        salt: u64,
    },
    /// A target answered an ask.
    Offer {
        /// Who.
        from: NodeId,
        /// In which round.
        round: u32,
        /// Its offer; nothing when it has no room.
        offer: Option<Offer>,
    },
    /// A booking stands.
    Booked {
        /// Whose.
        from: NodeId,
        /// Of which round.
        round: u32,
        /// Which booking of the round.
        attempt: u32,
    },
    /// A booking does not stand.
    Refused {
        /// Whose.
        from: NodeId,
        /// Of which round.
        round: u32,
        /// Which booking of the round.
        attempt: u32,
        /// What could be had instead.
        offer: Option<Offer>,
    },
    /// A copy is stored.
    Acknowledged {
        /// Of which write.
        id: WriteId,
        /// Where.
        from: NodeId,
    },
    /// A transfer failed, or its target says that it cannot store it.
    Lost {
        /// Of which write.
        id: WriteId,
        /// Where it should have been.
        from: NodeId,
    },
    /// A time that was asked for has come.
    Tick,
}

/// What an initiator wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitiatorCommand {
    /// Ask a target; those of one step may go as one multicast.
    Ask {
        /// Whom.
        to: NodeId,
        /// The round.
        round: u32,
        /// How much would be sent.
        bytes: u64,
        /// Not before, nanoseconds.
        from_ns: Nanos,
    },
    /// Book a window.
    Book {
        /// Where.
        to: NodeId,
        /// The round.
        round: u32,
        /// Which booking of the round, from 1 on: its answer names it.
        attempt: u32,
        /// How much will be sent.
        bytes: u64,
        /// From when, nanoseconds.
        start_ns: Nanos,
    },
    /// Give a booking or a held offer back.
    Release {
        /// To whom.
        to: NodeId,
        /// The round.
        round: u32,
    },
    /// Send the data of a write.
    Transfer {
        /// Of which write.
        id: WriteId,
        /// To whom.
        to: NodeId,
        /// The round of its booking.
        round: u32,
        /// From when, nanoseconds.
        start_ns: Nanos,
        /// How much.
        bytes: u64,
    },
    /// A write has its quorum of copies. The others follow while there are candidates for them; nothing is said of it any more.
    Done {
        /// Which.
        id: WriteId,
    },
    /// A write cannot be done; its copies, if any, are of no use.
    Failed {
        /// Which.
        id: WriteId,
        /// Why.
        error: WriteError,
    },
    /// Step with [`InitiatorEvent::Tick`] at this time. It replaces a request for a later time, which may still be answered.
    /// A tick before that time does nothing and asks for no other: timers must not be early.
    Wake {
        /// When, nanoseconds.
        at_ns: Nanos,
    },
}

/// Why a write cannot be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteError {
    /// Too many writes are under way: give it again when one is done.
    #[error("as many writes are under way as the policy allows")]
    Busy,
    /// Too few, too many, or repeated candidates: the caller's mistake.
    #[error("a write needs at least as many different candidates as copies, and at most {CANDIDATES_MAX}")]
    Candidates,
    /// A copy is larger than [`BYTES_MAX`]: the caller's mistake.
    #[error("a copy has at most {BYTES_MAX} bytes")]
    Size,
    /// Too few candidates are left that have not failed: give it again with others.
    #[error("too few of the candidates are left that have not failed")]
    TooFewLeft,
    /// No candidate took a copy, round after round: the network, or all of them, are gone or full. Give it again later.
    #[error("no candidate took a copy in {FRUITLESS_MAX} rounds")]
    NoAnswer,
}

/// Targets that did not answer, and are not asked for a while.
const QUIET_MAX: usize = 16;
/// How many times the patience they are not asked.
const QUIET_TIMES: Nanos = 200;

/// Rounds in a row that placed nothing after which a write fails; each is twice as patient as the one before.
const FRUITLESS_MAX: u32 = 12;

/// One initiator.
pub struct Initiator {
    policy: Policy,
    links: Links,
    writes: Writes,
    round: Round,
    /// Until when the own link is booked, nanoseconds.
    booked_until_ns: Nanos,
    /// A decayed mean of what rounds lost against the own link, nanoseconds (weight 1/8).
    usual_late_ns: Nanos,
    /// How long the answer to a booking takes, nanoseconds.
    answer_ns: Nanos,
    quiet: [(NodeId, Nanos); QUIET_MAX],
    wake_ns: Nanos,
    /// Rounds in which all candidates were asked because the best offer was late.
    pub asked_again: u64,
    /// Rounds.
    pub rounds: u64,
}

impl Initiator {
    /// An initiator with an idle link.
    ///
    /// # Panics
    /// When the policy cannot be used ([`Policy::check`]).
    pub fn new(policy: Policy, links: Links) -> Initiator {
        assert!(policy.check(), "an initiator needs a usable policy");
        Initiator {
            policy,
            links,
            writes: Writes::new(usize::from(policy.writes_max)),
            round: Round::idle(),
            booked_until_ns: 0,
            usual_late_ns: 0,
            answer_ns: 2 * links.message_ns(),
            quiet: [(0, 0); QUIET_MAX],
            wake_ns: Nanos::MAX,
            asked_again: 0,
            rounds: 0,
        }
    }

    /// Writes under way, those included that are done but for copies over the quorum.
    pub fn writes(&self) -> usize {
        self.writes.len()
    }

    /// Steps the machine. Commands are appended to `out`.
    pub fn step(&mut self, now: Nanos, event: InitiatorEvent<'_>, out: &mut Vec<InitiatorCommand>) {
        match event {
            InitiatorEvent::Write { id, bytes, candidates, salt } => {
                let write = if bytes > BYTES_MAX { Err(WriteError::Size) } else { Ok(()) };
                let write =
                    write.and_then(|()| Write::new(id, bytes, candidates, salt, usize::from(self.policy.copies)));
                match write.and_then(|write| self.writes.add(write)) {
                    Ok(()) => {}
                    Err(error) => out.push(InitiatorCommand::Failed { id, error }),
                }
            }
            InitiatorEvent::Offer { from, round, offer } => self.offered(now, from, round, offer, out),
            InitiatorEvent::Booked { from, round, attempt } => self.booked(now, from, round, attempt, out),
            InitiatorEvent::Refused { from, round, attempt, offer } => {
                if let Some(pick) = self.answered(now, from, round, attempt) {
                    self.round.offer_again(pick.target, believed(now, offer));
                    self.go_on(now, out);
                }
            }
            InitiatorEvent::Acknowledged { id, from } => {
                if self.writes.stored(id, from, usize::from(self.policy.quorum), usize::from(self.policy.copies)) {
                    out.push(InitiatorCommand::Done { id });
                }
            }
            InitiatorEvent::Lost { id, from } => self.lost(id, from, out),
            InitiatorEvent::Tick => self.tick(now, out),
        }
        self.advance(now, out);
    }

    /// When the own link is free, nanoseconds.
    fn link_free_ns(&self) -> Nanos {
        self.booked_until_ns.max(self.round.picked_until_ns())
    }

    /// Begins the next round when it is time for it.
    fn advance(&mut self, now: Nanos, out: &mut Vec<InitiatorCommand>) {
        while !self.round.active {
            let copies = usize::from(self.policy.copies);
            let Some(slot) = self.writes.next_open(now, copies) else {
                return if let Some(retry_ns) = self.writes.first_retry_ns(copies) {
                    self.wake(retry_ns, out)
                };
            };
            // Two round trips, and the answers that come one after the other.
            let asked_ns = Nanos::from(self.policy.asked) * self.links.control_ns;
            let ahead_ns = 2 * self.links.message_ns() + self.answer_ns + asked_ns + self.policy.ahead_ns;
            let begin_ns = self.booked_until_ns.saturating_sub(ahead_ns);
            if begin_ns > now {
                return self.wake(begin_ns, out);
            }
            self.begin(now, slot, out);
        }
    }

    fn begin(&mut self, now: Nanos, slot: usize, out: &mut Vec<InitiatorCommand>) {
        let write = self.writes.get(slot);
        let open = usize::from(self.policy.copies) - write.placed();
        let too_few = write.usable(|_| true).count() < open;
        if too_few || write.fruitless >= FRUITLESS_MAX {
            let error = if too_few { WriteError::TooFewLeft } else { WriteError::NoAnswer };
            return self.fail(slot, error, out);
        }
        self.rounds += 1;
        self.round.begin(slot, if self.policy.together { open } else { 1 });
        self.ask(now, usize::from(self.policy.asked), out);
    }

    /// Ends a write that cannot have all its copies; one that was called done already is none to fail.
    fn fail(&mut self, slot: usize, error: WriteError, out: &mut Vec<InitiatorCommand>) {
        let (id, told) = (self.writes.get(slot).id, self.writes.get(slot).told);
        if !told {
            out.push(InitiatorCommand::Failed { id, error });
        }
        self.writes.remove(slot);
    }

    /// Asks up to `most` candidates that were not asked in this round; those that were quiet lately only if the others do not suffice.
    fn ask(&mut self, now: Nanos, most: usize, out: &mut Vec<InitiatorCommand>) {
        let write = self.writes.get(self.round.slot);
        let mut drawn = [0 as NodeId; CANDIDATES_MAX];
        let (mut n, mut lively) = (0, 0);
        for quiet_too in [false, true] {
            let quiet = |t: NodeId| self.quiet.iter().any(|(node, until)| *node == t && *until > now);
            let asked = |t: NodeId| self.round.asked[..self.round.asked_n].iter().any(|a| a.target == t);
            for target in write.usable(|t| quiet(t) == quiet_too && !asked(t)) {
                drawn[n] = target;
                n += 1;
            }
            if !quiet_too {
                lively = n;
            }
            if n >= most.min(self.round.want + 1) {
                break;
            }
        }
        let n_asked = n.min(most).min(self.round.asked.len() - self.round.asked_n);
        let (bytes, round) = (write.bytes, self.round.id);
        let from_ns = self.link_free_ns().max(now + 4 * self.links.message_ns());
        let mut chance = write.salt ^ u64::from(round).rotate_left(32);
        for at in 0..n_asked {
            chance = mix(chance);
            let end = if at < lively { lively } else { n };
            drawn.swap(at, at + (chance % (end - at) as u64) as usize);
            self.round.ask(drawn[at]);
            out.push(InitiatorCommand::Ask { to: drawn[at], round, bytes, from_ns });
        }
        let answers_ns = 2 * self.links.message_ns() + n_asked as Nanos * self.links.control_ns;
        self.wait_until(now + answers_ns + self.patience_ns(), out);
    }

    /// How long over what it should take an answer is waited for in this round: longer after each that placed nothing.
    fn patience_ns(&self) -> Nanos {
        self.policy.patience_ns << self.writes.get(self.round.slot).fruitless
    }

    fn offered(&mut self, now: Nanos, from: NodeId, round: u32, offer: Option<Offer>, out: &mut Vec<InitiatorCommand>) {
        let current = self.round.active && round == self.round.id;
        if !(current && self.round.answer(from, believed(now, offer))) {
            // A repeated message must not give back what was booked with the first.
            let in_use = current && self.round.has(from) || self.writes.is_sent(from, round);
            if self.policy.hold && offer.is_some() && !in_use {
                out.push(InitiatorCommand::Release { to: from, round });
            }
        } else if self.round.waiting == 0 {
            self.go_on(now, out);
        }
    }

    /// Books what is still wanted from the offers there are; ends the round when nothing more can come of it.
    fn go_on(&mut self, now: Nanos, out: &mut Vec<InitiatorCommand>) {
        while self.round.placed + self.round.picks_n < self.round.want {
            let write = self.writes.get(self.round.slot);
            let (bytes, salt) = (write.bytes, write.salt ^ u64::from(self.round.id));
            let copies = usize::from(self.policy.copies) - write.placed() - self.round.picks_n;
            let window_ns = self.policy.window_ns(&self.links, bytes);
            let earliest_ns = self.link_free_ns().max(now + self.answer_ns);
            let want = Want { earliest_ns, window_ns, copies: copies as u64, salt };
            let Some(liked) = self.round.best(self.policy.choose, &want) else { break };
            if self.policy.again && !self.round.asked_again && self.is_unusual(liked.late_ns) {
                self.round.asked_again = true;
                self.ask(now, CANDIDATES_MAX, out);
                if self.round.waiting > 0 {
                    self.asked_again += 1;
                    return;
                }
            }
            self.usual_late_ns = (self.usual_late_ns * 7 + liked.late_ns) / 8;
            let asked = &mut self.round.asked[liked.at];
            asked.offer = None;
            let (to, start_ns, round) = (asked.target, liked.start_ns, self.round.id);
            let (end_ns, done_ns) = (start_ns + window_ns, liked.done_ns);
            self.round.attempts += 1;
            let attempt = self.round.attempts;
            self.round.pick(Pick { target: to, attempt, start_ns, end_ns, done_ns, booked_ns: now });
            out.push(InitiatorCommand::Book { to, round, attempt, bytes, start_ns });
            self.wait_until(now + 2 * self.links.message_ns() + self.patience_ns(), out);
        }
        if self.policy.hold {
            self.release_offers(out);
        }
        self.round.active = self.round.picks_n > 0;
        if !self.round.active {
            // Where nobody has room, asking again at once would not make any.
            let retry_ns = if self.round.offered { now } else { self.round.deadline_ns };
            self.writes.end_round(self.round.slot, self.round.placed > 0, retry_ns);
        }
    }

    fn is_unusual(&self, late_ns: Nanos) -> bool {
        late_ns > 2 * self.usual_late_ns + 2 * self.links.message_ns()
    }

    fn release_offers(&mut self, out: &mut Vec<InitiatorCommand>) {
        let round = self.round.id;
        for asked in &mut self.round.asked[..self.round.asked_n] {
            if asked.offer.take().is_some() {
                out.push(InitiatorCommand::Release { to: asked.target, round });
            }
        }
    }

    /// The booking that an answer is to; an answer to an earlier one of the same target and round is none.
    fn answered(&mut self, now: Nanos, from: NodeId, round: u32, attempt: u32) -> Option<Pick> {
        if !self.round.active || round != self.round.id {
            return None;
        }
        let pick = self.round.answered(from, attempt)?;
        self.learn_answer(now - pick.booked_ns);
        Some(pick)
    }

    fn booked(&mut self, now: Nanos, from: NodeId, round: u32, attempt: u32, out: &mut Vec<InitiatorCommand>) {
        let Some(pick) = self.answered(now, from, round, attempt) else { return };
        if now > pick.start_ns + self.policy.guard_ns {
            // Too late to fit: the window would run over its end.
            out.push(InitiatorCommand::Release { to: from, round });
            return self.go_on(now, out);
        }
        self.booked_until_ns = self.booked_until_ns.max(pick.end_ns);
        self.round.placed += 1;
        let due_ns = pick.done_ns + self.policy.overdue_ns;
        let (id, bytes) = self.writes.place(self.round.slot, from, round, due_ns);
        let start_ns = pick.start_ns.max(now);
        out.push(InitiatorCommand::Transfer { id, to: from, round, start_ns, bytes });
        self.wake(due_ns, out);
        if self.round.picks_n == 0 {
            self.go_on(now, out);
        }
    }

    /// A booking must be answered before its window begins: follows the slowest answers at once, and forgets them slowly.
    fn learn_answer(&mut self, took_ns: Nanos) {
        self.answer_ns = took_ns.max((self.answer_ns * 31 + took_ns) / 32);
    }

    fn lost(&mut self, id: WriteId, from: NodeId, out: &mut Vec<InitiatorCommand>) {
        if let Some(slot) = self.writes.unplace(id, from) {
            let write = self.writes.get(slot);
            let open = usize::from(self.policy.copies) - write.placed();
            let in_round = self.round.active && self.round.slot == slot;
            if !in_round && write.usable(|_| true).count() < open {
                self.fail(slot, WriteError::TooFewLeft, out);
            }
        }
    }

    fn tick(&mut self, now: Nanos, out: &mut Vec<InitiatorCommand>) {
        if now < self.wake_ns {
            // An older request for a later time: an earlier one has replaced it.
            return;
        }
        self.wake_ns = Nanos::MAX;
        if self.round.active && now >= self.round.deadline_ns {
            self.give_up_waiting(now, out);
        }
        while let Some((id, from)) = self.writes.overdue(now) {
            self.lost(id, from, out);
        }
        if self.round.active {
            self.wake(self.round.deadline_ns, out);
        }
        if let Some(due_ns) = self.writes.first_due_ns() {
            self.wake(due_ns, out);
        }
    }

    fn give_up_waiting(&mut self, now: Nanos, out: &mut Vec<InitiatorCommand>) {
        let round = self.round.id;
        for at in 0..self.round.asked_n {
            if !self.round.asked[at].answered {
                self.round.asked[at].answered = true;
                self.be_quiet(now, self.round.asked[at].target);
            }
        }
        self.round.waiting = 0;
        while self.round.picks_n > 0 {
            let target = self.round.picks[0].target;
            self.round.unpick(target);
            self.be_quiet(now, target);
            out.push(InitiatorCommand::Release { to: target, round });
        }
        self.go_on(now, out);
    }

    /// Remembers a target that did not answer, in place of the one remembered longest.
    fn be_quiet(&mut self, now: Nanos, target: NodeId) {
        let at = self.quiet.iter().position(|(node, _)| *node == target);
        let oldest = || (0..QUIET_MAX).min_by_key(|n| self.quiet[*n].1).expect("there are some");
        let at = at.unwrap_or_else(oldest);
        self.quiet[at] = (target, now + QUIET_TIMES * self.policy.patience_ns);
    }

    fn wait_until(&mut self, deadline_ns: Nanos, out: &mut Vec<InitiatorCommand>) {
        self.round.deadline_ns = deadline_ns;
        self.wake(deadline_ns, out);
    }

    fn wake(&mut self, at_ns: Nanos, out: &mut Vec<InitiatorCommand>) {
        if at_ns < self.wake_ns {
            self.wake_ns = at_ns;
            out.push(InitiatorCommand::Wake { at_ns });
        }
    }
}

/// An offer unless it cannot be meant: what is not would run out of numbers.
fn believed(now: Nanos, offer: Option<Offer>) -> Option<Offer> {
    offer.filter(|o| o.start_ns <= o.done_ns && o.done_ns.saturating_sub(now) <= FAR_NS)
}
