//! The node's configuration: read once, judged once, and then a value that cannot be invalid.
//!
//! Owns: the rules that settings obey together. Never: opens a drive or a socket.
//! Invariant: a [`Config`] exists only if every rule held; nothing later asks again.

mod reference;
mod text;

pub use reference::reference;
pub use text::{IoEngine, LogFormat, LogLevel, NodeToml};

use segue_types::qos::{DriveProfile, SharePolicy};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use text::{KeyToml, PoolToml, TlsToml};

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => address.fmt(f),
        }
    }
}

/// What a pool lives on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backing {
    /// A formatted block device or file.
    Path(PathBuf),
    /// This many bytes of memory, formatted at each start.
    Memory(u64),
}

/// A pool to open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Its name, unique.
    pub name: String,
    /// What it lives on.
    pub backing: Backing,
    /// Cap of the map page cache.
    pub cache_bytes: u64,
    /// How its volumes share the drive.
    pub policy: SharePolicy,
    /// What is known of the drive.
    pub profile: DriveProfile,
}

/// Files of a TLS server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub cert: PathBuf,
    /// The server's key.
    pub key: PathBuf,
    /// Authorities of client certificates; `None` asks for none.
    pub client_ca: Option<PathBuf>,
}

/// The admin API over TCP.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdminTls {
    /// Where.
    pub listen: SocketAddr,
    /// With what; `client_ca` is always there.
    pub files: TlsFiles,
}

/// Where a key comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// What a program prints; its name and arguments.
    Command(Vec<String>),
}

/// The key of an encrypted volume.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KeyConfig {
    /// The volume.
    pub volume: String,
    /// Where it comes from.
    pub source: KeySource,
}

/// A configuration that obeys every rule.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The admin socket.
    pub admin: PathBuf,
    /// How I/O is driven.
    pub io_engine: IoEngine,
    /// Cores that serve; 0 for one per pool, at most as many as the machine has.
    pub cores: u32,
    /// Threads that do TLS handshakes for the cores.
    pub helpers: u32,
    /// I/O memory per pool.
    pub io_memory_bytes: u64,
    /// Patience of an orderly stop.
    pub stop_wait: Duration,
    /// Tasks may be made to panic on purpose.
    pub allow_fault_injection: bool,
    /// How much is logged.
    pub log_level: LogLevel,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Where NBD is served.
    pub nbd: Vec<Listen>,
    /// TLS of NBD on TCP.
    pub tls: Option<TlsFiles>,
    /// The admin API over TCP.
    pub admin_tls: Option<AdminTls>,
    /// Pools, at least one.
    pub pools: Vec<PoolConfig>,
    /// Each core's thread stays on a processor of its own.
    pub pin_cores: bool,
    /// Keys of encrypted volumes.
    pub keys: Vec<KeyConfig>,
    effective: NodeToml,
}

