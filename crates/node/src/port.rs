//! The way from the admin API to a pool's engine: one question, one answer, across threads.
//!
//! Owns: the names of pools and the hand-over of operations. Never: blocks the async thread.
//! Invariant: every question is answered, if only with "the core has stopped".

use segue_volume::op::{AdminError, AdminOp, AdminReply};
use tokio::sync::oneshot;

/// What an engine says to an admin operation.
pub type Answer = Result<AdminReply, AdminError>;

/// Carries an answer back to who asked; called at most once, from any thread.
pub type Reply = Box<dyn FnOnce(Answer) + Send>;

/// The core that owned the pool is gone: the node is stopping or its thread died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pool's core has stopped; the node is going down")]
pub struct CoreGone;

/// A pool as the admin API reaches it.
pub struct Port {
    name: String,
    drive: String,
    send: Box<dyn Fn(AdminOp, Reply) + Send + Sync>,
}

impl Port {
    /// A pool named `name` on `drive`; `send` hands an operation to its core and never blocks.
    pub fn new(name: String, drive: String, send: impl Fn(AdminOp, Reply) + Send + Sync + 'static) -> Port {
        Port { name, drive, send: Box::new(send) }
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pool's drive: a path, or `memory`.
    pub fn drive(&self) -> &str {
        &self.drive
    }

    /// Asks the engine. Cancel-safe in the sense that the operation happens whether or not anybody waits.
    ///
    /// # Errors
    /// [`CoreGone`]: whether the operation happened is not known.
    pub async fn ask(&self, op: AdminOp) -> Result<Answer, CoreGone> {
        let (tx, rx) = oneshot::channel();
        // Nobody waiting any more is fine: the operation was asked for and is done all the same.
        (self.send)(op, Box::new(move |answer| drop(tx.send(answer))));
        rx.await.map_err(|_| CoreGone)
    }
}
