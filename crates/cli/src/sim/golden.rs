//! `segue sim check-golden`: Replicast-H by its published rules against latencies that were made elsewhere.
//!
//! Owns: the folder and its report. Never: the comparison; that is `segue_models::choosy::golden`.
//! Invariant: a folder without results, or with a file that is malformed, is never reported as equal.

use super::runner;
use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::Table;
use anyhow::{Context, Result};
use segue_models::choosy::golden::{Compared, GoldenError, Written, check, parse_groups};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `segue sim check-golden`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit code 0: every chunk is equal to the nanosecond; 1: some differ; 2: a file is malformed.")]
pub struct Args {
    /// The folder: groups.csv (initiator,chunk_index,group) and the results
    /// chunk{128k,1024k}-drive{400,1000}-{plain,renegotiate}.csv (initiator,created_ns,latency_ns).
    dir: PathBuf,
    /// Files at once (default: as many as the machine has threads).
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// The file that says which group each chunk belongs to.
const GROUPS: &str = "groups.csv";

#[derive(Serialize)]
struct Report {
    files: usize,
    chunks: u64,
    differing: u64,
    details: Vec<Detail>,
}

#[derive(Serialize)]
struct Detail {
    file: String,
    #[serde(flatten)]
    compared: Compared,
}

/// Runs the verb.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let groups_path = args.dir.join(GROUPS);
    let groups = parse_groups(&read(&groups_path)?).map_err(|e| unusable(&groups_path, &e))?;
    let names = results(&args.dir)?;
    let threads = runner::threads(args.threads.map(usize::from));
    let one = |name: &String, _: &mut runner::Meter<'_>| {
        let path = args.dir.join(name);
        let compared = check(name, &groups, &read(&path)?).map_err(|e| unusable(&path, &e))?;
        Ok(Detail { file: name.clone(), compared })
    };
    let details = runner::parallel(&names, threads, true, |_| 1, one)?;
    let report = Report {
        files: details.len(),
        chunks: details.iter().map(|d| d.compared.chunks).sum(),
        differing: details.iter().map(|d| d.compared.differing).sum(),
        details,
    };
    global.print("sim.check-golden", &report, || text(&report));
    Ok(if report.differing == 0 { ExitCode::Yes } else { ExitCode::No })
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let text = format!("{} is missing; give a folder with {GROUPS} and the results", path.display());
            fail(ExitCode::NotFound, text)
        }
        std::io::ErrorKind::InvalidData => malformed(path, &"it is not text"),
        _ => anyhow::Error::new(error).context(format!("read {}", path.display())),
    })
}

fn malformed(path: &Path, cause: &dyn std::fmt::Display) -> anyhow::Error {
    fail(ExitCode::Misuse, format!("{}: {cause}", path.display()))
}

fn unusable(path: &Path, error: &GoldenError) -> anyhow::Error {
    match error {
        GoldenError::Violation(violation) => fail(
            ExitCode::Internal,
            format!("{}: an invariant of the simulation is broken: {violation}", path.display()),
        ),
        _ => malformed(path, error),
    }
}

/// All other CSV files of the folder, by name.
fn results(dir: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.with_context(|| format!("list {}", dir.display()))?.file_name();
        let name = name.to_string_lossy().into_owned();
        if name.ends_with(".csv") && name != GROUPS {
            names.push(name);
        }
    }
    names.sort_unstable();
    if names.is_empty() {
        return Err(fail(ExitCode::NotFound, format!("{} has no results beside {GROUPS}", dir.display())));
    }
    Ok(names)
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["FILE", "CHUNKS>", "DIFFERING>", "FIRST DIFFERENCE"]);
    for Detail { file, compared } in &report.details {
        let first = compared.first_difference.map_or(String::new(), |d| {
            format!("place {}: golden {}, here {}", d.place, written(d.expected), written(d.found))
        });
        table.row(vec![file.clone(), compared.chunks.to_string(), compared.differing.to_string(), first]);
    }
    let (files, chunks, differing) = (report.files, report.chunks, report.differing);
    format!("{}{files} files, {chunks} chunks, {differing} differing\n", table.render())
}

fn written(chunk: Option<Written>) -> String {
    chunk.map_or("nothing".into(), |w| {
        format!("initiator {}, created {} ns, latency {} ns", w.initiator, w.created_ns, w.latency_ns)
    })
}
