//! What an attachment owes: every request of the kernel, and every acknowledged write that a crash of the node may undo.
//!
//! Owns: requests in flight, the writes kept until a flush covers them, and the order of replay after a reconnect.
//! Never: reads a clock, touches a socket, or sends anything once the attachment was fenced or cut.
//! Invariant: a flush is acknowledged only when every write acknowledged before it is durable on the node.
//!
//! A node that crashes forgets writes that it acknowledged and that no flush covered; a local drive does so only when the
//! machine itself loses power. So each acknowledged write is *kept* here until a flush sent after it succeeds. After a
//! reconnect the kept writes are sent again, oldest first, overlapping ones strictly one after the other; only then the
//! requests that were never answered. Reads wait for all of that, so nothing acknowledged ever seems to vanish.

use segue_types::Nanos;
use std::collections::VecDeque;

/// What the kernel asks. Offsets and lengths are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Read.
    Read { offset: u64, len: u32 },
    /// Write the data that comes with it; with `fua` durable before the answer.
    Write { offset: u64, len: u32, fua: bool },
    /// Make acknowledged writes durable.
    Flush,
    /// Give space back.
    Discard { offset: u64, len: u32 },
    /// Make a range read as zero; with `no_hole` its space stays allocated.
    Zero { offset: u64, len: u32, no_hole: bool },
}

impl Ask {
    /// The bytes it changes, as start and end.
    fn changes(&self) -> Option<(u64, u64)> {
        match *self {
            Ask::Read { .. } | Ask::Flush => None,
            Ask::Write { offset, len, .. } | Ask::Discard { offset, len } | Ask::Zero { offset, len, .. } => {
                Some((offset, offset + u64::from(len)))
            }
        }
    }
}

/// The kernel's mark on a request.
pub type Unique = u64;
/// The mark a request carries on the wire.
pub type Cookie = u64;

/// Set in the cookie of a replayed write; the rest is its number among the kept.
const REPLAY: Cookie = 1 << 63;
/// Replayed writes in flight at most.
const REPLAY_WINDOW: usize = 32;
/// Kept writes at most, whatever their size.
const KEPT_MAX: usize = 1 << 16;
/// What a kept write costs beside its data.
const KEPT_OVERHEAD: u64 = 64;

/// A request for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Send {
    /// To be returned in the answer.
    pub cookie: Cookie,
    /// What to ask. A write's data is [`Ledger::data`].
    pub ask: Ask,
}

/// What the driver has to do now. It drains the lists and reuses them.
#[derive(Debug, Default)]
pub struct Out {
    /// Requests to send, in order.
    pub sends: Vec<Send>,
    /// Requests of the kernel that are over, with an errno (0 is success), none of them a read with data.
    pub dones: Vec<(Unique, i32)>,
    /// True: the connection must be dropped and be seen closed by the node before a new one is made.
    pub drop_link: bool,
}

/// Why an attachment is over for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A drill cut it off.
    Cut,
    /// The node refused the lease: another holds the volume now.
    Fenced,
    /// An acknowledged write could not be sent again, or the right to write ended with the connection.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// No connection; requests wait.
    Down,
    /// Connected; kept writes are being sent again.
    Replaying,
    /// Connected; requests go straight through.
    Up,
}

/// Limits that hold for the whole attachment.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a request may wait.
    pub timeout_ns: Nanos,
    /// Bytes of kept writes at which nothing new is accepted; at three quarters of it a flush is sent.
    pub kept_bytes_max: u64,
    /// True when the server has a write cache, so that a flush means something.
    pub write_cache: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Not on the wire.
    Waiting,
    /// On the wire; for a flush with the number of the first kept write it does not cover.
    Sent {
        covers: u64,
    },
}

#[derive(Debug)]
struct Slot {
    state: State,
    /// None: the ledger's own flush.
    unique: Option<Unique>,
    ask: Ask,
    data: Vec<u8>,
    since: Nanos,
    arrival: u64,
    generation: u32,
}

