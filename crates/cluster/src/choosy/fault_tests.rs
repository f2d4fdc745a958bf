//! The machines when messages come twice, late, in another order, or say what cannot be.
//!
//! Owns: one script per way in which a message can be wrong. Never: loss alone; the models lose messages at random.
//! Invariant: no script ends with two bookings of one window, with a write told twice, or with nothing to wait for.

use super::tests::*;
use super::*;
use proptest::prelude::*;
use segue_types::Nanos;

const HOLD: Policy = Policy {
    copies: 2,
    quorum: 2,
    asked: 3,
    choose: Choose::Deadline,
    again: true,
    hold: true,
    together: false,
    slack_permille: 0,
    guard_ns: 1_000,
    ahead_ns: 2_000,
    patience_ns: 50_000,
    overdue_ns: 1_000_000_000,
    writes_max: 64,
    bookings_max: 256,
};

fn book(from: NodeId, attempt: u32, start_ns: Nanos) -> TargetEvent {
    TargetEvent::Book { from, round: 1, attempt, bytes: CHUNK, start_ns }
}

fn is_booked(out: &[TargetCommand]) -> bool {
    matches!(out, [TargetCommand::Booked { .. }])
}

fn wake_of(out: &[InitiatorCommand]) -> Option<Nanos> {
    out.iter().rev().find_map(|c| match c {
        InitiatorCommand::Wake { at_ns } => Some(*at_ns),
        _ => None,
    })
}

#[test]
fn fault_a_booking_repeated_after_its_window_began_stands() {
    let mut target = Target::new(policy(), LINKS, 400 << 20);
    assert!(is_booked(&target_step(&mut target, 0, book(1, 1, 10_000))));
    assert!(is_booked(&target_step(&mut target, 20_000, book(1, 1, 10_000))), "the data is on its way");
    assert!(!is_booked(&target_step(&mut target, 20_000, book(2, 1, 30_000))), "in the middle of it");
}

#[test]
fn fault_a_booking_from_before_a_refusal_that_comes_again_changes_nothing() {
    let mut target = Target::new(policy(), LINKS, 400 << 20);
    target_step(&mut target, 0, book(2, 1, 10_000));
    assert!(!is_booked(&target_step(&mut target, 0, book(1, 1, 10_000))));
    let start_ns = 10_000 + window();
    assert!(is_booked(&target_step(&mut target, 1, book(1, 2, start_ns))));
    // The first message again; by now its window could be had.
    target_step(&mut target, 2, TargetEvent::Release { from: 2, round: 1 });
    assert!(!is_booked(&target_step(&mut target, 3, book(1, 1, 10_000))));
    assert!(!is_booked(&target_step(&mut target, 4, book(3, 1, start_ns))), "the second booking stands");
}

#[test]
fn fault_an_answer_to_an_earlier_booking_is_not_one_to_this() {
    let mut machine = Initiator::new(Policy { copies: 1, quorum: 1, asked: 1, ..policy() }, LINKS);
    let out = step(&mut machine, 0, write(1, &[4]));
    let (to, round, _) = booked(&answer(&mut machine, 2 * M, &out, |_| offer_at(4 * M))).expect("a booking");
    let refused = InitiatorEvent::Refused { from: to, round, attempt: 1, offer: offer_at(200_000) };
    let (_, _, second) = booked(&step(&mut machine, 4 * M, refused)).expect("another window");
    assert_eq!(second, 200_000);
    assert!(step(&mut machine, 5 * M, refused).is_empty(), "it was refused before, and is not again");
    let old = InitiatorEvent::Booked { from: to, round, attempt: 1 };
    assert!(step(&mut machine, 5 * M, old).is_empty(), "not this window");
    let out = step(&mut machine, 6 * M, InitiatorEvent::Booked { from: to, round, attempt: 2 });
    assert!(matches!(out[0], InitiatorCommand::Transfer { start_ns: 200_000, .. }), "{out:?}");
}

