//! What a run showed, as figures that can be defended.
//!
//! Owns: moments, quantiles, series, warm-up, intervals, and accounts of what had not finished. Never: decides an event.
//! Invariant: no observation is dropped without being counted as such.
//!
//! Figures use only `+ - * /` and square roots of `f64`, which every machine rounds alike. From one run:
//!
//! 1. Keep a [`Ledger`] of everything in flight; close it at the end of the run.
//! 2. Cut the warm-up: a fixed time that all compared runs share, checked with [`mser5`] on a [`Series`].
//! 3. [`Lives::report`] gives quantiles with and without what was still in flight: both, side by side.
//!
//! Over seeds: [`mean`], and for two variants [`mean_difference`] or [`mean_ratio`] of pairs with equal seeds.
//!
//! ```
//! use segue_des::stats::{Ledger, mean};
//! let mut ledger = Ledger::new();
//! let (first, second) = (ledger.start(0), ledger.start(10));
//! ledger.finish(first, 25);
//! let report = ledger.close(100).since(0).report();
//! assert_eq!((report.started, report.finished, report.in_flight, report.oldest_ns), (2, 1, 1, 90));
//! // What finished took 25 ns; what is known of all is that half of it took longer than 90 ns.
//! assert_eq!(report.naive.p50_ns, 25);
//! assert_eq!(report.estimate.p99_ns, None);
//! assert!(mean(&[1.0, 2.0, 3.0]).contains(2.5));
//! # let _ = second;
//! ```

mod batch;
mod csv;
mod exact;
mod hdr;
mod ledger;
mod mean;
mod moments;
mod series;
mod survival;
mod warmup;

pub use batch::{Batches, batch_means};
pub use csv::{Cell, Table};
pub use exact::{Exact, P50, P90, P95, P99, P999, Quantiles};
pub use hdr::Hdr;
pub use ledger::{Account, Flight, Ledger, Lives, Report};
pub use mean::{Confidence, Mean, mean, mean_at, mean_difference, mean_ratio};
pub use moments::{Moments, MomentsRow};
pub use series::{Bucket, Series};
pub use survival::{Estimate, Survival};
pub use warmup::{Truncation, WarmUpError, mser5};
