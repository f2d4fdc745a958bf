//! TLS handshakes on other threads: their arithmetic takes longer than hundreds of requests.
//!
//! Owns: the way of a TLS machine to a helper and back. Never: lets a connection read or send while its machine is away.
//! Invariant: a machine comes back to its connection or is dropped, never to another that got the same number.
//!
//! A handshake is work that any core may do, so it goes to a crew (`crate::crew`), at a lower priority of the system's
//! scheduler than the cores have. A panic in it (a certificate callback, a bug) costs its connection alone: connections
//! share no state, so it does not spread. Without helpers, or when they have too much to do, the core does it.

use super::Core;
use super::Msg;
use super::conn::Phase;
use super::tls::TlsStream;
use crate::counters::Counters;
use crate::crew::{Crew, CrewError, CrewHandle, CrewOptions, Cx, End, Entry, Next, Refused, Work};
use crate::runtime::Shared;
use segue_sched::cleanup::{Action, Block, Code, CodeSet, Failure, Point};
use segue_sched::rcs::{Group, Priority, RcsOptions};
use std::sync::Arc;

/// Handshakes that may wait for a helper, per helper; more are done by their cores.
const WAITING_MAX: u32 = 64;
/// How much the system's scheduler prefers everything else.
const NICE: i32 = 10;

const SHAKE: Point = Point::new(1, "handshake");
/// A machine that panicked may be in any state: nothing of the connection is tried again.
static GIVE_UP: Block = Block::new(SHAKE, CodeSet::ALL, Action::Abort);

/// A TLS machine on its way.
pub(crate) struct Shake {
    tls: Option<Box<TlsStream>>,
    shared: Arc<Shared>,
    core: usize,
    conn: u32,
    generation: u32,
}

/// A TLS machine that is back.
pub(crate) struct Shaken {
    conn: u32,
    generation: u32,
    /// `None` when it was lost.
    tls: Option<Box<TlsStream>>,
}

/// Starts the helpers of so many cores.
pub(crate) fn helpers(count: u16, cores: u16) -> Result<Crew<Shake>, CrewError> {
    let rcs = RcsOptions {
        groups: cores,
        pools: count,
        tasks_max: WAITING_MAX * u32::from(count),
        // A storm of connections on one core leaves helpers to the others.
        bound: (count / 2).max(1),
        ..RcsOptions::default()
    };
    Crew::start(CrewOptions { rcs, spreads: CodeSet::NONE, name: "segue-helper", starts: be_nice })
}

/// For the calling thread.
fn be_nice() {
    // Without it handshakes only compete harder.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, NICE) };
}

impl Work for Shake {
    type Resource = u32;

    fn run(&mut self, _entry: Entry, cx: &mut Cx<'_, u32>) -> Result<Next, Failure> {
        cx.point(&GIVE_UP)?;
        self.tls.as_mut().expect("a machine that is away is here").shake();
        cx.disarm(&GIVE_UP);
        Ok(Next::Done)
    }

    fn give_back(&mut self, _resource: u32) {}

    fn correct(&mut self, _at: Point, _code: Code) -> Result<(), Code> {
        Ok(())
    }

    fn ended(&mut self, end: End) {
        let tls = self.tls.take().filter(|_| matches!(end, End::Done | End::Stopped));
        let shaken = Shaken { conn: self.conn, generation: self.generation, tls };
        self.shared.cores[self.core].send(Msg::Shaken(shaken));
    }
}

impl Core {
    /// Gives a connection's handshake to a helper. False: there is nothing to do that is worth it, or nobody to do it.
    pub(super) fn shake_elsewhere(&mut self, id: u32) -> bool {
        let conn = &mut self.conns[id];
        // The kernel may still send from the machine's memory; that is rare, and then it stays.
        let idle = conn.phase == Phase::Handshake && conn.tx.is_empty() && !conn.tx.busy;
        if !idle || !conn.tls.as_ref().is_some_and(|tls| tls.shakes()) {
            return false;
        }
        let Some(helpers) = self.shared.helpers.get() else { return false };
        let shake = Shake {
            tls: conn.tls.take(),
            shared: self.shared.clone(),
            core: self.number,
            conn: id,
            generation: conn.generation,
        };
        match helpers.submit(Group(self.number as u16), Priority::Medium, shake) {
            Ok(()) => {
                conn.shaking = true;
                Counters::add(&self.counters.handshakes_elsewhere, 1);
                true
            }
            Err(Refused::Full(mut shake) | Refused::Stopping(mut shake)) => {
                conn.tls = shake.tls.take();
                false
            }
        }
    }

    /// A helper is done.
    pub(super) fn shaken(&mut self, shaken: Shaken) {
        let Shaken { conn: id, generation, tls } = shaken;
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.generation == generation) else { return };
        assert!(std::mem::take(&mut conn.shaking), "a machine comes back that was not away");
        conn.tls = tls;
        if conn.tls.is_none() {
            tracing::warn!(holder = %conn.holder, "a TLS handshake failed inside; its connection is cut");
            Counters::add(&self.counters.cut, 1);
            conn.cut();
        }
        self.mark(id);
    }
}

/// Takes handshakes.
pub(crate) type Helpers = CrewHandle<Shake>;
