//! Servers that a bench starts: processes that end with it, and what they cost.
//!
//! Owns: starting, stopping and measuring child processes. Never: touches a process it did not start.
//! Invariant: when a value of this module is dropped, its process has ended and its folder is gone.

use crate::exit::{ExitCode, fail};
use anyhow::{Context, Result, bail};
use segue_node::client::AdminClient;
use segue_types::api::{CreateVolume, SecretHex};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A child process that is ended when this is dropped.
pub struct Server {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts `command` with its output in `log`.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Server> {
        let out = fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
        let err = out.try_clone().context("share the log")?;
        let spawned = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let child = spawned.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => fail(
                ExitCode::Unsupported,
                format!("{} is not installed; `scripts/setup` installs it", command.get_program().to_string_lossy()),
            ),
            _ => anyhow::Error::new(error).context(format!("start {name}")),
        })?;
        Ok(Server { child, name: name.to_owned(), log: log.to_owned() })
    }

    /// Waits until somebody accepts connections on `socket`.
    pub fn wait_for_socket(&mut self, socket: &Path) -> Result<()> {
        self.wait_until(|| UnixStream::connect(socket).is_ok())
    }

    /// Waits until `ready`, at most 20 s, and no longer than the process lives.
    pub fn wait_until(&mut self, mut ready: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.child.try_wait().context("look at a child")? {
                bail!("{} ended at once ({status}): {}", self.name, self.log_text());
            }
            if start.elapsed() > START_LIMIT {
                bail!("{} was not ready after {START_LIMIT:?}: {}", self.name, self.log_text());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().replace('\n', " | ")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once, as a crash would.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill a child")?;
        self.child.wait().context("wait for a child")?;
        Ok(())
    }

    /// CPU seconds it has used so far.
    pub fn cpu_s(&self) -> Result<f64> {
        cpu_s(self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let start = Instant::now();
        while start.elapsed() < STOP_LIMIT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU seconds (user and system) of a process, from `/proc/PID/stat`.
pub fn cpu_s(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("read the CPU time of a process")?;
    // The name, in parentheses, may hold spaces; fields count from behind it: utime and stime are the 12th and 13th.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    Ok(ticks as f64 / per_second as f64)
}

/// A field in KiB of `/proc/PID/status`, for example `VmRSS`, as bytes.
pub fn status_bytes(pid: u32, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("read the state of a process")?;
    let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no {field} of process {pid}"))? << 10)
}

/// A node of this program with one pool, in a folder of its own.
pub struct Node {
    server: Server,
    dir: tempfile::TempDir,
    client: AdminClient,
}

impl Node {
    /// Starts a node on a memory pool of `bytes`.
    pub fn on_memory(bytes: u64) -> Result<Node> {
        Node::with_cores(1, None, bytes)
    }

    /// Starts a node with so many cores and as many memory pools (`bench`, `bench1`, ...) of `bytes`.
    pub fn on_memories(cores: u32, bytes: u64, pin: bool) -> Result<Node> {
        let dir = tempfile::tempdir().context("make a folder")?;
        let memory = format!("memory_bytes = \"{}\"\n", segue_types::format_size(bytes));
        let more: String = (1..cores).map(|n| format!("[[pool]]\nname = \"bench{n}\"\n{memory}")).collect();
        let top = format!("cores = {cores}\npin_cores = {pin}");
        Node::start_as(dir, &top, |_| Ok(memory + &more))
    }

    /// Starts a node with so many cores on one pool of `bytes`: a file below `base`, or memory.
    pub fn with_cores(cores: u32, base: Option<&Path>, bytes: u64) -> Result<Node> {
        match base {
            None => {
                let dir = tempfile::tempdir().context("make a folder")?;
                Node::start_in(dir, cores, |_| Ok(format!("memory_bytes = \"{}\"", segue_types::format_size(bytes))))
            }
            Some(base) => Node::formatted(cores, base, bytes),
        }
    }

    /// Formats a file pool of `bytes` below `base` and starts a node on it.
    pub fn on_file(base: &Path, bytes: u64) -> Result<Node> {
        Node::formatted(1, base, bytes)
    }

    fn formatted(cores: u32, base: &Path, bytes: u64) -> Result<Node> {
        let dir = tempfile::tempdir_in(base).with_context(|| format!("make a folder in {}", base.display()))?;
        let pool = dir.path().join("pool.img");
        let mut format = Command::new(std::env::current_exe().context("find this program")?);
        format.args(["pool", "format"]).arg(&pool).args(["--size", &segue_types::format_size(bytes)]);
        let output = format.output().context("start pool format")?;
        if !output.status.success() {
            bail!("pool format failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Node::start_in(dir, cores, |_| Ok(format!("path = \"{}\"", pool.display())))
    }

    /// Starts a node on a file pool that is there already; the file stays.
    pub fn on_pool(pool: &Path) -> Result<Node> {
        let dir = tempfile::tempdir().context("make a folder")?;
        Node::start_in(dir, 1, |_| Ok(format!("path = \"{}\"", pool.display())))
    }

    fn start_in(dir: tempfile::TempDir, cores: u32, pool: impl FnOnce(&Path) -> Result<String>) -> Result<Node> {
        Node::start_as(dir, &format!("cores = {cores}"), pool)
    }

    fn start_as(dir: tempfile::TempDir, top: &str, pool: impl FnOnce(&Path) -> Result<String>) -> Result<Node> {
        let at = dir.path();
        let pool = pool(at)?;
        let config = format!(
            "admin = \"{0}/admin.sock\"\n{top}\n\n[nbd]\nlisten = [\"unix:{0}/nbd.sock\"]\n\n[[pool]]\nname = \"bench\"\n{pool}\n",
            at.display()
        );
        let path = at.join("segue.toml");
        fs::write(&path, config).context("write the node's configuration")?;
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["node", "start", "--foreground", "--config"]).arg(&path);
        let mut server = Server::start("segue node", command, &at.join("node.log"))?;
        let client = AdminClient::new(at.join("admin.sock"));
        server.wait_until(|| client.node().is_ok())?;
        Ok(Node { server, dir, client })
    }

    /// Makes a volume.
    pub fn create(&self, name: &str, size_bytes: u64) -> Result<()> {
        self.create_as(name, None, size_bytes, None)
    }

    /// Makes a volume in a pool.
    pub fn create_in(&self, pool: &str, name: &str, size_bytes: u64) -> Result<()> {
        self.create_as(name, Some(pool.to_owned()), size_bytes, None)
    }

    /// Makes an encrypted volume, with a key that nobody keeps.
    pub fn create_encrypted(&self, name: &str, size_bytes: u64) -> Result<()> {
        let key = segue_types::hex_encode(&[segue_runtime::secret().to_le_bytes(); 2].concat());
        self.create_as(name, None, size_bytes, Some(SecretHex(key)))
    }

    fn create_as(&self, name: &str, pool: Option<String>, size_bytes: u64, key: Option<SecretHex>) -> Result<()> {
        let request = CreateVolume {
            name: name.to_owned(),
            pool,
            size_bytes,
            observation: None,
            token: None,
            encryption_key: key,
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

    /// The process.
    pub fn server(&self) -> &Server {
        &self.server
    }
}
