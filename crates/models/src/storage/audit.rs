//! The accounts of a run: bytes, windows, bids.
//!
//! Owns: what must hold in every run, whatever the protocol. Never: lets a protocol answer for itself.
//! Invariant: a violation ends the run with the first fact that broke a rule.

use super::chunks::ChunkId;
use segue_des::prefetch;
use segue_types::Nanos;

/// A rule that a run broke: a bug of the protocol or of its model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// Two accepted windows of one node overlap.
    #[error("at {now_ns} ns: {side} {node}: window {left_ns}..{right_ns} overlaps {other_left_ns}..{other_right_ns}")]
    Overlap {
        /// When.
        now_ns: Nanos,
        /// Which side.
        side: &'static str,
        /// Which node of that side.
        node: u32,
        /// The later window.
        left_ns: Nanos,
        /// Its end.
        right_ns: Nanos,
        /// The window that was there.
        other_left_ns: Nanos,
        /// Its end.
        other_right_ns: Nanos,
    },
    /// A bid was settled twice, or never made.
    #[error("at {now_ns} ns: target {target} settles a bid for chunk {chunk} that is not open")]
    NoSuchBid {
        /// When.
        now_ns: Nanos,
        /// Which target.
        target: u32,
        /// Which chunk.
        chunk: u32,
    },
    /// Data came to a target without a booking.
    #[error("at {now_ns} ns: target {target} gets a copy of chunk {chunk} that has no window there")]
    Unbooked {
        /// When.
        now_ns: Nanos,
        /// Which target.
        target: u32,
        /// Which chunk.
        chunk: u32,
    },
    /// A target has two open bids of one round of one chunk.
    #[error("at {now_ns} ns: target {target} bids twice for chunk {chunk} in one round")]
    DoubleBid {
        /// When.
        now_ns: Nanos,
        /// Which target.
        target: u32,
        /// Which chunk.
        chunk: u32,
    },
    /// A chunk finished without its copies on as many different targets.
    #[error("at {now_ns} ns: chunk {chunk} is done with {stored} different copies of {copies}")]
    Copies {
        /// When.
        now_ns: Nanos,
        /// Which chunk.
        chunk: u32,
        /// Copies that different targets stored.
        stored: u32,
        /// Copies wanted.
        copies: u32,
    },
    /// Bytes appeared or vanished between sending, receiving and storing.
    #[error(
        "at {now_ns} ns: bytes are not conserved: {sent_bytes} sent, {received_bytes} received, {stored_bytes} stored"
    )]
    Bytes {
        /// When.
        now_ns: Nanos,
        /// Sent by initiators.
        sent_bytes: u64,
        /// Received by targets.
        received_bytes: u64,
        /// On media.
        stored_bytes: u64,
    },
    /// Bytes vanished: fewer are on their way, or in drives, than were sent and not received, or received and not stored.
    #[error(
        "at {now_ns} ns: bytes vanished or were counted twice: {way_bytes} should be on their way and {drive_bytes} in drives, \
         but events bring {found_way_bytes} and {found_drive_bytes}"
    )]
    Vanished {
        /// When.
        now_ns: Nanos,
        /// Sent, not lost on purpose, not received.
        way_bytes: u64,
        /// Received, not destroyed on purpose, not stored.
        drive_bytes: u64,
        /// What events bring to nodes.
        found_way_bytes: u64,
        /// What drives have yet to end.
        found_drive_bytes: u64,
    },
    /// A drive with work was idle.
    #[error("at {now_ns} ns: the drive of target {target} was idle with work to do, or did more than its rate allows")]
    Idle {
        /// When.
        now_ns: Nanos,
        /// Which target.
        target: u32,
    },
}

/// Windows that ended longer ago than this meet no new one: none is told of later than a message after it began.
const PAST_NS: Nanos = 1_000_000;

/// Accepted windows of many nodes that may not overlap.
pub struct Windows {
    side: &'static str,
    of: Vec<Vec<(Nanos, Nanos)>>,
    gap_ns: Nanos,
    /// Overlaps seen, for protocols that are known to have them.
    pub overlaps: u64,
}

impl Windows {
    /// For `nodes` nodes; windows must be `gap_ns` apart.
    pub fn new(side: &'static str, nodes: u32, gap_ns: Nanos) -> Windows {
        Windows { side, of: vec![Vec::new(); nodes as usize], gap_ns, overlaps: 0 }
    }

    /// Adds `left_ns..right_ns` of a node.
    ///
    /// # Errors
    /// When it overlaps one that is there.
    pub fn add(&mut self, now: Nanos, node: u32, left_ns: Nanos, right_ns: Nanos) -> Result<(), Violation> {
        let (windows, gap) = (&mut self.of[node as usize], self.gap_ns);
        let (mut clash, mut place) = (None, 0);
        while place < windows.len() {
            let (left, right) = windows[place];
            if right + PAST_NS <= now {
                windows.swap_remove(place);
                continue;
            }
            if left_ns < right + gap && left < right_ns + gap {
                clash = Some((left, right));
            }
            place += 1;
        }
        windows.push((left_ns, right_ns));
        match clash {
            None => Ok(()),
            Some((other_left_ns, other_right_ns)) => {
                self.overlaps += 1;
                let (side, now_ns) = (self.side, now);
                Err(Violation::Overlap { now_ns, side, node, left_ns, right_ns, other_left_ns, other_right_ns })
            }
        }
    }

