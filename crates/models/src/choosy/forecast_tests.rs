//! The choosy initiator under load, loss and death.
//!
//! Owns: safety in every run (the audit), liveness after the faults, canaries. Never: a figure; those are `reproduce choosy`.
//! Invariant: a seed replays a failure.

use super::forecast::{Settings, simulate};
use super::variant::Faults;
use crate::storage::{Arrivals, Options, Outcome, Placement, Scenario, Sizes, Slow, Violation, registry};
use segue_des::Chance;

fn small() -> Scenario {
    Scenario { initiators: 12, targets: 27, drive_bytes_per_s: 1000 << 20, ..Scenario::default() }
}

fn go(settings: &Settings, scenario: &Scenario, seed: u64) -> Result<Outcome, Violation> {
    simulate(settings, scenario, seed, &mut |_| {})
}

#[test]
fn an_idle_cluster_writes_at_the_speed_of_one_link_and_one_drive() {
    let scenario = Scenario { initiators: 1, ..small() };
    let outcome = go(&Settings::of(&scenario), &scenario, 1).expect("no rule is broken");
    let timing = scenario.fabric.timing();
    // Asking, booking and the last acknowledgement; three windows, the last one without its guard; one drive.
    let messages = 5 * timing.message_ns();
    let windows = 2 * (timing.transfer_ns(128 << 10) + 1_000) + timing.framed_ns(128 << 10) + timing.trip_ns;
    let ideal_ns = messages + windows + scenario.drive_ns(0, 128 << 10);
    assert!(outcome.done.iter().all(|d| d.latency_ns == ideal_ns), "{:?}, ideal {ideal_ns}", outcome.done.first());
}

