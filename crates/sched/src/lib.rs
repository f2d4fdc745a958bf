//! Which task runs next: recovery groups on resource pools, clean-up after a failed task, and shares of a drive.
//!
//! Owns: the decisions. Never: runs a task, reads a clock, locks, or allocates after its construction.
//! Invariant: a group never holds more resources than its bound, whatever the order of events.

pub mod balance;
pub mod cleanup;
pub mod qos;
pub mod rcs;
pub mod scopes;
