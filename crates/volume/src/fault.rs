//! Faults on purpose: which task of a machine panics, and at which point of its way.
//!
//! Owns: the seeded choice, and the panic itself. Never: strikes when it is off, or recovers from what it did.
//! Invariant: off, a point costs one branch; on, the same seed and the same steps strike at the same points.

use segue_types::{FaultKind, TaskKind};

/// Points that a task may still pass after the draw that dooms it, so that faults are spread through its steps.
const POINTS_MAX: u64 = 6;
const KINDS: usize = TaskKind::ALL.len();

/// What an injected fault of [`FaultKind::Panic`] throws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InjectedFault {
    /// The task that was doomed.
    pub task: TaskKind,
    /// Where on its way it was, in words for people.
    pub place: &'static str,
}

/// The machine that dooms tasks. Part of a machine's input: it is stepped with it, and seeded by the driver.
#[derive(Clone, Debug)]
pub struct Faults {
    on: bool,
    kind: FaultKind,
    /// One task in so many is doomed; 0 is none.
    one_in: [u64; KINDS],
    /// Points that a doomed task of this kind may still pass, plus one; 0 when none is doomed.
    doomed: [u64; KINDS],
    /// Strikes at the point with this number, whatever the task; 0 is never.
    countdown: u64,
    random: u64,
    struck: u64,
    passed: u64,
}

impl Faults {
    /// No faults, and no cost.
    pub const OFF: Faults = Faults {
        on: false,
        kind: FaultKind::Panic,
        one_in: [0; KINDS],
        doomed: [0; KINDS],
        countdown: 0,
        random: 0,
        struck: 0,
        passed: 0,
    };

    /// Dooms tasks by chance; call [`Faults::set`] for each kind.
    pub fn seeded(seed: u64, kind: FaultKind) -> Faults {
        Faults { on: true, kind, random: seed, ..Faults::OFF }
    }

    /// Strikes once, at the `nth` point that is passed from now on (from 1), whatever the task.
    pub fn at_point(nth: u64, kind: FaultKind) -> Faults {
        Faults { on: true, kind, countdown: nth, ..Faults::OFF }
    }

    /// From now on one task of this kind in `one_in` is doomed; 0 for none.
    pub fn set(&mut self, task: TaskKind, one_in: u64) {
        self.one_in[task as usize] = one_in;
        self.doomed[task as usize] = 0;
    }

    /// The same with a luck of its own.
    #[must_use]
    pub fn reseeded(&self, stream: u64) -> Faults {
        let mut own = self.clone();
        own.random = own.random.wrapping_add(stream.wrapping_mul(0x2545_f491_4f6c_dd1d));
        own.random = own.draw();
        own
    }

    /// True when something may strike.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// True when a fault tells at which point it struck, so that a recovery may rely on the point. A bug would not.
    pub fn tells(&self) -> bool {
        self.kind == FaultKind::Panic
    }

    /// Faults so far.
    pub fn struck(&self) -> u64 {
        self.struck
    }

    /// Points passed so far, struck or not.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// A task of this kind passes a point; the first of its way is its `entry`.
    ///
    /// # Panics
    /// When the task is doomed: that is what it is for.
    #[inline]
    pub fn point(&mut self, task: TaskKind, place: &'static str, entry: bool) {
        if self.on && self.strikes(task, entry) {
            self.strike(task, place);
        }
    }

    #[cold]
    fn strikes(&mut self, task: TaskKind, entry: bool) -> bool {
        self.passed += 1;
        if self.countdown > 0 {
            self.countdown -= 1;
            return self.countdown == 0;
        }
        let at = task as usize;
        if self.doomed[at] > 0 {
            self.doomed[at] -= 1;
            return self.doomed[at] == 0;
        }
        if entry && self.one_in[at] > 0 && self.draw().is_multiple_of(self.one_in[at]) {
            self.doomed[at] = self.draw() % POINTS_MAX;
            return self.doomed[at] == 0;
        }
        false
    }

    #[cold]
    fn strike(&mut self, task: TaskKind, place: &'static str) {
        self.struck += 1;
        match self.kind {
            FaultKind::Panic => std::panic::panic_any(InjectedFault { task, place }),
            FaultKind::Invariant => panic!("an invariant does not hold (injected): {task} {place}"),
        }
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_rate_is_per_task_and_points_are_spread() {
        let mut faults = Faults::seeded(7, FaultKind::Panic);
        faults.set(TaskKind::Write, 100);
        let (mut struck, mut places) = (0, [0; 4]);
        for _ in 0..100_000 {
            for (at, count) in places.iter_mut().enumerate() {
                if faults.strikes(TaskKind::Write, at == 0) {
                    struck += 1;
                    *count += 1;
                }
            }
            assert!(!faults.strikes(TaskKind::Read, true), "a kind that is not asked for");
        }
        assert!((800..1200).contains(&struck), "{struck} of 1000 expected");
        assert!(places.iter().all(|n| *n > 100), "{places:?}");
    }

    #[test]
    fn fault_strikes_once_at_the_point_that_was_named() {
        let mut faults = Faults::at_point(3, FaultKind::Invariant);
        let strikes: Vec<bool> = (0..6).map(|_| faults.strikes(TaskKind::Scrub, true)).collect();
        assert_eq!(strikes, [false, false, true, false, false, false]);
        assert_eq!(faults.passed(), 6);
    }
}
