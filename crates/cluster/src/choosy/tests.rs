//! The machines by hand, message by message, and the calendar against a naive twin.
//!
//! Owns: scripted exchanges. Never: a simulated network; that is the models' part.
//! Invariant: each promise of the module's page has a test that fails without it.

use super::*;
use proptest::prelude::*;
use segue_types::Nanos;

pub(super) const LINKS: Links = Links::surge();
pub(super) const CHUNK: u64 = 128 << 10;
pub(super) const M: Nanos = 3_424;

pub(super) fn policy() -> Policy {
    Policy { copies: 2, quorum: 2, asked: 3, ..Policy::default() }
}

pub(super) fn window() -> Nanos {
    policy().window_ns(&LINKS, CHUNK)
}

pub(super) fn step(machine: &mut Initiator, now: Nanos, event: InitiatorEvent<'_>) -> Vec<InitiatorCommand> {
    let mut out = Vec::new();
    machine.step(now, event, &mut out);
    out
}

pub(super) fn write(id: u64, candidates: &[NodeId]) -> InitiatorEvent<'_> {
    InitiatorEvent::Write { id: WriteId(id), bytes: CHUNK, candidates, salt: id }
}

pub(super) fn asked(out: &[InitiatorCommand]) -> Vec<NodeId> {
    let mut all: Vec<NodeId> = out
        .iter()
        .filter_map(|c| match c {
            InitiatorCommand::Ask { to, .. } => Some(*to),
            _ => None,
        })
        .collect();
    all.sort_unstable();
    all
}

pub(super) fn booked(out: &[InitiatorCommand]) -> Option<(NodeId, u32, Nanos)> {
    out.iter().find_map(|c| match c {
        InitiatorCommand::Book { to, round, start_ns, .. } => Some((*to, *round, *start_ns)),
        _ => None,
    })
}

pub(super) fn round_of(out: &[InitiatorCommand]) -> u32 {
    let round = out.iter().find_map(|c| match c {
        InitiatorCommand::Ask { round, .. } => Some(*round),
        _ => None,
    });
    round.expect("somebody is asked")
}

/// Answers every ask of `out` with what `offer` says, and gives what follows the last answer.
pub(super) fn answer(
    machine: &mut Initiator,
    now: Nanos,
    out: &[InitiatorCommand],
    offer: impl Fn(NodeId) -> Option<Offer>,
) -> Vec<InitiatorCommand> {
    let round = round_of(out);
    let mut last = Vec::new();
    for from in asked(out) {
        last = step(machine, now, InitiatorEvent::Offer { from, round, offer: offer(from) });
    }
    last
}

pub(super) fn offer_at(start_ns: Nanos) -> Option<Offer> {
    Some(Offer { start_ns, done_ns: start_ns + window() + 300_000 })
}

#[test]
fn a_write_books_the_best_offer_and_goes_on_when_its_link_is_about_to_be_free() {
    let mut machine = Initiator::new(policy(), LINKS);
    let out = step(&mut machine, 0, write(7, &[1, 2, 3]));
    assert_eq!(asked(&out), [1, 2, 3]);
    let start = 4 * M;
    let out = answer(&mut machine, 2 * M, &out, |t| offer_at(if t == 2 { start } else { start + 50_000 }));
    let (to, round, at) = booked(&out).expect("the best is booked");
    assert_eq!((to, at), (2, start));
    let out = step(&mut machine, 4 * M, InitiatorEvent::Booked { from: 2, round, attempt: 1 });
    let transfer = InitiatorCommand::Transfer { id: WriteId(7), to: 2, round, start_ns: start, bytes: CHUNK };
    assert!(out.contains(&transfer), "{out:?}");
    assert!(asked(&out).is_empty(), "the link is busy for a while: offers would be stale");
    // The timer that guarded the booking comes first, and asks for the next one.
    let guard_ns = 2 * M + 2 * M + policy().patience_ns;
    let out = step(&mut machine, guard_ns, InitiatorEvent::Tick);
    let [InitiatorCommand::Wake { .. }, InitiatorCommand::Wake { at_ns }] = out[..] else { panic!("{out:?}") };
    assert!(at_ns > start && at_ns < start + window());
    let out = step(&mut machine, at_ns, InitiatorEvent::Tick);
    assert_eq!(asked(&out), [1, 3], "a target holds one copy");
    let late_enough = |c: &InitiatorCommand| match c {
        InitiatorCommand::Ask { from_ns, .. } => *from_ns == start + window(),
        _ => true,
    };
    assert!(out.iter().all(late_enough), "not before the own link is free: {out:?}");
    let out = answer(&mut machine, at_ns + 2 * M, &out, |_| offer_at(start + window()));
    let (to, round, at) = booked(&out).expect("the second copy");
    assert_eq!(at, start + window());
    step(&mut machine, at_ns + 4 * M, InitiatorEvent::Booked { from: to, round, attempt: 1 });
    let stored = |from| InitiatorEvent::Acknowledged { id: WriteId(7), from };
    assert!(step(&mut machine, 900_000, stored(2)).is_empty());
    assert!(step(&mut machine, 900_001, stored(2)).is_empty(), "one copy twice is one copy");
    assert_eq!(step(&mut machine, 900_002, stored(to)), [InitiatorCommand::Done { id: WriteId(7) }]);
    assert_eq!(machine.writes(), 0);
}

