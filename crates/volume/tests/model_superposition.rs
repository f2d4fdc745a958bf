//! Every reachable state of a superposition, checked: the shipped `Race` between a primary, monitors and a journal.
//!
//! Owns: a small model of the node around `Race`, its properties, and old bugs to prove that they are caught. Never: decides.
//! Invariant: the decisions of the model are those of `segue_volume::superposition`; the glue here only carries them.

use segue_types::SuperId;
use segue_volume::op::ObservationRule;
use segue_volume::superposition::{
    ChildVerdict, CollapseVerdict, EndVerdict, Phase, PrimaryAct, PrimaryVerdict, Race, When,
};
use stateright::{Checker, Model, Property};
use std::collections::{BTreeMap, VecDeque};

const SID: SuperId = SuperId(1);
const RULES: [ObservationRule; 2] = [ObservationRule::Write, ObservationRule::Flush];
const ACTS: [PrimaryAct; 4] = [PrimaryAct::Look, PrimaryAct::Change, PrimaryAct::ChangeDurably, PrimaryAct::Flush];

/// Mistakes that the glue can be told to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// The primary is acknowledged before its mark is durable.
    MarkNotDurable,
    /// After a restart the finished race is not consulted any more.
    FenceForgotten,
    /// A request that was admitted before collapse is applied and acknowledged after it.
    LateObserver,
    /// Acknowledgements do not wait for an abort that is still on its way.
    AbortNotDurable,
    /// Collapse is answered before its record is durable.
    PromoteNotDurable,
}

/// A record of the journal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Rec {
    Start,
    Phase(u8),
    Data,
}

/// Who waits for the journal to be durable up to a position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Waiter {
    Super,
    /// `seen`: the rule lets the primary show its branch to the world after this acknowledgement.
    Primary {
        seen: bool,
        flush: bool,
    },
    Collapse {
        promoted: bool,
    },
    Abort,
    Break,
}

/// A failure monitor. It may crash at any time and begins again at `Watching`, knowing nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Monitor {
    Watching,
    Backup,
    Asked,
    Won,
    Lost,
}

// Messages on a network that loses, repeats and reorders: once sent, one may arrive any number of times, or never.
const MSG_SUPER: u16 = 1;
const MSG_COLLAPSE: u16 = 2;
const MSG_ABORT: u16 = 4;
const MSG_BREAK: u16 = 8;
const SAID_GRANTED: u16 = 16;
const SAID_PROMOTED: u16 = 32;
const SAID_OBSERVED: u16 = 64;
const SAID_ABORTED: u16 = 128;
const SAID_BROKEN: u16 = 256;

// Things that must never happen, kept as flags so that a property is a look at one state.
const BAD_PRIMARY_SERVED: u8 = 1;
const BAD_CHILD_SERVED: u8 = 2;
const BAD_LOST_DATA: u8 = 4;
const BAD_REPLAY: u8 = 8;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct State {
    up: bool,
    log: Vec<Rec>,
    durable: usize,
    commit: Option<usize>,
    /// Phase in memory and phase durable, as the race itself tells them; none before `super`.
    race: Option<(u8, u8)>,
    fence_forgotten: bool,
    waiters: Vec<(usize, Waiter)>,
    /// A primary request that arrived and is not applied yet: its act, and whether the race let it in.
    arrived: Option<(u8, bool)>,
    acts_left: u8,
    crashes_left: u8,
    net: u16,
    monitors: [Monitor; 2],
    primary_seen: bool,
    child_seen: bool,
    /// Data records that a completed flush promised to keep.
    promised: usize,
    bad: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Arrive(u8),
    Apply,
    Child,
    Deliver(u16),
    MonitorCrash(usize),
    MonitorSend(usize, u16),
    MonitorHear(usize, u16),
    OperatorBreaks,
    CommitIssue,
    CommitDone,
    /// Power cut that keeps this many records of the journal.
    Crash(usize),
    Restart,
}

struct World {
    rule: ObservationRule,
    bug: Bug,
    acts: u8,
    crashes: u8,
}

fn phase_of(number: u8) -> Phase {
    Phase::from_u8(number).expect("only phases are stored")
}

