//! `segue reproduce tail` from outside: the JSON's shape, the verdicts, the files.
//!
//! Owns: short runs of the command. Never: full lengths.
//! Invariant: nothing is left on disk.

use serde_json::Value;
use std::process::Command;

fn tail(args: &[&str]) -> (Value, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
    let output = command.args(["reproduce", "tail", "--json"]).args(args).output().expect("segue runs");
    (serde_json::from_slice(&output.stdout).unwrap_or(Value::Null), output.status.code())
}

#[test]
fn golden_cli_reproduce_tail_has_its_shape_and_every_case_is_inside() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let (first, code) = tail(&["--quick", "--seeds", "20", "--threads", "2", "--out", out.to_str().unwrap()]);
    assert_eq!((code, &first["schema"]), (Some(0), &Value::from("segue.reproduce.tail.v1")));
    for utilisation in [0.5, 0.8, 0.95] {
        let of = |row: &&Value| row["utilisation"] == utilisation;
        let rows: Vec<&Value> = first["rows"].as_array().unwrap().iter().filter(of).collect();
        assert!(rows.len() >= 3, "{utilisation}");
        for row in rows {
            let [low, high, formula, simulated] =
                ["low", "high", "formula_ns", "simulated_mean_wait_ns"].map(|key| row[key].as_f64().unwrap());
            assert!(low <= simulated && simulated <= high, "{row}");
            assert_eq!(row["inside"], (low..=high).contains(&formula), "{row}");
        }
    }
    assert!(first["tail"].as_array().unwrap().iter().any(|row| row["servers"] == 1_000));
    assert_eq!((first["inside"].as_bool(), first["seeds"].as_u64()), (Some(true), Some(20)));
    for name in ["tail.json", "tail_waits.csv", "tail_requests.csv", "tail.svg"] {
        assert!(std::fs::metadata(out.join(name)).unwrap().len() > 100, "{name}");
    }
    let (second, _) = tail(&["--quick", "--seeds", "20", "--threads", "1"]);
    assert_eq!(second, first, "same seed, same figures, whatever the threads");
}

#[test]
fn golden_cli_reproduce_tail_refuses_what_it_cannot_run() {
    assert_eq!(tail(&["--seeds", "1"]).1, Some(2));
}
