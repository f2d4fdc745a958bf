//! The models of SURGE against its results, over random scenarios, and repeated.
//!
//! Owns: runs of whole models. Never: a tolerance that a wrong model would pass; the canaries prove it.
//! Invariant: every run checks the accounts.

use super::aimd::{Aimd, Served};
use super::*;
use crate::storage::registry::Model;
use crate::storage::{Acknowledge, Arrivals, Options, Outcome, Placement, Scenario, Sizes, Slow, run};
use segue_des::Chance;

/// SURGE's table (reference 2.3): 90 x 90, acknowledged early, from a cold start.
fn published(chunk: u64, mib_per_s: u64) -> Scenario {
    Scenario {
        sizes: Sizes::Fixed(chunk),
        drive_bytes_per_s: mib_per_s << 20,
        acknowledge: Acknowledge::WriteBack,
        run_ns: if chunk > 1 << 18 { 40_000_000 } else { 10_000_000 },
        ..Scenario::default()
    }
}

fn outcome(model: &Model, scenario: &Scenario, seed: u64) -> Outcome {
    with(model, scenario, seed, &[])
}

fn with(model: &Model, scenario: &Scenario, seed: u64, settings: &[(&str, &str)]) -> Outcome {
    let mut options = Options::new();
    for (key, value) in settings {
        options.set(key, value);
    }
    (model.run)(scenario, options, seed, &mut |_| {}).expect("no rule is broken")
}

/// Mean latency in microseconds and GB/s, over seeds.
fn figures(model: &Model, scenario: &Scenario, settings: &[(&str, &str)]) -> (f64, f64) {
    let (mut mean, mut rate, seeds) = (0.0, 0.0, 3);
    for seed in 1..=seeds {
        let outcome = with(model, scenario, seed, settings);
        let latencies = outcome.latencies_ns(scenario);
        mean += latencies.iter().sum::<u64>() as f64 / latencies.len() as f64 / 1e3;
        rate += outcome.bytes_per_s(scenario) / 1e9;
    }
    (mean / seeds as f64, rate / seeds as f64)
}

/// How far ours are from theirs, as shares of theirs.
fn apart(ours: (f64, f64), theirs: (f64, f64)) -> f64 {
    (ours.0 / theirs.0 - 1.0).abs().max((ours.1 / theirs.1 - 1.0).abs())
}

const KIB: u64 = 1 << 10;

#[test]
fn golden_models_5_and_6_are_surges() {
    for (model, chunk, drive, theirs) in [
        (&CCPI, 128 * KIB, 400, (1262.7, 8.47)),
        (&CCPI, 128 * KIB, 1000, (741.6, 15.07)),
        (&CCPI, 1024 * KIB, 400, (9360.6, 7.92)),
        (&CCPI, 1024 * KIB, 1000, (5908.7, 14.68)),
        (&AIMD, 128 * KIB, 400, (1590.6, 6.79)),
        (&AIMD, 128 * KIB, 1000, (1310.6, 8.35)),
        (&AIMD, 1024 * KIB, 400, (10_223.1, 7.71)),
        (&AIMD, 1024 * KIB, 1000, (5763.1, 14.71)),
    ] {
        let as_surge: &[_] = if model.name == "surge-6" { &[("served", "number")] } else { &[] };
        let ours = figures(model, &published(chunk, drive), as_surge);
        assert!(apart(ours, theirs) < 0.06, "{} {chunk} at {drive} MiB/s: {ours:?}, SURGE {theirs:?}", model.name);
    }
}

#[test]
fn canary_a_faster_link_is_not_surges() {
    let mut scenario = published(128 * KIB, 1000);
    scenario.fabric.link_bits_per_s = 12_500_000_000;
    assert!(apart(figures(&CCPI, &scenario, &[]), (741.6, 15.07)) > 0.06);
    assert!(apart(figures(&AIMD, &scenario, &[]), (1310.6, 8.35)) > 0.06);
}