/// The race as the node holds it. The state keeps numbers because they sort and hash; only the race's own inputs
/// lead from one phase to the next.
fn race_of(state: &State) -> Option<Race> {
    let (decided, durable) = state.race?;
    let mut race = Race::recover(SID, phase_of(durable));
    if decided != durable {
        match phase_of(decided) {
            Phase::Observed => {
                let _ = race.primary(PrimaryAct::ChangeDurably, ObservationRule::Flush);
            }
            Phase::Promoted => {
                let _ = race.collapse(SID);
            }
            Phase::Aborted => {
                let _ = race.abort(SID);
            }
            Phase::Broken => {
                let _ = race.fence();
            }
            Phase::Racing => unreachable!("racing is where a race starts"),
        }
    }
    Some(race)
}

fn keep(state: &mut State, race: Race) {
    state.race = Some((race.phase() as u8, race.durable_phase() as u8));
}

fn wait(state: &mut State, position: usize, waiter: Waiter) {
    if position <= state.durable {
        answer(state, waiter);
    } else if !state.waiters.contains(&(position, waiter)) {
        state.waiters.push((position, waiter));
        state.waiters.sort();
    }
}

fn answer(state: &mut State, waiter: Waiter) {
    match waiter {
        Waiter::Super => state.net |= SAID_GRANTED,
        Waiter::Primary { seen, flush } => {
            state.primary_seen |= seen;
            if flush {
                let kept = state.log[..state.durable].iter().filter(|r| **r == Rec::Data).count();
                state.promised = state.promised.max(kept);
            }
            // Whoever was told that the primary is fenced relies on it.
            if state.net & (SAID_PROMOTED | SAID_BROKEN) != 0 {
                state.bad |= BAD_PRIMARY_SERVED;
            }
        }
        Waiter::Collapse { promoted: true } => state.net |= SAID_PROMOTED,
        Waiter::Collapse { promoted: false } => state.net |= SAID_OBSERVED,
        Waiter::Abort => state.net |= SAID_ABORTED,
        Waiter::Break => state.net |= SAID_BROKEN,
    }
}

fn ended(verdict: EndVerdict, waiter: Waiter) -> (bool, When, Waiter) {
    match verdict {
        EndVerdict::End => (true, When::OnceDurable, waiter),
        // Who asks second is told what happened.
        EndVerdict::AlreadyEnded(when) => (false, when, Waiter::Abort),
        EndVerdict::AlreadyPromoted(when) => (false, when, Waiter::Collapse { promoted: true }),
        EndVerdict::Unknown => unreachable!("the model has one race"),
    }
}

fn collapsed(verdict: CollapseVerdict) -> (bool, When, Waiter) {
    match verdict {
        CollapseVerdict::Promote => (true, When::OnceDurable, Waiter::Collapse { promoted: true }),
        CollapseVerdict::AlreadyPromoted(when) => (false, when, Waiter::Collapse { promoted: true }),
        CollapseVerdict::PrimaryObserved(when) => (false, when, Waiter::Collapse { promoted: false }),
        CollapseVerdict::Unknown => unreachable!("the model has one race"),
    }
}

fn commit_done(state: &mut State, position: usize) {
    let from = std::mem::replace(&mut state.durable, position);
    if let Some(mut race) = race_of(state) {
        for rec in &state.log[from..position] {
            if let Rec::Phase(phase) = rec {
                race.made_durable(phase_of(*phase));
            }
        }
        keep(state, race);
    }
    let ready: Vec<_> = state.waiters.iter().filter(|(p, _)| *p <= position).map(|(_, w)| *w).collect();
    state.waiters.retain(|(p, _)| *p > position);
    for waiter in ready {
        answer(state, waiter);
    }
}

fn monitor_actions(state: &State, actions: &mut Vec<Action>) {
    for (i, monitor) in state.monitors.iter().enumerate() {
        let (sends, hears): (&[u16], &[u16]) = match monitor {
            Monitor::Watching => (&[MSG_SUPER], &[SAID_GRANTED]),
            Monitor::Backup => (&[MSG_COLLAPSE, MSG_ABORT], &[]),
            Monitor::Asked => (&[MSG_ABORT], &[SAID_PROMOTED, SAID_OBSERVED]),
            Monitor::Lost => (&[MSG_ABORT], &[]),
            Monitor::Won => (&[], &[]),
        };
        // Sending again what is on its way changes nothing, except that the sender waits for the answer.
        let fresh = |m: &&u16| state.net & **m == 0 || **m == MSG_COLLAPSE;
        actions.extend(sends.iter().filter(fresh).map(|m| Action::MonitorSend(i, *m)));
        actions.extend(hears.iter().filter(|m| state.net & **m != 0).map(|m| Action::MonitorHear(i, *m)));
        if *monitor != Monitor::Watching {
            actions.push(Action::MonitorCrash(i));
        }
    }
}

