//! Golden data: chunk latencies that the published rules gave elsewhere for given groups.
//!
//! Owns: its files' names and form, and the comparison. Never: a file; text comes in.
//! Invariant: a chunk that is missing, more than expected, late or early by a nanosecond is a difference.

use super::variant::{Variant, run};
use crate::storage::{Arrivals, Placement, Scenario, Sizes, Violation};
use segue_types::Nanos;
use std::sync::Arc;

/// The first line of the file that gives each initiator's groups.
const GROUPS_HEADER: &str = "initiator,chunk_index,group";
/// The first line of a file of latencies.
const RESULT_HEADER: &str = "initiator,created_ns,latency_ns";

/// Why golden data cannot be used. Correct the named line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GoldenError {
    /// The first line is another one.
    #[error("line 1 is not {expected:?}")]
    Header {
        /// What it must be.
        expected: &'static str,
    },
    /// Not three numbers.
    #[error("line {line} is not three whole numbers with commas between them")]
    Line {
        /// Counted from 1.
        line: usize,
    },
    /// An initiator's chunks are not numbered in order, or initiators are not.
    #[error("line {line}: initiators and their chunks must be numbered from 0 in order")]
    Order {
        /// Counted from 1.
        line: usize,
    },
    /// No group of that number.
    #[error("line {line}: groups are 0 to 9")]
    Group {
        /// Counted from 1.
        line: usize,
    },
    /// Groups for another number of initiators.
    #[error("groups are given for {found} initiators instead of 90")]
    Initiators {
        /// How many.
        found: usize,
    },
    /// The file's name is no configuration.
    #[error(
        "a file of latencies is named chunk{{KiB}}k-drive{{MiB/s}}-plain.csv or ...-renegotiate.csv, as chunk128k-drive400-plain.csv"
    )]
    Name,
    /// The run broke a rule.
    #[error("an invariant of the simulation does not hold")]
    Violation(#[from] Violation),
}

/// A chunk of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Written {
    /// Who wrote it.
    pub initiator: u32,
    /// When it came, nanoseconds.
    pub created_ns: Nanos,
    /// How long it took, nanoseconds.
    pub latency_ns: Nanos,
}

/// Where results first differ: the place in the order of completion, and what each has there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Difference {
    /// Counted from 0.
    pub place: usize,
    /// In the file.
    pub expected: Option<Written>,
    /// In this run.
    pub found: Option<Written>,
}

/// A comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Compared {
    /// Chunks in the file.
    pub chunks: u64,
    /// Places of the order of completion at which file and run differ.
    pub differing: u64,
    /// The first of them.
    pub first_difference: Option<Difference>,
}

fn lines<'a>(
    text: &'a str,
    header: &'static str,
) -> Result<impl Iterator<Item = (usize, Result<[u64; 3], GoldenError>)> + 'a, GoldenError> {
    let mut lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
    if lines.next().map(|l| l.1) != Some(header) {
        return Err(GoldenError::Header { expected: header });
    }
    Ok(lines.map(|(line, text)| (line, numbers(text).ok_or(GoldenError::Line { line }))))
}

fn numbers(line: &str) -> Option<[u64; 3]> {
    let mut parts = line.split(',').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

/// The groups of each initiator's chunks, in order.
///
/// # Errors
/// Names the first line that is malformed.
pub fn parse_groups(text: &str) -> Result<Vec<Vec<u32>>, GoldenError> {
    let mut of: Vec<Vec<u32>> = Vec::new();
    for (line, row) in lines(text, GROUPS_HEADER)? {
        let [initiator, chunk, group] = row?;
        if initiator == of.len() as u64 {
            of.push(Vec::new());
        }
        let last = of.len();
        match of.last_mut().filter(|list| initiator + 1 == last as u64 && chunk == list.len() as u64) {
            Some(list) if group < 10 => list.push(group as u32),
            Some(_) => return Err(GoldenError::Group { line }),
            None => return Err(GoldenError::Order { line }),
        }
    }
    if of.len() == 90 { Ok(of) } else { Err(GoldenError::Initiators { found: of.len() }) }
}

/// Latencies in order of completion.
///
/// # Errors
/// Names the first line that is malformed.
pub fn parse_result(text: &str) -> Result<Vec<Written>, GoldenError> {
    let written = |(line, row): (usize, Result<[u64; 3], GoldenError>)| {
        let [initiator, created_ns, latency_ns] = row?;
        let initiator = u32::try_from(initiator).map_err(|_| GoldenError::Line { line })?;
        Ok(Written { initiator, created_ns, latency_ns })
    };
    lines(text, RESULT_HEADER)?.map(written).collect()
}

/// Variant and scenario that a file of this name is about, for these groups.
///
/// # Errors
/// When the name is not `chunk{KiB}k-drive{MiB/s}-{plain,renegotiate}.csv`.
pub fn configuration(name: &str, groups: &[Vec<u32>]) -> Result<(Variant, Scenario), GoldenError> {
    let parts: Vec<&str> = name.strip_suffix(".csv").unwrap_or_default().split('-').collect();
    let [chunk, drive, rules] = parts[..] else { return Err(GoldenError::Name) };
    let chunk = chunk.strip_prefix("chunk").and_then(|c| c.strip_suffix('k')).and_then(|kib| kib.parse::<u64>().ok());
    let drive = drive.strip_prefix("drive").and_then(|mib| mib.parse::<u64>().ok());
    let (Some(kib @ 1..=65_536), Some(mib @ 1..=100_000)) = (chunk, drive) else { return Err(GoldenError::Name) };
    let (bytes, drive_bytes_per_s) = (kib << 10, mib << 20);
    // SURGE's lengths: 10 ms for 16 KiB and 128 KiB, 40 ms for 1 MiB.
    let run_ns = if kib <= 128 { 10_000_000 } else { 40_000_000 };
    let variant = match rules {
        "plain" => Variant::Plain,
        "renegotiate" => Variant::Published,
        _ => return Err(GoldenError::Name),
    };
    let scenario = Scenario {
        sizes: Sizes::Fixed(bytes),
        arrivals: Arrivals::Closed { stagger_ns: 0 },
        placement: Placement::Given(Arc::new(groups.to_vec())),
        drive_bytes_per_s,
        run_ns,
        ..Scenario::default()
    };
    Ok((variant, scenario))
}

/// Runs the configuration of a file's name with these groups, and compares it with the file's text.
///
/// # Errors
/// When the name or the text is malformed, or the run broke a rule.
pub fn check(name: &str, groups: &[Vec<u32>], text: &str) -> Result<Compared, GoldenError> {
    let expected = parse_result(text)?;
    let (variant, scenario) = configuration(name, groups)?;
    let outcome = run(variant, &scenario, 0, &mut |_| {})?;
    let found: Vec<Written> = outcome
        .done
        .iter()
        .map(|d| Written { initiator: d.chunk.initiator, created_ns: d.chunk.created_ns, latency_ns: d.latency_ns })
        .collect();
    let at =
        |place: usize| Difference { place, expected: expected.get(place).copied(), found: found.get(place).copied() };
    let places = 0..expected.len().max(found.len());
    let mut differences = places.map(at).filter(|d| d.expected != d.found);
    let first_difference = differences.next();
    let differing = u64::from(first_difference.is_some()) + differences.count() as u64;
    Ok(Compared { chunks: expected.len() as u64, differing, first_difference })
}
