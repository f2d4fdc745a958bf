//! Links and their constants, and the times that follow from them.
//!
//! Owns: SURGE's constants and the integer arithmetic on them. Never: a queue; who waits for whom is a protocol's business.
//! Invariant: all times are integer nanoseconds, rounded down once per frame or message.

use segue_cluster::reserve::Links;
use segue_types::Nanos;
use serde::Serialize;

/// A non-blocking fabric of equal links that drops nothing. Defaults are SURGE's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Fabric {
    /// Raw rate of each link and direction, bits per second.
    pub link_bits_per_s: u64,
    /// Headers and gaps, thousandths of the raw rate.
    pub overhead_permille: u64,
    /// Reserved for control messages, thousandths of what headers leave.
    pub control_permille: u64,
    /// Propagation, nanoseconds.
    pub trip_ns: Nanos,
    /// A control message, bytes.
    pub control_bytes: u64,
    /// A full data frame, bytes.
    pub frame_bytes: u64,
    /// Length of a reservation window over the transfer it is for, thousandths.
    pub window_permille: u64,
}

impl Default for Fabric {
    fn default() -> Fabric {
        Fabric {
            link_bits_per_s: 10_000_000_000,
            overhead_permille: 10,
            control_permille: 100,
            trip_ns: 1_000,
            control_bytes: 300,
            frame_bytes: 9_000,
            window_permille: 1_100,
        }
    }
}

/// What follows from a [`Fabric`]: the rates data and control messages see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    fabric: Fabric,
    data_bits_per_s: u64,
    /// Sending one control message, nanoseconds (2,424 with the defaults).
    pub control_ns: Nanos,
    /// Propagation, nanoseconds.
    pub trip_ns: Nanos,
}

impl Fabric {
    /// The times of this fabric.
    pub const fn timing(&self) -> Timing {
        let useful = self.link_bits_per_s / 1_000 * (1_000 - self.overhead_permille);
        let control = useful / 1_000 * self.control_permille;
        let control_ns = (self.control_bytes as u128 * 8_000_000_000 / control as u128) as Nanos;
        Timing { fabric: *self, data_bits_per_s: useful - control, control_ns, trip_ns: self.trip_ns }
    }
}

impl Timing {
    /// From sending a control message to its being handled, nanoseconds.
    pub const fn message_ns(&self) -> Nanos {
        self.control_ns + self.trip_ns
    }

    /// The transfer of `bytes` as one piece at the data rate, nanoseconds (1 MiB: 941,482). Windows are made of it.
    pub fn transfer_ns(&self, bytes: u64) -> Nanos {
        self.links().transfer_ns(bytes)
    }

    /// The transfer of `bytes` frame by frame, each frame's time rounded down (1 MiB: 941,388), nanoseconds.
    pub fn framed_ns(&self, bytes: u64) -> Nanos {
        self.links().framed_ns(bytes)
    }

    /// The time of one full frame, nanoseconds (8,080).
    pub fn frame_ns(&self) -> Nanos {
        self.links().frame_ns()
    }

    /// A reservation window for `bytes` (SURGE: 10 % over transfer and trip, at least a frame more than the transfer, 20 % for
    /// chunks of few frames), nanoseconds.
    pub fn window_ns(&self, bytes: u64) -> Nanos {
        self.links().window_ns(bytes)
    }

    /// The same as the machines of the reservation protocol take it.
    pub const fn links(&self) -> Links {
        Links {
            control_ns: self.control_ns,
            trip_ns: self.trip_ns,
            data_bits_per_s: self.data_bits_per_s,
            frame_bytes: self.fabric.frame_bytes,
            window_permille: self.fabric.window_permille,
        }
    }

    /// The rate of data, bits per second.
    pub const fn data_bits_per_s(&self) -> u64 {
        self.data_bits_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_surges() {
        let timing = Fabric::default().timing();
        assert_eq!((timing.control_ns, timing.message_ns(), timing.frame_ns()), (2_424, 3_424, 8_080));
        assert_eq!((timing.transfer_ns(1 << 20), timing.transfer_ns(128 << 10)), (941_482, 117_685));
        assert_eq!((timing.framed_ns(1 << 20), timing.framed_ns(128 << 10)), (941_388, 117_673));
        assert_eq!((timing.window_ns(1 << 20), timing.window_ns(128 << 10)), (1_036_730, 130_553));
    }
}
