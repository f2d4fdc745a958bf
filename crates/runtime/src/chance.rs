//! The system's randomness and calendar, for what engines must be told.
//!
//! Owns: drawing secrets and reading the time of day. Never: used to order or time anything.
//! Invariant: a secret has 128 bits that nobody can guess.

use std::time::{SystemTime, UNIX_EPOCH};

/// 128 bits of the system's randomness.
///
/// # Panics
/// When the kernel has no randomness, which it always has after boot.
pub fn secret() -> u128 {
    let mut bytes = [0u8; 16];
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert!(got == 16, "the kernel gives no randomness");
    u128::from_ne_bytes(bytes)
}

/// Milliseconds of Unix time; 0 before 1970.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
