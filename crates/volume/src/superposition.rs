//! Who wins a superposition: `super`, the primary's mark, `collapse`, `abort` and the fence, as one small machine.
//!
//! Owns: the phase of a race and what must be durable before what is answered. Never: allocates, does I/O, or knows blocks.
//! Invariant: once a phase is durable its winner never changes, and nobody is told a winner that is not durable.
//!
//! A race belongs to a *group* of volumes: one [`Race`], however many volumes. The engine keeps one record per
//! decision in its journal, which becomes durable strictly in order, and drives the race in two strokes:
//!
//! 1. An input (`primary`, `collapse`, `abort`, `fence`) decides **in memory at once**. Its verdict names the
//!    answer and what the answer waits for. [`Race::pending`] names the record to be journaled.
//! 2. When that record is durable, [`Race::made_durable`] is called and whatever waited is answered.
//!
//! A crash between the strokes undoes the decision ([`Race::recover`] starts from what the journal holds). That is
//! safe because nothing that depends on it was answered: a refused request asks nothing of the future, and
//! every positive answer waits.

use segue_types::SuperId;
use segue_types::api::ObservationRule;

/// What was decided. As a number (`as u8`) it goes into the journal; the numbers are part of the format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Two versions; neither has won. Durable from the moment `super` is answered.
    Racing = 1,
    /// The primary was observed: the children cannot win any more. They are served until somebody aborts.
    Observed = 2,
    /// The children are the volumes. The old primary is fenced for ever.
    Promoted = 3,
    /// Over in favour of the primary. The children are fenced for ever.
    Aborted = 4,
    /// Over because the primary's lease was broken: the old primary and the children are both fenced for ever.
    Broken = 5,
}

impl Phase {
    /// The phase of this number, or `None` for a number no version ever wrote.
    pub const fn from_u8(number: u8) -> Option<Phase> {
        Some(match number {
            1 => Phase::Racing,
            2 => Phase::Observed,
            3 => Phase::Promoted,
            4 => Phase::Aborted,
            5 => Phase::Broken,
            _ => return None,
        })
    }

    /// True when the race is over and its clean-up may begin (once this phase is durable).
    pub const fn is_over(self) -> bool {
        matches!(self, Phase::Promoted | Phase::Aborted | Phase::Broken)
    }

    /// Whether one record may follow another: racing, then perhaps observed, then over.
    const fn leads_to(self, next: Phase) -> bool {
        match self {
            Phase::Racing => !matches!(next, Phase::Racing),
            Phase::Observed => matches!(next, Phase::Aborted | Phase::Broken),
            Phase::Promoted | Phase::Aborted | Phase::Broken => false,
        }
    }
}

/// What the primary is about to do on its own branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PrimaryAct {
    /// Read, block status, cache: changes nothing.
    Look,
    /// A write, discard or write-zeroes without FUA is applied.
    Change,
    /// A write, discard or write-zeroes with FUA is applied.
    ChangeDurably,
    /// A flush is made part of a commit.
    Flush,
}

impl PrimaryAct {
    /// Whether the outside world may learn of the primary's branch through this, by the volume's rule.
    const fn observes(self, rule: ObservationRule) -> bool {
        match (self, rule) {
            (PrimaryAct::Look, _) => false,
            (PrimaryAct::Change, ObservationRule::Write) => true,
            (PrimaryAct::Change, ObservationRule::Flush) => false,
            (PrimaryAct::ChangeDurably, _) => true,
            // By rule `write` every change marked already; a flush that follows none shows only the common base.
            (PrimaryAct::Flush, ObservationRule::Write) => false,
            (PrimaryAct::Flush, ObservationRule::Flush) => true,
        }
    }
}

/// What to do with a request of the primary.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum PrimaryVerdict {
    /// The race asks nothing: acknowledge by the ordinary rules.
    Acknowledge,
    /// Journal [`Race::pending`] (the mark) together with the change or before it, never after;
    /// acknowledge only when it is durable.
    MarkThenAcknowledge,
    /// An earlier decision in favour of the primary is on its way: acknowledge only when it is durable.
    AcknowledgeOnceDurable,
    /// Apply nothing; answer `Fenced`.
    Refuse,
}

/// What to do with a request of a child.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum ChildVerdict {
    /// Serve it on the child's branch.
    Serve,
    /// Apply nothing; answer `Fenced`.
    Refuse,
}

/// When an answer may leave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum When {
    /// At once: what it says is durable.
    Now,
    /// When every decision made so far is durable. If it never is, answer nothing or an error, never this.
    OnceDurable,
}

/// Answer of collapse. The same question always gets the same answer, also when asked again after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum CollapseVerdict {
    /// The children have won just now: fence the primary at once, journal [`Race::pending`], answer when durable.
    Promote,
    /// The children had won before.
    AlreadyPromoted(When),
    /// The children cannot win: the primary was observed, or the race was aborted or broken.
    PrimaryObserved(When),
    /// This is not the race of that id.
    Unknown,
}

