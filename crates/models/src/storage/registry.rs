//! The models of `segue sim`.
//!
//! Owns: their list. Never: what one does.
//! Invariant: every name is given once.

use super::audit::Violation;
use super::options::{Key, OptionError, Options};
use super::outcome::Outcome;
use super::scenario::Scenario;
use super::sim::Progress;

/// Why a run gave nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// The settings; correct the named one.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A rule was broken: a bug, to be reported with the command that shows it.
    #[error("an invariant of the simulation does not hold")]
    Violation(#[from] Violation),
}

/// Runs one seed of a model.
pub type Run = fn(&Scenario, Options, u64, &mut dyn FnMut(Progress)) -> Result<Outcome, RunError>;

/// A model of `segue sim`.
#[derive(Clone, Copy)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Its own settings.
    pub keys: &'static [Key],
    /// Runs one seed: takes the model's own settings, after the scenario took the shared ones.
    pub run: Run,
}

/// All models.
pub const MODELS: &[Model] = &[
    crate::surge::CCPI,
    crate::surge::AIMD,
    crate::surge::REPLICAST,
    crate::surge::LATE_REJECT,
    crate::surge::PROXY,
    crate::surge::WINDOWS,
    crate::surge::TIERS,
    crate::choosy::model::REPLICAST_H,
    crate::choosy::model::CHOOSY,
];

/// The model of this name.
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|m| m.name == name)
}
