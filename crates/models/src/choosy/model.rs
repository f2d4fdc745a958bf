//! Replicast-H as models of `segue sim`.
//!
//! Owns: their lines in the list, and the setting that names the rules. Never: the rules.
//! Invariant: what a setting does not name is as published.

use super::variant::{Variant, run};
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
    about: "copies go where they will be on the medium soonest: unbinding forecasts, firm bookings, two groups to choose from",
    source: "this project",
    keys: super::forecast::KEYS,
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
    mut options: Options,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, RunError> {
    let settings = super::forecast::Settings::take(&mut options, scenario)?;
    options.finish()?;
    Ok(super::forecast::simulate(&settings, scenario, seed, progress)?)
}
