//! The side that writes: it asks a group for windows, chooses among the bids, and gives back what is too far away.
//!
//! Owns: one initiator's negotiation, its limit, and which copies are on their way. Never: data, a queue of writes to come.
//! Invariant: each bid it was sent is settled by one message; with [`Rules::own_link`] its windows never overlap.

use super::limit::Limit;
use super::links::{Links, Span};
use super::message::{Ask, Bid, GROUP_MAX, Grant, Grants, Window, WriteId};
use super::rules::Rules;
use super::select::choose;
use super::writes::Write;
use segue_types::Nanos;

/// What happens to an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitiatorEvent {
    /// A chunk is to be written to a group. Only when [`Initiator::ready`].
    Write {
        /// Its name.
        write: WriteId,
        /// Its size, bytes.
        bytes: u64,
    },
    /// A target bids.
    Bid {
        /// For which write.
        write: WriteId,
        /// For which of its requests.
        round: u32,
        /// Who bids which window.
        bid: Bid,
    },
    /// A target has a copy.
    Acknowledged {
        /// Of which write.
        write: WriteId,
        /// The target, by its place in the group.
        member: u8,
    },
    /// A time that was asked for has come.
    Wake,
}

/// What the driver of an initiator is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitiatorOut {
    /// Send this request to these members of the write's group.
    Request {
        /// A bit for each member.
        to: u64,
        /// What is asked.
        ask: Ask,
    },
    /// Tell these members which bids are accepted; the others' are cancelled.
    Settle {
        /// A bit for each member.
        to: u64,
        /// Of which write.
        write: WriteId,
        /// Of which of its requests.
        round: u32,
        /// What is accepted.
        grants: Grants,
    },
    /// Only with [`Rules::shared_bids`], and only a simulation can: cut the rest off the member's bid now.
    Trim {
        /// Of which write.
        write: WriteId,
        /// Of which of its requests.
        round: u32,
        /// Whose bid, and what is left of it.
        grant: Grant,
    },
    /// Send a copy when its window begins, at the full rate of data.
    Send {
        /// Which write's.
        write: WriteId,
        /// In the window of which of its requests.
        round: u32,
        /// To whom and when.
        grant: Grant,
    },
    /// Step this machine with [`InitiatorEvent::Wake`] at this time.
    Wake {
        /// Nanoseconds.
        at_ns: Nanos,
    },
    /// Enough targets have acknowledged the write.
    Done {
        /// Which.
        write: WriteId,
    },
}

/// What an initiator did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Requests that were sent.
    pub rounds: u64,
    /// Rounds that were given up because the wait was too long.
    pub renegotiations: u64,
    /// Windows that were accepted.
    pub windows: u64,
    /// Rounds that ended without all bids.
    pub incomplete: u64,
    /// Copies that were never acknowledged.
    pub lost: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The next request is due at a time.
    Resting {
        at_ns: Nanos,
        not_before_ns: Nanos,
    },
    /// Bids of these members are awaited until a time.
    Asking {
        to: u64,
        answered: u64,
        until_ns: Nanos,
    },
}

/// One initiator.
pub struct Initiator {
    rules: Rules,
    links: Links,
    group: u64,
    limit: Limit,
    phase: Phase,
    /// The write that is negotiated, unless idle, and which of its requests is out.
    talk: WriteId,
    round: u32,
    /// The part of a window that is used; a shorter bid is none, nor is one that begins before what was asked for.
    use_ns: Nanos,
    not_before_ns: Nanos,
    /// When the copy that is negotiated could have been sent at the soonest.
    wanted_ns: Nanos,
    /// Sorted by their beginnings.
    bids: Vec<Bid>,
    /// Rounds without any bid in a row.
    silent: u32,
    writes: Vec<Write>,
    /// End of the last accepted window.
    own_end_ns: Nanos,
    /// A copy was given up, so an acknowledgement may be of another transfer to that target than the last.
    unsure: bool,
    /// The earliest call that is asked for, and the one for overdue acknowledgements.
    wake_ns: Nanos,
    overdue_ns: Nanos,
    counts: Counts,
}

