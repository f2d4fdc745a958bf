//! What every model of storage nodes shares: the scenario, the loop in virtual time, and the accounts that are checked in every run.
//!
//! Owns: arrivals, placement, the clockwork of a run, its accounts. Never: a protocol; those are beside it, or in `cluster`.
//! Invariant: one scenario, one model, one seed: one result, on every machine and build.
//!
//! A model implements [`Protocol`] and hands itself to [`run`]; a line in [`registry`] makes it a model of `segue sim`.

mod audit;
mod chunks;
mod fabric;
mod options;
mod outcome;
pub mod registry;
mod scenario;
mod sim;
#[cfg(test)]
mod tests;

pub use audit::{Audit, Carried, Violation, Windows};
pub use chunks::{Chunk, ChunkId};
pub use fabric::{Fabric, Timing};
pub use options::{Key, OptionError, Options};
pub use outcome::{Done, Outcome, Pending};
pub use scenario::{Acknowledge, Arrivals, KEYS, Placement, Scenario, Sizes, Slow};
pub use sim::{Progress, Protocol, Sim, run};
