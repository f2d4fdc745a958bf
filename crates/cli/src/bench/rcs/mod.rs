//! `segue bench rcs`: recovery-conscious scheduling on this machine's threads.
//!
//! Owns: the plan of the rounds and the report. Never: compares points of different rounds.
//! Invariant: in each round every point is measured for as long, in short pieces that take turns, so that whatever else the
//! machine does meets all points alike.
//!
//! Three questions. What do many groups cost? The rate of dispatches with 1, 4, 16 and 64 groups, one worker per
//! processor. What does a clean-up block cost? Loops of nothing else. What does a faulty group do to the others? As in
//! the paper (FAST 2008, section 5): 8 workers, 16 groups of which 8 are idle, one fault per 10,000 steps of group 5, and
//! every task of it that runs then, or is dispatched while it recovers, is busy for 20 ms. Different from the paper:
//! the workers share the processors there are, and the busy groups are independent and equally loaded, so that the
//! faulty one has the same share under every policy.

mod cost;
mod load;

use super::stats::{Median, median, median_ratio};
use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use anyhow::Result;
pub use load::cpu_s;
use load::{Emulation, FAULTY, Faults, Sample, Setup};
use segue_sched::rcs::Policy;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Least rate with 64 groups over the rate with one.
const RATE_LIMIT: f64 = 0.97;
/// Most nanoseconds of a clean-up block.
const SCOPE_LIMIT_NS: f64 = 5.0;
/// Least throughput of the dynamic policy with faults over that without.
const DYNAMIC_LIMIT: f64 = 0.95;

const GROUP_COUNTS: [u16; 4] = [1, 4, 16, 64];
/// Tasks in all when groups are counted: 16 for each of the most groups.
const COUNTED_TASKS: u32 = 1024;
/// Groups and busy groups of the paths, as in the paper.
const PATH_GROUPS: (u16, u16) = (16, 8);
/// Tasks of each busy group.
const PATH_TASKS: u32 = 64;
/// Longest piece of a point: long beside a recovery, short beside what else a machine does.
const PIECE_S: f64 = 0.25;
/// Loops of each timing of a block.
const SCOPES: u32 = 5_000_000;

/// Arguments of `segue bench rcs`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Rounds; each measures every point once.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each point.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds_per_point: f64,
    /// Workers of the paths; the counting of groups uses one per processor.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// Most workers that one group may hold, in the paths.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    bound: u16,
    /// Microseconds of work in each step.
    #[arg(long, default_value_t = 2.0, value_parser = microseconds)]
    work_us: f64,
    /// Mean steps of the faulty group between two faults.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    fault_every: u64,
    /// Milliseconds of an emulated recovery.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    recovery_ms: u64,
    /// How a recovering task spends them.
    #[arg(long, value_enum, default_value_t = Emulation::Sleep)]
    recovery: Emulation,
    /// Seed of the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.01, 600.0)
}

fn microseconds(text: &str) -> Result<f64, String> {
    within(text, 0.1, 10_000.0)
}

fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number; use one from {low} to {high}"))?;
    if (low..=high).contains(&value) { Ok(value) } else { Err(format!("{value} is not within {low} to {high}")) }
}

#[derive(Serialize)]
struct Report {
    processors: u16,
    workers: u16,
    bound: u16,
    work_us: f64,
    fault_every: u64,
    recovery_ms: u64,
    recovery: &'static str,
    seed: u64,
    rounds: u32,
    seconds_per_point: f64,
    dispatch_rate: BTreeMap<u16, f64>,
    dispatch_rate_interval: BTreeMap<u16, Median>,
    rate_64_over_1: f64,
    rate_64_over_1_interval: Median,
    rate_64_over_1_limit: f64,
    /// The same, of dispatches per second of processor time: what others do on the machine cancels.
    rate_64_over_1_per_cpu: Median,
    /// Nanoseconds of processor time that a dispatch costs beside its work, with one group.
    dispatch_overhead_ns: Median,
    scope_ns: f64,
    scope_ns_interval: Median,
    scope_limit_ns: f64,
    scope_and_resource_ns: Median,
    run_ns: Median,
    paths: BTreeMap<&'static str, PathReport>,
    dynamic_bad_over_good: f64,
    dynamic_bad_over_good_interval: Median,
    dynamic_bad_over_good_limit: f64,
    performance_bad_over_good: f64,
    performance_bad_over_good_interval: Median,
    dynamic_over_performance_good: Median,
    dynamic_over_performance_bad: Median,
    passed: bool,
}

/// One policy, steps per second.
#[derive(Serialize)]
struct PathReport {
    good: f64,
    bad: f64,
    good_interval: Median,
    bad_interval: Median,
    bad_over_good: Median,
    /// Of all groups but the faulty one.
    others_bad_over_good: Median,
    /// Of the faulty group.
    faulty_bad_over_good: Median,
    /// Of the faulty group, over all rounds.
    recoveries_per_s: f64,
}

/// A point of the plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    Groups(u16),
    Path { policy: Policy, faults: bool },
}

type Samples = BTreeMap<Point, Vec<Sample>>;

