//! Configurations: what `--nodes` and several `--set key=a,b` ask for, as scenarios.
//!
//! Owns: the cross product, and the rounding of nodes to whole groups. Never: the meaning of a key.
//! Invariant: a configuration's scenario is one that every model can run.

use crate::exit::{ExitCode, fail};
use anyhow::Result;
use segue_models::storage::registry::{MODELS, Model, find};
use segue_models::storage::{KEYS, Options, Scenario};

/// Most configurations of one command.
const CONFIGURATIONS_MAX: usize = 10_000;

/// How many nodes.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Nodes {
    /// Nodes in all: half of them, rounded down to whole groups, store, the others write (default: 180).
    #[arg(long, value_name = "N", conflicts_with_all = ["initiators", "targets"])]
    pub nodes: Option<u32>,
    /// Nodes that write (default: 90).
    #[arg(long, value_name = "I")]
    pub initiators: Option<u32>,
    /// Nodes that store; rounded down to whole groups (default: 90).
    #[arg(long, value_name = "T")]
    pub targets: Option<u32>,
}

/// One configuration.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The settings that were given, in the order they were given.
    pub settings: Vec<(String, String)>,
    /// What they come to, with the model's own settings left.
    pub scenario: Scenario,
    /// The model's own settings.
    pub own: Options,
}

impl Configuration {
    /// "chunk=1MiB drive_mbps=400", or "defaults".
    pub fn name(&self) -> String {
        let pairs: Vec<String> = self.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
        if pairs.is_empty() { "defaults".into() } else { pairs.join(" ") }
    }
}

/// The model of this name.
///
/// # Errors
/// Lists the models.
pub fn model(name: &str) -> Result<&'static Model> {
    find(name).ok_or_else(|| {
        let names: Vec<&str> = MODELS.iter().map(|m| m.name).collect();
        fail(ExitCode::NotFound, format!("no model {name:?}; there are: {}", names.join(", ")))
    })
}

/// All combinations of the settings' values for a model.
///
/// # Errors
/// Names the setting and what it takes.
pub fn all(model: &Model, nodes: &Nodes, settings: &[String]) -> Result<Vec<Configuration>> {
    let rows = combinations(model, settings)?;
    rows.into_iter().map(|row| one(nodes.apply(Scenario::default()), row).map(|c| nodes.exact(c))).collect()
}

/// Settings that have one value each, over a scenario.
///
/// # Errors
/// Names the setting and what it takes.
pub fn over(model: &Model, base: Scenario, settings: &[String]) -> Result<Configuration> {
    let mut rows = combinations(model, settings)?;
    match rows.len() {
        1 => one(base, rows.remove(0)),
        _ => Err(fail(ExitCode::Misuse, "here each setting takes one value; `segue sim run` takes lists")),
    }
}

fn combinations(model: &Model, settings: &[String]) -> Result<Vec<Vec<(String, String)>>> {
    let mut rows: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for (key, values) in split(settings)? {
        known(model, &key)?;
        rows = rows.iter().flat_map(|row| values.iter().map(|v| with(row, &key, v))).collect();
        if rows.len() > CONFIGURATIONS_MAX {
            return Err(fail(ExitCode::Misuse, "more than 10,000 configurations; give fewer values to --set"));
        }
    }
    Ok(rows)
}

fn with(row: &[(String, String)], key: &str, value: &str) -> Vec<(String, String)> {
    row.iter().cloned().chain([(key.to_owned(), value.to_owned())]).collect()
}

/// `key=a,b` as a key and its values.
fn split(settings: &[String]) -> Result<Vec<(String, Vec<String>)>> {
    let mut keys: Vec<(String, Vec<String>)> = Vec::new();
    for setting in settings {
        let (key, values) = setting.split_once('=').ok_or_else(|| {
            fail(ExitCode::Misuse, format!("--set takes key=value or key=value,value; {setting:?} has no \"=\""))
        })?;
        if keys.iter().any(|(k, _)| k == key) {
            return Err(fail(ExitCode::Misuse, format!("{key} is set twice; give its values as one list: {key}=a,b")));
        }
        keys.push((key.to_owned(), values.split(',').map(str::to_owned).collect()));
    }
    Ok(keys)
}

