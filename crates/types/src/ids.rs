//! Identifiers of volumes, layers, leases, superpositions and moves.
//!
//! Owns: the newtypes and their text forms. Never: generates one; randomness belongs to drivers.
//! Invariant: two ids of different kinds never compare or convert into each other silently.

use std::fmt;
use std::str::FromStr;

/// A volume in one pool. Never reused within a pool. 0 is never a valid id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId(pub u64);

/// A layer (one sparse map of blocks) in one pool. Never reused within a pool. 0 is never valid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LayerId(pub u64);

/// A superposition of a group of volumes. Never reused within a pool. 0 is never valid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SuperId(pub u64);

/// A move of a volume from one pool to another: a number drawn at random, equal in both pools' records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MoveId(pub u64);

/// The right to write one version of one volume: a secret 128-bit number, 32 hex digits as text.
///
/// Whoever knows it may attach with it, so drivers draw it from the system's randomness.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u128);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l{}", self.0)
    }
}

impl fmt::Display for SuperId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{:016x}", self.0)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Shows only the first four digits: a lease is a secret and must not reach a log whole.
impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({:04x}..)", self.0 >> 112)
    }
}

/// The text was not 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a lease id is 32 hexadecimal digits")]
pub struct ParseLeaseIdError;

impl FromStr for LeaseId {
    type Err = ParseLeaseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        if !hex {
            return Err(ParseLeaseIdError);
        }
        u128::from_str_radix(text, 16).map(LeaseId).map_err(|_| ParseLeaseIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_id_round_trips_and_refuses_noise() {
        let id = LeaseId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string().parse::<LeaseId>(), Ok(id));
        for bad in ["", "12", "+1234567890123456789012345678901", "g1234567890123456789012345678901"] {
            assert_eq!(bad.parse::<LeaseId>(), Err(ParseLeaseIdError), "{bad}");
        }
        assert!(!format!("{id:?}").contains("89ab"));
    }
}
