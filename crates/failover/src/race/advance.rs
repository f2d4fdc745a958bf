//! Which command is due: everything that follows from the state and the time, not from an answer.
//!
//! Owns: issuing commands and the time of the next tick. Never: interprets an answer.
//! Invariant: `Super`, `Collapse` and `Fence` are issued only while the note in the volume's record is the present one.

use super::{Ask, Command, Doing, Mark, Mode, OpId, Order, Out, Race, Seating};
use crate::note::{Slot, Stage};
use segue_types::{LeaseId, Nanos, SuperId};

impl Race {
    /// Issues what is due. Every command issued leaves an `Ask::Out` behind, so this ends.
    pub(super) fn advance(&mut self, now: Nanos, out: &mut Out) {
        self.decide(now, out);
        self.save_note(now, out);
        self.clear(now, out);
        match self.doing.clone() {
            Doing::Looking { resume, ask: Ask::At(at) } if at <= now => {
                let op = self.new_op();
                out.commands.push(Command::Look { op });
                self.doing = Doing::Looking { resume, ask: Ask::Out(op) };
            }
            Doing::Recovering { super_id, until, look: Ask::At(at), .. } => {
                if until <= now {
                    out.marks.push(Mark::BackupFailed);
                    self.drop_child(now, super_id, out);
                    return self.advance(now, out);
                }
                if at <= now {
                    let op = self.new_op();
                    out.commands.push(Command::Look { op });
                    if let Doing::Recovering { look, .. } = &mut self.doing {
                        *look = Ask::Out(op);
                    }
                }
            }
            Doing::Collapsing { super_id, child, ask: Ask::At(at), .. } if at <= now && self.note_in_sync() => {
                let op = self.new_op();
                out.commands.push(Command::Collapse { op, super_id });
                out.marks.push(Mark::CollapseAsked);
                self.doing = Doing::Collapsing { super_id, child, ask: Ask::Out(op), asked: true };
            }
            Doing::Dropping { super_id, stopped, ask: Ask::At(at) } if at <= now => {
                let op = self.new_op();
                out.commands.push(if stopped {
                    Command::Abort { op, super_id }
                } else {
                    let slot = self.seat.as_ref().expect("a race has a seat").slot.other();
                    Command::Stop { op, slot }
                });
                self.doing = Doing::Dropping { super_id, stopped, ask: Ask::Out(op) };
            }
            Doing::Seating(step) => self.advance_seating(now, step, out),
            _ => {}
        }
        out.wake_at = self.wake_at(now);
    }

    /// What a serving seat calls for.
    fn decide(&mut self, now: Nanos, out: &mut Out) {
        let Some(seat) = self.seat.as_ref().filter(|_| self.doing == Doing::Watching) else { return };
        let other = seat.slot.other();
        // Both slots would be in use: whatever comes next must wait for the loser of the last race.
        if self.clearing.is_some() {
            return;
        }
        if self.fence_is_due(now) {
            self.fence_at(now, other);
            return;
        }
        let speculates = self.config.mode == Mode::Speculative && self.suspected.is_some();
        if !speculates || now < self.next_try_at || !self.note_in_sync() {
            return;
        }
        if !self.bucket.take(now) {
            out.marks.push(Mark::RateLimited);
            self.limited = true;
            let wait_until = self.bucket.next_at(now).unwrap_or(Nanos::MAX);
            self.next_try_at = wait_until.max(now + self.config.retry_ns);
            if self.fence_is_due(now) {
                self.fence_at(now, other);
            }
            return;
        }
        let op = self.new_op();
        self.tries += 1;
        out.commands.push(Command::Super { op });
        out.marks.push(Mark::SuperAsked);
        self.doing = Doing::Supering { op };
    }

    fn fence_is_due(&self, now: Nanos) -> bool {
        match self.config.mode {
            Mode::Oracle => self.told == Some(Order::FailOver),
            Mode::Reds { timeout_ns } => self.suspected.is_some_and(|since| now >= since.saturating_add(timeout_ns)),
            Mode::Speculative => self.suspected.is_some_and(|since| {
                let hopeless = self.gone && self.config.exit_is_certain && (self.tries > 0 || self.limited);
                hopeless || now >= since.saturating_add(self.config.deadline_ns)
            }),
        }
    }

    /// Begins to fence everyone at this time, so that an instance in `slot` may serve.
    pub(super) fn fence_at(&mut self, at: Nanos, slot: Slot) {
        self.set_stage(Stage::Fencing { slot });
        self.doing = Doing::Seating(Seating::Fence { slot, ask: Ask::At(at) });
    }

