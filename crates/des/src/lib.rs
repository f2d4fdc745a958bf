//! Virtual time: an event queue, seeded chance, a trace hash; links, drives and nodes with faults; statistics.
//!
//! Owns: the simulated world's clockwork. Never: knows what it drives; machines and checks belong to their tests.
//! Invariant: same seed, same calls, same results, on every machine.
//!
//! A simulation is a plain loop: pop the earliest event, step the machine, put what it commands into the queue. What it
//! showed is the business of [`stats`].
//!
//! ```
//! use segue_des::{Chance, Queue, TraceHash};
//! let chance = Chance::new(42);
//! let mut arrivals = chance.stream("arrivals");
//! let mut queue = Queue::new();
//! let mut trace = TraceHash::new();
//! queue.at(arrivals.below(1_000), "first");
//! queue.at(arrivals.below(1_000), "second");
//! while let Some((now, what)) = queue.pop() {
//!     trace.number(now).bytes(what.as_bytes());
//! }
//! assert!(queue.is_empty());
//! ```
//!
//! Links ([`Link`], [`Flows`]), drives as times ([`Store`]) or as content ([`Drive`]) and nodes ([`Host`]) are plain objects
//! that own no queue: they say when something ends, and the loop schedules it.

mod chance;
mod dist;
mod drive;
mod flows;
mod frames;
mod framing;
mod hint;
mod host;
mod image;
mod ladder;
mod link;
mod queue;
mod span;
pub mod stats;
mod store;
mod trace;

pub use chance::Chance;
pub use dist::{Dist, DistError, Empirical, Weighted};
pub use drive::{Cut, Drive, DriveOp, DriveStats, Ended, Faults, POWER_IS_OFF_ERRNO, Timing};
pub use flows::{FlowId, Flows, UNCAPPED};
pub use frames::{FrameFlow, FrameNet};
pub use framing::{Framing, bytes_ns};
pub use hint::{prefetch, prefetch_at};
pub use host::{Delivery, Host, HostClock, Life};
pub use image::Image;
pub use link::{Class, Link, LinkSpec, LinkStats, MILLION, Sent};
pub use queue::{EventId, Queue, Ties};
pub use span::Span;
pub use store::{Failing, Policy, Served, Store, StoreSpec, StoreStats};
pub use trace::TraceHash;
