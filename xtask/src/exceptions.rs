//! The named list of files and functions that are longer than the limits.
//!
//! Owns: `xtask/exceptions.toml`. Never: lets an entry grow, or stay when it is no longer needed.
//! Invariant: every entry equals the length measured now; `fix` lowers and drops entries and adds none.

use crate::tidy;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where the list stands.
pub const LIST: &str = "xtask/exceptions.toml";

/// Lengths that are allowed by name: `path` for a file, `path::function` for a function.
pub type Exceptions = BTreeMap<String, usize>;

/// Reads the list; an absent file is an empty list.
pub fn read(root: &Path) -> Result<Exceptions> {
    let path = root.join(LIST);
    if !path.exists() {
        return Ok(Exceptions::new());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("read {LIST}"))?;
    let table: BTreeMap<String, Exceptions> = toml::from_str(&text).with_context(|| format!("parse {LIST}"))?;
    Ok(table.into_values().flatten().collect())
}

/// Compares what was measured as too long with what is allowed; returns the complaints.
pub fn compare(measured: &Exceptions, allowed: &Exceptions) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, lines) in measured {
        match allowed.get(name) {
            None => complaints.push(format!("{name}: {lines} lines; split it ({})", tidy::limits_text())),
            Some(most) if lines > most => {
                complaints.push(format!("{name}: grew from {most} to {lines} lines; entries of {LIST} only shrink"));
            }
            Some(most) if lines < most => {
                complaints.push(format!("{name}: shrank from {most} to {lines} lines; run `cargo xtask fix`"));
            }
            Some(_) => {}
        }
    }
    for name in allowed.keys().filter(|name| !measured.contains_key(*name)) {
        complaints.push(format!("{name}: needs no exception any more; run `cargo xtask fix`"));
    }
    complaints
}

/// Writes the list with every entry at most as long as now, and without those no longer needed.
pub fn lower(root: &Path) -> Result<()> {
    let allowed = read(root)?;
    let measured = tidy::too_long(root)?;
    let mut text = String::from(
        "# Files and functions longer than the limits, by name, with their length. This list only shrinks:\n\
         # `cargo xtask fix` lowers and drops entries, and `cargo xtask check` refuses growth.\n\n[lines]\n",
    );
    for (name, most) in &allowed {
        if let Some(lines) = measured.get(name) {
            text.push_str(&format!("\"{name}\" = {}\n", lines.min(most)));
        }
    }
    fs::write(root.join(LIST), text).with_context(|| format!("write {LIST}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&str, usize)]) -> Exceptions {
        entries.iter().map(|(name, lines)| ((*name).to_owned(), *lines)).collect()
    }

    #[test]
    fn the_list_only_shrinks() {
        let allowed = list(&[("a", 80), ("b", 80), ("c", 80), ("d", 80)]);
        let measured = list(&[("a", 80), ("b", 81), ("c", 79), ("e", 90)]);
        let complaints = compare(&measured, &allowed).join("\n");
        assert!(!complaints.contains("a:"), "{complaints}");
        for part in ["b: grew", "c: shrank", "d: needs no exception", "e: 90 lines; split"] {
            assert!(complaints.contains(part), "{part} missing in {complaints}");
        }
    }
}
