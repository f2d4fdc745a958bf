//! Routes about volumes, snapshots and clones.
//!
//! Owns: /v1/volumes without leases. Never: keeps a token; only its SHA-256 goes to the engine.
//! Invariant: a name is unique on the node, whatever pool it lives in.

use super::errors::{Outcome, Refusal};
use super::{Body, Shared, about, done, volume_info, volume_subject};
use crate::port::Port;
use axum::Json;
use axum::extract::Path;
use segue_types::api::{
    ApiError, ApiErrorKind, CreateVolume, NewName, Note, ObservationRule, ResizeVolume, SecretHex, UnlockVolume,
    VolumeInfo,
};
use segue_volume::Secret;
use segue_volume::op::{AdminError, AdminOp, AdminReply};
use sha2::{Digest, Sha256};

/// All volumes and snapshots, by name.
#[utoipa::path(get, path = "/v1/volumes", responses((status = 200, body = Vec<VolumeInfo>)))]
pub async fn list(state: Shared) -> Outcome<Vec<VolumeInfo>> {
    let mut all = Vec::new();
    for pool in &state.pools {
        let answer = pool.ask(AdminOp::List).await?.map_err(|e| Refusal::engine("list", &e))?;
        let AdminReply::Volumes(volumes) = answer else { return Err(Refusal::shape()) };
        all.extend(volumes.into_iter().map(|v| volume_info(pool, v)));
    }
    all.sort_by(|a, b| (&a.name, b.epoch).cmp(&(&b.name, a.epoch)));
    // While a volume changes its pool, for a moment both have it: the later epoch is its place.
    all.dedup_by(|later, first| later.name == first.name);
    Ok(Json(all))
}

/// Makes a thin volume.
#[utoipa::path(post, path = "/v1/volumes", request_body = CreateVolume, responses((status = 200, body = VolumeInfo), (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError), (status = 507, body = ApiError)))]
pub async fn create(state: Shared, Body(request): Body<CreateVolume>) -> Outcome<VolumeInfo> {
    let pool = state.pool_for_new(request.pool.as_deref()).await?;
    if request.token.as_deref() == Some("") {
        let message = "an empty token protects nothing; leave it out or give one of 16 or more random characters";
        return Err(Refusal::new(ApiErrorKind::Invalid, message));
    }
    let encryption = request.encryption_key.as_ref().map(key).transpose()?.map(crate::keys::encryption);
    let _naming = state.naming.lock().await;
    state.check_new_name(&request.name).await?;
    let op = AdminOp::Create {
        name: request.name.clone(),
        size_bytes: request.size_bytes,
        rule: request.observation.unwrap_or(ObservationRule::Flush),
        token_sha256: request.token.map(|token| Sha256::digest(token.as_bytes()).into()),
        encryption,
    };
    one(pool, &request.name, op).await
}

/// One volume or snapshot.
#[utoipa::path(get, path = "/v1/volumes/{volume}", params(("volume" = String, Path, description = "Its name")), responses((status = 200, body = VolumeInfo), (status = 404, body = ApiError)))]
pub async fn show(state: Shared, Path(name): Path<String>) -> Outcome<VolumeInfo> {
    one(state.pool_of(&name).await?, &name, AdminOp::Show { name: name.clone() }).await
}

/// Deletes a volume or snapshot; refused while leased or racing. Its space comes back in the background.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", params(("volume" = String, Path, description = "Its name")), responses((status = 200, description = "deleted"), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn delete(state: Shared, Path(name): Path<String>) -> Outcome<()> {
    let answer = state.pool_of(&name).await?.ask(AdminOp::Delete { name: name.clone() }).await?;
    done(about(&name, answer)?).map(Json)
}

fn key(hex: &SecretHex) -> Result<Secret, Refusal> {
    let invalid = |message: &str| Refusal::new(ApiErrorKind::Invalid, message);
    let bytes = segue_types::hex_decode(&hex.0).ok_or_else(|| invalid("a key is written as hexadecimal digits"))?;
    Secret::new(bytes).map_err(invalid)
}

/// Loads the key of an encrypted volume, and of its clones and snapshots, into the node's memory.
#[utoipa::path(post, path = "/v1/volumes/{volume}/unlock", params(("volume" = String, Path, description = "Its name")), request_body = UnlockVolume, responses((status = 200, body = VolumeInfo), (status = 400, body = ApiError), (status = 403, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn unlock(state: Shared, Path(name): Path<String>, Body(request): Body<UnlockVolume>) -> Outcome<VolumeInfo> {
    let op = AdminOp::Unlock { name: name.clone(), secret: key(&request.key)? };
    one(state.pool_of(&name).await?, &name, op).await
}

