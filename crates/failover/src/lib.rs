//! Who answers: suspicion, the race between a primary and its backup, and where the endpoint points.
//!
//! Owns: every decision of a failover. Never: probes, starts, stops, reads a clock, or talks to a node by itself.
//! Invariant: the endpoint moves only after `collapse` answered "promoted" or a fence is durable.
//!
//! Start reading at [`race`] (the machine), then [`suspicion`] (what starts it) and [`note`] (what survives a restart).

pub mod limit;
pub mod note;
pub mod race;
pub mod suspicion;
