//! The negotiated models: accounts, planted bugs, repeats.
//!
//! Owns: what each model must show. Never: a rule of a model, or SURGE's figures; those are in `compare`.
//! Invariant: each planted bug is caught by the accounts.

use super::compare::configuration;
use super::late_reject::{self, LateReject};
use super::proxy::{self, Proxied};
use super::replicast::{self, Replicast, Rules};
use crate::storage::registry;
use crate::storage::{Acknowledge, Arrivals, Done, Options, Outcome, Placement, Scenario, Sizes, Slow, Violation, run};
use segue_des::Chance;

const MODELS: [u8; 3] = [7, 9, 0xa];

fn one(model: u8, published: bool, reads_permille: u64, scenario: &Scenario, seed: u64) -> Result<Outcome, Violation> {
    let rules = Rules { published, reads_permille };
    match model {
        7 => run(&mut Replicast::new(rules, scenario, replicast::Plant::None), scenario, seed, &mut |_| {}),
        9 => run(&mut LateReject::new(published, scenario, late_reject::Plant::None), scenario, seed, &mut |_| {}),
        _ => run(&mut Proxied::new(rules, scenario, seed, proxy::Plant::None), scenario, seed, &mut |_| {}),
    }
}

fn random(chance: &mut Chance) -> Scenario {
    let group_targets = chance.between(3, 12) as u32;
    let groups = chance.between(2, 6) as u32;
    let sizes = match chance.below(3) {
        0 => Sizes::Powers(4 << 10, 1 << chance.between(14, 22)),
        _ => Sizes::Fixed(1 << chance.between(12, 21)),
    };
    let arrivals = match chance.below(3) {
        0 => Arrivals::Open { load_permille: chance.between(100, 900) },
        1 => Arrivals::Closed { stagger_ns: chance.below(1_000_000) },
        _ => Arrivals::Closed { stagger_ns: 0 },
    };
    let targets = group_targets * groups + chance.below(2) as u32;
    let slow = |n: u64| Slow { target: (n * 7 % u64::from(targets)) as u32, permille: 300 };
    let hot = Placement::Hot { groups: 1, permille: 600 };
    Scenario {
        initiators: chance.between(1, 40) as u32,
        targets,
        group_targets,
        copies: chance.between(1, u64::from(group_targets.min(8))) as u32,
        sizes,
        arrivals,
        placement: if chance.odds(1, 3) { hot } else { Placement::Random },
        drive_bytes_per_s: chance.between(100, 3_000) << 20,
        acknowledge: if chance.odds(1, 2) { Acknowledge::WriteBack } else { Acknowledge::WriteThrough },
        slow: (0..chance.below(3)).map(slow).collect(),
        run_ns: 5_000_000,
        ..Scenario::default()
    }
}

/// Bids that are not settled and bytes that did not arrive belong to chunks that are not done.
fn nothing_is_left_over(scenario: &Scenario, outcome: &Outcome) -> bool {
    let pending = outcome.pending.len() as u64;
    let bytes: u64 = outcome.pending.iter().map(|p| p.chunk.bytes).sum();
    outcome.counter("open_bids") <= pending * u64::from(scenario.group_targets)
        && outcome.counter("in_flight_bytes") <= bytes * u64::from(scenario.copies)
}

#[test]
fn sim_invariants_hold_in_random_scenarios() {
    let mut chance = Chance::new(0x5ca1e);
    let (mut done, mut aborted, mut late) = (0, [0, 0], 0);
    for n in 0..50 {
        let scenario = random(&mut chance);
        scenario.check().expect("random scenarios are sound");
        let (seed, reads) = (chance.bits(), chance.below(501));
        for (model, published) in MODELS.iter().flat_map(|m| [(*m, false), (*m, true)]) {
            if model == 7 && published && scenario.copies == scenario.group_targets {
                continue;
            }
            let replay = || format!("scenario {n}, model {model:x}, published {published}, seed {seed}: {scenario:?}");
            let outcome = one(model, published, reads, &scenario, seed).unwrap_or_else(|e| panic!("{e}: {}", replay()));
            done += outcome.done.len();
            aborted[usize::from(published)] += outcome.counter("aborted");
            late += outcome.counter("late_rejects");
            assert!(nothing_is_left_over(&scenario, &outcome), "{:?}: {}", outcome.counters, replay());
            if matches!(scenario.arrivals, Arrivals::Closed { .. }) {
                assert_eq!(outcome.pending.len() as u32, scenario.initiators, "{}", replay());
            }
        }
    }
    assert!(done > 50_000 && aborted[0] > 100 && aborted[1] > 1_000 && late > 500, "{done} {aborted:?} {late}");
}

