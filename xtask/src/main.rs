//! Project tasks: `cargo xtask check | fix | ci | tidy`.
//!
//! Owns: which checks there are and in which order they run. Never: part of what is shipped.
//! Invariant: `check` and `ci` write nothing outside `target/`; only `fix` changes sources.

mod edges;
mod exceptions;
mod functions;
mod source;
mod tidy;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

const USAGE: &str = "\
cargo xtask check   format, clippy with warnings denied, and tidy; under a minute when warm
cargo xtask tidy    crate edges, file headers, sizes, ASCII, banned words; under a second
cargo xtask fix     rewrites formatting and lowers the list of size exceptions
cargo xtask ci      all that CI runs: check, then every test; writes nothing outside target/";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["check"] => check(),
        ["tidy"] => tidy::run(&root()),
        ["fix"] => fix(),
        ["ci"] => ci(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace").to_owned()
}

fn check() -> Result<()> {
    let start = Instant::now();
    tidy::run(&root())?;
    cargo("format", &["fmt", "--all", "--check"])?;
    cargo("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    eprintln!("check: good, {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn fix() -> Result<()> {
    cargo("format", &["fmt", "--all"])?;
    exceptions::lower(&root())?;
    tidy::run(&root())
}

/// Every test of the workspace; the binaries are built first so that tests which start them find them fresh.
fn ci() -> Result<()> {
    check()?;
    let start = Instant::now();
    cargo("build", &["build", "--quiet", "--workspace", "--bins"])?;
    cargo("test", &["test", "--workspace", "--no-fail-fast"])?;
    eprintln!("ci: good, tests took {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(what: &str, args: &[&str]) -> Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program).current_dir(root()).args(args).status().context("start cargo")?;
    if !status.success() {
        bail!("{what} failed; it was: cargo {}", args.join(" "));
    }
    Ok(())
}
