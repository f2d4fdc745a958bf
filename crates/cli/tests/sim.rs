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
        let latency = &row["latency"];
        assert_eq!(latency["mean_ns"]["runs"], 3);
        let [low, mean, high] = ["low", "mean", "high"].map(|k| latency["mean_ns"][k].as_f64().unwrap());
        assert!(low < mean && mean < high);
        assert!(latency["estimate_mean_ns"]["mean"].as_f64().unwrap() > mean, "what is in flight is slower");
        assert!(latency["naive"]["p999_ns"].is_u64() && latency["estimate"]["mean_is_bound"].is_boolean());
        assert!(row["in_flight"].as_u64().unwrap() >= 18, "the closed loop leaves a chunk of each initiator in flight");
        assert_eq!(row["seeds"].as_array().unwrap().len(), 3);
    }
    let text = sim(&SMALL).out;
    for word in ["IN FLIGHT", "P99.9", "GB/s", "TRACE", "events/s"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn golden_cli_sim_run_writes_every_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let report = json(&[&SMALL[..], &["--out", out.to_str().unwrap(), "--warm-up", "500us"]].concat());
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let file: Value = serde_json::from_str(&read("run.json")).unwrap();
    assert_eq!(file, report, "the file says what stdout says");
    let row = &report["configurations"][0];
    assert_eq!(row["warm_up"], serde_json::json!({ "ns": 500_000, "from": "given", "error": null }));
    let chunks = read("chunks.csv");
    let counted = |end: &str| chunks.lines().filter(|l| l.ends_with(end)).count() as u64;
    assert_eq!(counted(",true"), row["done"].as_u64().unwrap());
    assert_eq!(counted(",false"), row["in_flight"].as_u64().unwrap(), "chunks in flight are there");
    assert!(read("series.csv").starts_with("configuration,from_ns,count,mean,max,moving_average\n"));
    assert_eq!(read("configurations.csv").lines().count(), 2);
    for name in ["latency.svg", "latency_0.svg"] {
        assert!(read(name).trim_end().ends_with("</svg>"), "{name}");
    }
}

#[test]
fn golden_cli_sim_warm_up_is_found_or_said_to_be_missing() {
    let short = sim(&[&SMALL[..], &["--warm-up", "auto"]].concat());
    assert_eq!(short.code, 0);
    assert!(short.err.contains("nothing was cut") && short.err.contains("--set run="), "{}", short.err);
    let long = ["run", "surge-5", "--nodes", "36", "--seeds", "1..3", "--set", "run=200ms", "--warm-up", "auto"];
    let warm_up = &json(&long)["configurations"][0]["warm_up"];
    assert_eq!(warm_up["from"], "mser5", "{warm_up}");
    assert_eq!(sim(&[&SMALL[..], &["--warm-up", "soon"]].concat()).code, 2);
    assert!(refused(&[&SMALL[..], &["--warm-up", "2ms"]].concat(), 2).contains("the whole run"));
}

#[test]
fn golden_cli_sim_threads_change_nothing() {
    for model in ["surge-5", "replicast-h", "choosy"] {
        let run = ["run", model, "--nodes", "36", "--seeds", "1..4", "--set", "run=2ms", "--trace", "--threads"];
        let traces = |threads: &str| sim(&[&run[..], &[threads]].concat()).out;
        let one = traces("1");
        assert_eq!(one.lines().count(), 4, "{model}");
        assert_eq!(traces("2"), one, "{model}: the same hashes on two threads");
        assert_eq!(traces("1"), one, "{model}: and again");
    }
    let one = sim(&[&SMALL[..], &["--trace"]].concat()).out;
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
    let tiny = ["scale", "--nodes", "36,72", "--loads", "300,600", "--load-nodes", "36", "--rounds", "2"];
    let report = json(&[&tiny[..], &["--repeat", "1ms", "--set", "run=1ms"]].concat());
    assert_eq!(report["model"], "replicast-h");
    assert_eq!(report["schema"], "segue.sim.scale.v1");
    let rows = report["rows"].as_array().unwrap();
    let nodes: Vec<u64> = rows.iter().map(|r| r["nodes"].as_u64().unwrap()).collect();
    assert_eq!(nodes, [36, 72, 180, 36, 36], "the sizes, the published figure, the loads");
    assert_eq!((&rows[2]["kind"], &rows[2]["initiators"]), (&"figure".into(), &90.into()));
    for row in rows {
        for key in ["events", "events_per_s", "ns_per_event", "wall_s", "rss_gib", "measured_over_limit"] {
            assert!(row[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {row}");
        }
        assert!(row["wall"]["rounds"].as_u64().unwrap() >= 2, "a repeat in each round");
        assert_eq!(row["load"].is_null(), row["kind"] != "loaded");
    }
    assert!(report["growth"]["ns_per_doubling"].is_f64());
    assert!(report["cost_per_event_grows_at_most_logarithmically"].is_boolean());
    assert!(refused(&["scale", "--model", "surge-5", "--nodes", "5"], 2).contains("targets must be"));
    assert!(refused(&["scale", "--model", "surge-5", "--repeat", "soon"], 2).contains("--repeat takes a duration"));
}

/// The project's copy of the golden data.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/golden/choosy");

#[test]
fn golden_choosy_equals_the_published_rules() {
    let report = json(&["check-golden", GOLDEN]);
    assert_eq!(report["schema"], "segue.sim.check-golden.v1");
    assert_eq!((&report["files"], &report["differing"]), (&8.into(), &0.into()));
    assert!(report["chunks"].as_u64().unwrap() > 6_000);
    assert_eq!(report["details"].as_array().unwrap().len(), 8);
    assert!(sim(&["check-golden", GOLDEN]).out.contains("0 differing"));
}

#[test]
fn canary_golden_an_altered_digit_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let file = "chunk128k-drive400-plain.csv";
    let read = |name: &str| std::fs::read_to_string(format!("{GOLDEN}/{name}")).unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let at = dir.path().to_str().unwrap();
    put("groups.csv", &read("groups.csv"));
    assert!(refused(&["check-golden", at], 3).contains("no results"));
    put(file, &read(file).replacen("702975", "702976", 1));
    let said = run(segue().args(["--json", "sim", "check-golden", at]));
    assert_eq!(said.code, 1, "an honest no: {}", said.err);
    let report = said.json();
    assert_eq!((&report["files"], &report["differing"]), (&1.into(), &1.into()));
    assert_eq!(report["details"][0]["first_difference"]["found"]["latency_ns"], 702_975);
    assert!(sim(&["check-golden", at]).out.contains("golden initiator"));
    put(file, "initiator,created_ns,latency_ns\n66,0,soon\n");
    let message = refused(&["check-golden", at], 2);
    assert!(message.contains(file) && message.contains("line 2"), "{message}");
    put("groups.csv", "initiator,chunk_index,group\n0,1,7\n");
    assert!(refused(&["check-golden", at], 2).contains("groups.csv: line 2"));
    assert!(refused(&["check-golden", "/nowhere"], 3).contains("groups.csv is missing"));
}
