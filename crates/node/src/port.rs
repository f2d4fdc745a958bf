//! The way from the admin API to a pool's engine: one question, one answer, across threads.
//!
//! Owns: the names of pools and the hand-over of operations. Never: blocks the async thread.
//! Invariant: every question is answered, if only with "the core has stopped".

use crate::qos::sharing_of;
use segue_runtime::drive::SharedDrive;
use segue_runtime::{CallError, MovePoolError, MoveReport, Runtime, Sharing, SharingState};
use segue_sched::qos::ShareError;
use segue_types::Share;
use segue_types::qos::{DriveProfile, SetPoolQos, SharePolicy};
use segue_volume::op::{AdminError, AdminOp, AdminReply};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// What an engine says to an admin operation.
pub type Answer = Result<AdminReply, AdminError>;

/// The core that owned the pool is gone: the node is stopping or its thread died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pool's core has stopped; the node is going down")]
pub struct CoreGone;

/// A pool as the admin API reaches it.
pub struct Port {
    name: String,
    drive: String,
    runtime: Runtime,
    /// The drive, when the pool is one of its slices.
    shared: Option<Arc<SharedDrive>>,
    /// How the drive is shared, as it was last set.
    qos: Mutex<(SharePolicy, DriveProfile)>,
}

impl Port {
    /// The pool named `name` of the runtime, on `drive`.
    pub fn new(name: String, drive: String, runtime: Runtime) -> Port {
        Port { name, drive, runtime, shared: None, qos: Mutex::default() }
    }

    /// The same pool as a slice of this drive.
    #[must_use]
    pub fn on(self, drive: Arc<SharedDrive>) -> Port {
        Port { shared: Some(drive), ..self }
    }

    /// The same pool, its drive shared like this from now on. `of` slices divide what the drive can do.
    #[must_use]
    pub fn shared_by(self, policy: SharePolicy, profile: &DriveProfile, of: u32) -> Port {
        let part = |whole: u64| if whole == 0 { 0 } else { (whole / of as u64).max(1) };
        let profile = DriveProfile {
            capacity_iops: part(profile.capacity_iops),
            knee_depth: part(profile.knee_depth.into()) as u32,
            ..*profile
        };
        let sharing = sharing_of(policy, &profile, self.drive == "memory");
        // A runtime that has just opened the pool has it; if it stops meanwhile, that is told by what follows.
        drop(self.runtime.sharing_wait(&self.name, Some(sharing)));
        Port { qos: Mutex::new((policy, profile)), ..self }
    }

    /// Bytes of the drive that no slice has leased yet: any of them may get them.
    pub fn shared_free_bytes(&self) -> u64 {
        self.shared.as_ref().map_or(0, |drive| drive.home_free_bytes())
    }

    /// True for a slice of a shared drive.
    pub fn is_slice(&self) -> bool {
        self.shared.is_some()
    }

    /// True for a slice of the pool of this name.
    pub fn is_slice_of(&self, pool: &str) -> bool {
        self.shared.is_some() && self.name.rsplit_once('/').is_some_and(|(of, _)| of == pool)
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pool's drive: a path, or `memory`.
    pub fn drive(&self) -> &str {
        &self.drive
    }

    /// The core that serves it now.
    pub fn core(&self) -> u32 {
        self.runtime.pools().iter().find(|place| place.name == self.name).map_or(0, |place| place.core as u32)
    }

    /// Hands the pool over to another core.
    ///
    /// # Errors
    /// [`CoreGone`]; within, what the runtime refused.
    pub async fn bind(&self, core: usize) -> Result<Result<MoveReport, MovePoolError>, CoreGone> {
        let (tx, rx) = oneshot::channel();
        if let Err(error) = self.runtime.move_pool(&self.name, core, move |result| {
            // Nobody may wait any more.
            let _ = tx.send(result);
        }) {
            return Ok(Err(error));
        }
        rx.await.map_err(|_| CoreGone)
    }

    /// Asks the engine. The operation happens even if nobody waits for its answer any more.
    ///
    /// # Errors
    /// [`CoreGone`]: whether the operation happened is not known.
    pub async fn ask(&self, op: AdminOp) -> Result<Answer, CoreGone> {
        let (tx, rx) = oneshot::channel();
        self.runtime.admin(&self.name, op, move |answer| drop(tx.send(answer))).map_err(|_| CoreGone)?;
        match rx.await {
            Ok(Ok(reply)) => Ok(Ok(reply)),
            Ok(Err(CallError::Refused(error))) => Ok(Err(error)),
            // Only settings that reserve something are refused so: see `set_share`.
            Ok(Err(CallError::NoPool | CallError::Stopped | CallError::Share(_))) | Err(_) => Err(CoreGone),
        }
    }

    /// Changes a volume's share of the drive, if the drive can keep what it promises.
    ///
    /// # Errors
    /// [`CoreGone`]: whether it happened is not known.
    pub async fn set_share(&self, volume: &str, share: Option<Share>) -> Result<Result<Answer, ShareError>, CoreGone> {
        let (tx, rx) = oneshot::channel();
        let op = AdminOp::SetShare { name: volume.to_owned(), share };
        self.runtime.admin(&self.name, op, move |answer| drop(tx.send(answer))).map_err(|_| CoreGone)?;
        match rx.await {
            Ok(Ok(reply)) => Ok(Ok(Ok(reply))),
            Ok(Err(CallError::Refused(error))) => Ok(Ok(Err(error))),
            Ok(Err(CallError::Share(error))) => Ok(Err(error)),
            Ok(Err(CallError::NoPool | CallError::Stopped)) | Err(_) => Err(CoreGone),
        }
    }

    /// Changes how the drive is shared, where `set` says so, and tells how it is.
    ///
    /// # Errors
    /// [`CoreGone`].
    pub async fn set_qos(&self, set: SetPoolQos) -> Result<(SharePolicy, DriveProfile, SharingState), CoreGone> {
        let (policy, profile) = {
            let mut qos = self.qos.lock().unwrap_or_else(PoisonError::into_inner);
            *qos = (set.policy.unwrap_or(qos.0), set.profile.unwrap_or(qos.1));
            *qos
        };
        let changes = set != SetPoolQos::default();
        let sharing = changes.then(|| sharing_of(policy, &profile, self.drive == "memory"));
        Ok((policy, profile, self.sharing(sharing).await?))
    }

    /// How the drive is shared; with `set`, it is shared like that from now on.
    ///
    /// # Errors
    /// [`CoreGone`].
    pub async fn sharing(&self, set: Option<Sharing>) -> Result<SharingState, CoreGone> {
        let (tx, rx) = oneshot::channel();
        self.runtime.sharing(&self.name, set, move |state| drop(tx.send(state))).map_err(|_| CoreGone)?;
        rx.await.ok().and_then(Result::ok).ok_or(CoreGone)
    }
}
