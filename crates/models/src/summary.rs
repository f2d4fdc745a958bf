//! Means over seeds with their intervals.
//!
//! Owns: the names under which models' callers find them. Never: another arithmetic than the statistics' own.
//! Invariant: an interval contains its mean.

pub use segue_des::stats::{Mean, mean, mean_difference, mean_ratio};
