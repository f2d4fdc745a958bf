//! APP.toml: what is protected, how it is started, and when it is suspected.
//!
//! Owns: the file's grammar, its defaults and its checks. Never: touches the system beyond reading the file.
//! Invariant: an [`App`] that loaded is complete and consistent; nothing about it is asked or guessed later.

use crate::attach::{FsKind, NodeAddr};
use crate::exit::{ExitCode, fail};
use nix::sys::signal::Signal;
use segue_failover::limit::Rate;
use segue_failover::note::VOLUMES_MAX;
use segue_failover::race::{Config, Mode};
use segue_failover::suspicion::{Thresholds, WINDOW_MAX};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A protected application.
#[derive(Clone, Debug)]
pub struct App {
    /// Its name: 1 to 32 of `a-z A-Z 0-9 _ -`.
    pub name: String,
    /// Directory of its mounts, sockets, logs and records on this machine.
    pub run_dir: PathBuf,
    /// The node's admin socket.
    pub admin: PathBuf,
    /// Where the node serves NBD.
    pub nbd: NodeAddr,
    /// Its volumes, 1 to 8, all of one pool. They fail over together.
    pub volumes: Vec<VolumeSpec>,
    /// How an instance of it is run.
    pub instance: InstanceSpec,
    /// How it is asked whether it is well.
    pub probe: ProbeSpec,
    /// Where clients connect.
    pub endpoint: EndpointSpec,
    /// When it is suspected.
    pub suspicion: Thresholds,
    /// How it fails over.
    pub race: Config,
}

/// A volume of the application.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// The volume's name.
    pub name: String,
    /// Its file system; made by the first start if the volume has none.
    #[serde(default = "ext4")]
    pub fs: FsKind,
    /// How often ext4 commits its journal when nobody asks it to, 1 s to 300 s.
    #[serde(default = "thirty_s", deserialize_with = "duration")]
    pub journal_commit: Duration,
    /// The volume's access token, if it needs one.
    #[serde(default)]
    pub token: Option<String>,
}

fn ext4() -> FsKind {
    FsKind::Ext4
}

/// How an instance is run. Commands are run by `/bin/sh -c` as `user`, with the variables that `segue failover profile`
/// lists in the head of its output.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceSpec {
    /// The unprivileged user that runs it.
    pub user: String,
    /// Private ports of slot a, slot b, and rehearsals.
    pub ports: [u16; 3],
    /// Makes the data on an empty volume.
    #[serde(default)]
    pub init: Option<String>,
    /// A file below `$SEGUE_DATA_DIR` that exists once `init` was done.
    #[serde(default)]
    pub init_done: Option<PathBuf>,
    /// Starts it in the foreground; begin it with `exec` so that signals reach it.
    pub start: String,
    /// Verifies a recovered instance in a rehearsal; exit code 0 is good.
    #[serde(default)]
    pub verify: Option<String>,
    /// Signal of an orderly stop: `TERM`, `INT`, `QUIT`.
    #[serde(default = "term")]
    pub stop_signal: StopSignal,
    /// How long an orderly stop may take before it is killed.
    #[serde(default = "ten_s", deserialize_with = "duration")]
    pub stop_timeout: Duration,
    /// Further environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// Signals of an orderly stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum StopSignal {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
}

impl StopSignal {
    /// The signal.
    pub fn signal(self) -> Signal {
        match self {
            StopSignal::Term => Signal::SIGTERM,
            StopSignal::Int => Signal::SIGINT,
            StopSignal::Quit => Signal::SIGQUIT,
        }
    }
}

fn term() -> StopSignal {
    StopSignal::Term
}

