//! `segue sim` from outside: shapes, exit codes, and that threads change nothing.
//!
//! Owns: short runs of the command. Never: judges a model's figures; the models' tests do.
//! Invariant: nothing is left on disk.

mod common;

use common::{Said, run, segue};
use serde_json::Value;

fn sim(args: &[&str]) -> Said {
    run(segue().arg("sim").args(args))
}

fn json(args: &[&str]) -> Value {
    let said = run(segue().args(["--json", "sim"]).args(args));
    assert_eq!(said.code, 0, "{args:?}: {}", said.err);
    said.json()
}

/// The error object of a command that is refused with this exit code.
fn refused(args: &[&str], code: i32) -> String {
    let said = run(segue().args(["--json", "sim"]).args(args));
    assert_eq!(said.code, code, "{args:?}: {} {}", said.out, said.err);
    let error: Value = serde_json::from_str(&said.err).expect("an error object on stderr");
    error["message"].as_str().expect("a message").to_owned()
}

const SMALL: [&str; 8] = ["run", "surge-5", "--nodes", "36", "--seeds", "1..3", "--set", "run=2ms"];

#[test]
fn golden_cli_sim_list_names_models_and_settings() {
    let list = json(&["list"]);
    assert_eq!(list["schema"], "segue.sim.list.v1");
    let models = list["models"].as_array().unwrap();
    assert!(models.iter().any(|m| m["name"] == "surge-5" && m["source"].as_str().is_some_and(|s| s.contains("SURGE"))));
    assert!(list["settings"].as_array().unwrap().iter().any(|k| k["name"] == "chunk" && k["default"] == "128KiB"));
    let text = sim(&["list"]).out;
    assert!(text.contains("surge-5") && text.contains("load_permille"), "{text}");
}

#[test]
fn golden_cli_sim_run_has_its_shape() {
    let report = json(&[&SMALL[..], &["--set", "drive_mbps=400,1000"]].concat());
    assert_eq!((&report["schema"], &report["model"]), (&"segue.sim.run.v1".into(), &"surge-5".into()));
    let rows = report["configurations"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "a configuration for each value");
    for (row, mbps) in rows.iter().zip(["400", "1000"]) {
        assert_eq!(row["settings"]["drive_mbps"], mbps);
        assert_eq!((&row["scenario"]["initiators"], &row["scenario"]["targets"]), (&18.into(), &18.into()));
        assert_eq!(row["latency_ns"]["mean"]["runs"], 3);
        let [low, mean, high] = ["low", "mean", "high"].map(|k| row["latency_ns"]["mean"][k].as_f64().unwrap());
        assert!(low < mean && mean < high);
        assert!(row["in_flight"].as_u64().unwrap() >= 18, "the closed loop leaves a chunk of each initiator in flight");
        assert_eq!(row["seeds"].as_array().unwrap().len(), 3);
    }
    let text = sim(&SMALL).out;
    for word in ["IN FLIGHT", "P99.9", "GB/s", "TRACE", "events/s"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn golden_cli_sim_threads_change_nothing() {
    let traces = |threads: &str| sim(&[&SMALL[..], &["--trace", "--threads", threads]].concat()).out;
    let one = traces("1");
    assert_eq!(one.lines().count(), 3);
    assert_eq!(traces("2"), one, "the same hashes on two threads");
    assert_eq!(traces("1"), one, "and again");
    let object = json(&[&SMALL[..], &["--trace"]].concat());
    let first = object["configurations"][0]["traces"]["1"].as_str().unwrap();
    assert!(one.starts_with(first), "text and JSON agree");
}

#[test]
fn golden_cli_sim_refuses_with_cause_and_fix() {
    assert!(refused(&["run", "nonsense"], 3).contains("surge-5"), "the models are listed");
    assert!(refused(&[&SMALL[..], &["--set", "chonk=1MiB"]].concat(), 2).contains("segue sim list"));
    assert!(refused(&[&SMALL[..], &["--set", "chunk=big"]].concat(), 2).contains("chunk takes a size"));
    assert!(refused(&[&SMALL[..], &["--set", "copies=64"]].concat(), 2).contains("copies must be"));
    for seeds in ["20..1", "x", "1,1"] {
        assert_eq!(sim(&["run", "surge-5", "--seeds", seeds]).code, 2, "{seeds}");
    }
    assert_eq!(sim(&["run", "surge-5", "--nodes", "36", "--targets", "18"]).code, 2, "either all or each");
}

#[test]
fn golden_cli_sim_scale_has_its_shape() {
    let tiny = ["scale", "--model", "surge-5", "--nodes", "36,72", "--loads", "300,600", "--load-nodes", "36"];
    let report = json(&[&tiny[..], &["--repeat", "1ms", "--set", "run=1ms"]].concat());
    assert_eq!(report["schema"], "segue.sim.scale.v1");
    let rows = report["rows"].as_array().unwrap();
    let nodes: Vec<u64> = rows.iter().map(|r| r["nodes"].as_u64().unwrap()).collect();
    assert_eq!(nodes, [36, 72, 180], "the sizes and the published figure");
    assert_eq!((&rows[2]["kind"], &rows[2]["initiators"]), (&"figure".into(), &90.into()));
    for row in rows.iter().chain(report["loads"].as_array().unwrap()) {
        for key in ["events", "events_per_s", "ns_per_event", "wall_s", "rss_gib", "measured_over_limit"] {
            assert!(row[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {row}");
        }
        assert_eq!(row["load"].is_null(), row["kind"] != "load");
    }
    assert!(report["growth"]["ns_per_doubling"].is_f64());
    assert!(report["cost_per_event_grows_at_most_logarithmically"].is_boolean());
    assert!(refused(&["scale", "--model", "surge-5", "--nodes", "5"], 2).contains("targets must be"));
    assert!(refused(&["scale", "--model", "surge-5", "--repeat", "soon"], 2).contains("--repeat takes a duration"));
}
