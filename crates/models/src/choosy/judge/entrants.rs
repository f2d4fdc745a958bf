//! Who is judged.
//!
//! Owns: the list of entrants. Never: a rule of any of them.
//! Invariant: every name is given once.

use crate::choosy::{Variant, run};
use crate::storage::{Outcome, Progress, Scenario, Violation};

/// Runs one seed of an entrant.
pub type RunOne = fn(&Scenario, u64, &mut dyn FnMut(Progress)) -> Result<Outcome, Violation>;

/// A protocol that is judged.
#[derive(Clone, Copy, Debug)]
pub struct Entrant {
    /// Its name in tables and its key in JSON.
    pub name: &'static str,
    /// What its rules are called.
    pub title: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Runs one seed.
    pub run: RunOne,
}

/// The published rules without renegotiation: what all others are compared with.
pub const PLAIN: Entrant = Entrant {
    name: "plain",
    title: "replicast-h",
    about: "Replicast-H as published, renegotiation off",
    run: |scenario, seed, progress| run(Variant::Plain, scenario, seed, progress),
};

/// The published choosy initiator, with its defects.
pub const PUBLISHED: Entrant = Entrant {
    name: "published",
    title: "replicast-h-published",
    about: "the choosy initiator as published, with its defects",
    run: |scenario, seed, progress| run(Variant::Published, scenario, seed, progress),
};

/// The corrected rules without renegotiation.
pub const CORRECTED_PLAIN: Entrant = Entrant {
    name: "corrected-plain",
    title: "replicast-h-corrected-plain",
    about: "Replicast-H corrected, renegotiation off",
    run: |scenario, seed, progress| run(Variant::CorrectedPlain, scenario, seed, progress),
};

/// The choosy initiator without the defects.
pub const CORRECTED: Entrant = Entrant {
    name: "corrected",
    title: "replicast-h-corrected",
    about: "the choosy initiator corrected: no window overlaps, limits truly measured",
    run: |scenario, seed, progress| run(Variant::Corrected, scenario, seed, progress),
};

/// The choosy initiator that the product ships.
pub const BEST: Entrant = Entrant {
    name: "best",
    title: "choosy",
    about: "the choosy initiator that nodes run",
    run: |scenario, seed, progress| run(Variant::Best, scenario, seed, progress),
};

/// Others that were tried. One line each: the stress matrix shows them beside the five above.
pub const CANDIDATES: &[Entrant] = &[];