/// How it is asked whether it is well. A probe that is answered means: it serves queries and has recovered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeSpec {
    /// What to ask.
    pub kind: ProbeKind,
    /// Database user of the probe (`postgresql`, `mariadb`).
    #[serde(default)]
    pub user: String,
    /// Database of the probe (`postgresql`).
    #[serde(default)]
    pub database: String,
    /// Socket to connect to, as a template of the instance's variables; its TCP port on 127.0.0.1 when missing.
    #[serde(default)]
    pub socket: Option<String>,
    /// The command (`command`): exit code 0 is an answer.
    #[serde(default)]
    pub command: Option<String>,
    /// Pause between an answer and the next probe, 5 ms to 10 s.
    #[serde(default = "fifty_ms", deserialize_with = "duration")]
    pub interval: Duration,
}

/// Kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// A query over PostgreSQL's protocol, on a connection that is kept.
    Postgresql,
    /// A ping over MariaDB's protocol, on a connection that is kept.
    Mariadb,
    /// A connection is accepted.
    Tcp,
    /// A command succeeds.
    Command,
}

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Address and port.
    pub listen: SocketAddr,
    /// How long a new client is held while nothing serves, before it is refused.
    #[serde(default = "thirty_s", deserialize_with = "duration")]
    pub hold: Duration,
    /// Most clients at once.
    #[serde(default = "clients_max")]
    pub clients_max: usize,
}

fn clients_max() -> usize {
    4096
}
fn ten_s() -> Duration {
    Duration::from_secs(10)
}
fn thirty_s() -> Duration {
    Duration::from_secs(30)
}
fn fifty_ms() -> Duration {
    Duration::from_millis(50)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AppFile {
    name: String,
    run_dir: Option<PathBuf>,
    #[serde(default = "default_admin")]
    admin: PathBuf,
    #[serde(default = "default_nbd")]
    nbd: String,
    volume: Vec<VolumeSpec>,
    instance: InstanceSpec,
    probe: ProbeSpec,
    endpoint: EndpointSpec,
    #[serde(default)]
    suspicion: SuspicionFile,
    #[serde(default)]
    race: RaceFile,
}

fn default_admin() -> PathBuf {
    segue_node::client::DEFAULT_ADMIN_SOCKET.into()
}
fn default_nbd() -> String {
    "unix:/run/segue/nbd.sock".into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SuspicionFile {
    phi: f64,
    #[serde(deserialize_with = "duration")]
    deviation_min: Duration,
    #[serde(deserialize_with = "duration")]
    silence_min: Duration,
    #[serde(deserialize_with = "duration")]
    silence_max: Duration,
    longest_factor: f64,
    window: usize,
    refusals: u32,
    busy_factor: f64,
    #[serde(deserialize_with = "duration")]
    storage_silence: Duration,
}

impl Default for SuspicionFile {
    fn default() -> Self {
        let t = Thresholds::default();
        SuspicionFile {
            phi: t.phi,
            deviation_min: Duration::from_nanos(t.deviation_ns_min),
            silence_min: Duration::from_nanos(t.silence_ns_min),
            silence_max: Duration::from_nanos(t.silence_ns_max),
            longest_factor: t.longest_factor,
            window: t.window,
            refusals: t.refusals,
            busy_factor: t.busy_factor,
            storage_silence: Duration::from_nanos(t.storage_silence_ns),
        }
    }
}

/// Names of the modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ModeName {
    /// Race a backup on a child against the primary's return.
    Speculative,
    /// Wait for a timeout, fence, recover.
    Reds,
    /// Do as a drill that knows the future says.
    Oracle,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RaceFile {
    mode: ModeName,
    #[serde(deserialize_with = "duration")]
    reds_timeout: Duration,
    #[serde(deserialize_with = "duration")]
    deadline: Duration,
    #[serde(deserialize_with = "duration")]
    backoff_min: Duration,
    #[serde(deserialize_with = "duration")]
    backoff_max: Duration,
    #[serde(deserialize_with = "duration")]
    recovery_max: Duration,
    backups_at_once: u32,
    backups_per_hour: u32,
    exit_is_certain: bool,
}

impl Default for RaceFile {
    fn default() -> Self {
        RaceFile {
            mode: ModeName::Speculative,
            reds_timeout: Duration::from_secs(30),
            deadline: Duration::from_secs(30),
            backoff_min: Duration::from_millis(500),
            backoff_max: Duration::from_secs(8),
            recovery_max: Duration::from_secs(600),
            backups_at_once: 20,
            backups_per_hour: 60,
            exit_is_certain: true,
        }
    }
}

fn duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    let ns = segue_types::parse_duration_ns(&text).map_err(|_| {
        serde::de::Error::custom(format!("`{text}` is not a duration; write for example \"250ms\", \"5s\", \"2min\""))
    })?;
    Ok(Duration::from_nanos(ns))
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl App {
    /// Reads and checks APP.toml.
    ///
    /// # Errors
    /// Exit code 2 with a message that names the line or key and what it should be.
    pub fn load(path: &Path) -> anyhow::Result<App> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| fail(ExitCode::Misuse, format!("cannot read {}: {error}", path.display())))?;
        App::parse(&text).map_err(|error| fail(ExitCode::Misuse, format!("{}: {error:#}", path.display())))
    }

    /// Reads and checks the text of an APP.toml.
    ///
    /// # Errors
    /// See [`App::load`].
    pub fn parse(text: &str) -> anyhow::Result<App> {
        let file: AppFile = toml::from_str(text)?;
        check_names(&file)?;
        let suspicion = thresholds(&file.suspicion, &file.probe)?;
        let race = race(&file.race)?;
        let run_dir = file.run_dir.unwrap_or_else(|| Path::new("/run/segue/apps").join(&file.name));
        anyhow::ensure!(run_dir.is_absolute(), "run_dir must be an absolute path");
        Ok(App {
            run_dir,
            name: file.name,
            admin: file.admin,
            nbd: file.nbd.parse()?,
            volumes: file.volume,
            instance: file.instance,
            probe: file.probe,
            endpoint: file.endpoint,
            suspicion,
            race,
        })
    }

    /// The same application in another mode; drills compare modes with it.
    pub fn set_mode(&mut self, mode: Mode) {
        self.race.mode = mode;
    }

    /// The names of its volumes, in order.
    pub fn volume_names(&self) -> Vec<String> {
        self.volumes.iter().map(|volume| volume.name.clone()).collect()
    }

    /// The words under which it holds leases.
    pub fn holder(&self) -> String {
        format!("failover {}", self.name)
    }
}

