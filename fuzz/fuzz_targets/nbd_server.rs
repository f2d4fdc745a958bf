//! libFuzzer: arbitrary bytes into the NBD server machine.
//!
//! Owns: nothing; the driver and its rules are shared with the tests on stable. Never: runs in the main build.
//! Invariant: a finding is a file that the driver replays on stable too.
#![no_main]

#[path = "../../crates/wire/tests/support/drive.rs"]
mod drive;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    drive::server(data);
});