/// Over, told, and the node is up: nothing is left to do.
fn is_terminal(state: &State) -> bool {
    let over = state.race.is_some_and(|(decided, durable)| decided == durable && phase_of(durable).is_over());
    let heard = state.monitors.iter().any(|m| matches!(m, Monitor::Won | Monitor::Lost));
    state.up && over && state.waiters.is_empty() && (heard || state.net & (SAID_BROKEN | SAID_ABORTED) != 0)
}

impl World {
    fn apply(&self, state: &mut State, act: PrimaryAct, admitted: bool) {
        let Some(mut race) = race_of(state).filter(|_| !state.fence_forgotten) else {
            return self.acknowledge(state, act, 0, false);
        };
        if self.bug == Bug::LateObserver && admitted && race.phase() == Phase::Promoted {
            return self.acknowledge(state, act, 0, true);
        }
        let verdict = race.primary(act, self.rule);
        keep(state, race);
        match verdict {
            PrimaryVerdict::Refuse => {}
            PrimaryVerdict::Acknowledge => self.acknowledge(state, act, 0, true),
            PrimaryVerdict::MarkThenAcknowledge => {
                let mark = race.pending().expect("a mark is a record to write");
                state.log.push(Rec::Phase(mark as u8));
                if self.bug == Bug::MarkNotDurable {
                    return answer(state, Waiter::Primary { seen: true, flush: false });
                }
                self.acknowledge(state, act, state.log.len(), true);
            }
            PrimaryVerdict::AcknowledgeOnceDurable => {
                let careless = self.bug == Bug::AbortNotDurable && race.phase() == Phase::Aborted;
                let position = if careless { 0 } else { state.log.len() };
                self.acknowledge(state, act, position, true);
            }
        }
    }

    /// The ordinary rules of a volume: changes are redo records, flushes wait for all of them.
    fn acknowledge(&self, state: &mut State, act: PrimaryAct, position: usize, racing: bool) {
        let changes = matches!(act, PrimaryAct::Change | PrimaryAct::ChangeDurably);
        let flush = matches!(act, PrimaryAct::ChangeDurably | PrimaryAct::Flush);
        if changes {
            state.log.push(Rec::Data);
        }
        let position = if flush { state.log.len() } else { position };
        let shows = if self.rule == ObservationRule::Write { changes } else { flush };
        wait(state, position, Waiter::Primary { seen: racing && shows, flush });
    }

    fn deliver(&self, state: &mut State, msg: u16) {
        if msg == MSG_SUPER {
            if state.race.is_none() {
                keep(state, Race::start(SID));
                state.log.push(Rec::Start);
            }
            let start = state.log.iter().position(|r| *r == Rec::Start).expect("a race has begun") + 1;
            return wait(state, start, Waiter::Super);
        }
        let Some(mut race) = race_of(state) else { return };
        let (decided, when, waiter) = match msg {
            MSG_COLLAPSE => collapsed(race.collapse(SID)),
            MSG_ABORT => ended(race.abort(SID), Waiter::Abort),
            _ => ended(race.fence(), Waiter::Break),
        };
        keep(state, race);
        if decided {
            let phase = race.pending().expect("a decision leaves a record to write");
            state.log.push(Rec::Phase(phase as u8));
        }
        let hasty = self.bug == Bug::PromoteNotDurable && waiter == (Waiter::Collapse { promoted: true });
        let position = if when == When::Now || hasty { 0 } else { state.log.len() };
        wait(state, position, waiter);
    }

    fn restart(&self, state: &mut State) {
        state.up = true;
        let mut race: Option<Race> = None;
        for rec in &state.log {
            match rec {
                Rec::Data => {}
                Rec::Start => race = Some(Race::start(SID)),
                Rec::Phase(phase) => match race.and_then(|r| r.replay(phase_of(*phase))) {
                    Some(next) => race = Some(next),
                    None => state.bad |= BAD_REPLAY,
                },
            }
        }
        state.race = race.map(|r| (r.phase() as u8, r.durable_phase() as u8));
        let over = race.is_some_and(|r| r.phase().is_over());
        state.fence_forgotten = self.bug == Bug::FenceForgotten && over;
    }

