//! The policies against naive twins: every dispatch compared.
//!
//! Owns: the twins, which scan and loop where the policies keep trees and skip rounds. Never: measures.
//! Invariant: policy and twin hand out the same requests in the same order.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "a test harness")]

mod qos_common;

use proptest::prelude::*;
use qos_common::*;
use segue_sched::qos::{Charge, DriveShare, Kind, PolicyKind, Slot};
use segue_types::{Nanos, Share};
use std::collections::VecDeque;

/// What a twin decides.
trait Twin {
    /// A volume that had nothing got a request.
    fn woke(&mut self, volume: usize, now: Nanos);
    /// Whose turn it is among those with requests; `heads` are the costs of their first ones.
    fn pick(&mut self, heads: &[Option<Charge>], now: Nanos) -> usize;
    /// It passed; `left` says whether the volume has more.
    fn passed(&mut self, volume: usize, charge: &Charge, left: bool, now: Nanos);
}

/// mClock by scanning: exact tags as fractions of whole numbers.
struct Tags {
    weights: Vec<u64>,
    reserves: Vec<u64>,
    start: Vec<u64>,
    due: Vec<Nanos>,
    virtual_now: u64,
    reserved: bool,
    waiting: Vec<bool>,
}

impl Twin for Tags {
    fn woke(&mut self, volume: usize, now: Nanos) {
        self.start[volume] = self.start[volume].max(self.virtual_now);
        self.due[volume] = self.due[volume].max(now);
        self.waiting[volume] = true;
    }

    fn pick(&mut self, _: &[Option<Charge>], now: Nanos) -> usize {
        let waiting = || (0..self.start.len()).filter(|v| self.waiting[*v]);
        let due = waiting().filter(|v| self.reserves[*v] > 0 && self.due[*v] <= now).min_by_key(|v| self.due[*v]);
        self.reserved = due.is_some();
        due.unwrap_or_else(|| waiting().min_by_key(|v| self.start[*v]).expect("somebody waits"))
    }

    fn passed(&mut self, volume: usize, charge: &Charge, left: bool, now: Nanos) {
        let smallest = (0..self.start.len()).filter(|v| self.waiting[*v]).map(|v| self.start[v]).min();
        self.virtual_now = self.virtual_now.max(smallest.expect("somebody waits"));
        if self.reserved {
            let step = charge.cost * SECOND / (self.reserves[volume] * 100);
            self.due[volume] = self.due[volume].max(now.saturating_sub(100 * MS)) + step;
        }
        self.start[volume] += (charge.cost << 16) / self.weights[volume];
        self.waiting[volume] = left;
    }
}

/// Round robin by walking round and round until somebody can pay.
struct Rounds {
    weights: Vec<i64>,
    ring: VecDeque<usize>,
    deficit: Vec<i64>,
    paid: bool,
}

impl Twin for Rounds {
    fn woke(&mut self, volume: usize, _: Nanos) {
        self.ring.push_back(volume);
        if self.ring.len() == 1 {
            self.paid = false;
        }
    }

    fn pick(&mut self, heads: &[Option<Charge>], _: Nanos) -> usize {
        loop {
            let volume = self.ring[0];
            if !self.paid {
                self.deficit[volume] += 2 * self.weights[volume];
                self.paid = true;
            }
            if self.deficit[volume] >= heads[volume].expect("it waits").cost as i64 {
                return volume;
            }
            self.ring.rotate_left(1);
            self.paid = false;
        }
    }

    fn passed(&mut self, volume: usize, charge: &Charge, left: bool, _: Nanos) {
        self.deficit[volume] -= charge.cost as i64;
        if !left {
            self.ring.pop_front();
            self.deficit[volume] = self.deficit[volume].min(0);
            self.paid = false;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask { volume: usize, blocks: u64, write: bool },
    Pass { count: usize },
    Wait { ns: Nanos },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..5, 1u64..64, any::<bool>()).prop_map(|(volume, blocks, write)| Step::Ask { volume, blocks, write }),
        (1usize..6).prop_map(|count| Step::Pass { count }),
        (0u64..5_000_000).prop_map(|ns| Step::Wait { ns }),
    ]
}

