//! What initiators and targets say to each other.
//!
//! Owns: the contents of requests, bids and settlements. Never: their bytes on a wire.
//! Invariant: plain data of fixed size.

use segue_types::Nanos;

/// Most targets of a negotiating group: one bit each.
pub const GROUP_MAX: u32 = 64;
/// Most copies of a chunk.
pub const COPIES_MAX: usize = 8;

/// Names a write. Unique among all initiators that talk to the same targets; the driver's choice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteId(pub u64);

/// A span of time on a link, from the first to before the second, nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// First nanosecond of it.
    pub left_ns: Nanos,
    /// First nanosecond after it.
    pub right_ns: Nanos,
}

impl Window {
    /// Its length, nanoseconds.
    pub const fn length_ns(&self) -> Nanos {
        self.right_ns - self.left_ns
    }
}

/// An initiator's request for windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// For which write.
    pub write: WriteId,
    /// Which of the write's requests this is, from 1.
    pub round: u32,
    /// No window may begin earlier, nanoseconds.
    pub not_before_ns: Nanos,
    /// The transfer takes this long, nanoseconds.
    pub transfer_ns: Nanos,
    /// A window must be this long, nanoseconds.
    pub window_ns: Nanos,
}

/// A window that a target holds for an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bid {
    /// The target, by its place in the group.
    pub member: u8,
    /// The window it holds.
    pub window: Window,
}

/// A window that an initiator accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// The target, by its place in the group.
    pub member: u8,
    /// The part of its bid that will be used.
    pub window: Window,
}

/// The windows that one message accepts; every other receiver's bid is cancelled by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grants {
    of: [Grant; COPIES_MAX],
    count: u8,
}

impl Grants {
    /// None: all bids are cancelled.
    pub const fn none() -> Grants {
        Grants { of: [Grant { member: 0, window: Window { left_ns: 0, right_ns: 0 } }; COPIES_MAX], count: 0 }
    }

    /// Adds one.
    ///
    /// # Panics
    /// When there are [`COPIES_MAX`] already.
    pub fn push(&mut self, grant: Grant) {
        self.of[usize::from(self.count)] = grant;
        self.count += 1;
    }

    /// In order of their windows.
    pub fn as_slice(&self) -> &[Grant] {
        &self.of[..usize::from(self.count)]
    }

    /// What a member of the group was given.
    pub fn of(&self, member: u8) -> Option<Window> {
        self.as_slice().iter().find(|g| g.member == member).map(|g| g.window)
    }
}
