//! What each answer, and each missing answer, means for the race.
//!
//! Owns: the transitions that answers cause. Never: issues a command; `advance` does.
//! Invariant: an answer to a command that no longer matters changes nothing.

use super::{Answer, Ask, Doing, Failure, Mark, OpId, Out, Race, Seating, View};
use crate::note::{Seat, Slot, Stage};
use segue_types::api::{CollapseOutcome, SuperPhase};
use segue_types::{LeaseId, Nanos, SuperId};

impl Race {
    pub(super) fn done(&mut self, now: Nanos, op: OpId, answer: Answer, out: &mut Out) {
        if let Some((_, note)) = self.note_saving.take_if(|(saving, _)| *saving == op) {
            self.note_durable = Some(note);
            return;
        }
        if self.clearing.is_some_and(|(_, ask)| ask.is(op)) {
            self.clearing = None;
            out.marks.push(Mark::LoserStopped);
            return;
        }
        match (&self.doing, answer) {
            (&Doing::Looking { resume, ask }, Answer::Looked(view)) if ask.is(op) => {
                if resume {
                    self.resumed(now, view, out);
                } else {
                    self.after_unknown_super(now, view, out);
                }
            }
            (&Doing::Supering { op: asked }, Answer::Supered { super_id, leases }) if asked == op => {
                self.supered(now, super_id, leases, out);
            }
            (Doing::Recovering { .. }, answer) => self.recovering_done(now, op, answer, out),
            (Doing::Collapsing { ask, .. }, Answer::Collapsed(outcome)) if ask.is(op) => {
                self.collapsed(now, outcome, out)
            }
            (&Doing::Dropping { super_id, stopped, ask }, answer) if ask.is(op) => {
                if !stopped {
                    let cpu_ms = if let Answer::Stopped { cpu_ms } = answer { cpu_ms } else { 0 };
                    self.note.costs.wasted_cpu_ms += cpu_ms;
                    self.doing = Doing::Dropping { super_id, stopped: true, ask: Ask::At(now) };
                } else {
                    self.dropped(now, out);
                }
            }
            (Doing::Seating(_), answer) => self.seating_done(now, op, answer, out),
            _ => {}
        }
    }

    pub(super) fn failed(&mut self, now: Nanos, op: OpId, failure: Failure, out: &mut Out) {
        let again = Ask::At(now + self.config.retry_ns);
        if self.note_saving.take_if(|(saving, _)| *saving == op).is_some() {
            self.note_durable = None;
            self.note_retry_at = now + self.config.retry_ns;
            return;
        }
        if let Some((_, ask)) = self.clearing.as_mut().filter(|(_, ask)| ask.is(op)) {
            *ask = again;
            return;
        }
        match &mut self.doing {
            Doing::Looking { ask, .. } if ask.is(op) => *ask = again,
            Doing::Supering { op: asked } if *asked == op => {
                self.doing = Doing::Looking { resume: false, ask: Ask::At(now) };
            }
            &mut Doing::Recovering { super_id, start, .. } if start == op => {
                out.marks.push(Mark::BackupFailed);
                self.drop_child(now, super_id, out);
            }
            Doing::Recovering { look, .. } if look.is(op) => *look = again,
            Doing::Collapsing { super_id, ask, .. } if ask.is(op) => match failure {
                // Promoted or not, nobody knows: the same question again gets the same answer.
                Failure::Unknown => *ask = again,
                Failure::Refused => {
                    let super_id = *super_id;
                    self.drop_child(now, super_id, out);
                }
            },
            Doing::Dropping { stopped, ask, .. } if ask.is(op) => {
                // An abort that is refused has nothing left to abort.
                if *stopped && failure == Failure::Refused { self.dropped(now, out) } else { *ask = again }
            }
            Doing::Seating(_) => self.seating_failed(now, op, failure),
            _ => {}
        }
    }

    fn supered(&mut self, now: Nanos, super_id: SuperId, child: Vec<LeaseId>, out: &mut Out) {
        let seat = self.seat.clone().expect("only a seat is raced against");
        self.set_stage(Stage::Racing { seat: seat.clone(), super_id, child: child.clone() });
        if self.suspected.is_none() {
            self.drop_child(now, super_id, out);
            return;
        }
        self.recover(now, super_id, child, out);
        out.marks.push(Mark::BackupStarted);
    }

    fn recovering_done(&mut self, now: Nanos, op: OpId, answer: Answer, out: &mut Out) {
        let Doing::Recovering { super_id, child, start, look, .. } = &mut self.doing else { return };
        let super_id = *super_id;
        if *start == op {
            let child = std::mem::take(child);
            out.marks.push(Mark::RecoveryDone);
            self.doing = Doing::Collapsing { super_id, child, ask: Ask::At(now), asked: false };
        } else if let Answer::Looked(view) = answer
            && look.is(op)
        {
            *look = Ask::At(now + self.config.look_ns);
            if view.phase != SuperPhase::Racing || view.super_id != Some(super_id) {
                out.marks.push(Mark::PrimaryObserved);
                self.drop_child(now, super_id, out);
            }
        }
    }

    fn collapsed(&mut self, now: Nanos, outcome: CollapseOutcome, out: &mut Out) {
        let Doing::Collapsing { super_id, child, .. } = &mut self.doing else { return };
        let (super_id, leases) = (*super_id, std::mem::take(child));
        if outcome == CollapseOutcome::PrimaryObserved {
            out.marks.push(Mark::PrimaryObserved);
            self.drop_child(now, super_id, out);
            return;
        }
        out.marks.push(Mark::Promoted);
        let loser = self.seat.as_ref().expect("a race has a seat").slot;
        let seat = Seat { slot: loser.other(), leases };
        self.set_stage(Stage::Serving(seat.clone()));
        self.note.costs.promotions += 1;
        self.seat = Some(seat);
        self.point_at_seat(out);
        self.clear_slot(now, loser);
        self.watch(now, out);
    }