    /// Takes a window back that was given up, or replaces its end by an earlier one (`right_ns` of `None` removes it).
    pub fn shorten(&mut self, node: u32, left_ns: Nanos, right_ns: Option<Nanos>) {
        let windows = &mut self.of[node as usize];
        if let Some(at) = windows.iter().rposition(|(left, _)| *left == left_ns) {
            match right_ns {
                Some(right_ns) => windows[at].1 = windows[at].1.min(right_ns),
                None => drop(windows.swap_remove(at)),
            }
        }
    }
}

/// Data that events bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Carried {
    /// On the way to a target, bytes.
    pub way_bytes: u64,
    /// Received, and worked on by a drive, bytes.
    pub drive_bytes: u64,
}

impl Carried {
    /// Data on its way, bytes.
    pub const fn on_the_way(way_bytes: u64) -> Carried {
        Carried { way_bytes, drive_bytes: 0 }
    }

    /// Data that a drive works on, bytes.
    pub const fn in_a_drive(drive_bytes: u64) -> Carried {
        Carried { way_bytes: 0, drive_bytes }
    }

    /// Both.
    #[must_use]
    pub const fn plus(self, other: Carried) -> Carried {
        let way_bytes = self.way_bytes + other.way_bytes;
        Carried { way_bytes, drive_bytes: self.drive_bytes + other.drive_bytes }
    }
}

/// The accounts of a run.
pub struct Audit {
    lost: Carried,
    /// Accepted windows at targets.
    pub targets: Windows,
    /// Accepted windows at initiators.
    pub initiators: Windows,
    bids: Vec<Open>,
    sent_bytes: u64,
    received_bytes: u64,
    stored_bytes: u64,
    copies: Vec<Copies>,
    drives: Vec<Busy>,
}

/// The first targets that have a copy of a chunk: as many as any scenario wants.
#[derive(Clone, Copy, Default)]
struct Copies {
    on: [u32; 8],
    count: u32,
}

/// A target's open bids: chunk and round. The first few lie in the account itself, one cache line.
#[derive(Clone, Default)]
#[repr(align(64))]
struct Open {
    first: [(u32, u32); 4],
    count: u32,
    more: Vec<(u32, u32)>,
}

impl Open {
    fn find(&self, bid: (u32, u32)) -> Option<usize> {
        let first = self.first[..self.count as usize].iter().position(|b| *b == bid);
        first.or_else(|| self.more.iter().position(|b| *b == bid).map(|at| at + self.first.len()))
    }

    fn add(&mut self, bid: (u32, u32)) {
        match self.first.get_mut(self.count as usize) {
            Some(place) => {
                *place = bid;
                self.count += 1;
            }
            None => self.more.push(bid),
        }
    }