#[test]
fn model_b_is_what_arithmetic_says() {
    let scenario = Scenario { run_ns: 50_000_000, ..published(128 * KIB, 400) };
    let through = Scenario { acknowledge: Acknowledge::WriteThrough, ..scenario };
    // One command at a time: control 242 ns, 14 frames of 7,272 ns and one of 4,098 ns, 1 us, the drive, control and 1 us back.
    let one = with(&WINDOWS, &through, 1, &[("window", "1")]);
    let takes_ns = 242 + 14 * 7272 + 4098 + 1000 + 312_500 + 1242;
    assert!(one.done.iter().all(|d| d.latency_ns == takes_ns), "{:?} and not {takes_ns}", one.done[0]);
    assert_eq!(one.done.len() as u64, 90 * (through.run_ns / takes_ns));
    // Two keep the drive busy for ever: its rate, and a latency of two services (Little's law).
    let two = with(&WINDOWS, &through, 1, &[]);
    let full = 50_000_000 / 312_500 * 90;
    assert!((full - 180..=full).contains(&(two.done.len() as u64)), "{} of {full}", two.done.len());
    assert_eq!(two.done.last().expect("some").latency_ns, 2 * 312_500);
    assert_eq!(two.counter("deepest_queue"), 2);
}

#[test]
fn model_b_large_windows_wait_longer_for_nothing() {
    let scenario = Scenario { run_ns: 100_000_000, ..published(128 * KIB, 400) };
    let through = Scenario { acknowledge: Acknowledge::WriteThrough, initiators: 4, ..scenario };
    let runs = ["2", "4", "8", "16", "32"].map(|window| with(&WINDOWS, &through, 1, &[("window", window)]));
    let last = |outcome: &Outcome| outcome.done.last().expect("some").latency_ns;
    assert!(runs.windows(2).all(|pair| last(&pair[0]) < last(&pair[1])), "the drive is full with two already");
    let rates = runs.map(|outcome| outcome.bytes_per_s(&through));
    assert!(rates.iter().all(|rate| (rate / rates[0] - 1.0).abs() < 0.15), "{rates:?}");
}

#[test]
fn model_c_migrates_between_its_marks() {
    let scenario = Scenario { run_ns: 1_500_000_000, ..published(1024 * KIB, 1000) };
    let tiers = Scenario { acknowledge: Acknowledge::WriteThrough, targets: 18, ..scenario };
    let outcome = with(&TIERS, &tiers, 1, &[]);
    let count = |name| outcome.counter(name);
    assert!(count("migrated") > 500 && (40..=90).contains(&count("ssd_used_max_percent")), "{:?}", outcome.counters);
    // What the SSD took it gave on, but for what it may hold.
    assert!(count("ssd_writes") - count("migrated") <= 98, "{:?}", outcome.counters);
    // Nothing migrates where everything fits.
    let roomy = with(&TIERS, &tiers, 1, &[("ssd_capacity", "64GiB")]);
    assert_eq!((roomy.counter("migrated"), roomy.counter("stops")), (0, 0));
    assert!(roomy.counter("ssd_writes") > outcome.counter("ssd_writes"));
    // HDDs that cannot keep up stop the SSD: it fills to the high mark and only migrates.
    let slow = with(&TIERS, &tiers, 1, &[("hdd_mbps", "2"), ("hdd_window", "0")]);
    assert!(slow.counter("stops") > 0 && slow.counter("ssd_used_max_percent") >= 70, "{:?}", slow.counters);
}