    fn dropped(&mut self, now: Nanos, out: &mut Out) {
        out.marks.push(Mark::Dropped);
        let seat = self.seat.clone().expect("a race has a seat");
        self.set_stage(Stage::Serving(seat));
        self.note.costs.drops += 1;
        self.next_try_at = now + self.backoff_ns;
        self.backoff_ns = (self.backoff_ns * 2).min(self.config.backoff_ns_max);
        self.watch(now, out);
    }

    fn after_unknown_super(&mut self, now: Nanos, view: View, out: &mut Out) {
        match view.super_id {
            // Ours, with leases we never learnt, or a rehearsal's: either stands in the way.
            Some(super_id) => self.drop_child(now, super_id, out),
            None => {
                self.next_try_at = now + self.config.retry_ns;
                self.watch(now, out);
            }
        }
    }

    /// Goes on from the note, knowing how things are now.
    fn resumed(&mut self, now: Nanos, view: View, out: &mut Out) {
        match self.note.stage.clone() {
            Stage::New => {
                self.doing = Doing::Seating(Seating::Acquire { slot: Slot::A, fenced: false, ask: Ask::At(now) });
            }
            Stage::Fencing { slot } => {
                self.doing = Doing::Seating(Seating::Fence { slot, ask: Ask::At(now) });
            }
            Stage::Serving(seat) => self.resumed_serving(now, seat, view, out),
            Stage::Racing { seat, super_id, child } => self.resumed_racing(now, seat, super_id, child, view, out),
        }
    }

    fn resumed_serving(&mut self, now: Nanos, seat: Seat, view: View, out: &mut Out) {
        let slot = seat.slot;
        // An older instance, from before a fence, may be left in the slot: its leases tell.
        let runs = view.running[slot.index()] == seat.leases;
        self.seat = Some(seat);
        if !runs {
            // Nobody knows what else of it may still write: fence before another starts.
            self.fence_at(now, slot.other());
            return;
        }
        self.point_at_seat(out);
        match view.super_id {
            Some(super_id) => self.drop_child(now, super_id, out),
            None => {
                self.clear_slot(now, slot.other());
                self.watch(now, out);
            }
        }
    }

    fn resumed_racing(
        &mut self,
        now: Nanos,
        seat: Seat,
        super_id: SuperId,
        child: Vec<LeaseId>,
        view: View,
        out: &mut Out,
    ) {
        let backup = seat.slot.other();
        self.seat = Some(seat);
        match view.super_id {
            // Decided already: by a collapse whose answer was lost, or by an abort. Asking again is safe now.
            None => self.doing = Doing::Collapsing { super_id, child, ask: Ask::At(now), asked: true },
            Some(id) if id != super_id => {
                self.point_at_seat(out);
                self.drop_child(now, id, out);
            }
            Some(_) => {
                self.point_at_seat(out);
                if view.phase == SuperPhase::Racing && view.running[backup.index()] == child {
                    // It was suspected when the race began; one good answer of the seat ends that.
                    self.suspected = Some(now);
                    self.recover(now, super_id, child, out);
                } else {
                    self.drop_child(now, super_id, out);
                }
            }
        }
    }

    fn seating_done(&mut self, now: Nanos, op: OpId, answer: Answer, out: &mut Out) {
        let Doing::Seating(step) = &mut self.doing else { return };
        match (step, answer) {
            (Seating::Fence { slot, ask }, _) if ask.is(op) => {
                let slot = *slot;
                self.doing = Doing::Seating(Seating::Acquire { slot, fenced: true, ask: Ask::At(now) });
                self.fenced(now, slot, out);
            }
            (Seating::Acquire { slot, ask, .. }, Answer::Acquired(leases)) if ask.is(op) => {
                let seat = Seat { slot: *slot, leases };
                self.set_stage(Stage::Serving(seat.clone()));
                self.seat = Some(seat);
                self.doing = Doing::Seating(Seating::Start { ask: Ask::At(now), ready: false });
            }
            (Seating::Start { ask, ready }, _) if ask.is(op) => {
                *ready = true;
                out.marks.push(Mark::RecoveryDone);
            }
            _ => {}
        }
    }

    fn fenced(&mut self, now: Nanos, slot: Slot, out: &mut Out) {
        out.marks.push(Mark::Fenced);
        self.note.costs.fences += 1;
        self.seat = None;
        if self.pointed.take().is_some() {
            out.commands.push(super::Command::Point { to: None });
            out.marks.push(Mark::EndpointHeld);
        }
        self.clear_slot(now, slot.other());
    }

    fn seating_failed(&mut self, now: Nanos, op: OpId, failure: Failure) {
        let again = Ask::At(now + self.config.retry_ns);
        let Doing::Seating(step) = &mut self.doing else { return };
        match step {
            Seating::Fence { ask, .. } if ask.is(op) => *ask = again,
            Seating::Acquire { slot, fenced, ask } if ask.is(op) => {
                // After a fence only a lease of our own, whose answer was lost, can be in the way.
                if *fenced && failure == Failure::Refused {
                    let slot = *slot;
                    self.fence_at(now + self.config.retry_ns, slot);
                } else {
                    *ask = again;
                }
            }
            Seating::Start { ask, ready: false } if ask.is(op) => {
                let slot = self.seat.as_ref().expect("a start has a seat").slot;
                self.fence_at(now + self.config.retry_ns, slot);
            }
            _ => {}
        }
    }
}
