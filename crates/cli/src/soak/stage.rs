//! The node of a soak: two pools, the volumes, and what is looked at when the load has ended.
//!
//! Owns: the node's folder and process. Never: starts it twice; a node that ends is a failure.
//! Invariant: when a stage is dropped its process has ended and its files are gone.

use crate::bench::fio;
use crate::bench::process::Server;
use anyhow::{Context, Result, bail};
use segue_node::client::AdminClient;
use segue_types::api::CreateVolume;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of a volume, and of a pool: room for snapshots that hold every block once more.
const VOLUME_BYTES: u64 = 64 << 20;
const POOL_BYTES: u64 = 1 << 30;
/// Patience with the last scrub.
const SCRUB_LIMIT: Duration = Duration::from_secs(60);

/// A node with its volumes.
pub struct Stage {
    server: Option<Server>,
    client: AdminClient,
    dir: tempfile::TempDir,
    files: bool,
    volumes: u32,
    pid: u32,
}

fn segue() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("find this program")?))
}

impl Stage {
    /// Starts a node on pools below `base`, or in memory, and makes the volumes.
    pub fn start(base: Option<&PathBuf>, volumes: u32) -> Result<Stage> {
        let dir = match base {
            Some(base) => tempfile::tempdir_in(base).with_context(|| format!("make a folder in {}", base.display()))?,
            None => tempfile::tempdir().context("make a folder")?,
        };
        let at = dir.path();
        let mut config = format!(
            "admin = \"{0}/admin.sock\"\nallow_fault_injection = true\ncores = 2\n[nbd]\nlisten = [\"unix:{0}/nbd.sock\"]\n",
            at.display()
        );
        for pool in ["p0", "p1"] {
            let size = segue_types::format_size(POOL_BYTES);
            let file = at.join(pool);
            config += &match base {
                Some(_) => {
                    let made = segue()?.args(["pool", "format"]).arg(&file).args(["--size", &size]).output();
                    let made = made.context("start pool format")?;
                    if !made.status.success() {
                        bail!("pool format failed: {}", String::from_utf8_lossy(&made.stderr).trim());
                    }
                    format!("[[pool]]\nname = \"{pool}\"\npath = \"{}\"\n", file.display())
                }
                None => format!("[[pool]]\nname = \"{pool}\"\nmemory_bytes = \"{size}\"\n"),
            };
        }
        fs::write(at.join("segue.toml"), config).context("write the node's configuration")?;
        let mut command = segue()?;
        command.args(["node", "start", "--foreground", "--config"]).arg(at.join("segue.toml"));
        let mut server = Server::start("segue node", command, &at.join("node.log"))?;
        let client = AdminClient::new(at.join("admin.sock"));
        server.wait_until(|| client.node().is_ok())?;
        for number in 0..volumes {
            let request = CreateVolume {
                name: format!("v{number}"),
                pool: Some(format!("p{}", number % 2)),
                size_bytes: VOLUME_BYTES,
                observation: None,
                token: None,
                encryption_key: None,
            };
            client.create_volume(&request).context("create a volume")?;
        }
        let pid = client.node()?.pid;
        Ok(Stage { server: Some(server), client, files: base.is_some(), dir, volumes, pid })
    }

    /// The admin API.
    pub fn client(&self) -> &AdminClient {
        &self.client
    }

    /// How many volumes there are.
    pub fn volumes(&self) -> u32 {
        self.volumes
    }

    /// A file of the node's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// fio's name of a volume.
    pub fn uri(&self, volume: u32) -> String {
        fio::uri(&self.path("nbd.sock"), &format!("v{volume}"))
    }

    /// 0 as long as the process that was started is the one that answers.
    pub fn restarts(&self) -> u32 {
        u32::from(self.client.node().map_or(true, |node| node.pid != self.pid))
    }

    /// Reads and verifies every block of both pools; tells how many did not match.
    ///
    /// # Errors
    /// When the node does not answer, or does not end the scrub in time.
    pub fn scrub(&self) -> Result<u64> {
        let mut errors = 0;
        for pool in ["p0", "p1"] {
            // One that the operator began may still run; the one that counts begins after it.
            self.wait_for_scrub(pool)?;
            self.client.scrub_start(pool)?;
            errors += self.wait_for_scrub(pool)?;
            errors += self.client.pool(pool)?.integrity_errors;
        }
        Ok(errors)
    }

    fn wait_for_scrub(&self, pool: &str) -> Result<u64> {
        let begun = Instant::now();
        loop {
            let status = self.client.scrub_status(pool)?;
            if !status.running {
                return Ok(status.errors);
            }
            if begun.elapsed() > SCRUB_LIMIT {
                bail!("the scrub of pool {pool} has not ended after {SCRUB_LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops the node in order and checks its files. `None`: the pools were in memory.
    ///
    /// # Errors
    /// When the check cannot be run.
    pub fn end(&mut self) -> Result<Option<bool>> {
        // Ends the process and waits for it.
        drop(self.server.take());
        if !self.files {
            return Ok(None);
        }
        let mut clean = true;
        for pool in ["p0", "p1"] {
            clean &= self.check(&self.path(pool))?;
        }
        Ok(Some(clean))
    }

    fn check(&self, pool: &Path) -> Result<bool> {
        let said = segue()?.args(["pool", "check"]).arg(pool).output().context("start pool check")?;
        Ok(said.status.success())
    }
}
