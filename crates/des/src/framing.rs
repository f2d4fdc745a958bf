//! How bytes become frames and frames become nanoseconds.
//!
//! Owns: the arithmetic of a link's rate, headers and reserved share. Never: keeps state.
//! Invariant: the time of a transfer is the sum of its frames' times, each rounded down to whole nanoseconds.

use segue_types::Nanos;

/// Nanoseconds in a second.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Nanoseconds that `bytes` take at `bits_per_s`, rounded down.
///
/// # Panics
/// When the rate is 0.
pub fn bytes_ns(bytes: u64, bits_per_s: u64) -> Nanos {
    let ns = u128::from(bytes) * u128::from(8 * SECOND_NS) / u128::from(bits_per_s);
    u64::try_from(ns).expect("a transfer of less than 584 years")
}

/// What a link carries and what it keeps for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Bits on the wire per second and direction.
    pub bits_per_s: u64,
    /// Payload of a full frame, bytes.
    pub frame_bytes: u64,
    /// Share of the bandwidth that headers take, permille.
    pub overhead_permille: u64,
    /// Share of what is left that is reserved for control messages, permille. 0: control shares the data's queue.
    pub control_permille: u64,
}

impl Framing {
    /// SURGE's network (reference 1.1): 10 Gbit/s, 9,000-byte frames, 1 % for headers, 10 % for control.
    pub const SURGE: Framing =
        Framing { bits_per_s: 10_000_000_000, frame_bytes: 9000, overhead_permille: 10, control_permille: 100 };

    /// Bits per second without headers.
    pub const fn payload_bits_per_s(&self) -> u64 {
        self.bits_per_s / 1000 * (1000 - self.overhead_permille)
    }

    /// Bits per second for data.
    pub const fn data_bits_per_s(&self) -> u64 {
        self.payload_bits_per_s() / 1000 * (1000 - self.control_permille)
    }

    /// Bits per second for control messages: the reserved share, or all where nothing is reserved.
    pub const fn control_bits_per_s(&self) -> u64 {
        match self.control_permille {
            0 => self.payload_bits_per_s(),
            permille => self.payload_bits_per_s() / 1000 * permille,
        }
    }

    /// Frames of a transfer; the last may be short.
    pub const fn frames(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.frame_bytes)
    }

    /// Time of one full data frame.
    pub fn frame_ns(&self) -> Nanos {
        bytes_ns(self.frame_bytes, self.data_bits_per_s())
    }

    /// Time on the link of `bytes` of data sent back to back at the link's full data rate.
    pub fn data_ns(&self, bytes: u64) -> Nanos {
        let rest = bytes_ns(bytes % self.frame_bytes, self.data_bits_per_s());
        bytes / self.frame_bytes * self.frame_ns() + rest
    }

    /// Time on the link of one control message.
    pub fn control_ns(&self, bytes: u64) -> Nanos {
        bytes_ns(bytes, self.control_bits_per_s())
    }

    /// Checks the fields.
    ///
    /// # Panics
    /// When no bandwidth is left, frames hold nothing, or a share is not one.
    pub fn check(&self) {
        assert!(self.overhead_permille < 1000 && self.control_permille < 1000, "{self:?}: a share of the whole");
        assert!(self.frame_bytes > 0 && self.data_bits_per_s() > 0, "{self:?} carries nothing");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_surges_constants() {
        let f = Framing::SURGE;
        assert_eq!((f.payload_bits_per_s(), f.data_bits_per_s()), (9_900_000_000, 8_910_000_000));
        assert_eq!((f.control_bits_per_s(), f.control_ns(300)), (990_000_000, 2424));
        assert_eq!((f.frame_ns(), f.frames(1 << 20)), (8080, 117));
        // The reference's sums of floored frame times (3.2), and the undivided transfers (1.2).
        assert_eq!((f.data_ns(1 << 20), f.data_ns(128 << 10)), (941_388, 117_673));
        assert_eq!((bytes_ns(1 << 20, 8_910_000_000), bytes_ns(128 << 10, 8_910_000_000)), (941_482, 117_685));
    }

    #[test]
    fn model_a_transfer_is_the_sum_of_its_frames() {
        let mut chance = crate::Chance::new(5);
        for _ in 0..500 {
            let framing = Framing {
                bits_per_s: chance.between(1, 400) * 1_000_000_000,
                frame_bytes: chance.between(1, 9000),
                overhead_permille: chance.below(100),
                control_permille: chance.below(500),
            };
            framing.check();
            let bytes = chance.below(300_000);
            let (mut left, mut ns, mut frames) = (bytes, 0, 0);
            while left > 0 {
                let frame = left.min(framing.frame_bytes);
                ns += bytes_ns(frame, framing.data_bits_per_s());
                left -= frame;
                frames += 1;
            }
            assert_eq!((framing.data_ns(bytes), framing.frames(bytes)), (ns, frames), "{framing:?} {bytes}");
        }
    }
}
