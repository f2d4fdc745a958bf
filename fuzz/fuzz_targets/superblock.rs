//! libFuzzer: arbitrary bytes as a superblock, with and without a right checksum.
//!
//! Owns: nothing; the driver and its rules are shared with the tests on stable. Never: runs in the main build.
//! Invariant: a finding is a file that the driver replays on stable too.
#![no_main]

#[path = "../../crates/volume/tests/fuzz_cases/mod.rs"]
mod fuzz_cases;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = fuzz_cases::superblock(data);
});