    fn advance_seating(&mut self, now: Nanos, step: Seating, out: &mut Out) {
        let next = match step {
            Seating::Fence { slot, ask: Ask::At(at) } if at <= now && self.note_in_sync() => {
                let op = self.new_op();
                out.commands.push(Command::Fence { op });
                out.marks.push(Mark::FenceAsked);
                Seating::Fence { slot, ask: Ask::Out(op) }
            }
            Seating::Acquire { slot, fenced, ask: Ask::At(at) } if at <= now => {
                let op = self.new_op();
                out.commands.push(Command::Acquire { op });
                Seating::Acquire { slot, fenced, ask: Ask::Out(op) }
            }
            Seating::Start { ask: Ask::At(at), ready } if at <= now => {
                let op = self.new_op();
                let seat = self.seat.clone().expect("a start has a seat");
                out.commands.push(Command::Start { op, slot: seat.slot, leases: seat.leases, backup: false });
                Seating::Start { ask: Ask::Out(op), ready }
            }
            Seating::Start { ready: true, .. } if self.note_in_sync() => {
                self.point_at_seat(out);
                self.watch(now, out);
                return;
            }
            same => same,
        };
        self.doing = Doing::Seating(next);
    }

    /// The seat serves, or is believed to.
    pub(super) fn watch(&mut self, now: Nanos, out: &mut Out) {
        self.doing = Doing::Watching;
        self.point_at_seat(out);
        self.next_try_at = self.next_try_at.max(now);
        if self.suspected.is_none() {
            self.backoff_ns = self.config.backoff_ns_min;
        }
    }

    pub(super) fn recover(&mut self, now: Nanos, super_id: SuperId, child: Vec<LeaseId>, out: &mut Out) {
        let slot = self.seat.as_ref().expect("a race has a seat").slot.other();
        let start: OpId = self.new_op();
        self.note.costs.backups_started += 1;
        out.commands.push(Command::Start { op: start, slot, leases: child.clone(), backup: true });
        let until = now.saturating_add(self.config.recovery_ns_max);
        let look = Ask::At(now + self.config.look_ns);
        self.doing = Doing::Recovering { super_id, child, start, until, look };
    }

    pub(super) fn clear_slot(&mut self, now: Nanos, slot: Slot) {
        self.clearing = Some((slot, Ask::At(now)));
    }

    fn clear(&mut self, now: Nanos, out: &mut Out) {
        if let Some((slot, Ask::At(at))) = self.clearing
            && at <= now
        {
            let op = self.new_op();
            out.commands.push(Command::Stop { op, slot });
            self.clearing = Some((slot, Ask::Out(op)));
        }
    }

    fn save_note(&mut self, now: Nanos, out: &mut Out) {
        if self.note_saving.is_some() || self.note_in_sync() || now < self.note_retry_at {
            return;
        }
        let op = self.new_op();
        out.commands.push(Command::SaveNote { op, note: self.note.clone() });
        self.note_saving = Some((op, self.note.clone()));
    }

    /// The earliest time at which something falls due by itself.
    fn wake_at(&self, now: Nanos) -> Option<Nanos> {
        let mut times = Vec::with_capacity(8);
        let ask_time = |ask: &Ask| if let Ask::At(at) = ask { Some(*at) } else { None };
        if self.note_saving.is_none() && !self.note_in_sync() {
            times.push(self.note_retry_at);
        }
        times.extend(self.clearing.as_ref().and_then(|(_, ask)| ask_time(ask)));
        match &self.doing {
            Doing::Looking { ask, .. } | Doing::Dropping { ask, .. } | Doing::Collapsing { ask, .. } => {
                times.extend(ask_time(ask));
            }
            Doing::Recovering { until, look, .. } => {
                times.push(*until);
                times.extend(ask_time(look));
            }
            Doing::Seating(Seating::Fence { ask, .. } | Seating::Acquire { ask, .. } | Seating::Start { ask, .. }) => {
                times.extend(ask_time(ask));
            }
            Doing::Watching => times.extend(self.next_decisions_at().into_iter().flatten()),
            Doing::Supering { .. } => {}
        }
        // What is already due waits for an answer (of a note or a stop), not for time.
        times.into_iter().filter(|&at| at > now).min()
    }

    /// When a suspected seat may call for a fence, and for a speculation.
    fn next_decisions_at(&self) -> [Option<Nanos>; 2] {
        let Some(since) = self.suspected else { return [None; 2] };
        match self.config.mode {
            Mode::Oracle => [None; 2],
            Mode::Reds { timeout_ns } => [Some(since.saturating_add(timeout_ns)), None],
            Mode::Speculative => [Some(since.saturating_add(self.config.deadline_ns)), Some(self.next_try_at)],
        }
    }
}
