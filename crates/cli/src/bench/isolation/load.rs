//! Victims and aggressors: what they ask for, and the threads they run on.
//!
//! Owns: the loads. Never: measures an aggressor.
//! Invariant: an aggressor never keeps the victim or the core from a processor, so that what it takes from the victim it
//! takes through the server.

use super::client::{Ask, Client, Dice, greet, option, option_reply};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of every volume of the bench.
pub const VOLUME_BYTES: u64 = 64 << 20;
/// Threads of a storm.
const STORM_THREADS: u64 = 4;

/// Who disturbs the victim.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[value(rename_all = "snake_case")]
pub enum Aggressor {
    /// 4 KiB random writes, 128 in flight.
    RandomWrites,
    /// A flush after every 4 KiB write, 32 in flight.
    FlushStorm,
    /// Discards of 1 MiB and writes into them, 64 in flight.
    DiscardStorm,
    /// 1 MiB reads, 16 in flight.
    LargeReads,
    /// Connections made and dropped without a pause, on four threads.
    ConnectionStorm,
    /// TLS handshakes without a pause, on four threads.
    TlsStorm,
}

impl Aggressor {
    /// Its word in output.
    pub fn label(self) -> &'static str {
        match self {
            Aggressor::RandomWrites => "random_writes",
            Aggressor::FlushStorm => "flush_storm",
            Aggressor::DiscardStorm => "discard_storm",
            Aggressor::LargeReads => "large_reads",
            Aggressor::ConnectionStorm => "connection_storm",
            Aggressor::TlsStorm => "tls_storm",
        }
    }

    fn depth(self) -> usize {
        match self {
            Aggressor::RandomWrites => 128,
            Aggressor::FlushStorm => 32,
            Aggressor::DiscardStorm => 64,
            Aggressor::LargeReads => 16,
            Aggressor::ConnectionStorm | Aggressor::TlsStorm => 0,
        }
    }

    fn ask(self, dice: &mut Dice, count: u64) -> Ask {
        let block = |dice: &mut Dice| dice.below(VOLUME_BYTES / 4096) * 4096;
        let mib = |dice: &mut Dice| dice.below(VOLUME_BYTES >> 20) << 20;
        match self {
            Aggressor::FlushStorm if count % 2 == 1 => Ask::Flush,
            Aggressor::DiscardStorm if count % 2 == 1 => Ask::Discard { offset: mib(dice), len: 1 << 20 },
            Aggressor::LargeReads => Ask::Read { offset: mib(dice), len: 1 << 20 },
            _ => Ask::Write { offset: block(dice), len: 4096 },
        }
    }
}

/// Who is watched.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[value(rename_all = "snake_case")]
pub enum Victim {
    /// 4 KiB random reads, one at a time.
    ReadQd1,
    /// 4 KiB random reads, 8 in flight.
    ReadQd8,
    /// 70 % reads and 30 % writes of 4 KiB, one at a time.
    MixedQd1,
}

impl Victim {
    /// Its word in output.
    pub fn label(self) -> &'static str {
        match self {
            Victim::ReadQd1 => "read_qd1",
            Victim::ReadQd8 => "read_qd8",
            Victim::MixedQd1 => "mixed_qd1",
        }
    }

    /// Runs for so long. The latencies, ns.
    pub fn run(self, client: &mut Client, seed: u64, time: Duration) -> Result<Vec<f64>> {
        let depth = if self == Victim::ReadQd8 { 8 } else { 1 };
        let mut dice = Dice::new(seed);
        let mut latencies = Vec::with_capacity(1 << 16);
        let until = Instant::now() + time;
        let next = || {
            (Instant::now() < until).then(|| {
                let offset = dice.below(VOLUME_BYTES / 4096) * 4096;
                if self == Victim::MixedQd1 && dice.below(10) < 3 {
                    return Ask::Write { offset, len: 4096 };
                }
                Ask::Read { offset, len: 4096 }
            })
        };
        client.run(depth, next, |_, ns| latencies.push(ns as f64))?;
        Ok(latencies)
    }
}

/// Where an aggressor finds the node.
#[derive(Clone)]
pub struct Door {
    pub plain: PathBuf,
    pub tls: PathBuf,
    pub client_tls: Arc<rustls::ClientConfig>,
}

/// A running aggressor.
pub struct Running {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<u64>>>,
}

impl Running {
    /// Starts an aggressor on a volume.
    pub fn start(aggressor: Aggressor, door: &Door, volume: &str, seed: u64) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let storm = matches!(aggressor, Aggressor::ConnectionStorm | Aggressor::TlsStorm);
        let threads = (0..if storm { STORM_THREADS } else { 1 }).map(|number| {
            let (stop, door, volume) = (stop.clone(), door.clone(), volume.to_owned());
            std::thread::spawn(move || {
                give_way();
                match aggressor {
                    Aggressor::ConnectionStorm => storm_of_connections(&door, &volume, &stop),
                    Aggressor::TlsStorm => storm_of_handshakes(&door, &stop),
                    _ => storm_of_requests(aggressor, &door, &volume, seed + number, &stop),
                }
            })
        });
        let threads = threads.collect();
        Running { stop, threads }
    }

    /// Ends it. How much it did.
    pub fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = 0;
        for thread in self.threads {
            sum += thread.join().expect("an aggressor does not panic")?;
        }
        Ok(sum)
    }
}

fn storm_of_requests(kind: Aggressor, door: &Door, volume: &str, seed: u64, stop: &AtomicBool) -> Result<u64> {
    let mut client = Client::open(&door.plain, volume)?;
    let (mut dice, mut count, mut done) = (Dice::new(seed), 0, 0);
    let next = || {
        count += 1;
        (!stop.load(Ordering::Relaxed)).then(|| kind.ask(&mut dice, count))
    };
    client.run(kind.depth(), next, |_, _| done += 1)?;
    Ok(done)
}

fn storm_of_connections(door: &Door, volume: &str, stop: &AtomicBool) -> Result<u64> {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        drop(Client::open(&door.plain, &format!("{volume}@ro"))?);
        done += 1;
    }
    Ok(done)
}

fn storm_of_handshakes(door: &Door, stop: &AtomicBool) -> Result<u64> {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut socket = UnixStream::connect(&door.tls).context("connect")?;
        greet(&socket)?;
        std::io::Write::write_all(&mut socket, &option(5, &[])).context("ask for TLS")?;
        ensure!(option_reply(&socket)?.0 == 1, "TLS is refused");
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("a host name");
        let mut tls = rustls::ClientConnection::new(door.client_tls.clone(), name).context("begin TLS")?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).context("shake hands")?;
        }
        done += 1;
    }
    Ok(done)
}

/// The calling thread gives way to the victim and the core, which run in real time: before other programs then, so
/// that the load is one; or, where real time is not allowed, after everybody.
pub fn give_way() {
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as libc::id_t;
    let nice = |value| unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, value) == 0 };
    if !nice(-10) {
        nice(19);
    }
}

/// Lets a thread (0: the calling one) run in real time, before all that do not. Threads that it starts are ordinary.
/// True when the system allowed it.
pub fn real_time(thread: libc::pid_t, priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) == 0 }
}
