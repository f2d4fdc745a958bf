//! Reading the data of SET_META_CONTEXT and LIST_META_CONTEXT.
//!
//! Owns: their grammar and which queries name `base:allocation`. Never: allocates.
//! Invariant: data is accepted only when it is used up exactly.

use super::options::{Bad, end, take_str, take_u32};
use crate::nbd::proto::BASE_ALLOCATION;

/// The export's name, and whether a query names `base:allocation`. When listing, no query at all means everything
/// and `base:` everything in that namespace.
pub(super) fn parse(mut data: &[u8], set: bool) -> Result<(&str, bool), Bad> {
    let export = take_str(&mut data)?;
    let count = take_u32(&mut data)?;
    let mut chosen = count == 0 && !set;
    // Each query takes at least 4 bytes, so the data that is really here bounds the loop.
    for _ in 0..count {
        let query = take_str(&mut data)?;
        chosen |= query == BASE_ALLOCATION || (!set && query == "base:");
    }
    end(data)?;
    Ok((export, chosen))
}
