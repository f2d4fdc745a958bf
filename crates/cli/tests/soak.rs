//! A node whose tasks panic: the short form of the soak, and who may ask for it.
//!
//! Owns: that the commands do what they say. Never: measures anything; the long soak is for people.
//! Invariant: each node is ended with its test.

mod common;

use common::{Node, run, segue};
use serde_json::Value;

const PLAIN: &str = "[nbd]\nlisten = [\"unix:DIR/nbd.sock\"]\n[[pool]]\nname = \"p\"\nmemory_bytes = \"64MiB\"\n";

#[test]
fn fault_a_short_soak_loses_nothing() {
    for more in [&["--memory"][..], &[]] {
        let args = ["--json", "soak", "--minutes", "0.05", "--rate", "1/1000", "--seed", "7"];
        let said = run(segue().args(args).args(more));
        let report: Value = said.json();
        assert_eq!(said.code, 0, "replay: segue {} {}\n{report:#}", args.join(" "), more.join(" "));
        assert!(report["recovered"].as_u64() > Some(20), "{report:#}");
        let levels: Vec<_> = report["recoveries"]["counts"].as_array().unwrap().iter().map(|c| &c["level"]).collect();
        assert!(levels.iter().any(|l| *l == "task") && levels.iter().any(|l| *l == "engine"), "{report:#}");
    }
}

#[test]
fn fault_injection_is_refused_unless_the_configuration_allows_it() {
    let node = Node::start(PLAIN);
    let message = node.refused(&["node", "inject", "--task", "write"], 6);
    assert!(message.contains("allow_fault_injection = true"), "{message}");
    let node = Node::start(&format!("allow_fault_injection = true\n{PLAIN}"));
    node.refused(&["node", "inject", "--task", "wrote"], 2);
    node.json(&["node", "inject", "--task", "admin", "--rate", "1/1"]);
    for _ in 0..3 {
        node.refused(&["volume", "show", "none"], 3);
    }
    node.json(&["node", "inject", "--off"]);
    let recoveries = node.json(&["node", "recoveries"]);
    let admin = |c: &&Value| c["task"] == "admin";
    assert!(recoveries["counts"].as_array().unwrap().iter().filter(admin).count() > 0, "{recoveries:#}");
    let events = node.json(&["node", "events"]);
    assert!(events["events"].to_string().contains("recovered"), "{events:#}");
    let metrics = node.json(&["node", "metrics"]);
    assert!(metrics["openmetrics"].as_str().unwrap().contains("segue_core_recoveries_total{task=\"admin\""));
}