#[test]
fn fault_an_offer_repeated_after_it_was_booked_gives_nothing_back() {
    let mut machine = Initiator::new(HOLD, LINKS);
    let out = step(&mut machine, 0, write(1, &[1, 2, 3]));
    let (to, round, _) =
        booked(&answer(&mut machine, 2 * M, &out, |t| offer_at(4 * M + u64::from(t)))).expect("a booking");
    let again = InitiatorEvent::Offer { from: to, round, offer: offer_at(4 * M) };
    assert!(step(&mut machine, 3 * M, again).is_empty(), "it is booked");
    step(&mut machine, 4 * M, InitiatorEvent::Booked { from: to, round, attempt: 1 });
    assert!(step(&mut machine, 5 * M, again).is_empty(), "its data is on the way");
    let other = InitiatorEvent::Offer { from: 9, round, offer: offer_at(4 * M) };
    assert_eq!(step(&mut machine, 5 * M, other), [InitiatorCommand::Release { to: 9, round }]);
}

#[test]
fn fault_a_question_that_comes_twice_holds_one_window() {
    let mut target = Target::new(HOLD, LINKS, 400 << 20);
    let ask = TargetEvent::Ask { from: 1, round: 1, bytes: CHUNK, from_ns: 10_000 };
    let first = target_step(&mut target, 0, ask);
    assert_eq!((target_step(&mut target, 0, ask), target.bookings()), (first, 1));
    assert!(is_booked(&target_step(&mut target, 1, book(1, 1, 10_000))));
    target_step(&mut target, 2, ask);
    target_step(&mut target, 3, TargetEvent::Release { from: 1, round: 1 });
    assert_eq!(target.bookings(), 0, "nothing is left of it");
}

#[test]
fn fault_a_write_that_is_done_does_not_fail_as_well() {
    let mut machine = Initiator::new(Policy { copies: 2, quorum: 1, ..policy() }, LINKS);
    let mut out = step(&mut machine, 0, write(1, &[1, 2]));
    let mut sent = Vec::new();
    let mut now = 0;
    while sent.len() < 2 {
        now = now.max(wake_of(&out).unwrap_or(0)) + 2 * M;
        if asked(&out).is_empty() {
            out = step(&mut machine, now, InitiatorEvent::Tick);
            continue;
        }
        let next = answer(&mut machine, now, &out, |_| offer_at(now + 300_000));
        let (from, round, _) = booked(&next).expect("a booking");
        out = step(&mut machine, now + 2 * M, InitiatorEvent::Booked { from, round, attempt: 1 });
        sent.push(from);
    }
    let id = WriteId(1);
    now += 1_000_000;
    let out = step(&mut machine, now, InitiatorEvent::Acknowledged { id, from: sent[0] });
    assert!(out.contains(&InitiatorCommand::Done { id }));
    let out = step(&mut machine, now, InitiatorEvent::Lost { id, from: sent[1] });
    assert_eq!((out, machine.writes()), (Vec::new(), 0), "a write ends once");
}

#[test]
fn fault_full_targets_are_asked_again_later_and_not_at_once() {
    let mut machine = Initiator::new(policy(), LINKS);
    let (mut out, mut now, mut rounds, mut wake) = (step(&mut machine, 0, write(1, &[1, 2, 3])), 0, 0, 0);
    let failed = InitiatorCommand::Failed { id: WriteId(1), error: WriteError::NoAnswer };
    while !out.contains(&failed) {
        wake = wake_of(&out).unwrap_or(wake);
        if asked(&out).is_empty() {
            assert!(wake > now, "it goes on by itself");
            now = wake;
            out = step(&mut machine, now, InitiatorEvent::Tick);
        } else {
            (now, rounds) = (now + 2 * M, rounds + 1);
            out = answer(&mut machine, now, &out, |_| None);
        }
    }
    assert_eq!(rounds, 12);
    assert!(now > 1_000 * policy().patience_ns, "a calendar does not empty in {now} ns");
}

