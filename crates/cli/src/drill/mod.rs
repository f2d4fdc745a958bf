//! Drills: break the primary under load, measure, and prove that nothing promised was lost.
//!
//! Owns: the load, the ledger, the faults, the measurements and their reports. Never: decides a failover.
//! Invariant: a drill that could not verify its database fails; it never reports zero losses unseen.

pub mod bank;
pub mod db;
#[allow(dead_code)]
pub mod html;
#[allow(dead_code)]
pub mod ledger;
#[allow(dead_code)]
pub mod load;
pub mod load_cmd;
mod maria;
mod pg;
#[allow(dead_code)]
pub mod report;
pub mod verify;
