//! Counts allocations of the choosy machines while writes flow: there must be none.
//!
//! Owns: a straight-line exchange between one initiator and its targets. Never: counts the making of the machines.
//! Invariant: every kind of message of a write without faults passes in the counted section, refusals included.

#[path = "../../types/testing/calls.rs"]
mod calls;

use calls::calls;
use segue_cluster::choosy::{
    Initiator, InitiatorCommand, InitiatorEvent, Links, Policy, Target, TargetCommand, TargetEvent, WriteId,
};

const LINKS: Links = Links::surge();
const CANDIDATES: [u32; 6] = [0, 1, 2, 3, 4, 5];

struct Pair {
    initiator: Initiator,
    targets: Vec<Target>,
    commands: Vec<InitiatorCommand>,
    answers: Vec<TargetCommand>,
    work: Vec<InitiatorCommand>,
    now: u64,
    wake_ns: u64,
    done: u64,
    bookings: u64,
    refusals: u64,
}

impl Pair {
    fn give(&mut self, event: InitiatorEvent<'_>) {
        self.initiator.step(self.now, event, &mut self.commands);
    }

    /// Carries messages until only timers are left, then lets the first of them come.
    fn carry(&mut self) {
        while !self.commands.is_empty() || self.initiator.writes() > 0 {
            if self.commands.is_empty() {
                self.now = self.now.max(std::mem::replace(&mut self.wake_ns, u64::MAX));
                self.give(InitiatorEvent::Tick);
            }
            std::mem::swap(&mut self.commands, &mut self.work);
            for n in 0..self.work.len() {
                self.now += 1;
                let (to, event) = match self.work[n] {
                    InitiatorCommand::Ask { to, round, bytes, from_ns } => {
                        (to, TargetEvent::Ask { from: 9, round, bytes, from_ns })
                    }
                    InitiatorCommand::Book { to, round, attempt, bytes, start_ns } => {
                        self.be_faster(to, bytes, start_ns);
                        (to, TargetEvent::Book { from: 9, round, attempt, bytes, start_ns })
                    }
                    InitiatorCommand::Transfer { id, to, round, bytes, .. } => {
                        self.store(id, to, round, bytes);
                        continue;
                    }
                    InitiatorCommand::Wake { at_ns } => {
                        self.wake_ns = self.wake_ns.min(at_ns);
                        continue;
                    }
                    InitiatorCommand::Done { .. } => {
                        self.done += 1;
                        continue;
                    }
                    other => panic!("{other:?}"),
                };
                self.targets[to as usize].step(self.now, event, &mut self.answers);
                self.answered(to);
            }
            self.work.clear();
        }
    }

    /// Now and then somebody else books the window first, and gives it back later.
    fn be_faster(&mut self, to: u32, bytes: u64, start_ns: u64) {
        self.bookings += 1;
        let target = &mut self.targets[to as usize];
        if self.bookings.is_multiple_of(7) {
            target.step(
                self.now,
                TargetEvent::Book { from: 8, round: 0, attempt: 1, bytes, start_ns },
                &mut self.answers,
            );
        } else {
            target.step(self.now, TargetEvent::Release { from: 8, round: 0 }, &mut self.answers);
        }
        self.answers.clear();
    }

    fn answered(&mut self, from: u32) {
        let answer = self.answers.pop().expect("every message to a target is answered");
        match answer {
            TargetCommand::Offer { round, offer, .. } => self.give(InitiatorEvent::Offer { from, round, offer }),
            TargetCommand::Booked { round, attempt, .. } => {
                self.give(InitiatorEvent::Booked { from, round, attempt });
            }
            TargetCommand::Refused { round, attempt, offer, .. } => {
                self.refusals += 1;
                self.give(InitiatorEvent::Refused { from, round, attempt, offer });
            }
        }
    }

    fn store(&mut self, id: WriteId, to: u32, round: u32, bytes: u64) {
        let target = &mut self.targets[to as usize];
        target.step(self.now, TargetEvent::Received { from: 9, round, bytes }, &mut self.answers);
        target.step(self.now, TargetEvent::Stored { bytes }, &mut self.answers);
        self.give(InitiatorEvent::Acknowledged { id, from: to });
    }
}

#[test]
fn noalloc_writes_flow_without_allocating() {
    let policy = Policy::default();
    let target = |_| Target::new(policy, LINKS, 1 << 30);
    let mut pair = Pair {
        initiator: Initiator::new(policy, LINKS),
        targets: (0..6).map(target).collect(),
        commands: Vec::with_capacity(256),
        answers: Vec::with_capacity(256),
        work: Vec::with_capacity(256),
        now: 0,
        wake_ns: u64::MAX,
        done: 0,
        bookings: 0,
        refusals: 0,
    };
    let before = calls();
    for n in 0..200u64 {
        pair.give(InitiatorEvent::Write { id: WriteId(n), bytes: 1 << 17, candidates: &CANDIDATES, salt: n });
        pair.carry();
    }
    assert_eq!(calls() - before, 0);
    assert!(pair.refusals > 50, "{} refusals", pair.refusals);
    assert_eq!((pair.done, pair.initiator.writes()), (200, 0));
}

#[test]
fn canary_an_allocation_is_counted() {
    let before = calls();
    drop(std::hint::black_box(Vec::<u8>::with_capacity(9)));
    assert!(calls() > before);
}
