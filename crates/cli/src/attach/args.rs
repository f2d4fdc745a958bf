//! The commands `segue attach`, `segue detach`, and the hidden one that is the daemon.
//!
//! Owns: their arguments and what they print. Never: does the work.
//! Invariant: what `--json` prints has a schema and the same facts as the text.

use super::handle::Attachment;
use super::options::{AttachError, AttachOptions, DEFAULT_STATE_DIR, FsKind, LeaseChoice, NodeAddr, default_holder};
use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::{Table, ago, human_bytes};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where nodes serve NBD unless told otherwise.
const DEFAULT_NODE: &str = "unix:/run/segue/nbd.sock";

fn duration(text: &str) -> Result<Duration, String> {
    segue_types::parse_duration_ns(text)
        .map(Duration::from_nanos)
        .map_err(|_| "a time is a number and a unit (ms, s, min), for example 30s".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    segue_types::parse_size(text).map_err(|error| error.to_string())
}

/// `segue attach`.
pub mod attach {
    use super::*;

    /// Arguments of `segue attach`.
    #[derive(clap::Args, Debug)]
    pub struct Args {
        /// The volume.
        #[arg(required_unless_present = "list")]
        volume: Option<String>,
        /// Mount its file system here.
        #[arg(long, value_name = "DIR")]
        mount: Option<PathBuf>,
        /// Make this file system if the volume has none.
        #[arg(long)]
        fs: Option<FsKind>,
        /// Attach under this lease, which was granted before.
        #[arg(long, value_name = "ID", conflicts_with_all = ["holder", "no_lease", "read_only"])]
        lease: Option<String>,
        /// Who is to hold the lease, as others will read it when they are refused.
        #[arg(long, value_name = "TEXT", conflicts_with_all = ["no_lease", "read_only"])]
        holder: Option<String>,
        /// Attach without a lease, for servers that have none: a lost connection then ends the attachment.
        #[arg(long)]
        no_lease: bool,
        /// Where the node serves NBD: unix:PATH or HOST:PORT.
        #[arg(long, value_name = "ADDR", env = "SEGUE_NODE", default_value = DEFAULT_NODE)]
        node: NodeAddr,
        /// Attach for reading only.
        #[arg(long)]
        read_only: bool,
        /// The volume's access token.
        #[arg(long, env = "SEGUE_TOKEN", hide_env_values = true)]
        token: Option<String>,
        /// How long a request waits for a node that does not answer before it fails.
        #[arg(long, default_value = "30s", value_parser = duration)]
        timeout: Duration,
        /// Name of the attachment on this machine; the volume's without this.
        #[arg(long)]
        name: Option<String>,
        /// Logical block size of the device, 512 or 4096 bytes.
        #[arg(long, value_name = "BYTES", default_value_t = 4096)]
        sector: u32,
        /// Connections to the node.
        #[arg(long, value_name = "N", default_value_t = 1)]
        connections: u32,
        /// Most bytes of acknowledged writes kept until a flush covers them.
        #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = size)]
        unflushed: u64,
        /// Show what is attached.
        #[arg(long, conflicts_with = "volume")]
        list: bool,
        /// State directory.
        #[arg(long, value_name = "DIR", default_value = DEFAULT_STATE_DIR, hide = true)]
        state_dir: PathBuf,
    }

    /// Runs it.
    ///
    /// # Errors
    /// As the daemon says; exit codes as documented.
    pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
        if args.list {
            list(&args.state_dir, global);
            return Ok(ExitCode::Yes);
        }
        let volume = args.volume.clone().unwrap_or_default();
        let options = options(args, &volume, &global.admin)?;
        let attachment = Attachment::attach(&options).map_err(with_code)?;
        let (device, mount) = (attachment.device().display().to_string(), attachment.mount_dir());
        let value = json!({
            "name": attachment.name(), "volume": volume, "device": device, "mount": mount,
            "pid": attachment.record().pid, "size_bytes": attachment.record().size_bytes, "log": attachment.log(),
        });
        global.print("attachment", &value, || {
            let place = mount.map_or(String::new(), |dir| format!(" on {}", dir.display()));
            format!("{device}{place}\n")
        });
        Ok(ExitCode::Yes)
    }

    fn options(args: Args, volume: &str, admin: &Path) -> anyhow::Result<AttachOptions> {
        let mount = args.mount.map(std::path::absolute).transpose()?;
        let lease = match (args.lease, args.holder, args.no_lease) {
            (Some(lease), _, _) => LeaseChoice::Given(lease),
            (None, _, true) => LeaseChoice::Ephemeral,
            (None, holder, false) => LeaseChoice::Acquire { holder: holder.unwrap_or_else(default_holder) },
        };
        Ok(AttachOptions {
            name: args.name,
            lease,
            read_only: args.read_only,
            token: args.token,
            mount,
            fs: args.fs,
            timeout: args.timeout,
            sector_bytes: args.sector,
            connections: args.connections,
            unflushed_bytes_max: args.unflushed,
            state_dir: args.state_dir,
            ..AttachOptions::new(volume, args.node, admin)
        })
    }

    fn list(state_dir: &Path, global: &Global) {
        let mut table =
            Table::new(&["NAME", "VOLUME", "DEVICE", "SIZE>", "MOUNT", "LINK", "UNFLUSHED>", "SINCE>", "TROUBLE"]);
        let mut items = Vec::new();
        for one in Attachment::list(state_dir) {
            let record = one.record();
            let status = one.status();
            let (link, unflushed, trouble) = match &status {
                Ok(status) => (status.pump.link.as_str(), status.pump.unflushed_bytes, status.pump.trouble.as_str()),
                Err(_) if one.is_alive() => ("silent", 0, "its daemon does not answer: segue detach --force"),
                Err(_) => ("dead", 0, "its daemon is gone: segue detach takes the remains down"),
            };
            table.row(vec![
                record.name.clone(),
                record.volume.clone(),
                record.device.display().to_string(),
                human_bytes(record.size_bytes),
                record.mount.as_ref().map_or("-".to_owned(), |dir| dir.display().to_string()),
                link.to_owned(),
                human_bytes(unflushed),
                ago(record.since_unix_ms),
                trouble.to_owned(),
            ]);
            let mut item = serde_json::to_value(record).expect("a record is plain data");
            let pump = status.as_ref().ok().and_then(|status| serde_json::to_value(&status.pump).ok());
            if let (Some(fields), Some(serde_json::Value::Object(more))) = (item.as_object_mut(), pump) {
                fields.extend(more);
            }
            if let Some(fields) = item.as_object_mut() {
                fields.insert("link".to_owned(), link.into());
                fields.insert("trouble".to_owned(), trouble.into());
            }
            items.push(item);
        }
        global.print("attachments", &items, || table.render());
    }
}

