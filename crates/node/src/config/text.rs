//! Settings as a person writes them: sizes with units, listen addresses, the layout of the TOML file.
//!
//! Owns: the raw tree, its defaults and its documentation. Never: judges whether settings fit together.
//! Invariant: an unknown key is an error, and every key has a default or is named when it is missing.

use segue_types::qos::SharePolicy;
use segue_types::{format_size, parse_size};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A number of bytes, written with a unit: "64MiB".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_size(self.0))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_size(&text).map(Size).map_err(serde::de::Error::custom)
    }
}

/// A duration, written with a unit: "250ms", "5s", "2min".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span(pub std::time::Duration);

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ns = self.0.as_nanos();
        let units = [(60_000_000_000, "min"), (1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        let (unit_ns, unit) = units.into_iter().find(|(u, _)| ns.is_multiple_of(*u) && ns >= *u).unwrap_or((1, "ns"));
        serializer.serialize_str(&format!("{}{unit}", ns / unit_ns))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let ns = segue_types::parse_duration_ns(&text);
        let bad = |_| serde::de::Error::custom("a duration is a number and a unit (ms, s, min, h), for example 5s");
        ns.map(|ns| Span(std::time::Duration::from_nanos(ns))).map_err(bad)
    }
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// How much is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what makes the node fail.
    Error,
    /// And what a person should look at.
    Warn,
    /// And what happens rarely: start, stop, super, collapse, leases.
    Info,
    /// And what happens often: connections.
    Debug,
}

/// How drives and sockets are driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoEngine {
    /// io_uring where the kernel grants it, else poll.
    Auto,
    /// io_uring, or do not start.
    IoUring,
    /// Plain system calls and poll.
    Poll,
}

/// One documented setting, for the reference.
pub struct SettingDoc {
    /// The key.
    pub key: &'static str,
    /// What a value looks like.
    pub form: &'static str,
    /// The default as text, or what happens without it.
    pub default: &'static str,
    /// What it does.
    pub text: &'static [&'static str],
}

/// One documented table of the file.
pub struct SectionDoc {
    /// Its TOML head, empty for the top of the file.
    pub head: &'static str,
    /// What it is for.
    pub text: &'static [&'static str],
    /// Its settings.
    pub settings: &'static [SettingDoc],
}

