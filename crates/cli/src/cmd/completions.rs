//! `segue completions`: what a shell needs to complete this command.
//!
//! Owns: nothing but the call. Never: writes into a shell's configuration.
//! Invariant: the completions are made from the same declarations as the parser.

use crate::Global;
use crate::exit::ExitCode;
use clap::CommandFactory;

/// Arguments of `segue completions`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The shell to write for.
    shell: clap_complete::Shell,
}

/// Runs `segue completions`.
///
/// # Errors
/// None.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "segue", &mut script);
    let script = String::from_utf8(script)?;
    global.print("completions", &serde_json::json!({ "script": script }), || script.clone());
    Ok(ExitCode::Yes)
}
