//! Routes of access tokens: making, revoking, and demanding none any more.
//!
//! Owns: drawing the secrets that sign them. Never: keeps a token, or tells a secret.
//! Invariant: a token that was given out is good until it expires or is revoked, also across restarts.

use super::errors::{Outcome, Refusal};
use super::{Body, Shared, about};
use crate::port::Port;
use axum::Json;
use axum::extract::Path;
use segue_types::api::{ApiError, ApiErrorKind, RevokeTokens, TokenGrant, TokenLimits};
use segue_types::{Token, TokenError, caveats_of};
use segue_volume::op::{AdminOp, AdminReply, TokenSecret, VolumeState};

/// Makes a token; from the first one on the volume demands tokens.
#[utoipa::path(post, path = "/v1/volumes/{volume}/tokens", params(("volume" = String, Path, description = "Its name")), request_body = TokenLimits, responses((status = 200, body = TokenGrant), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub async fn create(state: Shared, Path(name): Path<String>, Body(limits): Body<TokenLimits>) -> Outcome<TokenGrant> {
    let invalid = |e: TokenError| Refusal::new(ApiErrorKind::Invalid, format!("the limits make no token: {e}"));
    let caveats = caveats_of(&limits).map_err(invalid)?;
    let mut secret = [0; 32];
    secret.chunks_exact_mut(16).for_each(|half| half.copy_from_slice(&segue_runtime::secret().to_le_bytes()));
    let op = AdminOp::RequireTokens { name: name.clone(), secret: TokenSecret(secret) };
    let volume = ask(state.pool_of(&name).await?, &name, op).await?;
    let access = volume.access.ok_or_else(Refusal::shape)?;
    let token = Token::mint(&access.secret.0, &name, access.generation);
    let token = caveats.into_iter().try_fold(token, Token::narrow).map_err(invalid)?.to_string();
    Ok(Json(TokenGrant { export: format!("{name}?token={token}"), volume: name, token }))
}

/// Makes every token given out so far worthless and cuts the sessions opened with one.
#[utoipa::path(post, path = "/v1/volumes/{volume}/tokens/revoke", params(("volume" = String, Path, description = "Its name")), request_body = RevokeTokens, responses((status = 200, description = "revoked"), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn revoke(state: Shared, Path(name): Path<String>, Body(request): Body<RevokeTokens>) -> Outcome<()> {
    let op = AdminOp::Revoke { name: name.clone(), plain: request.plain };
    ask(state.pool_of(&name).await?, &name, op).await.map(|_| Json(()))
}

/// The volume demands no tokens any more; sessions opened with one are cut.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/tokens", params(("volume" = String, Path, description = "Its name")), responses((status = 200, description = "no tokens are demanded"), (status = 404, body = ApiError)))]
pub async fn disable(state: Shared, Path(name): Path<String>) -> Outcome<()> {
    ask(state.pool_of(&name).await?, &name, AdminOp::DropTokens { name: name.clone() }).await.map(|_| Json(()))
}

async fn ask(pool: &Port, name: &str, op: AdminOp) -> Result<VolumeState, Refusal> {
    match about(name, pool.ask(op).await?)? {
        AdminReply::Volume(volume) => Ok(*volume),
        _ => Err(Refusal::shape()),
    }
}
