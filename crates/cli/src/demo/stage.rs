//! The demo's stage: a node on a file-backed pool, a volume, and the application file of a PostgreSQL on it.
//!
//! Owns: everything the demo starts or writes, and its removal. Never: runs a drill.
//! Invariant: when a stage is dropped nothing that it made is left: no process, mount, loop device or file.

use crate::attach::Attachment;
use crate::exit::{ExitCode, fail};
use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use segue_node::client::AdminClient;
use segue_types::api::CreateVolume;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Size of the pool's file; it is sparse.
const POOL_BYTES: u64 = 12 << 30;
/// Size of the volume; thin.
const VOLUME_BYTES: u64 = 8 << 30;
const NODE_START_LIMIT: Duration = Duration::from_secs(20);
const NODE_STOP_LIMIT: Duration = Duration::from_secs(15);

/// A stage. Dropping it removes everything.
pub struct DemoStage {
    dir: tempfile::TempDir,
    node: Option<Child>,
    admin: PathBuf,
    app_file: PathBuf,
    /// File that names the directory while there is one, for the next demo to clear if this one is killed.
    mark: PathBuf,
}

impl DemoStage {
    /// Sets the stage: afterwards the node serves an empty volume, and the application file is written.
    ///
    /// # Errors
    /// What this machine lacks, or what failed; everything made so far is removed.
    pub fn set(out: &Path) -> anyhow::Result<DemoStage> {
        check_machine()?;
        let mark = out.join("stage");
        clear_leftovers(&mark);
        let dir = tempfile::Builder::new().prefix("segue-demo-").tempdir().context("make a temporary directory")?;
        // The database's user must reach its sockets and mounts below it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(dir.path(), open).context("open the temporary directory")?;
        let (admin, app_file) = (dir.path().join("admin.sock"), dir.path().join("app.toml"));
        std::fs::write(&mark, dir.path().as_os_str().as_encoded_bytes()).context("note where the stage is")?;
        let mut stage = DemoStage { dir, node: None, admin, app_file, mark };
        stage.start_node(&out.join("node.log"))?;
        stage.client().create_volume(&CreateVolume {
            name: "bank".into(),
            pool: None,
            size_bytes: VOLUME_BYTES,
            observation: None,
            token: None,
            encryption_key: None,
        })?;
        std::fs::write(&stage.app_file, stage.app_toml()?).context("write the application file")?;
        Ok(stage)
    }

    /// Its directory, for ledgers and other scratch.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The application file.
    pub fn app_file(&self) -> &Path {
        &self.app_file
    }

    /// A client of its node.
    pub fn client(&self) -> AdminClient {
        AdminClient::new(&self.admin)
    }

    fn start_node(&mut self, log: &Path) -> anyhow::Result<()> {
        let dir = self.dir.path();
        let (pool, config) = (dir.join("pool"), dir.join("node.toml"));
        let program = std::env::current_exe().context("find this program")?;
        let output = Command::new(&program)
            .args(["pool", "format", "--size", &segue_types::format_size(POOL_BYTES)])
            .arg(&pool)
            .output()
            .context("format the pool")?;
        if !output.status.success() {
            return Err(fail(ExitCode::Io, format!("format the pool: {}", String::from_utf8_lossy(&output.stderr))));
        }
        let text = format!(
            "admin = {:?}\n[nbd]\nlisten = [\"unix:{}\"]\n[[pool]]\nname = \"demo\"\npath = {:?}\n",
            self.admin,
            dir.join("nbd.sock").display(),
            pool
        );
        std::fs::write(&config, text).context("write the node's configuration")?;
        let log = std::fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(["node", "start", "--foreground", "--config"]).arg(&config).stdin(Stdio::null());
        // A group of its own: Ctrl-C reaches the demo alone, which then stops the node in its turn.
        command.stdout(log.try_clone()?).stderr(log).process_group(0);
        self.node = Some(command.spawn().context("start the node")?);
        self.wait_for_node()
    }

