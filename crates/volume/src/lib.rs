//! What a volume is: blocks, checksums, layers, journal, `super` and `collapse`, as one state machine per pool.
//!
//! Owns: the bytes on the drive and every decision about them. Never: reads a clock, draws chance, or does I/O by itself.
//! Invariant: after any power cut each block holds its last flushed value or a later one, whole, and of its own volume.
//!
//! Start reading at [`op`] (what goes in and comes out) and [`engine`] (the machine).

pub mod device;
pub mod engine;
pub mod fault;
pub mod home;
pub mod mem;
pub mod migrate;
pub mod op;
pub mod superposition;

mod alloc;
mod cache;
mod catalog;
mod check;
mod codec;
mod crc;
mod crypt;
mod entry;
mod journal;
mod layout;
mod move_op;
mod moving;
mod settings;

pub use catalog::VOLUME_BYTES_MAX;
pub use check::{CheckReport, Finding, check};
pub use crypt::{NewEncryption, SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret};
pub use journal::{probe_changes, probe_record};
pub use layout::{FORMAT_VERSION, POOL_BYTES_MAX, POOL_BYTES_MIN, SLICES_MAX, SuperblockError, superblock_round_trip};
