//! Drills: break the primary under load, measure, and prove that nothing promised was lost.
//!
//! Owns: the load, the ledger, the faults, the measurements and their reports. Never: decides a failover.
//! Invariant: a drill that could not verify its database fails; it never reports zero losses unseen.

pub mod bank;
pub mod cmd;
pub mod db;
pub mod exec;
pub mod fault;
pub mod html;
pub mod ledger;
pub mod load;
pub mod load_cmd;
mod maria;
mod pg;
pub mod report;
pub mod verify;
