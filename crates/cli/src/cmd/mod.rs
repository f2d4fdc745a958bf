//! The nouns that operate a node: thin calls of the admin API.
//!
//! Owns: their arguments and what they print. Never: decides anything that the node should decide.
//! Invariant: every verb has a `--json` form with a schema.

mod balance;
pub mod completions;
pub mod config;
pub mod drive;
pub mod inject;
pub mod lease;
mod moves;
pub mod node;
mod offline;
pub mod pool;
mod qos;
mod scopes;
mod start;
pub mod supers;
pub mod token;
pub mod volume;
