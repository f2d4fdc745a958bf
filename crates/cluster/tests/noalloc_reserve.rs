//! The machines of the reservation protocol allocate nothing once they have seen their load.
//!
//! Owns: a counting allocator and a driver that keeps its messages in one array. Never: counts other threads.
//! Invariant: the canary shows that an allocation would be seen.

#[path = "../../types/testing/calls.rs"]
mod calls;

use calls::calls;
use segue_cluster::reserve::{
    Backlog, DriveRule, Initiator, InitiatorEvent, InitiatorOut, Links, Reply, Rules, Target, TargetEvent, TargetOut,
    WriteId,
};

const LINKS: Links = Links::surge();
const BYTES: u64 = 128 << 10;
const WRITE_NS: u64 = 125_000;

#[derive(Clone, Copy)]
enum Event {
    Target(u8, TargetEvent),
    Stored(u8, WriteId),
    Initiator(u8, InitiatorEvent),
}

/// Four initiators, one group of nine.
struct Rig {
    now: u64,
    initiators: Vec<Initiator>,
    targets: Vec<Target>,
    free_ns: [u64; 9],
    events: Vec<(u64, u64, Event)>,
    scheduled: u64,
    done: u64,
    of_initiator: Vec<InitiatorOut>,
    of_target: Vec<TargetOut>,
}

impl Rig {
    fn new(rules: Rules, drive: DriveRule) -> Rig {
        let mut rig = Rig {
            now: 0,
            initiators: (0..4).map(|_| Initiator::new(rules, LINKS, 9)).collect(),
            targets: (0..9).map(|_| Target::new(rules, drive, LINKS)).collect(),
            free_ns: [0; 9],
            events: Vec::with_capacity(1_000),
            scheduled: 0,
            done: 0,
            of_initiator: Vec::with_capacity(64),
            of_target: Vec::with_capacity(64),
        };
        for n in 0..4 {
            rig.post(0, Event::Initiator(n, InitiatorEvent::Write { write: WriteId(u64::from(n)), bytes: BYTES }));
        }
        rig
    }

    fn post(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.push((at_ns, self.scheduled, event));
    }

    fn backlog(&self, target: u8) -> Backlog {
        Backlog { free_ns: self.free_ns[usize::from(target)], write_ns: WRITE_NS, depth: 2 }
    }

    fn step(&mut self) {
        let first = self.events.iter().enumerate().min_by_key(|(_, e)| (e.0, e.1)).expect("it never ends").0;
        let (now, _, event) = self.events.swap_remove(first);
        self.now = now;
        match event {
            Event::Initiator(n, event) => {
                self.initiators[usize::from(n)].step(now, event, &mut self.of_initiator);
                while let Some(action) = (!self.of_initiator.is_empty()).then(|| self.of_initiator.remove(0)) {
                    self.initiator_does(n, action);
                }
            }
            Event::Stored(n, write) => self.acknowledge(n, write),
            Event::Target(n, event) => {
                self.targets[usize::from(n)].step(now, event, &mut self.of_target);
                while let Some(action) = self.of_target.pop() {
                    self.target_does(n, action);
                }
            }
        }
    }

    fn initiator_does(&mut self, n: u8, action: InitiatorOut) {
        let heard_ns = self.now + LINKS.message_ns();
        match action {
            InitiatorOut::Request { to, ask } => {
                for t in (0..9).filter(|t| to >> t & 1 == 1) {
                    let backlog = self.backlog(t);
                    self.post(heard_ns, Event::Target(t, TargetEvent::Request { ask, backlog }));
                }
            }
            InitiatorOut::Settle { to, write, round, grants } => {
                for t in (0..9).filter(|t| to >> t & 1 == 1) {
                    let granted = grants.of(t);
                    self.post(heard_ns, Event::Target(t, TargetEvent::Settle { write, round, granted }));
                }
            }
            InitiatorOut::Trim { write, round, grant } => {
                let event = TargetEvent::Trim { write, round, window: grant.window };
                self.targets[usize::from(grant.member)].step(self.now, event, &mut self.of_target);
            }
            InitiatorOut::Send { write, round, grant } => {
                let last_ns = grant.window.left_ns + LINKS.framed_ns(BYTES) + LINKS.trip_ns;
                let backlog = self.backlog(grant.member);
                self.post(last_ns, Event::Target(grant.member, TargetEvent::Data { write, round, backlog }));
            }
            InitiatorOut::Wake { at_ns } => self.post(at_ns, Event::Initiator(n, InitiatorEvent::Wake)),
            InitiatorOut::Done { write } => {
                self.done += 1;
                let event = InitiatorEvent::Write { write: WriteId(write.0 + 4), bytes: BYTES };
                self.post(self.now, Event::Initiator(n, event));
            }
        }
    }

    fn target_does(&mut self, n: u8, action: TargetOut) {
        match action {
            TargetOut::Bid { write, round, window } => {
                let bid = segue_cluster::reserve::Bid { member: n, window };
                let event = InitiatorEvent::Bid { write, round, bid };
                self.post(self.now + LINKS.message_ns(), Event::Initiator((write.0 % 4) as u8, event));
            }
            TargetOut::Store { write, reply, .. } => {
                let free_ns = &mut self.free_ns[usize::from(n)];
                *free_ns = (*free_ns).max(self.now) + WRITE_NS;
                let stored_ns = *free_ns;
                match reply {
                    Reply::AtOnce => self.acknowledge(n, write),
                    Reply::WhenStored => self.post(stored_ns, Event::Stored(n, write)),
                }
            }
            TargetOut::Accepted { .. } | TargetOut::Cancelled { .. } => {}
            TargetOut::Expired { .. } | TargetOut::Refuse { .. } => unreachable!("nothing is lost here"),
        }
    }

    fn acknowledge(&mut self, n: u8, write: WriteId) {
        let event = InitiatorEvent::Acknowledged { write, member: n };
        self.post(self.now + LINKS.message_ns(), Event::Initiator((write.0 % 4) as u8, event));
    }
}

#[test]
fn noalloc_writes_are_negotiated_without_allocating() {
    for rules in [Rules::published(&LINKS, 3), Rules::corrected(&LINKS, 3), Rules::corrected(&LINKS, 3).plain()] {
        for drive in [DriveRule::WriteThrough, DriveRule::WriteBack] {
            let mut rig = Rig::new(rules, drive);
            while rig.done < 200 {
                rig.step();
            }
            let before = calls();
            while rig.done < 1_000 {
                rig.step();
            }
            assert_eq!(calls() - before, 0, "{rules:?}, {drive:?}");
            if rules.renegotiate {
                assert!(rig.initiators.iter().any(|i| i.counts().renegotiations > 0), "the load is a load");
            }
        }
    }
}

#[test]
fn noalloc_canary_growing_is_seen() {
    let before = calls();
    drop(vec![1u8; 100]);
    assert!(calls() > before);
}
