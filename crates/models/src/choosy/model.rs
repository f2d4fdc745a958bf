//! Replicast-H as models of `segue sim`.
//!
//! Owns: their lines in the list, and the setting that names the rules. Never: the rules.
//! Invariant: what a setting does not name is as published.

use super::world::{Variant, run};
use crate::storage::registry::{Model, RunError};
use crate::storage::{Key, Options, Outcome, Progress, Scenario};

/// Replicast-H under the rules that `rules` names.
pub const REPLICAST_H: Model = Model {
    name: "replicast-h",
    about: "multicast control, unicast data in windows reserved by bids; far windows are negotiated again",
    source: "SURGE m8",
    keys: &[Key {
        name: "rules",
        about: "plain (published, never again), published, corrected-plain, corrected",
        default: "published",
    }],
    run: replicast_h,
};

/// The initiator that the product uses.
pub const CHOOSY: Model = Model {
    name: "choosy",
    about: "Replicast-H with the initiator that the product uses",
    source: "this project",
    keys: &[],
    run: choosy,
};

fn replicast_h(
    scenario: &Scenario,
    mut options: Options,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, RunError> {
    let rules = options.word("rules", "plain, published, corrected-plain, corrected", |word| match word {
        "plain" => Some(Variant::Plain),
        "published" => Some(Variant::Published),
        "corrected-plain" => Some(Variant::CorrectedPlain),
        "corrected" => Some(Variant::Corrected),
        _ => None,
    })?;
    options.finish()?;
    Ok(run(rules.unwrap_or(Variant::Published), scenario, seed, progress)?)
}

fn choosy(
    scenario: &Scenario,
    options: Options,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, RunError> {
    options.finish()?;
    Ok(run(Variant::Best, scenario, seed, progress)?)
}
