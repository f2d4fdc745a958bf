//! The machine's monotonic clock, and wall time for people.
//!
//! Owns: nothing. Never: compares the two clocks.
//! Invariant: `now_ns` is the same clock in every process of this machine, so timelines of several processes fit together.

use segue_types::Nanos;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> Nanos {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a live timespec for the whole call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    assert_eq!(failed, 0, "every Linux has this clock");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Milliseconds of Unix time.
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
