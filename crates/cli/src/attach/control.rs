//! The control socket of an attachment's daemon: one JSON line asks, one JSON line answers.
//!
//! Owns: the commands, their answers, and the client's side of the socket. Never: carries them out.
//! Invariant: every command is answered once, with `ok` or with a message that names cause and fix.

use super::pump::PumpStatus;
use super::record::Record;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// What can be asked, for example `{"command":"detach","force":true}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// How it fares.
    Status,
    /// Take it down: unmount, write back, flush, free the device, give back an acquired lease. With `force` nothing stops
    /// it; what cannot be written back within the timeout is given up.
    Detach {
        /// See above.
        #[serde(default)]
        force: bool,
    },
    /// Cut it off as if this machine had lost power: from the answer on nothing more reaches the node, ever.
    Cut,
    /// Stop talking to the node; requests wait, at most the timeout.
    Partition,
    /// Talk to the node again.
    Heal,
}

impl Command {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Command::Status => "status",
            Command::Detach { .. } => "detach",
            Command::Cut => "cut",
            Command::Partition => "partition",
            Command::Heal => "heal",
        }
    }
}

/// The answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Answer {
    /// True when it was done.
    pub ok: bool,
    /// Why not, otherwise empty.
    #[serde(default)]
    pub message: String,
    /// The exit code that fits, for a set-up that failed.
    #[serde(default)]
    pub exit_code: u8,
    /// For `status`.
    #[serde(default)]
    pub status: Option<AttachStatus>,
}

/// How an attachment fares.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachStatus {
    /// What it is made of.
    #[serde(flatten)]
    pub record: Record,
    /// How it fares.
    #[serde(flatten)]
    pub pump: PumpStatus,
}

/// Asks a daemon, waiting at most `limit` for its answer.
///
/// # Errors
/// The system's: nobody listens, or no answer in time.
pub fn ask(socket: &Path, command: Command, limit: Duration) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut line = serde_json::to_vec(&command)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
