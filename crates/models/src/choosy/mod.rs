//! Replicast-H in virtual time: the world around the machines of `cluster::reserve`, and what is measured in it.
//!
//! Owns: messages, transfers and drives of the simulated nodes; the check against golden data. Never: a decision of the protocol.
//! Invariant: the machines that run here are those that ship.

pub mod golden;
pub mod model;
mod world;

pub use world::{Variant, run};
