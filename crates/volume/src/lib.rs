//! What a volume is: blocks, checksums, layers, journal, `super` and `collapse`, as one state machine per pool.
//!
//! Owns: the bytes on the drive and every decision about them. Never: reads a clock, draws chance, or does I/O by itself.
//! Invariant: after any power cut each block holds its last flushed value or a later one, whole, and of its own volume.
//!
//! Start reading at [`op`] (what goes in and comes out) and `engine` (the machine).

pub mod device;
pub mod mem;
pub mod op;
pub mod superposition;
