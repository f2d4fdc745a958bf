//! The published experiments, as models in virtual time around the machines that ship.
//!
//! Owns: the models' parameters, their worlds and their figures. Never: a copy of a decision that a shipped machine makes.
//! Invariant: a seed gives one result.

pub mod choosy;
pub mod hold;
pub mod queues;
pub mod rcs;
pub mod storage;
pub mod summary;
pub mod surge;

pub use segue_des::stats;
pub mod tail;
