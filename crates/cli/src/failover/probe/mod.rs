//! Asking an instance whether it serves.
//!
//! Owns: the probes and the connection each keeps. Never: judges silence; it reports answers and refusals.
//! Invariant: `Answer` means that the instance ran a query (where its kind has queries) and has recovered.
//!
//! A probe that finds a stopped server blocks until the server goes on, up to its patience: so the answer that ends a
//! stall is seen the moment it comes, and no connection is opened in vain meanwhile.

mod mariadb;
mod postgresql;

use super::app::{ProbeKind, ProbeSpec};
use super::process::Spawn;
use nix::unistd::User;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long one probe waits for bytes before it gives its connection up.
const PATIENCE: Duration = Duration::from_secs(20);

/// What came of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It serves.
    Answer,
    /// It does not: no listener, a closed connection, a recovery under way, an error.
    Refusal,
}

/// A prober of one instance. Dropping it closes its connection.
pub struct Probe {
    kind: Kind,
    connection: Option<Connection>,
    cut: Cut,
}

enum Kind {
    Postgresql { at: Address, user: String, database: String },
    Mariadb { at: Address, user: String },
    Tcp { port: u16 },
    Command { command: String, user: User, env: BTreeMap<String, String>, log: PathBuf },
}

/// Where a server listens.
enum Address {
    Unix(PathBuf),
    Tcp(u16),
}

/// Ends a blocked probe from another thread.
#[derive(Clone, Default)]
pub struct Cut(Arc<Mutex<CutState>>);

#[derive(Default)]
struct CutState {
    done: bool,
    connection: Option<Connection>,
}

impl Cut {
    /// Every later probe is a refusal, and one that waits ends at once.
    pub fn cut(&self) {
        let mut state = self.0.lock().expect("nothing panics while holding it");
        state.done = true;
        if let Some(connection) = state.connection.take() {
            connection.shutdown();
        }
    }

    /// True once it was cut.
    pub fn is_done(&self) -> bool {
        self.0.lock().expect("nothing panics while holding it").done
    }
}

/// What the instance's commands and templates know.
pub struct Target<'a> {
    /// The instance's variables.
    pub env: &'a BTreeMap<String, String>,
    /// Its user.
    pub user: &'a User,
    /// Its private port.
    pub port: u16,
    /// Its log.
    pub log: PathBuf,
}

impl Probe {
    /// A probe of the instance; connects when first asked.
    pub fn new(spec: &ProbeSpec, target: &Target) -> Probe {
        let address = || match &spec.socket {
            Some(template) => Address::Unix(expand(template, target.env).into()),
            None => Address::Tcp(target.port),
        };
        let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
        let kind = match spec.kind {
            ProbeKind::Postgresql => Kind::Postgresql {
                at: address(),
                user: or(&spec.user, "postgres"),
                database: or(&spec.database, "postgres"),
            },
            ProbeKind::Mariadb => Kind::Mariadb { at: address(), user: or(&spec.user, "root") },
            ProbeKind::Tcp => Kind::Tcp { port: target.port },
            ProbeKind::Command => Kind::Command {
                command: spec.command.clone().unwrap_or_default(),
                user: target.user.clone(),
                env: target.env.clone(),
                log: target.log.clone(),
            },
        };
        Probe { kind, connection: None, cut: Cut::default() }
    }

    /// What ends it from elsewhere.
    pub fn cutter(&self) -> Cut {
        self.cut.clone()
    }

    /// Asks once; blocks until there is an answer, a refusal, or no patience left.
    pub fn ask(&mut self) -> Outcome {
        match self.try_ask() {
            Ok(true) => Outcome::Answer,
            Ok(false) | Err(_) => {
                self.connection = None;
                Outcome::Refusal
            }
        }
    }

    fn try_ask(&mut self) -> io::Result<bool> {
        match &self.kind {
            Kind::Postgresql { at, user, database } => {
                if self.connection.is_none() {
                    let mut connection = self.cut.connect(at)?;
                    postgresql::log_in(&mut connection, user, database)?;
                    self.connection = Some(connection);
                }
                postgresql::serves(self.connection.as_mut().expect("connected above"))
            }
            Kind::Mariadb { at, user } => {
                if self.connection.is_none() {
                    let mut connection = self.cut.connect(at)?;
                    mariadb::log_in(&mut connection, user)?;
                    self.connection = Some(connection);
                }
                mariadb::serves(self.connection.as_mut().expect("connected above"))
            }
            Kind::Tcp { port } => self.cut.connect(&Address::Tcp(*port)).map(|_| true),
            Kind::Command { command, user, env, log } => {
                let go_on = || !self.cut.is_done();
                Spawn { command, user, env, log, group: None }.run(&go_on)
            }
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.cut.cut();
    }
}

impl Cut {
    fn connect(&self, at: &Address) -> io::Result<Connection> {
        let connection = match at {
            Address::Unix(path) => Connection::Unix(UnixStream::connect(path)?),
            Address::Tcp(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                Connection::Tcp(TcpStream::connect_timeout(&address, PATIENCE)?)
            }
        };
        connection.set_patience()?;
        let mut state = self.0.lock().expect("nothing panics while holding it");
        if state.done {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state.connection = Some(connection.try_clone()?);
        Ok(connection)
    }
}

/// A stream of either family.
enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connection {
    fn set_patience(&self) -> io::Result<()> {
        match self {
            Connection::Unix(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))
            }
            Connection::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))
            }
        }
    }

    fn try_clone(&self) -> io::Result<Connection> {
        Ok(match self {
            Connection::Unix(stream) => Connection::Unix(stream.try_clone()?),
            Connection::Tcp(stream) => Connection::Tcp(stream.try_clone()?),
        })
    }

    fn shutdown(&self) {
        let _ = match self {
            Connection::Unix(stream) => stream.shutdown(Shutdown::Both),
            Connection::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Connection {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Unix(stream) => stream.read(buf),
            Connection::Tcp(stream) => stream.read(buf),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Unix(stream) => stream.write(buf),
            Connection::Tcp(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads exactly `len` bytes, refusing lengths that no answer to a probe has.
fn read_vec(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    const ANSWER_BYTES_MAX: usize = 1 << 20;
    if len > ANSWER_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Replaces each `$NAME` by its value; unknown names become empty, as in the shell.
fn expand(template: &str, env: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let name = &rest[at + 1..];
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        text.push_str(env.get(&name[..end]).map_or("", String::as_str));
        rest = &name[end..];
    }
    text + rest
}

#[cfg(test)]
mod conform_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_templates_expand() {
        let env = BTreeMap::from([("A_1".to_owned(), "x".to_owned()), ("P".to_owned(), "54".to_owned())]);
        assert_eq!(expand("$A_1/.s.$P", &env), "x/.s.54");
        assert_eq!(expand("$NO-$", &env), "-");
    }

    #[test]
    fn fault_a_cut_ends_a_blocked_probe() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let kind = Kind::Postgresql { at: Address::Unix(path), user: "u".into(), database: "d".into() };
        let mut probe = Probe { kind, connection: None, cut: Cut::default() };
        let cut = probe.cutter();
        let asking = std::thread::spawn(move || probe.ask());
        let (_silent_server, _) = listener.accept().unwrap();
        cut.cut();
        assert_eq!(asking.join().unwrap(), Outcome::Refusal);
    }
}
