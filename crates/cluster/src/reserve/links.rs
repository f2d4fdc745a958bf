//! The times of the fabric that reservations are made of.
//!
//! Owns: SURGE's integer arithmetic on rates and sizes. Never: a queue; who waits for whom is the protocol's business.
//! Invariant: all times are whole nanoseconds, rounded down once per frame or message.

use segue_types::Nanos;

/// Equal links between all nodes: what a message and a transfer take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Links {
    /// Sending one control message, nanoseconds.
    pub control_ns: Nanos,
    /// Propagation, nanoseconds.
    pub trip_ns: Nanos,
    /// The rate of data, bits per second.
    pub data_bits_per_s: u64,
    /// A full data frame, bytes.
    pub frame_bytes: u64,
    /// Length of a window over the transfer it is for, thousandths.
    pub window_permille: u64,
}

/// What a chunk of one size takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Its transfer as one piece at the data rate, nanoseconds.
    pub transfer_ns: Nanos,
    /// The window that is reserved for it, nanoseconds.
    pub window_ns: Nanos,
}

impl Links {
    /// SURGE's: 10 Gbit/s of which 1 % are headers and 10 % of the rest control, 300-byte messages, 9,000-byte frames, 1 us.
    pub const fn surge() -> Links {
        Links {
            control_ns: 2_424,
            trip_ns: 1_000,
            data_bits_per_s: 8_910_000_000,
            frame_bytes: 9_000,
            window_permille: 1_100,
        }
    }

    fn time_ns(&self, bytes: u64) -> Nanos {
        (u128::from(bytes) * 8_000_000_000 / u128::from(self.data_bits_per_s)) as Nanos
    }

    /// From sending a control message to its being handled, nanoseconds (3,424 with SURGE's).
    pub const fn message_ns(&self) -> Nanos {
        self.control_ns + self.trip_ns
    }

    /// The transfer of `bytes` as one piece at the data rate, nanoseconds (1 MiB: 941,482). Windows are made of it.
    pub fn transfer_ns(&self, bytes: u64) -> Nanos {
        self.time_ns(bytes)
    }

    /// The transfer of `bytes` frame by frame, each frame's time rounded down, nanoseconds (1 MiB: 941,388).
    pub fn framed_ns(&self, bytes: u64) -> Nanos {
        bytes / self.frame_bytes * self.frame_ns() + self.time_ns(bytes % self.frame_bytes)
    }

    /// One full frame, nanoseconds (8,080).
    pub fn frame_ns(&self) -> Nanos {
        self.time_ns(self.frame_bytes)
    }

    /// A reservation window for `bytes`, nanoseconds (1 MiB: 1,036,730): 10 % over transfer and trip, at least a frame more
    /// than the transfer, 20 % for chunks of few frames.
    pub fn window_ns(&self, bytes: u64) -> Nanos {
        let (transfer, frame) = (self.transfer_ns(bytes), self.frame_ns());
        let wide = |permille: u64| ((transfer + self.trip_ns) * permille / 1_000).max(transfer + frame);
        let window = wide(self.window_permille);
        if window < 3 * frame { wide(self.window_permille.max(1_200)) } else { window }
    }

    /// Transfer and window of a chunk of `bytes`.
    pub fn span(&self, bytes: u64) -> Span {
        Span { transfer_ns: self.transfer_ns(bytes), window_ns: self.window_ns(bytes) }
    }
}