impl Initiator {
    /// An initiator that writes to groups of `group_targets`.
    ///
    /// # Panics
    /// When a group has fewer targets than a chunk has copies, or more than [`GROUP_MAX`].
    pub fn new(rules: Rules, links: Links, group_targets: u32) -> Initiator {
        assert!((u32::from(rules.copies)..=GROUP_MAX).contains(&group_targets));
        Initiator {
            rules,
            links,
            group: u64::MAX >> (64 - group_targets),
            limit: Limit::new(rules.limit, rules.limit_first_ns),
            phase: Phase::Idle,
            talk: WriteId(0),
            round: 0,
            use_ns: 0,
            not_before_ns: 0,
            wanted_ns: 0,
            bids: Vec::with_capacity(group_targets as usize),
            silent: 0,
            writes: Vec::with_capacity(1),
            own_end_ns: 0,
            unsure: false,
            wake_ns: Nanos::MAX,
            overdue_ns: Nanos::MAX,
            counts: Counts::default(),
        }
    }

    /// Whether it takes a write: it negotiates none, and not too many await their acknowledgements.
    pub fn ready(&self) -> bool {
        self.phase == Phase::Idle && self.writes.len() < usize::from(self.rules.outstanding_max)
    }

    /// Where its bids and writes lie and how many bytes they are, for drivers of many initiators that ask for memory ahead.
    pub fn memory(&self) -> [(*const u8, usize); 2] {
        let (bids, writes) = (self.bids.as_slice(), self.writes.as_slice());
        [(bids.as_ptr().cast(), size_of_val(bids)), (writes.as_ptr().cast(), size_of_val(writes))]
    }

    /// Writes that are not done.
    pub fn outstanding(&self) -> usize {
        self.writes.len()
    }

    /// The limit of waiting, nanoseconds.
    pub const fn limit_ns(&self) -> Nanos {
        self.limit.ns()
    }

    /// What it did so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes an event and appends what is to be done.
    ///
    /// # Panics
    /// When a write comes while it is not [`Initiator::ready`].
    pub fn step(&mut self, now: Nanos, event: InitiatorEvent, out: &mut Vec<InitiatorOut>) {
        match event {
            InitiatorEvent::Write { write, bytes } => self.begin(now, write, bytes, out),
            InitiatorEvent::Bid { write, round, bid } => self.bid(now, write, round, bid, out),
            InitiatorEvent::Acknowledged { write, member } => self.acknowledged(now, write, member, out),
            InitiatorEvent::Wake => self.wake(now, out),
        }
    }

    fn begin(&mut self, now: Nanos, id: WriteId, bytes: u64, out: &mut Vec<InitiatorOut>) {
        assert!(self.ready(), "a write comes while another one is negotiated");
        self.limit.begin();
        // SURGE has one chunk at a time, so its rules say nothing about windows of the one before.
        let apart = self.rules.own_link || !self.writes.is_empty();
        self.writes.push(Write::new(id, self.links.span(bytes)));
        let not_before_ns = if apart { now.max(self.own_end_ns) } else { now };
        self.talk = id;
        self.wanted_ns = not_before_ns;
        self.request(now, not_before_ns, out);
    }

    fn place(&self, id: WriteId) -> Option<usize> {
        self.writes.iter().position(|w| w.id == id)
    }

    fn request(&mut self, now: Nanos, not_before_ns: Nanos, out: &mut Vec<InitiatorOut>) {
        let place = self.place(self.talk).expect("what is negotiated is not done");
        let write = &mut self.writes[place];
        write.round += 1;
        if write.chosen == self.group {
            write.chosen = write.acknowledged | write.under_way_members();
        }
        let to = self.group & !write.chosen;
        let (mut until_ns, mut not_before_ns) = (Nanos::MAX, not_before_ns);
        if let Some(patience) = self.rules.patience {
            until_ns = now + (patience.bids_ns << self.silent.min(6));
            if write.incomplete {
                not_before_ns = not_before_ns.max(until_ns + self.links.message_ns());
            }
        }
        self.round = write.round;
        self.not_before_ns = not_before_ns;
        self.use_ns = write.span.window_ns - self.links.trip_ns;
        self.counts.rounds += 1;
        self.bids.clear();
        self.phase = Phase::Asking { to, answered: 0, until_ns };
        let Span { transfer_ns, window_ns } = write.span;
        let ask = Ask { write: write.id, round: write.round, not_before_ns, transfer_ns, window_ns };
        out.push(InitiatorOut::Request { to, ask });
        self.call_at(until_ns, out);
    }

