//! Runs of Replicast-H under all rules: what must hold in each, whatever the scenario, and when things go wrong.
//!
//! Owns: the sweep over random scenarios, the planted bugs, the faults. Never: exact latencies; those are golden data.
//! Invariant: each check has a run that fails it.

use super::variant::{Faults, Variant, run, run_with};
use super::world::{Planted, World};
use crate::storage::{Acknowledge, Arrivals, Outcome, Placement, Scenario, Sizes, Slow, Violation};
use segue_cluster::reserve::{Patience, Rules};
use segue_des::Chance;

const VARIANTS: [Variant; 4] = [Variant::Plain, Variant::Published, Variant::CorrectedPlain, Variant::Corrected];

fn random(chance: &mut Chance) -> Scenario {
    let group_targets = chance.between(2, 12) as u32;
    let groups = chance.between(2, 5) as u32;
    let targets = group_targets * groups + chance.below(u64::from(group_targets)) as u32;
    let power = chance.between(12, 20);
    let scenario = Scenario {
        initiators: chance.between(1, 40) as u32,
        targets,
        group_targets,
        copies: chance.between(1, u64::from(group_targets.min(5))) as u32,
        sizes: match chance.below(4) {
            0 => Sizes::Powers(4 << 10, 1 << power),
            1 => Sizes::Fixed(chance.between(512, 300_000)),
            _ => Sizes::Fixed(1 << power),
        },
        arrivals: match chance.below(3) {
            0 => Arrivals::Closed { stagger_ns: 0 },
            1 => Arrivals::Closed { stagger_ns: chance.between(1, 2_000_000) },
            _ => Arrivals::Open { load_permille: chance.between(100, 950) },
        },
        placement: match chance.below(3) {
            0 => Placement::Hot { groups: 1, permille: 500 },
            _ => Placement::Random,
        },
        drive_bytes_per_s: chance.between(100, 3_000) << 20,
        acknowledge: *chance.pick(&[Acknowledge::WriteThrough, Acknowledge::WriteBack]),
        slow: match chance.below(3) {
            0 => vec![Slow { target: chance.below(u64::from(targets)) as u32, permille: chance.between(100, 900) }],
            _ => Vec::new(),
        },
        run_ns: chance.between(1_000_000, 6_000_000),
        ..Scenario::default()
    };
    assert_eq!(scenario.check(), Ok(()));
    scenario
}

fn corrected(variant: Variant) -> bool {
    matches!(variant, Variant::CorrectedPlain | Variant::Corrected)
}

/// What holds in every run that ended: nothing is forgotten, and no more is open than can be.
fn sound(variant: Variant, scenario: &Scenario, outcome: &Outcome) {
    let (initiators, group) = (u64::from(scenario.initiators), u64::from(scenario.group_targets));
    assert!(outcome.counter("open_bids") <= initiators * group, "{:?}", outcome.counters);
    assert!(outcome.counter("windows") >= outcome.done.len() as u64 * u64::from(scenario.copies));
    if corrected(variant) {
        assert_eq!(outcome.counter("overlaps"), 0);
        assert_eq!(
            (outcome.counter("incomplete"), outcome.counter("lost")),
            (0, 0),
            "nothing was lost, so nothing is missed"
        );
    }
    if matches!(variant, Variant::Plain | Variant::CorrectedPlain) {
        assert_eq!(outcome.counter("renegotiations"), 0);
    }
    if let Arrivals::Closed { .. } = scenario.arrivals {
        assert!(outcome.pending.len() as u64 <= initiators, "one chunk at a time");
    }
    let floor_ns = 3 * scenario.fabric.timing().message_ns();
    assert!(outcome.done.iter().all(|d| d.latency_ns > floor_ns), "a request, a bid, an acknowledgement at least");
}

#[test]
fn sim_every_rule_holds_in_random_scenarios() {
    let (mut done, mut again) = (0, 0);
    for seed in 0..60 {
        let scenario = random(&mut Chance::new(seed));
        for variant in VARIANTS {
            let outcome = run(variant, &scenario, seed, &mut |_| {}).unwrap_or_else(|violation| {
                panic!("seed {seed}, {variant:?}: {violation}; {scenario:?}");
            });
            sound(variant, &scenario, &outcome);
            done += outcome.done.len();
            again += outcome.counter("renegotiations");
        }
    }
    assert!(done > 10_000 && again > 1_000, "the sweep does something: {done} chunks, {again} renegotiations");
}