    fn wait_for_node(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            if self.client().node().is_ok() {
                return Ok(());
            }
            if let Some(status) = self.node.as_mut().and_then(|node| node.try_wait().ok().flatten()) {
                return Err(fail(ExitCode::Unreachable, format!("the node ended ({status}); see its log")));
            }
            if began.elapsed() > NODE_START_LIMIT {
                return Err(fail(ExitCode::TimedOut, "the node did not start in time; see its log"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn app_toml(&self) -> anyhow::Result<String> {
        let dir = self.dir.path();
        let [a, b, r, endpoint] = free_ports()?;
        Ok(APP
            .replace("@DIR@", &dir.display().to_string())
            .replace("@PORTS@", &format!("{a}, {b}, {r}"))
            .replace("@ENDPOINT@", &endpoint.to_string()))
    }
}

impl Drop for DemoStage {
    fn drop(&mut self) {
        stop_application(self.dir.path());
        if let Some(mut node) = self.node.take() {
            end(&mut node);
        }
        drop(std::fs::remove_file(&self.mark));
    }
}

/// Stops whatever runs of the application below `dir`, and takes down what is attached there.
fn stop_application(dir: &Path) {
    if let Ok(program) = std::env::current_exe()
        && dir.join("run").exists()
    {
        // Another process of this program: it may have to wait, and must not be disturbed by our state.
        let mut command = Command::new(program);
        command.args(["failover", "stop"]).arg(dir.join("app.toml")).process_group(0);
        drop(command.stdin(Stdio::null()).output());
    }
    for attachment in Attachment::list(&dir.join("run/attach")) {
        if let Err(error) = attachment.detach(true) {
            eprintln!("detach {}: {error}", attachment.name());
        }
    }
}

/// Removes what a demo left that was killed.
fn clear_leftovers(mark: &Path) {
    let Ok(text) = std::fs::read_to_string(mark) else { return };
    let dir = PathBuf::from(text);
    let is_ours = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segue-demo-"));
    if is_ours && dir.exists() {
        eprintln!("removing what an earlier demo left in {}", dir.display());
        stop_application(&dir);
        drop(AdminClient::new(dir.join("admin.sock")).stop());
        drop(std::fs::remove_dir_all(&dir));
    }
    drop(std::fs::remove_file(mark));
}

/// Stops a child in order, and after a while not so.
fn end(child: &mut Child) {
    // It was spawned by us and not yet waited for: the pid is its own.
    let pid = Pid::from_raw(child.id() as i32);
    let _ = kill(pid, Signal::SIGTERM);
    let began = Instant::now();
    while began.elapsed() < NODE_STOP_LIMIT {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(child.kill());
    drop(child.wait());
}

/// Ports of 127.0.0.1 that were free a moment ago.
fn free_ports() -> anyhow::Result<[u16; 4]> {
    let mut listeners = Vec::new();
    let mut ports = [0u16; 4];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

/// Says what is missing, before anything is made.
fn check_machine() -> anyhow::Result<()> {
    let lacks = |what: &str| Err(fail(ExitCode::Unsupported, format!("the demo needs {what}")));
    if !nix::unistd::Uid::effective().is_root() {
        return lacks("root, to mount a file system; run it with sudo");
    }
    if crate::drill::verify::pg_program("pg_amcheck").is_none() {
        return lacks("PostgreSQL; install the package postgresql");
    }
    if nix::unistd::User::from_name("postgres").ok().flatten().is_none() {
        return lacks("the user postgres; install the package postgresql");
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            return lacks(&format!("{device}; load the kernel's module for it"));
        }
    }
    Ok(())
}

/// The application. Checkpoints are far apart so that a recovery has something to do; the cache is small so that
/// recovery has to write; automatic vacuum is off so that every round does the same work.
const APP: &str = r#"
name = "demo-@ENDPOINT@"
admin = "@DIR@/admin.sock"
nbd = "unix:@DIR@/nbd.sock"
run_dir = "@DIR@/run"

[[volume]]
name = "bank"
fs = "ext4"

[instance]
user = "postgres"
ports = [@PORTS@]
init = """
"$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)/initdb" -D "$SEGUE_DATA_DIR/pgdata" -U postgres \
  --encoding=UTF8 --locale=C --auth-local=trust --auth-host=trust
"""
init_done = "pgdata/global/pg_control"
start = """
rm -f "$SEGUE_DATA_DIR/pgdata/postmaster.pid"
exec "$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)/postgres" -D "$SEGUE_DATA_DIR/pgdata" \
  -c listen_addresses=127.0.0.1 -p "$SEGUE_PORT" -k "$SEGUE_SOCKET_DIR" \
  -c fsync=on -c full_page_writes=on -c synchronous_commit=on -c wal_level=minimal -c max_wal_senders=0 \
  -c shared_buffers=32MB -c max_connections=60 -c max_wal_size=6GB -c min_wal_size=1GB \
  -c checkpoint_timeout=1h -c autovacuum=off
"""
stop_signal = "INT"
stop_timeout = "30s"

[probe]
kind = "postgresql"
user = "postgres"
database = "postgres"
socket = "$SEGUE_SOCKET_DIR/.s.PGSQL.$SEGUE_PORT"
interval = "50ms"

[endpoint]
listen = "127.0.0.1:@ENDPOINT@"
hold = "60s"

[suspicion]
phi = 8.0
silence_min = "250ms"
silence_max = "1s"
refusals = 2
storage_silence = "1.5s"

[race]
deadline = "60s"
backups_at_once = 50
"#;
