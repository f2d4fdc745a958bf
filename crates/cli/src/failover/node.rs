//! The race's questions to the storage node, for all volumes of the application at once.
//!
//! Owns: the calls, and which failure of a call means what. Never: retries; the race does.
//! Invariant: a failure is `Refused` only when the node itself said no.

use super::app::App;
use segue_failover::note::Note;
use segue_failover::race::Failure;
use segue_node::client::{AdminClient, ClientError};
use segue_types::api::{ApiErrorKind, CollapseOutcome, LeaseGrant, SuperPhase};
use segue_types::{LeaseId, SuperId};
use std::time::Duration;

/// The node, seen by one application.
#[derive(Clone)]
pub struct Node {
    client: AdminClient,
    volumes: Vec<String>,
    holder: String,
}

/// Why a question got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The call failed or was refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The node gave a lease that is none.
    #[error("the node answered with a lease that is not one")]
    Lease(#[from] segue_types::ParseLeaseIdError),
    /// Somebody else holds the volume.
    #[error("volume {volume} is held by `{holder}`; stop that, or break its lease with `segue lease break {volume}`")]
    Held {
        /// The volume.
        volume: String,
        /// Who.
        holder: String,
    },
}

impl NodeError {
    /// What the race should make of it.
    pub fn failure(&self) -> Failure {
        match self {
            NodeError::Held { .. } => Failure::Refused,
            NodeError::Lease(_) => Failure::Unknown,
            NodeError::Client(error) => match error.kind() {
                None | Some(ApiErrorKind::Io | ApiErrorKind::NoSpace | ApiErrorKind::Internal) => Failure::Unknown,
                Some(_) => Failure::Refused,
            },
        }
    }
}

/// State of the volumes.
pub struct Look {
    /// Phase of the first volume's superposition, which the others share.
    pub phase: SuperPhase,
    /// Its id.
    pub super_id: Option<SuperId>,
    /// The note.
    pub note: String,
}

impl Node {
    /// The node of an application.
    pub fn new(app: &App) -> Node {
        let client = AdminClient::new(&app.admin).with_limit(Duration::from_secs(10));
        Node { client, volumes: app.volume_names(), holder: app.holder() }
    }

    /// The same under other words, for what is not the monitor.
    #[must_use]
    pub fn with_holder(self, holder: String) -> Node {
        Node { holder, ..self }
    }

    /// Looks at the first volume.
    pub fn look(&self) -> Result<Look, NodeError> {
        let info = self.client.volume(&self.volumes[0])?;
        Ok(Look { phase: info.super_phase, super_id: info.super_id.map(SuperId), note: info.note })
    }

    /// Writes the note.
    pub fn save_note(&self, note: &Note) -> Result<(), NodeError> {
        Ok(self.client.set_note(&self.volumes[0], &note.to_string())?)
    }

    /// Clears the note.
    pub fn clear_note(&self) -> Result<(), NodeError> {
        Ok(self.client.set_note(&self.volumes[0], "")?)
    }

    /// `super` of all volumes.
    pub fn superpose(&self) -> Result<(SuperId, Vec<LeaseId>), NodeError> {
        let grant = self.client.superpose(&self.volumes, &self.holder)?;
        let leases: Result<Vec<LeaseId>, _> = grant.children.iter().map(|child| child.lease.parse()).collect();
        Ok((SuperId(grant.super_id), leases?))
    }

    /// `collapse`.
    pub fn collapse(&self, super_id: SuperId) -> Result<CollapseOutcome, NodeError> {
        Ok(self.client.collapse(&self.volumes[0], super_id.0)?.outcome)
    }

    /// `abort`.
    pub fn abort(&self, super_id: SuperId) -> Result<(), NodeError> {
        Ok(self.client.abort(&self.volumes[0], super_id.0)?)
    }

    /// Breaks every lease.
    pub fn fence(&self) -> Result<(), NodeError> {
        for volume in &self.volumes {
            self.client.break_lease(volume)?;
        }
        Ok(())
    }

    /// Acquires every lease; one that these same words hold (whose grant was lost) is broken first.
    pub fn acquire(&self) -> Result<Vec<LeaseId>, NodeError> {
        self.volumes.iter().map(|volume| self.acquire_one(volume)).collect()
    }

    fn acquire_one(&self, volume: &str) -> Result<LeaseId, NodeError> {
        let lease = |grant: LeaseGrant| Ok(grant.lease.parse()?);
        let busy = match self.client.acquire_lease(volume, &self.holder) {
            Ok(grant) => return lease(grant),
            Err(error) if error.kind() == Some(ApiErrorKind::Busy) => error,
            Err(error) => return Err(error.into()),
        };
        match self.client.volume(volume)?.lease {
            Some(held) if held.holder == self.holder => {
                self.client.break_lease(volume)?;
                lease(self.client.acquire_lease(volume, &self.holder)?)
            }
            Some(held) => Err(NodeError::Held { volume: volume.to_owned(), holder: held.holder }),
            None => Err(busy.into()),
        }
    }

    /// Gives up whatever this application still holds, and ends its superposition.
    pub fn give_up(&self) -> Result<(), NodeError> {
        for volume in &self.volumes {
            let info = self.client.volume(volume)?;
            let ours = info.lease.as_ref().is_some_and(|lease| lease.holder == self.holder);
            if ours || info.super_id.is_some() {
                self.client.break_lease(volume)?;
            }
        }
        Ok(())
    }
}
