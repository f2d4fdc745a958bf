//! Reservations with latency targets: tokens, deadlines, and what is left for everybody else.
//!
//! Owns: the tokens of each reservation and the spare tokens of the drive. Never: promises; admission does.
//! Invariant: a volume within its tokens passes before all others, the earliest deadline first; what reservations leave
//! unused is donated.
//!
//! After ReFlex (Klimovic, Litz, Kozyrakis, ASPLOS 2017), with earliest deadline first among those with tokens.

use super::cost::{Charge, READ_4K};
use super::drr::Drr;
use super::policy::{Pick, Policy};
use super::queue::Item;
use super::tree::Tree;
use segue_types::{Nanos, Share};

const SECOND_NS: u64 = 1_000_000_000;
/// Time between donations, ns.
const DONATE_NS: Nanos = 1_000_000;
/// Latency aimed at by a reservation without a target, ns.
const TARGET_NS_DEFAULT: Nanos = 10_000_000;
/// Tokens are kept for this long at most, then donated: 1/100 s of the rate, and a few requests.
const KEEP_PER_S: i64 = 100;
/// A deficit may be 1/500 s of the rate, and a few requests.
const DEFICIT_PER_S: i64 = 500;
const FEW: i64 = 4 * READ_4K as i64;

#[derive(Clone, Copy, Default)]
struct Account {
    /// Cost units per second; 0: served from what is left.
    rate: i64,
    target_ns: Nanos,
    tokens: i64,
    touched: Nanos,
    /// Of the request at its head.
    deadline: Nanos,
}

impl Account {
    fn refill(&mut self, now: Nanos) {
        if self.rate == 0 || now <= self.touched {
            return;
        }
        let span = (now - self.touched).min(SECOND_NS);
        let more = (span as u128 * self.rate as u128 / SECOND_NS as u128) as i64;
        if more > 0 {
            // What the division left over stays for the next time.
            let used = (more as u128 * SECOND_NS as u128 / self.rate as u128) as u64;
            self.touched = if span == SECOND_NS { now } else { self.touched + used };
            self.tokens += more;
        }
    }

    fn floor(&self) -> i64 {
        -(self.rate / DEFICIT_PER_S + FEW)
    }

    /// When it has tokens again; now or before when it has.
    fn solvent_at(&self, now: Nanos) -> Nanos {
        let short = self.floor() + 1 - self.tokens;
        if short <= 0 { now } else { now + (short as u128 * SECOND_NS as u128 / self.rate as u128) as u64 + 1 }
    }
}

pub(super) struct Slo {
    accounts: Vec<Account>,
    /// Within their tokens, by deadline.
    deadlines: Tree,
    /// Beyond their tokens, by when they have some again; these are in `rest` meanwhile.
    refills: Tree,
    rest: Drr,
    capacity: i64,
    spare: Account,
    donated: Nanos,
    from_rest: bool,
}

impl Slo {
    pub(super) fn new(slots: usize) -> Slo {
        Slo {
            accounts: vec![Account::default(); slots],
            deadlines: Tree::new(slots),
            refills: Tree::new(slots),
            rest: Drr::new(slots),
            capacity: 0,
            spare: Account::default(),
            donated: 0,
            from_rest: false,
        }
    }

    fn split(&mut self) {
        let reserved: i64 = self.accounts.iter().map(|account| account.rate).sum();
        // A hundredth is left in any case, so that nobody starves.
        self.spare.rate = if self.capacity == 0 { 0 } else { (self.capacity - reserved).max(self.capacity / 100 + 1) };
    }

    fn place(&mut self, slot: usize, head: &Item, now: Nanos) {
        let account = &mut self.accounts[slot];
        account.refill(now);
        account.deadline = head.arrived + account.target_ns;
        if account.rate > 0 && account.solvent_at(now) <= now {
            self.rest.gone(slot);
            self.refills.remove(slot);
            self.deadlines.set(slot, account.deadline);
            return;
        }
        self.deadlines.remove(slot);
        if account.rate > 0 {
            let at = account.solvent_at(now);
            self.refills.set(slot, at);
        }
        self.rest.ready(slot, head, now);
    }

