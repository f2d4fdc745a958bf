//! A real node in a temporary directory, and the real `segue` command against it.
//!
//! Owns: starting, asking and ending the processes. Never: leaves one behind; dropping a node ends it.
//! Invariant: waiting is polling a condition with a bound, never sleeping and hoping.
#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time that anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The command under test.
pub fn segue() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
    command.env_remove("SEGUE_ADMIN").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// What a command said.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Its stdout as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: stdout {:?} stderr {:?}", self.out, self.err))
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Said {
    let Output { status, stdout, stderr } = command.output().expect("the command runs");
    Said {
        code: status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Polls until the condition gives something.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::yield_now();
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A node and its directory.
pub struct Node {
    pub dir: tempfile::TempDir,
    child: Option<Child>,
}

impl Node {
    /// A node with this configuration; `DIR` in it stands for the directory. The admin socket is `DIR/admin.sock`.
    pub fn start(config: &str) -> Node {
        let mut node = Node::prepare(config);
        node.up();
        node
    }

    /// The same, not yet started.
    pub fn prepare(config: &str) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        let text = format!("admin = \"{at}/admin.sock\"\n{}", config.replace("DIR", at));
        std::fs::write(dir.path().join("segue.toml"), text).unwrap();
        Node { dir, child: None }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the process in the foreground and waits until it serves.
    pub fn up(&mut self) {
        let log = std::fs::File::create(self.path("log")).unwrap();
        let mut command = segue();
        command.args(["node", "start", "--foreground", "--config"]).arg(self.path("segue.toml"));
        let mut child = command.stderr(log).spawn().expect("the node starts");
        let log = self.path("log");
        until("the node to serve", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the node ended: {status}\n{}", std::fs::read_to_string(&log).unwrap());
            }
            (self.ask(&["node", "status"]).code == 0).then_some(())
        });
        self.child = Some(child);
    }

    /// Ends the process in order and checks that it ends well.
    pub fn down(&mut self) {
        self.json(&["node", "stop"]);
        let status = self.child.take().unwrap().wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// Ends the process at once, as a crash would.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends a signal and waits for the end.
    pub fn signal(&mut self, signal: i32) -> std::process::ExitStatus {
        let mut child = self.child.take().unwrap();
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        child.wait().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// Runs `segue ARGS --json` against the node.
    pub fn ask(&self, args: &[&str]) -> Said {
        run(segue().arg("--admin").arg(self.path("admin.sock")).arg("--json").args(args))
    }

    /// As `ask`, and it must succeed with a JSON object that has a schema.
    pub fn json(&self, args: &[&str]) -> Value {
        let said = self.ask(args);
        assert_eq!(said.code, 0, "{args:?}: {} {}\n{}", said.out, said.err, self.log());
        let value = said.json();
        let schema = value["schema"].as_str().expect("an object with a schema");
        assert!(schema.starts_with("segue.") && schema.ends_with(".v1"), "{schema}");
        value
    }

    /// As `ask`, and it must be refused with this exit code; gives the message.
    pub fn refused(&self, args: &[&str], code: i32) -> String {
        let said = self.ask(args);
        assert_eq!(said.code, code, "{args:?}: {} {}\n{}", said.out, said.err, self.log());
        let error: Value = serde_json::from_str(&said.err).expect("an error object on stderr");
        assert_eq!(error["schema"], "segue.error.v1");
        assert_eq!(error["exit_code"], code);
        error["message"].as_str().unwrap().to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// `nbdinfo --json` of an export over a unix socket.
pub fn nbdinfo(socket: &Path, export: &str) -> Said {
    let export = export.replace('?', "%3F");
    run(Command::new("nbdinfo").arg("--json").arg(format!("nbd+unix:///{export}?socket={}", socket.display())))
}
