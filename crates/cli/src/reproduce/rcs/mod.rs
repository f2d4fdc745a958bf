//! `segue reproduce rcs`: the paper's table, ours beside it, and the larger machines it only expects.
//!
//! Owns: the order of the runs, seeds and progress. Never: a figure that no run gave.
//! Invariant: run `i` of every row has the same seed, so ratios are made seed by seed.

mod files;
mod results;

use crate::Global;
use crate::exit::{ExitCode, fail};
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use results::{LargerResult, Results, RowResult};
use segue_models::rcs::{Figures, Setup};
use segue_types::parse_duration_ns;
use std::path::PathBuf;

/// Arguments of `segue reproduce rcs`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Runs of each row, with seeds SEED, SEED + 1, and so on.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first seed. Same seeds, same figures, on every machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulated time per run that counts (the paper averaged over 30m).
    #[arg(long, default_value = "4s", value_name = "DURATION")]
    simulate: String,
    /// At most two seeds of one second and no long recoveries: seconds instead of a minute or two.
    #[arg(long)]
    quick: bool,
    /// Write the figures as JSON and CSV and plots as SVG into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Seeds of a cell of the larger machines.
const LARGER_SEEDS: u64 = 2;

/// Runs the experiment.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let measure_ns = parse_duration_ns(&args.simulate).ok().filter(|ns| *ns >= 100_000_000).ok_or_else(|| {
        fail(ExitCode::Misuse, "--simulate takes a duration of at least 100ms, for example 4s or 30m")
    })?;
    if let Some(dir) = &args.out {
        // Before minutes of work, not after.
        std::fs::create_dir_all(dir)?;
    }
    let (seeds, measure_ns) =
        if args.quick { (args.seeds.min(2), measure_ns.min(1_000_000_000)) } else { (args.seeds, measure_ns) };
    let recoveries_ms: &[u64] = if args.quick { &[20] } else { &[20, 200, 2_000] };
    let rows = segue_models::rcs::rows(measure_ns);
    let least_ns = measure_ns.min(1_000_000_000);
    let larger = segue_models::rcs::larger(&[16, 64, 256], recoveries_ms, least_ns);
    let mut runner = Runner::new(args.seed, &rows, &larger, seeds);
    let rows = rows.into_iter().map(|row| {
        let n = seeds.min(row.seeds_max);
        let (good, bad) = (runner.runs(row.title, &row.setup, false, n), runner.runs(row.title, &row.setup, true, n));
        RowResult { row, good, bad }
    });
    let rows = rows.collect();
    let mut good_of = Vec::new();
    let mut cells = Vec::new();
    for cell in larger {
        let n = seeds.min(LARGER_SEEDS);
        let name = format!("{} cores, {}, recoveries of {} ms", cell.setup.cores(), cell.policy, cell.recovery_ms);
        // Without faults the length of a recovery changes nothing: one good path serves all lengths.
        let key = (cell.policy, cell.setup.copies);
        if !good_of.iter().any(|(k, _)| *k == key) {
            let short = Setup { measure_ns: least_ns, ..cell.setup };
            good_of.push((key, runner.runs(&name, &short, false, n)));
        }
        let good = good_of.iter().find(|(k, _)| *k == key).expect("just put there").1.clone();
        let bad = runner.runs(&name, &cell.setup, true, n);
        cells.push(LargerResult { cell, good, bad });
    }
    runner.bar.finish_and_clear();
    let results = Results { rows, larger: cells, seed: args.seed, seeds, measure_ns };
    if let Some(dir) = &args.out {
        files::write(dir, &results)?;
    }
    global.print("reproduce.rcs", &results.json(), || results.text());
    Ok(ExitCode::Yes)
}

/// Runs setups and tells how far it is.
struct Runner {
    seed: u64,
    bar: ProgressBar,
}

/// What a run costs, in simulated tasks: the unit of progress.
fn cost(setup: &Setup) -> u64 {
    let tasks_per_second = 2_840_000_000 / setup.work.front_ns.max(1) * u64::from(setup.copies);
    (setup.warm_up_ns + setup.measure_ns) / 1_000_000 * tasks_per_second / 1_000
}

impl Runner {
    fn new(seed: u64, rows: &[segue_models::rcs::Row], larger: &[segue_models::rcs::Larger], seeds: u64) -> Runner {
        let table: u64 = rows.iter().map(|r| 2 * seeds.min(r.seeds_max) * cost(&r.setup)).sum();
        let grid: u64 = larger.iter().map(|c| seeds.min(LARGER_SEEDS) * cost(&c.setup)).sum();
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %, {eta} to go: {msg}");
        let bar = ProgressBar::new(table + grid).with_style(style.expect("a fixed template is sound"));
        Runner { seed, bar }
    }

    fn runs(&mut self, name: &str, setup: &Setup, faults: bool, seeds: u64) -> Vec<Figures> {
        let setup = Setup { faults, ..*setup };
        self.bar.set_message(format!("{name}, {} path", if faults { "bad" } else { "good" }));
        let run = |i| {
            let figures = segue_models::rcs::run(&setup, self.seed + i);
            self.bar.inc(cost(&setup));
            figures
        };
        (0..seeds).map(run).collect()
    }
}
