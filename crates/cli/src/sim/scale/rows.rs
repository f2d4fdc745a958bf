//! What `segue sim scale` runs.
//!
//! Owns: which sizes and loads, and the model's settings in each. Never: measures.
//! Invariant: along the sizes nothing changes but the number of nodes; along the loads nothing but the load.

use crate::sim::configurations::{self, Configuration, Nodes};
use anyhow::Result;
use segue_models::storage::registry::Model;
use serde::{Deserialize, Serialize};

/// Which series a row belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// All write as fast as they can; sizes differ.
    Nodes,
    /// The published figure.
    Figure,
    /// Open arrivals; loads differ.
    Load,
}

/// One row: it is run in a process of its own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    pub kind: Kind,
    /// Nodes in all.
    pub nodes: u32,
    /// `key=value` for the model.
    pub settings: Vec<String>,
}

/// The published figure: 90 x 90 nodes, chunks of 1 MiB, drives of 1000 MiB/s, 40 ms.
const FIGURE: [&str; 3] = ["chunk=1MiB", "drive_mbps=1000", "run=40ms"];

fn key(setting: &str) -> &str {
    setting.split('=').next().unwrap_or_default()
}

impl Row {
    fn new(kind: Kind, nodes: u32, common: &[String], own: &[&str]) -> Row {
        // What the caller sets goes before what the row would.
        let own = own.iter().filter(|setting| common.iter().all(|given| key(given) != key(setting)));
        let settings = common.iter().cloned().chain(own.map(|s| (*s).to_owned())).collect();
        Row { kind, nodes, settings }
    }

    /// A size, all writing as fast as they can for 10 ms.
    pub fn of_size(nodes: u32, common: &[String]) -> Row {
        Row::new(Kind::Nodes, nodes, common, &["run=10ms"])
    }

    /// The published figure.
    pub fn figure(common: &[String]) -> Row {
        Row::new(Kind::Figure, 180, common, &FIGURE)
    }

    /// A load of open arrivals, thousandths of the capacity, for 10 ms.
    pub fn of_load(nodes: u32, permille: u32, common: &[String]) -> Row {
        Row::new(Kind::Load, nodes, common, &["run=10ms", &format!("load_permille={permille}")])
    }

    /// The scenario.
    ///
    /// # Errors
    /// Names the setting and what it takes.
    pub fn configuration(&self, model: &Model) -> Result<Configuration> {
        let nodes = Nodes { nodes: Some(self.nodes), ..Nodes::default() };
        configurations::single(model, &nodes, &self.settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run::tests::STUB;
    use segue_models::storage::Scenario;

    #[test]
    fn rows_differ_in_one_thing() {
        let of = |row: Row| row.configuration(&STUB).unwrap().scenario;
        let (small, large) = (of(Row::of_size(180, &[])), of(Row::of_size(10_000, &[])));
        assert_eq!((large.initiators + large.targets, large.run_ns), (10_000, 10_000_000));
        assert_eq!(Scenario { initiators: 90, targets: 90, ..large }, small);
        let figure = of(Row::figure(&["drive_mbps=400".into()]));
        assert_eq!((figure.run_ns, figure.mean_bytes()), (40_000_000, 1 << 20));
        assert_eq!(figure.drive_bytes_per_s, 400 << 20, "what was asked for goes before");
        let loads = [100, 900].map(|permille| of(Row::of_load(1_000, permille, &[])));
        assert_eq!(Scenario { arrivals: loads[1].arrivals.clone(), ..loads[0].clone() }, loads[1]);
    }
}
