//! Rules about the text of the sources: headers, sizes, ASCII, banned words.
//!
//! Owns: the rules and their limits. Never: rewrites a file.
//! Invariant: every complaint names the file, the line where there is one, and what to do.

use crate::exceptions::{self, Exceptions};
use crate::source::{self, Source};
use crate::{edges, functions};
use anyhow::{Result, bail};
use std::path::Path;

/// Production lines of a file from which it is counted as long.
const FILE_SOFT: usize = 500;
/// Lines of a file, tests included, that need an exception.
const FILE_HARD: usize = 1000;
/// Lines of a function from which it is counted as long.
const FUNCTION_SOFT: usize = 40;
/// Lines of a function that need an exception.
const FUNCTION_HARD: usize = 70;

// Written in pieces so that this file does not complain about itself.
const BANNED: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "do it, or write an issue"),
    (concat!("FIX", "ME"), "fix it, or write an issue"),
    (concat!("to", "do!("), "no unfinished code"),
    (concat!("unimple", "mented!("), "no unfinished code"),
    (concat!("db", "g!("), "left over from debugging"),
    (concat!("place", "holder"), "no stand-ins"),
    (concat!("#[ig", "nore]"), "say why: #[ignore = \"...\"]"),
];

/// Runs every rule and prints what it found.
pub fn run(root: &Path) -> Result<()> {
    let sources = source::read_all(root)?;
    let mut complaints = edges::complaints(root)?;
    for source in &sources {
        complaints.extend(text_complaints(source));
    }
    complaints.extend(exceptions::compare(&measure(&sources), &exceptions::read(root)?));
    let (files, functions) = count_soft(&sources);
    eprintln!(
        "tidy: {} files; over the soft limits: {files} files of {FILE_SOFT}+ lines, {functions} functions of \
         {FUNCTION_SOFT}+ lines",
        sources.len()
    );
    for complaint in &complaints {
        eprintln!("tidy: {complaint}");
    }
    if !complaints.is_empty() {
        bail!("{} complaints of tidy", complaints.len());
    }
    Ok(())
}

/// The limits in words.
pub fn limits_text() -> String {
    format!("limits: {FILE_HARD} lines of a file, {FUNCTION_HARD} of a function")
}

/// What is longer than the hard limits now.
pub fn too_long(root: &Path) -> Result<Exceptions> {
    Ok(measure(&source::read_all(root)?))
}

fn measure(sources: &[Source]) -> Exceptions {
    let mut long = Exceptions::new();
    for source in sources.iter().filter(|s| s.is_rust()) {
        let lines = source.text.lines().count();
        if lines > FILE_HARD {
            long.insert(source.path.clone(), lines);
        }
        for function in functions::find(&source.text).into_iter().filter(|f| f.lines > FUNCTION_HARD) {
            long.insert(format!("{}::{}", source.path, function.name), function.lines);
        }
    }
    long
}

fn count_soft(sources: &[Source]) -> (usize, usize) {
    let rust = || sources.iter().filter(|s| s.is_rust());
    let files = rust().filter(|s| s.production_lines() > FILE_SOFT).count();
    let functions = rust().flat_map(|s| functions::find(&s.text)).filter(|f| f.lines > FUNCTION_SOFT).count();
    (files, functions)
}

fn text_complaints(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        let place = format!("{}:{}", source.path, number + 1);
        if !line.is_ascii() {
            complaints.push(format!("{place}: not ASCII; write it in plain letters"));
        }
        for (word, what) in BANNED.iter().filter(|(word, _)| line.contains(word)) {
            complaints.push(format!("{place}: `{word}`: {what}"));
        }
    }
    if source.is_rust() {
        complaints.extend(header_complaint(source));
    }
    complaints
}

/// A file opens with what it is, what it owns and never does, and its invariant, in `//!` lines.
fn header_complaint(source: &Source) -> Option<String> {
    let header: Vec<&str> = source.text.lines().take_while(|line| line.starts_with("//!")).collect();
    let text = header.join(" ");
    let parts = ["Owns: ", "Never: ", "Invariant: "].iter().all(|part| text.contains(part));
    let good = header.first().is_some_and(|line| line.len() > 10) && parts;
    (!good).then(|| {
        format!("{}: open with `//! WHAT IT IS.`, `//! Owns: ... Never: ...`, `//! Invariant: ...`", source.path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { path: "crates/x/src/a.rs".into(), text: text.into() }
    }

    #[test]
    fn headers_are_required() {
        let good = "//! A thing of a kind.\n//!\n//! Owns: it. Never: leaks.\n//! Invariant: holds.\nfn a() {}\n";
        assert_eq!(header_complaint(&source(good)), None);
        for bad in ["fn a() {}", "//! A thing of a kind.\n", &good.replace("Invariant", "Promise")] {
            assert!(header_complaint(&source(bad)).is_some(), "{bad}");
        }
    }

    #[test]
    fn words_and_letters_are_checked() {
        let header = "//! A thing of a kind.\n//!\n//! Owns: it. Never: leaks.\n//! Invariant: holds.\n";
        let bad = format!("{header}// {}: later\nlet caf\u{e9} = 1;\n", concat!("TO", "DO"));
        assert_eq!(text_complaints(&source(&bad)).len(), 2);
        assert_eq!(text_complaints(&source(header)).len(), 0);
    }

    #[test]
    fn long_functions_and_files_are_measured() {
        let body = "    a();\n".repeat(FUNCTION_HARD);
        let long = measure(&[source(&format!("fn f() {{\n{body}}}\n")), source(&"//\n".repeat(FILE_HARD + 1))]);
        assert_eq!(long.get("crates/x/src/a.rs::f"), Some(&(FUNCTION_HARD + 2)));
        assert_eq!(long.get("crates/x/src/a.rs"), Some(&(FILE_HARD + 1)));
    }
}
