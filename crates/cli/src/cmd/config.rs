//! `segue config`: check a file, show it with defaults, print the reference.
//!
//! Owns: arguments and output of the noun. Never: talks to a node.
//! Invariant: a file that `check` accepts is a file that `node start` accepts, as far as the file alone can tell.

use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out;
use segue_node::config::{Config, reference};
use std::path::{Path, PathBuf};

/// Arguments of `segue config`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Judge a configuration file.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Print a configuration file.
    Show {
        /// The file.
        file: PathBuf,
        /// With every default filled in.
        #[arg(long)]
        effective: bool,
    },
    /// Print the reference of all settings, as Markdown.
    Reference,
}

/// Runs `segue config`.
///
/// # Errors
/// A file that breaks a rule is a misuse; the message names the setting and what to write instead.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Check { file } => {
            load(&file)?;
            global.done(&format!("{} is valid", file.display()));
        }
        Verb::Show { file, effective } => {
            let config = load(&file)?;
            let text = if effective { config.effective() } else { std::fs::read_to_string(&file)? };
            global.print("config", &serde_json::json!({ "effective": effective, "toml": text }), || text.clone());
        }
        Verb::Reference => {
            let text = reference();
            global.print("config_reference", &serde_json::json!({ "markdown": text }), || text.clone());
        }
    }
    Ok(ExitCode::Yes)
}

/// Reads a node's configuration; a bad one is a misuse.
pub fn load(file: &Path) -> anyhow::Result<Config> {
    Config::load(file).map_err(|error| {
        let message = format!("{}: {}", file.display(), out::chain(&error));
        fail(ExitCode::Misuse, message)
    })
}