/// Most cores of a node.
const CORES_MAX: u32 = 64;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML, or a key or value is wrong; the source shows the line.
    #[error("the configuration is not valid")]
    Parse(#[source] Box<toml::de::Error>),
    /// No pool.
    #[error("no pool is configured; add a [[pool]] table with a name and a path or memory_bytes")]
    NoPool,
    /// A pool's name breaks the rules.
    #[error("the pool name {name:?} is not valid")]
    PoolName {
        /// The name.
        name: String,
        /// The rule.
        #[source]
        source: segue_types::ExportNameError,
    },
    /// Two pools share a name or a path.
    #[error("two pools share {what:?}; each pool needs a name and a drive of its own")]
    PoolTwice {
        /// The name or path.
        what: String,
    },
    /// Neither or both of `path` and `memory_bytes`.
    #[error("pool {pool:?} needs exactly one of path and memory_bytes")]
    PoolBacking {
        /// The pool.
        pool: String,
    },
    /// A key's volume has no valid name, or neither or both of `file` and `command` are there.
    #[error("the key of volume {volume:?} needs the name of a volume and exactly one of file and command")]
    Key {
        /// The volume.
        volume: String,
    },
    /// Half a profile of the drive.
    #[error(
        "pool {pool:?} needs both of latency_target (at most 10s) and knee_depth (at most 4096), or neither; \
         `segue drive calibrate` prints them"
    )]
    Profile {
        /// The pool.
        pool: String,
    },
    /// A size is out of its range.
    #[error("{key} is {is}, allowed are {min} to {max}", is = segue_types::format_size(*.is), min = segue_types::format_size(*.min), max = segue_types::format_size(*.max))]
    Range {
        /// The setting.
        key: &'static str,
        /// Its value, bytes.
        is: u64,
        /// Smallest allowed, bytes.
        min: u64,
        /// Largest allowed, bytes.
        max: u64,
    },
    /// More cores than a node may have.
    #[error("cores is {is}, allowed are 0 to {CORES_MAX}; 0 takes one per pool")]
    Cores {
        /// As written.
        is: u32,
    },
    /// More helpers than a node may have.
    #[error("helpers is {is}, allowed are 0 to {CORES_MAX}; 0 lets the cores do TLS handshakes themselves")]
    Helpers {
        /// As written.
        is: u32,
    },
    /// An address cannot be read.
    #[error("{text:?} is not an address to listen on; write unix:PATH, ADDRESS:PORT or [IPV6]:PORT")]
    Address {
        /// As written.
        text: String,
    },
    /// The same address twice.
    #[error("the address {text:?} is listed twice")]
    AddressTwice {
        /// The address.
        text: String,
    },
    /// A public address without TLS.
    #[error(
        "{address} is not loopback and would be served without TLS, open to everybody; \
         add a [tls] table, listen on loopback or a unix socket, or set nbd.allow_plaintext = true"
    )]
    Plaintext {
        /// The address.
        address: SocketAddr,
    },
    /// The admin API over TCP needs client certificates on any address.
    #[error("the admin_tls.listen {text:?} is not an ADDRESS:PORT")]
    AdminAddress {
        /// As written.
        text: String,
    },
}

impl Config {
    /// Reads and judges a configuration file. Relative paths in it are relative to the working directory.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and what to write instead.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path);
        Config::parse(&text.map_err(|source| ConfigError::Read { path: path.to_owned(), source })?)
    }

    /// Judges a configuration given as TOML.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and what to write instead.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::judge(toml::from_str(text).map_err(|e| ConfigError::Parse(Box::new(e)))?)
    }

    /// Every setting with the value that is in force, as TOML.
    pub fn effective(&self) -> String {
        toml::to_string(&self.effective).expect("the tree came from TOML")
    }

    fn judge(toml: NodeToml) -> Result<Config, ConfigError> {
        if toml.cores > CORES_MAX {
            return Err(ConfigError::Cores { is: toml.cores });
        }
        if toml.helpers > CORES_MAX {
            return Err(ConfigError::Helpers { is: toml.helpers });
        }
        range("io_memory", toml.io_memory.0, 32 << 20, 16 << 30)?;
        let nbd = judge_listen(&toml.nbd.listen, toml.tls.is_some() || toml.nbd.allow_plaintext)?;
        let admin_tls = toml.admin_tls.as_ref().map(|a| {
            let listen = a.listen.parse().map_err(|_| ConfigError::AdminAddress { text: a.listen.clone() })?;
            let files = TlsFiles { cert: a.cert.clone(), key: a.key.clone(), client_ca: Some(a.client_ca.clone()) };
            Ok(AdminTls { listen, files })
        });
        let tls = |t: &TlsToml| TlsFiles { cert: t.cert.clone(), key: t.key.clone(), client_ca: t.client_ca.clone() };
        Ok(Config {
            admin: toml.admin.clone(),
            io_engine: toml.io_engine,
            cores: toml.cores,
            helpers: toml.helpers,
            io_memory_bytes: toml.io_memory.0,
            stop_wait: toml.stop_wait.0,
            allow_fault_injection: toml.allow_fault_injection,
            log_level: toml.log.level,
            log_format: toml.log.format,
            nbd,
            tls: toml.tls.as_ref().map(tls),
            admin_tls: admin_tls.transpose()?,
            pools: judge_pools(&toml.pool)?,
            pin_cores: toml.pin_cores,
            keys: toml.key.iter().map(judge_key).collect::<Result<_, _>>()?,
            effective: toml,
        })
    }
}

