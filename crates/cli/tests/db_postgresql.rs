//! PostgreSQL on a volume, through every fault: nothing promised is lost, nothing is there twice, pg_amcheck is content.
//!
//! Owns: the drills of PostgreSQL. Never: asserts how long anything takes.
//! Invariant: one database lives through all faults of a test, so that consecutive failovers are drilled too.

mod db_common;

use db_common::{Stage, text};

#[test]
fn fault_postgresql_survives_every_fault_speculatively() {
    let stage = Stage::set(&text("db_common/postgresql.toml"));
    for fault in ["panic", "kill", "stop", "hang", "partition"] {
        let report = stage.drill(fault, "speculative", &[]);
        assert_eq!(report["failed_over"], true, "{fault}: {report}");
    }
    // A stall that ends: whoever wins, nothing may be lost.
    stage.drill("heal", "speculative", &["--heal-after", "1s"]);
}

#[test]
fn fault_postgresql_survives_in_the_modes_to_compare_with() {
    let stage = Stage::set(&text("db_common/postgresql.toml"));
    let report = stage.drill("panic", "reds", &["--timeout", "1s"]);
    assert_eq!(report["failed_over"], true, "{report}");
    let report = stage.drill("heal", "reds", &["--timeout", "500ms", "--heal-after", "2s"]);
    assert_eq!(report["needless_failover"], true, "{report}");
    let report = stage.drill("heal", "oracle", &["--heal-after", "1s"]);
    assert_eq!(report["failed_over"], false, "{report}");
    let report = stage.drill("panic", "oracle", &[]);
    assert_eq!(report["failed_over"], true, "{report}");
}