/// Answer of abort and of the lease break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum EndVerdict {
    /// It ends just now: fence the losers at once, journal [`Race::pending`], answer when durable.
    End,
    /// It had ended without promotion before.
    AlreadyEnded(When),
    /// The children had won before: it cannot end otherwise any more.
    AlreadyPromoted(When),
    /// This is not the race of that id.
    Unknown,
}

/// One superposition of a group of volumes. A few bytes; copy it freely, but drive one copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Race {
    sid: SuperId,
    decided: Phase,
    durable: Phase,
}

impl Race {
    /// A race as `super` starts it. The caller makes the start itself durable before it answers `super`; as the
    /// journal is durable in order, no later decision of this race can become durable without it.
    pub const fn start(sid: SuperId) -> Race {
        Race { sid, decided: Phase::Racing, durable: Phase::Racing }
    }

    /// A race as the journal or checkpoint holds it, after a restart.
    pub const fn recover(sid: SuperId, held: Phase) -> Race {
        Race { sid, decided: held, durable: held }
    }

    /// Follows a record while the journal is replayed. `None` when no legal history has it: the journal is damaged.
    pub fn replay(self, next: Phase) -> Option<Race> {
        self.decided.leads_to(next).then_some(Race { sid: self.sid, decided: next, durable: next })
    }

    /// Its id.
    pub const fn sid(&self) -> SuperId {
        self.sid
    }

    /// What is decided in memory. Admit and refuse by this.
    pub const fn phase(&self) -> Phase {
        self.decided
    }

    /// What survives a crash now. Clean up and report winners by this.
    pub const fn durable_phase(&self) -> Phase {
        self.durable
    }

    /// The record that is still to become durable, if any. One record is enough even after two decisions
    /// (observed, then aborted): the later one implies all that anybody waits for.
    pub fn pending(&self) -> Option<Phase> {
        (self.decided != self.durable).then_some(self.decided)
    }

    /// The record of `phase` is durable. Answer what waited for it.
    ///
    /// # Panics
    /// When this race never decided so, or the drive order was not the journal's order.
    pub fn made_durable(&mut self, phase: Phase) {
        if phase == self.durable {
            return;
        }
        assert!(self.durable.leads_to(phase), "race {} went from {:?} to {phase:?}", self.sid, self.durable);
        assert!(phase == self.decided || phase.leads_to(self.decided), "{phase:?} was never decided");
        self.durable = phase;
    }

    /// The primary acts on its own branch. Ask when the request is bound to the branch (in the step that applies
    /// it), not when it arrives, so that a collapse in between refuses it; what was applied before `super` belongs to
    /// the common base and does not ask.
    pub fn primary(&mut self, act: PrimaryAct, rule: ObservationRule) -> PrimaryVerdict {
        let observes = act.observes(rule);
        match self.decided {
            Phase::Promoted | Phase::Broken => PrimaryVerdict::Refuse,
            Phase::Racing if observes => {
                self.decided = Phase::Observed;
                PrimaryVerdict::MarkThenAcknowledge
            }
            // While a crash could still bring `Racing` back, the children could still win.
            Phase::Observed | Phase::Aborted if observes && self.durable == Phase::Racing => {
                PrimaryVerdict::AcknowledgeOnceDurable
            }
            Phase::Racing | Phase::Observed | Phase::Aborted => PrimaryVerdict::Acknowledge,
        }
    }

    /// A child acts on its own branch. Whoever runs on a child must show nothing to the world before collapse
    /// has answered; the race cannot enforce that.
    pub const fn child(&self) -> ChildVerdict {
        match self.decided {
            Phase::Racing | Phase::Observed | Phase::Promoted => ChildVerdict::Serve,
            Phase::Aborted | Phase::Broken => ChildVerdict::Refuse,
        }
    }

    /// Who won? If nobody yet, the children: from this call on the primary is refused.
    pub fn collapse(&mut self, sid: SuperId) -> CollapseVerdict {
        if sid != self.sid {
            return CollapseVerdict::Unknown;
        }
        match self.decided {
            Phase::Racing => {
                self.decided = Phase::Promoted;
                CollapseVerdict::Promote
            }
            Phase::Promoted => CollapseVerdict::AlreadyPromoted(self.when()),
            Phase::Observed | Phase::Aborted | Phase::Broken => CollapseVerdict::PrimaryObserved(self.when()),
        }
    }

    /// Ends the race in favour of the primary, if the children have not won. From this call on they are refused.
    pub fn abort(&mut self, sid: SuperId) -> EndVerdict {
        if sid == self.sid { self.end(Phase::Aborted) } else { EndVerdict::Unknown }
    }

    /// The primary's lease is broken: ends the race, if the children have not won, with both sides refused from
    /// this call on. After a promotion the volume's lease is the child's: break that one instead.
    pub fn fence(&mut self) -> EndVerdict {
        self.end(Phase::Broken)
    }

    fn end(&mut self, how: Phase) -> EndVerdict {
        match self.decided {
            Phase::Racing | Phase::Observed => {
                self.decided = how;
                EndVerdict::End
            }
            Phase::Aborted | Phase::Broken => EndVerdict::AlreadyEnded(self.when()),
            Phase::Promoted => EndVerdict::AlreadyPromoted(self.when()),
        }
    }