    fn bid(&mut self, now: Nanos, id: WriteId, round: u32, bid: Bid, out: &mut Vec<InitiatorOut>) {
        let Phase::Asking { to, answered, until_ns } = self.phase else { return };
        let Window { left_ns, right_ns } = bid.window;
        let bit = 1u64.checked_shl(u32::from(bid.member)).unwrap_or(0);
        if left_ns < self.not_before_ns || right_ns.saturating_sub(left_ns) < self.use_ns {
            return;
        }
        if id != self.talk || round != self.round || to & bit == 0 || answered & bit != 0 {
            return;
        }
        let place = self.bids.iter().rposition(|b| b.window.left_ns <= bid.window.left_ns).map_or(0, |n| n + 1);
        self.bids.insert(place, bid);
        let answered = answered | bit;
        self.phase = Phase::Asking { to, answered, until_ns };
        if answered == to {
            self.silent = 0;
            self.decide(now, to, out);
        }
    }

    /// All bids are there, or those that are there must do: accepts some, or gives all back and asks again later.
    fn decide(&mut self, now: Nanos, to: u64, out: &mut Vec<InitiatorOut>) {
        let place = self.place(self.talk).expect("what is negotiated is not done");
        let write = self.writes[place];
        let choice = choose(&mut self.bids, self.rules.missing(&write), self.use_ns, &self.links);
        let chosen = &choice.places[..usize::from(choice.count)];
        for place in chosen.iter().filter(|_| self.rules.shared_bids) {
            let Bid { member, window } = self.bids[usize::from(*place)];
            out.push(InitiatorOut::Trim { write: write.id, round: write.round, grant: Grant { member, window } });
        }
        let free_ns = if self.rules.own_link { now.max(self.own_end_ns) } else { now };
        let left_ns = self.bids[usize::from(chosen[0])].window.left_ns;
        if self.rules.renegotiate && self.limit.exceeded(left_ns.saturating_sub(free_ns)) {
            self.counts.renegotiations += 1;
            let soonest_ns = now + self.limit.ns() / 4;
            let not_before_ns = if self.rules.own_link { soonest_ns.max(self.own_end_ns) } else { soonest_ns };
            self.give_back(now, to, (soonest_ns, not_before_ns), out);
            return;
        }
        let mut grants = Grants::none();
        for place in chosen {
            let Bid { member, window } = self.bids[usize::from(*place)];
            grants.push(Grant { member, window });
        }
        self.limit.waited(left_ns.saturating_sub(self.wanted_ns));
        self.accept(now, to, place, grants, out);
    }

    /// Cancels all bids of a round; the next request is at the first of `next` or, if that is sooner than it can be, when the
    /// cancellation has gone out.
    fn give_back(&mut self, now: Nanos, to: u64, next: (Nanos, Nanos), out: &mut Vec<InitiatorOut>) {
        let place = self.place(self.talk).expect("what is negotiated is not done");
        let Write { id, round, .. } = self.writes[place];
        out.push(InitiatorOut::Settle { to, write: id, round, grants: Grants::none() });
        self.rest(next.0.max(now + self.settled_ns()), next.1, out);
    }

    fn accept(&mut self, now: Nanos, to: u64, place: usize, grants: Grants, out: &mut Vec<InitiatorOut>) {
        let write = &mut self.writes[place];
        let (id, round) = (write.id, write.round);
        out.push(InitiatorOut::Settle { to, write: id, round, grants });
        let mut last = Window::default();
        for grant in grants.as_slice() {
            let patience_ns = self.rules.patience.map_or(Nanos::MAX, |p| grant.window.right_ns + p.acknowledgement_ns);
            write.under_way[usize::from(write.under_way_count)] = (grant.member, patience_ns);
            write.under_way_count += 1;
            write.chosen |= 1 << grant.member;
            write.ever_chosen |= 1 << grant.member;
            last = grant.window;
            self.own_end_ns = self.own_end_ns.max(last.right_ns);
            self.counts.windows += 1;
            out.push(InitiatorOut::Send { write: id, round, grant: *grant });
        }
        if self.rules.missing(&self.writes[place]) > 0 {
            self.wanted_ns = last.right_ns;
            self.rest(last.left_ns.max(now + self.settled_ns()), last.right_ns, out);
        } else {
            self.phase = Phase::Idle;
            self.repair(now, out);
        }
        self.watch(out);
    }

    /// From a settlement until the next request may follow it, nanoseconds.
    const fn settled_ns(&self) -> Nanos {
        self.links.message_ns() + self.links.control_ns / 2
    }

    fn rest(&mut self, at_ns: Nanos, not_before_ns: Nanos, out: &mut Vec<InitiatorOut>) {
        self.phase = Phase::Resting { at_ns, not_before_ns };
        self.call_at(at_ns, out);
    }

