//! Reading the data of INFO and GO.
//!
//! Owns: their grammar. Never: allocates.
//! Invariant: data is accepted only when it is used up exactly.

use crate::nbd::proto::*;

/// Information a client asked for beyond what is always sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Wants {
    pub name: bool,
    pub description: bool,
}

/// An error reply and its message.
pub(super) type Bad = (u32, &'static str);

const MALFORMED: Bad = (rep::ERR_INVALID, "the data of this option is malformed");

/// Takes `n` bytes off the front.
pub(super) fn take<'a>(data: &mut &'a [u8], n: usize) -> Result<&'a [u8], Bad> {
    let (head, rest) = data.split_at_checked(n).ok_or(MALFORMED)?;
    *data = rest;
    Ok(head)
}

/// Takes a 32-bit number off the front.
pub(super) fn take_u32(data: &mut &[u8]) -> Result<u32, Bad> {
    Ok(be32(take(data, 4)?, 0))
}

/// Takes a counted string off the front.
pub(super) fn take_str<'a>(data: &mut &'a [u8]) -> Result<&'a str, Bad> {
    let len = take_u32(data)? as usize;
    let bytes = take(data, len)?;
    if len > STRING_MAX_BYTES {
        return Err((rep::ERR_TOO_BIG, "a string is longer than 4096 bytes"));
    }
    std::str::from_utf8(bytes).map_err(|_| (rep::ERR_INVALID, "a string is not UTF-8"))
}

/// Refuses leftovers.
pub(super) fn end(data: &[u8]) -> Result<(), Bad> {
    if data.is_empty() { Ok(()) } else { Err(MALFORMED) }
}

/// Name and wanted information of INFO or GO.
pub(super) fn parse_go(mut data: &[u8]) -> Result<(&str, Wants), Bad> {
    let name = take_str(&mut data)?;
    let count = be16(take(&mut data, 2)?, 0);
    let mut wants = Wants::default();
    for _ in 0..count {
        match be16(take(&mut data, 2)?, 0) {
            info::NAME => wants.name = true,
            info::DESCRIPTION => wants.description = true,
            _ => {}
        }
    }
    end(data)?;
    Ok((name, wants))
}