    fn when(&self) -> When {
        if self.decided == self.durable { When::Now } else { When::OnceDurable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SID: SuperId = SuperId(7);
    const PHASES: [Phase; 5] = [Phase::Racing, Phase::Observed, Phase::Promoted, Phase::Aborted, Phase::Broken];

    #[test]
    fn first_write_marks_and_the_rest_wait_for_the_mark() {
        let mut race = Race::start(SID);
        let rule = ObservationRule::Write;
        assert_eq!(race.primary(PrimaryAct::Look, rule), PrimaryVerdict::Acknowledge);
        assert_eq!(race.primary(PrimaryAct::Change, rule), PrimaryVerdict::MarkThenAcknowledge);
        assert_eq!(race.pending(), Some(Phase::Observed));
        assert_eq!(race.primary(PrimaryAct::Change, rule), PrimaryVerdict::AcknowledgeOnceDurable);
        assert_eq!(race.collapse(SID), CollapseVerdict::PrimaryObserved(When::OnceDurable));
        race.made_durable(Phase::Observed);
        assert_eq!(race.primary(PrimaryAct::Change, rule), PrimaryVerdict::Acknowledge);
        assert_eq!(race.collapse(SID), CollapseVerdict::PrimaryObserved(When::Now));
        assert_eq!(race.child(), ChildVerdict::Serve);
    }

    #[test]
    fn rule_flush_marks_by_flush_and_fua_alone() {
        for act in [PrimaryAct::Flush, PrimaryAct::ChangeDurably] {
            let mut race = Race::start(SID);
            assert_eq!(race.primary(PrimaryAct::Change, ObservationRule::Flush), PrimaryVerdict::Acknowledge);
            assert_eq!(race.pending(), None);
            assert_eq!(race.primary(act, ObservationRule::Flush), PrimaryVerdict::MarkThenAcknowledge);
            assert_eq!(race.primary(PrimaryAct::Change, ObservationRule::Flush), PrimaryVerdict::Acknowledge);
        }
    }

    #[test]
    fn collapse_fences_before_it_is_durable() {
        let mut race = Race::start(SID);
        assert_eq!(race.collapse(SuperId(8)), CollapseVerdict::Unknown);
        assert_eq!(race.collapse(SID), CollapseVerdict::Promote);
        assert_eq!(race.primary(PrimaryAct::Look, ObservationRule::Flush), PrimaryVerdict::Refuse);
        assert_eq!(race.collapse(SID), CollapseVerdict::AlreadyPromoted(When::OnceDurable));
        assert_eq!(race.abort(SID), EndVerdict::AlreadyPromoted(When::OnceDurable));
        race.made_durable(Phase::Promoted);
        assert_eq!(race.collapse(SID), CollapseVerdict::AlreadyPromoted(When::Now));
        assert_eq!(race.child(), ChildVerdict::Serve);
    }

    #[test]
    fn an_abort_that_is_not_durable_still_holds_acknowledgements() {
        let mut race = Race::start(SID);
        assert_eq!(race.abort(SID), EndVerdict::End);
        assert_eq!(race.primary(PrimaryAct::Change, ObservationRule::Write), PrimaryVerdict::AcknowledgeOnceDurable);
        assert_eq!(race.child(), ChildVerdict::Refuse);
        assert_eq!(race.collapse(SID), CollapseVerdict::PrimaryObserved(When::OnceDurable));
        race.made_durable(Phase::Aborted);
        assert_eq!(race.abort(SID), EndVerdict::AlreadyEnded(When::Now));
    }

    #[test]
    fn one_record_covers_two_decisions() {
        let mut race = Race::start(SID);
        let _ = race.primary(PrimaryAct::Flush, ObservationRule::Flush);
        assert_eq!(race.fence(), EndVerdict::End);
        assert_eq!(race.pending(), Some(Phase::Broken));
        race.made_durable(Phase::Observed);
        race.made_durable(Phase::Broken);
        race.made_durable(Phase::Broken);
        assert_eq!(race.pending(), None);
        assert_eq!(race.primary(PrimaryAct::Look, ObservationRule::Write), PrimaryVerdict::Refuse);
    }

    #[test]
    fn replay_follows_legal_histories_only() {
        for from in PHASES {
            assert_eq!(Phase::from_u8(from as u8), Some(from));
            for to in PHASES {
                let legal = Race::recover(SID, from).replay(to).is_some();
                assert_eq!(legal, from.leads_to(to));
                assert!(!legal || !from.is_over(), "{from:?} to {to:?}");
            }
        }
        assert_eq!(Race::recover(SID, Phase::Observed).replay(Phase::Promoted), None);
        assert_eq!((Phase::from_u8(0), Phase::from_u8(6)), (None, None));
    }

    #[test]
    #[should_panic(expected = "never decided")]
    fn a_record_nobody_decided_is_a_bug() {
        Race::start(SID).made_durable(Phase::Promoted);
    }
}
