//! A stage for drills with real databases: a node on a file, a volume, an application file, and `segue failover drill`.
//!
//! Owns: everything a test starts, and its removal. Never: looks inside Segue; it uses the command alone.
//! Invariant: when a stage is dropped its node, instances, mounts and files are gone.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
const SEGUE: &str = env!("CARGO_BIN_EXE_segue");

pub struct Stage {
    dir: tempfile::TempDir,
    node: Child,
}

impl Stage {
    /// Starts a node with one volume and writes `app_toml`, in which @DIR@, @PORTS@ and @ENDPOINT@ are filled in.
    pub fn set(app_toml: &str) -> Stage {
        assert!(nix::unistd::Uid::effective().is_root(), "drills mount file systems; run these tests as root");
        let dir = tempfile::Builder::new().prefix("segue-db-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        run(segue(["pool", "format", "--size", "4GiB"]).arg(at("pool")));
        let d = dir.path().display();
        let node_toml = format!(
            "admin = \"{d}/admin.sock\"\n[nbd]\nlisten = [\"unix:{d}/nbd.sock\"]\n[[pool]]\nname = \"p\"\npath = \"{d}/pool\"\n"
        );
        std::fs::write(at("node.toml"), node_toml).unwrap();
        let log = std::fs::File::create(at("node.log")).unwrap();
        let mut node = segue(["node", "start", "--foreground", "--config"]);
        node.arg(at("node.toml")).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let stage = Stage { node: node.spawn().unwrap(), dir };
        stage.wait_for_node();
        run(&mut stage.admin(["volume", "create", "data", "--size", "3GiB"]));
        let ports = free_ports();
        let text = app_toml
            .replace("@DIR@", &stage.dir.path().display().to_string())
            .replace("@PORTS@", &format!("{}, {}, {}", ports[0], ports[1], ports[2]))
            .replace("@ENDPOINT@", &ports[3].to_string());
        std::fs::write(stage.app(), text).unwrap();
        stage
    }

    fn app(&self) -> PathBuf {
        self.dir.path().join("app.toml")
    }

    fn admin<const N: usize>(&self, args: [&str; N]) -> Command {
        let mut command = segue(args);
        command.arg("--admin").arg(self.dir.path().join("admin.sock"));
        command
    }

    fn wait_for_node(&self) {
        let began = Instant::now();
        while !self.admin(["node", "status"]).output().unwrap().status.success() {
            assert!(began.elapsed() < Duration::from_secs(30), "the node did not start: {}", self.read("node.log"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Runs one drill, and leaves the application running. Panics unless nothing was lost, twice, or unsound.
    pub fn drill(&self, fault: &str, mode: &str, more: &[&str]) -> serde_json::Value {
        let mut command =
            segue(["failover", "drill", "--json", "--keep", "--load", "3s", "--clients", "6", "--branches", "1"]);
        command.arg(self.app()).args(["--fault", fault, "--mode", mode]).args(more);
        command.arg("--out").arg(self.dir.path().join("out"));
        let output = command.output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        eprintln!("--- {fault}, {mode}\n{words}");
        let told =
            || format!("{fault}, {mode}: {}\n{}\n{words}", output.status, String::from_utf8_lossy(&output.stdout));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told()));
        assert_eq!(report["schema"], "segue.drill.v1", "{}", told());
        for wrong in ["commits_lost", "commits_duplicate", "commits_phantom"] {
            assert_eq!(report[wrong], 0, "{wrong}: {}", told());
        }
        for right in ["came_back", "balances_consistent", "checker_clean"] {
            assert_eq!(report[right], true, "{right}: {}", told());
        }
        assert!(report["commits_acked"].as_u64().unwrap() > 0, "{}", told());
        assert!(output.status.success(), "{}", told());
        report
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let stopped = segue(["failover", "stop"]).arg(self.app()).output();
        if std::thread::panicking() {
            for log in ["node.log", "run/a.log", "run/b.log"] {
                let text = self.read(log);
                let tail = text.lines().rev().take(40).collect::<Vec<_>>();
                eprintln!("--- end of {log}\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
            eprintln!("--- failover stop: {stopped:?}");
        }
        drop(self.admin(["node", "stop"]).output());
        drop(self.node.kill());
        drop(self.node.wait());
    }
}

fn segue<const N: usize>(args: [&str; N]) -> Command {
    let mut command = Command::new(SEGUE);
    command.args(args);
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn free_ports() -> Vec<u16> {
    let listeners: Vec<_> = (0..4).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|l| l.local_addr().unwrap().port()).collect()
}

/// Reads a file of this crate's tests.
pub fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)).unwrap()
}
