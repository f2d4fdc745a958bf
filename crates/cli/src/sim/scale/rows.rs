//! What `segue sim scale` runs: the cases of `segue_models::choosy::scale`, for any model and with settings over them.
//!
//! Owns: how a case is named to another process. Never: measures.
//! Invariant: along the sizes nothing changes but the number of nodes; along the loads nothing but the load.

use crate::sim::configurations::{self, Configuration};
use anyhow::Result;
use segue_models::choosy::scale::{Case, everyone, figure, grown, loaded};
use segue_models::storage::registry::Model;
use serde::{Deserialize, Serialize};

/// Which case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Half of the nodes write as fast as they can; sizes differ.
    Grown,
    /// The published figure.
    Figure,
    /// Every node writes and stores.
    Everyone,
    /// Open arrivals; loads differ.
    Loaded,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Grown => "grown",
            Kind::Figure => "figure",
            Kind::Everyone => "everyone",
            Kind::Loaded => "loaded",
        }
    }
}

/// One row: it is run in a process of its own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    pub kind: Kind,
    pub nodes: u32,
    /// Of open arrivals.
    pub load_permille: u64,
    /// `key=value` over the case's scenario, and for the model.
    pub settings: Vec<String>,
}

impl Row {
    /// All rows: the sizes, the figure, every node of 10,000 writing and storing if that many are asked for, the loads.
    pub fn all(nodes: &[u32], load_nodes: u32, loads: &[u64], settings: &[String]) -> Vec<Row> {
        let row = |kind, nodes, load_permille| Row { kind, nodes, load_permille, settings: settings.to_vec() };
        let mut rows: Vec<Row> = nodes.iter().map(|n| row(Kind::Grown, *n, 0)).collect();
        rows.push(row(Kind::Figure, figure().nodes, 0));
        if nodes.contains(&10_000) {
            rows.push(row(Kind::Everyone, 10_000, 0));
        }
        rows.extend(loads.iter().map(|load| row(Kind::Loaded, load_nodes, *load)));
        rows
    }

    /// The case.
    pub fn case(&self) -> Case {
        match self.kind {
            Kind::Grown => grown(self.nodes),
            Kind::Figure => figure(),
            Kind::Everyone => everyone(self.nodes),
            Kind::Loaded => loaded(self.nodes, self.load_permille),
        }
    }

    /// The case's scenario with the settings over it. What whole groups of targets leave over writes.
    ///
    /// # Errors
    /// Names the setting and what it takes.
    pub fn configuration(&self, model: &Model) -> Result<Configuration> {
        let mut configuration = configurations::over(model, self.case().scenario, &self.settings)?;
        let scenario = &mut configuration.scenario;
        if self.kind != Kind::Everyone {
            scenario.initiators += scenario.targets % scenario.group_targets;
        }
        scenario.targets -= scenario.targets % scenario.group_targets;
        Ok(configuration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run::tests::STUB;
    use segue_models::storage::Scenario;

    #[test]
    fn rows_differ_in_one_thing() {
        let of = |settings: &[&str]| -> Vec<Scenario> {
            let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
            let rows = Row::all(&[180, 10_000], 1_000, &[100, 900], &settings);
            rows.iter().map(|row| row.configuration(&STUB).unwrap().scenario).collect()
        };
        let [small, large, figure, everyone, calm, busy] = of(&[]).try_into().expect("six rows");
        assert_eq!((large.initiators, large.targets), (5_005, 4_995), "ten thousand nodes, whole groups");
        assert_eq!(Scenario { initiators: 90, targets: 90, ..large }, small);
        assert_eq!((figure.initiators, figure.run_ns, figure.mean_bytes()), (90, 40_000_000, 1 << 20));
        assert_eq!((everyone.initiators, everyone.targets), (10_000, 9_999));
        assert_eq!(Scenario { arrivals: busy.arrivals.clone(), ..calm }, busy);
        assert!(of(&["drive_mbps=300"]).iter().all(|s| s.drive_bytes_per_s == 300 << 20), "what is set holds");
    }
}
