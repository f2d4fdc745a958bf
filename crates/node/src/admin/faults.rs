//! Routes about panics: those on purpose, and what became of all of them.
//!
//! Owns: /v1/node/inject, /v1/node/recoveries, /v1/node/scopes. Never: injects anything where the configuration does not allow it.
//! Invariant: what was recovered is counted once, whoever caused it.

use super::errors::{Outcome, Refusal};
use super::{Body, Shared};
use axum::Json;
use segue_runtime::Snapshot;
use segue_types::api::{ApiError, ApiErrorKind, InjectRequest, Recoveries, RecoveryCount, RecoveryScope};
use segue_types::{RecoveryLevel, TaskKind};
use segue_volume::fault::Faults;

/// Lets tasks of the node panic on purpose, or ends that. For tests of what the node survives.
#[utoipa::path(post, path = "/v1/node/inject", request_body = InjectRequest, responses((status = 200, description = "in force"), (status = 400, body = ApiError), (status = 403, body = ApiError)))]
pub async fn inject(state: Shared, Body(request): Body<InjectRequest>) -> Outcome<()> {
    if !state.allow_fault_injection {
        let message = "this node does not let itself be made to fail; set allow_fault_injection = true at the top of its \
                       configuration, if nobody depends on it, and start it again";
        return Err(Refusal::new(ApiErrorKind::Denied, message));
    }
    if request.one_in == 0 {
        return Err(Refusal::new(ApiErrorKind::Invalid, "one_in is 0; one task in at least 1 can fail"));
    }
    let mut faults = match request.tasks.is_empty() {
        true => Faults::OFF,
        false => Faults::seeded(request.seed, request.kind),
    };
    request.tasks.iter().for_each(|task| faults.set(*task, request.one_in));
    tracing::warn!(tasks = ?request.tasks, one_in = request.one_in, kind = ?request.kind, "faults on purpose");
    state.runtime.inject(&faults);
    Ok(Json(()))
}

/// How often the node recovered from a panic, by kind of task and level.
#[utoipa::path(get, path = "/v1/node/recoveries", responses((status = 200, body = Recoveries)))]
pub async fn recoveries(state: Shared) -> Json<Recoveries> {
    Json(sum(&(state.counters)()))
}

/// What recovers together: scopes as they are declared, and their parts as observed from locks lately.
#[utoipa::path(get, path = "/v1/node/scopes", responses((status = 200, body = Vec<RecoveryScope>)))]
pub async fn scopes(state: Shared) -> Json<Vec<RecoveryScope>> {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    // A core that stops meanwhile drops its sender: what it has is left out.
    state.runtime.scopes(move |scopes| drop(tell.send(scopes)));
    let mut all = Vec::new();
    while let Some(scopes) = told.recv().await {
        all.extend(scopes);
    }
    all.sort_by(|a, b| (a.core, &a.kind, &a.name).cmp(&(b.core, &b.kind, &b.name)));
    Json(all)
}

/// The recoveries of all cores.
pub fn sum(cores: &[Snapshot]) -> Recoveries {
    let pairs = TaskKind::ALL.into_iter().flat_map(|task| RecoveryLevel::ALL.map(|level| (task, level)));
    let count = |(task, level): (TaskKind, RecoveryLevel)| RecoveryCount {
        task,
        level,
        count: cores.iter().map(|core| core.recoveries[task as usize][level as usize]).sum(),
    };
    Recoveries {
        counts: pairs.map(count).filter(|c| c.count > 0).collect(),
        took_ns_sum: cores.iter().map(|core| core.recovery_ns_sum).sum(),
        took_ns_max: cores.iter().map(|core| core.recovery_ns_max).max().unwrap_or(0),
    }
}
