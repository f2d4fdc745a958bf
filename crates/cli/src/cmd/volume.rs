//! `segue volume`: create, list, show, resize, rename, delete, snapshot, clone, unlock, lock.
//!
//! Owns: arguments and output of the noun. Never: touches a pool by itself.
//! Invariant: sizes on the command line have units, sizes in JSON are bytes.

use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::{Table, ago, chain, fields, human_bytes};
use segue_node::config::KeySource;
use segue_node::keys;
use segue_types::api::{CreateVolume, ObservationRule, SecretHex, SuperPhase, VolumeInfo, VolumeKind};
use segue_types::{hex_encode, parse_size};

/// Arguments of `segue volume`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

/// A rule of observation on the command line.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Rule {
    /// The first write after super observes the primary.
    Write,
    /// Only a completed flush after super observes the primary.
    Flush,
}

/// Where a key comes from.
#[derive(clap::Args, Debug)]
#[group(id = "key_source", multiple = false)]
struct KeyArgs {
    /// File of 32 to 4096 random bytes, for example of `head -c 64 /dev/urandom`; one newline at its end is ignored.
    #[arg(long, value_name = "FILE")]
    key_file: Option<std::path::PathBuf>,
    /// Shell command that prints such bytes within 30 s. Runs here, not at the node.
    #[arg(long, value_name = "COMMAND")]
    key_command: Option<String>,
}

impl KeyArgs {
    fn read(self) -> anyhow::Result<SecretHex> {
        let source = match (self.key_file, self.key_command) {
            (Some(path), _) => KeySource::File(path),
            (None, Some(command)) => KeySource::Command(vec!["sh".into(), "-c".into(), command]),
            (None, None) => return Err(fail(ExitCode::Misuse, "give the key with --key-file or --key-command")),
        };
        let secret = keys::read(&source).map_err(|e| fail(ExitCode::Misuse, chain(&e)))?;
        Ok(SecretHex(hex_encode(secret.expose())))
    }
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Make a thin volume.
    Create {
        /// Its name: 1 to 64 of a-z A-Z 0-9 . _ -
        name: String,
        /// Its size with unit, for example 10GiB; a multiple of 4KiB.
        #[arg(long, value_parser = parse_size)]
        size: u64,
        /// The pool to make it in; the node's first when not given.
        #[arg(long)]
        pool: Option<String>,
        /// When a write of the primary counts as observed; flush when not given.
        #[arg(long, value_enum)]
        observe: Option<Rule>,
        /// File whose first line is the token that clients must give (`-` reads stdin). Only its hash is kept.
        #[arg(long, value_name = "FILE")]
        token_file: Option<std::path::PathBuf>,
        /// Encrypt its blocks on the drive (AES-256-XTS), with a key from --key-file or --key-command.
        #[arg(long)]
        encrypt: bool,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Load the key of an encrypted volume into the node's memory; its clones and snapshots share it.
    Unlock {
        /// Its name.
        name: String,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Wipe the key of an encrypted volume from the node's memory. Refused while somebody is attached.
    Lock {
        /// Its name.
        name: String,
    },
    /// Move a volume to another pool of the node while its clients go on; holes stay holes, snapshots stay behind.
    Move(super::moves::Move),
    /// How the volume's latest move is doing.
    MoveStatus {
        /// The volume.
        name: String,
    },
    /// Cap a running move, at once.
    MoveRate(super::moves::Rate),
    /// Give a move up; the volume stays where it was.
    MoveAbort(super::moves::Abort),
    /// List all volumes.
    List,
    /// Show one volume.
    Show {
        /// Its name.
        name: String,
    },
    /// Grow a volume, online.
    Resize {
        /// Its name.
        name: String,
        /// Its new size with unit; never smaller than today's.
        #[arg(long, value_parser = parse_size)]
        size: u64,
    },
    /// Rename a volume.
    Rename {
        /// Its name.
        name: String,
        /// Its new name.
        to: String,
    },
    /// Delete a volume or snapshot. Refused while somebody holds it.
    Delete {
        /// Its name.
        name: String,
    },
    /// Take a read-only snapshot; costs nothing at any size.
    Snapshot {
        /// The volume.
        name: String,
        /// The snapshot's name.
        to: String,
    },
    /// Its share of the drive: reservation, weight, limits, latency target.
    Qos(super::qos::VolumeArgs),
    /// Make a writable clone of a volume or a snapshot; costs nothing at any size.
    Clone {
        /// The volume or snapshot.
        name: String,
        /// The clone's name.
        to: String,
    },
}

/// Runs `segue volume`.
///
/// # Errors
/// Those of the admin API; the exit code tells which.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client();
    match args.verb {
        Verb::Create { name, size, pool, observe, token_file, encrypt, key } => {
            let observation = observe.map(|rule| match rule {
                Rule::Write => ObservationRule::Write,
                Rule::Flush => ObservationRule::Flush,
            });
            let token = token_file.as_deref().map(read_token).transpose()?;
            if !encrypt && (key.key_file.is_some() || key.key_command.is_some()) {
                return Err(fail(ExitCode::Misuse, "a key is given but not --encrypt; add it, or leave the key out"));
            }
            let encryption_key = encrypt.then(|| key.read()).transpose()?;
            let request = CreateVolume { name, pool, size_bytes: size, observation, token, encryption_key };
            show(global, &client.create_volume(&request)?);
        }
        Verb::Unlock { name, key } => show(global, &client.unlock(&name, &key.read()?)?),
        Verb::Lock { name } => show(global, &client.lock(&name)?),
        Verb::Move(args) => return super::moves::start(&args, global),
        Verb::MoveStatus { name } => return super::moves::status(&name, global),
        Verb::MoveRate(args) => return super::moves::rate(&args, global),
        Verb::MoveAbort(args) => return super::moves::abort(&args, global),
        Verb::List => list(global, &client.volumes()?),
        Verb::Show { name } => show(global, &client.volume(&name)?),
        Verb::Resize { name, size } => show(global, &client.resize(&name, size)?),
        Verb::Rename { name, to } => show(global, &client.rename(&name, &to)?),
        Verb::Delete { name } => {
            client.delete_volume(&name)?;
            global.done(&format!("deleted {name}; its space comes back in the background"));
        }
        Verb::Snapshot { name, to } => show(global, &client.snapshot(&name, &to)?),
        Verb::Qos(args) => return super::qos::volume(&args, global),
        Verb::Clone { name, to } => show(global, &client.clone_volume(&name, &to)?),
    }
    Ok(ExitCode::Yes)
}

/// Reads the first line of a file, or of stdin for `-`.
fn read_token(path: &std::path::Path) -> anyhow::Result<String> {
    use anyhow::Context;
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin()).context("read the token from stdin")?
    } else {
        std::fs::read_to_string(path).with_context(|| format!("read the token file {}", path.display()))?
    };
    match text.lines().next() {
        Some(token) if !token.is_empty() => Ok(token.to_owned()),
        _ => Err(fail(
            ExitCode::Misuse,
            format!("the token file {} is empty; its first line is the token", path.display()),
        )),
    }
}

