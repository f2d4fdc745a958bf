//! Who is where and who may write: today, the reservation of links and drives between initiators and targets.
//!
//! Owns: the machines of the nodes' agreements. Never: a clock, a socket, chance, or a simulation type.
//! Invariant: a machine's output depends only on what it was given.

pub mod choosy;
pub mod reserve;