/// Wipes the key of an encrypted volume from the node's memory; refused while somebody is attached.
#[utoipa::path(post, path = "/v1/volumes/{volume}/lock", params(("volume" = String, Path, description = "Its name")), responses((status = 200, body = VolumeInfo), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn lock(state: Shared, Path(name): Path<String>) -> Outcome<VolumeInfo> {
    one(state.pool_of(&name).await?, &name, AdminOp::Lock { name: name.clone() }).await
}

/// Grows a volume, online.
#[utoipa::path(post, path = "/v1/volumes/{volume}/resize", params(("volume" = String, Path, description = "Its name")), request_body = ResizeVolume, responses((status = 200, body = VolumeInfo), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub async fn resize(state: Shared, Path(name): Path<String>, Body(request): Body<ResizeVolume>) -> Outcome<VolumeInfo> {
    let op = AdminOp::Resize { name: name.clone(), size_bytes: request.size_bytes };
    one(state.pool_of(&name).await?, &name, op).await
}

/// Renames a volume; open attachments stay.
#[utoipa::path(post, path = "/v1/volumes/{volume}/rename", params(("volume" = String, Path, description = "Its name")), request_body = NewName, responses((status = 200, body = VolumeInfo), (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn rename(state: Shared, Path(name): Path<String>, Body(to): Body<NewName>) -> Outcome<VolumeInfo> {
    named(&state, &name, to.name, |name, to| AdminOp::Rename { name, to }).await
}

/// Takes a read-only snapshot; costs nothing at any size.
#[utoipa::path(post, path = "/v1/volumes/{volume}/snapshot", params(("volume" = String, Path, description = "Its name")), request_body = NewName, responses((status = 200, body = VolumeInfo), (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn snapshot(state: Shared, Path(name): Path<String>, Body(to): Body<NewName>) -> Outcome<VolumeInfo> {
    named(&state, &name, to.name, |name, to| AdminOp::Snapshot { name, to }).await
}

/// Makes a writable clone of a volume or snapshot; costs nothing at any size.
#[utoipa::path(post, path = "/v1/volumes/{volume}/clone", params(("volume" = String, Path, description = "Its name")), request_body = NewName, responses((status = 200, body = VolumeInfo), (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn clone(state: Shared, Path(name): Path<String>, Body(to): Body<NewName>) -> Outcome<VolumeInfo> {
    named(&state, &name, to.name, |name, to| AdminOp::Clone { name, to }).await
}

/// Keeps a text in the volume's record, durably.
#[utoipa::path(put, path = "/v1/volumes/{volume}/note", params(("volume" = String, Path, description = "Its name")), request_body = Note, responses((status = 200, description = "kept"), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub async fn note(state: Shared, Path(name): Path<String>, Body(note): Body<Note>) -> Outcome<()> {
    let op = AdminOp::SetNote { name: name.clone(), note: note.note };
    done(about(&name, state.pool_of(&name).await?.ask(op).await?)?).map(Json)
}

/// An operation that answers with a volume.
async fn one(pool: &Port, name: &str, op: AdminOp) -> Outcome<VolumeInfo> {
    match about(name, pool.ask(op).await?)? {
        AdminReply::Volume(volume) => Ok(Json(volume_info(pool, *volume))),
        _ => Err(Refusal::shape()),
    }
}

/// An operation on `name` that makes the name `to`.
async fn named(state: &Shared, name: &str, to: String, op: fn(String, String) -> AdminOp) -> Outcome<VolumeInfo> {
    let _naming = state.naming.lock().await;
    state.check_new_name(&to).await?;
    let pool = state.pool_of(name).await?;
    match pool.ask(op(name.to_owned(), to.clone())).await? {
        // The name that is taken is the new one; every other refusal is about the volume.
        Err(AdminError::Exists) => Err(Refusal::engine(&volume_subject(&to), &AdminError::Exists)),
        Err(error) => Err(Refusal::engine(&volume_subject(name), &error)),
        Ok(AdminReply::Volume(volume)) => Ok(Json(volume_info(pool, *volume))),
        Ok(_) => Err(Refusal::shape()),
    }
}
