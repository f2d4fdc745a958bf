//! The judging, with numbers that are known.
//!
//! Owns: its canaries: an entrant that is no better gains nothing, one that is better or worse is seen. Never: a long run.
//! Invariant: a test fails when a chunk is dropped from an account.

use super::*;
use crate::storage::{Arrivals, Chunk, Done, Outcome, Pending, Scenario};
use segue_des::stats::Exact;

fn chunk(created_ns: u64) -> Chunk {
    Chunk { initiator: 0, group: 0, second_group: 1, bytes: 1_000, created_ns }
}

/// Two chunks of 100 and 300 ns in the span, one that ends after it, one that never ends, and one outside.
fn outcome() -> Outcome {
    let done = |created_ns, latency_ns| Done { chunk: chunk(created_ns), latency_ns };
    Outcome {
        done: vec![done(10, 900), done(1_000, 100), done(1_200, 300), done(1_900, 700), done(2_000, 50)],
        pending: vec![Pending { chunk: chunk(1_500), age_ns: 1_500 }],
        events: 0,
        trace: 0,
        counters: vec![],
        scheduled_max: 0,
    }
}

fn span(censored: bool) -> Span {
    Span { name: "all", from_ns: 1_000, until_ns: 2_000, censored }
}

#[test]
fn a_censored_span_hides_what_an_uncensored_one_counts() {
    let censored = span(true).sample(&outcome());
    assert_eq!((censored.latencies_ns.values(), censored.pending, censored.ages), ([100, 300].as_slice(), 2, 0));
    let all = span(false).sample(&outcome());
    assert_eq!((all.latencies_ns.values(), all.pending, all.ages), ([100, 300, 700, 1_500].as_slice(), 1, 1));
    assert_eq!((all.latencies_ns.mean(), all.figures().chunks), (650.0, 3));
    assert_eq!((all.bytes, all.figures().gb_per_s), (2_000, 2.0), "ends at 1,100 and 1,500, but not at 910 or 2,600");
}

#[test]
fn figures_of_a_known_sample() {
    let sample =
        Sample { latencies_ns: Exact::new((1..=1_000).map(|n| n * 10_000).collect()), span_ns: 1, ..Sample::default() };
    let figures = sample.figures();
    assert_eq!((figures.p50_us, figures.p90_us, figures.p99_us), (5_000.0, 9_000.0, 9_900.0));
    assert_eq!((figures.p999_us, figures.max_us, figures.mean_us), (9_990.0, 10_000.0, 5_005.0));
    assert_eq!(figures.share_over_7ms, 0.301, "7 ms itself counts");
    let both = pool([
        &sample,
        &Sample { latencies_ns: Exact::new(vec![1, 20_000_000]), ages: 1, pending: 1, ..Sample::default() },
    ]);
    assert_eq!((both.latencies_ns.count(), both.latencies_ns.values()[0], both.figures().chunks), (1_002, 1, 1_001));
    assert_eq!(Sample::default().figures(), Figures::default(), "nothing has no latency");
}

fn run_of(latencies_ns: &[u64]) -> Run {
    let sample = Sample { latencies_ns: Exact::new(latencies_ns.to_vec()), ..Sample::default() };
    let (chunks, renegotiations, control_messages, overlaps, events, trace) = (0, 0, 0, 0, 0, 0);
    Run { samples: vec![sample], chunks, renegotiations, control_messages, overlaps, events, trace }
}

#[test]
fn gains_are_paired_by_seed() {
    let base = [run_of(&[100, 300]), run_of(&[1_000, 3_000]), run_of(&[50, 150])];
    let of = [run_of(&[90, 270]), run_of(&[800, 2_400]), run_of(&[35, 105])];
    let mean = gain(&base, &of, 0);
    // 10, 20 and 30 %: t(2) = 4.303, s / sqrt(3) = 5.7735.
    assert!((mean.gain - 20.0).abs() < 1e-9 && (mean.hi - 20.0 - 24.843).abs() < 1e-2, "{mean:?}");
    assert!((mean.lo + mean.hi - 40.0).abs() < 1e-9 && mean.seeds == 3);
    let (p99, max) = (cut(Figure::P99, &base, &of, 0), cut(Figure::Max, &base, &of, 0));
    assert!((p99.gain - 20.0).abs() < 1e-9 && (max.gain - 20.0).abs() < 1e-9);
    let four = average(Figure::Mean, &[(&base, &of, 0), (&base, &base, 0)]);
    assert!((four.gain - 10.0).abs() < 1e-9 && (four.hi - four.gain - 12.42).abs() < 1e-2, "{four:?}");
}

