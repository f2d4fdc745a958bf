//! Transfers that share links: rates by max-min fairness, and the finish times that follow.
//!
//! Owns: each flow's rate and what it has left, recomputed when flows come, go or change. Never: an event queue; it says when
//! the next flow finishes.
//! Invariant: every flow that is below its own cap crosses a full link on which no other flow is faster.
//!
//! All arithmetic is on integers: rates are whole bits per second, rounded down, and what is left is counted in billionths of
//! a bit, so that rate times nanoseconds is exact. A full link of n flows leaves at most n - 1 bits per second unused;
//! a flow finishes in the first whole nanosecond in which nothing is left.
//!
//! A change reaches only the flows that are connected with it by links; the others keep rate and finish time.

mod fill;
#[cfg(test)]
mod tests;

pub(crate) use fill::{Part, fill};

use segue_types::Nanos;
use std::collections::BTreeSet;

/// Billionths of a bit in a byte.
const UNITS_PER_BYTE: u128 = 8_000_000_000;
/// No cap.
pub const UNCAPPED: u64 = u64::MAX;

/// Names a flow from its start to its end; never reused within one `Flows`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId {
    number: u64,
    slot: u32,
}

impl FlowId {
    /// A small number to keep the caller's facts under; free for another flow when this one ended.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

#[derive(Clone, Debug)]
struct Flow {
    number: u64,
    path: Vec<u32>,
    cap_bits_per_s: u64,
    rate_bits_per_s: u64,
    /// What was left at `as_of_ns`, billionths of a bit.
    left_units: u128,
    as_of_ns: Nanos,
    due_ns: Option<Nanos>,
}

#[derive(Clone, Debug)]
struct Shared {
    capacity_bits_per_s: u64,
    flows: Vec<u32>,
}

/// Links and the flows that share them.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    links: Vec<Shared>,
    /// By slot; `None` is free.
    flows: Vec<Option<Flow>>,
    free: Vec<u32>,
    started: u64,
    due: BTreeSet<(Nanos, u64, u32)>,
    scratch: Scratch,
    #[cfg(test)]
    unfair: bool,
}

#[derive(Clone, Debug, Default)]
struct Scratch {
    seen_links: Vec<bool>,
    seen_flows: Vec<bool>,
    links: Vec<u32>,
    flows: Vec<u32>,
    part: Part,
}

impl Flows {
    /// Links of these capacities, bits per second, numbered from 0. A capacity of 0 is a cut link.
    pub fn new(capacities_bits_per_s: &[u64]) -> Flows {
        let shared = |capacity: &u64| Shared { capacity_bits_per_s: *capacity, flows: Vec::new() };
        let links: Vec<Shared> = capacities_bits_per_s.iter().map(shared).collect();
        let scratch = Scratch { seen_links: vec![false; links.len()], ..Scratch::default() };
        Flows { links, scratch, ..Flows::default() }
    }