fn check_names(file: &AppFile) -> anyhow::Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    let good_name = (1..=32).contains(&file.name.len()) && file.name.bytes().all(plain);
    anyhow::ensure!(good_name, "name must be 1 to 32 of a-z A-Z 0-9 _ -");
    let count = file.volume.len();
    anyhow::ensure!(
        (1..=VOLUMES_MAX).contains(&count),
        "1 to {VOLUMES_MAX} [[volume]] sections are needed, not {count}"
    );
    for (i, volume) in file.volume.iter().enumerate() {
        segue_types::check_volume_name(&volume.name)?;
        let twice = file.volume[..i].iter().any(|other| other.name == volume.name);
        anyhow::ensure!(!twice, "volume {} is named twice", volume.name);
        let commit = (1..=300).contains(&volume.journal_commit.as_secs());
        anyhow::ensure!(commit, "volume {}: journal_commit must be 1s to 300s", volume.name);
    }
    let [a, b, r] = file.instance.ports;
    anyhow::ensure!(a != b && a != r && b != r && a.min(b).min(r) > 0, "instance.ports must be three different ports");
    let endpoint = file.endpoint.listen.port();
    anyhow::ensure!(![a, b, r].contains(&endpoint), "the endpoint's port must differ from instance.ports");
    let init = &file.instance;
    anyhow::ensure!(init.init.is_none() || init.init_done.is_some(), "instance.init needs instance.init_done");
    let needs_command = file.probe.kind == ProbeKind::Command;
    anyhow::ensure!(needs_command == file.probe.command.is_some(), "probe.command goes with probe.kind = \"command\"");
    Ok(())
}

