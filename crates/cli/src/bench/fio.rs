//! fio with its nbd engine, as a child process.
//!
//! Owns: the command line common to all jobs and the reading of the report. Never: interprets numbers.
//! Invariant: a job that had an error is an error here.

use crate::exit::{ExitCode, fail};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// The URI of an export on a unix socket.
pub fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// Runs one job against `uri` and gives fio's report of it.
pub fn run(uri: &str, job: &[&str]) -> Result<serde_json::Value> {
    report(uri, &["--ioengine=nbd", &format!("--uri={uri}")], job)
}

/// Runs one job on a local file with io_uring.
pub fn run_local(path: &Path, direct: bool, job: &[&str]) -> Result<serde_json::Value> {
    let (file, direct) = (format!("--filename={}", path.display()), format!("--direct={}", u8::from(direct)));
    report(&path.display().to_string(), &["--ioengine=io_uring", &file, &direct], job)
}

fn report(uri: &str, target: &[&str], job: &[&str]) -> Result<serde_json::Value> {
    let mut command = Command::new("fio");
    command.args(["--name=bench", "--output-format=json", "--randrepeat=0", "--norandommap"]);
    command.args(target).args(job);
    let output = command.output().map_err(|error| {
        fail(ExitCode::Unsupported, format!("fio does not start ({error}); `scripts/setup` installs it"))
    })?;
    let (text, words) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Warnings may stand before the report.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let report: serde_json::Value =
        serde_json::from_str(json).with_context(|| format!("read fio's report; it said: {}", words.trim()))?;
    let job = &report["jobs"][0];
    if !output.status.success() || job["error"].as_i64() != Some(0) {
        bail!("fio failed on {uri}: {}", words.trim());
    }
    Ok(job.clone())
}