#[derive(Debug)]
struct Kept {
    ask: Ask,
    data: Vec<u8>,
}

/// The machine. See the top of the file.
#[derive(Debug)]
pub struct Ledger {
    limits: Limits,
    slots: Vec<Slot>,
    free: Vec<u32>,
    busy: usize,
    arrivals: u64,
    kept: VecDeque<Kept>,
    /// Number of the oldest kept write; numbers grow by one.
    kept_first: u64,
    kept_bytes: u64,
    link: Link,
    paused: bool,
    end: Option<End>,
    /// Next kept write to send again, and those on the wire.
    replay_next: u64,
    replay_flying: Vec<u64>,
    /// When the node last answered, or the link changed.
    progress: Nanos,
    /// True while no request may wait any more: the node has been gone for longer than the timeout.
    lost: bool,
    own_flush: bool,
    replayed: u64,
}

impl Ledger {
    /// A ledger with nothing in it and no connection.
    pub fn new(now: Nanos, limits: Limits) -> Self {
        Ledger {
            limits,
            slots: Vec::new(),
            free: Vec::new(),
            busy: 0,
            arrivals: 0,
            kept: VecDeque::new(),
            kept_first: 0,
            kept_bytes: 0,
            link: Link::Down,
            paused: false,
            end: None,
            replay_next: 0,
            replay_flying: Vec::new(),
            progress: now,
            lost: false,
            own_flush: false,
            replayed: 0,
        }
    }

    /// Requests in flight, kept bytes, and writes sent again so far.
    pub fn counts(&self) -> (usize, u64, u64) {
        (self.busy, self.kept_bytes, self.replayed)
    }

    /// Why it is over, if it is.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// True when requests go straight through.
    pub fn is_up(&self) -> bool {
        self.link == Link::Up
    }

    /// True when the node has been gone for longer than the timeout, so that requests fail at once.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// True while a request waits, so that [`Ledger::tick`] must be called.
    pub fn needs_tick(&self) -> bool {
        self.busy > 0 || !self.replay_flying.is_empty()
    }

    /// False while too many writes are kept: take nothing from the kernel until a flush has made room.
    pub fn accepts(&self) -> bool {
        self.end.is_some() || (self.kept_bytes < self.limits.kept_bytes_max && self.kept.len() < KEPT_MAX)
    }

    /// The data of a write that was given out in [`Out::sends`] and has not been answered.
    pub fn data(&self, cookie: Cookie) -> &[u8] {
        if cookie & REPLAY != 0 {
            return &self.kept[(cookie - REPLAY - self.kept_first) as usize].data;
        }
        &self.slots[cookie as u32 as usize].data
    }

    fn sent_slot(&self, cookie: Cookie) -> Option<&Slot> {
        let slot = self.slots.get(cookie as u32 as usize)?;
        let sent = matches!(slot.state, State::Sent { .. });
        (sent && u64::from(slot.generation) == cookie >> 32).then_some(slot)
    }

    /// The kernel asks. `data` belongs to a write and is empty otherwise.
    pub fn admit(&mut self, now: Nanos, unique: Unique, ask: Ask, data: Vec<u8>, out: &mut Out) {
        if self.end.is_some() || self.lost {
            out.dones.push((unique, libc::EIO));
            return;
        }
        if ask == Ask::Flush && !self.limits.write_cache {
            out.dones.push((unique, 0));
            return;
        }
        self.place(now, Some(unique), ask, data, out);
    }