#[test]
fn fault_targets_that_offer_and_never_book_fail_the_write_within_a_bound() {
    let mut machine = Initiator::new(policy(), LINKS);
    let (mut out, mut now, mut rounds, mut wake) = (step(&mut machine, 0, write(1, &[1, 2, 3])), 0, 0, 0);
    let failed = InitiatorCommand::Failed { id: WriteId(1), error: WriteError::NoAnswer };
    while !out.contains(&failed) {
        wake = wake_of(&out).unwrap_or(wake);
        if asked(&out).is_empty() {
            assert!(wake > now, "it goes on by itself");
            now = wake;
            out = step(&mut machine, now, InitiatorEvent::Tick);
        } else {
            (now, rounds) = (now + 2 * M, rounds + 1);
            out = answer(&mut machine, now, &out, |_| offer_at(now + 2 * M));
        }
        assert!(rounds < 50, "no bound");
    }
}

#[test]
fn fault_messages_that_cannot_be_meant_harm_nobody() {
    let far = [0, 1, Nanos::MAX / 2, Nanos::MAX - 1, Nanos::MAX];
    for hold in [false, true] {
        let mut target = Target::new(Policy { hold, ..policy() }, LINKS, 400 << 20);
        for now in [0, 1 << 60] {
            for start_ns in far {
                for bytes in [0, 1, BYTES_MAX, u64::MAX] {
                    let ask = TargetEvent::Ask { from: 1, round: 1, bytes, from_ns: start_ns };
                    target_step(&mut target, now, ask);
                    target_step(&mut target, now, TargetEvent::Book { from: 1, round: 1, attempt: 1, bytes, start_ns });
                    target_step(&mut target, now, TargetEvent::Received { from: 1, round: 1, bytes });
                    target_step(&mut target, now + 1_000_000, TargetEvent::Stored { bytes });
                }
            }
        }
    }
    let mut machine = Initiator::new(policy(), LINKS);
    let big = InitiatorEvent::Write { id: WriteId(1), bytes: u64::MAX, candidates: &[1, 2, 3], salt: 1 };
    let refused = InitiatorCommand::Failed { id: WriteId(1), error: WriteError::Size };
    assert_eq!(step(&mut machine, 0, big), [refused]);
    let out = step(&mut machine, 0, write(1, &[1, 2, 3]));
    let lie = |t: NodeId| match t {
        1 => Some(Offer { start_ns: Nanos::MAX, done_ns: Nanos::MAX }),
        2 => Some(Offer { start_ns: Nanos::MAX - 5, done_ns: 4 }),
        _ => offer_at(100_000),
    };
    assert_eq!(booked(&answer(&mut machine, 2 * M, &out, lie)).map(|b| b.0), Some(3));
}

#[test]
fn a_policy_whose_times_would_run_out_of_numbers_is_refused() {
    let with = |change: fn(&mut Policy)| {
        let mut policy = policy();
        change(&mut policy);
        policy.check()
    };
    assert!(with(|p| p.patience_ns = TIMES_MAX_NS));
    assert!(!with(|p| p.patience_ns = TIMES_MAX_NS + 1) && !with(|p| p.overdue_ns = Nanos::MAX));
    assert!(!with(|p| p.ahead_ns = Nanos::MAX) && !with(|p| p.guard_ns = Nanos::MAX));
}

#[test]
fn fault_a_drive_that_was_slow_once_is_believed_again_after_a_while() {
    let mut target = Target::new(policy(), LINKS, 400 << 20);
    let takes = |target: &mut Target, now| {
        let ask = TargetEvent::Ask { from: 1, round: 9, bytes: CHUNK, from_ns: now };
        let [TargetCommand::Offer { offer: Some(offer), .. }] = target_step(target, now, ask)[..] else { panic!() };
        offer.done_ns - offer.start_ns - window()
    };
    let usual = takes(&mut target, 0);
    target_step(&mut target, 0, TargetEvent::Received { from: 1, round: 1, bytes: 4096 });
    let now = 1_000_000_000;
    target_step(&mut target, now, TargetEvent::Stored { bytes: 4096 });
    let slow = takes(&mut target, now);
    assert!(slow > 1_000 * usual, "{slow}");
    let later = takes(&mut target, now + 30_000_000_000);
    assert!(later < usual + usual / 8, "nobody would write to it to see: {later}");
}

