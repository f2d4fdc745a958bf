//! What to attach and how, and what may go wrong.
//!
//! Owns: the options with their defaults, and the errors. Never: touches the system.
//! Invariant: options that parse are complete; nothing is asked of the environment later.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Where the state of all attachments of a machine is kept unless told otherwise.
pub const DEFAULT_STATE_DIR: &str = "/run/segue/attach";

/// Where the node serves NBD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAddr {
    /// A unix socket.
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
}

impl FromStr for NodeAddr {
    type Err = AttachError;

    /// Reads `unix:PATH` or `HOST:PORT`.
    fn from_str(text: &str) -> Result<Self, AttachError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(NodeAddr::Unix(path.into())),
            None if text
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) =>
            {
                Ok(NodeAddr::Tcp(text.to_owned()))
            }
            _ => Err(AttachError::BadNodeAddr { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddr::Unix(path) => write!(f, "unix:{}", path.display()),
            NodeAddr::Tcp(text) => f.write_str(text),
        }
    }
}

/// A file system that attach can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum FsKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FsKind {
    /// Its name in `mount -t` and `mkfs.`.
    pub const fn name(self) -> &'static str {
        match self {
            FsKind::Ext4 => "ext4",
            FsKind::Xfs => "xfs",
        }
    }
}

/// Under which right the volume is attached.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseChoice {
    /// A durable lease that was granted before (by `POST /v1/volumes/V/lease`, or to the child of a `super`). Detaching leaves
    /// it in force: who acquired it releases it.
    Given(String),
    /// Acquire a durable lease for this holder through the node's admin socket; detaching releases it.
    Acquire {
        /// The holder, in words the next who is refused will read.
        holder: String,
    },
    /// No lease by name: the right ends with the connection, so a lost connection ends the attachment with EIO. For servers
    /// without leases, and for reading only (which needs none and does reconnect).
    Ephemeral,
}

/// Hides the lease: this form goes to logs.
impl fmt::Debug for LeaseChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseChoice::Given(_) => f.write_str("Given(..)"),
            LeaseChoice::Acquire { holder } => write!(f, "Acquire({holder:?})"),
            LeaseChoice::Ephemeral => f.write_str("Ephemeral"),
        }
    }
}

/// What to attach and how. Start from [`AttachOptions::new`] and set what differs.
#[derive(Clone, Serialize, Deserialize)]
pub struct AttachOptions {
    /// The volume's name.
    pub volume: String,
    /// The attachment's own name on this machine. None: the volume's name, or `NAME.2` and so on while that is taken.
    pub name: Option<String>,
    /// Where the node serves NBD.
    pub node: NodeAddr,
    /// The node's admin socket; needed for [`LeaseChoice::Acquire`] alone.
    pub admin: PathBuf,
    /// Under which right.
    pub lease: LeaseChoice,
    /// Attach for reading only.
    pub read_only: bool,
    /// The volume's access token.
    pub token: Option<String>,
    /// Mount the volume's file system here (the directory is made when missing).
    pub mount: Option<PathBuf>,
    /// Make this file system when the device has none, never when it has one.
    pub fs: Option<FsKind>,
    /// How long a request may wait for a node that does not answer before it fails with EIO. Range: 100 ms to 1 h.
    pub timeout: Duration,
    /// Logical block size of the device, 512 or 4096 bytes.
    pub sector_bytes: u32,
    /// Connections to the node, 1 to 8. More than one is used only when the server allows it.
    pub connections: u32,
    /// Most bytes of acknowledged writes that are kept until a flush covers them. Range: 1 MiB to 4 GiB.
    pub unflushed_bytes_max: u64,
    /// State directory; [`DEFAULT_STATE_DIR`] unless a test wants its own.
    pub state_dir: PathBuf,
}

