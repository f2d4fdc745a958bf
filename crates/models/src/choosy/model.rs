//! Replicast-H as models of `segue sim`.
//!
//! Owns: their lines in the list, and the setting that names the rules. Never: the rules.
//! Invariant: what a setting does not name is as published.

use super::variant::{FAULT_KEYS, Faults, Variant, run_with};
use crate::storage::registry::{Model, RunError};
use crate::storage::{Key, OptionError, Options, Outcome, Progress, Scenario};

/// Replicast-H under the rules that `rules` names.
pub const REPLICAST_H: Model = Model {
    name: "replicast-h",
    about: "multicast control, unicast data in windows reserved by bids; far windows are negotiated again",
    source: "SURGE m8",
    keys: &[
        Key {
            name: "rules",
            about: "plain (published, never again), published, corrected-plain, corrected",
            default: "published",
        },
        FAULT_KEYS[0],
        FAULT_KEYS[1],
        FAULT_KEYS[2],
        FAULT_KEYS[3],
        FAULT_KEYS[4],
    ],
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
    let faults = Faults::take(&mut options, scenario)?;
    let overdue_ns = options.duration("overdue")?;
    options.finish()?;
    let variant = rules.unwrap_or(Variant::Published);
    let mut rules = variant.rules(scenario);
    if let (Some(patience), Some(ns)) = (&mut rules.patience, overdue_ns.filter(|ns| *ns > 0)) {
        patience.acknowledgement_ns = ns;
    }
    if faults.any() && rules.patience.is_none() {
        let range =
            "corrected or corrected-plain when messages are lost or targets die: the published rules wait for ever";
        return Err(OptionError::Range { key: "rules", range }.into());
    }
    Ok(run_with(rules, &faults, scenario, seed, progress)?)
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
