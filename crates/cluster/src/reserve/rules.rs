//! Which rules the machines follow.
//!
//! Owns: the two named sets of rules and what differs between them. Never: state.
//! Invariant: `published` is SURGE's to the nanosecond; nothing but these fields tells the sets apart.

use super::limit::LimitRule;
use super::links::Links;
use super::message::COPIES_MAX;
use segue_types::Nanos;

/// How long an initiator waits for what may have been lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// For bids, from the request on, nanoseconds; doubled after each request that no target answered.
    pub bids_ns: Nanos,
    /// For the acknowledgement of a copy, from the end of its window on, nanoseconds. More than a drive's longest backlog,
    /// or copies that are only slow are written once more.
    pub acknowledgement_ns: Nanos,
}

/// What both sides follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Copies of each chunk, 1 to [`COPIES_MAX`].
    pub copies: u8,
    /// Whether windows that are too far away are given back and asked for again.
    pub renegotiate: bool,
    /// How the limit of waiting moves.
    pub limit: LimitRule,
    /// The limit at first, nanoseconds.
    pub limit_first_ns: Nanos,
    /// Whether an initiator keeps its own windows apart and measures waiting from their end on.
    pub own_link: bool,
    /// Whether a window that fits between two others also keeps the propagation time before the second.
    pub hole_gap: bool,
    /// Whether targets see at once what an initiator cuts off their bids, as SURGE's do, which share them in memory. Messages can
    /// not do this; a driver that has only messages may leave it, and some windows begin up to 3 us later.
    pub shared_bids: bool,
    /// What may be lost and for how long it is waited; `None`: nothing is ever lost.
    pub patience: Option<Patience>,
    /// Writes of one initiator whose copies are on their way while the next one is negotiated.
    pub outstanding_max: u8,
    /// Windows a target holds at once; it makes no bid when it has as many.
    pub windows_max: u32,
}

impl Rules {
    /// SURGE's when its results were published (March 2016).
    pub const fn published(links: &Links, copies: u8) -> Rules {
        assert!(copies >= 1 && copies as usize <= COPIES_MAX);
        Rules {
            copies,
            renegotiate: true,
            limit: LimitRule::Published,
            limit_first_ns: 6 * links.trip_ns,
            own_link: false,
            hole_gap: false,
            shared_bids: true,
            patience: None,
            outstanding_max: 16,
            windows_max: u32::MAX,
        }
    }

    /// What SURGE's authors describe, without its defects, and safe when messages are lost and targets die.
    pub const fn corrected(links: &Links, copies: u8) -> Rules {
        Rules {
            limit: LimitRule::Observed,
            limit_first_ns: 6 * links.message_ns(),
            own_link: true,
            hole_gap: true,
            shared_bids: false,
            patience: Some(Patience { bids_ns: 4 * links.message_ns(), acknowledgement_ns: 250_000_000 }),
            windows_max: 65_536,
            ..Rules::published(links, copies)
        }
    }

    /// The same without renegotiation.
    pub const fn plain(self) -> Rules {
        Rules { renegotiate: false, ..self }
    }
}
