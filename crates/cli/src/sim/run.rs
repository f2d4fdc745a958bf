//! `segue sim run`: every configuration with every seed.
//!
//! Owns: the command line, the jobs and what each gave. Never: a figure that no run gave.
//! Invariant: what is printed depends on model, settings and seeds alone, but for wall time.

use super::configurations::{self, Configuration, Nodes};
use super::figures::Figures;
use super::runner;
use super::seeds::Seeds;
use super::warmup::{self, Ask, WarmUp};
use super::{files, show};
use crate::Global;
use crate::bench::rcs::cpu_s;
use crate::exit::{ExitCode, fail};
use anyhow::{Context, Result};
use segue_models::storage::Outcome;
use segue_models::storage::registry::{Model, RunError};
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `segue sim run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which model; `segue sim list` shows them.
    model: String,
    #[command(flatten)]
    nodes: Nodes,
    /// Seeds, both ends included: 1..20, or 5, or 1,3,7. Same seed, same run, on every machine.
    #[arg(long, default_value = "1..10")]
    seeds: Seeds,
    /// A setting; several values (key=a,b) make several configurations, several settings their cross product.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Leave out chunks created before this: a duration, or auto (MSER-5) (default: the setting warm_up).
    #[arg(long, value_name = "auto|DURATION")]
    warm_up: Option<Ask>,
    /// Runs at once (default: as many as the machine has threads).
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print only each seed's trace hash: equal hashes on two machines are equal runs.
    #[arg(long, conflicts_with = "out")]
    trace: bool,
    /// Write the figures as JSON and CSV, every chunk, and plots as SVG into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A seed of a configuration.
struct Job<'a> {
    configuration: &'a Configuration,
    seed: u64,
}

/// What it gave.
pub struct Run {
    pub seed: u64,
    pub outcome: Outcome,
    /// Wall time of the run, seconds.
    pub wall_s: f64,
    /// Processor time of the run, seconds: what other programs take is not in it.
    pub cpu_s: f64,
}

/// A configuration and its runs, in the order of the seeds.
pub struct Results {
    pub configuration: Configuration,
    pub runs: Vec<Run>,
    pub warm_up: WarmUp,
}

/// Runs the verb.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let model = configurations::model(&args.model)?;
    let rows = configurations::all(model, &args.nodes, &args.settings)?;
    let threads = runner::threads(args.threads.map(usize::from));
    if let Some(dir) = &args.out {
        // Before minutes of work, not after.
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let mut results = all(model, rows, args.seeds.all(), threads, false)?;
    if args.trace {
        global.print("sim.trace", &show::traces_json(model, &results), || show::traces(&results));
    } else {
        for of in &mut results {
            warmup::cut(of, args.warm_up)?;
            if let Some(error) = &of.warm_up.error {
                eprintln!("segue: {}: {error}, with --set run=DURATION; nothing was cut", of.configuration.name());
            }
        }
        let figures: Vec<Figures> = results.iter().map(Figures::of).collect();
        let json = show::json(model, threads, &results, &figures);
        if let Some(dir) = &args.out {
            files::write(dir, &json, &results, &figures)?;
        }
        global.print("sim.run", &json, || show::text(&results, &figures));
    }
    Ok(ExitCode::Yes)
}

/// Runs every configuration with every seed on so many threads.
///
/// # Errors
/// A setting that the model refuses, or a broken invariant, with the command that shows it.
pub fn all(
    model: &Model,
    configurations: Vec<Configuration>,
    seeds: &[u64],
    threads: usize,
    quiet: bool,
) -> Result<Vec<Results>> {
    let jobs: Vec<Job<'_>> = configurations
        .iter()
        .flat_map(|configuration| seeds.iter().map(move |seed| Job { configuration, seed: *seed }))
        .collect();
    let cost = |job: &Job<'_>| {
        let scenario = &job.configuration.scenario;
        scenario.run_ns.saturating_mul(u64::from(scenario.initiators))
    };
    let runs = runner::parallel(&jobs, threads, quiet, cost, |job, meter| {
        let (scenario, own) = (&job.configuration.scenario, job.configuration.own.clone());
        let (begun, cpu_before_s) = (Instant::now(), cpu_s(libc::CLOCK_THREAD_CPUTIME_ID));
        let outcome = (model.run)(scenario, own, job.seed, &mut |p| meter.at(p.now_ns, scenario.run_ns, p.events))
            .map_err(|error| refused(model, job, error))?;
        let wall_s = begun.elapsed().as_secs_f64();
        let cpu_s = cpu_s(libc::CLOCK_THREAD_CPUTIME_ID) - cpu_before_s;
        meter.at(1, 1, outcome.events);
        Ok(Run { seed: job.seed, outcome, wall_s, cpu_s })
    })?;
    let mut runs = runs.into_iter();
    let take = |configuration: Configuration| {
        let warm_up = WarmUp { ns: configuration.scenario.warm_up_ns, from: warmup::From::Setting, error: None };
        Results { configuration, runs: runs.by_ref().take(seeds.len()).collect(), warm_up }
    };
    Ok(configurations.into_iter().map(take).collect())
}

fn refused(model: &Model, job: &Job<'_>, error: RunError) -> anyhow::Error {
    match error {
        RunError::Options(error) => fail(ExitCode::Misuse, error.to_string()),
        RunError::Violation(violation) => {
            let scenario = &job.configuration.scenario;
            let set: String = job.configuration.settings.iter().map(|(k, v)| format!(" --set {k}={v}")).collect();
            let (name, initiators, targets, seed) = (model.name, scenario.initiators, scenario.targets, job.seed);
            let replay =
                format!("segue sim run {name} --initiators {initiators} --targets {targets} --seeds {seed}{set}");
            fail(ExitCode::Internal, format!("an invariant of {name} is broken: {violation}; shown by: {replay}"))
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use segue_models::storage::{Chunk, Done, Key, OptionError, Options, Pending, Progress, Scenario, Violation};

    fn stub(
        scenario: &Scenario,
        mut own: Options,
        seed: u64,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, RunError> {
        let takes_ns = own.duration("takes")?.unwrap_or(1_000);
        let age_ns = own.duration("age")?.unwrap_or(9);
        own.finish()?;
        if takes_ns > scenario.run_ns {
            return Err(Violation::Idle { now_ns: 5, target: 2 }.into());
        }
        let chunk = |n: u64| Chunk { initiator: 0, group: 0, second_group: 1, bytes: 1_000, created_ns: n * 1_000 };
        let latency_ns = |n: u64| match takes_ns {
            0 => {
                if n < 30 {
                    9_000
                } else {
                    1_000
                }
            }
            _ => takes_ns * (n + 1) + seed,
        };
        progress(Progress { now_ns: scenario.run_ns / 2, events: 50 });
        Ok(Outcome {
            done: (0..100).map(|n| Done { chunk: chunk(n), latency_ns: latency_ns(n) }).collect(),
            pending: vec![Pending { chunk: chunk(100), age_ns }],
            events: 100,
            trace: seed ^ takes_ns,
            counters: vec![("rounds", 100 * seed)],
            scheduled_max: 4,
        })
    }

    /// A model whose results are known: chunk n of 100 takes (n + 1) * `takes` + seed nanoseconds, one is left.
    pub const STUB: Model = Model {
        name: "stub",
        about: "known results",
        source: "none",
        keys: &[
            Key { name: "takes", about: "latency; 0ns settles after 30 chunks", default: "1us" },
            Key { name: "age", about: "of what is left", default: "9ns" },
        ],
        run: stub,
    };

    /// The results of the stub.
    pub fn stubbed(settings: &[&str], seeds: u64, threads: usize) -> Result<Vec<Results>> {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        let rows = configurations::all(&STUB, &Nodes::default(), &settings)?;
        all(&STUB, rows, Seeds::first(seeds).all(), threads, true)
    }

    #[test]
    fn runs_stand_by_configuration_and_seed() {
        for threads in [1, 2] {
            let results = stubbed(&["takes=1us,2us"], 3, threads).unwrap();
            let traces: Vec<Vec<u64>> =
                results.iter().map(|r| r.runs.iter().map(|run| run.outcome.trace).collect()).collect();
            assert_eq!(traces, [[1 ^ 1_000, 2 ^ 1_000, 3 ^ 1_000], [1 ^ 2_000, 2 ^ 2_000, 3 ^ 2_000]]);
        }
    }

    #[test]
    fn a_broken_invariant_prints_the_command_that_shows_it() {
        let error = stubbed(&["takes=1s"], 1, 1).err().unwrap();
        assert_eq!(crate::exit::code_of(&error), ExitCode::Internal);
        let text = error.to_string();
        assert!(text.contains("the drive of target 2"), "{text}");
        assert!(text.contains("segue sim run stub --initiators 90 --targets 90 --seeds 1 --set takes=1s"), "{text}");
        let bad = stubbed(&["takes=soon"], 1, 1).err().unwrap();
        assert_eq!(bad.to_string(), OptionError::Duration { key: "takes" }.to_string());
    }
}