#[test]
fn a_seed_without_chunks_gives_no_gain() {
    let gain = gain(&[run_of(&[]), run_of(&[100])], &[run_of(&[5]), run_of(&[50])], 0);
    assert_eq!((gain.gain, gain.seeds), (50.0, 1));
}

fn short() -> Trial {
    let configuration = Configuration {
        cold_ns: 2_000_000,
        warm_up_ns: 2_000_000,
        steady_ns: 6_000_000,
        drain_ns: 4_000_000,
        ..CONFIGURATIONS[1]
    };
    let mut trial = configuration.steady();
    trial.spans.truncate(3);
    trial
}

fn runs(trial: &Trial, entrant: &Entrant) -> Vec<Run> {
    (1..=6).map(|seed| trial.run(entrant, seed, &mut |_| {}).expect("no rule is broken")).collect()
}

/// The plain rules under other seeds: no better, but not the same runs.
const PLANTED_EQUAL: Entrant = Entrant {
    name: "planted-equal",
    title: "planted-equal",
    about: "plain under other seeds",
    run: |scenario, seed, progress| (PLAIN.run)(scenario, seed + 1_000, progress),
};

/// The plain rules, each latency a twentieth longer.
const PLANTED_WORSE: Entrant = Entrant {
    name: "planted-worse",
    title: "planted-worse",
    about: "plain, a twentieth slower",
    run: |scenario, seed, progress| {
        let mut outcome = (PLAIN.run)(scenario, seed + 1_000, progress)?;
        outcome.done.iter_mut().for_each(|done| done.latency_ns += done.latency_ns / 20);
        Ok(outcome)
    },
};

#[test]
fn canary_an_equal_entrant_gains_nothing_and_a_worse_one_is_seen() {
    let trial = short();
    let steady = trial.span("steady");
    let plain = runs(&trial, &PLAIN);
    let same = gain(&plain, &runs(&trial, &PLAIN), steady);
    assert_eq!((same.gain, same.lo, same.hi), (0.0, 0.0, 0.0));
    let equal = gain(&plain, &runs(&trial, &PLANTED_EQUAL), steady);
    assert!(equal.lo < 0.0 && equal.hi > 0.0, "the interval holds 0: {equal:?}");
    let worse = gain(&plain, &runs(&trial, &PLANTED_WORSE), steady);
    assert!(worse.hi < 0.0, "the interval is clear of 0: {worse:?}");
}

#[test]
fn the_steady_run_starts_as_the_cold_one() {
    let configuration = Configuration { cold_ns: 1_500_000, steady_ns: 3_000_000, drain_ns: 0, ..CONFIGURATIONS[0] };
    let cold = (PLAIN.run)(&configuration.cold().scenario, 3, &mut |_| {}).unwrap();
    let mut scenario = configuration.cold().scenario;
    scenario.run_ns = configuration.steady_ns;
    let longer = (PLAIN.run)(&scenario, 3, &mut |_| {}).unwrap();
    assert_eq!(longer.done[..cold.done.len()], cold.done[..], "the end of a run changes nothing before it");
    assert!(longer.done.len() > cold.done.len());
}

