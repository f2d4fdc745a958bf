//! Isolation of the tenants of a drive: whose request goes to it next.
//!
//! Owns: the policies, the limits, the cost model and the governor of one drive. Never: does I/O, or sees a request's bytes.
//! Invariant: every request that was enqueued is handed out once, those of one volume in order, and never above a limit.
//!
//! Reading order: [`cost`](CostModel) (what a request costs), `params` (policies and refusals), `bucket` (limits),
//! `governor` (the drive's window), [`DriveShare`] (the machine), then the policies: `policy` (the interface, and
//! `fifo`), `strict`, `drr`, `slo`, `mclock`.

mod bucket;
mod cost;
mod drr;
mod governor;
mod mclock;
mod params;
mod policy;
mod queue;
mod share;
mod slo;
mod stats;
mod strict;
mod tree;

pub use cost::{Charge, CostModel, Kind, READ_4K};
pub use governor::GovernorParams;
pub use params::{PolicyKind, Reason, ShareError};
pub use queue::Item;
pub use share::{DriveShare, ShareOptions, Slot};
pub use stats::{DriveStats, VolumeStats};
