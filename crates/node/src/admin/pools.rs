//! Routes about pools.
//!
//! Owns: /v1/pools. Never: opens or closes one; that is the node's start and stop.
//! Invariant: a checkpoint is answered when it is durable, a scrub when it has begun.

use super::errors::{Outcome, Refusal};
use super::{Api, Body, Shared, done};
use crate::port::Port;
use axum::Json;
use axum::extract::Path;
use segue_runtime::MovePoolError;
use segue_types::api::{ApiError, ApiErrorKind, BindPool, BoundPool, PoolInfo, ScrubStatus};
use segue_volume::op::{AdminOp, AdminReply};

/// All pools, the default first.
#[utoipa::path(get, path = "/v1/pools", responses((status = 200, body = Vec<PoolInfo>)))]
pub async fn list(state: Shared) -> Outcome<Vec<PoolInfo>> {
    let mut all = Vec::new();
    for pool in &state.pools {
        all.push(info(pool).await?);
    }
    Ok(Json(all))
}

/// One pool.
#[utoipa::path(get, path = "/v1/pools/{pool}", params(("pool" = String, Path, description = "Its name")), responses((status = 200, body = PoolInfo), (status = 404, body = ApiError)))]
pub async fn show(state: Shared, Path(name): Path<String>) -> Outcome<PoolInfo> {
    Ok(Json(info(state.pool(&name)?).await?))
}

/// Writes a checkpoint; answers when it is durable.
#[utoipa::path(post, path = "/v1/pools/{pool}/checkpoint", params(("pool" = String, Path, description = "Its name")), responses((status = 200, description = "durable"), (status = 404, body = ApiError), (status = 500, body = ApiError)))]
pub async fn checkpoint(state: Shared, Path(name): Path<String>) -> Outcome<()> {
    done(ask(&state, &name, AdminOp::Checkpoint).await?).map(Json)
}

/// Starts to read and verify every block in the background. While one runs this changes nothing.
#[utoipa::path(post, path = "/v1/pools/{pool}/scrub", params(("pool" = String, Path, description = "Its name")), responses((status = 200, description = "started"), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn scrub_start(state: Shared, Path(name): Path<String>) -> Outcome<()> {
    done(ask(&state, &name, AdminOp::ScrubStart).await?).map(Json)
}

/// How far the scrub is.
#[utoipa::path(get, path = "/v1/pools/{pool}/scrub", params(("pool" = String, Path, description = "Its name")), responses((status = 200, body = ScrubStatus), (status = 404, body = ApiError)))]
pub async fn scrub_status(state: Shared, Path(name): Path<String>) -> Outcome<ScrubStatus> {
    match ask(&state, &name, AdminOp::ScrubStatus).await? {
        AdminReply::Scrub { running, blocks_done, blocks_total, errors } => {
            Ok(Json(ScrubStatus { running, blocks_done, blocks_total, errors }))
        }
        _ => Err(Refusal::shape()),
    }
}

/// Hands a pool over to another core, with all that is in flight: its clients notice nothing but a pause.
#[utoipa::path(post, path = "/v1/pools/{pool}/core", params(("pool" = String, Path, description = "Its name")), request_body = BindPool, responses((status = 200, body = BoundPool), (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn bind(state: Shared, Path(name): Path<String>, Body(request): Body<BindPool>) -> Outcome<BoundPool> {
    let moved = state.pool(&name)?.bind(request.core as usize).await?;
    let report = moved.map_err(|error| {
        let kind = match error {
            MovePoolError::NoPool => ApiErrorKind::NotFound,
            MovePoolError::NoCore { .. } => ApiErrorKind::Invalid,
            MovePoolError::Moving => ApiErrorKind::Conflict,
            MovePoolError::Stopped => ApiErrorKind::Internal,
        };
        Refusal::new(kind, format!("pool {name:?}: {error}"))
    })?;
    let (from, to) = (report.from as u32, report.to as u32);
    Ok(Json(BoundPool { from, to, stall_ns: report.stall_ns, connections: report.connections as u64 }))
}

async fn ask(api: &Api, name: &str, op: AdminOp) -> Result<AdminReply, Refusal> {
    api.pool(name)?.ask(op).await?.map_err(|e| Refusal::engine(&format!("pool {name:?}"), &e))
}

async fn info(pool: &Port) -> Result<PoolInfo, Refusal> {
    let answer = pool.ask(AdminOp::PoolStatus).await?;
    let AdminReply::Pool(p) = answer.map_err(|e| Refusal::engine(&format!("pool {:?}", pool.name()), &e))? else {
        return Err(Refusal::shape());
    };
    Ok(PoolInfo {
        name: pool.name().to_owned(),
        drive: pool.drive().to_owned(),
        core: pool.core(),
        capacity_bytes: p.capacity_bytes,
        free_bytes: p.free_bytes,
        shared_free_bytes: pool.shared_free_bytes(),
        pending_bytes: p.pending_bytes,
        volumes: p.volumes,
        layers: p.layers,
        journal_used_bytes: p.journal_used_bytes,
        journal_bytes: p.journal_bytes,
        cache_used_bytes: p.cache_used_bytes,
        cache_bytes: p.cache_bytes,
        bitmap_bytes: p.bitmap_bytes,
        poisoned: p.poisoned,
        integrity_errors: p.integrity_errors,
        cleaning: p.cleaning,
    })
}
