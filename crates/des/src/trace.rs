//! A hash of everything that happened in a run, to compare runs.
//!
//! Owns: a fixed 64-bit hash (FNV-1a with a final mix). Never: changes between versions or machines.
//! Invariant: equal sequences of inputs give equal values.

/// Feed it every event; two runs of one seed must end with the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHash(u64);

impl Default for TraceHash {
    fn default() -> Self {
        TraceHash::new()
    }
}

impl TraceHash {
    /// The hash of nothing.
    pub const fn new() -> TraceHash {
        TraceHash(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut TraceHash {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.word(u64::from_le_bytes(word.try_into().expect("chunks of 8")));
        }
        for byte in words.remainder() {
            self.word(u64::from(*byte));
        }
        self.word(bytes.len() as u64);
        self
    }

    /// Adds a number: a multiplication and a rotation.
    #[inline]
    pub fn number(&mut self, number: u64) -> &mut TraceHash {
        self.word(number);
        self
    }

    /// The hash of all that was added.
    pub const fn value(&self) -> u64 {
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[inline]
    fn word(&mut self, word: u64) {
        // Word-wise FNV-1a; the rotation lets high bits reach low ones.
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values_never_change() {
        let mut trace = TraceHash::new();
        assert_eq!(trace.value(), 17665956581633026203);
        trace.number(42).number(u64::MAX).bytes(b"a trace");
        assert_eq!(trace.value(), 3653845265488502028, "a change makes every stored trace worthless");
    }

    #[test]
    fn one_bit_of_one_number_in_many_shows() {
        let hash = |changed: Option<(u64, u32)>| {
            let mut trace = TraceHash::new();
            for n in 0..200u64 {
                let bit = changed.filter(|c| c.0 == n).map_or(0, |c| 1 << c.1);
                trace.number((n * 1_000) ^ bit);
            }
            trace.value()
        };
        // Each step is a bijection of what was before, so a single change cannot be lost later.
        let all = hash(None);
        assert!((0..200 * 64).all(|i| hash(Some((i / 64, (i % 64) as u32))) != all));
    }

    #[test]
    fn order_length_and_bits_matter() {
        let hash = |parts: &[&[u8]]| {
            let mut trace = TraceHash::new();
            for part in parts {
                trace.bytes(part);
            }
            trace.value()
        };
        let all = [hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]), hash(&[b"c", b"ab"]), hash(&[]), hash(&[b""])];
        for (i, x) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|y| x != y), "{all:x?}");
        }
        assert_eq!(hash(&[b"123456789"]), hash(&[b"123456789"]));
    }
}