/// Runs the steps on both. The first difference, if any.
fn compare(share: &mut DriveShare, slots: &[Slot], twin: &mut dyn Twin, steps: &[Step]) -> Result<(), String> {
    let mut queues: Vec<VecDeque<(u32, Charge)>> = vec![VecDeque::new(); slots.len()];
    let (mut now, mut key) = (0, 0);
    for (at, step) in steps.iter().enumerate() {
        match *step {
            Step::Ask { volume, blocks, write } => {
                let charge = share.charge(if write { Kind::Write } else { Kind::Read }, blocks * 4096, true);
                assert!(share.enqueue(slots[volume], key, charge, now));
                queues[volume].push_back((key, charge));
                if queues[volume].len() == 1 {
                    twin.woke(volume, now);
                }
                key += 1;
            }
            Step::Pass { count } => {
                for _ in 0..count {
                    let heads: Vec<Option<Charge>> = queues.iter().map(|q| q.front().map(|head| head.1)).collect();
                    let got = share.next(now, u64::MAX).map(|(slot, item)| {
                        share.complete(slot, &item.charge, 0, now);
                        item.key
                    });
                    let want = heads.iter().any(Option::is_some).then(|| {
                        let volume = twin.pick(&heads, now);
                        let (key, charge) = queues[volume].pop_front().expect("it waits");
                        twin.passed(volume, &charge, !queues[volume].is_empty(), now);
                        key
                    });
                    if got != want {
                        return Err(format!("step {at}: the policy passed {got:?}, its twin {want:?}"));
                    }
                }
            }
            Step::Wait { ns } => now += ns,
        }
    }
    Ok(())
}

fn open(policy: PolicyKind, tenants: &[(u32, u64)]) -> (DriveShare, Vec<Slot>) {
    let mut share = DriveShare::new(&options(policy));
    let slots = tenants.iter().map(|(weight, reserve_iops)| {
        let settings = Share { weight: *weight, reserve_iops: *reserve_iops, ..SHARE };
        share.open(&settings, 0).expect("there is a place")
    });
    let slots = slots.collect();
    (share, slots)
}

fn tags(tenants: &[(u32, u64)]) -> Tags {
    Tags {
        weights: tenants.iter().map(|t| t.0 as u64).collect(),
        reserves: tenants.iter().map(|t| t.1).collect(),
        start: vec![0; tenants.len()],
        due: vec![0; tenants.len()],
        virtual_now: 0,
        reserved: false,
        waiting: vec![false; tenants.len()],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn model_mclock_passes_what_its_twin_passes(
        tenants in proptest::collection::vec((1u32..=10_000, prop_oneof![Just(0u64), 1u64..5000]), 5),
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let (mut share, slots) = open(PolicyKind::Mclock, &tenants);
        prop_assert_eq!(compare(&mut share, &slots, &mut tags(&tenants), &steps), Ok(()));
    }

    #[test]
    fn model_drr_passes_what_its_twin_passes(
        weights in proptest::collection::vec(1u32..=10_000, 5),
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let tenants: Vec<(u32, u64)> = weights.iter().map(|weight| (*weight, 0)).collect();
        let (mut share, slots) = open(PolicyKind::Drr, &tenants);
        let weights: Vec<i64> = weights.iter().map(|w| *w as i64).collect();
        let mut twin = Rounds { weights, ring: VecDeque::new(), deficit: vec![0; 5], paid: false };
        prop_assert_eq!(compare(&mut share, &slots, &mut twin, &steps), Ok(()));
    }
}

#[test]
fn model_canary_a_twin_with_other_weights_differs() {
    let (mut share, slots) = open(PolicyKind::Mclock, &[(100, 0), (300, 0)]);
    let mut steps: Vec<Step> =
        (0..40).map(|at| Step::Ask { volume: at % 2, blocks: 1 + at as u64 % 3, write: false }).collect();
    steps.push(Step::Pass { count: 40 });
    assert!(compare(&mut share, &slots, &mut tags(&[(300, 0), (100, 0)]), &steps).is_err());
}
