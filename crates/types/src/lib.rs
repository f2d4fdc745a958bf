//! The nouns every other room shares: ids, units, statuses, names, and the admin API's data.
//!
//! Owns: plain values and their text forms. Never: does I/O, reads a clock, or decides anything.
//! Invariant: a value of a type in this crate is always valid; parsing is the only door in.

pub mod api;
mod export;
mod fault;
mod hex;
mod ids;
pub mod qos;
mod share;
mod status;
mod token;
mod units;

pub use export::{ExportAccess, ExportName, ExportNameError, MAX_NAME_BYTES, check_volume_name};
pub use fault::{FaultKind, ParseTaskKindError, RecoveryLevel, TaskKind};
pub use hex::{hex_decode, hex_encode};
pub use ids::{LayerId, LeaseId, MoveId, ParseLeaseIdError, SuperId, VolumeId};
pub use share::{BURST_MS_MAX, Share, WEIGHT_MAX};
pub use status::IoStatus;
pub use token::{CAVEATS_MAX, Caveat, Cidr, Grant, TOKEN_BYTES_MAX, TOKEN_PREFIX, Token, TokenError, caveats_of};
pub use units::{
    BLOCK_BYTES, BLOCK_SHIFT, Nanos, ParseSizeError, SECTOR_BYTES, format_size, parse_duration_ns, parse_size,
};
