//! Routes about the right to write: leases, super, collapse, abort.
//!
//! Owns: drawing lease ids and handing them out. Never: logs a lease id.
//! Invariant: an answer is given only after the engine made the change durable.

use super::errors::{Outcome, Refusal};
use super::{Body, Shared, about, done};
use axum::Json;
use axum::extract::Path;
use segue_runtime::{secret, unix_ms};
use segue_types::api::{
    AcquireLease, ApiError, ApiErrorKind, CollapseOutcome, CollapseReply, LeaseGrant, SuperGrant, SuperRef,
    SuperRequest,
};
use segue_types::{LeaseId, SuperId};
use segue_volume::op::{AdminOp, AdminReply};

/// Longest text of a holder, bytes.
const HOLDER_BYTES_MAX: usize = 128;

/// Grants a durable lease on the volume's primary version, if it is free.
#[utoipa::path(post, path = "/v1/volumes/{volume}/lease", params(("volume" = String, Path, description = "Its name")), request_body = AcquireLease, responses((status = 200, body = LeaseGrant), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn acquire(
    state: Shared,
    Path(name): Path<String>,
    Body(request): Body<AcquireLease>,
) -> Outcome<LeaseGrant> {
    check_holder(&request.holder)?;
    let pool = state.pool_of(&name).await?;
    let lease = LeaseId(secret());
    let holder = request.holder;
    let op = AdminOp::Acquire { name: name.clone(), lease, holder: holder.clone(), now_unix_ms: unix_ms() };
    let AdminReply::Leased { epoch } = about(&name, pool.ask(op).await?)? else { return Err(Refusal::shape()) };
    tracing::info!(volume = name, holder, epoch, "lease granted");
    Ok(Json(grant(name, lease, epoch)))
}

/// Gives a durable lease back.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/lease/{lease}", params(("volume" = String, Path, description = "Its name"), ("lease" = String, Path, description = "32 hexadecimal digits")), responses((status = 200, description = "released"), (status = 404, body = ApiError), (status = 410, body = ApiError)))]
pub async fn release(state: Shared, Path((name, lease)): Path<(String, String)>) -> Outcome<()> {
    let lease = lease.parse().map_err(|e| Refusal::new(ApiErrorKind::Invalid, format!("{e}")))?;
    let answer = state.pool_of(&name).await?.ask(AdminOp::Release { name: name.clone(), lease }).await?;
    done(about(&name, answer)?)?;
    tracing::info!(volume = name, "lease released");
    Ok(Json(()))
}

/// Takes the lease away from whoever holds it, durably; a superposition is aborted with it.
#[utoipa::path(post, path = "/v1/volumes/{volume}/lease/break", params(("volume" = String, Path, description = "Its name")), responses((status = 200, description = "broken"), (status = 404, body = ApiError)))]
pub async fn break_lease(state: Shared, Path(name): Path<String>) -> Outcome<()> {
    let answer = state.pool_of(&name).await?.ask(AdminOp::BreakLease { name: name.clone() }).await?;
    done(about(&name, answer)?)?;
    tracing::warn!(volume = name, "lease broken");
    Ok(Json(()))
}

/// Starts a superposition of a group of volumes of one pool, atomically, and grants leases on the children.
#[utoipa::path(post, path = "/v1/super", request_body = SuperRequest, responses((status = 200, body = SuperGrant), (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError), (status = 507, body = ApiError)))]
pub async fn superpose(state: Shared, Body(request): Body<SuperRequest>) -> Outcome<SuperGrant> {
    check_holder(&request.holder)?;
    let Some(first) = request.volumes.first() else {
        return Err(Refusal::new(ApiErrorKind::Invalid, "a superposition needs at least one volume"));
    };
    let pool = state.pool_of(first).await?;
    for other in &request.volumes[1..] {
        if state.pool_of(other).await?.name() != pool.name() {
            let message = format!("{first:?} and {other:?} live in different pools; a group must live in one");
            return Err(Refusal::new(ApiErrorKind::Invalid, message));
        }
    }
    let leases: Vec<LeaseId> = request.volumes.iter().map(|_| LeaseId(secret())).collect();
    let op = AdminOp::Super {
        names: request.volumes.clone(),
        child_leases: leases.clone(),
        holder: request.holder.clone(),
        now_unix_ms: unix_ms(),
    };
    let subject = format!("super of {}", request.volumes.join(", "));
    let reply = pool.ask(op).await?.map_err(|e| Refusal::engine(&subject, &e))?;
    let AdminReply::Super { super_id, epochs } = reply else { return Err(Refusal::shape()) };
    tracing::info!(volumes = ?request.volumes, super_id = super_id.0, holder = request.holder, "superposition started");
    let children = request.volumes.into_iter().zip(leases).zip(epochs);
    let children = children.map(|((name, lease), epoch)| grant(name, lease, epoch)).collect();
    Ok(Json(SuperGrant { super_id: super_id.0, children }))
}

/// Asks who won; if the primary was not observed, the child is promoted and the old primary fenced for ever.
#[utoipa::path(post, path = "/v1/collapse", request_body = SuperRef, responses((status = 200, body = CollapseReply), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn collapse(state: Shared, Body(of): Body<SuperRef>) -> Outcome<CollapseReply> {
    let op = AdminOp::Collapse { name: of.volume.clone(), super_id: SuperId(of.super_id) };
    let reply = about(&of.volume, state.pool_of(&of.volume).await?.ask(op).await?)?;
    let AdminReply::Collapsed { promoted } = reply else { return Err(Refusal::shape()) };
    tracing::info!(volume = of.volume, super_id = of.super_id, promoted, "superposition collapsed");
    let outcome = if promoted { CollapseOutcome::Promoted } else { CollapseOutcome::PrimaryObserved };
    Ok(Json(CollapseReply { outcome }))
}

/// Ends a superposition in favour of the primary; the children are dropped.
#[utoipa::path(post, path = "/v1/abort", request_body = SuperRef, responses((status = 200, description = "aborted"), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn abort(state: Shared, Body(of): Body<SuperRef>) -> Outcome<()> {
    let op = AdminOp::Abort { name: of.volume.clone(), super_id: SuperId(of.super_id) };
    done(about(&of.volume, state.pool_of(&of.volume).await?.ask(op).await?)?)?;
    tracing::info!(volume = of.volume, super_id = of.super_id, "superposition aborted");
    Ok(Json(()))
}

fn check_holder(holder: &str) -> Result<(), Refusal> {
    if holder.is_empty() || holder.len() > HOLDER_BYTES_MAX || holder.chars().any(char::is_control) {
        let message = format!("a holder is 1 to {HOLDER_BYTES_MAX} bytes of printable text: say who asks");
        return Err(Refusal::new(ApiErrorKind::Invalid, message));
    }
    Ok(())
}

fn grant(volume: String, lease: LeaseId, epoch: u64) -> LeaseGrant {
    LeaseGrant { export: format!("{volume}@{lease}"), volume, lease: lease.to_string(), epoch }
}