#[test]
fn sim_tiers_never_stand_still() {
    for seed in 0..40 {
        let mut chance = Chance::new(seed);
        let low = chance.between(1, 60);
        let high = chance.between(low + 1, 90);
        let mut options = Options::new();
        for (key, value) in [
            ("low", low),
            ("high", high),
            ("resume", chance.between(low, high - 1)),
            ("ssd_window", chance.between(1, 64)),
            ("hdd_window", chance.below(5)),
            ("hdd_mbps", chance.between(20, 400)),
            ("ssd_mbps", chance.between(200, 4000)),
        ] {
            options.set(key, &value.to_string());
        }
        options.set("ssd_capacity", ["1MiB", "40MiB", "200MiB"][chance.below(3) as usize]);
        let scenario =
            Scenario { targets: 18, sizes: Sizes::Fixed(1024 * KIB), run_ns: 600_000_000, ..Scenario::default() };
        let outcome = (TIERS.run)(&scenario, options, seed, &mut |_| {}).expect("no rule is broken");
        let late =
            outcome.done.iter().filter(|d| d.chunk.initiator == 0 && d.chunk.created_ns + d.latency_ns > 400_000_000);
        assert!(late.count() > 20, "seed {seed}: {:?}", outcome.counters);
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let refused = |model: &Model, key: &str, value: &str| {
        let mut options = Options::new();
        options.set(key, value);
        (model.run)(&Scenario::default(), options, 1, &mut |_| {}).expect_err("out of range").to_string()
    };
    for (model, key, value) in [
        (&WINDOWS, "window", "0"),
        (&WINDOWS, "window", "1025"),
        (&TIERS, "high", "95"),
        (&TIERS, "high", "40"),
        (&TIERS, "resume", "70"),
        (&TIERS, "ssd_mbps", "0"),
        (&TIERS, "ssd_window", "0"),
        (&TIERS, "hdd_window", "9999"),
        (&CCPI, "window", "2"),
        (&AIMD, "served", "chance"),
    ] {
        let error = refused(model, key, value);
        assert!(error.contains(key), "{} {key}={value}: {error}", model.name);
    }
}

fn random_scenario(seed: u64) -> Scenario {
    let mut chance = Chance::new(seed).stream("scenario");
    let c = &mut chance;
    let mut scenario = Scenario {
        initiators: c.between(1, 40) as u32,
        targets: c.between(2, 6) as u32 * 9,
        copies: c.between(1, 4) as u32,
        drive_bytes_per_s: c.between(100, 2000) << 20,
        run_ns: 2_000_000,
        ..Scenario::default()
    };
    if c.odds(1, 2) {
        scenario.sizes = Sizes::Powers(4 * KIB, 256 * KIB);
    }
    scenario.arrivals = match c.below(3) {
        0 => Arrivals::Closed { stagger_ns: 0 },
        1 => Arrivals::Closed { stagger_ns: 500_000 },
        _ => Arrivals::Open { load_permille: c.between(200, 1500) },
    };
    if c.odds(1, 3) {
        scenario.placement = Placement::Hot { groups: 1, permille: 700 };
    }
    if c.odds(1, 3) {
        scenario.slow = vec![Slow { target: c.below(18) as u32, permille: c.between(50, 900) }];
    }
    if c.odds(1, 2) {
        scenario.acknowledge = Acknowledge::WriteBack;
    }
    scenario.fabric.link_bits_per_s = c.between(1, 40) * 1_000_000_000;
    scenario.fabric.trip_ns = c.below(20_000);
    scenario.check().expect("a sound scenario");
    scenario
}

#[test]
fn sim_random_scenarios_keep_every_rule() {
    for model in MODELS {
        let mut done = 0;
        for seed in 0..25 {
            let scenario = random_scenario(seed);
            let first = outcome(model, &scenario, seed);
            assert_eq!(first, outcome(model, &scenario, seed), "{} seed {seed} does not repeat", model.name);
            done += first.done.len();
        }
        assert!(done > 500, "{}: {done} chunks in 25 runs", model.name);
    }
}

#[test]
fn golden_traces_never_change() {
    let scenario = Scenario { run_ns: 1_000_000, ..Scenario::default() };
    let traces: Vec<u64> = MODELS.iter().map(|model| outcome(model, &scenario, 42).trace).collect();
    let golden =
        [6_925_872_780_770_479_462, 8_790_926_342_453_847_192, 16_103_594_810_951_488_123, 10_551_885_622_037_166_495];
    assert_eq!(traces, golden);
}

#[test]
fn canary_frames_on_a_busy_link_are_caught() {
    let scenario = published(128 * KIB, 1000);
    let mut aimd = Aimd::new(&scenario, Served::Turn, 1);
    aimd.blind = true;
    let error = run(&mut aimd, &scenario, 1, &mut |_| {}).expect_err("two frames at once").to_string();
    assert!(error.contains("overlaps"), "{error}");
}