/// Refuses a key that neither every model nor this one takes, before anything runs.
fn known(model: &Model, key: &str) -> Result<()> {
    if KEYS.iter().chain(model.keys).any(|k| k.name == key) {
        return Ok(());
    }
    let of: Vec<&str> = MODELS.iter().filter(|m| m.keys.iter().any(|k| k.name == key)).map(|m| m.name).collect();
    let also = if of.is_empty() { String::new() } else { format!(" ({} does)", of.join(", ")) };
    let text = format!("{} takes no setting {key:?}{also}; `segue sim list` shows what each model takes", model.name);
    Err(fail(ExitCode::Misuse, text))
}

fn one(base: Scenario, settings: Vec<(String, String)>) -> Result<Configuration> {
    let mut options = Options::new();
    for (key, value) in &settings {
        options.set(key, value);
    }
    let misuse = |e: segue_models::storage::OptionError| fail(ExitCode::Misuse, e.to_string());
    let scenario = base.with(&mut options).map_err(misuse)?;
    Ok(Configuration { settings, scenario, own: options })
}

impl Nodes {
    fn apply(&self, mut scenario: Scenario) -> Scenario {
        if let Some(nodes) = self.nodes {
            (scenario.initiators, scenario.targets) = (nodes.div_ceil(2), nodes / 2);
        }
        scenario.initiators = self.initiators.unwrap_or(scenario.initiators);
        scenario.targets = self.targets.unwrap_or(scenario.targets);
        scenario
    }

    /// Whole groups; what is left over of a number of nodes in all writes.
    fn exact(&self, mut configuration: Configuration) -> Configuration {
        let scenario = &mut configuration.scenario;
        scenario.targets = scenario.groups() * scenario.group_targets;
        if let Some(nodes) = self.nodes {
            scenario.initiators = nodes - scenario.targets;
        }
        configuration
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run::tests::STUB;

    fn of(nodes: Nodes, settings: &[&str]) -> Result<Vec<Configuration>> {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        all(&STUB, &nodes, &settings)
    }

    #[test]
    fn several_values_make_a_cross_product() {
        let rows = of(Nodes::default(), &["chunk=128KiB,1MiB", "drive_mbps=400,1000", "takes=7us"]).unwrap();
        let names: Vec<String> = rows.iter().map(Configuration::name).collect();
        assert_eq!(names.len(), 4);
        assert_eq!(names[1], "chunk=128KiB drive_mbps=1000 takes=7us");
        assert_eq!(rows[3].scenario.mean_bytes(), 1 << 20);
        assert_eq!(rows[3].own, rows[0].own, "the model's own setting is left for the model");
        assert_eq!(of(Nodes::default(), &[]).unwrap()[0].name(), "defaults");
    }

    #[test]
    fn nodes_are_halves_and_whole_groups() {
        let half = |nodes| Nodes { nodes: Some(nodes), ..Nodes::default() };
        let sizes = |nodes, settings: &[&str]| {
            let scenario = of(nodes, settings).unwrap().remove(0).scenario;
            (scenario.initiators, scenario.targets)
        };
        assert_eq!(sizes(half(180), &[]), (90, 90));
        assert_eq!(sizes(half(1_000), &[]), (505, 495), "a thousand nodes all the same");
        assert_eq!(sizes(half(1_000), &["group=10"]), (500, 500));
        let given = Nodes { nodes: None, initiators: Some(7), targets: Some(30) };
        assert_eq!(sizes(given, &[]), (7, 27));
    }

    #[test]
    fn errors_name_cause_and_fix() {
        let says = |settings: &[&str]| of(Nodes::default(), settings).unwrap_err().to_string();
        assert!(says(&["chonk=1"]).contains("takes no setting \"chonk\""));
        assert!(says(&["chunk"]).contains("has no \"=\""));
        assert!(says(&["chunk=1MiB", "chunk=2MiB"]).contains("set twice"));
        assert!(says(&["chunk=big"]).contains("chunk takes a size"));
        assert!(over(&STUB, Scenario::default(), &["copies=1,2".into()]).is_err());
        assert!(says(&["copies=99"]).contains("copies must be"));
        assert!(model("nonsense").err().unwrap().to_string().contains("no model \"nonsense\""));
    }
}
