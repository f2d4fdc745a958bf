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

    /// Adds a number.
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

    fn word(&mut self, word: u64) {
        // Word-wise FNV-1a; the rotation lets high bits reach low ones.
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
