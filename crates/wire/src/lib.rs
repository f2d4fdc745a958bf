//! Bytes on the network: session machines that read and write protocols, with no sockets.
//!
//! Owns: the NBD protocol, server and client side. Never: does I/O, reads a clock, or decides who may attach.
//! Invariant: no input makes a machine panic, and none makes it allocate in proportion to what a peer claims.

pub mod nbd;