#[test]
fn sim_light_open_loads_leave_nothing_behind() {
    let scenario = Scenario {
        initiators: 18,
        targets: 18,
        sizes: Sizes::Powers(16 << 10, 1 << 20),
        arrivals: Arrivals::Open { load_permille: 300 },
        run_ns: 30_000_000,
        ..Scenario::default()
    };
    for (model, seed) in MODELS.iter().flat_map(|m| (1..4).map(|s| (*m, s))) {
        let outcome = one(model, false, 0, &scenario, seed).expect("no rule is broken");
        let oldest = outcome.pending.iter().map(|p| p.age_ns).max().unwrap_or(0);
        assert!(outcome.done.len() > 20 && oldest < 15_000_000, "model {model:x} seed {seed}: {oldest}");
    }
}

#[test]
fn one_chunk_alone_takes_what_arithmetic_says() {
    let scenario = Scenario { initiators: 1, run_ns: 1_300_000, ..Scenario::default() };
    let (control, message, trip, sent, drive) = (2_424, 3_424, 1_000, 117_673, 312_500);
    let after = sent + trip + drive + message;
    let first = |model, published| one(model, published, 0, &scenario, 1).unwrap().done[0].latency_ns;
    // A bid begins when it came and was answered; SURGE m7.
    assert_eq!(first(7, false), message + 2 * control + trip + after);
    // The proxy books from when the initiator knows.
    assert_eq!(first(0xa, false), 2 * message + after);
    // Three transfers after each other: two windows, which the targets' bids fix, and the last transfer.
    let window = 130_553 - trip;
    assert_eq!(first(9, false), message + 2 * control + trip + 2 * (window + trip) - 2 * trip + after);
    // SURGE counts the wait for the own link, asks again, and sends two copies at once.
    let published = one(9, true, 0, &scenario, 1).unwrap();
    assert!(published.counter("overlaps") > 0 && published.done[0].latency_ns < first(9, false));
}

#[test]
fn golden_traces_never_change() {
    let scenario = Scenario { initiators: 18, targets: 18, run_ns: 3_000_000, ..configuration(128, 1000) };
    let trace = |model, published| {
        let outcome = one(model, published, 500, &scenario, 7).unwrap();
        assert_eq!(one(model, published, 500, &scenario, 7).unwrap(), outcome, "a seed gives one result");
        outcome.trace
    };
    let traces: Vec<u64> = MODELS.iter().flat_map(|m| [trace(*m, false), trace(*m, true)]).collect();
    assert_eq!(traces, GOLDEN, "{traces:#x?}");
    let other = one(7, false, 500, &scenario, 8).unwrap().trace;
    assert_ne!(other, traces[0]);
}

const GOLDEN: [u64; 6] = [
    0x21a4a23c999af247,
    0x2d662553f8f4369b,
    0xf59119495f12638e,
    0x672ba7686ca19a05,
    0xa7263118a9379611,
    0xea3faaaa01fd3210,
];

#[test]
fn canary_planted_bugs_are_caught() {
    let scenario = Scenario { initiators: 18, targets: 18, run_ns: 5_000_000, ..configuration(128, 400) };
    let rules = Rules { published: true, reads_permille: 500 };
    let seven = |plant| run(&mut Replicast::new(rules, &scenario, plant), &scenario, 1, &mut |_| {});
    let nine = |plant| {
        let scenario = Scenario { initiators: 40, targets: 18, ..configuration(128, 1000) };
        run(&mut LateReject::new(true, &scenario, plant), &scenario, 1, &mut |_| {})
    };
    let a = |plant| run(&mut Proxied::new(rules, &scenario, 1, plant), &scenario, 1, &mut |_| {});
    let caught = |what: &str, outcome: Result<Outcome, Violation>| {
        let error = outcome.expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    };
    assert!(seven(replicast::Plant::None).is_ok());
    caught("that is not open", seven(replicast::Plant::Shifted));
    caught("overlaps", seven(replicast::Plant::DoubleGrant));
    caught("that is not open", seven(replicast::Plant::AcceptAndCancel));
    caught("different copies of 3", seven(replicast::Plant::CountTwice));
    caught("not conserved", seven(replicast::Plant::CountOnce));
    caught("was idle", seven(replicast::Plant::IdleDrive));
    let two = Scenario { initiators: 2, run_ns: 30_000_000, ..scenario.clone() };
    let long = |plant| run(&mut Replicast::new(rules, &two, plant), &two, 1, &mut |_| {}).unwrap();
    let forgotten = long(replicast::Plant::LostCancel);
    assert!(!nothing_is_left_over(&two, &forgotten), "{:?}", forgotten.counters);
    assert!(nothing_is_left_over(&two, &long(replicast::Plant::None)));
    assert!(nine(late_reject::Plant::None).is_ok());
    caught("overlaps", nine(late_reject::Plant::NoReject));
    caught("that is not open", nine(late_reject::Plant::RejectAndSettle));
    caught("that is not open", nine(late_reject::Plant::SendRejected));
    caught("that is not open", nine(late_reject::Plant::SameTarget));
    assert!(a(proxy::Plant::None).is_ok());
    caught("overlaps", a(proxy::Plant::Forgetful));
    caught("that is not open", a(proxy::Plant::ToldTwice));
    caught("that is not open", a(proxy::Plant::NotTold));
}

