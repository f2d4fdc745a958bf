//! `segue pool format` and `segue pool check`: a drive without a node.
//!
//! Owns: making a pool's file, and telling what a check found. Never: repairs, or works on a drive that a node has open.
//! Invariant: a drive that holds a pool is not formatted without --force.

use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::{chain, fields, human_bytes};
use anyhow::anyhow;
use segue_runtime::drive::{Drive, DriveOpenError, create_sparse};
use segue_runtime::{DriveSpec, secret};
use segue_volume::engine::{Engine, FormatError, FormatOptions};
use segue_volume::{CheckReport, Finding};
use std::path::{Path, PathBuf};

/// Arguments of `segue pool format`.
#[derive(clap::Args, Debug)]
pub struct Format {
    /// A block device, or a file; a file that does not exist is made, sparse.
    path: PathBuf,
    /// Size of the file with unit, at least 8MiB. Not for block devices.
    #[arg(long, value_parser = segue_types::parse_size)]
    size: Option<u64>,
    /// Destroy the pool that is there.
    #[arg(long)]
    force: bool,
    /// Slices that share the drive, 1 to 64: each can be served by its own core, and space is lent to them as they need it.
    #[arg(long, default_value_t = 1)]
    slices: u64,
}

/// Arguments of `segue pool check`.
#[derive(clap::Args, Debug)]
pub struct Check {
    /// The pool's block device or file; no node may have it open.
    path: PathBuf,
}

/// Runs `segue pool format`.
///
/// # Errors
/// A pool that is there already is exit code 4, a drive in use 5, a size that does not fit 2.
pub fn format(args: &Format, global: &Global) -> anyhow::Result<ExitCode> {
    let is_new = !args.path.exists();
    match (args.size, is_new) {
        (Some(bytes), true) => create_sparse(&args.path, bytes).map_err(drive_error)?,
        (None, true) => {
            let message = format!("{} does not exist; give --size to make it as a file", args.path.display());
            return Err(fail(ExitCode::Misuse, message));
        }
        (Some(bytes), false) => check_size(&args.path, bytes)?,
        (None, false) => {}
    }
    let formatted = format_drive(&args.path, args.force, args.slices);
    if formatted.is_err() && is_new {
        // A file that this command made and could not use helps nobody.
        drop(std::fs::remove_file(&args.path));
    }
    let bytes = formatted?;
    let value = serde_json::json!({ "path": args.path, "capacity_bytes": bytes, "slices": args.slices });
    global.print("pool_format", &value, || format!("{} is a pool of {}\n", args.path.display(), human_bytes(bytes)));
    Ok(ExitCode::Yes)
}

fn format_drive(path: &Path, force: bool, slices: u64) -> anyhow::Result<u64> {
    let mut drive = open(path)?;
    let options = FormatOptions { uuid: secret().to_le_bytes(), force };
    Engine::format_sliced(drive.block_dev(), &options, slices).map_err(|error| match error {
        FormatError::Exists => {
            fail(ExitCode::Exists, format!("{} holds a pool already; --force destroys it", path.display()))
        }
        FormatError::Size(_) | FormatError::Slices { .. } => fail(ExitCode::Misuse, error.to_string()),
        FormatError::Drive(_) => fail(ExitCode::Io, format!("{}: {}", path.display(), chain(&error))),
    })?;
    Ok(drive.block_dev().capacity_bytes())
}

/// A size given for a file that exists must be its size: nothing is grown or cut silently.
fn check_size(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let is = std::fs::metadata(path)?.len();
    if is == bytes {
        return Ok(());
    }
    let message =
        format!("{} exists and has {is} bytes, not {bytes}; leave --size out to use it as it is", path.display());
    Err(fail(ExitCode::Misuse, message))
}

/// Runs `segue pool check`: exit code 1 when something is wrong.
///
/// # Errors
/// A pool too damaged to be walked, or a drive that cannot be opened.
pub fn check(args: &Check, global: &Global) -> anyhow::Result<ExitCode> {
    let mut drive = open(&args.path)?;
    let report = segue_volume::check(drive.block_dev()).map_err(|error| {
        // Too damaged to walk is an honest no, not a failure of the command.
        fail(ExitCode::No, format!("{} is not a pool that can be opened: {}", args.path.display(), chain(&error)))
    })?;
    let damage: Vec<String> = report.findings.iter().map(words).collect();
    let value = serde_json::json!({
        "path": args.path, "clean": report.is_clean(), "damage": damage, "damage_total": report.findings_total,
        "leaked_blocks": report.leaked_blocks, "data_blocks": report.data_blocks, "map_pages": report.map_pages,
        "volumes": report.volumes, "layers": report.layers, "journal_pending": report.journal_pending,
    });
    global.print("pool_check", &value, || text(&report, &damage));
    Ok(if report.is_clean() { ExitCode::Yes } else { ExitCode::No })
}

fn text(report: &CheckReport, damage: &[String]) -> String {
    let mut text = fields(&[
        ("volumes", report.volumes.to_string()),
        ("layers", report.layers.to_string()),
        ("data blocks", report.data_blocks.to_string()),
        ("map pages", report.map_pages.to_string()),
        ("leaked blocks", report.leaked_blocks.to_string()),
        ("journal", if report.journal_pending { "replays at the next open" } else { "empty" }.into()),
        ("damage", if report.is_clean() { "none".into() } else { report.findings_total.to_string() }),
    ]);
    for line in damage {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

fn words(finding: &Finding) -> String {
    match finding {
        Finding::UsedTwice { at, layer } => format!("block {at} is used twice, the second time by layer {layer}"),
        Finding::UsedButFree { at, layer } => format!("block {at} is used by layer {layer} and marked free"),
        Finding::NotLeased { at, layer } => {
            format!("block {at} is used by layer {layer}, but not leased by its slice: another may write over it")
        }
        Finding::LeasedTwice { extent, slice } => {
            format!("slice {slice} has leased extent {extent}, and another has too")
        }
        Finding::OutOfRange { at, layer } => format!("layer {layer} points to block {at}, outside the data region"),
        Finding::DamagedPage { layer, level, index } => {
            format!("map page {index} of level {level} of layer {layer} is damaged; what is below it was not checked")
        }
        Finding::WrongCount { layer, recorded, found } => {
            format!("layer {layer} has {found} blocks where {recorded} are recorded")
        }
        Finding::PastEnd { volume, block } => format!("volume {volume} maps block {block}, past its end"),
    }
}

fn open(path: &Path) -> anyhow::Result<Drive> {
    Drive::open(&DriveSpec::File { path: path.to_owned() }).map_err(drive_error)
}

fn drive_error(error: DriveOpenError) -> anyhow::Error {
    let code = match &error {
        DriveOpenError::InUse { .. } => ExitCode::Busy,
        DriveOpenError::TooSmall { .. } | DriveOpenError::NotADrive { .. } => ExitCode::Misuse,
        _ => return anyhow!(error),
    };
    fail(code, chain(&error))
}
