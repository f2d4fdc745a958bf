//! Which crate may use which: the table of allowed arrows.
//!
//! Owns: the table. Never: follows third-party crates further than their names.
//! Invariant: a room uses only rooms above it, and only `models` ships the simulator.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use toml::Table;

/// A room, the rooms it may use, and the rooms only its tests may use besides.
struct Room {
    name: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
    /// A pure room decides and never acts: it may not link what acts.
    pure: bool,
}

/// From the bottom to the top. A new arrow is a change of the design: argue for it in `ARCHITECTURE.md`.
const ROOMS: &[Room] = &[
    Room { name: "types", uses: &[], tests_use: &[], pure: true },
    Room { name: "des", uses: &["types"], tests_use: &[], pure: true },
    Room { name: "volume", uses: &["types"], tests_use: &["des"], pure: true },
    Room { name: "sched", uses: &["types"], tests_use: &["des"], pure: true },
    Room { name: "wire", uses: &["types"], tests_use: &["des"], pure: true },
    Room { name: "cluster", uses: &["types"], tests_use: &["des"], pure: true },
    Room { name: "failover", uses: &["types"], tests_use: &["des"], pure: true },
    Room { name: "models", uses: &["types", "des", "sched", "cluster"], tests_use: &[], pure: true },
    Room { name: "runtime", uses: &["types", "volume", "sched", "wire"], tests_use: &["des"], pure: false },
    Room { name: "node", uses: &["types", "volume", "sched", "wire", "runtime"], tests_use: &["des"], pure: false },
    Room {
        name: "cli",
        uses: &["types", "volume", "sched", "wire", "cluster", "failover", "models", "runtime", "node"],
        tests_use: &["des"],
        pure: false,
    },
];

/// What acts: clocks, files, sockets, threads, chance.
const ACTING: &[&str] =
    &["axum", "fuser", "getrandom", "hyper", "io-uring", "libc", "nix", "rand", "rustls", "tokio", "tracing"];

/// Complaints about the crates' dependencies.
pub fn complaints(root: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    let mut dirs: Vec<String> = fs::read_dir(root.join("crates"))
        .context("list crates")?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    dirs.sort();
    for dir in dirs {
        let Some(room) = ROOMS.iter().find(|room| room.name == dir) else {
            complaints.push(format!("crates/{dir}: not in the table of xtask/src/edges.rs"));
            continue;
        };
        let path = root.join("crates").join(&dir).join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let manifest: Table = text.parse().with_context(|| format!("parse {}", path.display()))?;
        complaints.extend(check(room, &manifest));
    }
    Ok(complaints)
}

fn check(room: &Room, manifest: &Table) -> Vec<String> {
    let mut complaints = Vec::new();
    let named = |section: &str| -> Vec<String> {
        manifest.get(section).and_then(|s| s.as_table()).map(|t| t.keys().cloned().collect()).unwrap_or_default()
    };
    for (section, extra) in
        [("dependencies", &[][..]), ("build-dependencies", &[][..]), ("dev-dependencies", room.tests_use)]
    {
        for dependency in named(section) {
            match dependency.strip_prefix("segue-") {
                Some(other) if !room.uses.contains(&other) && !extra.contains(&other) => complaints.push(format!(
                    "crates/{}: may not use {other} in [{section}]; see the table in xtask/src/edges.rs",
                    room.name
                )),
                None if room.pure && section == "dependencies" && ACTING.contains(&dependency.as_str()) => complaints
                    .push(format!("crates/{}: a pure room may not use {dependency}; let a driver act", room.name)),
                _ => {}
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complain(room: &str, manifest: &str) -> String {
        let room = ROOMS.iter().find(|r| r.name == room).unwrap();
        check(room, &manifest.parse().unwrap()).join("\n")
    }

    #[test]
    fn arrows_point_up_only() {
        assert_eq!(
            complain("volume", "[dependencies]\nsegue-types = \"1\"\n[dev-dependencies]\nsegue-des = \"1\""),
            ""
        );
        assert!(complain("volume", "[dependencies]\nsegue-des = \"1\"").contains("may not use des"));
        assert!(complain("wire", "[dependencies]\nsegue-node = \"1\"").contains("may not use node"));
        assert!(complain("volume", "[dependencies]\ntokio = \"1\"").contains("pure room"));
        assert_eq!(complain("node", "[dependencies]\ntokio = \"1\""), "");
    }

    #[test]
    fn the_table_names_only_rooms_above() {
        for (i, room) in ROOMS.iter().enumerate() {
            for used in room.uses.iter().chain(room.tests_use) {
                assert!(ROOMS[..i].iter().any(|above| above.name == *used), "{} uses {used}", room.name);
            }
            let simulates = room.name == "models";
            assert!(simulates || !room.uses.contains(&"des"), "{} simulates in the real world", room.name);
        }
    }
}
