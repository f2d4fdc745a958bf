//! Settings as `key=value`.
//!
//! Owns: their parsing, and that none is misspelt or left over. Never: knows what a key means.
//! Invariant: a key that nobody asked for is an error.

use segue_types::{Nanos, parse_duration_ns, parse_size};
use std::collections::BTreeMap;

/// A key that a model or every model takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it sets.
    pub about: &'static str,
    /// Its value when it is not given; empty for none.
    pub default: &'static str,
}

/// Why settings cannot be used. The caller corrects the named key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionError {
    /// Not a number.
    #[error("{key} takes a whole number")]
    Number {
        /// The key.
        key: &'static str,
    },
    /// Not a size.
    #[error("{key} takes a size, for example 128KiB")]
    Size {
        /// The key.
        key: &'static str,
    },
    /// Not a duration.
    #[error("{key} takes a duration, for example 10ms")]
    Duration {
        /// The key.
        key: &'static str,
    },
    /// Not a truth value.
    #[error("{key} takes true or false")]
    Truth {
        /// The key.
        key: &'static str,
    },
    /// Not one of the words.
    #[error("{key} takes one of: {words}")]
    Word {
        /// The key.
        key: &'static str,
        /// What it takes.
        words: &'static str,
    },
    /// Out of range.
    #[error("{key} must be {range}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its range.
        range: &'static str,
    },
    /// Nobody takes this key.
    #[error("unknown setting {key:?}; `segue sim list` shows what each model takes")]
    Unknown {
        /// As given.
        key: Box<str>,
    },
}

impl OptionError {
    /// Whether all rules hold; a rule is whether it does, its key, and the key's range.
    ///
    /// # Errors
    /// Names key and range of the first that does not.
    pub fn unless(rules: &[(bool, &'static str, &'static str)]) -> Result<(), OptionError> {
        match rules.iter().find(|(sound, _, _)| !sound) {
            Some((_, key, range)) => Err(OptionError::Range { key, range }),
            None => Ok(()),
        }
    }
}

/// Settings not yet taken.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Options(BTreeMap<Box<str>, Box<str>>);

impl Options {
    /// No settings.
    pub const fn new() -> Options {
        Options(BTreeMap::new())
    }

    /// Adds or replaces a setting.
    pub fn set(&mut self, key: &str, value: &str) -> &mut Options {
        self.0.insert(key.into(), value.into());
        self
    }

    fn take<T>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Option<T>,
        bad: OptionError,
    ) -> Result<Option<T>, OptionError> {
        self.0.remove(key).map(|value| parse(&value).ok_or(bad)).transpose()
    }

    /// Takes a whole number.
    ///
    /// # Errors
    /// When the value is none.
    pub fn number(&mut self, key: &'static str) -> Result<Option<u64>, OptionError> {
        self.take(key, |v| v.parse().ok(), OptionError::Number { key })
    }

    /// Takes a size in bytes.
    ///
    /// # Errors
    /// When the value is none.
    pub fn size(&mut self, key: &'static str) -> Result<Option<u64>, OptionError> {
        self.take(key, |v| parse_size(v).ok(), OptionError::Size { key })
    }

    /// Takes a duration.
    ///
    /// # Errors
    /// When the value is none.
    pub fn duration(&mut self, key: &'static str) -> Result<Option<Nanos>, OptionError> {
        self.take(key, |v| parse_duration_ns(v).ok(), OptionError::Duration { key })
    }

    /// Takes true or false.
    ///
    /// # Errors
    /// When the value is neither.
    pub fn truth(&mut self, key: &'static str) -> Result<Option<bool>, OptionError> {
        self.take(key, |v| v.parse().ok(), OptionError::Truth { key })
    }

    /// Takes one of a few words; `words` lists them for people.
    ///
    /// # Errors
    /// When `parse` knows no such word.
    pub fn word<T>(
        &mut self,
        key: &'static str,
        words: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, OptionError> {
        self.take(key, parse, OptionError::Word { key, words })
    }

    /// Ends the taking.
    ///
    /// # Errors
    /// Names the first setting that nobody took.
    pub fn finish(self) -> Result<(), OptionError> {
        match self.0.into_keys().next() {
            Some(key) => Err(OptionError::Unknown { key }),
            None => Ok(()),
        }
    }
}
