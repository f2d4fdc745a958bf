//! What a link promises, against frames sent one by one and by planted faults.
//!
//! Owns: the tests of `link`. Never: looks inside a link.
//! Invariant: each promise of the module's header has a test here.

use super::*;

fn surge() -> Link {
    Link::new(LinkSpec::SURGE)
}

fn done(sent: Sent) -> (Nanos, Nanos) {
    match sent {
        Sent::Sent { done_ns, arrives_ns, .. } => (done_ns, arrives_ns),
        other => panic!("not on its way: {other:?}"),
    }
}

#[test]
fn model_a_chunk_equals_its_frames_sent_one_by_one() {
    let mut chance = Chance::new(1);
    for (bytes, expect_ns) in [(1 << 20, 941_388), (128 << 10, 117_673), (9000, 8080), (1, 0)] {
        let (chunk, _) = done(surge().send(0, bytes, Class::Data, &mut chance));
        let (mut link, mut left, mut last) = (surge(), bytes, 0);
        while left > 0 {
            let frame = left.min(9000);
            last = done(link.send(last, frame, Class::Data, &mut chance)).0;
            left -= frame;
        }
        assert_eq!((chunk, last), (expect_ns, expect_ns), "{bytes} bytes");
    }
}

#[test]
fn data_and_control_do_not_delay_each_other() {
    let mut chance = Chance::new(1);
    let mut link = surge();
    link.send(0, 1 << 20, Class::Data, &mut chance);
    assert_eq!(done(link.send(10, 300, Class::Control, &mut chance)), (2434, 3434));
    assert_eq!(done(link.send(11, 300, Class::Control, &mut chance)), (4858, 5858));
    assert_eq!(done(link.send(20, 9000, Class::Data, &mut chance)), (941_388 + 8080, 942_388 + 8080));
    let stats = link.stats();
    assert_eq!((stats.taken, stats.taken_bytes, stats.busy_ns), (4, [(1 << 20) + 9000, 600], [949_468, 4848]));
    // Nothing reserved: one queue for both.
    let framing = Framing { control_permille: 0, ..Framing::SURGE };
    let mut link = Link::new(LinkSpec { framing, ..LinkSpec::SURGE });
    let (data, _) = done(link.send(0, 1 << 20, Class::Data, &mut chance));
    assert!(done(link.send(10, 300, Class::Control, &mut chance)).0 > data);
}

#[test]
fn the_queue_is_bounded_and_drains() {
    let mut chance = Chance::new(1);
    let mut link = Link::new(LinkSpec { queue_bytes_max: 20_000, ..LinkSpec::SURGE });
    let (first, _) = done(link.send(0, 9000, Class::Data, &mut chance));
    done(link.send(0, 9000, Class::Data, &mut chance));
    assert_eq!(link.send(0, 9000, Class::Data, &mut chance), Sent::Full);
    assert_eq!(link.waiting_bytes(first - 1), 18_000);
    assert_eq!(link.waiting_bytes(first), 9000);
    let (third, _) = done(link.send(first, 9000, Class::Data, &mut chance));
    assert_eq!((third, link.stats().refused), (3 * 8080, 1), "the refused one took no time");
}

#[test]
fn fault_a_cut_refuses_and_takes_what_is_on_its_way() {
    let mut chance = Chance::new(1);
    let mut link = surge();
    let (before, _) = done(link.send(0, 9000, Class::Data, &mut chance));
    link.cut(Span::from(before + 500));
    assert!(!link.survives(0, before + 1000), "cut while it propagated");
    assert!(link.survives(0, before + 499));
    assert_eq!(link.send(before + 500, 9000, Class::Data, &mut chance), Sent::Down);
    link.heal(before + 900);
    assert!(link.is_up(before + 900) && !link.survives(0, before + 1000), "healing brings nothing back");
    assert_eq!(done(link.send(before + 900, 9000, Class::Data, &mut chance)).0, before + 900 + 8080);
    // A cut that is known beforehand takes what would still be on its way then.
    link.cut(Span::new(100_000, 200_000));
    assert!(matches!(link.send(95_000, 9000, Class::Data, &mut chance), Sent::Lost { done_ns: 103_080 }));
    assert_eq!(link.send(199_999, 1, Class::Control, &mut chance), Sent::Down);
    assert!(matches!(link.send(200_000, 1, Class::Control, &mut chance), Sent::Sent { .. }));
}

#[test]
fn fault_added_delay_keeps_the_order() {
    let mut chance = Chance::new(1);
    let mut link = surge();
    link.delay(Span::new(0, 8081), 50_000);
    let (_, slow) = done(link.send(0, 9000, Class::Data, &mut chance));
    let (_, next) = done(link.send(0, 9000, Class::Data, &mut chance));
    let (_, control) = done(link.send(0, 300, Class::Control, &mut chance));
    assert_eq!((slow, next, control), (59_080, 59_080, 53_424), "held up behind the slow one, not before it");
}

#[test]
fn fault_loss_comes_at_its_rate_and_takes_its_time() {
    let mut chance = Chance::new(1);
    let mut link = Link::new(LinkSpec { loss_per_million: 100_000, ..LinkSpec::SURGE });
    let mut lost = 0;
    for n in 1..=10_000 {
        match link.send(0, 9000, Class::Data, &mut chance) {
            Sent::Lost { done_ns } => lost += u64::from(done_ns == n * 8080),
            sent => assert_eq!(done(sent).0, n * 8080),
        }
    }
    assert!((900..1100).contains(&lost) && lost == link.stats().lost, "{lost} of 10,000 lost");
    let (mut a, mut b) = (Chance::new(1), Chance::new(1));
    surge().send(0, 9000, Class::Data, &mut a);
    assert_eq!(a.bits(), b.bits(), "a link without loss draws nothing");
}