/// `segue detach`.
pub mod detach {
    use super::*;

    /// Arguments of `segue detach`.
    #[derive(clap::Args, Debug)]
    pub struct Args {
        /// The attachment: its name, volume, device or mount directory.
        what: String,
        /// Let nothing stop it. What the node does not take is lost.
        #[arg(long)]
        force: bool,
        /// State directory.
        #[arg(long, value_name = "DIR", default_value = DEFAULT_STATE_DIR, hide = true)]
        state_dir: PathBuf,
    }

    /// Runs it.
    ///
    /// # Errors
    /// What is in the way, when not forced.
    pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
        let attachment = Attachment::find(&args.state_dir, &args.what).map_err(with_code)?;
        attachment.detach(args.force).map_err(with_code)?;
        global.done(&format!("detached {}", attachment.name()));
        Ok(ExitCode::Yes)
    }
}

/// `segue attach-control`: what drills and tests do to an attachment.
pub mod control {
    use super::*;

    /// What to do to it.
    #[derive(clap::ValueEnum, Debug, Clone, Copy)]
    pub enum Verb {
        /// Show how it fares.
        Status,
        /// Lose the machine: nothing more ever reaches the node.
        Cut,
        /// Stop talking to the node.
        Partition,
        /// Talk to the node again.
        Heal,
    }

    /// Arguments of `segue attach-control`.
    #[derive(clap::Args, Debug)]
    pub struct Args {
        /// The attachment: its name, volume, device or mount directory.
        what: String,
        /// What to do to it.
        verb: Verb,
        /// State directory.
        #[arg(long, value_name = "DIR", default_value = DEFAULT_STATE_DIR, hide = true)]
        state_dir: PathBuf,
    }

    /// Runs it.
    ///
    /// # Errors
    /// Its daemon is gone or silent.
    pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
        let attachment = Attachment::find(&args.state_dir, &args.what).map_err(with_code)?;
        match args.verb {
            Verb::Status => {
                let status = attachment.status().map_err(with_code)?;
                global.print("attachment", &status, || format!("{} {}\n", status.record.name, status.pump.link));
                return Ok(ExitCode::Yes);
            }
            Verb::Cut => attachment.cut(),
            Verb::Partition => attachment.partition(),
            Verb::Heal => attachment.heal(),
        }
        .map_err(with_code)?;
        global.done(&format!("{:?}: {}", args.verb, attachment.name()).to_lowercase());
        Ok(ExitCode::Yes)
    }
}

/// The daemon itself; not for people.
pub mod daemon {
    use super::*;

    /// Arguments of the daemon: none, its options come on stdin.
    #[derive(clap::Args, Debug)]
    pub struct Args {}

    /// Runs it.
    ///
    /// # Errors
    /// What keeps it from starting at all.
    pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
        crate::attach::daemon::run()?;
        Ok(ExitCode::Yes)
    }
}

/// The exit code of an error of attaching.
fn with_code(error: AttachError) -> anyhow::Error {
    let code = match &error {
        AttachError::BadNodeAddr { .. } | AttachError::BadOption { .. } => ExitCode::Misuse,
        AttachError::NotFound { .. } => ExitCode::NotFound,
        AttachError::Ambiguous { .. } => ExitCode::Misuse,
        AttachError::Command { .. } => ExitCode::Busy,
        AttachError::NoDaemon { .. } => ExitCode::TimedOut,
        AttachError::Setup { exit_code, .. } => ExitCode::from_number(*exit_code).unwrap_or(ExitCode::Internal),
        AttachError::System { .. } | AttachError::Spawn { .. } => ExitCode::Io,
    };
    fail(code, super::pump::chain(&error))
}