    fn place(&mut self, now: Nanos, unique: Option<Unique>, ask: Ask, data: Vec<u8>, out: &mut Out) {
        self.arrivals += 1;
        let slot = Slot { state: State::Waiting, unique, ask, data, since: now, arrival: self.arrivals, generation: 0 };
        let index = match self.free.pop() {
            Some(index) => {
                let generation = self.slots[index as usize].generation.wrapping_add(1) & 0x7fff_ffff;
                self.slots[index as usize] = Slot { generation, ..slot };
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.busy += 1;
        if self.link == Link::Up && !self.paused {
            self.send(index, out);
        }
    }

    fn send(&mut self, index: u32, out: &mut Out) {
        let covers = self.kept_first + self.kept.len() as u64;
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.state, State::Waiting);
        slot.state = State::Sent { covers };
        let cookie = u64::from(slot.generation) << 32 | u64::from(index);
        out.sends.push(Send { cookie, ask: slot.ask });
    }

    /// The node answered with an errno (0 is success). Returns the kernel's request that is over with it, which the
    /// caller answers, a read with its data. An answer to a request that is not on the wire
    /// changes nothing.
    pub fn answered(&mut self, now: Nanos, cookie: Cookie, errno: i32, out: &mut Out) -> Option<(Unique, Ask)> {
        self.progress = now;
        if errno == libc::ESHUTDOWN {
            self.finish(End::Fenced, out);
            return None;
        }
        if cookie & REPLAY != 0 {
            self.replay_answered(cookie - REPLAY, errno, out);
            return None;
        }
        let covers = match self.sent_slot(cookie)?.state {
            State::Sent { covers } => covers,
            _ => return None,
        };
        let slot = self.release(cookie as u32);
        if errno == 0 && slot.ask == Ask::Flush {
            self.forget_until(covers);
        } else if errno == 0 && slot.ask.changes().is_some() {
            self.keep(now, slot.ask, slot.data, out);
        }
        if slot.unique.is_none() {
            self.own_flush = false;
            if errno != 0 {
                tracing::error!(errno, "the node failed a flush that was to make room for more writes");
                self.finish(End::Broken, out);
            }
        }
        slot.unique.map(|unique| (unique, slot.ask))
    }

    fn release(&mut self, index: u32) -> Slot {
        let slot = &mut self.slots[index as usize];
        assert_ne!(slot.state, State::Free);
        let empty = Slot { state: State::Free, unique: None, ask: Ask::Flush, data: Vec::new(), ..*slot };
        self.free.push(index);
        self.busy -= 1;
        std::mem::replace(slot, empty)
    }

    fn keep(&mut self, now: Nanos, ask: Ask, data: Vec<u8>, out: &mut Out) {
        // A durable write is kept too while an older one is: replaying only the older would undo it.
        let durable = matches!(ask, Ask::Write { fua: true, .. });
        if !self.limits.write_cache || (durable && self.kept.is_empty()) {
            return;
        }
        self.kept_bytes += data.len() as u64 + KEPT_OVERHEAD;
        self.kept.push_back(Kept { ask, data });
        let much = self.kept_bytes > self.limits.kept_bytes_max / 4 * 3 || self.kept.len() > KEPT_MAX / 4 * 3;
        if much && !self.own_flush {
            self.own_flush = true;
            self.place(now, None, Ask::Flush, Vec::new(), out);
        }
    }

    fn forget_until(&mut self, covers: u64) {
        while self.kept_first < covers {
            let Some(kept) = self.kept.pop_front() else { break };
            self.kept_bytes -= kept.data.len() as u64 + KEPT_OVERHEAD;
            self.kept_first += 1;
        }
    }

    /// A connection to the node is open, under the same right as before.
    pub fn link_up(&mut self, now: Nanos, out: &mut Out) {
        if self.end.is_some() {
            return;
        }
        self.progress = now;
        self.link = Link::Replaying;
        self.lost = false;
        self.replay_next = self.kept_first;
        self.replay_flying.clear();
        self.advance(out);
    }

    /// The connection is gone, and nothing sent on it will be executed any more.
    pub fn link_down(&mut self, now: Nanos) {
        self.progress = now;
        self.link = Link::Down;
        self.replay_flying.clear();
        for slot in &mut self.slots {
            if matches!(slot.state, State::Sent { .. }) {
                slot.state = State::Waiting;
            }
        }
    }

    /// Stop sending (a drill's partition); what is on the wire stays there.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Send again, starting with what waited.
    pub fn resume(&mut self, now: Nanos, out: &mut Out) {
        self.paused = false;
        self.progress = now;
        self.lost &= self.link == Link::Down;
        self.advance(out);
    }

    /// It is over: every request fails, nothing is ever sent again, nothing is kept.
    pub fn finish(&mut self, end: End, out: &mut Out) {
        self.end.get_or_insert(end);
        self.link = Link::Down;
        out.sends.clear();
        out.drop_link = true;
        self.kept.clear();
        self.kept_bytes = 0;
        self.replay_flying.clear();
        for index in 0..self.slots.len() as u32 {
            self.fail(index, out);
        }
    }

    fn fail(&mut self, index: u32, out: &mut Out) {
        if self.slots[index as usize].state == State::Free {
            return;
        }
        match self.release(index).unique {
            Some(unique) => out.dones.push((unique, libc::EIO)),
            None => self.own_flush = false,
        }
    }

    /// Time passed: fail what waited too long. A request on the wire that is failed here may still be executed, so the
    /// connection is dropped with it.
    pub fn tick(&mut self, now: Nanos, out: &mut Out) {
        let timeout = self.limits.timeout_ns;
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index as usize];
            if slot.state == State::Free || slot.unique.is_none() || now.saturating_sub(slot.since) < timeout {
                continue;
            }
            out.drop_link |= matches!(slot.state, State::Sent { .. });
            self.lost = true;
            self.fail(index, out);
        }
        let flying = self.link == Link::Replaying || self.own_flush;
        if flying && self.link != Link::Down && !self.paused && now.saturating_sub(self.progress) >= timeout {
            out.drop_link = true;
        }
        if out.drop_link {
            out.sends.clear();
            // Nothing more goes out on this connection; the driver reports when it is really gone.
            self.link = Link::Down;
        }
    }

    fn replay_answered(&mut self, number: u64, errno: i32, out: &mut Out) {
        self.replay_flying.retain(|&flying| flying != number);
        if errno != 0 {
            tracing::error!(errno, "the node refused to take an acknowledged write again after it lost it");
            self.finish(End::Broken, out);
            return;
        }
        self.replayed += 1;
        self.advance(out);
    }

    /// Sends what may be sent: kept writes while replaying, then what waits, oldest first.
    fn advance(&mut self, out: &mut Out) {
        if self.paused || self.link == Link::Down || self.end.is_some() {
            return;
        }
        if self.link == Link::Replaying {
            self.replay_more(out);
            let all_sent = self.replay_next == self.kept_first + self.kept.len() as u64;
            if !all_sent || !self.replay_flying.is_empty() {
                return;
            }
            self.link = Link::Up;
            self.lost = false;
        }
        let waiting = |slot: &&Slot| slot.state == State::Waiting;
        let mut indexes: Vec<(u64, u32)> = (0..)
            .zip(&self.slots)
            .filter(|(_, slot)| waiting(slot))
            .map(|(index, slot)| (slot.arrival, index))
            .collect();
        indexes.sort_unstable();
        for (_, index) in indexes {
            self.send(index, out);
        }
    }

    fn replay_more(&mut self, out: &mut Out) {
        while self.replay_flying.len() < REPLAY_WINDOW {
            let Some(kept) = self.kept.get((self.replay_next - self.kept_first) as usize) else { return };
            let (start, end) = kept.ask.changes().expect("only changes are kept");
            let overlaps = |&number: &u64| {
                let other = &self.kept[(number - self.kept_first) as usize];
                other.ask.changes().is_some_and(|(from, to)| from < end && start < to)
            };
            if self.replay_flying.iter().any(overlaps) {
                return;
            }
            out.sends.push(Send { cookie: REPLAY | self.replay_next, ask: kept.ask });
            self.replay_flying.push(self.replay_next);
            self.replay_next += 1;
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
