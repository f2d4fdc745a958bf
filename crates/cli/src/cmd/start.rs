//! `segue node start`: the daemon itself, in the foreground or behind a parent that waits until it serves.
//!
//! Owns: becoming a background process. Never: says "started" before the node says READY.
//! Invariant: when a background start fails, the parent tells the same reason and exit code as the foreground would.

use super::config::load;
use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out;
use anyhow::Context;
use segue_node::client::AdminClient;
use segue_node::config::Config;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often the parent looks whether the child has ended.
const LOOK: Duration = Duration::from_millis(50);

/// Arguments of `segue node start`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The node's configuration; see `segue config reference`.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Stay in the foreground and log to stderr (what a service manager wants).
    #[arg(long)]
    foreground: bool,
    /// Where the background node logs; the admin socket's path with `.log` when not given.
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    log_file: Option<PathBuf>,
    /// Seconds to wait until the background node serves.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, conflicts_with = "foreground")]
    wait: u64,
}

/// Runs `segue node start`.
///
/// # Errors
/// A bad configuration is a misuse; otherwise what the pools, sockets and certificates say.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = load(&args.config)?;
    if args.foreground {
        segue_node::log::start(config.log_level, config.log_format);
        segue_node::daemon::run(&config).map_err(|error| fail(code_of(&error), out::chain(&error)))?;
        return Ok(ExitCode::Yes);
    }
    let log = args.log_file.clone().unwrap_or_else(|| default_log(&config.admin));
    let pid = in_background(&args, &config, &log)?;
    let info = AdminClient::new(&config.admin).node()?;
    global.print("node", &info, String::new);
    if !global.json {
        eprintln!("node started: pid {pid}, admin socket {}, log {}", config.admin.display(), log.display());
    }
    Ok(ExitCode::Yes)
}

fn code_of(error: &segue_node::daemon::DaemonError) -> ExitCode {
    use segue_node::daemon::DaemonErrorKind as Kind;
    match error.kind() {
        Kind::Config => ExitCode::Misuse,
        Kind::Busy => ExitCode::Busy,
        Kind::Drive => ExitCode::Io,
        Kind::Unsupported => ExitCode::Unsupported,
    }
}

fn default_log(admin: &Path) -> PathBuf {
    let mut path: OsString = admin.as_os_str().to_owned();
    path.push(".log");
    path.into()
}

/// Starts the daemon as a session of its own and waits until it serves.
fn in_background(args: &Args, config: &Config, log: &Path) -> anyhow::Result<u32> {
    if let Some(parent) = config.admin.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("make the directory {}", parent.display()))?;
    }
    let opened = OpenOptions::new().create(true).append(true).open(log);
    let file = opened.with_context(|| format!("open the log file {}", log.display()))?;
    let log_begin = file.metadata()?.len();
    let name = format!("segue-start-{}", std::process::id());
    let ready = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    ready.set_read_timeout(Some(LOOK))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["node", "start", "--foreground", "--config"]).arg(&args.config);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    // A session of its own, so that a closing terminal does not end it; setsid is safe between fork and exec.
    unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(Into::into)) };
    let mut child = command.spawn().context("start the daemon")?;
    wait_ready(&mut child, &ready, Duration::from_secs(args.wait), log, log_begin)?;
    Ok(child.id())
}

fn wait_ready(
    child: &mut Child,
    ready: &UnixDatagram,
    wait: Duration,
    log: &Path,
    log_begin: u64,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut message = [0; 256];
    loop {
        let n = ready.recv(&mut message).unwrap_or(0);
        if message[..n].split(|b| *b == b'\n').any(|line| line == b"READY=1") {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            let why = last_words(log, log_begin);
            let code = status.code().and_then(|code| ExitCode::from_number(code as u8)).unwrap_or(ExitCode::Internal);
            return Err(fail(
                code,
                why.unwrap_or_else(|| format!("the node ended at once ({status}); see {}", log.display())),
            ));
        }
        if begun.elapsed() > wait {
            let text = format!(
                "the node (pid {}) does not serve after {} s and goes on starting; see {}",
                child.id(),
                wait.as_secs(),
                log.display()
            );
            return Err(fail(ExitCode::TimedOut, text));
        }
    }
}

/// The error that the child logged last.
fn last_words(log: &Path, from: u64) -> Option<String> {
    let mut text = String::new();
    let mut file = File::open(log).ok()?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(from)).ok()?;
    file.read_to_string(&mut text).ok()?;
    text.lines().rev().find_map(|line| line.strip_prefix("segue: ")).map(str::to_owned)
}