    fn acknowledged(&mut self, now: Nanos, id: WriteId, member: u8, out: &mut Vec<InitiatorOut>) {
        // A write that is done has no need of a late acknowledgement.
        let Some(place) = self.place(id) else { return };
        let write = &mut self.writes[place];
        write.acknowledged |= 1u64.checked_shl(u32::from(member)).unwrap_or(0) & write.ever_chosen;
        write.forget(|(to, _)| *to == member);
        if write.acknowledged.count_ones() < u32::from(self.rules.copies) {
            return;
        }
        let done = self.writes.swap_remove(place);
        self.unsure &= now < self.own_end_ns;
        let quiet = done.under_way_count == 0 && self.writes.iter().all(|w| w.under_way_count == 0);
        if quiet && !self.unsure {
            // A window is over when its copy is acknowledged, though more was reserved.
            self.own_end_ns = self.own_end_ns.min(now);
        }
        if self.phase != Phase::Idle && self.talk == id {
            // A copy that was given up has come after all, while another one was negotiated.
            if let Phase::Asking { to, .. } = self.phase {
                out.push(InitiatorOut::Settle { to, write: id, round: done.round, grants: Grants::none() });
            }
            self.phase = Phase::Idle;
        }
        out.push(InitiatorOut::Done { write: id });
        self.repair(now, out);
    }

    /// Negotiates anew what was lost, if nothing else is negotiated.
    fn repair(&mut self, now: Nanos, out: &mut Vec<InitiatorOut>) {
        if self.phase != Phase::Idle || self.rules.patience.is_none() {
            return;
        }
        if let Some(write) = self.writes.iter().find(|w| self.rules.missing(w) > 0) {
            self.talk = write.id;
            self.wanted_ns = now.max(self.own_end_ns);
            self.request(now, self.wanted_ns, out);
        }
    }

    fn wake(&mut self, now: Nanos, out: &mut Vec<InitiatorOut>) {
        if now >= self.wake_ns {
            self.wake_ns = Nanos::MAX;
        }
        match self.phase {
            Phase::Idle => {}
            Phase::Resting { at_ns, not_before_ns } if now >= at_ns => self.request(now, not_before_ns, out),
            Phase::Resting { at_ns, .. } => self.call_at(at_ns, out),
            Phase::Asking { to, until_ns, .. } if now >= until_ns => self.give_up_waiting(now, to, out),
            Phase::Asking { until_ns, .. } => self.call_at(until_ns, out),
        }
        if now >= self.overdue_ns {
            self.overdue_ns = Nanos::MAX;
            self.count_lost(now);
            self.repair(now, out);
            self.watch(out);
        }
    }

    /// Bids are missing: does with those that can still be used, or asks again.
    fn give_up_waiting(&mut self, now: Nanos, to: u64, out: &mut Vec<InitiatorOut>) {
        self.counts.incomplete += 1;
        self.silent = if self.bids.is_empty() { self.silent + 1 } else { 0 };
        let place = self.place(self.talk).expect("what is negotiated is not done");
        self.writes[place].incomplete = true;
        let soonest_ns = now + self.links.control_ns;
        self.bids.retain(|bid| bid.window.left_ns >= soonest_ns);
        if self.bids.is_empty() {
            let not_before_ns = if self.rules.own_link { now.max(self.own_end_ns) } else { now };
            self.give_back(now, to, (now, not_before_ns), out);
        } else {
            self.decide(now, to, out);
        }
    }

    fn count_lost(&mut self, now: Nanos) {
        for write in &mut self.writes {
            let lost = write.forget(|(_, until_ns)| *until_ns <= now);
            self.counts.lost += u64::from(lost);
            self.unsure |= lost > 0;
        }
    }

    /// Asks to be called at a time, unless a call no later is asked for already.
    fn call_at(&mut self, at_ns: Nanos, out: &mut Vec<InitiatorOut>) {
        if at_ns < self.wake_ns {
            self.wake_ns = at_ns;
            out.push(InitiatorOut::Wake { at_ns });
        }
    }

    /// Asks to be called when the next acknowledgement is overdue, unless a call for one is asked for already.
    fn watch(&mut self, out: &mut Vec<InitiatorOut>) {
        if self.overdue_ns != Nanos::MAX {
            return;
        }
        let until = self.writes.iter().flat_map(|w| &w.under_way[..usize::from(w.under_way_count)]).map(|u| u.1);
        self.overdue_ns = until.min().unwrap_or(Nanos::MAX);
        if self.overdue_ns != Nanos::MAX {
            out.push(InitiatorOut::Wake { at_ns: self.overdue_ns });
        }
    }
}
