//! The side that stores: it bids windows of its link and holds them.
//!
//! Owns: the windows of one target, bid and accepted. Never: the drive; the driver says how far behind it is.
//! Invariant: windows do not overlap; each bid ends in one acceptance, cancellation or expiry.

use super::links::Links;
use super::message::{Ask, Window, WriteId};
use super::rules::Rules;
use segue_types::Nanos;

/// How a target's bids mind its drive, and when it acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriveRule {
    /// Copies are acknowledged when they are stored; bids as SURGE's when its results were published.
    WriteThrough,
    /// Copies are acknowledged at once while the backlog is below `max(2, 256 KiB / chunk)` chunks; bids as SURGE's now.
    WriteBack,
}

/// A drive and a chunk for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// When the drive will be done with all it has, nanoseconds.
    pub free_ns: Nanos,
    /// What the chunk takes on the drive, nanoseconds.
    pub write_ns: Nanos,
    /// Chunks of this size that may wait for the drive before bids are delayed: `max(2, 256 KiB / chunk)`.
    pub depth: u32,
}

/// What happens to a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetEvent {
    /// An initiator asks for a window.
    Request {
        /// What it asks.
        ask: Ask,
        /// This target's drive.
        backlog: Backlog,
    },
    /// An initiator accepts this target's bid, or cancels it.
    Settle {
        /// Of which write.
        write: WriteId,
        /// Of which of its requests.
        round: u32,
        /// What it accepts.
        granted: Option<Window>,
    },
    /// SURGE's nodes share a bid in memory: what an initiator cuts off a window is free before its message says so.
    Trim {
        /// Of which write.
        write: WriteId,
        /// Of which of its requests.
        round: u32,
        /// What is left of the bid.
        window: Window,
    },
    /// The last byte of a copy came.
    Data {
        /// Of which write.
        write: WriteId,
        /// In the window of which of its requests.
        round: u32,
        /// This target's drive, before it takes the copy.
        backlog: Backlog,
    },
}

/// When to acknowledge a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Now.
    AtOnce,
    /// When the drive has it.
    WhenStored,
}

/// What the driver of a target is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetOut {
    /// Send this bid.
    Bid {
        /// For which write.
        write: WriteId,
        /// For which of its requests.
        round: u32,
        /// The window that is held.
        window: Window,
    },
    /// For the accounts: a bid was accepted.
    Accepted {
        /// Of which write.
        write: WriteId,
        /// Of which of its requests.
        round: u32,
        /// The part of it that will be used.
        window: Window,
    },
    /// For the accounts: a bid was cancelled.
    Cancelled {
        /// Of which write.
        write: WriteId,
        /// Of which of its requests.
        round: u32,
    },
    /// For the accounts: nothing was heard of a bid or an accepted window in its time.
    Expired {
        /// Of which write.
        write: WriteId,
        /// Of which of its requests.
        round: u32,
        /// Whether it had been accepted.
        accepted: bool,
    },
    /// Write the copy that came.
    Store {
        /// Which write's.
        write: WriteId,
        /// When to acknowledge it.
        reply: Reply,
        /// The window it came in; what is left of it is free for others.
        window: Window,
    },
    /// The copy that came has no window here: drop it.
    Refuse {
        /// Which write's.
        write: WriteId,
    },
}

/// A window that is held. 32 bytes: two to a cache line, and a target has several.
#[derive(Clone, Copy)]
struct Held {
    window: Window,
    write: WriteId,
    round: u32,
    accepted: bool,
}

/// The windows of one target. What it needs of rules and links is kept small: many targets share a cache.
pub struct Target {
    /// By their beginnings.
    held: Vec<Held>,
    /// From a request's arrival to the soonest window: the bid and the acceptance must be sent, and one must arrive.
    soonest_ns: Nanos,
    trip_ns: Nanos,
    /// What a hole must have beyond the window.
    gap_ns: Nanos,
    windows_max: u32,
    drive: DriveRule,
    patient: bool,
}

impl Target {
    /// A target without windows.
    pub fn new(rules: Rules, drive: DriveRule, links: Links) -> Target {
        Target {
            held: Vec::with_capacity(16),
            soonest_ns: 2 * links.control_ns + links.trip_ns,
            trip_ns: links.trip_ns,
            gap_ns: if rules.hole_gap { links.trip_ns } else { 0 },
            windows_max: rules.windows_max,
            drive,
            patient: rules.patience.is_some(),
        }
    }

    /// Where its windows lie and how many bytes they are, for drivers of many targets that ask for memory ahead.
    pub fn memory(&self) -> (*const u8, usize) {
        (self.held.as_ptr().cast(), size_of_val(self.held.as_slice()))
    }

    /// Windows it holds, bid or accepted.
    pub fn windows(&self) -> usize {
        self.held.len()
    }

    /// Takes an event and appends what is to be done.
    ///
    /// # Panics
    /// When rules that know no losses see the traces of one.
    pub fn step(&mut self, now: Nanos, event: TargetEvent, out: &mut Vec<TargetOut>) {
        match event {
            TargetEvent::Request { ask, backlog } => self.request(now, ask, backlog, out),
            TargetEvent::Settle { write, round, granted } => self.settle(write, round, granted, out),
            TargetEvent::Trim { write, round, window } => {
                let place = self.place(write, round).expect("a bid that is shared is held");
                self.held[place].window = window;
            }
            TargetEvent::Data { write, round, backlog } => self.data(now, write, round, backlog, out),
        }
    }

