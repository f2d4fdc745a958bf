//! Independent runs in parallel, with their progress on stderr.
//!
//! Owns: threads, the bar, events per second, the time to go. Never: knows what a run is; never a result's order.
//! Invariant: the results stand in the order of the jobs, whatever the number of threads.

use crate::exit::{ExitCode, fail};
use anyhow::Result;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use rayon::prelude::*;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The machine's number of threads, or what was asked for.
pub fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1)
}

/// The progress of one job: how much of its cost is behind it.
pub struct Meter<'a> {
    bar: &'a ProgressBar,
    events: &'a AtomicU64,
    cost: u64,
    behind: u64,
    events_behind: u64,
}

impl Meter<'_> {
    /// The job has done `part` of `whole` and handled `events` since it began.
    pub fn at(&mut self, part: u64, whole: u64, events: u64) {
        let behind = (u128::from(self.cost) * u128::from(part.min(whole)) / u128::from(whole.max(1))) as u64;
        self.bar.inc(behind.saturating_sub(self.behind));
        self.behind = self.behind.max(behind);
        self.events.fetch_add(events.saturating_sub(self.events_behind), Ordering::Relaxed);
        self.events_behind = self.events_behind.max(events);
    }
}

/// Runs `job` for every one of `jobs` on so many threads. `cost` is the unit of progress: for a simulation, virtual time times nodes.
/// `quiet` shows no bar (a bar is also not shown when stderr is not a terminal).
///
/// # Errors
/// The error of a job; jobs that had not begun are left out then.
pub fn parallel<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    quiet: bool,
    cost: impl Fn(&J) -> u64 + Sync,
    run: impl Fn(&J, &mut Meter<'_>) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let events = Arc::new(AtomicU64::new(0));
    let total = jobs.iter().map(&cost).fold(0, u64::saturating_add);
    let bar = if quiet { ProgressBar::hidden() } else { bar(total, Arc::clone(&events)) };
    let failed = AtomicBool::new(false);
    let one = |job: &J| {
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        let cost = cost(job);
        let mut meter = Meter { bar: &bar, events: &events, cost, behind: 0, events_behind: 0 };
        let result = run(job, &mut meter);
        let events = meter.events_behind;
        meter.at(1, 1, events);
        failed.fetch_or(result.is_err(), Ordering::Relaxed);
        Some(result)
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool =
        pool.map_err(|e| fail(ExitCode::Io, format!("start {threads} threads: {e}; try fewer with --threads")))?;
    // One job at a time from the front: neighbours cost alike, so the last ones to end are short.
    let results: Vec<Option<Result<R>>> = pool.install(|| jobs.par_iter().with_max_len(1).map(one).collect());
    bar.finish_and_clear();
    results.into_iter().flatten().collect()
}

fn bar(total: u64, events: Arc<AtomicU64>) -> ProgressBar {
    let begun = Instant::now();
    let rate = move |state: &ProgressState, to: &mut dyn Write| {
        let _ = (state, write!(to, "{}", rate_text(events.load(Ordering::Relaxed), begun.elapsed().as_secs_f64())));
    };
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %, {rate}, {eta} to go");
    let bar = ProgressBar::new(total).with_style(style.expect("a fixed template is sound").with_key("rate", rate));
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

/// "4.21 M events/s".
pub fn rate_text(events: u64, seconds: f64) -> String {
    format!("{:.2} M events/s", events as f64 / seconds.max(1e-9) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..100).collect();
        for threads in [1, 2, 5] {
            let squares = parallel(
                &jobs,
                threads,
                true,
                |_| 1,
                |n, meter| {
                    meter.at(1, 2, 10);
                    Ok(n * n)
                },
            );
            assert_eq!(squares.unwrap(), jobs.iter().map(|n| n * n).collect::<Vec<_>>(), "{threads} threads");
        }
    }

    #[test]
    fn progress_never_exceeds_the_whole() {
        let bar = ProgressBar::hidden();
        bar.set_length(1_000);
        let events = AtomicU64::new(0);
        let mut meter = Meter { bar: &bar, events: &events, cost: 1_000, behind: 0, events_behind: 0 };
        for (part, count) in [(1, 5), (3, 9), (2, 9), (7, 12)] {
            meter.at(part, 4, count);
        }
        assert_eq!((bar.position(), events.load(Ordering::Relaxed)), (1_000, 12));
        assert_eq!(rate_text(3_000_000, 2.0), "1.50 M events/s");
    }

    #[test]
    fn an_error_ends_the_rest() {
        let begun = AtomicU64::new(0);
        let result: Result<Vec<u64>> = parallel(
            &[0; 1_000],
            1,
            true,
            |_| 1,
            |_, _| {
                begun.fetch_add(1, Ordering::Relaxed);
                Err(fail(ExitCode::Internal, "planted"))
            },
        );
        assert_eq!(result.unwrap_err().to_string(), "planted");
        assert_eq!(begun.load(Ordering::Relaxed), 1, "the others were not begun");
    }
}
