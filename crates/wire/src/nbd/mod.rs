//! The NBD protocol: fixed newstyle handshake, simple, structured and extended transmission.
//!
//! Owns: constants, headers, the server's and the client's session machine. Never: touches a payload byte.
//! Invariant: payloads stay in the stream; a machine only says how long they are and whose they are.

pub mod client;
pub mod proto;
pub mod reply;
pub mod server;
mod split;

pub use proto::{Command, Errno, Request};
pub use reply::Replies;
pub use split::{Pieces, pieces};
