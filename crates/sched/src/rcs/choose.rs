//! The choice: which group and level a pool serves next, per policy.
//!
//! Owns: the four policies. Never: starts a task or touches a queue.
//! Invariant: `finds` says yes exactly when `choose` would give something.

use super::bits::{members, next_after};
use super::machine::{DispatchKind, Rcs};
use super::{Group, Overflow, Policy};

type Choice = (Group, usize, DispatchKind);

/// Groups that a pool may take from, 64 at a time.
trait Eligible: Fn(usize) -> u64 {}
impl<F: Fn(usize) -> u64> Eligible for F {}

impl Rcs {
    /// Chooses for pool `p`, and moves its cursor, loops and lease along.
    pub(super) fn choose(&mut self, p: usize) -> Option<Choice> {
        match self.policy {
            Policy::Performance => self.choose_oldest(p),
            Policy::Static => self.choose_home(p),
            Policy::PartialDynamic => self.choose_leased(p),
            Policy::Dynamic => self.choose_any(p),
        }
    }

    /// True when [`Rcs::choose`] would find something for pool `p`.
    pub(super) fn finds(&self, p: usize) -> bool {
        let any = |eligible: &dyn Fn(usize) -> u64| {
            (0..self.ready.words())
                .any(|w| eligible(w) & self.waiting.iter().fold(0, |all, level| all | level.word(w)) != 0)
        };
        let home = |w: usize| self.ready.word(w) & self.home.of(p).word(w);
        match self.policy {
            Policy::Performance => self.queues.len() > 0,
            Policy::Static => any(&home),
            Policy::PartialDynamic => any(&home) || any(&self.by_lease(p)),
            Policy::Dynamic => {
                any(&|w| self.ready.word(w)) || self.overflow == Overflow::FewestHeld && any(&|w| self.open.word(w))
            }
        }
    }

    /// The baseline: the oldest task of the level whose turn it is.
    fn choose_oldest(&mut self, p: usize) -> Option<Choice> {
        let level = self.pools[p].loops.pick(self.counts, self.queues.shared_levels())?;
        Some((self.queues.oldest(level)?, level, DispatchKind::Own))
    }

    fn choose_home(&mut self, p: usize) -> Option<Choice> {
        let (g, level) = turn(self, p, |rcs, w| rcs.ready.word(w) & rcs.home.of(p).word(w))?;
        Some((Group(g as u16), level, DispatchKind::Own))
    }

    /// Own groups first; then a lease. A lease that finds nothing is over.
    fn choose_leased(&mut self, p: usize) -> Option<Choice> {
        if self.pools[p].lease_left == 0 {
            if let Some(own) = self.choose_home(p) {
                return Some(own);
            }
            self.pools[p].lease_left = self.lease_dispatches;
        }
        let Some((g, level)) = turn(self, p, |rcs, w| rcs.by_lease(p)(w)) else {
            self.pools[p].lease_left = 0;
            return self.choose_home(p);
        };
        self.pools[p].lease_left -= 1;
        // At home and under its bound, the group needs no lease.
        let own = self.home.of(p).has(g) && self.ready.has(g);
        Some((Group(g as u16), level, if own { DispatchKind::Own } else { DispatchKind::Lease }))
    }

    /// What a lease opens to pool `p`: heavy groups beyond their bound too, the others strictly within.
    fn by_lease(&self, p: usize) -> impl Eligible {
        let (map, open, ready, heavy) = (self.alternative.of(p), &self.open, &self.ready, &self.heavy);
        move |w| map.word(w) & (ready.word(w) | open.word(w) & heavy.word(w))
    }

    fn choose_any(&mut self, p: usize) -> Option<Choice> {
        if let Some((g, level)) = turn(self, p, |rcs, w| rcs.ready.word(w)) {
            return Some((Group(g as u16), level, DispatchKind::Own));
        }
        if self.overflow == Overflow::Never {
            return None;
        }
        let g = self.fewest_held(p)?;
        let level = self.groups[g].loops.pick(self.counts, self.queues.levels(g))?;
        self.pools[p].cursors[level] = g as u16;
        Some((Group(g as u16), level, DispatchKind::Overflow))
    }

    /// Of the groups with work that do not recover, the one that holds the fewest pools; the next in turn among equals.
    /// Looks at each group with work: rare, because every one of them is at its bound.
    fn fewest_held(&self, p: usize) -> Option<usize> {
        let count = self.groups.len();
        let after = usize::from(self.pools[p].cursors[0]) + 1;
        let work = |w: usize| self.open.word(w) & self.waiting.iter().fold(0, |all, level| all | level.word(w));
        members(self.open.words(), work).min_by_key(|g| (self.groups[*g].held(), (g + count - after) % count))
    }
}

/// The level whose turn it is at pool `p` among those where an eligible group has work; the next such group in turn;
/// and the level whose turn it is within this group.
fn turn(rcs: &mut Rcs, p: usize, eligible: impl Fn(&Rcs, usize) -> u64) -> Option<(usize, usize)> {
    let words = rcs.ready.words();
    let mut levels = 0u8;
    for w in 0..words {
        let groups = eligible(rcs, w);
        for (n, level) in rcs.waiting.iter().enumerate() {
            levels |= u8::from(groups & level.word(w) != 0) << n;
        }
    }
    let level = rcs.pools[p].loops.pick(rcs.counts, levels)?;
    let after = usize::from(rcs.pools[p].cursors[level]);
    let g = next_after(words, after, |w| eligible(rcs, w) & rcs.waiting[level].word(w))?;
    rcs.pools[p].cursors[level] = g as u16;
    let level = rcs.groups[g].loops.pick(rcs.counts, rcs.queues.levels(g))?;
    Some((g, level))
}