    fn place(&self, write: WriteId, round: u32) -> Option<usize> {
        self.held.iter().position(|h| h.write == write && h.round == round)
    }

    fn request(&mut self, now: Nanos, ask: Ask, backlog: Backlog, out: &mut Vec<TargetOut>) {
        if self.patient {
            if self.held.iter().any(|h| h.write == ask.write && h.round >= ask.round) {
                // A request that was overtaken, or came twice.
                return;
            }
            self.expire(now, &ask, out);
            if self.held.len() >= self.windows_max as usize {
                return;
            }
        }
        let delay_ns = self.delay_ns(backlog.free_ns.saturating_sub(now), ask.transfer_ns, backlog);
        let mut left_ns = ask.not_before_ns.max(now + self.soonest_ns).max(now + delay_ns);
        let needed_ns = ask.window_ns + self.gap_ns;
        let mut place = 0;
        for held in &self.held {
            if left_ns + needed_ns <= held.window.left_ns {
                break;
            }
            left_ns = left_ns.max(held.window.right_ns + self.trip_ns);
            place += 1;
        }
        // A wider window tells the initiator that this target is idle.
        let idle_ns = if self.held.is_empty() && delay_ns == 0 { 2 * self.trip_ns } else { 0 };
        let window = Window { left_ns, right_ns: left_ns + ask.window_ns + idle_ns };
        let (write, round) = (ask.write, ask.round);
        self.held.insert(place, Held { window, write, round, accepted: false });
        out.push(TargetOut::Bid { write, round, window });
    }

    /// How long the drive's backlog keeps a new copy from being worth its window, nanoseconds.
    fn delay_ns(&self, behind_ns: Nanos, transfer_ns: Nanos, backlog: Backlog) -> Nanos {
        let depth = u64::from(backlog.depth);
        let over_ns = behind_ns.saturating_sub((depth - 1) * backlog.write_ns);
        match self.drive {
            DriveRule::WriteBack => over_ns,
            DriveRule::WriteThrough => {
                let chunks = (behind_ns + backlog.write_ns / 2) / backlog.write_ns.max(1);
                if chunks >= depth && behind_ns > transfer_ns { over_ns.saturating_sub(transfer_ns) } else { 0 }
            }
        }
    }

    fn settle(&mut self, write: WriteId, round: u32, granted: Option<Window>, out: &mut Vec<TargetOut>) {
        let Some(place) = self.place(write, round) else {
            // It expired, or its request was lost; data in a window that is not held will be refused.
            assert!(self.patient, "a bid that was never made is settled");
            return;
        };
        let held = &mut self.held[place];
        let inside = |w: &Window| held.window.left_ns <= w.left_ns && w.right_ns <= held.window.right_ns;
        match granted {
            // Said twice.
            Some(_) if held.accepted && self.patient => {}
            Some(window) if inside(&window) => {
                assert!(!held.accepted, "a bid is accepted twice");
                (held.window, held.accepted) = (window, true);
                out.push(TargetOut::Accepted { write, round, window });
            }
            _ => {
                assert!(self.patient || (granted.is_none() && !held.accepted), "a settlement is not of a bid");
                let accepted = held.accepted;
                self.held.remove(place);
                out.push(match accepted {
                    true => TargetOut::Expired { write, round, accepted },
                    false => TargetOut::Cancelled { write, round },
                });
            }
        }
    }

    fn data(&mut self, now: Nanos, write: WriteId, round: u32, backlog: Backlog, out: &mut Vec<TargetOut>) {
        let Some(place) = self.place(write, round) else {
            assert!(self.patient, "data comes without a window");
            out.push(TargetOut::Refuse { write });
            return;
        };
        let held = self.held.remove(place);
        if !held.accepted {
            // The acceptance was lost, and the window was held all the same: the data says what it would have said.
            assert!(self.patient, "data comes in a window that was not accepted");
            out.push(TargetOut::Accepted { write, round, window: held.window });
        }
        let behind_ns = backlog.free_ns.saturating_sub(now) + backlog.write_ns;
        let short = behind_ns < u64::from(backlog.depth) * backlog.write_ns;
        let reply = match self.drive {
            DriveRule::WriteBack if short => Reply::AtOnce,
            DriveRule::WriteBack | DriveRule::WriteThrough => Reply::WhenStored,
        };
        out.push(TargetOut::Store { write, reply, window: held.window });
    }

    /// Forgets windows that nothing came in, and bids of a write that asks again. They are in the past of every new window, so a
    /// run without losses has none.
    fn expire(&mut self, now: Nanos, ask: &Ask, out: &mut Vec<TargetOut>) {
        let trip_ns = self.trip_ns;
        self.held.retain(|held| {
            let asks_again = held.write == ask.write && !held.accepted;
            let gone = asks_again || held.window.right_ns + trip_ns < now;
            if gone {
                let Held { write, round, accepted, .. } = *held;
                out.push(TargetOut::Expired { write, round, accepted });
            }
            !gone
        });
    }
}