#[test]
fn a_refusal_costs_a_round_trip_and_the_next_best_is_booked() {
    let mut machine = Initiator::new(policy(), LINKS);
    let out = step(&mut machine, 0, write(1, &[1, 2, 3]));
    let start = 4 * M;
    let out = answer(&mut machine, 2 * M, &out, |t| offer_at(start + u64::from(t)));
    let (to, round, _) = booked(&out).expect("a booking");
    assert_eq!(to, 1);
    let refused = InitiatorEvent::Refused { from: 1, round, attempt: 1, offer: offer_at(start + 200_000) };
    let out = step(&mut machine, 4 * M, refused);
    let (second, _, at) = booked(&out).expect("another booking");
    assert_eq!(at, 6 * M, "no sooner than the answer can be here");
    let out = step(&mut machine, 6 * M, InitiatorEvent::Refused { from: second, round, attempt: 2, offer: None });
    let third = booked(&out).expect("the last one").0;
    assert_eq!(second + third, 2 + 3);
    let out = step(&mut machine, 8 * M, InitiatorEvent::Refused { from: third, round, attempt: 3, offer: None });
    assert_eq!(booked(&out).map(|b| b.0), Some(1), "the fresh offer of the first is still there");
}

#[test]
fn an_unusually_late_offer_makes_it_ask_the_rest_once() {
    let mut machine = Initiator::new(policy(), LINKS);
    let candidates: Vec<NodeId> = (0..8).collect();
    let out = step(&mut machine, 0, write(1, &candidates));
    let first = asked(&out);
    assert_eq!(first.len(), 3);
    let again = answer(&mut machine, 2 * M, &out, |_| offer_at(900_000));
    assert_eq!(asked(&again).len(), 5, "the rest");
    assert!(asked(&again).iter().all(|t| !first.contains(t)) && booked(&again).is_none());
    let out = answer(&mut machine, 4 * M, &again, |_| offer_at(950_000));
    assert_eq!(booked(&out).map(|b| b.2), Some(900_000), "the old offers are still in the race");
    assert!(first.contains(&booked(&out).unwrap().0));
}

#[test]
fn fault_silent_targets_are_not_waited_for_and_not_asked_for_a_while() {
    let mut machine = Initiator::new(Policy { asked: 2, copies: 1, quorum: 1, ..policy() }, LINKS);
    let out = step(&mut machine, 0, write(1, &[1, 2, 3, 4]));
    let (first, round) = (asked(&out), round_of(&out));
    let offer = InitiatorEvent::Offer { from: first[0], round, offer: offer_at(30_000) };
    assert!(booked(&step(&mut machine, 2 * M, offer)).is_none(), "the other may still answer");
    let out = step(&mut machine, 100_000, InitiatorEvent::Tick);
    let (to, round, _) = booked(&out).expect("what came is used");
    assert_eq!(to, first[0]);
    // The booking is not answered either: it is given back, and others are asked.
    let out = step(&mut machine, 300_000, InitiatorEvent::Tick);
    assert!(out.contains(&InitiatorCommand::Release { to, round }));
    assert!(asked(&out).iter().all(|t| !first.contains(t)) && asked(&out).len() == 2, "{out:?}");
    // An answer that comes after all changes nothing.
    assert!(step(&mut machine, 300_001, InitiatorEvent::Booked { from: to, round, attempt: 1 }).is_empty());
}

