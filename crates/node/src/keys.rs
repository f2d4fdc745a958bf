//! Where the keys of encrypted volumes come from: a file, or what a command prints.
//!
//! Owns: reading them within a time limit, and unlocking the configured volumes at start. Never: writes or logs a key.
//! Invariant: a key that cannot be read leaves its volume locked and everything else served.

use crate::config::{KeyConfig, KeySource};
use crate::port::Port;
use segue_runtime::secret as chance;
use segue_volume::op::{AdminError, AdminOp};
use segue_volume::{NewEncryption, SECRET_BYTES_MAX, Secret};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest time a key command may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(30);

/// Why a key could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read: fix its path or rights.
    #[error("cannot read the key file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The command cannot be run: fix its name or rights.
    #[error("cannot run the key command {command:?}")]
    Command {
        /// Its program.
        command: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The command did not end well: run it by hand to see why.
    #[error("the key command {command:?} failed ({status}); run it by hand to see why")]
    Failed {
        /// Its program.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The command did not end in time.
    #[error("the key command {command:?} did not end within 30 s")]
    TimedOut {
        /// Its program.
        command: String,
    },
    /// What was read is no key.
    #[error("{0}")]
    Length(&'static str),
}

/// Reads a key. One newline at the end is no part of it, so that text files work.
///
/// # Errors
/// [`KeyError`] says what to fix.
pub fn read(source: &KeySource) -> Result<Secret, KeyError> {
    let mut bytes = match source {
        KeySource::File(path) => read_file(path)?,
        KeySource::Command(command) => read_command(command)?,
    };
    if bytes.ends_with(b"\n") {
        bytes.pop();
    }
    Secret::new(bytes).map_err(KeyError::Length)
}

fn read_file(path: &Path) -> Result<Vec<u8>, KeyError> {
    let failed = |source| KeyError::File { path: path.to_owned(), source };
    read_some(File::open(path).map_err(failed)?).map_err(failed)
}

/// Reads no more than a key can have, so that a wrong path (a drive, a pipe that never ends) is harmless.
fn read_some(from: impl Read) -> io::Result<Vec<u8>> {
    let most = SECRET_BYTES_MAX + 2;
    // All its room at once: growing would leave copies of the key behind.
    let mut bytes = Vec::with_capacity(most);
    from.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_command(command: &[String]) -> Result<Vec<u8>, KeyError> {
    let name = command.first().cloned().unwrap_or_default();
    let failed = |source| KeyError::Command { command: name.clone(), source };
    let mut run = Command::new(&name);
    run.args(command.get(1..).unwrap_or_default()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = run.spawn().map_err(failed)?;
    let stdout = child.stdout.take().expect("it is piped");
    let (said, hear) = mpsc::channel();
    std::thread::spawn(move || drop(said.send(read_some(stdout))));
    let Ok(output) = hear.recv_timeout(COMMAND_TIME_MAX) else {
        // Whether it can still be ended does not matter any more.
        drop(child.kill());
        drop(child.wait());
        return Err(KeyError::TimedOut { command: name });
    };
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        return Err(KeyError::Failed { command: name, status });
    }
    output.map_err(failed)
}

/// A new volume's encryption with this key, under a salt of its own.
pub fn encryption(secret: Secret) -> NewEncryption {
    NewEncryption { secret, salt: chance().to_le_bytes() }
}

/// Unlocks the volumes that the configuration has keys for. What fails is logged and stays locked.
pub async fn unlock_configured(keys: &[KeyConfig], pools: &[Port]) {
    for key in keys {
        let volume = &key.volume;
        match read(&key.source) {
            Ok(secret) => unlock(volume, secret, pools).await,
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(volume, %error, cause, "the volume stays locked");
            }
        }
    }
}

async fn unlock(volume: &str, secret: Secret, pools: &[Port]) {
    for pool in pools {
        let op = AdminOp::Unlock { name: volume.to_owned(), secret: secret.clone() };
        match pool.ask(op).await {
            Ok(Err(AdminError::NotFound)) => continue,
            Ok(Ok(_)) => tracing::info!(volume, "unlocked"),
            Ok(Err(error)) => tracing::warn!(volume, %error, "the volume is not unlocked"),
            Err(error) => tracing::warn!(volume, %error, "the volume is not unlocked"),
        }
        return;
    }
    tracing::warn!(volume, "a key is configured for a volume that does not exist");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> KeySource {
        KeySource::Command(["sh", "-c", script].map(String::from).to_vec())
    }

    #[test]
    fn keys_come_from_files_and_commands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, [b'k'; 40]).unwrap();
        let of_file = read(&KeySource::File(path.clone())).unwrap();
        assert_eq!(read(&sh(&format!("cat {}; echo", path.display()))).unwrap(), of_file, "one newline is left out");
        assert_ne!(read(&sh(&format!("cat {}; echo; echo", path.display()))).unwrap(), of_file);
    }

    #[test]
    fn bad_sources_are_named() {
        assert!(matches!(read(&KeySource::File("/nonexistent".into())), Err(KeyError::File { .. })));
        assert!(matches!(read(&KeySource::File("/dev/null".into())), Err(KeyError::Length(_))));
        assert!(matches!(read(&KeySource::File("/dev/zero".into())), Err(KeyError::Length(_))), "it never ends");
        assert!(matches!(read(&KeySource::Command(vec!["/nonexistent".into()])), Err(KeyError::Command { .. })));
        assert!(matches!(read(&sh("head -c 64 /dev/zero; exit 3")), Err(KeyError::Failed { .. })));
    }
}
