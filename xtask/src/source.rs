//! The project's own source files.
//!
//! Owns: which files are looked at, and where the production part of one ends. Never: judges them.
//! Invariant: files come in a fixed order, so two runs over one tree print the same.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// One text file of the project.
pub struct Source {
    /// Path from the workspace root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl Source {
    /// True for Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Lines before the file's own test module; all lines when it has none.
    pub fn production_lines(&self) -> usize {
        let lines: Vec<&str> = self.text.lines().collect();
        let test_module = |i: &usize| {
            lines[*i] == "#[cfg(test)]" && lines.get(i + 1).is_some_and(|l| l.starts_with("mod ") && l.ends_with('{'))
        };
        (0..lines.len()).find(test_module).unwrap_or(lines.len())
    }
}

const DIRS: [&str; 6] = ["crates", "xtask", "scripts", ".ci", ".cargo", "fuzz"];
const TEXT_ENDINGS: [&str; 4] = ["rs", "toml", "sh", "py"];

/// Reads every Rust, TOML and script file below the project's own folders, and the text files of the root.
pub fn read_all(root: &Path) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    for dir in DIRS {
        if root.join(dir).is_dir() {
            walk(&root.join(dir), &mut paths)?;
        }
    }
    for name in ["Makefile", "Cargo.toml", "rustfmt.toml", "clippy.toml"] {
        paths.push(root.join(name));
    }
    paths.retain(|path| path.is_file());
    paths.sort();
    let mut sources = Vec::new();
    for path in paths {
        let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        sources.push(Source { path: name, text: String::from_utf8_lossy(&bytes).into_owned() });
    }
    Ok(sources)
}

fn walk(dir: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | "corpus" | "artifacts" | "__pycache__") {
                walk(&path, paths)?;
            }
            continue;
        }
        let ending = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        // Scripts without an ending stand in scripts/ and .ci/.
        let script = ending.is_empty()
            && (path
                .parent()
                .is_some_and(|p| ["scripts", ".ci"].iter().any(|dir| p.file_name() == Some(OsStr::new(dir)))));
        if script || TEXT_ENDINGS.contains(&ending.as_str()) {
            paths.push(path);
        }
    }
    Ok(())
}
