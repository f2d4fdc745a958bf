//! The shipped profiles and their probes against the real servers, on a plain directory.
//!
//! Owns: a server of each kind for the length of a test. Never: asserts on time.
//! Invariant: what a test started is gone when it ends, also when it fails.

use super::super::app::App;
use super::super::process::{self, Family, Spawn};
use super::super::profile;
use super::*;
use nix::sys::signal::Signal;
use nix::unistd::chown;
use std::path::Path;
use std::time::Instant;

struct Server {
    app: App,
    env: BTreeMap<String, String>,
    user: User,
    family: Family,
    dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.family.kill(Duration::from_secs(20));
    }
}

impl Server {
    /// Initializes and starts the profile's server; `None` where this machine or user cannot run it.
    fn start(name: &str, port: u16) -> Option<Server> {
        let app = App::parse(profile::text(name).unwrap()).unwrap();
        let user = process::user(&app.instance.user).ok()?;
        if !nix::unistd::Uid::effective().is_root() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let own = |path: &Path| chown(path, Some(user.uid), Some(user.gid)).unwrap();
        own(dir.path());
        let mut env = BTreeMap::new();
        let mut set = |name: &str, value: &str| drop(env.insert(name.to_owned(), value.to_owned()));
        set("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        set("LANG", "C.UTF-8");
        set("SEGUE_PORT", &port.to_string());
        for (variable, sub) in [("SEGUE_DATA_DIR", "data"), ("SEGUE_SOCKET_DIR", "sock")] {
            let path = dir.path().join(sub);
            std::fs::create_dir(&path).unwrap();
            own(&path);
            set(variable, path.to_str().unwrap());
        }
        let log = dir.path().join("log");
        let init = app.instance.init.clone().unwrap();
        let spawn = |command| Spawn { command, user: &user, env: &env, log: &log, group: None };
        assert!(spawn(&init).run(&|| true).unwrap(), "{}", std::fs::read_to_string(&log).unwrap());
        let done = dir.path().join("data").join(app.instance.init_done.as_ref().unwrap());
        assert!(done.exists(), "init_done names what init makes");
        let leader = spawn(&app.instance.start).start().unwrap();
        let family = Family { leader, group: None, dirs: vec![dir.path().join("data")] };
        Some(Server { app, env, user, family, dir })
    }

    fn probe(&self) -> Probe {
        let port = self.env["SEGUE_PORT"].parse().unwrap();
        let log = self.dir.path().join("log");
        Probe::new(&self.app.probe, &Target { env: &self.env, user: &self.user, port, log })
    }
}

fn until_answered(probe: &mut Probe) {
    let began = Instant::now();
    while probe.ask() != Outcome::Answer {
        assert!(began.elapsed() < Duration::from_secs(120), "the server never answered");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts, answers, hangs (the probe waits), goes on (the same probe is answered), dies (the probe is refused).
fn life_of(name: &str, port: u16) {
    let Some(server) = Server::start(name, port) else { return };
    let mut probe = server.probe();
    until_answered(&mut probe);
    assert_eq!(probe.ask(), Outcome::Answer);
    assert!(!server.family.members().is_empty());
    server.family.signal(Signal::SIGSTOP);
    let asking = std::thread::spawn(move || (probe.ask(), probe));
    while !server.family.members().is_empty() && !asking.is_finished() {
        server.family.signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(10));
    }
    let (outcome, mut probe) = asking.join().unwrap();
    assert_eq!(outcome, Outcome::Answer, "the answer that ends a stall is seen");
    assert!(server.family.kill(Duration::from_secs(20)));
    assert_eq!(probe.ask(), Outcome::Refusal);
}

#[test]
fn conform_postgresql_profile_and_probe() {
    life_of("postgresql", 25_731);
}

#[test]
fn conform_mariadb_profile_and_probe() {
    life_of("mariadb", 25_732);
}
