//! The shipped APP.toml profiles.
//!
//! Owns: the texts. Never: fills one in; people edit what `segue failover profile` prints.
//! Invariant: every shipped profile parses as it is.

/// Names of the profiles.
pub const NAMES: [&str; 2] = ["postgresql", "mariadb"];

/// The text of a profile, commented.
pub fn text(name: &str) -> Option<&'static str> {
    match name {
        "postgresql" => Some(include_str!("profiles/postgresql.toml")),
        "mariadb" => Some(include_str!("profiles/mariadb.toml")),
        _ => None,
    }
}