/// Runs it. The answer is no when a limit is passed.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get().min(256) as u16);
    let turns = load::calibrate(args.work_us);
    let plan = plan();
    let (mut samples, mut costs) = (Samples::new(), Vec::new());
    for round in 0..args.rounds {
        eprintln!("rcs: round {} of {}", round + 1, args.rounds);
        let setups: Vec<Setup> = plan.iter().map(|point| setup(args, *point, processors, turns, round)).collect();
        let mut sums = vec![Sample::default(); plan.len()];
        let pieces = (args.seconds_per_point / PIECE_S).ceil() as usize;
        for turn in 0..pieces * plan.len() {
            let at = (turn + round as usize) % plan.len();
            sums[at] = sums[at].and(&load::measure(&setups[at])?);
        }
        plan.iter().zip(sums).for_each(|(point, sum)| samples.entry(*point).or_default().push(sum));
        costs.push(cost::measure(SCOPES));
    }
    let report = summarise(args, processors, &samples, &costs);
    global.print("bench.rcs", &report, || text(&report));
    Ok(if report.passed { ExitCode::Yes } else { ExitCode::No })
}

/// Points that are compared stand side by side.
fn plan() -> Vec<Point> {
    let groups = [1, 64, 4, 16].map(Point::Groups);
    let paths = Policy::ALL.into_iter().flat_map(|policy| [false, true].map(|faults| Point::Path { policy, faults }));
    groups.into_iter().chain(paths).collect()
}

fn setup(args: &Args, point: Point, processors: u16, turns: u32, round: u32) -> Setup {
    let seed = args.seed.wrapping_add(u64::from(round) << 32);
    let base = Setup {
        policy: Policy::Dynamic,
        workers: processors,
        groups: 1,
        busy: 1,
        bound: processors,
        tasks: COUNTED_TASKS,
        turns,
        faults: Arc::new(Faults::new(0, 0)),
        recovery: Duration::from_millis(args.recovery_ms),
        emulation: args.recovery,
        time: Duration::from_secs_f64(args.seconds_per_point.min(PIECE_S)),
    };
    match point {
        Point::Groups(groups) => Setup { groups, busy: groups, ..base },
        Point::Path { policy, faults } => Setup {
            policy,
            workers: args.workers,
            groups: PATH_GROUPS.0,
            busy: PATH_GROUPS.1,
            bound: args.bound,
            tasks: PATH_TASKS * u32::from(PATH_GROUPS.1),
            faults: Arc::new(Faults::new(if faults { args.fault_every } else { 0 }, seed)),
            ..base
        },
    }
}

fn summarise(args: &Args, processors: u16, samples: &Samples, costs: &[cost::Costs]) -> Report {
    let of = |point, what: fn(&Sample) -> f64| -> Vec<f64> { samples[&point].iter().map(what).collect() };
    let groups = |n| of(Point::Groups(n), Sample::rate);
    let per_cpu = |n| of(Point::Groups(n), Sample::rate_per_cpu);
    let path = |policy, faults| of(Point::Path { policy, faults }, Sample::rate);
    let ratio = |a: Vec<f64>, b: Vec<f64>| median_ratio(&a, &b);
    let (dynamic, performance) = (Policy::Dynamic, Policy::Performance);
    let rates: BTreeMap<u16, Median> = GROUP_COUNTS.map(|n| (n, median(&groups(n)))).into();
    let rate_64_over_1 = ratio(groups(64), groups(1));
    let overhead: Vec<f64> = per_cpu(1).iter().map(|rate| 1e9 / rate - args.work_us * 1e3).collect();
    let cost = |what: fn(&cost::Costs) -> f64| median(&costs.iter().map(what).collect::<Vec<_>>());
    let scope = cost(|c| c.scope_ns);
    let dynamic_loss = ratio(path(dynamic, true), path(dynamic, false));
    let performance_loss = ratio(path(performance, true), path(performance, false));
    let passed = rate_64_over_1.median >= RATE_LIMIT
        && scope.median <= SCOPE_LIMIT_NS
        && dynamic_loss.median >= DYNAMIC_LIMIT
        && performance_loss.median < dynamic_loss.median;
    Report {
        processors,
        workers: args.workers,
        bound: args.bound,
        work_us: args.work_us,
        fault_every: args.fault_every,
        recovery_ms: args.recovery_ms,
        recovery: if args.recovery == Emulation::Sleep { "sleep" } else { "spin" },
        seed: args.seed,
        rounds: args.rounds,
        seconds_per_point: args.seconds_per_point,
        dispatch_rate: rates.iter().map(|(n, rate)| (*n, rate.median)).collect(),
        dispatch_rate_interval: rates,
        rate_64_over_1: rate_64_over_1.median,
        rate_64_over_1_interval: rate_64_over_1,
        rate_64_over_1_limit: RATE_LIMIT,
        rate_64_over_1_per_cpu: ratio(per_cpu(64), per_cpu(1)),
        dispatch_overhead_ns: median(&overhead),
        scope_ns: scope.median,
        scope_ns_interval: scope,
        scope_limit_ns: SCOPE_LIMIT_NS,
        scope_and_resource_ns: cost(|c| c.scope_and_resource_ns),
        run_ns: cost(|c| c.run_ns),
        paths: Policy::ALL.map(|policy| (policy.name(), path_report(samples, policy))).into(),
        dynamic_bad_over_good: dynamic_loss.median,
        dynamic_bad_over_good_interval: dynamic_loss,
        dynamic_bad_over_good_limit: DYNAMIC_LIMIT,
        performance_bad_over_good: performance_loss.median,
        performance_bad_over_good_interval: performance_loss,
        dynamic_over_performance_good: ratio(path(dynamic, false), path(performance, false)),
        dynamic_over_performance_bad: ratio(path(dynamic, true), path(performance, true)),
        passed,
    }
}