    fn remove(&mut self, at: usize) {
        if at >= self.first.len() {
            self.more.swap_remove(at - self.first.len());
        } else if let Some(last) = self.more.pop() {
            self.first[at] = last;
        } else {
            self.count -= 1;
            self.first[at] = self.first[self.count as usize];
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Busy {
    until_ns: Nanos,
}

impl Audit {
    /// Empty accounts.
    pub fn new(initiators: u32, targets: u32) -> Audit {
        Audit {
            lost: Carried::default(),
            targets: Windows::new("target", targets, 0),
            initiators: Windows::new("initiator", initiators, 0),
            bids: vec![Open::default(); targets as usize],
            sent_bytes: 0,
            received_bytes: 0,
            stored_bytes: 0,
            copies: Vec::new(),
            drives: vec![Busy::default(); targets as usize],
        }
    }

    /// A node's accounts are needed soon: asks for their memory.
    #[inline]
    pub fn soon(&self, node: u32) {
        if let Some(open) = self.bids.get(node as usize) {
            prefetch(open);
            prefetch(&self.targets.of[node as usize]);
        }
    }

    /// As [`Audit::soon`], what those point to.
    #[inline]
    pub fn sooner(&self, node: u32) {
        if let Some(windows) = self.targets.of.get(node as usize) {
            prefetch(windows.as_slice());
        }
    }

    /// A target made a bid in a round of a chunk's negotiation.
    ///
    /// # Errors
    /// When it has one already.
    pub fn bid(&mut self, now_ns: Nanos, target: u32, chunk: ChunkId, round: u32) -> Result<(), Violation> {
        let open = &mut self.bids[target as usize];
        if open.find((chunk.0, round)).is_some() {
            return Err(Violation::DoubleBid { now_ns, target, chunk: chunk.0 });
        }
        open.add((chunk.0, round));
        Ok(())
    }

    /// A target's bid was accepted, cancelled or expired.
    ///
    /// # Errors
    /// When there is no such bid, or it was settled before.
    pub fn settle(&mut self, now_ns: Nanos, target: u32, chunk: ChunkId, round: u32) -> Result<(), Violation> {
        let open = &mut self.bids[target as usize];
        match open.find((chunk.0, round)) {
            Some(at) => {
                open.remove(at);
                Ok(())
            }
            None => Err(Violation::NoSuchBid { now_ns, target, chunk: chunk.0 }),
        }
    }

    /// Bids that are neither accepted nor cancelled.
    pub fn open_bids(&self) -> usize {
        self.bids.iter().map(|open| open.count as usize + open.more.len()).sum()
    }

    /// An initiator put `bytes` of a copy on its link (of a multicast: once per receiver).
    pub fn sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
    }

    /// Data is lost on purpose: on its way, or in a drive.
    pub fn lost(&mut self, data: Carried) {
        self.lost = self.lost.plus(data);
    }

    /// The last byte of a copy came; the drive of `target` works on it until `until_ns`, which takes `takes_ns`.
    ///
    /// # Errors
    /// When more came than was sent, or the drive is not FIFO and busy whenever it has work.
    pub fn received(
        &mut self,
        now_ns: Nanos,
        target: u32,
        bytes: u64,
        until_ns: Nanos,
        takes_ns: Nanos,
    ) -> Result<(), Violation> {
        self.received_bytes += bytes;
        self.worked(now_ns, target, until_ns, takes_ns)?;
        self.conserved(now_ns)
    }

    /// The drive of `target` got work that nobody sent (a read), until `until_ns`, which takes `takes_ns`.
    ///
    /// # Errors
    /// When the drive is not FIFO and busy whenever it has work.
    pub fn worked(&mut self, now_ns: Nanos, target: u32, until_ns: Nanos, takes_ns: Nanos) -> Result<(), Violation> {
        let drive = &mut self.drives[target as usize];
        if until_ns != drive.until_ns.max(now_ns) + takes_ns {
            return Err(Violation::Idle { now_ns, target });
        }
        drive.until_ns = until_ns;
        Ok(())
    }

    /// A copy is on the medium of `target`.
    ///
    /// # Errors
    /// When more is stored than was received.
    pub fn stored(&mut self, now_ns: Nanos, target: u32, chunk: ChunkId, bytes: u64) -> Result<(), Violation> {
        self.stored_bytes += bytes;
        self.vouched(target, chunk);
        self.conserved(now_ns)
    }

    /// A target vouches for a copy that is not on its medium yet (write-back).
    pub fn vouched(&mut self, target: u32, chunk: ChunkId) {
        if self.copies.len() <= chunk.0 as usize {
            self.copies.resize(chunk.0 as usize + 1, Copies::default());
        }
        let Copies { on, count } = &mut self.copies[chunk.0 as usize];
        let known = *count as usize;
        if known < on.len() && !on[..known].contains(&target) {
            on[known] = target;
            *count += 1;
        }
    }

    /// An initiator calls a chunk done.
    ///
    /// # Errors
    /// When fewer than `copies` different targets have it.
    pub fn done(&mut self, now_ns: Nanos, chunk: ChunkId, copies: u32) -> Result<(), Violation> {
        let stored = self.copies.get(chunk.0 as usize).map_or(0, |c| c.count);
        if stored < copies {
            return Err(Violation::Copies { now_ns, chunk: chunk.0, stored, copies });
        }
        Ok(())
    }

    /// Sent and not received yet, bytes.
    pub fn in_flight_bytes(&self) -> u64 {
        self.sent_bytes - self.received_bytes
    }

    /// Whether bytes are conserved now.
    ///
    /// # Errors
    /// When they are not.
    pub fn conserved(&self, now_ns: Nanos) -> Result<(), Violation> {
        let (sent_bytes, received_bytes, stored_bytes) = (self.sent_bytes, self.received_bytes, self.stored_bytes);
        if stored_bytes <= received_bytes && received_bytes <= sent_bytes {
            Ok(())
        } else {
            Err(Violation::Bytes { now_ns, sent_bytes, received_bytes, stored_bytes })
        }
    }

    /// Whether all bytes that are neither stored nor lost on purpose are in the events that are left.
    ///
    /// # Errors
    /// When they are not.
    pub fn nothing_vanished(&self, now_ns: Nanos, found: Carried) -> Result<(), Violation> {
        let way_bytes = self.sent_bytes.wrapping_sub(self.lost.way_bytes).wrapping_sub(self.received_bytes);
        let drive_bytes = self.received_bytes.wrapping_sub(self.lost.drive_bytes).wrapping_sub(self.stored_bytes);
        if found == (Carried { way_bytes, drive_bytes }) {
            return Ok(());
        }
        let Carried { way_bytes: found_way_bytes, drive_bytes: found_drive_bytes } = found;
        Err(Violation::Vanished { now_ns, way_bytes, drive_bytes, found_way_bytes, found_drive_bytes })
    }
}