impl AttachOptions {
    /// Options with defaults: write access under a lease acquired for `attach@HOST`, 30 s timeout, 4096-byte sectors, one
    /// connection, 128 MiB of unflushed writes, no mount.
    pub fn new(volume: &str, node: NodeAddr, admin: &Path) -> Self {
        AttachOptions {
            volume: volume.to_owned(),
            name: None,
            node,
            admin: admin.to_owned(),
            lease: LeaseChoice::Acquire { holder: default_holder() },
            read_only: false,
            token: None,
            mount: None,
            fs: None,
            timeout: Duration::from_secs(30),
            sector_bytes: 4096,
            connections: 1,
            unflushed_bytes_max: 128 << 20,
            state_dir: PathBuf::from(DEFAULT_STATE_DIR),
        }
    }
}

impl AttachOptions {
    /// Checks ranges and names.
    ///
    /// # Errors
    /// [`AttachError::BadOption`] names the option and what is allowed.
    pub fn check(&self) -> Result<(), AttachError> {
        let rules: [(bool, &'static str, &'static str); 7] = [
            (segue_types::check_volume_name(&self.volume).is_ok(), "volume", "1 to 64 of a-z A-Z 0-9 . _ -"),
            (
                self.name.as_ref().is_none_or(|name| segue_types::check_volume_name(name).is_ok()),
                "--name",
                "1 to 64 of a-z A-Z 0-9 . _ -",
            ),
            (
                (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.timeout),
                "--timeout",
                "100ms to 1h",
            ),
            (matches!(self.sector_bytes, 512 | 4096), "--sector", "512 or 4096"),
            ((1..=8).contains(&self.connections), "--connections", "1 to 8"),
            ((1 << 20..=4 << 30).contains(&self.unflushed_bytes_max), "--unflushed", "1MiB to 4GiB"),
            (self.mount.as_ref().is_none_or(|dir| dir.is_absolute()), "--mount", "an absolute path"),
        ];
        match rules.into_iter().find(|rule| !rule.0) {
            Some((_, option, range)) => Err(AttachError::BadOption { option, range }),
            None => Ok(()),
        }
    }
}

/// The holder that is named when nobody named one: `attach@HOST`.
pub fn default_holder() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("attach@{}", host.as_deref().unwrap_or("localhost"))
}

/// Why attaching, detaching or a control command failed. The text names the cause and what to do.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The node's address is malformed.
    #[error("bad node address `{text}`: write unix:/PATH or HOST:PORT")]
    BadNodeAddr {
        /// What was given.
        text: String,
    },
    /// An option is out of its range.
    #[error("{option} is out of range: {range}")]
    BadOption {
        /// Its name.
        option: &'static str,
        /// What is allowed.
        range: &'static str,
    },
    /// The daemon could not be started at all.
    #[error("cannot start the attachment's daemon; is {program} executable?")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The daemon started, undid what it had done, and ended. The message is its own.
    #[error("attach of {volume} failed: {message}")]
    Setup {
        /// The volume.
        volume: String,
        /// What the daemon said.
        message: String,
        /// The exit code of `segue attach` that fits.
        exit_code: u8,
    },
    /// Nothing of that name, device or directory is attached here.
    #[error("nothing is attached as `{what}`; `segue attach --list` shows what is")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// Several attachments match.
    #[error("`{what}` names several attachments ({names}); detach by device or by mount directory")]
    Ambiguous {
        /// What was asked for.
        what: String,
        /// The attachments.
        names: String,
    },
    /// The daemon does not answer on its control socket.
    #[error("the daemon of `{name}` (pid {pid}) does not answer; `segue detach --force {name}` takes its remains down")]
    NoDaemon {
        /// The attachment.
        name: String,
        /// Its process.
        pid: u32,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The daemon refused or failed a command; the message is its own.
    #[error("{command} of `{name}` failed: {message}")]
    Command {
        /// The attachment.
        name: String,
        /// The command.
        command: &'static str,
        /// What the daemon said.
        message: String,
    },
    /// Something of the system failed.
    #[error("cannot {action} {path}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
