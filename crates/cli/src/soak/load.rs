//! The load of a soak: fio on one volume, pass after pass, verifying what it wrote.
//!
//! Owns: fio's job and the reading of its result. Never: retries a request; that is what is judged.
//! Invariant: every error of fio is counted, as a wrong byte or as a failed request.

use super::stage::Stage;
use serde::Serialize;
use std::iter::Sum;
use std::process::Command;
use std::time::Instant;

/// What fio says of a block that does not hold what was written (EILSEQ).
const VERIFY_ERRNO: i64 = 84;
/// Failed passes of one volume after which it is not asked any more.
const FAILED_MAX: u64 = 10;

/// What all passes came to.
#[derive(Default, Serialize)]
pub struct Tally {
    /// Passes: each writes the volume once at random and reads it back.
    pub passes: u64,
    pub requests: u64,
    pub verify_errors: u64,
    pub failed_requests: u64,
    /// The longest that a request took.
    pub latency_ns_max: u64,
    /// What fio said of the first failures.
    pub said: Vec<String>,
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Tally>>(all: I) -> Tally {
        all.fold(Tally::default(), |mut sum, one| {
            sum.passes += one.passes;
            sum.requests += one.requests;
            sum.verify_errors += one.verify_errors;
            sum.failed_requests += one.failed_requests;
            sum.latency_ns_max = sum.latency_ns_max.max(one.latency_ns_max);
            sum.said.extend(one.said);
            sum
        })
    }
}

/// Runs passes on a volume until the time is over.
pub fn run(stage: &Stage, volume: u32, seed: u64, until: Instant) -> Tally {
    let mut tally = Tally::default();
    let mut pass = 0;
    while (Instant::now() < until || pass == 0) && tally.verify_errors + tally.failed_requests < FAILED_MAX {
        let seed = (seed * 1000 + u64::from(volume)) * 100_000 + pass;
        one_pass(stage, volume, pass, seed, &mut tally);
        pass += 1;
    }
    tally
}

fn one_pass(stage: &Stage, volume: u32, pass: u64, seed: u64, tally: &mut Tally) {
    // Sizes and flushes change from pass to pass, so that every path of the engine has its turn.
    let sizes = ["--bs=4k", "--bsrange=4k-64k", "--bs=512", "--bsrange=512-16k"][pass as usize % 4];
    let part = if pass % 4 >= 2 { "--io_size=2m" } else { "--io_size=32m" };
    let mut command = Command::new("fio");
    command.args(["--name=soak", "--ioengine=nbd", "--output-format=json", "--rw=randwrite", "--iodepth=16"]);
    command.args(["--size=32m", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=512", "--fsync=64"]);
    command.args([sizes, part, "--bs_unaligned=0"]).arg(format!("--randseed={seed}"));
    command.arg(format!("--uri={}", stage.uri(volume))).arg(format!("--aux-path={}", stage.path("").display()));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return failed(tally, volume, format!("fio does not start ({error})")),
    };
    let (text, words) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value =
        serde_json::from_str(text.find('{').map_or("", |at| &text[at..])).unwrap_or(serde_json::Value::Null);
    let job = &report["jobs"][0];
    let error = job["error"].as_i64();
    tally.passes += 1;
    for kind in ["read", "write", "sync"] {
        tally.requests += job[kind]["total_ios"].as_u64().unwrap_or(0);
        tally.latency_ns_max = tally.latency_ns_max.max(job[kind]["clat_ns"]["max"].as_u64().unwrap_or(0));
        tally.latency_ns_max = tally.latency_ns_max.max(job[kind]["lat_ns"]["max"].as_u64().unwrap_or(0));
    }
    if !output.status.success() || error != Some(0) {
        if error == Some(VERIFY_ERRNO) {
            tally.verify_errors += 1;
            tally.said.push(format!("volume {volume}, pass {pass}: {}", words.trim()));
        } else {
            failed(tally, volume, format!("pass {pass}: {}", words.trim()));
        }
    }
}

fn failed(tally: &mut Tally, volume: u32, what: String) {
    tally.failed_requests += 1;
    tally.said.push(format!("volume {volume}: {what}"));
}
