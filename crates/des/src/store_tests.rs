//! What a drive promises, against a list of services done by hand.
//!
//! Owns: the tests of `store`. Never: looks inside a drive.
//! Invariant: each promise of the module's header has a test here.

use super::*;

const MIB: u64 = 1 << 20;

fn through(mib_per_s: u64) -> Store {
    Store::new(StoreSpec::surge(mib_per_s, Policy::WriteThrough))
}

fn done(served: Served) -> (Nanos, Nanos) {
    match served {
        Served::Done { ack_ns, medium_ns } => (ack_ns, medium_ns),
        other => panic!("not done: {other:?}"),
    }
}

#[test]
fn golden_surges_drives() {
    let mut chance = Chance::new(1);
    // Reference 1.2: the drive times of both chunks at both speeds.
    for (mib_per_s, bytes, ns) in [(400, 131_072, 312_500), (400, MIB, 2_500_000), (1000, 131_072, 125_000)] {
        assert_eq!(done(through(mib_per_s).write(0, bytes, &mut chance)), (ns, ns));
    }
    let mut drive = through(1000);
    assert_eq!(done(drive.write(0, MIB, &mut chance)), (1_000_000, 1_000_000));
    assert_eq!(done(drive.write(300_000, MIB, &mut chance)), (2_000_000, 2_000_000), "in order");
    assert_eq!(drive.backlog_ns(500_000), 1_500_000);
    assert_eq!(done(drive.read(2_500_000, MIB, &mut chance)), (3_500_000, 3_500_000), "no work, no backlog");
}

#[test]
fn golden_crowded_drives() {
    let mut chance = Chance::new(1);
    let mut drive = Store::new(StoreSpec::surge_crowded(1000, Policy::WriteThrough));
    for n in 1..=24u64 {
        let (ack_ns, medium_ns) = done(drive.write(0, MIB, &mut chance));
        let more = [0, 1, 2, 3, 4, 8][(n / 4).min(5) as usize];
        assert_eq!((medium_ns, ack_ns - medium_ns), (n * 1_000_000, more * 1_000_000), "write {n}");
    }
    assert_eq!((drive.depth(0), drive.depth(23_999_999), drive.depth(24_000_000)), (24, 1, 0));
    // 2.6 transfer times left and one more: 4 to the nearest.
    let mut drive = Store::new(StoreSpec::surge_crowded(1000, Policy::WriteThrough));
    for _ in 0..3 {
        done(drive.write(0, MIB, &mut chance));
    }
    assert_eq!(done(drive.write(400_000, MIB, &mut chance)), (5_000_000, 4_000_000));
}

#[test]
fn write_back_answers_at_once_until_the_buffer_is_full() {
    let mut chance = Chance::new(1);
    let mut drive = Store::new(StoreSpec::surge(1000, Policy::WriteBack { buffer_bytes: 2 * MIB }));
    assert_eq!(done(drive.write(0, MIB, &mut chance)), (0, 1_000_000));
    assert_eq!(done(drive.write(0, MIB, &mut chance)), (2_000_000, 2_000_000), "2 ms are not less than 2 ms");
    assert_eq!(done(drive.write(1, MIB, &mut chance)), (3_000_000, 3_000_000));
    assert_eq!(done(drive.write(2_000_001, MIB, &mut chance)), (2_000_001, 4_000_000));
    assert_eq!(drive.stats().early_acks, 2);
    assert_eq!(done(drive.read(2_000_002, MIB, &mut chance)).0, 5_000_000, "a read waits for its bytes");
}

#[test]
fn latencies_occupy_the_drive_or_do_not() {
    let mut chance = Chance::new(1);
    let spec = StoreSpec::surge(1000, Policy::WriteThrough);
    let mut busy = Store::new(StoreSpec { access_ns: 60, access: Dist::Constant(40), ..spec.clone() });
    let mut free = Store::new(StoreSpec { answer: Dist::Constant(100), ..spec });
    for n in 1..=3 {
        assert_eq!(done(busy.write(0, MIB, &mut chance)), (n * 1_000_100, n * 1_000_100));
        assert_eq!(done(free.write(0, MIB, &mut chance)), (n * 1_000_000 + 100, n * 1_000_000));
    }
}

#[test]
fn fault_slow_failing_and_full_drives() {
    let mut chance = Chance::new(1);
    let mut drive = Store::new(StoreSpec { depth_max: 2, ..StoreSpec::surge(1000, Policy::WriteThrough) });
    drive.slow(Span::new(1_000_000, 1_500_000), 200);
    done(drive.write(0, MIB, &mut chance));
    assert_eq!(done(drive.write(0, MIB, &mut chance)).1, 6_000_000, "its service begins in the slow span");
    assert_eq!(drive.write(0, MIB, &mut chance), Served::Full);
    assert_eq!(done(drive.write(1_000_000, MIB, &mut chance)).1, 7_000_000);
    drive.fail(Span::from(20_000_000), Failing::Errors);
    assert_eq!(drive.write(20_000_000, MIB, &mut chance), Served::Failed { ack_ns: 21_000_000 });
    drive.fail(Span::from(30_000_000), Failing::Silence);
    assert_eq!(drive.read(30_000_000, MIB, &mut chance), Served::Silent);
    drive.heal(40_000_000);
    assert_eq!(done(drive.read(40_000_000, MIB, &mut chance)).0, 41_000_000);
    let stats = drive.stats();
    assert_eq!((stats.writes, stats.reads, stats.failed), (3, 1, 3));
    assert_eq!((stats.written_bytes, stats.busy_ns), (3 * MIB, 9_000_000), "the failed write took its time too");
}

#[test]
fn model_a_drive_works_while_it_has_a_backlog() {
    for seed in 0..20 {
        let mut chance = Chance::new(seed);
        let access = Dist::Exponential { mean: 50_000 };
        let spec = StoreSpec { access_ns: 10_000, access, ..StoreSpec::surge_crowded(500, Policy::WriteThrough) };
        let (mut drive, mut now, mut busy_until, mut idle_ns) = (Store::new(spec), 0, 0, 0);
        for _ in 0..2000 {
            now += chance.exponential(400_000);
            let before = drive.stats().busy_ns;
            let (_, medium_ns) = done(drive.write(now, chance.between(1, 300_000), &mut chance));
            idle_ns += now.saturating_sub(busy_until);
            assert_eq!(medium_ns, now.max(busy_until) + drive.stats().busy_ns - before, "seed {seed}");
            busy_until = medium_ns;
        }
        assert_eq!(drive.stats().busy_ns + idle_ns, busy_until, "seed {seed}: all time is service or idleness");
    }
}
