//! Priorities and their loop counts.
//!
//! Owns: which of three levels is looked at next. Never: looks into a queue.
//! Invariant: a level that always has work is picked at least once in `(high + 1) * (medium + 1)` picks.

/// How urgent a task is. Orthogonal to its recovery group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Priority {
    /// Looked at [`LoopCounts::high`] times for each look at medium.
    High = 0,
    /// Looked at [`LoopCounts::medium`] times for each look at low.
    Medium = 1,
    /// Looked at once per whole loop.
    Low = 2,
}

impl Priority {
    /// The three levels, most urgent first.
    pub const ALL: [Priority; 3] = [Priority::High, Priority::Medium, Priority::Low];
}

/// The loop counts of the dispatcher (FAST 2008, section 4: HighLoopCount and its siblings). Both at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoopCounts {
    /// Scans of the high queue per scan of the medium queue, 1..=65535.
    pub high: u16,
    /// Scans of the medium queue per scan of the low queue, 1..=65535.
    pub medium: u16,
}

impl Default for LoopCounts {
    fn default() -> Self {
        LoopCounts { high: 8, medium: 4 }
    }
}

/// A place in the nested scan loops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loops {
    high_left: u16,
    medium_left: u16,
}

impl Loops {
    pub const fn new(counts: LoopCounts) -> Loops {
        Loops { high_left: counts.high, medium_left: counts.medium }
    }

    /// The level whose turn it is among those that have work (bit `n` of `work` is level `n`). Scans that would find
    /// nothing are skipped, as the nested loops would pass over them.
    pub fn pick(&mut self, counts: LoopCounts, work: u8) -> Option<usize> {
        if work & 0b111 == 0 {
            return None;
        }
        loop {
            if self.high_left > 0 {
                if work & 0b001 != 0 {
                    self.high_left -= 1;
                    return Some(0);
                }
                self.high_left = 0;
            }
            if self.medium_left > 0 {
                self.medium_left -= 1;
                // After the last scan of medium comes low, not high.
                self.high_left = if self.medium_left > 0 { counts.high } else { 0 };
                if work & 0b010 != 0 {
                    return Some(1);
                }
                if work & 0b001 != 0 && self.medium_left > 0 {
                    continue;
                }
                self.medium_left = 0;
            }
            *self = Loops::new(counts);
            if work & 0b100 != 0 {
                return Some(2);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nested loops as the paper has them, walked scan by scan.
    fn walk(counts: LoopCounts) -> Vec<usize> {
        let mut scans = Vec::new();
        for _ in 0..counts.medium {
            scans.extend(std::iter::repeat_n(0, counts.high.into()));
            scans.push(1);
        }
        scans.push(2);
        scans
    }

    #[test]
    fn model_picks_agree_with_walked_loops() {
        for counts in [(1, 1), (1, 3), (4, 2), (8, 4)].map(|(high, medium)| LoopCounts { high, medium }) {
            let scans = walk(counts);
            let (mut at, mut loops) = (0, Loops::new(counts));
            let mut mixed = 1u64;
            for n in 0..20_000 {
                mixed = mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Long stretches of one set of levels, then quick changes.
                let work = if n % 4_000 < 2_000 { (n / 250) as u8 } else { (mixed >> 61) as u8 } & 0b111;
                let expect = (work != 0).then(|| {
                    while work >> scans[at % scans.len()] & 1 == 0 {
                        at += 1;
                    }
                    at += 1;
                    scans[(at - 1) % scans.len()]
                });
                assert_eq!(loops.pick(counts, work), expect, "{counts:?}, pick {n}");
            }
        }
    }

    #[test]
    fn no_level_starves() {
        let counts = LoopCounts { high: 3, medium: 2 };
        for work in 1..8u8 {
            let mut loops = Loops::new(counts);
            let mut since = [0; 3];
            for _ in 0..1_000 {
                let level = loops.pick(counts, work).unwrap();
                assert!(work >> level & 1 == 1);
                for (n, picks) in since.iter_mut().enumerate() {
                    *picks = if n == level || work >> n & 1 == 0 { 0 } else { *picks + 1 };
                    assert!(*picks < (counts.high + 1) * (counts.medium + 1));
                }
            }
        }
    }
}
