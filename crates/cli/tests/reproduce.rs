//! `segue reproduce` from outside: the JSON's shape, the files, and that a seed gives the same figures.
//!
//! Owns: short runs of the command. Never: judges the figures; the models' tests do.
//! Invariant: nothing is left on disk.

use serde_json::Value;
use std::process::Command;

fn reproduce(args: &[&str]) -> (Value, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
    let output = command.args(["reproduce", "rcs", "--json"]).args(args).output().expect("segue runs");
    let text = String::from_utf8_lossy(&output.stdout);
    (serde_json::from_str(&text).unwrap_or(Value::Null), output.status.code())
}

#[test]
fn golden_cli_reproduce_rcs_has_its_shape_and_repeats() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let short = ["--quick", "--seeds", "1", "--simulate", "100ms", "--seed", "7"];
    let (first, code) = reproduce(&[&short[..], &["--out", out.to_str().unwrap()]].concat());
    assert_eq!(code, Some(0));
    assert_eq!(first["schema"], "segue.reproduce.rcs.v1");
    for row in ["performance", "dynamic", "partial_dynamic", "static", "dynamic_256"] {
        for path in ["good", "bad"] {
            for figure in ["kiops", "response_ms"] {
                assert!(first[figure][row][path].as_f64().is_some_and(|v| v > 0.0), "{figure} {row} {path}");
                assert_eq!(first["intervals"][figure][row][path].as_array().map(Vec::len), Some(2));
            }
        }
    }
    assert_eq!(first["paper"]["kiops"]["performance"]["bad"], 87.8);
    assert!(first["ratios"]["dynamic_bad_over_good"]["ours"]["mean"].is_f64());
    let file: Value = serde_json::from_str(&std::fs::read_to_string(out.join("rcs.json")).unwrap()).unwrap();
    assert_eq!(file, first, "the file says what stdout says");
    for name in ["rcs.csv", "rcs_larger.csv", "rcs_kiops.svg", "rcs_response.svg", "rcs_larger.svg"] {
        assert!(std::fs::metadata(out.join(name)).unwrap().len() > 200, "{name}");
    }
    let (second, _) = reproduce(&short);
    assert_eq!(second, first, "same seed, same figures");
}

#[test]
fn golden_cli_reproduce_refuses_what_it_cannot_run() {
    assert_eq!(reproduce(&["--simulate", "soon"]).1, Some(2));
    assert_eq!(reproduce(&["--seeds", "0"]).1, Some(2));
}
