//! What is done to the primary.
//!
//! Owns: the faults and how each is injected. Never: touches anything but the instance it was given.
//! Invariant: when `inject` returns the fault is in force; only `heal` ends, by itself, after the time it was given.

use crate::attach::Attachment;
use crate::failover::Family;
use anyhow::Context;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// How long killed processes may take to go.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// The faults.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The instance with its kernel: the attachment is cut, what was not written back is lost, every process dies.
    Panic,
    /// The processes only; the kernel writes back what they wrote.
    Kill,
    /// An orderly stop.
    Stop,
    /// SIGSTOP, for good.
    Hang,
    /// SIGSTOP, and SIGCONT after a while.
    Heal,
    /// The instance and the node are cut apart; both live.
    Partition,
}

impl Fault {
    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Panic => "panic",
            Fault::Kill => "kill",
            Fault::Stop => "stop",
            Fault::Hang => "hang",
            Fault::Heal => "heal",
            Fault::Partition => "partition",
        }
    }
}

/// The instance that is to suffer.
pub struct Victim {
    /// Its processes.
    pub family: Family,
    /// Its attachments.
    pub attachments: Vec<Attachment>,
    /// The signal of its orderly stop.
    pub stop_signal: Signal,
}

/// A fault in force. Dropping it wakes what a `heal` put to sleep.
pub struct Injected {
    /// The moment it struck.
    pub at: Instant,
    healer: Option<Healer>,
}

impl Victim {
    /// Injects a fault; `heal_after` matters for [`Fault::Heal`] alone. `struck` is called as soon as nothing can be
    /// saved any more: whoever knows of the fault beforehand may act from then on.
    ///
    /// # Errors
    /// The attachment's daemon does not answer.
    pub fn inject(&self, fault: Fault, heal_after: Duration, struck: impl FnOnce()) -> anyhow::Result<Injected> {
        let at = Instant::now();
        let mut healer = None;
        match fault {
            Fault::Panic => {
                // The drive goes first: a machine that dies does not write one more block.
                for attachment in &self.attachments {
                    attachment.cut().context("cut the attachment")?;
                }
                self.family.signal(Signal::SIGKILL);
            }
            Fault::Kill => self.family.signal(Signal::SIGKILL),
            Fault::Stop => self.family.leader.signal(self.stop_signal),
            Fault::Hang => self.freeze(),
            Fault::Heal => {
                self.freeze();
                healer = Some(Healer::start(self.family.clone(), at + heal_after)?);
            }
            Fault::Partition => {
                for attachment in &self.attachments {
                    attachment.partition().context("cut the attachment off its node")?;
                }
            }
        }
        struck();
        if matches!(fault, Fault::Panic | Fault::Kill) {
            // Again, until those are gone too that were started between the look and the signal.
            self.family.kill(KILL_LIMIT);
        }
        Ok(Injected { at, healer })
    }

    /// Stops every process; again, because one may have been started between the look and the signal.
    fn freeze(&self) {
        self.family.signal(Signal::SIGSTOP);
        self.family.signal(Signal::SIGSTOP);
    }
}

/// A thread that wakes the victim when its time has come, or when the drill ends before.
struct Healer {
    ends: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Healer {
    fn start(family: Family, at: Instant) -> std::io::Result<Healer> {
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("drill-heal".into()).spawn(move || {
            let _ = ended.recv_timeout(at.saturating_duration_since(Instant::now()));
            family.signal(Signal::SIGCONT);
        })?;
        Ok(Healer { ends: Some(ends), thread: Some(thread) })
    }
}

impl Drop for Healer {
    fn drop(&mut self) {
        self.ends.take();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        self.healer.take();
    }
}