#[test]
fn sim_open_arrivals_below_the_capacity_are_served() {
    for variant in VARIANTS {
        let scenario = Scenario {
            initiators: 30,
            targets: 27,
            arrivals: Arrivals::Open { load_permille: 600 },
            run_ns: 30_000_000,
            ..Scenario::default()
        };
        let outcome = run(variant, &scenario, 3, &mut |_| {}).expect("no rule is broken");
        let came = (outcome.done.len() + outcome.pending.len()) as u64;
        let expected = scenario.capacity_bytes_per_s() * 6 / 10 / (128 << 10) * 30 / 1_000;
        assert!(came.abs_diff(expected) < expected / 5, "{came} of about {expected}");
        let oldest_ns = outcome.pending.iter().map(|p| p.age_ns).max().unwrap_or(0);
        assert!(oldest_ns < 8_000_000, "{variant:?}: nobody starves: {oldest_ns} ns");
        assert!(outcome.done.len() as u64 > came * 8 / 10);
    }
}

#[test]
fn sim_waiting_for_an_initiator_counts() {
    let scenario = |load_permille| Scenario {
        initiators: 2,
        targets: 18,
        arrivals: Arrivals::Open { load_permille },
        run_ns: 60_000_000,
        ..Scenario::default()
    };
    let mean_ns = |load| {
        let done = run(Variant::Corrected, &scenario(load), 1, &mut |_| {}).expect("no rule is broken").done;
        done.iter().map(|d| d.latency_ns).sum::<u64>() / done.len() as u64
    };
    // Two initiators' links cannot carry what eighteen targets store: chunks queue.
    assert!(mean_ns(900) > 3 * mean_ns(50), "{} and {}", mean_ns(900), mean_ns(50));
}

#[test]
fn sim_patience_changes_nothing_when_nothing_is_lost() {
    for seed in 0..12 {
        let scenario = random(&mut Chance::new(1_000 + seed));
        let patient = Variant::Corrected.rules(&scenario);
        let trusting = Rules { patience: None, ..patient };
        let done =
            |rules| run_with(rules, &Faults::default(), &scenario, seed, &mut |_| {}).expect("no rule is broken").done;
        assert_eq!(done(patient), done(trusting), "seed {seed}");
    }
}

fn planted(bug: Option<Planted>, variant: Variant) -> Result<Outcome, Violation> {
    let scenario = Scenario { sizes: Sizes::Fixed(1 << 20), run_ns: 20_000_000, ..Scenario::default() };
    let mut world = World::new(variant.rules(&scenario), &scenario);
    world.planted = bug;
    crate::storage::run(&mut world, &scenario, 1, &mut |_| {})
}

/// Initiators forget windows of their own when they ask again, and are held to rules under which they may not.
fn forgetful() -> Result<Outcome, Violation> {
    let scenario = Scenario { sizes: Sizes::Fixed(1 << 20), run_ns: 20_000_000, ..Scenario::default() };
    let rules = Variant::Corrected.rules(&scenario);
    let mut world = World::new(Rules { own_link: false, ..rules }, &scenario);
    world.rules = rules;
    crate::storage::run(&mut world, &scenario, 1, &mut |_| {})
}

#[test]
fn canary_planted_bugs_are_caught() {
    assert!(planted(None, Variant::Corrected).is_ok());
    let error = |bug| planted(Some(bug), Variant::Corrected).expect_err("it is caught");
    let overlap = forgetful().expect_err("it is caught");
    assert!(matches!(overlap, Violation::Overlap { side: "initiator", .. }), "{overlap}");
    let double = error(Planted::TwoMinds);
    assert!(matches!(double, Violation::Overlap { side: "target", .. }), "{double}");
    assert!(matches!(error(Planted::SettleTwice), Violation::NoSuchBid { .. }));
}

#[test]
fn regress_published_rules_overlap_on_the_own_link() {
    let outcome = planted(None, Variant::Published).expect("it is counted and no violation");
    assert!(outcome.counter("overlaps") > 50, "SURGE has 100 to 135: {:?}", outcome.counters);
    assert_eq!(planted(None, Variant::Plain).expect("no rule is broken").counter("overlaps"), 0);
}