#[test]
fn fault_a_write_that_nobody_answers_fails_within_a_bound() {
    let mut machine = Initiator::new(policy(), LINKS);
    let mut out = step(&mut machine, 0, write(1, &[1, 2, 3]));
    let mut rounds = 0;
    let failed = InitiatorCommand::Failed { id: WriteId(1), error: WriteError::NoAnswer };
    while !out.contains(&failed) {
        let wake = out.iter().rev().find_map(|c| match c {
            InitiatorCommand::Wake { at_ns } => Some(*at_ns),
            _ => None,
        });
        out = step(&mut machine, wake.expect("it goes on by itself"), InitiatorEvent::Tick);
        rounds += 1;
        assert!(rounds < 50, "no bound");
    }
    assert_eq!(machine.writes(), 0);
}

#[test]
fn fault_a_lost_copy_is_sent_elsewhere_and_too_few_targets_fail_the_write() {
    let mut machine = Initiator::new(Policy { copies: 1, quorum: 1, ..policy() }, LINKS);
    let mut out = step(&mut machine, 0, write(1, &[1, 2]));
    let mut now = 2 * M;
    let mut used = Vec::new();
    for _ in 0..2 {
        let next = answer(&mut machine, now, &out, |_| offer_at(now + 2 * M));
        let (to, round, _) = booked(&next).expect("a booking");
        step(&mut machine, now + 2 * M, InitiatorEvent::Booked { from: to, round, attempt: 1 });
        assert!(!used.contains(&to));
        used.push(to);
        now += 1_000_000;
        out = step(&mut machine, now, InitiatorEvent::Lost { id: WriteId(1), from: to });
    }
    assert_eq!(out, [InitiatorCommand::Failed { id: WriteId(1), error: WriteError::TooFewLeft }]);
    let late = InitiatorEvent::Acknowledged { id: WriteId(1), from: 1 };
    assert!(step(&mut machine, now + 1, late).is_empty(), "a write ends once");
}

#[test]
fn bad_writes_are_refused_and_others_go_on() {
    let mut machine = Initiator::new(Policy { writes_max: 1, ..policy() }, LINKS);
    let error = |out: Vec<InitiatorCommand>| match out[..] {
        [InitiatorCommand::Failed { error, .. }] => error,
        _ => panic!("{out:?}"),
    };
    assert_eq!(error(step(&mut machine, 0, write(1, &[1]))), WriteError::Candidates);
    assert_eq!(error(step(&mut machine, 0, write(1, &[1, 1]))), WriteError::Candidates);
    assert_eq!(error(step(&mut machine, 0, write(1, &[0; 65]))), WriteError::Candidates);
    assert!(!asked(&step(&mut machine, 0, write(1, &[1, 2]))).is_empty());
    assert_eq!(error(step(&mut machine, 0, write(2, &[1, 2]))), WriteError::Busy);
}

pub(super) fn target_step(target: &mut Target, now: Nanos, event: TargetEvent) -> Vec<TargetCommand> {
    let mut out = Vec::new();
    target.step(now, event, &mut out);
    out
}

fn book(from: NodeId, start_ns: Nanos) -> TargetEvent {
    TargetEvent::Book { from, round: 1, attempt: 1, bytes: CHUNK, start_ns }
}

#[test]
fn a_target_books_each_window_once_and_forgets_what_never_came() {
    let mut target = Target::new(policy(), LINKS, 400 << 20);
    assert_eq!(target_step(&mut target, 0, book(1, 10_000)), [TargetCommand::Booked { to: 1, round: 1, attempt: 1 }]);
    let again = target_step(&mut target, 0, book(1, 10_000));
    assert_eq!(
        again,
        [TargetCommand::Booked { to: 1, round: 1, attempt: 1 }],
        "a repeated message gets its answer again"
    );
    let [TargetCommand::Refused { to: 2, offer: Some(offer), .. }] = target_step(&mut target, 0, book(2, 10_001))[..]
    else {
        panic!("two have one window")
    };
    assert_eq!(offer.start_ns, 10_000 + window(), "behind the one that is there");
    // The first is on the medium 312,475 ns after its window, the second waits for it and takes as long.
    assert_eq!(offer.done_ns, 10_000 + window() + 2 * 312_475);
    let late = 10_000 + window() + 2 * policy().patience_ns;
    assert_eq!(target_step(&mut target, late, book(2, late)), [TargetCommand::Booked { to: 2, round: 1, attempt: 1 }]);
    assert_eq!((target.expired, target.bookings()), (1, 1));
    target_step(&mut target, late, TargetEvent::Release { from: 2, round: 1 });
    assert_eq!(target.bookings(), 0);
    let [TargetCommand::Refused { .. }] = target_step(&mut target, late, book(3, late - 1))[..] else {
        panic!("a window that began before it was booked")
    };
}

