//! Storms of new connections, held to a part of the core.
//!
//! Owns: the time that handshakes may take while requests are served. Never: turns anybody away.
//! Invariant: while requests flow, handshakes take at most one part in twenty of the core, and one step more.

use super::Core;
use super::conn::Phase;
use segue_types::Nanos;
use std::collections::VecDeque;

/// After a step of a handshake the next one waits so many times as long as it took.
const REST: u64 = 19;
/// A handshake's step is counted as this long at most: a thread that was not let run is not a costly handshake, ns.
const STEP_NS_MAX: Nanos = 1_000_000;
/// Requests flow when one was answered within this time, ns.
const QUIET_NS: Nanos = 5_000_000;

pub(super) struct Storm {
    /// When the next step may be done.
    free_at: Nanos,
    /// When a request was last answered.
    busy_at: Nanos,
    /// Connections and listeners whose step waits.
    later: VecDeque<u32>,
    listeners: Vec<u32>,
}

impl Storm {
    pub(super) fn new() -> Storm {
        Storm { free_at: 0, busy_at: 0, later: VecDeque::with_capacity(64), listeners: Vec::with_capacity(8) }
    }

    /// Requests were answered in the turn that ended now.
    pub(super) fn busy(&mut self, now: Nanos) {
        self.busy_at = now;
    }

    fn rests(&self, now: Nanos) -> bool {
        now < self.free_at && now < self.busy_at + QUIET_NS
    }

    /// When steps that wait go on. `None` when none waits.
    pub(super) fn wake_at(&self) -> Option<Nanos> {
        let waits = !self.later.is_empty() || !self.listeners.is_empty();
        waits.then(|| self.free_at.min(self.busy_at + QUIET_NS))
    }
}

impl Core {
    /// True when a connection's handshake must wait; it is looked at again when its time has come.
    pub(super) fn storm_rests(&mut self, id: u32) -> bool {
        let conn = &self.conns[id];
        if conn.phase != Phase::Handshake || conn.input_over || !self.storm.rests(self.now) {
            return false;
        }
        self.storm.later.push_back(id);
        true
    }

    /// True when a listener must wait with its next connection.
    pub(super) fn accept_rests(&mut self, number: u32) -> bool {
        if !self.storm.rests(self.now) {
            return false;
        }
        self.storm.listeners.push(number);
        true
    }

    /// A step of a handshake began at `from`, on the core's clock, and is over.
    pub(super) fn storm_step(&mut self, from: Nanos) {
        let took_ns = (self.clock() - from).min(STEP_NS_MAX);
        self.storm.free_at = self.storm.free_at.max(self.now) + took_ns * REST;
    }

    /// Lets those go on whose time has come.
    pub(super) fn storm_wakes(&mut self) {
        if self.storm.rests(self.now) {
            return;
        }
        for number in std::mem::take(&mut self.storm.listeners) {
            if self.listeners.get(number).is_some_and(|listening| !listening.armed && !listening.over) {
                self.arm_accept(number);
            }
        }
        // One by one: each takes time that the others wait for.
        while let Some(id) = self.storm.later.pop_front() {
            if self.conns.get(id).is_some() {
                return self.mark(id);
            }
        }
    }
}