/// 40 ms with faults in the first 20; copies count as lost after 3 ms.
fn troubled(seed: u64, lost_permille: u64, dead: &[(u32, u64)], acknowledge: Acknowledge) -> Outcome {
    let scenario = Scenario { initiators: 20, targets: 27, acknowledge, run_ns: 40_000_000, ..Scenario::default() };
    let patience =
        Patience { acknowledgement_ns: 3_000_000, ..Variant::Corrected.rules(&scenario).patience.expect("it has") };
    let rules = Rules { patience: Some(patience), ..Variant::Corrected.rules(&scenario) };
    let faults = Faults { lost_permille, lost_until_ns: 20_000_000, dead: dead.to_vec() };
    run_with(rules, &faults, &scenario, seed, &mut |_| {}).expect("no rule is broken, whatever is lost")
}

fn recovered(outcome: &Outcome) {
    let old = outcome.pending.iter().filter(|p| p.age_ns > 12_000_000).count();
    assert_eq!(old, 0, "what was hit is done long after: {:?}", outcome.counters);
    let late = outcome.done.iter().filter(|d| d.chunk.created_ns > 25_000_000).count();
    assert!(late > 50, "and writing goes on: {late}");
    assert!(outcome.counter("held_windows") < 27 * 40, "windows nobody uses are forgotten");
}

#[test]
fn fault_lost_messages_cost_time_and_no_chunk() {
    for (seed, permille) in [(1, 5), (2, 20), (3, 100), (4, 300), (5, 20), (6, 100)] {
        let acknowledge = if seed % 2 == 0 { Acknowledge::WriteBack } else { Acknowledge::WriteThrough };
        let outcome = troubled(seed, permille, &[], acknowledge);
        assert!(outcome.counter("lost_messages") > 0 && outcome.counter("incomplete") > 0);
        recovered(&outcome);
    }
}

#[test]
fn fault_dead_targets_are_done_without() {
    for seed in 0..4 {
        // Three of a group of nine, one from the start; and one of another group.
        let dead = [(0, 0), (4, 3_000_000), (8, 5_000_000), (13, 5_000_000)];
        let outcome = troubled(seed, 0, &dead, Acknowledge::WriteThrough);
        assert!(outcome.counter("lost") > 0, "copies were on their way to them");
        recovered(&outcome);
        let outcome = troubled(seed, 50, &dead, Acknowledge::WriteThrough);
        recovered(&outcome);
    }
}

#[test]
fn fault_too_little_patience_writes_too_much_and_breaks_nothing() {
    let mut lost = 0;
    for seed in 0..60 {
        let chance = &mut Chance::new(2_000 + seed);
        let scenario = random(chance);
        let rules = if chance.odds(1, 2) { Variant::Corrected } else { Variant::CorrectedPlain }.rules(&scenario);
        // Copies that are only slow count as lost, and are acknowledged while others are negotiated for them.
        let patience = Patience { acknowledgement_ns: chance.between(1, 500_000), ..rules.patience.expect("it has") };
        let rules = Rules { patience: Some(patience), windows_max: chance.between(3, 50) as u32, ..rules };
        let lost_permille = *chance.pick(&[0, 0, 10, 200]);
        let dead = vec![(chance.below(u64::from(scenario.targets)) as u32, chance.below(3_000_000))];
        let faults = Faults { lost_permille, lost_until_ns: u64::MAX, dead };
        let outcome = run_with(rules, &faults, &scenario, seed, &mut |_| {}).unwrap_or_else(|violation| {
            panic!("seed {seed}: {violation}; {rules:?}; {faults:?}; {scenario:?}");
        });
        assert_eq!(outcome.counter("overlaps"), 0);
        lost += outcome.counter("lost");
    }
    assert!(lost > 500, "copies counted as lost: {lost}");
}

#[test]
fn canary_trusting_rules_do_not_get_over_a_loss() {
    let scenario = Scenario { initiators: 20, targets: 27, run_ns: 40_000_000, ..Scenario::default() };
    let rules = Rules { patience: None, ..Variant::Corrected.rules(&scenario) };
    let faults = Faults { dead: vec![(0, 0)], ..Faults::default() };
    let outcome = run_with(rules, &faults, &scenario, 1, &mut |_| {}).expect("no rule is broken");
    assert!(outcome.pending.iter().filter(|p| p.age_ns > 12_000_000).count() > 10, "they wait for ever");
}
