//! How long an initiator waits for a window before it asks again.
//!
//! Owns: one initiator's limit. Never: measures; waits are told to it.
//! Invariant: the observed limit is never below where it began.

use segue_types::Nanos;

/// How the limit moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitRule {
    /// SURGE's code: a wait of twice the limit is too long and doubles it; each write begins with the average of the limits of
    /// the last two. It never measures anything.
    Published,
    /// SURGE's text: a wait of the limit is too long and doubles it; each copy's accepted wait is averaged with it.
    Observed,
}

/// One initiator's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    rule: LimitRule,
    first_ns: Nanos,
    limit_ns: Nanos,
    last_ns: Nanos,
}

impl Limit {
    /// A limit that begins at `first_ns`.
    pub const fn new(rule: LimitRule, first_ns: Nanos) -> Limit {
        Limit { rule, first_ns, limit_ns: first_ns, last_ns: first_ns }
    }

    /// The limit now, nanoseconds.
    pub const fn ns(&self) -> Nanos {
        self.limit_ns
    }

    /// A write begins.
    pub const fn begin(&mut self) {
        if let LimitRule::Published = self.rule {
            (self.limit_ns, self.last_ns) = (self.limit_ns.midpoint(self.last_ns), self.limit_ns);
        }
    }

    /// Whether a wait is too long; if it is, the limit is doubled.
    pub const fn exceeded(&mut self, wait_ns: Nanos) -> bool {
        let bound_ns = match self.rule {
            LimitRule::Published => 2 * self.limit_ns,
            LimitRule::Observed => self.limit_ns,
        };
        let exceeded = wait_ns >= bound_ns;
        if exceeded {
            self.limit_ns *= 2;
        }
        exceeded
    }

    /// A window was accepted. `wait_ns` is what the copy waited, all requests for it together, beyond the end of the initiator's
    /// own windows.
    pub fn waited(&mut self, wait_ns: Nanos) {
        if self.rule == LimitRule::Observed {
            self.limit_ns = self.limit_ns.midpoint(wait_ns).max(self.first_ns);
        }
    }
}
