//! Who is judged.
//!
//! Owns: the list of entrants. Never: a rule of any of them.
//! Invariant: every name is given once.

use crate::choosy::forecast::{self, Settings};
use crate::choosy::{Variant, run};
use crate::storage::{Outcome, Progress, Scenario, Violation};
use segue_cluster::choosy::Choose;

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

/// Runs the choosy initiator with one thing changed.
fn changed(
    change: impl FnOnce(&mut Settings),
    scenario: &Scenario,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, Violation> {
    let mut settings = Settings::of(scenario);
    change(&mut settings);
    forecast::simulate(&settings, scenario, seed, progress)
}

macro_rules! candidate {
    ($name:literal, $title:literal, $about:literal, $change:expr) => {
        Entrant {
            name: $name,
            title: $title,
            about: $about,
            run: |scenario, seed, progress| changed($change, scenario, seed, progress),
        }
    };
}

/// Others that were tried, each the shipped initiator with one thing changed. One line each: the stress matrix shows them
/// beside the five above.
pub const CANDIDATES: &[Entrant] = &[
    candidate!("one-group", "choosy, one group", "candidates are one group, as in Replicast-H", |s| s.groups = 1),
    candidate!("three-groups", "choosy, three groups", "candidates are three groups", |s| s.groups = 3),
    candidate!("ask-3", "choosy, asks 3", "three targets are asked per round", |s| s.policy.asked = 3),
    candidate!("ask-18", "choosy, asks 18", "all candidates are asked in every round", |s| s.policy.asked = 18),
    candidate!(
        "earliest-start",
        "choosy, earliest start",
        "the offer that starts first, whatever its drive has to do",
        |s| {
            s.policy.choose = Choose::Start;
        }
    ),
    candidate!(
        "earliest-medium",
        "choosy, earliest end",
        "the offer that ends first, not the least delay of the write",
        |s| {
            s.policy.choose = Choose::Medium;
        }
    ),
    candidate!("hold", "choosy, offers held", "each offer is held for its asker, as in Replicast-H", |s| s
        .policy
        .hold =
        true),
    candidate!("together", "choosy, copies together", "all copies are negotiated in one round", |s| s
        .policy
        .together =
        true),
    candidate!("once", "choosy, never again", "late offers are accepted, the rest is never asked", |s| s
        .policy
        .again =
        false),
    candidate!(
        "slack",
        "choosy, wide windows",
        "windows 10 % longer than transfers; what is left is released early",
        |s| {
            s.policy.slack_permille = 100;
        }
    ),
    candidate!(
        "control-queues",
        "choosy, control charged",
        "control messages wait for each other on the control share",
        |s| {
            s.control_queues = true;
        }
    ),
    candidate!("hold-control-queues", "choosy, held, charged", "offers are held and control messages wait", |s| {
        (s.policy.hold, s.control_queues) = (true, true);
    }),
    candidate!(
        "any-4-of-6",
        "choosy, fragments",
        "six fragments of a quarter, done when five are stored: 1.5 bytes per byte",
        |s| {
            (s.policy.copies, s.policy.quorum, s.split) = (6, 5, 4);
        }
    ),
];
