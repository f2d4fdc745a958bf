//! A node with two file pools that can be killed and started again.
//!
//! Owns: the folder, the process, its configuration. Never: kills a process it did not start.
//! Invariant: when a value of this module is dropped, its process has ended and its folder is gone.

use crate::bench::process::Server;
use anyhow::{Context, Result, bail};
use segue_node::client::AdminClient;
use segue_types::api::CreateVolume;
use segue_types::format_size;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The two pools, and the node while it runs.
pub struct TwoPools {
    // Dropped before the folder.
    server: Option<Server>,
    client: AdminClient,
    dir: tempfile::TempDir,
}

impl TwoPools {
    /// Formats two pools of `bytes` each below `base`.
    pub fn make(base: &Path, bytes: u64) -> Result<TwoPools> {
        let dir = tempfile::tempdir_in(base).with_context(|| format!("make a folder in {}", base.display()))?;
        let at = dir.path();
        let mut config =
            format!("admin = \"{0}/admin.sock\"\n\n[nbd]\nlisten = [\"unix:{0}/nbd.sock\"]\n", at.display());
        for pool in ["a", "b"] {
            let path = at.join(pool);
            segue(&["pool", "format", &path.to_string_lossy(), "--size", &format_size(bytes)])?;
            config += &format!("\n[[pool]]\nname = \"{pool}\"\npath = \"{}\"\n", path.display());
        }
        std::fs::write(at.join("segue.toml"), config).context("write the node's configuration")?;
        let client = AdminClient::new(at.join("admin.sock"));
        Ok(TwoPools { server: None, client, dir })
    }

    /// Starts the node and waits until it serves.
    pub fn start(&mut self) -> Result<()> {
        let at = self.dir.path();
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["node", "start", "--foreground", "--config"]).arg(at.join("segue.toml"));
        let mut server = Server::start("segue node", command, &at.join("node.log"))?;
        let client = &self.client;
        server.wait_until(|| client.node().is_ok())?;
        self.server = Some(server);
        Ok(())
    }

    /// Ends the process at once, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.server.take().context("the node runs")?.kill()
    }

    /// Ends the process in order.
    pub fn stop(&mut self) -> Result<()> {
        self.client.stop().context("stop the node")?;
        drop(self.server.take());
        Ok(())
    }

    /// True when both pools are undamaged. The node must have been stopped.
    pub fn check(&self) -> Result<bool> {
        let good = |pool: &str| segue(&["pool", "check", &self.dir.path().join(pool).to_string_lossy()]);
        Ok(good("a").and_then(|()| good("b")).map_err(|error| eprintln!("{error:#}")).is_ok())
    }

    /// Makes a volume in the first pool.
    pub fn create(&self, name: &str, size_bytes: u64) -> Result<()> {
        let request = CreateVolume {
            name: name.to_owned(),
            pool: None,
            size_bytes,
            observation: None,
            token: None,
            encryption_key: None,
        };
        self.client.create_volume(&request).with_context(|| format!("create the volume {name}"))?;
        Ok(())
    }

    /// Asks the node.
    pub fn client(&self) -> &AdminClient {
        &self.client
    }

    /// The NBD socket.
    pub fn nbd_socket(&self) -> PathBuf {
        self.dir.path().join("nbd.sock")
    }
}

fn segue(words: &[&str]) -> Result<()> {
    let output = Command::new(std::env::current_exe().context("find this program")?).args(words).output()?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("segue {} failed: {}", words.join(" "), String::from_utf8_lossy(&said).trim());
    }
    Ok(())
}
