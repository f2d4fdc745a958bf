//! The admin client as commands use it.
//!
//! Owns: turning the global flags into a client. Never: holds calls of its own; see `segue_node::client`.
//! Invariant: a command that needs no node never connects to one.

use crate::Global;
use segue_node::client::AdminClient;

impl Global {
    /// A blocking client of the node named by `--admin`. Connects only when asked something.
    pub fn client(&self) -> AdminClient {
        AdminClient::new(&self.admin)
    }
}
