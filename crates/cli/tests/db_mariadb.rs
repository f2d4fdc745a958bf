//! MariaDB on a volume, through faults: nothing promised is lost, nothing is there twice, CHECK TABLE is content.
//!
//! Owns: the drills of MariaDB. Never: asserts how long anything takes.
//! Invariant: one database lives through all faults of a test, so that consecutive failovers are drilled too.

mod db_common;

use db_common::{Stage, text};

#[test]
fn fault_mariadb_survives_panic_kill_and_heal() {
    let stage = Stage::set(&text("db_common/mariadb.toml"));
    for fault in ["panic", "kill"] {
        let report = stage.drill(fault, "speculative", &[]);
        assert_eq!(report["failed_over"], true, "{fault}: {report}");
    }
    stage.drill("heal", "speculative", &["--heal-after", "1s"]);
}