fn path_report(samples: &Samples, policy: Policy) -> PathReport {
    let of = |faults, what: fn(&Sample) -> f64| -> Vec<f64> {
        samples[&Point::Path { policy, faults }].iter().map(what).collect()
    };
    let faulty = samples[&Point::Path { policy, faults: true }].iter().fold(Sample::default(), |sum, s| sum.and(s));
    let loss = |what| median_ratio(&of(true, what), &of(false, what));
    let (good, bad) = (median(&of(false, Sample::rate)), median(&of(true, Sample::rate)));
    PathReport {
        good: good.median,
        bad: bad.median,
        good_interval: good,
        bad_interval: bad,
        bad_over_good: loss(Sample::rate),
        others_bad_over_good: loss(Sample::others_rate),
        faulty_bad_over_good: loss(Sample::faulty_rate),
        recoveries_per_s: faulty.recoveries / faulty.seconds,
    }
}

fn text(report: &Report) -> String {
    let interval = |m: &Median| format!("{:.3} [{:.3}, {:.3}]", m.median, m.low, m.high);
    let mut groups = Table::new(&["groups>", "dispatches/s>", "low>", "high>"]);
    for (n, rate) in &report.dispatch_rate_interval {
        let cells = [rate.median, rate.low, rate.high].map(|rate| format!("{rate:.0}"));
        groups.row([vec![n.to_string()], cells.to_vec()].concat());
    }
    let mut paths =
        Table::new(&["policy", "good/s>", "bad/s>", "bad/good", "others bad/good", "faulty bad/good", "recoveries/s>"]);
    for policy in Policy::ALL {
        let path = &report.paths[policy.name()];
        paths.row(vec![
            policy.name().to_owned(),
            format!("{:.0}", path.good),
            format!("{:.0}", path.bad),
            interval(&path.bad_over_good),
            interval(&path.others_bad_over_good),
            interval(&path.faulty_bad_over_good),
            format!("{:.1}", path.recoveries_per_s),
        ]);
    }
    format!(
        "{}64 groups over 1: {} (at least {RATE_LIMIT}); per processor second {}; overhead {:.0} ns a dispatch\n\n\
         clean-up block: {} ns (at most {SCOPE_LIMIT_NS}); with a resource {:.1} ns; around a closure {:.1} ns\n\n\
         {}group {FAULTY} has a fault every {} steps and recovers for {} ms ({}); {} workers on {} processors, bound {}\n\
         dynamic over performance: good {}, bad {}\n",
        groups.render(),
        interval(&report.rate_64_over_1_interval),
        interval(&report.rate_64_over_1_per_cpu),
        report.dispatch_overhead_ns.median,
        interval(&report.scope_ns_interval),
        report.scope_and_resource_ns.median,
        report.run_ns.median,
        paths.render(),
        report.fault_every,
        report.recovery_ms,
        report.recovery,
        report.workers,
        report.processors,
        report.bound,
        interval(&report.dynamic_over_performance_good),
        interval(&report.dynamic_over_performance_bad),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole bench, in miniature: every point measures something, and the report has the promised keys.
    #[test]
    fn a_short_run_has_every_figure() {
        let args = Args {
            rounds: 1,
            seconds_per_point: 0.02,
            workers: 4,
            bound: 2,
            work_us: 1.0,
            fault_every: 50,
            recovery_ms: 1,
            recovery: Emulation::Sleep,
            seed: 3,
        };
        let mut samples = Samples::new();
        for point in plan() {
            let sample = load::measure(&setup(&args, point, 2, 10, 0)).unwrap();
            assert!(sample.rate() > 0.0 && sample.rate_per_cpu() > 0.0);
            samples.entry(point).or_default().push(sample);
        }
        let report = summarise(&args, 2, &samples, &[cost::measure(10)]);
        let json = serde_json::to_value(&report).unwrap();
        for key in ["/dispatch_rate/64", "/rate_64_over_1", "/scope_ns", "/dynamic_bad_over_good"] {
            assert!(json.pointer(key).is_some_and(serde_json::Value::is_number), "{key}");
        }
        for policy in ["performance", "static", "partial_dynamic", "dynamic"] {
            assert!(json["paths"][policy]["good"].as_f64().unwrap() > 0.0);
            assert!(json["paths"][policy]["bad"].as_f64().unwrap() > 0.0);
        }
        assert!(text(&report).contains("dynamic over performance"));
    }
}
