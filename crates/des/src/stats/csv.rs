//! Tables as comma-separated text.
//!
//! Owns: quoting and number formats. Never: opens a file.
//! Invariant: every row has as many cells as there are heads; equal tables give equal bytes on every machine.

use serde::{Serialize, Serializer};
use std::fmt::{self, Write};

/// One cell.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A whole number.
    Whole(u64),
    /// A number, written with as many digits as tell it apart from every other.
    Number(f64),
    /// Text.
    Text(String),
    /// Nothing was seen.
    Empty,
}

impl From<u64> for Cell {
    fn from(value: u64) -> Cell {
        Cell::Whole(value)
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Cell {
        Cell::Number(value)
    }
}

impl From<&str> for Cell {
    fn from(value: &str) -> Cell {
        Cell::Text(value.to_owned())
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Empty, Into::into)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Whole(value) => write!(f, "{value}"),
            Cell::Number(value) => write!(f, "{value}"),
            Cell::Text(text) if text.contains(['"', ',', '\n', '\r']) => write!(f, "\"{}\"", text.replace('"', "\"\"")),
            Cell::Text(text) => f.write_str(text),
            Cell::Empty => Ok(()),
        }
    }
}

/// Rows below heads.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table.
    pub fn new(heads: &[&'static str]) -> Table {
        Table { heads: heads.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has not as many cells as there are heads.
    pub fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.heads.len(), "a cell per head");
        self.rows.push(cells);
    }

    /// The heads.
    pub fn heads(&self) -> &[&'static str] {
        &self.heads
    }

    /// The rows.
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Writes heads and rows, each line ended by a line feed (RFC 4180 but for that).
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_csv(&self, out: &mut impl Write) -> fmt::Result {
        writeln!(out, "{}", self.heads.join(","))?;
        for row in &self.rows {
            for (i, cell) in row.iter().enumerate() {
                write!(out, "{}{cell}", if i == 0 { "" } else { "," })?;
            }
            out.write_char('\n')?;
        }
        Ok(())
    }

    /// The same as text.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        self.write_csv(&mut text).expect("a string takes all");
        text
    }
}

impl Serialize for Table {
    /// As a list of one object per row.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows.iter().map(|row| Row(&self.heads, row)))
    }
}

struct Row<'a>(&'a [&'static str], &'a [Cell]);

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().zip(self.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let mut table = Table::new(&["name", "count", "mean"]);
        table.row(vec!["plain".into(), 3.into(), 0.1.into()]);
        table.row(vec!["a \"b\", c".into(), Cell::Empty, Some(1e21).into()]);
        table.row(vec!["".into(), u64::MAX.into(), None::<f64>.into()]);
        let expected =
            "name,count,mean\nplain,3,0.1\n\"a \"\"b\"\", c\",,1000000000000000000000\n,18446744073709551615,\n";
        assert_eq!(table.csv(), expected);
    }

    #[test]
    #[should_panic(expected = "a cell per head")]
    fn short_rows_are_refused() {
        Table::new(&["a", "b"]).row(vec![1.into()]);
    }
}