    /// Starts a flow of `bytes` over the links of `path`, each named once, at no more than `cap_bits_per_s`.
    /// `now` must not go back from call to call, and what is due before it must have been taken.
    ///
    /// # Panics
    /// Without a link and a cap (it would end at once), or when `path` names a link twice or one that there is not.
    pub fn start(&mut self, now: Nanos, path: &[u32], bytes: u64, cap_bits_per_s: u64) -> FlowId {
        assert!(!path.is_empty() || cap_bits_per_s != UNCAPPED, "a flow that nothing holds back");
        assert!(path.iter().enumerate().all(|(i, link)| !path[..i].contains(link)), "{path:?} names a link twice");
        self.started += 1;
        let number = self.started;
        let flow = Flow {
            number,
            path: path.to_vec(),
            cap_bits_per_s,
            rate_bits_per_s: 0,
            left_units: u128::from(bytes) * UNITS_PER_BYTE,
            as_of_ns: now,
            due_ns: None,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.flows.push(None);
                self.scratch.seen_flows.push(false);
                (self.flows.len() - 1) as u32
            }
        };
        self.flows[slot as usize] = Some(flow);
        for link in path {
            self.links[*link as usize].flows.push(slot);
        }
        // A flow of nothing has no rate to change, so its end is set here.
        self.reschedule(slot);
        self.share(now, &[slot], &[]);
        FlowId { number, slot }
    }

    /// Ends a flow before its time; what it had left, bytes, rounded up. `None` when it ended already.
    pub fn stop(&mut self, now: Nanos, id: FlowId) -> Option<u64> {
        let left_bytes = self.left_bytes(now, id)?;
        let path = self.remove(id.slot);
        self.share(now, &[], &path);
        Some(left_bytes)
    }

    /// When the next flow finishes, if nothing changes until then.
    pub fn next_finish(&self) -> Option<Nanos> {
        self.due.first().map(|(at, _, _)| *at)
    }

    /// Ends the flows that finish by `now` and gives the others what they leave. They are added to `finished` in the order of
    /// their finish, then of their start. Call it at [`Flows::next_finish`], not later.
    pub fn finish(&mut self, now: Nanos, finished: &mut Vec<FlowId>) {
        let mut freed = Vec::new();
        while let Some((at, number, slot)) = self.due.first().copied().filter(|(at, _, _)| *at <= now) {
            assert_eq!(at, now, "the finish at {at} is taken late: rates since then were wrong");
            finished.push(FlowId { number, slot });
            freed.extend(self.remove(slot));
        }
        self.share(now, &[], &freed);
    }

    /// Changes what a flow may use. Nothing happens when it ended already.
    pub fn set_cap(&mut self, now: Nanos, id: FlowId, cap_bits_per_s: u64) {
        let Some(flow) = self.flow_mut(id) else { return };
        if flow.cap_bits_per_s != cap_bits_per_s {
            assert!(!flow.path.is_empty() || cap_bits_per_s != UNCAPPED, "a flow that nothing holds back");
            flow.cap_bits_per_s = cap_bits_per_s;
            self.share(now, &[id.slot], &[]);
        }
    }

    /// Changes what a link carries; 0 cuts it.
    pub fn set_capacity(&mut self, now: Nanos, link: u32, bits_per_s: u64) {
        self.links[link as usize].capacity_bits_per_s = bits_per_s;
        self.share(now, &[], &[link]);
    }

    /// A flow's rate, bits per second; `None` when it ended.
    pub fn rate_bits_per_s(&self, id: FlowId) -> Option<u64> {
        self.flow(id).map(|flow| flow.rate_bits_per_s)
    }

    /// What a flow has left, bytes, rounded up; `None` when it ended.
    pub fn left_bytes(&self, now: Nanos, id: FlowId) -> Option<u64> {
        self.flow(id).map(|flow| flow.left_at(now).div_ceil(UNITS_PER_BYTE) as u64)
    }

    /// What flows use of a link now, bits per second.
    pub fn used_bits_per_s(&self, link: u32) -> u64 {
        let rate = |slot: &u32| self.flows[*slot as usize].as_ref().expect("a link names live flows").rate_bits_per_s;
        self.links[link as usize].flows.iter().map(rate).sum()
    }

    /// How many flows there are.
    pub fn len(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks the invariant of this module for every flow and link.
    ///
    /// # Panics
    /// When it does not hold.
    pub fn check(&self) {
        for (at, link) in self.links.iter().enumerate() {
            assert!(self.used_bits_per_s(at as u32) <= link.capacity_bits_per_s, "link {at} carries too much");
        }
        for flow in self.flows.iter().flatten() {
            let rate = flow.rate_bits_per_s;
            assert!(rate <= flow.cap_bits_per_s, "flow {} is above its cap", flow.number);
            let held = rate == flow.cap_bits_per_s || flow.path.iter().any(|link| self.holds_back(*link, rate));
            assert!(held, "flow {} at {rate} bit/s is held back by nothing", flow.number);
        }
    }

    fn holds_back(&self, link: u32, rate: u64) -> bool {
        let shared = &self.links[link as usize];
        let unused = shared.capacity_bits_per_s - self.used_bits_per_s(link);
        let faster = |slot: &&u32| self.flows[**slot as usize].as_ref().is_some_and(|f| f.rate_bits_per_s > rate);
        unused < shared.flows.len() as u64 && !shared.flows.iter().any(|slot| faster(&slot))
    }

    fn flow(&self, id: FlowId) -> Option<&Flow> {
        self.flows.get(id.slot as usize)?.as_ref().filter(|flow| flow.number == id.number)
    }

    fn flow_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.flows.get_mut(id.slot as usize)?.as_mut().filter(|flow| flow.number == id.number)
    }

    fn remove(&mut self, slot: u32) -> Vec<u32> {
        let flow = self.flows[slot as usize].take().expect("only live flows are removed");
        if let Some(due_ns) = flow.due_ns {
            self.due.remove(&(due_ns, flow.number, slot));
        }
        for link in &flow.path {
            let flows = &mut self.links[*link as usize].flows;
            let at = flows.iter().position(|s| *s == slot).expect("a flow is on its links");
            flows.swap_remove(at);
        }
        self.free.push(slot);
        flow.path
    }

    /// Gives new rates to all that is connected with these flows and links.
    fn share(&mut self, now: Nanos, flows: &[u32], links: &[u32]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.collect(self, flows, links);
        scratch.part.load(self, &scratch.links, &scratch.flows);
        let rates = (self.rule())(&mut scratch.part);
        for (slot, rate) in scratch.flows.iter().zip(rates) {
            let flow = self.flows[*slot as usize].as_mut().expect("collected flows live");
            if flow.rate_bits_per_s != *rate {
                flow.left_units = flow.left_at(now);
                flow.as_of_ns = now;
                flow.rate_bits_per_s = *rate;
                self.reschedule(*slot);
            }
        }
        scratch.clear();
        self.scratch = scratch;
    }

    #[cfg(not(test))]
    fn rule(&self) -> fn(&mut Part) -> &[u64] {
        fill
    }

    #[cfg(test)]
    fn rule(&self) -> fn(&mut Part) -> &[u64] {
        if self.unfair { fill::split_evenly } else { fill }
    }

    fn reschedule(&mut self, slot: u32) {
        let flow = self.flows[slot as usize].as_mut().expect("only live flows are scheduled");
        if let Some(due_ns) = flow.due_ns {
            self.due.remove(&(due_ns, flow.number, slot));
        }
        flow.due_ns = flow.due();
        if let Some(due_ns) = flow.due_ns {
            self.due.insert((due_ns, flow.number, slot));
        }
    }
}

