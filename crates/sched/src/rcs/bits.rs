//! Sets of groups and of pools as bitmaps of a fixed length.
//!
//! Owns: membership and the search for the next member after a place. Never: grows after construction.
//! Invariant: bits at or beyond the length are never set.

/// A set of the numbers below `len`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits {
    words: Box<[u64]>,
    len: usize,
}

impl Bits {
    /// The empty set of numbers below `len`.
    pub fn empty(len: usize) -> Bits {
        Bits { words: vec![0; len.div_ceil(64)].into_boxed_slice(), len }
    }

    /// Puts a number in or takes it out.
    pub fn set(&mut self, n: usize, member: bool) {
        assert!(n < self.len, "{n} is not below {}", self.len);
        let mask = 1u64 << (n % 64);
        if member {
            self.words[n / 64] |= mask;
        } else {
            self.words[n / 64] &= !mask;
        }
    }

    /// True for a member.
    pub fn has(&self, n: usize) -> bool {
        n < self.len && self.words[n / 64] >> (n % 64) & 1 == 1
    }

    /// 64 members at a time: bit `b` of word `w` stands for the number `64 * w + b`.
    pub fn word(&self, w: usize) -> u64 {
        self.words[w]
    }

    /// Words in the map.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// The smallest member.
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// True when no number is a member.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// The members, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        members(self.words.len(), |w| self.words[w])
    }
}

/// The numbers whose bits are set in the words that `word` gives, smallest first.
pub(crate) fn members(words: usize, word: impl Fn(usize) -> u64) -> impl Iterator<Item = usize> {
    (0..words).flat_map(move |w| {
        let mut rest = word(w);
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(64 * w + bit)
        })
    })
}

/// The first number after `after` (wrapping past the end, `after` itself last) whose bit is set in the words that
/// `word` gives. `words` is their count. Looks at each word at most once, the first one twice.
pub(crate) fn next_after(words: usize, after: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
    let start = (after + 1) / 64 % words;
    let low = if (after + 1) / 64 >= words { 0 } else { (after + 1) % 64 };
    let found = |w: usize, bits: u64| (bits != 0).then(|| 64 * w + bits.trailing_zeros() as usize);
    if let Some(n) = found(start, word(start) & (u64::MAX << low)) {
        return Some(n);
    }
    (start + 1..words).chain(0..=start).find_map(|w| found(w, word(w)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_next_after_agrees_with_a_walk() {
        for len in [1usize, 5, 63, 64, 65, 130, 256] {
            for pattern in 0..40u64 {
                let mut bits = Bits::empty(len);
                for n in 0..len {
                    let mixed = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (pattern << 32));
                    bits.set(n, mixed >> 60 < pattern % 17);
                }
                assert_eq!(bits.iter().collect::<Vec<_>>(), (0..len).filter(|n| bits.has(*n)).collect::<Vec<_>>());
                assert_eq!(bits.first().is_none(), bits.is_empty());
                for after in 0..len {
                    let walk = (1..=len).map(|d| (after + d) % len).find(|n| bits.has(*n));
                    assert_eq!(next_after(bits.words(), after, |w| bits.word(w)), walk, "len {len} after {after}");
                }
            }
        }
    }
}