fn judge_key(key: &KeyToml) -> Result<KeyConfig, ConfigError> {
    let volume = key.volume.clone();
    let named = segue_types::check_volume_name(&volume).is_ok();
    let source = match (&key.file, &key.command) {
        (Some(path), None) if named => KeySource::File(path.clone()),
        (None, Some(command)) if named && !command.is_empty() => KeySource::Command(command.clone()),
        _ => return Err(ConfigError::Key { volume }),
    };
    Ok(KeyConfig { volume, source })
}

fn range(key: &'static str, is: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&is) { Ok(()) } else { Err(ConfigError::Range { key, is, min, max }) }
}

fn judge_listen(texts: &[String], plaintext_is_fine: bool) -> Result<Vec<Listen>, ConfigError> {
    let mut all = Vec::new();
    for text in texts {
        let listen = match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Listen::Unix(path.into()),
            Some(_) => return Err(ConfigError::Address { text: text.clone() }),
            None => Listen::Tcp(text.parse().map_err(|_| ConfigError::Address { text: text.clone() })?),
        };
        if let Listen::Tcp(address) = listen
            && !plaintext_is_fine
            && !address.ip().is_loopback()
        {
            return Err(ConfigError::Plaintext { address });
        }
        let chosen_by_system = matches!(&listen, Listen::Tcp(address) if address.port() == 0);
        if !chosen_by_system && all.contains(&listen) {
            return Err(ConfigError::AddressTwice { text: text.clone() });
        }
        all.push(listen);
    }
    Ok(all)
}

fn judge_pools(pools: &[PoolToml]) -> Result<Vec<PoolConfig>, ConfigError> {
    let mut all: Vec<PoolConfig> = Vec::new();
    for pool in pools {
        let name = pool.name.clone();
        segue_types::check_volume_name(&name).map_err(|source| ConfigError::PoolName { name: name.clone(), source })?;
        let backing = match (&pool.path, pool.memory_bytes) {
            (Some(path), None) => Backing::Path(path.clone()),
            (None, Some(size)) => {
                range("memory_bytes", size.0, 16 << 20, 1 << 50)?;
                Backing::Memory(size.0)
            }
            _ => return Err(ConfigError::PoolBacking { pool: name }),
        };
        range("cache", pool.cache.0, 4 << 20, 64 << 30)?;
        if all.iter().any(|p| p.name == name) {
            return Err(ConfigError::PoolTwice { what: name });
        }
        if let Backing::Path(path) = &backing
            && all.iter().any(|p| p.backing == backing)
        {
            return Err(ConfigError::PoolTwice { what: path.display().to_string() });
        }
        let us = pool.latency_target.map_or(0, |target| target.0.as_micros());
        if us > 10_000_000 || (us > 0) != (pool.knee_depth > 0) || pool.knee_depth > 4096 {
            return Err(ConfigError::Profile { pool: name });
        }
        let profile = DriveProfile {
            capacity_iops: pool.capacity_iops,
            latency_target_us: us as u32,
            knee_depth: pool.knee_depth,
            write_cost_percent: pool.write_cost_percent,
        };
        all.push(PoolConfig { name, backing, cache_bytes: pool.cache.0, policy: pool.policy, profile });
    }
    if all.is_empty() { Err(ConfigError::NoPool) } else { Ok(all) }
}

#[cfg(test)]
mod tests;
