//! Routes about shares of a drive.
//!
//! Owns: /v1/volumes/{volume}/qos and /v1/pools/{pool}/qos. Never: schedules.
//! Invariant: a volume's settings are durable when they are answered, and in force at once.

use super::errors::{Outcome, Refusal};
use super::{Body, Shared, about, volume_subject};
use crate::port::Port;
use crate::qos::volume_qos;
use axum::Json;
use axum::extract::Path;
use segue_sched::qos::{READ_4K, ShareError};
use segue_types::Share;
use segue_types::api::{ApiError, ApiErrorKind};
use segue_types::qos::{PoolQos, SetPoolQos, VolumeQos};
use segue_volume::op::{AdminOp, AdminReply};
use std::collections::BTreeMap;

/// A volume's share of its drive, and why it waits.
#[utoipa::path(get, path = "/v1/volumes/{volume}/qos", params(("volume" = String, Path, description = "Its name")), responses((status = 200, body = VolumeQos), (status = 404, body = ApiError)))]
pub async fn show_volume(state: Shared, Path(name): Path<String>) -> Outcome<VolumeQos> {
    let pool = state.pool_of(&name).await?;
    let AdminReply::Volume(volume) = about(&name, pool.ask(AdminOp::Show { name: name.clone() }).await?)? else {
        return Err(Refusal::shape());
    };
    answer(pool, &name, volume.share.unwrap_or_default()).await
}

/// Sets a volume's share of its drive: durable, and in force at once. Refused when the drive cannot keep the promise.
#[utoipa::path(put, path = "/v1/volumes/{volume}/qos", params(("volume" = String, Path, description = "Its name")), request_body = Share, responses((status = 200, body = VolumeQos), (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn set_volume(state: Shared, Path(name): Path<String>, Body(share): Body<Share>) -> Outcome<VolumeQos> {
    let pool = state.pool_of(&name).await?;
    let answered = pool.set_share(&name, Some(share)).await?.map_err(|error| {
        let kind = match error {
            ShareError::Invalid(_) => ApiErrorKind::Invalid,
            ShareError::Admission { .. } | ShareError::Uncalibrated => ApiErrorKind::Conflict,
        };
        Refusal::new(kind, format!("{}: {error}", volume_subject(&name)))
    })?;
    about(&name, answered)?;
    answer(pool, &name, share).await
}

async fn answer(pool: &Port, name: &str, share: Share) -> Outcome<VolumeQos> {
    let attached = pool.sharing(None).await?.volumes.into_iter().find(|volume| volume.name == name);
    Ok(Json(match attached {
        Some(volume) => volume_qos(pool.name(), volume),
        None => VolumeQos {
            volume: name.to_owned(),
            pool: pool.name().to_owned(),
            share,
            attached: false,
            ops: 0,
            bytes: 0,
            queued: 0,
            throttled_by: "none".to_owned(),
            waited_us: BTreeMap::new(),
        },
    }))
}

/// How a pool's drive is shared.
#[utoipa::path(get, path = "/v1/pools/{pool}/qos", params(("pool" = String, Path, description = "Its name")), responses((status = 200, body = PoolQos), (status = 404, body = ApiError)))]
pub async fn show_pool(state: Shared, Path(name): Path<String>) -> Outcome<PoolQos> {
    pool_qos(state.pool(&name)?, SetPoolQos::default()).await
}

/// Changes how a pool's drive is shared, at once, until the node's next start: what is to last belongs in its
/// configuration.
#[utoipa::path(put, path = "/v1/pools/{pool}/qos", params(("pool" = String, Path, description = "Its name")), request_body = SetPoolQos, responses((status = 200, body = PoolQos), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub async fn set_pool(state: Shared, Path(name): Path<String>, Body(set): Body<SetPoolQos>) -> Outcome<PoolQos> {
    pool_qos(state.pool(&name)?, set).await
}

async fn pool_qos(pool: &Port, set: SetPoolQos) -> Outcome<PoolQos> {
    let (policy, profile, now) = pool.set_qos(set).await?;
    Ok(Json(PoolQos {
        pool: pool.name().to_owned(),
        policy,
        profile,
        queued: now.drive.queued,
        outstanding_reads: now.drive.outstanding.div_ceil(READ_4K),
        window_reads: now.drive.window / READ_4K,
        p95_us: now.drive.p95_ns / 1000,
        volumes: now.volumes.into_iter().map(|volume| volume_qos(pool.name(), volume)).collect(),
    }))
}
