//! Which rules a run follows, and what goes wrong in it.
//!
//! Owns: the named variants and how one is run. Never: a rule; those are the machines'.
//! Invariant: a variant, a scenario and a seed are one run.

use super::world::World;
use crate::storage::{Key, OptionError, Options, Outcome, Progress, Scenario, Violation};
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
    run_with(variant.rules(scenario), &Faults::default(), scenario, seed, progress)
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
    if faults.any() {
        world.trouble(faults.clone(), Chance::new(seed).stream("faults"));
    }
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

/// The keys of [`Faults::take`], and `overdue`, which each protocol takes for itself.
pub const FAULT_KEYS: [Key; 5] = [
    Key { name: "loss_permille", about: "messages that are lost, thousandths", default: "0" },
    Key { name: "lossy_until", about: "until when, for example 5ms; the whole run if it is not given", default: "" },
    Key { name: "dead_targets", about: "so many targets, the last of each group in turn, die", default: "0" },
    Key { name: "dead_at", about: "when they die, for example 2ms", default: "0ns" },
    Key { name: "overdue", about: "how late a copy may be before it is sent elsewhere, for example 3ms", default: "" },
];

impl Faults {
    /// The faults that `options` describe.
    ///
    /// # Errors
    /// Names the key and what it takes.
    pub fn take(options: &mut Options, scenario: &Scenario) -> Result<Faults, OptionError> {
        let lost_permille = options.number("loss_permille")?.unwrap_or(0);
        let until_ns = options.duration("lossy_until")?.unwrap_or(Nanos::MAX);
        let lost_until_ns = if lost_permille > 0 { until_ns } else { 0 };
        let count = options.number("dead_targets")?.unwrap_or(0);
        let from_ns = options.duration("dead_at")?.unwrap_or(0);
        let (groups, size) = (u64::from(scenario.groups()), u64::from(scenario.group_targets));
        if lost_permille > 1_000 {
            return Err(OptionError::Range { key: "loss_permille", range: "at most 1000" });
        }
        if count > groups * size {
            return Err(OptionError::Range { key: "dead_targets", range: "at most all targets" });
        }
        let place = |n: u64| ((n % groups + 1) * size - 1 - n / groups) as u32;
        Ok(Faults { lost_permille, lost_until_ns, dead: (0..count).map(|n| (place(n), from_ns)).collect() })
    }

    /// Whether a target is dead at a time.
    pub fn is_dead(&self, now: Nanos, target: u32) -> bool {
        self.dead.iter().any(|(t, from_ns)| *t == target && *from_ns <= now)
    }

    /// Whether anything goes wrong.
    pub fn any(&self) -> bool {
        self.lost_permille > 0 || !self.dead.is_empty()
    }
}