fn show(global: &Global, volume: &VolumeInfo) {
    global.print("volume", volume, || {
        fields(&[
            ("name", volume.name.clone()),
            ("pool", volume.pool.clone()),
            ("kind", kind(volume.kind).into()),
            ("size", human_bytes(volume.size_bytes)),
            ("own data", human_bytes(volume.own_bytes)),
            ("depth", volume.depth.to_string()),
            ("epoch", volume.epoch.to_string()),
            ("observed by", if volume.observation == ObservationRule::Write { "write" } else { "flush" }.into()),
            ("token", if volume.token_required { "required" } else { "none" }.into()),
            ("encryption", encryption(volume).into()),
            ("lease", lease(volume)),
            ("super", phase(volume)),
            ("cleaning", if volume.cleaning { "yes" } else { "no" }.into()),
            ("note", volume.note.clone()),
        ])
    });
}

fn list(global: &Global, volumes: &[VolumeInfo]) {
    global.print("volumes", &serde_json::json!({ "volumes": volumes }), || {
        let mut table = Table::new(&["NAME", "POOL", "KIND", "SIZE>", "OWN>", "DEPTH>", "SUPER", "LEASE"]);
        for v in volumes {
            table.row(vec![
                v.name.clone(),
                v.pool.clone(),
                kind(v.kind).into(),
                human_bytes(v.size_bytes),
                human_bytes(v.own_bytes),
                v.depth.to_string(),
                phase(v),
                lease(v),
            ]);
        }
        table.render()
    });
}

fn kind(kind: VolumeKind) -> &'static str {
    match kind {
        VolumeKind::Volume => "volume",
        VolumeKind::Snapshot => "snapshot",
    }
}

fn encryption(volume: &VolumeInfo) -> &'static str {
    match (volume.encrypted, volume.locked) {
        (false, _) => "none",
        (true, true) => "locked (load its key with `segue volume unlock`)",
        (true, false) => "unlocked",
    }
}

fn phase(volume: &VolumeInfo) -> String {
    let id = volume.super_id.map(|id| format!(" {id}")).unwrap_or_default();
    match volume.super_phase {
        SuperPhase::None => "-".into(),
        SuperPhase::Racing => format!("racing{id}"),
        SuperPhase::Observed => format!("observed{id}"),
    }
}

/// "HOLDER for 5m (durable)".
pub fn lease(volume: &VolumeInfo) -> String {
    match &volume.lease {
        None => "-".into(),
        Some(l) => {
            let kind = if l.durable { " (durable)" } else { "" };
            format!("{} for {}{kind}", l.holder, ago(l.since_unix_ms))
        }
    }
}
