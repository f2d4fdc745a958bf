//! A real node for the judges: other people's NBD programs, which know nothing of Segue.
//!
//! Owns: starting, crashing and restarting a node process, running a judge, the check after it. Never: speaks NBD itself.
//! Invariant: when a `Node` is dropped its process has ended, and a test that passed left a pool without damage.

// Each test binary uses a part of this.
#![allow(dead_code)]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const SEGUE: &str = env!("CARGO_BIN_EXE_segue");
const LIMIT: Duration = Duration::from_secs(60);

/// What the pool lives on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drive {
    Memory,
    File,
}

pub const DRIVES: [Drive; 2] = [Drive::Memory, Drive::File];

/// A node process with one pool, in a folder of its own.
pub struct Node {
    dir: tempfile::TempDir,
    drive: Drive,
    child: Option<Child>,
}

impl Node {
    /// Formats a pool of `pool` (for example "1GiB") and starts a node on it.
    pub fn start(drive: Drive, pool: &str) -> Node {
        // Unix socket paths are short; a folder below target/ may not be.
        let dir = tempfile::Builder::new().prefix("segue-judge-").tempdir_in("/var/tmp").unwrap();
        let mut node = Node { dir, drive, child: None };
        let backing = match drive {
            Drive::Memory => format!("memory_bytes = \"{pool}\""),
            Drive::File => {
                segue(&["pool", "format", node.path("pool.img").to_str().unwrap(), "--size", pool]);
                format!("path = \"{}\"", node.path("pool.img").display())
            }
        };
        let at = node.dir.path().display();
        let config = format!(
            "admin = \"{at}/admin.sock\"\n\n[nbd]\nlisten = [\"unix:{at}/nbd.sock\"]\n\n[[pool]]\nname = \"main\"\n{backing}\n"
        );
        fs::write(node.path("segue.toml"), config).unwrap();
        node.boot();
        node
    }

    /// Starts the process (again) and waits until it answers.
    pub fn boot(&mut self) {
        assert!(self.child.is_none(), "the node runs");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("node.log")).unwrap();
        let mut command = Command::new(SEGUE);
        command.args(["node", "start", "--foreground", "--config"]).arg(self.path("segue.toml")).stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.child = Some(child);
        let start = Instant::now();
        while !self.try_ask(&["node", "status"]).status.success() {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && start.elapsed() < LIMIT, "the node does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// `kill -9`: nothing is written back, nobody is told.
    pub fn crash(&mut self) {
        let mut child = self.child.take().expect("the node runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops in order (SIGTERM) and demands that the node says so with exit code 0.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "the node ended with {status}: {}", self.log());
                return;
            }
            assert!(start.elapsed() < LIMIT, "the node does not stop: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("node.log")).unwrap_or_default()
    }

    /// The URI of an export, for every judge.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.path("nbd.sock").display())
    }

    fn try_ask(&self, args: &[&str]) -> Output {
        Command::new(SEGUE).arg("--json").arg("--admin").arg(self.path("admin.sock")).args(args).output().unwrap()
    }

    /// Runs a `segue` command against the node; it must succeed. Gives its JSON.
    pub fn ask(&self, args: &[&str]) -> serde_json::Value {
        let output = self.try_ask(args);
        let text = good(&format!("segue {}", args.join(" ")), &output);
        serde_json::from_str(&text).unwrap_or(serde_json::Value::Null)
    }

    pub fn create(&self, name: &str, size: &str) {
        self.ask(&["volume", "create", name, "--size", size]);
    }

    /// After a judge: nothing was found wrong, a scrub of everything finds nothing, and so does the offline check.
    pub fn finish(mut self) {
        self.scrub();
        self.stop();
        self.check_offline();
        let log = self.log();
        let bad = log.lines().find(|l| l.contains("panicked") || l.contains(" ERROR "));
        assert_eq!(bad, None, "the node's log has a line that nobody expects");
    }

    /// Reads and verifies every block of the pool through the running node.
    pub fn scrub(&self) {
        let report = self.ask(&["pool", "scrub", "main"]);
        assert_eq!(report["errors"], 0, "scrub: {report}");
    }

    /// Verifies the metadata of a file pool that no node has open.
    pub fn check_offline(&self) {
        assert!(self.child.is_none(), "the check is for pools that are not open");
        if self.drive == Drive::File {
            segue(&["pool", "check", self.path("pool.img").to_str().unwrap()]);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("node.log:\n{}", self.log());
        }
    }
}

/// Runs `segue` without a node; it must succeed. Gives its stdout.
pub fn segue(args: &[&str]) -> String {
    good(&format!("segue {}", args.join(" ")), &Command::new(SEGUE).args(args).output().unwrap())
}

/// Runs a judge; it must succeed. Gives its stdout.
pub fn judge(program: &str, args: &[&str]) -> String {
    let output = Command::new("timeout").arg("120").arg(program).args(args).output().unwrap();
    good(&format!("{program} {}", args.join(" ")), &output)
}

/// Runs a judge that must refuse. Gives its stderr.
pub fn judge_refuses(program: &str, args: &[&str]) -> String {
    let output = Command::new("timeout").arg("120").arg(program).args(args).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{program} {} succeeded: {words}", args.join(" "));
    assert_ne!(output.status.code(), Some(124), "{program} {} hung", args.join(" "));
    words
}

fn good(what: &str, output: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}

/// A file of `bytes` of noise that repeats for the same seed.
pub fn noise_file(path: &Path, bytes: usize, seed: u64) {
    let mut state = seed | 1;
    let mut noise = Vec::with_capacity(bytes);
    while noise.len() < bytes {
        // xorshift64*: good enough to be incompressible and unlike its neighbours.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        noise.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    noise.truncate(bytes);
    fs::write(path, noise).unwrap();
}

/// True when two files have the same bytes.
pub fn same_bytes(a: &Path, b: &Path) -> bool {
    fs::read(a).unwrap() == fs::read(b).unwrap()
}