/// Declares a table of the configuration once: the serde type, and its part of the reference.
macro_rules! section {
    ($head:literal, $(#[doc = $about:literal])* struct $name:ident {
        $($(#[doc = $text:literal])* #[form($form:literal, $default:literal)] $(#[serde($($serde:tt)*)])? $key:ident: $ty:ty,)*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[doc = $text])* $(#[serde($($serde)*)])? pub $key: $ty,)*
        }

        impl $name {
            /// Its part of the reference.
            pub const DOC: SectionDoc = SectionDoc {
                head: $head,
                text: &[$($about),*],
                settings: &[$(SettingDoc {
                    key: stringify!($key), form: $form, default: $default, text: &[$($text),*],
                }),*],
            };
        }
    };
}

section! {
    "",
    /// The top of the file. Keys here stand before the first table.
    struct NodeToml {
        /// Unix socket of the admin API, made with mode 0600: whoever can open it may do everything.
        #[form("path", "/run/segue/admin.sock")]
        #[serde(default = "default_admin")]
        admin: PathBuf,
        /// How drives and sockets are driven. `auto` falls back to `poll` where the kernel refuses io_uring, and says so.
        #[form("auto | io_uring | poll", "auto")]
        #[serde(default = "default_io_engine")]
        io_engine: IoEngine,
        /// Cores that serve: one thread each. 0 takes one per pool, at most as many as the machine has. Range 0 to 64.
        #[form("number", "0")]
        #[serde(default)]
        cores: u32,
        /// Threads that do the arithmetic of TLS handshakes for the cores, at a lower priority. 0: the cores do it themselves.
        /// None is started without `[tls]`. Range 0 to 64.
        #[form("number", "1")]
        #[serde(default = "default_helpers")]
        helpers: u32,
        /// Keep each core's thread on a processor of its own. Good where nothing else wants those processors.
        #[form("true | false", "false")]
        #[serde(default)]
        pin_cores: bool,
        /// I/O memory of each pool: buffers of requests in flight. Range 32MiB to 16GiB. Only what is used is resident.
        #[form("size", "128MiB")]
        #[serde(default = "default_io_memory")]
        io_memory: Size,
        /// How long an orderly stop waits for requests in flight before it cuts the connections.
        #[form("duration", "5s")]
        #[serde(default = "default_stop_wait")]
        stop_wait: Span,
        /// Let `segue node inject` make tasks of this node panic. For machines that test what a node survives.
        #[form("true | false", "false")]
        #[serde(default)]
        allow_fault_injection: bool,
        /// Logs, on stderr.
        #[form("table", "see below")]
        #[serde(default)]
        log: LogToml,
        /// Serving volumes.
        #[form("table", "see below")]
        #[serde(default)]
        nbd: NbdToml,
        /// Certificates for NBD over TLS.
        #[form("table", "no TLS")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<TlsToml>,
        /// The admin API over TCP with client certificates.
        #[form("table", "unix socket only")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        admin_tls: Option<AdminTlsToml>,
        /// Pools, at least one; the first is where volumes go when no pool is named.
        #[form("tables", "required")]
        #[serde(default)]
        pool: Vec<PoolToml>,
        /// Keys of encrypted volumes.
        #[form("tables", "none")]
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        key: Vec<KeyToml>,
    }
}

section! {
    "[log]",
    /// Logs go to stderr, one event per line.
    struct LogToml {
        /// How much is logged.
        #[form("error | warn | info | debug", "info")]
        #[serde(default = "default_log_level")]
        level: LogLevel,
        /// How lines look.
        #[form("text | json", "text")]
        #[serde(default = "default_log_format")]
        format: LogFormat,
    }
}

section! {
    "[nbd]",
    /// Serving volumes over NBD.
    struct NbdToml {
        /// Where to listen: `unix:PATH`, `ADDRESS:PORT`, `[IPV6]:PORT`. Port 0 lets the system choose.
        #[form("list of addresses", "[\"unix:/run/segue/nbd.sock\"]")]
        #[serde(default = "default_nbd_listen")]
        listen: Vec<String>,
        /// Allow addresses other than loopback without TLS. Everybody who can reach them may then read and change volumes.
        #[form("true | false", "false")]
        #[serde(default)]
        allow_plaintext: bool,
    }
}

section! {
    "[tls]",
    /// Certificates for NBD over TLS (TLS 1.2 and 1.3). With this table clients on TCP must start TLS; on unix sockets they may.
    struct TlsToml {
        /// PEM file with the server's certificate and its chain.
        #[form("path", "required")]
        cert: PathBuf,
        /// PEM file with the server's private key; readable by the node's user only.
        #[form("path", "required")]
        key: PathBuf,
        /// PEM file with the authorities that client certificates must come from. Without it any client may connect.
        #[form("path", "no client certificates")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_ca: Option<PathBuf>,
    }
}

section! {
    "[admin_tls]",
    /// The admin API over TCP. Only with client certificates: whoever has one may do everything.
    struct AdminTlsToml {
        /// Where to listen.
        #[form("ADDRESS:PORT", "required")]
        listen: String,
        /// PEM file with the server's certificate and its chain.
        #[form("path", "required")]
        cert: PathBuf,
        /// PEM file with the server's private key.
        #[form("path", "required")]
        key: PathBuf,
        /// PEM file with the authorities that client certificates must come from.
        #[form("path", "required")]
        client_ca: PathBuf,
    }
}

section! {
    "[[pool]]",
    /// A pool: one drive, one core thread. Give either `path` or `memory_bytes`.
    struct PoolToml {
        /// Its name, by the rules of volume names.
        #[form("text", "required")]
        name: String,
        /// The drive: a block device or a file, made by `segue pool format`.
        #[form("path", "none")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf>,
        /// A pool in memory of this size, new and empty at each start. At least 16MiB.
        #[form("size", "none")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_bytes: Option<Size>,
        /// Cap of the cache of map pages. Range 4MiB to 64GiB.
        #[form("size", "16MiB")]
        #[serde(default = "default_cache")]
        cache: Size,
        /// How its volumes share the drive: docs/qos.md. `segue pool qos` changes it until the next start.
        #[form("fifo | strict | drr | slo | mclock", "mclock")]
        #[serde(default)]
        policy: SharePolicy,
        /// 4 KiB reads per second that the drive sustains, as `segue drive calibrate` prints it; nine tenths may be reserved.
        #[form("number", "not known")]
        #[serde(default)]
        capacity_iops: u64,
        /// p95 of a 4 KiB read at which the drive is kept, as `segue drive calibrate` prints it. Needs `knee_depth`.
        #[form("duration", "not governed")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        latency_target: Option<Span>,
        /// 4 KiB reads in flight at the knee of the drive's latency curve, as `segue drive calibrate` prints it.
        #[form("number", "not governed")]
        #[serde(default)]
        knee_depth: u32,
        /// Cost of a 4 KiB write in hundredths of a read, as `segue drive calibrate` prints it.
        #[form("number", "200 on a drive, 100 in memory")]
        #[serde(default)]
        write_cost_percent: u32,
    }
}

section! {
    "[[key]]",
    /// The key of an encrypted volume, loaded at each start. Give either `file` or `command`. Clones and snapshots share
    /// the key of their origin. A key that cannot be read leaves the volume locked; `segue volume unlock` loads it later.
    struct KeyToml {
        /// The volume.
        #[form("text", "required")]
        volume: String,
        /// File of 32 to 4096 random bytes; one newline at its end is ignored. Keep it off the pool's drive.
        #[form("path", "none")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
        /// Program and arguments that print such bytes within 30 s; for a key held by a safe of keys.
        #[form("list of texts", "none")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        command: Option<Vec<String>>,
    }
}

fn default_admin() -> PathBuf {
    crate::client::DEFAULT_ADMIN_SOCKET.into()
}

fn default_io_engine() -> IoEngine {
    IoEngine::Auto
}

fn default_helpers() -> u32 {
    1
}

fn default_io_memory() -> Size {
    Size(128 << 20)
}

fn default_stop_wait() -> Span {
    Span(std::time::Duration::from_secs(5))
}

fn default_log_level() -> LogLevel {
    LogLevel::Info
}

fn default_log_format() -> LogFormat {
    LogFormat::Text
}

fn default_nbd_listen() -> Vec<String> {
    vec!["unix:/run/segue/nbd.sock".into()]
}

fn default_cache() -> Size {
    Size(16 << 20)
}

impl Default for LogToml {
    fn default() -> Self {
        LogToml { level: default_log_level(), format: default_log_format() }
    }
}

impl Default for NbdToml {
    fn default() -> Self {
        NbdToml { listen: default_nbd_listen(), allow_plaintext: false }
    }
}

/// The tables of the file, in reading order.
pub const SECTIONS: [SectionDoc; 7] =
    [NodeToml::DOC, LogToml::DOC, NbdToml::DOC, TlsToml::DOC, AdminTlsToml::DOC, PoolToml::DOC, KeyToml::DOC];