    fn monitor_hears(state: &mut State, monitor: usize, said: u16) {
        state.monitors[monitor] = match said {
            SAID_GRANTED => Monitor::Backup,
            SAID_PROMOTED => Monitor::Won,
            _ => Monitor::Lost,
        };
        // The endpoint moves: from here on the child answers clients.
        state.child_seen |= said == SAID_PROMOTED;
    }

    fn crash(state: &mut State, kept: usize) {
        state.log.truncate(kept);
        state.durable = kept;
        state.up = false;
        state.crashes_left -= 1;
        (state.commit, state.race, state.arrived) = (None, None, None);
        state.waiters.clear();
        if state.log.iter().filter(|r| **r == Rec::Data).count() < state.promised {
            state.bad |= BAD_LOST_DATA;
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            up: true,
            log: Vec::new(),
            durable: 0,
            commit: None,
            race: None,
            fence_forgotten: false,
            waiters: Vec::new(),
            arrived: None,
            acts_left: self.acts,
            crashes_left: self.crashes,
            net: 0,
            monitors: [Monitor::Watching; 2],
            primary_seen: false,
            child_seen: false,
            promised: 0,
            bad: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        monitor_actions(state, actions);
        if state.net & MSG_BREAK == 0 && state.race.is_some() {
            actions.push(Action::OperatorBreaks);
        }
        if !state.up {
            return actions.push(Action::Restart);
        }
        if state.arrived.is_some() {
            actions.push(Action::Apply);
        } else if state.acts_left > 0 {
            actions.extend((0..ACTS.len() as u8).map(Action::Arrive));
        }
        let sent = [MSG_SUPER, MSG_COLLAPSE, MSG_ABORT, MSG_BREAK].into_iter().filter(|m| state.net & m != 0);
        actions.extend(sent.map(Action::Deliver));
        if state.race.is_some() {
            actions.push(Action::Child);
        }
        match state.commit {
            None if state.durable < state.log.len() => actions.push(Action::CommitIssue),
            None => {}
            Some(_) => actions.push(Action::CommitDone),
        }
        if state.crashes_left > 0 {
            // What was not handed to the drive is lost; what was may be there in part, from the front.
            actions.extend((state.durable..=state.commit.unwrap_or(state.durable)).map(Action::Crash));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Arrive(act) => {
                let admitted = race_of(&state)
                    .is_none_or(|mut r| r.primary(PrimaryAct::Look, self.rule) != PrimaryVerdict::Refuse);
                state.acts_left -= 1;
                state.arrived = Some((act, admitted));
            }
            Action::Apply => {
                let (act, admitted) = state.arrived.take()?;
                self.apply(&mut state, ACTS[act as usize], admitted);
            }
            Action::Child => {
                let dropped = state.net & (SAID_ABORTED | SAID_BROKEN) != 0;
                if race_of(&state)?.child() == ChildVerdict::Serve && dropped {
                    state.bad |= BAD_CHILD_SERVED;
                }
            }
            Action::Deliver(msg) => self.deliver(&mut state, msg),
            Action::MonitorCrash(i) => state.monitors[i] = Monitor::Watching,
            Action::MonitorSend(i, msg) => {
                state.net |= msg;
                if msg == MSG_COLLAPSE {
                    state.monitors[i] = Monitor::Asked;
                }
            }
            Action::MonitorHear(i, said) => Self::monitor_hears(&mut state, i, said),
            Action::OperatorBreaks => state.net |= MSG_BREAK,
            Action::CommitIssue => state.commit = Some(state.log.len()),
            Action::CommitDone => {
                let position = state.commit.take()?;
                commit_done(&mut state, position);
            }
            Action::Crash(kept) => Self::crash(&mut state, kept),
            Action::Restart => self.restart(&mut state),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn promoted(state: &State) -> bool {
            state.log[..state.durable].contains(&Rec::Phase(Phase::Promoted as u8))
        }
        vec![
            Property::always("one observed version", |_, s: &State| !(s.primary_seen && s.child_seen)),
            Property::always("promoted: no primary write was observed", |_, s: &State| {
                !(promoted(s) && s.primary_seen)
            }),
            Property::always("what was promised is kept", |_, s: &State| s.bad & BAD_LOST_DATA == 0),
            Property::always("a fenced primary is never served", |_, s: &State| s.bad & BAD_PRIMARY_SERVED == 0),
            Property::always("a dropped child is never served", |_, s: &State| s.bad & BAD_CHILD_SERVED == 0),
            Property::always("one answer", |_, s: &State| {
                let lost = s.net & (SAID_OBSERVED | SAID_ABORTED | SAID_BROKEN) != 0;
                !(s.net & SAID_PROMOTED != 0 && lost)
            }),
            Property::always("the journal is a legal history", |_, s: &State| s.bad & BAD_REPLAY == 0),
            Property::sometimes("the child wins", |_, s: &State| s.child_seen),
            Property::sometimes("the primary wins", |_, s: &State| s.primary_seen && s.net & SAID_ABORTED != 0),
            Property::sometimes("nobody wins", |_, s: &State| s.net & SAID_BROKEN != 0),
        ]
    }
}

/// The rules under which the bug makes the property fail.
fn caught_under(bug: Bug, acts: u8, crashes: u8, property: &'static str) -> Vec<ObservationRule> {
    let caught = |rule: &ObservationRule| {
        let world = World { rule: *rule, bug, acts, crashes };
        world.checker().spawn_bfs().join().discovery(property).is_some()
    };
    RULES.into_iter().filter(caught).collect()
}

#[test]
fn model_every_state_of_a_race_is_safe() {
    for rule in RULES {
        let world = World { rule, bug: Bug::None, acts: 2, crashes: 2 };
        let checker = world.checker().spawn_bfs().join();
        checker.assert_properties();
        assert!(checker.unique_state_count() > 10_000, "the model shrank to {}", checker.unique_state_count());
    }
}

/// From every reachable state a state is reachable in which the race is over, durable, and told: no dead end, no trap.
#[test]
fn model_a_race_can_always_end() {
    for rule in RULES {
        let world = World { rule, bug: Bug::None, acts: 1, crashes: 1 };
        let mut index: BTreeMap<State, usize> = BTreeMap::new();
        let mut before: Vec<Vec<usize>> = vec![Vec::new()];
        let mut queue: VecDeque<State> = world.init_states().into();
        index.insert(queue[0].clone(), 0);
        let mut ends = Vec::new();
        while let Some(state) = queue.pop_front() {
            let from = index[&state];
            if is_terminal(&state) {
                ends.push(from);
            }
            for next in world.next_states(&state) {
                let to = *index.entry(next).or_insert_with_key(|next| {
                    queue.push_back(next.clone());
                    before.push(Vec::new());
                    before.len() - 1
                });
                before[to].push(from);
            }
        }
        let mut reaches = vec![false; before.len()];
        while let Some(state) = ends.pop() {
            if !std::mem::replace(&mut reaches[state], true) {
                ends.extend(&before[state]);
            }
        }
        let stuck = index.iter().find(|(_, i)| !reaches[**i]);
        assert!(stuck.is_none(), "rule {rule:?}: no end is reachable from {stuck:#?}");
    }
}

#[test]
fn model_catches_a_mark_that_is_not_durable() {
    assert_eq!(caught_under(Bug::MarkNotDurable, 2, 1, "one observed version"), RULES);
}

#[test]
fn model_catches_a_fence_forgotten_on_restart() {
    assert_eq!(caught_under(Bug::FenceForgotten, 1, 1, "a fenced primary is never served"), RULES);
}

#[test]
fn model_catches_a_late_observer() {
    assert_eq!(caught_under(Bug::LateObserver, 1, 0, "one observed version"), RULES);
}

#[test]
fn model_catches_an_abort_that_is_not_durable() {
    // By rule `flush` an observing acknowledgement waits for its own commit, which comes after the abort anyway.
    let property = "promoted: no primary write was observed";
    assert_eq!(caught_under(Bug::AbortNotDurable, 1, 1, property), [ObservationRule::Write]);
}

#[test]
fn model_catches_a_promotion_answered_before_it_is_durable() {
    assert_eq!(caught_under(Bug::PromoteNotDurable, 1, 1, "one observed version"), RULES);
}
