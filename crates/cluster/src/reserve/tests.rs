//! The machines alone, by hand: one initiator, one target, a group of three.
//!
//! Owns: what single steps say. Never: whole runs; those are the models'.
//! Invariant: times are those that arithmetic on SURGE's constants gives.

use super::*;

const LINKS: Links = Links::surge();
const MIB: u64 = 1 << 20;

fn ask(not_before_ns: u64, round: u32) -> Ask {
    let Span { transfer_ns, window_ns } = LINKS.span(MIB);
    Ask { write: WriteId(1), round, not_before_ns, transfer_ns, window_ns }
}

fn backlog(free_ns: u64) -> Backlog {
    Backlog { free_ns, write_ns: 1_000_000, depth: 2 }
}

fn one<T: Copy>(out: &mut Vec<T>) -> T {
    assert_eq!(out.len(), 1, "one action");
    out.pop().expect("one action")
}

fn bid_of(target: &mut Target, now: u64, write: u64, free_ns: u64) -> Window {
    let mut out = Vec::new();
    let ask = Ask { write: WriteId(write), ..ask(0, 1) };
    target.step(now, TargetEvent::Request { ask, backlog: backlog(free_ns) }, &mut out);
    match one(&mut out) {
        TargetOut::Bid { window, .. } => window,
        other => panic!("{other:?}"),
    }
}

#[test]
fn times_are_surges() {
    assert_eq!((LINKS.message_ns(), LINKS.frame_ns()), (3_424, 8_080));
    assert_eq!((LINKS.span(MIB).transfer_ns, LINKS.span(MIB).window_ns), (941_482, 1_036_730));
    assert_eq!((LINKS.span(128 << 10).transfer_ns, LINKS.span(128 << 10).window_ns), (117_685, 130_553));
    assert_eq!((LINKS.framed_ns(MIB), LINKS.framed_ns(128 << 10)), (941_388, 117_673));
    let (published, corrected) = (Rules::published(&LINKS, 3), Rules::corrected(&LINKS, 3));
    assert_eq!((published.limit_first_ns, corrected.limit_first_ns), (6_000, 20_544));
}

#[test]
fn windows_follow_each_other_and_fill_holes() {
    for (rules, gap) in [(Rules::published(&LINKS, 3), 0), (Rules::corrected(&LINKS, 3), 1_000)] {
        let mut target = Target::new(rules, DriveRule::WriteThrough, LINKS);
        let mut out = Vec::new();
        let far = Ask { write: WriteId(9), ..ask(5_848 + 1_036_730 + gap, 1) };
        target.step(0, TargetEvent::Request { ask: far, backlog: backlog(0) }, &mut out);
        out.clear();
        // A hole of exactly the window, and in `corrected` of the propagation time more, is used.
        assert_eq!(bid_of(&mut target, 0, 1, 0), Window { left_ns: 5_848, right_ns: 1_042_578 });
        let second = bid_of(&mut target, 0, 2, 0);
        assert_eq!(
            second.left_ns,
            5_848 + 1_036_730 + gap + 1_036_730 + 2_000 + 1_000,
            "the first was idle's wider one"
        );
        let cancel = TargetEvent::Settle { write: WriteId(1), round: 1, granted: None };
        target.step(10, cancel, &mut out);
        assert_eq!(one(&mut out), TargetOut::Cancelled { write: WriteId(1), round: 1 });
        // A nanosecond less is not.
        assert!(bid_of(&mut target, 1, 3, 0).left_ns > second.left_ns);
    }
}

#[test]
fn a_drive_that_is_behind_delays_bids() {
    let left =
        |rule, free_ns| bid_of(&mut Target::new(Rules::published(&LINKS, 3), rule, LINKS), 0, 1, free_ns).left_ns;
    // Write-through: two chunks behind, when what is over one chunk is more than a transfer.
    assert_eq!(left(DriveRule::WriteThrough, 1_900_000), 5_848);
    assert_eq!(left(DriveRule::WriteThrough, 3_000_000), 3_000_000 - 1_000_000 - 941_482);
    // Write-back: all that is over one chunk.
    assert_eq!(left(DriveRule::WriteBack, 1_900_000), 900_000);
    assert_eq!(left(DriveRule::WriteBack, 1_000_000), 5_848);
}

#[test]
fn a_limit_is_doubled_and_averages() {
    let mut published = Limit::new(LimitRule::Published, 6_000);
    published.begin();
    assert!(!published.exceeded(11_999));
    assert!(published.exceeded(12_000));
    published.waited(1_000_000);
    published.begin();
    assert_eq!(published.ns(), 9_000, "the average of limits");
    let mut observed = Limit::new(LimitRule::Observed, 20_544);
    assert!(!observed.exceeded(20_543));
    assert!(observed.exceeded(20_544));
    observed.waited(100_000);
    assert_eq!(observed.ns(), (41_088 + 100_000) / 2, "the average with the wait");
    observed.waited(0);
    observed.waited(0);
    assert_eq!(observed.ns(), 20_544, "never below the first");
}

#[test]
fn windows_that_follow_closely_are_taken_together() {
    let use_ns = 1_035_730;
    let bid = |member, left_ns| Bid { member, window: Window { left_ns, right_ns: left_ns + 1_036_730 } };
    let mut bids = [bid(0, 9_272), bid(1, 9_272), bid(2, 9_272 + 1_035_000), bid(3, 9_272 + 2 * 1_035_730 + 3_424)];
    let choice = choose(&mut bids, 3, use_ns, &LINKS);
    assert_eq!((choice.count, &choice.places[..3]), (3, &[0, 2, 3][..]));
    assert_eq!(bids[2].window.left_ns, 9_272 + 1_035_730, "cut to begin where the first ends");
    assert!(bids[2].window.right_ns <= bids[3].window.left_ns);
    // A nanosecond too late is not close.
    let mut bids = [bid(0, 0), bid(1, 1_035_730 + 3_425)];
    assert_eq!(choose(&mut bids, 3, use_ns, &LINKS).count, 1);
    // An idle target's wider window that begins soon is preferred to the first.
    let wide = |left_ns| Bid { member: 7, window: Window { left_ns, right_ns: left_ns + 1_038_730 } };
    for (left_ns, place) in [(6_847, 1), (6_848, 0)] {
        assert_eq!(choose(&mut [bid(0, 0), wide(left_ns)], 3, use_ns, &LINKS).places[0], place);
    }
}