impl Flow {
    fn left_at(&self, now: Nanos) -> u128 {
        let moved = u128::from(self.rate_bits_per_s) * u128::from(now - self.as_of_ns);
        self.left_units.saturating_sub(moved)
    }

    fn due(&self) -> Option<Nanos> {
        match (self.left_units, u128::from(self.rate_bits_per_s)) {
            (0, _) => Some(self.as_of_ns),
            (_, 0) => None,
            (left, rate) => u64::try_from(left.div_ceil(rate)).ok().and_then(|ns| self.as_of_ns.checked_add(ns)),
        }
    }
}

impl Scratch {
    /// The flows and links that are connected with the given ones.
    fn collect(&mut self, of: &Flows, flows: &[u32], links: &[u32]) {
        for slot in flows {
            self.add_flow(*slot);
        }
        for link in links {
            self.add_link(*link);
        }
        let (mut next_flow, mut next_link) = (0, 0);
        while next_flow < self.flows.len() || next_link < self.links.len() {
            if let Some(slot) = self.flows.get(next_flow).copied() {
                next_flow += 1;
                for link in &of.flows[slot as usize].as_ref().expect("links name live flows").path {
                    self.add_link(*link);
                }
            } else {
                let link = self.links[next_link];
                next_link += 1;
                for slot in &of.links[link as usize].flows {
                    self.add_flow(*slot);
                }
            }
        }
        // Rates are rounded down link by link: the same part must get the same rates, whatever change led here.
        self.links.sort_unstable();
        self.flows.sort_unstable();
    }

    fn add_flow(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.seen_flows[slot as usize], true) {
            self.flows.push(slot);
        }
    }

    fn add_link(&mut self, link: u32) {
        if !std::mem::replace(&mut self.seen_links[link as usize], true) {
            self.links.push(link);
        }
    }

    fn clear(&mut self) {
        for slot in self.flows.drain(..) {
            self.seen_flows[slot as usize] = false;
        }
        for link in self.links.drain(..) {
            self.seen_links[link as usize] = false;
        }
    }
}
