//! What can fail inside a node, how it is made to fail on purpose, and how far a recovery reached.
//!
//! Owns: the names of task kinds, fault kinds and recovery levels. Never: injects or recovers anything.
//! Invariant: each kind has one name, and its place in `ALL` is its index in every table of counters.

use serde::{Deserialize, Serialize};

/// What a task of a node does: the unit of blame, of injection and of counting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TaskKind {
    /// A client's read, block status or cache hint.
    Read,
    /// A client's write, discard or zeroes.
    Write,
    /// A client's flush, and the group commit behind it.
    Journal,
    /// A merge or drop of a layer in the background.
    Cleanup,
    /// Writing out the map, bitmap and records.
    Checkpoint,
    /// Reading everything in the background to verify it.
    Scrub,
    /// An operation of an operator, monitor or session.
    Admin,
    /// Reading requests from a client, its handshake, and its replies.
    Connection,
    /// The restart of a pool's engine itself.
    Restart,
}

impl TaskKind {
    /// Every kind.
    pub const ALL: [TaskKind; 9] = [
        TaskKind::Read,
        TaskKind::Write,
        TaskKind::Journal,
        TaskKind::Cleanup,
        TaskKind::Checkpoint,
        TaskKind::Scrub,
        TaskKind::Admin,
        TaskKind::Connection,
        TaskKind::Restart,
    ];

    /// Its name in commands, metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            TaskKind::Read => "read",
            TaskKind::Write => "write",
            TaskKind::Journal => "journal",
            TaskKind::Cleanup => "cleanup",
            TaskKind::Checkpoint => "checkpoint",
            TaskKind::Scrub => "scrub",
            TaskKind::Admin => "admin",
            TaskKind::Connection => "connection",
            TaskKind::Restart => "restart",
        }
    }
}

impl std::fmt::Display for TaskKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no task kind's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a task kind; give one of read, write, journal, cleanup, checkpoint, scrub, admin, connection, restart")]
pub struct ParseTaskKindError;

impl std::str::FromStr for TaskKind {
    type Err = ParseTaskKindError;

    fn from_str(text: &str) -> Result<TaskKind, ParseTaskKindError> {
        TaskKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or(ParseTaskKindError)
    }
}

/// How an injected fault shows itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FaultKind {
    /// A panic that says where it struck.
    #[default]
    Panic,
    /// A failed assertion, which tells whoever recovers nothing: as a bug would.
    Invariant,
}

/// How far a recovery had to reach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RecoveryLevel {
    /// The task alone was run again or answered with an error.
    Task,
    /// The pool's engine was started again from its journal; its clients waited.
    Engine,
    /// The pool could not be recovered and answers errors until it is opened again.
    Pool,
    /// A connection was cut; its client may connect again.
    Connection,
}

impl RecoveryLevel {
    /// Every level.
    pub const ALL: [RecoveryLevel; 4] =
        [RecoveryLevel::Task, RecoveryLevel::Engine, RecoveryLevel::Pool, RecoveryLevel::Connection];

    /// Its name in metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            RecoveryLevel::Task => "task",
            RecoveryLevel::Engine => "engine",
            RecoveryLevel::Pool => "pool",
            RecoveryLevel::Connection => "connection",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_are_one_to_one() {
        for (index, kind) in TaskKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        for (index, level) in RecoveryLevel::ALL.into_iter().enumerate() {
            assert_eq!(level as usize, index);
        }
        assert_eq!("write ".parse::<TaskKind>(), Err(ParseTaskKindError));
    }
}
