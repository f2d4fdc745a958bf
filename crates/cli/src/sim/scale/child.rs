//! One row of `segue sim scale` in a process of its own: its memory is nobody else's.
//!
//! Owns: starting this program again for a row, and what it measures there. Never: a second row in one process.
//! Invariant: all repeats of a row give the same trace hash, or the row is an error.

use super::rows::Row;
use crate::bench::process::status_bytes;
use crate::bench::rcs::cpu_s;
use crate::exit::{ExitCode, fail};
use crate::sim::{configurations, run, runner};
use anyhow::{Context, Result};
use segue_models::hold::Hold;
use segue_models::storage::registry::Model;
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What the child is asked for: the value of `--child`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub model: String,
    pub row: Row,
    pub seed: u64,
    /// Simulations at once.
    pub threads: usize,
    /// Repeats go on until they took this long.
    pub repeat_ns: u64,
}

/// What it measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Events of one simulation.
    pub events: u64,
    /// Chunks written, and in flight at the end.
    pub chunks: [usize; 2],
    pub trace: String,
    /// Wall time of each repeat, seconds; with several threads: until the last of them was done.
    pub wall_s: Vec<f64>,
    /// Processor time of each repeat, seconds, of one simulation (of several threads: their mean).
    pub cpu_s: Vec<f64>,
    /// Most events that were scheduled at once.
    pub scheduled_max: usize,
    /// Peak resident memory of the process, bytes.
    pub rss_bytes: u64,
    /// Events per second of processor time of the queue alone with so many scheduled (hold model), one thread.
    pub queue_events_per_s: f64,
}

/// A repeat is not begun once there are so many.
const REPEATS_MAX: usize = 200;

impl Measured {
    /// Adds another round's figures of the same row.
    ///
    /// # Errors
    /// When the rounds' runs were not the same.
    pub fn merge(&mut self, other: Measured) -> Result<()> {
        if self.trace != other.trace {
            let text = format!("two rounds gave the traces {} and {}; please report it", self.trace, other.trace);
            return Err(fail(ExitCode::Internal, text));
        }
        self.wall_s.extend(other.wall_s);
        self.cpu_s.extend(other.cpu_s);
        self.rss_bytes = self.rss_bytes.max(other.rss_bytes);
        self.queue_events_per_s = self.queue_events_per_s.max(other.queue_events_per_s);
        Ok(())
    }
}

/// Starts a child for `task` and reads what it measured.
///
/// # Errors
/// The child's own, with its exit code.
pub fn measure(task: &Task) -> Result<Measured> {
    let program = std::env::current_exe().context("find this program")?;
    let text = serde_json::to_string(task).expect("a task is plain data");
    let mut command = Command::new(program);
    command.args(["sim", "scale", "--child", &text]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("start a row's process")?;
    if !output.status.success() {
        let code = output.status.code().and_then(|code| ExitCode::from_number(u8::try_from(code).ok()?));
        let nodes = task.row.nodes;
        let text = format!("the row of {nodes} nodes failed ({}); its message is above", output.status);
        return Err(fail(code.unwrap_or(ExitCode::Internal), text));
    }
    serde_json::from_slice(&output.stdout).context("read a row's figures")
}

/// What the child does.
///
/// # Errors
/// A task that is not one, a setting that is refused, a broken invariant, repeats that differ.
pub fn work(text: &str) -> Result<Measured> {
    let task: Task = serde_json::from_str(text)
        .map_err(|e| fail(ExitCode::Misuse, format!("--child takes a row's task as JSON: {e}")))?;
    let model = configurations::model(&task.model)?;
    let mut measured = repeats(model, &task)?;
    measured.rss_bytes = status_bytes(std::process::id(), "VmHWM")?;
    measured.queue_events_per_s = queue_rate(measured.scheduled_max, task.repeat_ns);
    Ok(measured)
}

fn repeats(model: &Model, task: &Task) -> Result<Measured> {
    let configuration = task.row.configuration(model)?;
    let seeds: Vec<u64> = (task.seed..).take(task.threads).collect();
    let mut measured: Option<Measured> = None;
    let begun = Instant::now();
    loop {
        let start = Instant::now();
        let results = run::all(model, vec![configuration.clone()], &seeds, task.threads, true)?.remove(0);
        let wall_s = start.elapsed().as_secs_f64();
        let first = &results.runs[0].outcome;
        let trace = format!("{:016x}", first.trace);
        let m = measured.get_or_insert_with(|| Measured {
            events: first.events,
            chunks: [first.done.len(), first.pending.len()],
            trace: trace.clone(),
            wall_s: Vec::new(),
            cpu_s: Vec::new(),
            scheduled_max: first.scheduled_max,
            rss_bytes: 0,
            queue_events_per_s: 0.0,
        });
        if m.trace != trace {
            let text = format!("two runs of seed {} gave {} and {trace}; please report it", task.seed, m.trace);
            return Err(fail(ExitCode::Internal, text));
        }
        m.wall_s.push(if task.threads == 1 { results.runs[0].wall_s } else { wall_s });
        m.cpu_s.push(results.runs.iter().map(|r| r.cpu_s).sum::<f64>() / task.threads as f64);
        let (n, spent_s) = (m.wall_s.len(), begun.elapsed().as_secs_f64());
        if n >= REPEATS_MAX || spent_s * 1e9 >= task.repeat_ns as f64 {
            return Ok(measured.expect("there was a repeat"));
        }
    }
}

/// Median of five.
fn queue_rate(pending: usize, repeat_ns: u64) -> f64 {
    let events = (repeat_ns / 1_000).clamp(10_000, 1_000_000);
    let mut hold = Hold::new(u32::try_from(pending.max(1)).unwrap_or(u32::MAX), 1);
    let one = |_| {
        let before_s = cpu_s(libc::CLOCK_THREAD_CPUTIME_ID);
        std::hint::black_box(hold.run(events));
        events as f64 / (cpu_s(libc::CLOCK_THREAD_CPUTIME_ID) - before_s).max(1e-9)
    };
    // The first one warms the caches.
    let rates: Vec<f64> = (0..6).map(one).skip(1).collect();
    crate::bench::stats::median(&rates).median
}

/// Simulations at once that were asked for.
pub fn threads(asked: Option<u16>) -> usize {
    asked.map_or(1, |n| runner::threads(Some(usize::from(n))))
}
