//! `segue reproduce choosy` from outside: the JSON's shape, the files, and that threads change nothing.
//!
//! Owns: short runs of the command. Never: judges the figures; the models' tests do.
//! Invariant: nothing is left on disk.

use serde_json::Value;
use std::process::{Command, Output};

fn choosy(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
    command.args(["reproduce", "choosy"]).args(args).output().expect("segue runs")
}

fn json(args: &[&str]) -> Value {
    let output = choosy(args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

const SHORT: [&str; 5] = ["--json", "--quick", "--seeds", "1", "--seed"];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn golden_cli_reproduce_choosy_has_its_shape_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let first = json(&[&SHORT[..], &["7", "--stress", "--threads", "2", "--out", out.to_str().unwrap()]].concat());
    assert_eq!(first["schema"], "segue.reproduce.choosy.v1");
    let configurations = first["configurations"].as_array().unwrap();
    let known: Vec<(u64, u64, f64)> =
        vec![(131_072, 400, 7.0), (131_072, 1_000, 11.5), (1_048_576, 400, 17.5), (1_048_576, 1_000, 14.2)];
    assert_eq!(configurations.len(), known.len());
    for (of, (chunk, drive, surge)) in configurations.iter().zip(known) {
        assert_eq!((of["chunk"].as_u64(), of["drive_mbps"].as_u64()), (Some(chunk), Some(drive)));
        assert_eq!(number(&of["surge_gain"]), surge);
        for phase in ["cold", "cold_uncensored", "steady", "steady_censored"] {
            let [gain, lo, hi] = ["gain", "lo", "hi"].map(|key| number(&of[phase][key]));
            assert!(lo <= gain && gain <= hi && gain.abs() < 100.0, "{phase}");
            for rules in ["plain", "published", "corrected_plain", "corrected", "best"] {
                let figures = &of["figures"][rules][phase];
                let order = ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"].map(|key| number(&figures[key]));
                assert!(order.is_sorted() && order[0] > 0.0, "{rules} {phase} {order:?}");
                assert!(number(&figures["gb_per_s"]) > 1.0 && figures["chunks"].as_u64() > Some(50));
            }
        }
        assert!(of["best"]["name"].is_string());
        let keys =
            ["cold_gain", "steady_gain", "steady_lo", "steady_hi", "max_latency_cut", "p99_cut", "p99_lo", "p99_hi"];
        for rules in ["published", "corrected", "best"] {
            assert!(keys.iter().all(|key| number(&of[rules][*key]).is_finite()));
        }
        assert_eq!(number(&of["published"]["steady_gain"]), number(&of["steady"]["gain"]));
        assert!(of["by_start"].as_array().unwrap().len() >= 4);
    }
    assert!(number(&first["means"]["best"]["steady_gain"]["gain"]).is_finite());
    assert_eq!(first["over_ms"].as_array().unwrap().len(), 9);
    let kinds: Vec<_> = first["stress"].as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["hot", "slow", "stagger", "open", "mixed"]);
    assert!(first["stress"].as_array().unwrap().iter().all(|row| number(&row["best"]["gain"]["gain"]).is_finite()));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(out.join("choosy.json")).unwrap()).unwrap();
    assert_eq!(file, first, "the file says what stdout says");
    for name in ["choosy.csv", "choosy_gains.csv", "choosy_start.csv", "choosy_spikes.csv", "choosy_series.csv"] {
        let text = std::fs::read_to_string(out.join(name)).unwrap();
        let commas = |line: &str| line.matches(',').count();
        let heads = commas(text.lines().next().unwrap());
        assert!(text.lines().count() > 5 && text.lines().all(|line| commas(line) == heads), "{name}");
    }
    for name in ["figure3.svg", "figure4.svg", "figure4_best.svg", "figure5.svg", "figure6.svg", "choosy_stress.csv"] {
        assert!(std::fs::metadata(out.join(name)).unwrap().len() > 500, "{name}");
    }
    let stress = std::fs::read_to_string(out.join("choosy_stress.csv")).unwrap();
    // The one text column may have commas of its own, in quotes.
    let columns = |line: &str| line.split('"').step_by(2).map(|part| part.matches(',').count()).sum::<usize>();
    assert!(stress.lines().all(|line| columns(line) == columns(stress.lines().next().unwrap())), "{stress}");
    let second = json(&[&SHORT[..], &["7", "--threads", "1"]].concat());
    assert_eq!(second["configurations"], first["configurations"], "same seed, same figures, whatever the threads");
}

#[test]
fn golden_cli_reproduce_choosy_refuses_what_it_cannot_run() {
    for args in [["--seeds", "0"], ["--threads", "0"], ["--seeds", "many"]] {
        assert_eq!(choosy(&args).status.code(), Some(2), "{args:?}");
    }
}
