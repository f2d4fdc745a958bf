//! Routes about moves of volumes between pools.
//!
//! Owns: /v1/moves and /v1/volumes/{volume}/move. Never: decides what a step does; the move's machine does.
//! Invariant: an answer to a beginning says where the move stands, not that it will succeed.

use super::errors::{Outcome, Refusal};
use super::{Body, Shared, done, volume_subject};
use crate::moves::{Known, MOVE_RATE_BYTES_PER_S};
use axum::Json;
use axum::extract::{Path, Query};
use segue_types::MoveId;
use segue_types::api::{ApiError, ApiErrorKind, MoveInfo, MoveRate, MoveRequest};
use segue_volume::op::{AdminOp, MoveOp};
use serde::Deserialize;

/// All moves that the node knows of since its start, the latest last.
#[utoipa::path(get, path = "/v1/moves", responses((status = 200, body = Vec<MoveInfo>)))]
pub async fn list(state: Shared) -> Json<Vec<MoveInfo>> {
    Json(state.moves.all())
}

/// Begins to move a volume to another pool of the node, while its clients go on.
#[utoipa::path(post, path = "/v1/volumes/{volume}/move", params(("volume" = String, Path, description = "Its name")), request_body = MoveRequest, responses((status = 200, body = MoveInfo), (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError), (status = 507, body = ApiError)))]
pub async fn begin(state: Shared, Path(name): Path<String>, Body(request): Body<MoveRequest>) -> Outcome<MoveInfo> {
    let from = state.pool_of(&name).await?;
    let to = state.pool(&request.pool)?;
    let subject = volume_subject(&name);
    if from.name() == to.name() {
        let message = format!("{subject} is in pool {:?} already; name another", to.name());
        return Err(Refusal::new(ApiErrorKind::Invalid, message));
    }
    // What a move would be refused for is told at once.
    let measure = AdminOp::Move(MoveOp::Measure { name: name.clone() });
    from.ask(measure).await?.map_err(|e| Refusal::engine(&subject, &e))?;
    let (runtime, from, to) = (state.runtime.clone(), from.name().to_owned(), to.name().to_owned());
    let rate = request.rate_bytes_per_s.unwrap_or(MOVE_RATE_BYTES_PER_S);
    let (id, volume) = (MoveId(segue_runtime::secret() as u64), name.clone());
    let planned = tokio::task::spawn_blocking(move || runtime.plan_move(&volume, &from, &to, id, rate)).await;
    let planned = planned.map_err(|_| Refusal::shape())?;
    let run = planned.map_err(|e| Refusal::new(ApiErrorKind::Conflict, format!("{subject}: {e}")))?;
    let handle = state.moves.begin(run).map_err(|other| {
        let fix = "wait for it with `segue volume move-status`, or give it up with `segue volume move-abort`";
        Refusal::new(
            ApiErrorKind::Conflict,
            format!("{subject}: volume {other:?} is moving, and one at a time does; {fix}"),
        )
    })?;
    Ok(Json(Known::Run(handle).info()))
}

/// How the volume's latest move is doing.
#[utoipa::path(get, path = "/v1/volumes/{volume}/move", params(("volume" = String, Path, description = "Its name")), responses((status = 200, body = MoveInfo), (status = 404, body = ApiError)))]
pub async fn show(state: Shared, Path(name): Path<String>) -> Outcome<MoveInfo> {
    Ok(Json(known(&state, &name)?.info()))
}

/// Caps a running move from now on.
#[utoipa::path(put, path = "/v1/volumes/{volume}/move", params(("volume" = String, Path, description = "Its name")), request_body = MoveRate, responses((status = 200, body = MoveInfo), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn cap(state: Shared, Path(name): Path<String>, Body(rate): Body<MoveRate>) -> Outcome<MoveInfo> {
    let known = known(&state, &name)?;
    match &known {
        Known::Run(handle) if handle.status().ended.is_none() => handle.set_rate(rate.rate_bytes_per_s),
        _ => return Err(over(&name)),
    }
    Ok(Json(MoveInfo { rate_bytes_per_s: rate.rate_bytes_per_s, ..known.info() }))
}

/// How an abort is wanted.
#[derive(Deserialize)]
pub struct Abort {
    /// Also when the other pool is not open and may have the volume.
    #[serde(default)]
    force: bool,
}

/// Gives a move up; the volume stays where it was. Answers when the move is over, or will be as soon as what is in
/// flight has ended; a move that has committed is not given up.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/move", params(("volume" = String, Path, description = "Its name"), ("force" = Option<bool>, Query, description = "Declare the other pool lost")), responses((status = 200, description = "given up"), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub async fn abort(state: Shared, Path(name): Path<String>, Query(how): Query<Abort>) -> Outcome<()> {
    match known(&state, &name)? {
        Known::Run(handle) if handle.status().ended.is_none() => {
            handle.cancel();
            Ok(Json(()))
        }
        Known::Run(_) => Err(over(&name)),
        Known::Stuck(stuck) if stuck.closed && !how.force => {
            let message = format!(
                "{}: the pool it was moving to is not open here and may have it; open that pool, or force the abort if \
                 that drive is lost for good",
                volume_subject(&name)
            );
            Err(Refusal::new(ApiErrorKind::Conflict, message))
        }
        Known::Stuck(stuck) => {
            let op = AdminOp::Move(MoveOp::Abort { id: stuck.id });
            let answer = state.pool(&stuck.pool)?.ask(op).await?;
            done(answer.map_err(|e| Refusal::engine(&volume_subject(&name), &e))?)?;
            state.moves.forget(stuck.id);
            Ok(Json(()))
        }
    }
}

fn known(state: &Shared, name: &str) -> Result<Known, Refusal> {
    let missing = || {
        let message = format!("{}: no move of it since the node started", volume_subject(name));
        Refusal::new(ApiErrorKind::NotFound, message)
    };
    state.moves.of(name).ok_or_else(missing)
}

fn over(name: &str) -> Refusal {
    Refusal::new(ApiErrorKind::Conflict, format!("{}: its move is over", volume_subject(name)))
}