#[test]
fn fault_those_that_were_not_silent_are_asked_first() {
    for salt in 0..20 {
        let mut machine = Initiator::new(Policy { asked: 2, copies: 1, quorum: 1, again: false, ..policy() }, LINKS);
        let candidates = [1, 2, 3, 4, 5, 6, 7];
        let event = InitiatorEvent::Write { id: WriteId(1), bytes: CHUNK, candidates: &candidates, salt };
        let mut out = step(&mut machine, 0, event);
        let mut now = 0;
        let mut silent = asked(&out);
        for _ in 0..2 {
            now += 1_000_000;
            out = step(&mut machine, now, InitiatorEvent::Tick);
            silent.extend(asked(&out));
        }
        let lively = *candidates.iter().find(|t| !silent.contains(t)).expect("six are silent");
        out = step(&mut machine, now + 1_000_000, InitiatorEvent::Tick);
        assert!(asked(&out).contains(&lively), "salt {salt}: {out:?}");
    }
}

/// One of the last few of a list; those further back are as good as made up.
fn recent<T: Copy>(list: &[T], back: usize) -> Option<T> {
    list.len().checked_sub(1 + back).map(|at| list[at])
}

proptest! {
    /// Whatever comes, in whatever order: windows of the own link are disjoint, a write ends once, and something is waited for
    /// while one is under way.
    #[test]
    fn fuzz_an_initiator_stays_sound_and_awake(
        events in prop::collection::vec((0u8..12, 0usize..8, 0u64..400_000), 100..400),
        (hold, together, quorum) in (any::<bool>(), any::<bool>(), 1u8..4),
    ) {
        let policy = Policy { copies: 3, quorum, asked: 3, hold, together, overdue_ns: 2_000_000, ..Policy::default() };
        let mut machine = Initiator::new(policy, LINKS);
        let (mut now, mut id, mut armed): (Nanos, u64, Option<Nanos>) = (0, 0, None);
        let (mut asks, mut books, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sent, mut ended): (Vec<(Nanos, Nanos)>, Vec<WriteId>) = (Vec::new(), Vec::new());
        for (kind, back, time) in events {
            now += time / 32;
            let offer = (time % 7 > 0).then_some(Offer { start_ns: now + time, done_ns: now + 2 * time });
            let (asked, booked, copy) = (recent(&asks, back), recent(&books, back / 3), recent(&copies, back));
            let event = match (kind, asked, booked, copy) {
                (0, ..) => {
                    id += 1;
                    InitiatorEvent::Write { id: WriteId(id), bytes: CHUNK, candidates: &[0, 1, 2, 3, 4], salt: time }
                }
                (1..=5, Some((from, round)), ..) => InitiatorEvent::Offer { from, round, offer },
                (6 | 7, _, Some((from, round, attempt)), _) => InitiatorEvent::Booked { from, round, attempt },
                (8, _, Some((from, round, attempt)), _) => InitiatorEvent::Refused { from, round, attempt, offer },
                (9, .., Some((id, from))) => InitiatorEvent::Acknowledged { id, from },
                (10, .., Some((id, from))) => InitiatorEvent::Lost { id, from },
                _ => {
                    now = armed.take().unwrap_or(now).max(now);
                    InitiatorEvent::Tick
                }
            };
            for command in step(&mut machine, now, event) {
                match command {
                    InitiatorCommand::Ask { to, round, .. } => asks.push((to, round)),
                    InitiatorCommand::Book { to, round, attempt, .. } => books.push((to, round, attempt)),
                    InitiatorCommand::Wake { at_ns } => armed = Some(at_ns),
                    InitiatorCommand::Transfer { id, to, start_ns, .. } => {
                        let end_ns = start_ns + LINKS.transfer_ns(CHUNK);
                        prop_assert!(start_ns >= now && sent.iter().all(|s| end_ns <= s.0 || s.1 <= start_ns));
                        sent.push((start_ns, end_ns));
                        copies.push((id, to));
                    }
                    InitiatorCommand::Done { id } | InitiatorCommand::Failed { id, .. } => {
                        prop_assert!(!ended.contains(&id), "{id:?} ends twice");
                        ended.push(id);
                    }
                    InitiatorCommand::Release { .. } => {}
                }
            }
            prop_assert!(machine.writes() == 0 || armed.is_some(), "nothing is waited for at {now}");
        }
    }
}
