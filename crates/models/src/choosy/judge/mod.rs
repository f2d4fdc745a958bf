//! The published experiments with Replicast-H and their judging: what is run, and which figures come of it.
//!
//! Owns: the experiments as data, the figures of a run, gains with their intervals. Never: a protocol, a thread, a file.
//! Invariant: a figure of one run depends on the trial, the entrant and the seed alone, so runs may happen in any order.
//!
//! A [`Trial`] is a scenario and the [`Span`]s of creation times whose chunks are looked at; an [`Entrant`] is a protocol that
//! runs it. [`Trial::run`] gives one [`Run`] per seed; [`gain`] and [`cut`] compare the runs of two entrants seed by seed.

mod entrants;
mod gain;
mod published;
mod series;
mod stress;
#[cfg(test)]
mod tests;
mod trial;

pub use entrants::{BEST, CANDIDATES, CORRECTED, CORRECTED_PLAIN, Entrant, PLAIN, PUBLISHED, RunOne};
pub use gain::{Figure, Gain, average, cut, gain};
pub use published::{
    CONFIGURATIONS, Configuration, SURGE_OVER_MS, Surge, SurgeRow, SurgeStart, TAIL_CONFIGURATION, figure_scenario,
};
pub use series::{Point, moving_average, points};
pub use stress::{Stress, matrix};
pub use trial::{Figures, OVER_NS, Run, Sample, Span, Trial, pool};
