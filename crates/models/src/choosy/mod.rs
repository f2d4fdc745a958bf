//! Negotiated writes in virtual time: the worlds around the machines of `cluster`, and what is measured in them.
//!
//! Owns: messages, transfers and drives of the simulated nodes; the check against golden data. Never: a decision of the protocol.
//! Invariant: the machines that run here are those that ship.

pub mod forecast;
#[cfg(test)]
mod forecast_tests;
pub mod golden;
pub mod judge;
pub mod model;
pub mod scale;
mod variant;
mod world;
#[cfg(test)]
mod world_tests;

pub use variant::{Faults, Variant, run, run_with};
