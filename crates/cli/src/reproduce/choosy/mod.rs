//! `segue reproduce choosy`: the choosy initiator's published figures, ours beside them, cold and warm apart.
//!
//! Owns: which runs there are, and in which order. Never: a figure that no run gave.
//! Invariant: run `i` of every entrant has the same seed, so gains are made seed by seed.

mod files;
mod results;
mod shapes;
mod stress;
mod text;

use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::sim::runner::{Meter, parallel, threads};
use anyhow::Result;
use results::{ConfigurationResult, Results, StressResult};
use segue_models::choosy::judge::{self, Configuration, Entrant, Run, Stress, Trial};
use std::path::PathBuf;

/// Arguments of `segue reproduce choosy`.
///
/// All gains and cuts, in the table and in JSON, are percent of the plain rules' figure: 7.0 means 7 % lower.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Runs of each cell, with seeds SEED, SEED + 1, and so on.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first seed. Same seeds, same figures, on every machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// At most three seeds and short steady runs: seconds instead of a minute or two.
    #[arg(long)]
    quick: bool,
    /// Also hot spots, slow drives, staggered starts, mixed sizes and open arrivals at 60 to 95 % load (at most 10 seeds), and
    /// the candidates; with --quick one row of each kind, and no candidates unless asked for.
    #[arg(long)]
    stress: bool,
    /// Also the candidates that were tried and did not become the product's choice, losers too.
    #[arg(long)]
    candidates: bool,
    /// Write the figures as JSON and CSV and plots as SVG into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Threads; all of the machine's by default. The figures do not depend on it.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
}

/// Seeds of a row of the stress matrix.
const STRESS_SEEDS: u64 = 10;
/// Seeds of `--quick`.
const QUICK_SEEDS: u64 = 3;

/// Runs the experiment.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    if let Some(dir) = &args.out {
        // Before minutes of work, not after.
        std::fs::create_dir_all(dir)?;
    }
    let results = measure(args)?;
    if let Some(dir) = &args.out {
        files::write(dir, &results)?;
    }
    global.print("reproduce.choosy", &shapes::json(&results), || text::text(&results));
    Ok(ExitCode::Yes)
}

fn entrants(candidates: bool) -> Vec<Entrant> {
    let shipped = [judge::PLAIN, judge::PUBLISHED, judge::CORRECTED_PLAIN, judge::CORRECTED, judge::BEST];
    let tried = judge::CANDIDATES.iter().filter(|_| candidates);
    shipped.into_iter().chain(tried.copied()).collect()
}

/// The matrix; of a quick one, one row of each kind.
fn stress_rows(configurations: &[Configuration], quick: bool) -> Vec<Stress> {
    let mut kinds = Vec::new();
    let mut rows = judge::matrix(configurations);
    rows.retain(|row| {
        let known = kinds.contains(&row.kind);
        kinds.push(row.kind);
        !(quick && known)
    });
    rows
}

/// One run.
struct Cell<'a> {
    trial: &'a Trial,
    entrant: &'a Entrant,
    seed: u64,
}

fn measure(args: &Args) -> Result<Results> {
    let seeds = if args.quick { args.seeds.min(QUICK_SEEDS) } else { args.seeds };
    let seeds: Vec<u64> = (0..seeds).map(|n| args.seed.wrapping_add(n)).collect();
    let few = &seeds[..seeds.len().min(STRESS_SEEDS as usize)];
    let entrants = entrants(args.candidates || (args.stress && !args.quick));
    let of = |c: Configuration| if args.quick { c.quick() } else { c };
    let configurations: Vec<Configuration> = judge::CONFIGURATIONS.into_iter().map(of).collect();
    let trials: Vec<[Trial; 2]> = configurations.iter().map(|c| [c.cold(), c.steady()]).collect();
    let matrix = if args.stress { stress_rows(&configurations, args.quick) } else { Vec::new() };
    let mut cells = Vec::new();
    let mut add = |trial, seeds: &[u64]| {
        for entrant in &entrants {
            cells.extend(seeds.iter().map(|seed| Cell { trial, entrant, seed: *seed }));
        }
    };
    trials.iter().flatten().for_each(|trial| add(trial, &seeds));
    matrix.iter().for_each(|row| add(&row.trial, few));
    let mut runs = parallel(&cells, threads(args.threads.map(|n| n as usize)), false, cost, one)?.into_iter();
    let mut take = |seeds: &[u64]| -> Vec<Vec<Run>> {
        entrants.iter().map(|_| runs.by_ref().take(seeds.len()).collect()).collect()
    };
    let configurations = configurations.into_iter().zip(trials).map(|(configuration, [_, steady_trial])| {
        let (cold, steady) = (take(&seeds), take(&seeds));
        ConfigurationResult { configuration, steady_trial, cold, steady }
    });
    let configurations = configurations.collect();
    let stress = matrix.into_iter().map(|row| StressResult { runs: take(few), row }).collect();
    let series = [judge::PLAIN, judge::PUBLISHED, judge::BEST].iter().map(|e| points(e, args.seed));
    let series = series.collect::<Result<_>>()?;
    Ok(Results { seed: args.seed, seeds: seeds.len(), quick: args.quick, entrants, configurations, series, stress })
}

/// Grows with the events of a run: chunks that the targets can take in its time.
fn cost(cell: &Cell<'_>) -> u64 {
    let scenario = &cell.trial.scenario;
    let bytes = u128::from(scenario.capacity_bytes_per_s()) * u128::from(scenario.run_ns) / 1_000_000_000;
    (bytes / u128::from(scenario.mean_bytes())) as u64
}

fn one(cell: &Cell<'_>, meter: &mut Meter<'_>) -> Result<Run> {
    let run_ns = cell.trial.scenario.run_ns;
    let run = cell.trial.run(cell.entrant, cell.seed, &mut |p| meter.at(p.now_ns, run_ns, p.events));
    let run = run.map_err(|broken| {
        let name = cell.entrant.name;
        fail(ExitCode::Internal, format!("{name}, seed {}: an invariant does not hold: {broken}", cell.seed))
    })?;
    meter.at(run_ns, run_ns, run.events);
    Ok(run)
}

fn points(entrant: &Entrant, seed: u64) -> Result<(&'static str, Vec<judge::Point>)> {
    let outcome = (entrant.run)(&judge::figure_scenario(), seed, &mut |_| {})
        .map_err(|broken| fail(ExitCode::Internal, format!("{}, seed {seed}: {broken}", entrant.name)))?;
    Ok((entrant.name, judge::points(&outcome)))
}
