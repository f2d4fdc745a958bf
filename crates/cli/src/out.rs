//! What commands print: JSON objects with a schema, neat tables, plain lines.
//!
//! Owns: stdout. Never: prints prose there in `--json` mode.
//! Invariant: a reader that goes away (broken pipe) ends the command with exit code 0.

use crate::Global;
use serde::Serialize;
use std::io::Write;

/// Writes to stdout, whole; a broken pipe ends the process as success.
pub fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        let code = i32::from(error.kind() != std::io::ErrorKind::BrokenPipe) * crate::exit::ExitCode::Io as i32;
        std::process::exit(code);
    }
}

impl Global {
    /// Prints `value` as one JSON object with `schema` (for example `volume` for `segue.volume.v1`), or as text.
    ///
    /// A value that is not an object (a list, a number) is put under the key `items`.
    pub fn print(&self, noun: &str, value: &impl Serialize, text: impl FnOnce() -> String) {
        if !self.json {
            return print(&text());
        }
        let mut object = serde_json::Map::new();
        object.insert("schema".into(), format!("segue.{noun}.v1").into());
        match serde_json::to_value(value).expect("printed shapes are plain data") {
            serde_json::Value::Object(fields) => object.extend(fields),
            serde_json::Value::Null => {}
            other => drop(object.insert("items".into(), other)),
        }
        print(&format!("{}\n", serde_json::Value::Object(object)));
    }

    /// Reports that something was done: `{"schema":"segue.done.v1","done":WHAT}`, or a line on stderr.
    pub fn done(&self, what: &str) {
        if self.json {
            self.print("done", &serde_json::json!({ "done": what }), String::new);
        } else {
            eprintln!("{what}");
        }
    }
}

/// Rows of text in aligned columns, the first row being the heads. A column whose head ends in `>` is set right.
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these heads.
    pub fn new(heads: &[&str]) -> Table {
        let right = heads.iter().map(|h| h.ends_with('>')).collect();
        let heads = heads.iter().map(|h| h.trim_end_matches('>').to_owned()).collect();
        Table { right, rows: vec![heads] }
    }

    /// Adds a row; it has as many cells as there are heads.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.right.len(), "a row has a cell for each head");
        self.rows.push(cells);
    }

    /// The table as text, each line ended.
    pub fn render(&self) -> String {
        let width = |c: usize| self.rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let w = widths[c];
                let cell = if self.right[c] { format!("{cell:>w$}") } else { format!("{cell:<w$}") };
                line.push_str(if c == 0 { "" } else { "  " });
                line.push_str(&cell);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// An error and its sources in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut all = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        all = format!("{all}: {source}");
        cause = source.source();
    }
    all
}

/// "key  value" lines, aligned.
pub fn fields(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(k, _)| k.len()).max().unwrap_or(0);
    pairs.iter().map(|(k, v)| format!("{k:<width$}  {v}\n")).collect()
}

/// A size for people: at most three digits and a unit, for example "1.50 GiB".
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 100.0 { 0 } else { 1 + usize::from(value < 10.0) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// "3s", "12m", "5h", "3d" since a time in milliseconds of Unix time.
pub fn ago(unix_ms: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let s = (now.as_millis() as u64).saturating_sub(unix_ms) / 1000;
    match s {
        0..=119 => format!("{s}s"),
        120..=7199 => format!("{}m", s / 60),
        7200..=172_799 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_cli_tables_align() {
        let mut table = Table::new(&["NAME", "SIZE>"]);
        table.row(vec!["a".into(), "10 GiB".into()]);
        table.row(vec!["longer".into(), "1 B".into()]);
        assert_eq!(table.render(), "NAME      SIZE\na       10 GiB\nlonger     1 B\n");
        assert_eq!(human_bytes(1536 << 20), "1.50 GiB");
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(1 << 40), "1.00 TiB");
    }
}
