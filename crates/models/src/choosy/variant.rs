//! Which rules a run follows, and what goes wrong in it.
//!
//! Owns: the named variants and how one is run. Never: a rule; those are the machines'.
//! Invariant: a variant, a scenario and a seed are one run.

use super::world::World;
use crate::storage::{Outcome, Progress, Scenario, Violation};
use segue_cluster::reserve::Rules;
use segue_des::Chance;
use segue_types::Nanos;

/// Rules and whether far windows are given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// The published rules, without renegotiation.
    Plain,
    /// The published rules.
    Published,
    /// The corrected rules, without renegotiation.
    CorrectedPlain,
    /// The corrected rules.
    Corrected,
    /// What the product uses ([`super::forecast`]).
    Best,
}

impl Variant {
    /// The rules of Replicast-H in this variant; `Best` has its own and gives the corrected ones.
    pub const fn rules(self, scenario: &Scenario) -> Rules {
        let (links, copies) = (scenario.fabric.timing().links(), scenario.copies as u8);
        match self {
            Variant::Plain => Rules::published(&links, copies).plain(),
            Variant::Published => Rules::published(&links, copies),
            Variant::CorrectedPlain => Rules::corrected(&links, copies).plain(),
            Variant::Corrected | Variant::Best => Rules::corrected(&links, copies),
        }
    }
}

/// Runs one seed of a variant.
///
/// # Errors
/// The first rule that was broken.
pub fn run(
    variant: Variant,
    scenario: &Scenario,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, Violation> {
    if variant == Variant::Best {
        let settings = super::forecast::Settings::of(scenario);
        return super::forecast::simulate(&settings, scenario, seed, progress);
    }
    crate::storage::run(&mut World::new(variant.rules(scenario), scenario), scenario, seed, progress)
}

/// Runs one seed under given rules, with things going wrong.
///
/// # Errors
/// The first rule that was broken.
pub fn run_with(
    rules: Rules,
    faults: &Faults,
    scenario: &Scenario,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, Violation> {
    let mut world = World::new(rules, scenario);
    world.trouble(faults.clone(), Chance::new(seed).stream("faults"));
    crate::storage::run(&mut world, scenario, seed, progress)
}

/// What goes wrong in a run. Only rules with [`Rules::patience`] get over it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Messages and transfers that are lost, thousandths.
    pub lost_permille: u64,
    /// Until when, nanoseconds.
    pub lost_until_ns: Nanos,
    /// Targets that are dead from a time on, nanoseconds.
    pub dead: Vec<(u32, Nanos)>,
}
