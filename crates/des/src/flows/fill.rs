//! Progressive filling: the rates of a set of flows over a set of links.
//!
//! Owns: the algorithm. Never: looks at time.
//! Invariant: rates of flows that are settled later are not smaller.
//!
//! All flows rise together; the first link that fills, or the first cap that is reached, settles its flows; the others rise on
//! (Bertsekas and Gallager, Data Networks, 6.5.2).

use super::Flows;

/// A part of the network, numbered from 0 within itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    /// Capacity not given away, by link.
    rest: Vec<u64>,
    /// Flows that still rise, by link.
    rising: Vec<u64>,
    /// Flows of each link, as ranges of `members`.
    member_ranges: Vec<(usize, usize)>,
    members: Vec<u32>,
    /// Links of each flow, as ranges of `hops`.
    hop_ranges: Vec<(usize, usize)>,
    hops: Vec<u32>,
    caps: Vec<u64>,
    rates: Vec<u64>,
    settled: Vec<bool>,
    /// Flows with a cap, by falling cap.
    by_cap: Vec<u32>,
    /// Place of a link or flow of the network in this part.
    place_of_link: Vec<u32>,
    place_of_flow: Vec<u32>,
}

impl Part {
    pub(super) fn load(&mut self, of: &Flows, links: &[u32], flows: &[u32]) {
        self.clear(of.links.len(), of.flows.len());
        for (place, link) in links.iter().enumerate() {
            self.place_of_link[*link as usize] = place as u32;
        }
        for (place, slot) in flows.iter().enumerate() {
            let flow = of.flows[*slot as usize].as_ref().expect("a part has live flows");
            self.place_of_flow[*slot as usize] = place as u32;
            let start = self.hops.len();
            self.hops.extend(flow.path.iter().map(|link| self.place_of_link[*link as usize]));
            self.hop_ranges.push((start, self.hops.len()));
            self.caps.push(flow.cap_bits_per_s);
            if flow.cap_bits_per_s != super::UNCAPPED {
                self.by_cap.push(place as u32);
            }
        }
        for link in links {
            let shared = &of.links[*link as usize];
            let start = self.members.len();
            self.members.extend(shared.flows.iter().map(|slot| self.place_of_flow[*slot as usize]));
            self.member_ranges.push((start, self.members.len()));
            self.rest.push(shared.capacity_bits_per_s);
            self.rising.push(shared.flows.len() as u64);
        }
        self.rates.resize(flows.len(), 0);
        self.settled.resize(flows.len(), false);
        let caps = &self.caps;
        self.by_cap.sort_by_key(|flow| std::cmp::Reverse(caps[*flow as usize]));
    }

    fn clear(&mut self, links: usize, flows: usize) {
        for list in [&mut self.rest, &mut self.rising, &mut self.caps, &mut self.rates] {
            list.clear();
        }
        for list in [&mut self.members, &mut self.hops, &mut self.by_cap] {
            list.clear();
        }
        self.member_ranges.clear();
        self.hop_ranges.clear();
        self.settled.clear();
        self.place_of_link.resize(links, 0);
        self.place_of_flow.resize(flows, 0);
    }

    /// The link that fills first, with the rate of its rising flows.
    fn first_full(&self) -> Option<(usize, u64)> {
        let share = |link: usize| (self.rising[link] > 0).then(|| self.rest[link] / self.rising[link]);
        (0..self.rest.len()).filter_map(|link| share(link).map(|rate| (link, rate))).min_by_key(|(_, rate)| *rate)
    }

    fn settle(&mut self, flow: u32, rate: u64) {
        if std::mem::replace(&mut self.settled[flow as usize], true) {
            return;
        }
        self.rates[flow as usize] = rate;
        let (start, end) = self.hop_ranges[flow as usize];
        for hop in &self.hops[start..end] {
            self.rest[*hop as usize] -= rate;
            self.rising[*hop as usize] -= 1;
        }
    }
}

/// The max-min fair rates of the part's flows, bits per second.
pub(crate) fn fill(part: &mut Part) -> &[u64] {
    loop {
        while part.by_cap.last().is_some_and(|flow| part.settled[*flow as usize]) {
            part.by_cap.pop();
        }
        let capped = part.by_cap.last().map(|flow| (*flow, part.caps[*flow as usize]));
        match (part.first_full(), capped) {
            (full, Some((flow, cap))) if full.is_none_or(|(_, rate)| cap <= rate) => part.settle(flow, cap),
            (Some((link, rate)), _) => {
                let (start, end) = part.member_ranges[link];
                for at in start..end {
                    part.settle(part.members[at], rate);
                }
            }
            (None, _) => return &part.rates,
        }
    }
}

/// A wrong rule, for canaries: every link is split evenly and nobody gets what others leave.
#[cfg(test)]
pub(super) fn split_evenly(part: &mut Part) -> &[u64] {
    for flow in 0..part.rates.len() {
        let (start, end) = part.hop_ranges[flow];
        let shares = part.hops[start..end].iter().map(|hop| part.rest[*hop as usize] / part.rising[*hop as usize]);
        part.rates[flow] = shares.min().unwrap_or(u64::MAX).min(part.caps[flow]);
    }
    &part.rates
}
