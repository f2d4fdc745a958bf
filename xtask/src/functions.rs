//! Finds functions and their lengths in formatted Rust.
//!
//! Owns: the reading of `fn` lines and their closing braces. Never: parses Rust; it trusts the formatter.
//! Invariant: in formatted sources a function ends at the first `}` that stands as deep as its `fn` line.

/// A function and how many lines it takes, signature and braces included.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of its `fn`, from 1.
    pub line: usize,
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
}

/// All functions with a body, nested ones too.
pub fn find(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut raw_string = false;
    for (i, line) in lines.iter().enumerate() {
        let was_raw = raw_string;
        raw_string = toggles_raw_string(line, raw_string);
        if was_raw {
            continue;
        }
        let Some(name) = name_of(line) else { continue };
        if let Some(end) = end_of(&lines, i) {
            found.push(Function { name, line: i + 1, lines: end - i + 1 });
        }
    }
    found
}

/// Raw strings (`r#"..."#`) may hold lines that look like code.
fn toggles_raw_string(line: &str, inside: bool) -> bool {
    if inside { !line.contains("\"#") } else { line.rsplit_once("r#\"").is_some_and(|(_, tail)| !tail.contains("\"#")) }
}

fn name_of(line: &str) -> Option<String> {
    let mut words = line.trim_start();
    loop {
        if let Some(rest) = words.strip_prefix("fn ") {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            return (end > 0).then(|| rest[..end].to_owned());
        }
        let (word, rest) = words.split_once(' ')?;
        let modifier =
            matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub(");
        if !modifier {
            return None;
        }
        words = rest;
    }
}

fn end_of(lines: &[&str], start: usize) -> Option<usize> {
    let depth = indent(lines[start]);
    if lines[start].trim_end().ends_with('}') && lines[start].contains('{') {
        return Some(start);
    }
    for (i, line) in lines.iter().enumerate().skip(start) {
        let text = line.trim();
        let ends_here = indent(line) == depth && !text.is_empty();
        if ends_here && text == "}" {
            return Some(i);
        }
        // A signature without a body: in a trait or an extern block.
        if text.ends_with(';') && (i == start || (ends_here && text.starts_with(')'))) {
            return None;
        }
    }
    None
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_plain_nested_and_bodiless_functions() {
        let text = "\
pub fn one() {}

impl X {
    pub(crate) const fn two(
        a: u32,
    ) -> u32 {
        fn three() {
            four();
        }
        a
    }
}

trait T {
    fn five(&self);
    fn six(
        &self,
    ) -> u8;
}
const S: &str = r#\"
fn seven() {
}
\"#;
";
        let found: Vec<(String, usize)> = find(text).into_iter().map(|f| (f.name, f.lines)).collect();
        let expected = [("one", 1), ("two", 8), ("three", 3)];
        assert_eq!(found, expected.map(|(name, lines)| (name.to_owned(), lines)));
    }
}
