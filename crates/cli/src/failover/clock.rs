//! The machine's monotonic clock, and wall time for people.
//!
//! Owns: nothing. Never: compares the two clocks.
//! Invariant: `now_ns` is the same clock in every process of this machine, so timelines of several processes fit together.

use segue_types::Nanos;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> Nanos {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Milliseconds of Unix time.
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