#[test]
fn the_forecast_follows_a_drive_that_is_slower_than_it_was_said_to_be() {
    let mut target = Target::new(policy(), LINKS, 400 << 20);
    let forecast = |target: &mut Target, now| {
        let ask = TargetEvent::Ask { from: 1, round: 9, bytes: CHUNK, from_ns: now };
        let [TargetCommand::Offer { offer: Some(offer), .. }] = target_step(target, now, ask)[..] else { panic!() };
        offer.done_ns - offer.start_ns - window()
    };
    assert_eq!(forecast(&mut target, 0), 312_475);
    let mut now = 0;
    for _ in 0..40 {
        target_step(&mut target, now, TargetEvent::Received { from: 1, round: 1, bytes: CHUNK });
        now += 1_250_000;
        target_step(&mut target, now, TargetEvent::Stored { bytes: CHUNK });
    }
    let learned = forecast(&mut target, now);
    assert!((1_200_000..=1_260_000).contains(&learned), "{learned}");
}

proptest! {
    /// Whatever is asked, booked, released and received: what the target granted and did not get back is disjoint.
    #[test]
    fn model_granted_windows_are_disjoint(
        events in prop::collection::vec((0u8..4, 0u32..6, 0u64..2_000_000, 1u64..300_000, 1u32..4), 1..200),
        hold in any::<bool>(),
    ) {
        let policy = Policy { hold, ..policy() };
        let mut target = Target::new(policy, LINKS, 1 << 30);
        let mut granted: Vec<(Nanos, Nanos, NodeId, u32)> = Vec::new();
        let mut now = 0;
        for (kind, from, at, bytes, attempt) in events {
            now += at % 5_000;
            let start_ns = now + at;
            let end_ns = start_ns + policy.window_ns(&LINKS, bytes);
            let event = match kind {
                0 => TargetEvent::Ask { from, round: 1, bytes, from_ns: start_ns },
                1 => TargetEvent::Book { from, round: 1, attempt, bytes, start_ns },
                2 => TargetEvent::Release { from, round: 1 },
                _ => TargetEvent::Received { from, round: 1, bytes },
            };
            let out = target_step(&mut target, now, event);
            granted.retain(|g| g.1 + 2 * policy.patience_ns > now);
            // A booking not later than the one that stands is an old message: it changes nothing.
            let known = granted.iter().find(|g| g.2 == from).copied();
            let old = kind == 1 && known.is_some_and(|g| g.3 >= attempt);
            if old {
                let same = known.is_some_and(|g| g.3 == attempt);
                prop_assert!(matches!(out[..], [TargetCommand::Booked { .. }]) == same, "{out:?}");
                continue;
            }
            if kind > 0 {
                granted.retain(|g| g.2 != from);
            }
            for command in out {
                match command {
                    TargetCommand::Booked { .. } => {
                        prop_assert!(granted.iter().all(|g| end_ns <= g.0 || g.1 <= start_ns));
                        granted.push((start_ns, end_ns, from, attempt));
                    }
                    // In the naive twin a refusal needs a reason: a clash (an offer that is held may be one).
                    TargetCommand::Refused { .. } if !hold => {
                        prop_assert!(granted.iter().any(|g| start_ns < g.1 && g.0 < end_ns));
                    }
                    TargetCommand::Offer { offer: Some(offer), .. } => {
                        let end_ns = offer.start_ns + policy.window_ns(&LINKS, bytes);
                        prop_assert!(granted.iter().all(|g| end_ns <= g.0 || g.1 <= offer.start_ns));
                        prop_assert!(offer.start_ns >= start_ns && offer.done_ns > end_ns);
                    }
                    _ => {}
                }
            }
        }
    }
}
