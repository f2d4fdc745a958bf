//! Secrets from the operating system's randomness.
//!
//! Owns: drawing lease ids. Never: seeds or keeps a generator.
//! Invariant: a lease id carries 128 bits nobody can guess, and is never zero.

use segue_types::LeaseId;
use std::io::Read;

/// A new lease id.
///
/// # Panics
/// When the system has no source of randomness: a node without one cannot keep volumes apart.
pub fn lease_id() -> LeaseId {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    read.expect("the system's randomness");
    LeaseId(u128::from_le_bytes(bytes).max(1))
}
