//! Whatever messages come, in whatever order and however often, the machines of the corrected rules go on and keep their promises.
//!
//! Owns: random messages, half of them nearly right. Never: a network that behaves.
//! Invariant: a target's windows stay apart, an initiator's windows stay apart, state stays bounded.

use segue_cluster::reserve::{
    Ask, Backlog, Bid, DriveRule, Initiator, InitiatorEvent, InitiatorOut, Links, Rules, Target, TargetEvent,
    TargetOut, Window, WriteId,
};
use segue_des::Chance;

const LINKS: Links = Links::surge();

fn window(chance: &mut Chance, now: u64) -> Window {
    let left_ns = now + chance.below(600_000);
    Window { left_ns, right_ns: (left_ns + chance.below(300_000)).saturating_sub(chance.below(100_000)) }
}

#[test]
fn fuzz_targets_keep_windows_apart() {
    for seed in 0..20 {
        let mut chance = Chance::new(seed);
        let rules = Rules { windows_max: 50, ..Rules::corrected(&LINKS, 3) };
        let mut target = Target::new(rules, DriveRule::WriteBack, LINKS);
        let (mut now, mut out) = (0, Vec::new());
        let mut bids: Vec<(WriteId, u32, Window)> = Vec::new();
        let mut accepted: Vec<(WriteId, u32, Window)> = Vec::new();
        for _ in 0..20_000 {
            now += chance.below(2_000);
            let (mut write, mut round) = (WriteId(chance.below(100)), chance.below(6) as u32);
            let mut granted = chance.odds(1, 2).then(|| window(&mut chance, now));
            if !bids.is_empty() && chance.odds(2, 3) {
                let bid = *chance.pick(&bids);
                (write, round) = (bid.0, bid.1);
                granted = granted.map(|_| bid.2);
            }
            let backlog = Backlog { free_ns: now + chance.below(1_000_000), write_ns: chance.below(300_000), depth: 2 };
            let not_before_ns = now + chance.below(400_000);
            let ask = Ask { write, round, not_before_ns, transfer_ns: 117_685, window_ns: 130_553 };
            let event = match chance.below(4) {
                0 | 1 => TargetEvent::Request { ask, backlog },
                2 => TargetEvent::Settle { write, round, granted },
                _ => TargetEvent::Data { write, round, backlog },
            };
            target.step(now, event, &mut out);
            for action in out.drain(..) {
                match action {
                    TargetOut::Bid { write, round, window } => bids.push((write, round, window)),
                    TargetOut::Accepted { write, round, window: Window { left_ns, right_ns } } => {
                        let apart = |(_, _, w): &(_, _, Window)| right_ns <= w.left_ns || w.right_ns <= left_ns;
                        assert!(accepted.iter().all(apart), "seed {seed}: {left_ns}..{right_ns} in {accepted:?}");
                        accepted.push((write, round, Window { left_ns, right_ns }));
                    }
                    TargetOut::Store { write, .. } => accepted.retain(|a| a.0 != write),
                    TargetOut::Expired { write, round, accepted: true } => {
                        accepted.retain(|a| (a.0, a.1) != (write, round));
                    }
                    _ => {}
                }
            }
            assert!(target.windows() <= 50);
            if bids.len() > 60 {
                bids.drain(..30);
            }
        }
        assert!(bids.len() > 10, "seed {seed}: it bids");
    }
}

#[test]
fn fuzz_initiators_go_on() {
    for seed in 0..20 {
        let mut chance = Chance::new(seed);
        let mut initiator = Initiator::new(Rules::corrected(&LINKS, 3), LINKS, 9);
        let (mut now, mut out, mut names) = (0, Vec::new(), 0);
        let mut asked: Option<(u64, Ask)> = None;
        let mut sent: Vec<(WriteId, u8)> = Vec::new();
        let (mut done, mut last_end_ns) = (0, 0);
        for _ in 0..20_000 {
            now += chance.below(3_000);
            let ask = asked
                .map_or(Ask { write: WriteId(0), round: 0, not_before_ns: 0, transfer_ns: 0, window_ns: 0 }, |a| a.1);
            let event = match chance.below(8) {
                0 if initiator.ready() => {
                    names += 1;
                    InitiatorEvent::Write { write: WriteId(names), bytes: 512 << chance.below(12) }
                }
                0..=4 => {
                    let left_ns = ask.not_before_ns.max(now + 5_848) + chance.below(200_000);
                    let right = Window { left_ns, right_ns: left_ns + ask.window_ns };
                    let window = if chance.odds(9, 10) { right } else { window(&mut chance, now) };
                    let bid = Bid { member: chance.below(10) as u8 * 8 % 65, window };
                    let member = if chance.odds(9, 10) { chance.below(9) as u8 } else { bid.member };
                    InitiatorEvent::Bid { write: ask.write, round: ask.round, bid: Bid { member, ..bid } }
                }
                5 if !sent.is_empty() => {
                    let (write, member) = sent.swap_remove(chance.below(sent.len() as u64) as usize);
                    InitiatorEvent::Acknowledged { write, member }
                }
                6 => InitiatorEvent::Acknowledged {
                    write: WriteId(chance.below(names + 1)),
                    member: chance.below(70) as u8,
                },
                _ => InitiatorEvent::Wake,
            };
            if let InitiatorEvent::Acknowledged { .. } = event {
                // What is acknowledged is over, also when that is a lie.
                last_end_ns = now.min(last_end_ns);
            }
            initiator.step(now, event, &mut out);
            for action in out.drain(..) {
                match action {
                    InitiatorOut::Request { to, ask } => asked = Some((to, ask)),
                    InitiatorOut::Send { write, grant, .. } => {
                        sent.push((write, grant.member));
                        assert!(grant.window.left_ns >= last_end_ns, "seed {seed}: {grant:?} before {last_end_ns}");
                        last_end_ns = grant.window.right_ns;
                    }
                    InitiatorOut::Done { .. } => done += 1,
                    _ => {}
                }
            }
            assert!(initiator.outstanding() <= 16);
        }
        assert!(done > 50 && last_end_ns > 0, "seed {seed}: {done} writes, {:?}", initiator.counts());
    }
}
