//! `segue volume move`, `move-status`, `move-rate`, `move-abort`: a volume's way to another pool.
//!
//! Owns: arguments and output of these verbs. Never: touches a pool by itself.
//! Invariant: exit code 0 of a move that was waited for means the volume is in its new pool.

use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::{fields, human_bytes};
use segue_types::api::{MoveInfo, MoveOutcome, MovePhase, MoveRequest};
use segue_types::parse_size;
use std::time::Duration;

/// Pause between two looks at a running move.
const POLL: Duration = Duration::from_millis(100);

/// Arguments of `segue volume move`.
#[derive(clap::Args, Debug)]
pub struct Move {
    /// The volume.
    name: String,
    /// The pool it is to go to.
    #[arg(long, value_name = "POOL")]
    to: String,
    /// Bytes per second at most, with unit (for example 100MiB/s); 0 for no limit. 100MiB/s when not given.
    #[arg(long, value_parser = parse_rate)]
    rate: Option<u64>,
    /// Wait until it is over, with a bar.
    #[arg(long)]
    wait: bool,
}

/// Arguments of `segue volume move-rate`.
#[derive(clap::Args, Debug)]
pub struct Rate {
    /// The volume.
    name: String,
    /// Bytes per second at most, with unit; 0 for no limit.
    #[arg(value_parser = parse_rate)]
    rate: u64,
}

/// Arguments of `segue volume move-abort`.
#[derive(clap::Args, Debug)]
pub struct Abort {
    /// The volume.
    name: String,
    /// Declare the drive that it was moving to lost for good: the copy on this node becomes the volume. Never open that
    /// drive's pool beside this one afterwards.
    #[arg(long)]
    force: bool,
}

/// A size, per second or not.
pub(super) fn parse_rate(text: &str) -> Result<u64, segue_types::ParseSizeError> {
    let size = text.strip_suffix("/s").unwrap_or(text);
    if size == "0" { Ok(0) } else { parse_size(size) }
}

/// Runs `segue volume move`.
///
/// # Errors
/// Those of the admin API.
pub fn start(args: &Move, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client();
    let request = MoveRequest { pool: args.to.clone(), rate_bytes_per_s: args.rate };
    let mut info = client.begin_move(&args.name, &request)?;
    if !args.wait {
        print(global, &info);
        return Ok(ExitCode::Yes);
    }
    let style = "{wide_bar} {bytes}/{total_bytes} {msg}";
    let bar = indicatif::ProgressBar::new(0).with_style(indicatif::ProgressStyle::with_template(style)?);
    while info.phase != MovePhase::Over {
        std::thread::sleep(POLL);
        info = client.move_status(&args.name)?;
        bar.set_length(info.round_bytes.max(info.round_bytes_done));
        bar.set_position(info.round_bytes_done);
        bar.set_message(format!("round {} {} eta {}", info.round, speed(info.bytes_per_s), eta(&info)));
    }
    bar.finish_and_clear();
    print(global, &info);
    match info.outcome {
        Some(MoveOutcome::Moved) => Ok(ExitCode::Yes),
        Some(MoveOutcome::Stopped) => {
            Err(fail(ExitCode::Io, format!("the move stopped: {}", info.reason.unwrap_or_default())))
        }
        _ => Ok(ExitCode::No),
    }
}

/// Runs `segue volume move-status`.
///
/// # Errors
/// Those of the admin API.
pub fn status(name: &str, global: &Global) -> anyhow::Result<ExitCode> {
    print(global, &global.client().move_status(name)?);
    Ok(ExitCode::Yes)
}

/// Runs `segue volume move-rate`.
///
/// # Errors
/// Those of the admin API.
pub fn rate(args: &Rate, global: &Global) -> anyhow::Result<ExitCode> {
    print(global, &global.client().set_move_rate(&args.name, args.rate)?);
    Ok(ExitCode::Yes)
}

/// Runs `segue volume move-abort`.
///
/// # Errors
/// Those of the admin API.
pub fn abort(args: &Abort, global: &Global) -> anyhow::Result<ExitCode> {
    global.client().abort_move(&args.name, args.force)?;
    global.done(&format!("the move of {} is given up", args.name));
    Ok(ExitCode::Yes)
}

fn speed(bytes_per_s: u64) -> String {
    if bytes_per_s == 0 { "-".into() } else { format!("{}/s", human_bytes(bytes_per_s)) }
}

fn eta(info: &MoveInfo) -> String {
    info.eta_ms.map_or("-".into(), |ms| format!("{} s", ms.div_ceil(1000)))
}

fn print(global: &Global, info: &MoveInfo) {
    global.print("move", info, || {
        let phase = format!("{:?}", info.phase).to_lowercase();
        let outcome = info.outcome.map_or("-".into(), |o| format!("{o:?}").to_lowercase());
        let cap = if info.rate_bytes_per_s == 0 { "none".into() } else { speed(info.rate_bytes_per_s) };
        let mut rows = vec![
            ("move", info.id.clone()),
            ("volume", info.volume.clone()),
            ("from", info.from.clone()),
            ("to", info.to.clone()),
            ("phase", phase),
            ("round", info.round.to_string()),
            ("copied", format!("{} of {}", human_bytes(info.round_bytes_done), human_bytes(info.round_bytes))),
            ("in all", human_bytes(info.copied_bytes)),
            ("speed", speed(info.bytes_per_s)),
            ("cap", cap),
            ("eta", eta(info)),
            ("outcome", outcome),
        ];
        if let Some(stall_ns) = info.stall_ns {
            rows.push(("clients waited", format!("{:.1} ms", stall_ns as f64 / 1e6)));
            rows.push(("connections", info.connections.to_string()));
        }
        if let Some(reason) = &info.reason {
            rows.push(("reason", reason.clone()));
        }
        fields(&rows)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        assert_eq!(parse_rate("100MiB/s"), Ok(100 << 20));
        assert_eq!(parse_rate("1GiB"), Ok(1 << 30));
        assert_eq!(parse_rate("0"), Ok(0));
        assert!(parse_rate("fast").is_err());
    }
}
