//! Tests of the scheduler: each policy's rules, a naive twin, planted faults.
//!
//! Owns: random and exhaustive histories, and what must hold after each step. Never: ships.
//! Invariant: a failure prints the seed or the history that replays it.

mod canary;
mod history;
mod paper;
mod property;
mod twin;
mod watch;