#[test]
fn sim_the_published_gain_is_surges_and_a_transient() {
    let seeds = |trial: &Trial, entrant: &Entrant| -> Vec<Run> {
        (1..=4).map(|seed| trial.run(entrant, seed, &mut |_| {}).expect("no rule is broken")).collect()
    };
    for configuration in &CONFIGURATIONS {
        let mut trial = configuration.cold();
        let part = configuration.cold_ns / 5;
        trial.spans.push(Span { name: "first", from_ns: 0, until_ns: part / 2, censored: false });
        trial.spans.push(Span { name: "later", from_ns: 2 * part, until_ns: 4 * part, censored: false });
        let (plain, published) = (seeds(&trial, &PLAIN), seeds(&trial, &PUBLISHED));
        let [cold, first, later] = ["cold", "first", "later"].map(|name| gain(&plain, &published, trial.span(name)));
        let (chunk, drive) = (configuration.chunk_bytes, configuration.drive_mbps);
        // Four seeds; the command's twenty come closer.
        assert!((cold.gain - configuration.surge.cold_gain).abs() < 3.5, "{chunk} at {drive}: {cold:?}");
        assert!(first.gain > 25.0 && later.gain < 12.0, "{chunk} at {drive}: {first:?} {later:?}");
        let mean = pool(plain.iter().map(|run| &run.samples[0])).figures().mean_us;
        assert!((mean / configuration.surge.off.mean_us - 1.0).abs() < 0.03, "{chunk} at {drive}: {mean} us");
    }
}

#[test]
fn sim_only_overlapping_windows_are_faster_than_a_link() {
    let configuration = CONFIGURATIONS[TAIL_CONFIGURATION];
    let timing = figure_scenario().fabric.timing();
    let alone_ns = 3 * timing.framed_ns(1 << 20) + timing.trip_ns + 1_000_000 + timing.message_ns();
    let faster = |entrant: &Entrant| {
        let run = configuration.cold().run(entrant, 1, &mut |_| {}).expect("no rule is broken");
        run.samples[0].latencies_ns.values().iter().filter(|ns| **ns < alone_ns).count()
    };
    for entrant in [PLAIN, CORRECTED_PLAIN, CORRECTED, BEST] {
        assert_eq!(faster(&entrant), 0, "{}", entrant.name);
    }
    assert!(faster(&PUBLISHED) > 30, "the published defect: copies at once on one link");
}

#[test]
fn floors_are_what_arithmetic_says() {
    let floors: Vec<u64> = CONFIGURATIONS.iter().map(Configuration::floor_ns).collect();
    // 90 chunks at 90 drives' 400 MiB/s over 3; else 3 transfers, a trip, a write and a message.
    let alone = |transfer: u64, write: u64| 3 * transfer + 1_000 + write + 3_424;
    let near = |a: u64, b: u64| a.abs_diff(b) * 100_000 < b;
    assert!(near(floors[0], 937_500) && near(floors[2], 7_500_000), "{floors:?}");
    assert_eq!([floors[1], floors[3]], [alone(117_673, 125_000), alone(941_388, 1_000_000)]);
}

#[test]
fn series_are_in_order_of_creation_with_an_average() {
    let points = points(&outcome());
    assert_eq!(points.iter().map(|p| p.created_ns).collect::<Vec<_>>(), [10, 1_000, 1_200, 1_900, 2_000]);
    assert_eq!(moving_average(&points, 2), [900.0, 500.0, 200.0, 500.0, 375.0]);
    assert_eq!(moving_average(&points, 99)[4], 410.0);
}

#[test]
fn every_trial_can_be_run_and_its_names_are_unique() {
    let stress = matrix(&CONFIGURATIONS);
    assert_eq!(stress.len(), 4 * 10 + 4);
    let published = CONFIGURATIONS.iter().flat_map(|c| [c.cold(), c.steady(), c.quick().steady()]);
    for trial in published.chain(stress.iter().map(|s| s.trial.clone())) {
        trial.scenario.check().expect("a sound scenario");
        let last_ns = trial.spans.iter().map(|s| s.until_ns).max().unwrap();
        assert!(last_ns <= trial.scenario.run_ns);
        assert!(trial.spans.iter().all(|s| s.from_ns < s.until_ns && trial.span(s.name) < trial.spans.len()));
    }
    let all = [PLAIN, PUBLISHED, CORRECTED_PLAIN, CORRECTED, BEST].into_iter().chain(CANDIDATES.iter().copied());
    let mut names: Vec<_> = all.map(|e| e.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 5 + CANDIDATES.len());
    for row in &stress {
        let open = matches!(row.trial.scenario.arrivals, Arrivals::Open { .. });
        assert_eq!(row.offered_gb_per_s().is_some(), open, "{}", row.about);
    }
    assert_eq!(figure_scenario(), Scenario { run_ns: 40_000_000, ..CONFIGURATIONS[3].scenario() });
}
