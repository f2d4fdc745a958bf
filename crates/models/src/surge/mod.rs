//! The storage models of SURGE (hqr/surge, 2016), by SURGE's names.
//!
//! Owns: their protocols and their worlds. Never: a scenario, a loop or an account; those are `storage`'s.
//! Invariant: what a model takes from SURGE and what it infers is said in its own page.

mod aimd;
mod ccpi;
mod commands;
mod common;
pub mod compare;
pub mod late_reject;
mod ledger;
#[cfg(test)]
mod negotiated_tests;
pub mod proxy;
mod regular;
pub mod replicast;
#[cfg(test)]
mod tests;
mod tiers;
mod unicast;
mod windows;

pub use aimd::MODEL as AIMD;
pub use ccpi::MODEL as CCPI;
pub use late_reject::MODEL as LATE_REJECT;
pub use proxy::MODEL as PROXY;
pub use replicast::MODEL as REPLICAST;
pub use tiers::MODEL as TIERS;
pub use windows::MODEL as WINDOWS;

#[cfg(test)]
const MODELS: &[&crate::storage::registry::Model] = &[&CCPI, &AIMD, &WINDOWS, &TIERS];
