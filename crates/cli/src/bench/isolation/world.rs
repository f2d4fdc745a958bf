//! The node of the bench: the shipped runtime on a drive whose limits are known.
//!
//! Owns: the runtime, its volumes, its listeners. Never: judges.
//! Invariant: every volume is written in full before anything is measured, so that no read is answered from a hole.

use super::client::{Ask, Client};
use super::load::{Door, VOLUME_BYTES, real_time};
use anyhow::{Context, Result, bail};
use rustls_pki_types::PrivateKeyDer;
use segue_runtime::drive::DriveTiming;
use segue_runtime::{DriveSpec, ListenAddr, Options, PoolSpec, Runtime, Sharing, SharingState, Tls};
use segue_sched::qos::{CostModel, GovernorParams, PolicyKind, READ_4K};
use segue_types::Share;
use segue_volume::engine::EngineOptions;
use segue_volume::op::{AdminOp, ObservationRule};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The pool.
const POOL: &str = "bench";
/// Bytes of the drive.
const DRIVE_BYTES: u64 = 2 << 30;

/// A running node.
pub struct World {
    runtime: Runtime,
    pub door: Door,
    pub sharing: Sharing,
    /// The core's thread and the victim's run in real time.
    pub preferred: bool,
    _dir: tempfile::TempDir,
}

/// What is known of the modelled drive: costs by its times, the window around its knee.
fn sharing_of(timing: &DriveTiming) -> Sharing {
    let units = |ns: u64| (ns * READ_4K / timing.read_ns) as u32;
    let model = CostModel {
        read_base: units(timing.read_ns.saturating_sub(timing.block_ns)) - 4,
        read_block: units(timing.block_ns),
        write_base: units(timing.write_ns.saturating_sub(timing.block_ns)) - 4,
        write_block: units(timing.block_ns),
        flush: units(timing.flush_ns) + units(timing.write_ns),
        trim_base: units(timing.discard_ns),
        trim_mib: 0,
        cpu_base_ns: 4000,
        cpu_block_ns: 600,
        cpu_us: 1,
    };
    let knee = timing.channels as u64 * READ_4K;
    let governor = GovernorParams { target_ns: timing.read_ns * 3 / 2, window_min: knee / 2, window_max: knee * 3 };
    let capacity = knee * 1_000_000_000 / timing.read_ns;
    Sharing { policy: PolicyKind::Mclock, model, governor, capacity }
}

impl World {
    /// Starts the node with these volumes: on a modelled drive, or on a new file in a folder.
    pub fn start(file_in: Option<&Path>, timing: DriveTiming, volumes: &[&str]) -> Result<World> {
        let dir = match file_in {
            Some(base) => tempfile::tempdir_in(base).with_context(|| format!("make a folder in {}", base.display()))?,
            None => tempfile::tempdir().context("make a folder")?,
        };
        let runtime = Runtime::start(Options::default())?;
        let drive = match file_in {
            None => DriveSpec::Modelled { bytes: DRIVE_BYTES, timing },
            Some(_) => {
                let path = dir.path().join("pool.img");
                segue_runtime::drive::create_sparse(&path, DRIVE_BYTES).context("make the pool's file")?;
                let spec = DriveSpec::File { path };
                segue_runtime::format_drive(&spec, true)?;
                spec
            }
        };
        runtime.add_pool(PoolSpec::engine(POOL, drive, EngineOptions::default()))?;
        let sharing = match file_in {
            None => sharing_of(&timing),
            Some(_) => runtime.sharing_wait(POOL, None)?.sharing,
        };
        let (server_tls, client_tls) = certificates()?;
        let door = Door { plain: dir.path().join("nbd.sock"), tls: dir.path().join("tls.sock"), client_tls };
        runtime.listen(&ListenAddr::Unix(door.plain.clone()), Tls::Off)?;
        runtime.listen(&ListenAddr::Unix(door.tls.clone()), Tls::Required(server_tls))?;
        let preferred = prefer_core();
        let world = World { runtime, door, sharing, preferred, _dir: dir };
        world.use_policy(PolicyKind::Fifo)?;
        for name in volumes {
            world.make(name)?;
        }
        Ok(world)
    }

    fn make(&self, name: &str) -> Result<()> {
        let op = AdminOp::Create {
            name: name.to_owned(),
            size_bytes: VOLUME_BYTES,
            rule: ObservationRule::Flush,
            token_sha256: None,
            encryption: None,
        };
        self.runtime.admin_wait(POOL, op)?;
        let mut client = self.client(name)?;
        let mut at = 0;
        let fill = || {
            let ask = (at < VOLUME_BYTES).then_some(Ask::Write { offset: at, len: 1 << 20 });
            at += 1 << 20;
            ask
        };
        client.run(4, fill, |_, _| {})?;
        let mut flush = Some(Ask::Flush);
        client.run(1, || flush.take(), |_, _| {})
    }

    /// A client of a volume.
    pub fn client(&self, volume: &str) -> Result<Client> {
        Client::open(&self.door.plain, volume)
    }

    /// Shares by this policy. `fifo` stands for a node without isolation: no window either.
    pub fn use_policy(&self, policy: PolicyKind) -> Result<()> {
        let governor = if policy == PolicyKind::Fifo { GovernorParams::OPEN } else { self.sharing.governor };
        self.runtime.sharing_wait(POOL, Some(Sharing { policy, governor, ..self.sharing }))?;
        Ok(())
    }

    /// Gives a volume its share.
    pub fn set(&self, volume: &str, share: Share) -> Result<()> {
        self.runtime.admin_wait(POOL, AdminOp::SetShare { name: volume.to_owned(), share: Some(share) })?;
        Ok(())
    }

    /// How the drive is shared now.
    pub fn state(&self) -> Result<SharingState> {
        Ok(self.runtime.sharing_wait(POOL, None)?)
    }

    /// Ends the node.
    pub fn stop(self) -> Result<()> {
        self.runtime.stop(Duration::from_secs(20)).context("stop the node")
    }
}

fn certificates() -> Result<(Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>)> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).context("make a certificate")?;
    let Ok(key) = PrivateKeyDer::try_from(made.signing_key.serialize_der()) else { bail!("the key cannot be read") };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Every handshake is a whole one.
    client.resumption = rustls::client::Resumption::disabled();
    Ok((Arc::new(server), Arc::new(client)))
}

/// Lets the core's thread and the calling one, the victim's, run in real time. False where that is not allowed.
fn prefer_core() -> bool {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return false };
    let mut done = real_time(0, 1);
    for task in tasks.flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let id = task.file_name().to_string_lossy().parse::<libc::pid_t>();
        if let (true, Ok(id)) = (name.starts_with("segue-core"), id) {
            done &= real_time(id, 2);
        }
    }
    done
}