#[test]
fn published_replicast_hides_the_time_of_given_up_chunks() {
    // As many copies as targets: the only run is the last one, which SURGE never tries.
    let all = Scenario { initiators: 2, targets: 6, group_targets: 3, run_ns: 2_000_000, ..Scenario::default() };
    assert_eq!(one(7, true, 0, &all, 1).unwrap().done.len(), 0);
    assert!(one(7, false, 0, &all, 1).unwrap().done.len() > 3);
    let slow = |n: u32| Slow { target: 2 * n, permille: 300 + 100 * u64::from(n) };
    let uneven = Scenario {
        initiators: 60,
        targets: 18,
        group_targets: 9,
        sizes: Sizes::Fixed(64 << 10),
        drive_bytes_per_s: 1000 << 20,
        slow: (0..3).map(slow).collect(),
        run_ns: 6_000_000,
        ..all
    };
    let outcome = one(7, true, 0, &uneven, 1).unwrap();
    assert!(outcome.counter("aborted") > 5, "{:?}", outcome.counters);
    // In the closed loop a chunk comes when the last one ends, unless its time began anew.
    let ends = |d: &Done| d.chunk.created_ns + d.latency_ns;
    let anew = |outcome: &Outcome| {
        let of = |n: u32| outcome.done.iter().filter(|d| d.chunk.initiator == n).collect::<Vec<_>>();
        (0..60).any(|n| of(n).windows(2).any(|d| d[1].chunk.created_ns != ends(d[0])))
    };
    assert!(anew(&outcome) && !anew(&one(7, false, 0, &uneven, 1).unwrap()));
}

#[test]
fn reads_take_the_drives_time() {
    let scenario = configuration(128, 400);
    for model in [7, 0xa] {
        let done = |reads| one(model, false, reads, &scenario, 1).unwrap();
        let (without, with) = (done(0), done(500));
        // Three writes and a read in the time of three writes.
        let share = with.done.len() as f64 / without.done.len() as f64;
        assert!((0.65..0.9).contains(&share), "model {model:x}: {share}");
        assert!(with.counter("reads") as usize >= with.done.len() && without.counter("reads") == 0);
    }
}

#[test]
fn settings_reach_the_models() {
    let scenario = Scenario { initiators: 4, targets: 18, run_ns: 2_000_000, ..Scenario::default() };
    let with = |name: &str, key: &str, value: &str| {
        let mut options = Options::new();
        options.set(key, value);
        let model = registry::find(name).expect("it is listed");
        (model.run)(&scenario, options, 1, &mut |_| {}).map(|o| o.trace).map_err(|e| e.to_string())
    };
    for (name, model) in [("surge-7", 7), ("surge-9", 9), ("surge-a", 0xa)] {
        let published = with(name, "published", "true").unwrap();
        assert_eq!(published, one(model, true, 0, &scenario, 1).unwrap().trace);
        assert!(with(name, "publisht", "true").unwrap_err().contains("unknown setting"));
    }
    assert_eq!(with("surge-a", "reads_permille", "250"), Ok(one(0xa, false, 250, &scenario, 1).unwrap().trace));
    assert!(with("surge-7", "reads_permille", "501").unwrap_err().contains("0 to 500"));
}