#[test]
fn sim_every_scenario_keeps_the_rules_and_goes_on() {
    for seed in 0..60 {
        let mut chance = Chance::new(seed);
        let max = 4096 << chance.below(9);
        let arrivals = match chance.below(3) {
            0 => Arrivals::Open { load_permille: chance.between(300, 950) },
            1 => Arrivals::Closed { stagger_ns: 500_000 },
            _ => Arrivals::Closed { stagger_ns: 0 },
        };
        let placement = match chance.below(2) {
            0 => Placement::Hot { groups: 1, permille: 600 },
            _ => Placement::Random,
        };
        let slow = vec![Slow { target: chance.below(27) as u32, permille: chance.between(100, 1_000) }];
        let copies = chance.between(1, 4) as u32;
        let scenario = Scenario {
            sizes: Sizes::Powers(4096, max),
            arrivals,
            placement,
            slow,
            copies,
            run_ns: 8_000_000,
            ..small()
        };
        let mut settings = Settings::of(&scenario);
        settings.groups = chance.between(1, 3) as u32;
        settings.control_queues = chance.odds(1, 2);
        settings.policy.hold = chance.odds(1, 4);
        settings.policy.together = chance.odds(1, 4);
        settings.policy.asked = chance.between(u64::from(copies), 12) as u8;
        let outcome = go(&settings, &scenario, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(outcome.counter("failed"), 0, "seed {seed}");
        assert!(outcome.done.len() > 5, "seed {seed}: {} done", outcome.done.len());
        assert_eq!(go(&settings, &scenario, seed).unwrap().trace, outcome.trace, "seed {seed} does not repeat");
    }
}

#[test]
fn sim_lost_messages_and_dead_targets_delay_writes_and_lose_none() {
    for seed in 0..20 {
        let mut chance = Chance::new(seed).stream("what fails");
        let scenario = Scenario { run_ns: 60_000_000, ..small() };
        let mut settings = Settings::of(&scenario);
        settings.policy.overdue_ns = 3_000_000;
        let dead = (0..chance.below(4)).map(|_| (chance.below(27) as u32, chance.below(20_000_000))).collect();
        let lost_permille = chance.between(1, 100);
        settings.faults = Faults { lost_permille, lost_until_ns: 20_000_000, dead };
        let outcome = go(&settings, &scenario, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(outcome.counter("lost_messages") > 0);
        assert_eq!(outcome.counter("failed"), 0, "seed {seed}: two groups are enough for a few dead targets");
        // Liveness: long after the faults nothing from before is still waiting.
        let stuck = outcome.pending.iter().filter(|p| p.age_ns > 20_000_000).count();
        assert_eq!(stuck, 0, "seed {seed}: {stuck} chunks are stuck");
        assert!(outcome.done.iter().filter(|d| d.chunk.created_ns > 30_000_000).count() > 100, "seed {seed}");
    }
}

#[test]
fn sim_a_network_that_is_gone_fails_writes_and_a_short_cut_does_not() {
    let scenario = Scenario { run_ns: 2_000_000_000, initiators: 2, ..small() };
    let mut settings = Settings::of(&scenario);
    settings.policy.overdue_ns = 3_000_000;
    settings.faults = Faults { lost_permille: 1_000, lost_until_ns: u64::MAX, ..Faults::default() };
    let outcome = go(&settings, &scenario, 1).expect("no rule is broken");
    assert_eq!((outcome.counter("failed"), outcome.done.len()), (2, 0), "a bound, and an end");
    settings.faults.lost_until_ns = 10_000_000;
    let outcome = go(&settings, &Scenario { run_ns: 100_000_000, ..scenario }, 1).expect("no rule is broken");
    assert!(outcome.counter("failed") == 0 && outcome.done.len() > 50, "{} done", outcome.done.len());
}

#[test]
fn fault_settings_reach_the_models_and_published_rules_refuse_them() {
    let scenario = Scenario { run_ns: 40_000_000, ..small() };
    let go = |model: &str, settings: &[(&str, &str)]| {
        let mut options = Options::new();
        for (key, value) in settings {
            options.set(key, value);
        }
        (registry::find(model).expect("a model").run)(&scenario, options, 1, &mut |_| {}).map_err(|e| e.to_string())
    };
    let faults = [("loss_permille", "20"), ("lossy_until", "10ms"), ("dead_targets", "2"), ("overdue", "3ms")];
    for (model, more) in [("choosy", &[][..]), ("replicast-h", &[("rules", "corrected")][..])] {
        let quiet = go(model, more).expect("no rule is broken");
        let troubled = go(model, &[&faults[..], more].concat()).expect("no rule is broken");
        let (of_quiet, of_troubled) = (quiet.latencies_ns(&scenario), troubled.latencies_ns(&scenario));
        assert!(of_troubled.iter().max() > of_quiet.iter().max(), "{model}: faults cost time");
        assert!(of_troubled.len() * 2 > of_quiet.len(), "{model}: {} of {}", of_troubled.len(), of_quiet.len());
        assert!(troubled.pending.iter().all(|p| p.age_ns < 20_000_000), "{model}: nothing is stuck");
    }
    assert!(go("replicast-h", &faults).unwrap_err().contains("rules must be corrected"));
    assert!(go("choosy", &[("dead_targets", "28")]).unwrap_err().contains("dead_targets must be"));
}

#[test]
fn sim_messages_that_come_twice_and_late_break_no_rule() {
    for seed in 0..40 {
        let mut chance = Chance::new(seed).stream("what is late");
        let initiators = chance.between(12, 90) as u32;
        let scenario = Scenario { run_ns: 40_000_000, initiators, ..small() };
        let mut settings = Settings::of(&scenario);
        settings.policy.overdue_ns = 3_000_000;
        settings.policy.hold = chance.odds(1, 2);
        settings.policy.together = chance.odds(1, 4);
        let lost_permille = chance.below(50);
        settings.faults = Faults { lost_permille, lost_until_ns: 15_000_000, ..Faults::default() };
        settings.repeat_permille = chance.between(50, 500);
        settings.late_permille = chance.between(50, 500);
        let outcome = go(&settings, &scenario, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(outcome.counter("failed"), 0, "seed {seed}");
        let stuck = outcome.pending.iter().filter(|p| p.age_ns > 20_000_000).count();
        assert_eq!(stuck, 0, "seed {seed}: {stuck} chunks are stuck");
        assert!(outcome.done.iter().filter(|d| d.chunk.created_ns > 20_000_000).count() > 100, "seed {seed}");
    }
}

#[test]
fn canary_data_without_a_booking_is_caught() {
    let mut settings = Settings::of(&small());
    settings.wrong_round_every = 20;
    let error = go(&settings, &small(), 1).expect_err("nobody was booked for it");
    assert!(matches!(error, Violation::Unbooked { .. }), "{error}");
}

#[test]
fn canary_a_double_grant_is_caught() {
    let scenario = Scenario { initiators: 60, ..small() };
    let mut settings = Settings::of(&scenario);
    settings.double_grant_every = 20;
    let error = go(&settings, &scenario, 1).expect_err("a window was given twice");
    assert!(matches!(error, Violation::Overlap { side: "target", .. }), "{error}");
}

#[test]
fn golden_trace_is_the_same_on_every_machine_and_build() {
    let outcome = go(&Settings::of(&small()), &small(), 42).expect("no rule is broken");
    assert_eq!((outcome.trace, outcome.done.len()), (4_312_128_012_366_349_566, 240));
}