fn thresholds(file: &SuspicionFile, probe: &ProbeSpec) -> anyhow::Result<Thresholds> {
    let interval = probe.interval.as_millis();
    anyhow::ensure!((5..=10_000).contains(&interval), "probe.interval must be 5ms to 10s");
    anyhow::ensure!((1..=WINDOW_MAX).contains(&file.window), "suspicion.window must be 1 to {WINDOW_MAX}");
    anyhow::ensure!(file.phi > 0.0 && file.phi <= 300.0, "suspicion.phi must be above 0 and at most 300");
    anyhow::ensure!(file.refusals >= 1, "suspicion.refusals must be at least 1");
    anyhow::ensure!((1.0..=100.0).contains(&file.busy_factor), "suspicion.busy_factor must be 1 to 100");
    anyhow::ensure!((0.0..=100.0).contains(&file.longest_factor), "suspicion.longest_factor must be 0 to 100");
    anyhow::ensure!(file.silence_min <= file.silence_max, "suspicion.silence_min must not exceed silence_max");
    anyhow::ensure!(file.deviation_min > Duration::ZERO, "suspicion.deviation_min must be above zero");
    Ok(Thresholds {
        phi: file.phi,
        gap_expected_ns: ns(probe.interval) + 5_000_000,
        deviation_ns_min: ns(file.deviation_min),
        silence_ns_min: ns(file.silence_min),
        silence_ns_max: ns(file.silence_max),
        longest_factor: file.longest_factor,
        window: file.window,
        refusals: file.refusals,
        busy_factor: file.busy_factor,
        storage_silence_ns: ns(file.storage_silence),
    })
}

fn race(file: &RaceFile) -> anyhow::Result<Config> {
    anyhow::ensure!(file.backups_at_once >= 1, "race.backups_at_once must be at least 1");
    anyhow::ensure!(file.backoff_min <= file.backoff_max, "race.backoff_min must not exceed backoff_max");
    anyhow::ensure!(file.recovery_max >= Duration::from_secs(1), "race.recovery_max must be at least 1s");
    Ok(Config {
        mode: match file.mode {
            ModeName::Speculative => Mode::Speculative,
            ModeName::Reds => Mode::Reds { timeout_ns: ns(file.reds_timeout) },
            ModeName::Oracle => Mode::Oracle,
        },
        deadline_ns: ns(file.deadline),
        backoff_ns_min: ns(file.backoff_min),
        backoff_ns_max: ns(file.backoff_max),
        recovery_ns_max: ns(file.recovery_max),
        look_ns: 250_000_000,
        retry_ns: 250_000_000,
        rate: Rate { burst: file.backups_at_once, per_hour: file.backups_per_hour },
        exit_is_certain: file.exit_is_certain,
    })
}

#[cfg(test)]
mod tests {
    use super::super::profile;
    use super::*;

    #[test]
    fn golden_profiles_are_valid() {
        for name in profile::NAMES {
            let app = App::parse(profile::text(name).expect("a shipped profile")).expect(name);
            assert!(app.instance.init.is_some() && app.race.mode == Mode::Speculative, "{name}");
        }
    }

    #[test]
    fn model_unknown_and_bad_keys_are_named() {
        let good = profile::text("postgresql").unwrap();
        let cases = [
            (good.replace("[endpoint]", "[endpoint]\nlissten = \"x\""), "lissten"),
            (good.replace("interval = \"50ms\"", "interval = \"50\""), "not a duration"),
            (good.replace("interval = \"50ms\"", "interval = \"1ms\""), "probe.interval"),
            (good.replace("ports = [15432,", "ports = [15433,"), "instance.ports"),
        ];
        for (text, word) in cases {
            assert_ne!(text, good, "the case for {word} changes something");
            let error = format!("{:#}", App::parse(&text).expect_err(word));
            assert!(error.contains(word), "{error}");
        }
    }
}