    /// Tokens that nobody used in time go to who has none.
    fn donate(&mut self, now: Nanos) {
        self.donated = now;
        self.spare.refill(now);
        for account in self.accounts.iter_mut().filter(|account| account.rate > 0) {
            account.refill(now);
            let keep = account.rate / KEEP_PER_S + FEW;
            if account.tokens > keep {
                self.spare.tokens += account.tokens - keep;
                account.tokens = keep;
            }
        }
        self.spare.tokens = self.spare.tokens.min(self.capacity / KEEP_PER_S + FEW);
    }
}

impl Policy for Slo {
    fn set(&mut self, slot: usize, share: &Share, now: Nanos) {
        let account = &mut self.accounts[slot];
        account.refill(now);
        let rate = share.reserve_iops.saturating_mul(READ_4K).min(1 << 40) as i64;
        if account.rate == 0 {
            (account.touched, account.tokens) = (now, 0);
        }
        account.rate = rate;
        account.target_ns = match share.latency_target_us {
            0 => TARGET_NS_DEFAULT,
            us => us as Nanos * 1000,
        };
        self.rest.set(slot, share, now);
        self.split();
    }

    fn close(&mut self, slot: usize, now: Nanos) {
        self.accounts[slot] = Account::default();
        self.rest.close(slot, now);
        self.split();
    }

    fn set_capacity(&mut self, cost_per_s: u64) {
        self.capacity = cost_per_s as i64;
        self.split();
    }

    fn ready(&mut self, slot: usize, head: &Item, now: Nanos) {
        self.place(slot, head, now);
    }

    fn gone(&mut self, slot: usize) {
        self.deadlines.remove(slot);
        self.refills.remove(slot);
        self.rest.gone(slot);
    }

    fn pick(&mut self, now: Nanos) -> Pick {
        if now >= self.donated + DONATE_NS {
            self.donate(now);
        }
        self.spare.refill(now);
        while let Some((slot, at)) = self.refills.first()
            && at <= now
        {
            self.refills.remove(slot);
            self.rest.gone(slot);
            self.accounts[slot].refill(now);
            self.deadlines.set(slot, self.accounts[slot].deadline);
        }
        if let Some((slot, _)) = self.deadlines.first() {
            self.from_rest = false;
            return Pick::Slot(slot);
        }
        let spare_at = match self.spare.rate {
            0 => now,
            rate if self.spare.tokens <= 0 => now + ((1 - self.spare.tokens) * SECOND_NS as i64 / rate) as u64 + 1,
            _ => now,
        };
        match self.rest.pick(now) {
            Pick::Slot(slot) if spare_at <= now => {
                self.from_rest = true;
                Pick::Slot(slot)
            }
            Pick::Slot(_) => Pick::At(self.refills.first().map_or(spare_at, |(_, at)| at.min(spare_at))),
            other => other,
        }
    }

    fn pick_instead(&mut self, slot: usize) -> bool {
        self.from_rest = !self.deadlines.has(slot);
        true
    }

    fn passed(&mut self, slot: usize, charge: &Charge, next: Option<&Item>, now: Nanos) {
        let cost = charge.cost as i64;
        if self.from_rest {
            self.rest.passed(slot, charge, next, now);
            self.spare.tokens -= if self.spare.rate > 0 { cost } else { 0 };
        } else {
            self.accounts[slot].tokens -= cost;
        }
        match next {
            Some(head) => self.place(slot, head, now),
            None => self.gone(slot),
        }
    }

    fn direct(&mut self, slot: usize, charge: &Charge, now: Nanos) -> bool {
        let account = &mut self.accounts[slot];
        account.refill(now);
        self.spare.refill(now);
        if account.rate > 0 && account.solvent_at(now) <= now {
            account.tokens -= charge.cost as i64;
            return true;
        }
        if self.spare.rate > 0 && self.spare.tokens <= 0 {
            return false;
        }
        self.spare.tokens -= if self.spare.rate > 0 { charge.cost as i64 } else { 0 };
        true
    }

    fn extra(&mut self, slot: usize, cost: u64) {
        if self.accounts[slot].rate > 0 {
            self.accounts[slot].tokens -= cost as i64;
        } else {
            self.rest.extra(slot, cost);
        }
    }

    fn was_reserved(&self) -> bool {
        !self.from_rest
    }
}
