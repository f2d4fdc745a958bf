//! How refusals become HTTP: status, kind, and one line that names cause and fix.
//!
//! Owns: the mapping of engine errors to API errors. Never: loses who holds a busy thing.
//! Invariant: every answer that is not a success has an `ApiError` as its body.

use crate::port::CoreGone;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use segue_types::api::{ApiError, ApiErrorKind};
use segue_volume::op::AdminError;

/// An `ApiError` on its way out.
#[derive(Debug)]
pub struct Refusal(pub ApiError);

/// What a handler gives: JSON, or a refusal.
pub type Outcome<T> = Result<Json<T>, Refusal>;

impl Refusal {
    /// A refusal of this kind with this message.
    pub fn new(kind: ApiErrorKind, message: impl Into<String>) -> Refusal {
        Refusal(ApiError { kind, message: message.into() })
    }

    /// An engine's refusal of something about `subject` (for example `volume "a"`).
    pub fn engine(subject: &str, error: &AdminError) -> Refusal {
        let (kind, fix) = match error {
            AdminError::NotFound => (ApiErrorKind::NotFound, "; `segue volume list` shows all"),
            AdminError::Exists => (ApiErrorKind::Exists, "; choose another"),
            AdminError::Invalid(_) => (ApiErrorKind::Invalid, ""),
            AdminError::Busy(holder) => {
                let s = segue_runtime::unix_ms().saturating_sub(holder.since_unix_ms) / 1000;
                let message = format!(
                    "{subject}: held by {} for {s} s (since {} ms of Unix time); wait until it is released, \
                     or take it away with `segue lease break`",
                    holder.holder, holder.since_unix_ms
                );
                return Refusal::new(ApiErrorKind::Busy, message);
            }
            AdminError::Denied => (ApiErrorKind::Denied, ""),
            AdminError::Token(_) => (ApiErrorKind::Denied, ""),
            AdminError::Locked => (ApiErrorKind::Conflict, ""),
            AdminError::WrongKey => (ApiErrorKind::Denied, ""),
            AdminError::Fenced => (ApiErrorKind::Fenced, "; get a new one with `segue lease acquire`"),
            AdminError::Conflict(_) => (ApiErrorKind::Conflict, ""),
            AdminError::NoSpace => (ApiErrorKind::NoSpace, "; delete or discard something"),
            AdminError::Corrupt | AdminError::Poisoned => (ApiErrorKind::Io, ""),
        };
        Refusal::new(kind, format!("{subject}: {error}{fix}"))
    }

    /// An engine gave an answer of the wrong shape: a bug, said as one.
    pub fn shape() -> Refusal {
        Refusal::new(ApiErrorKind::Internal, "the engine answered something else than was asked; please report it")
    }
}

impl From<CoreGone> for Refusal {
    fn from(error: CoreGone) -> Self {
        Refusal::new(ApiErrorKind::Internal, error.to_string())
    }
}

/// The HTTP status of a kind.
pub fn status_of(kind: ApiErrorKind) -> StatusCode {
    match kind {
        ApiErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ApiErrorKind::NotFound => StatusCode::NOT_FOUND,
        ApiErrorKind::Exists | ApiErrorKind::Busy | ApiErrorKind::Conflict => StatusCode::CONFLICT,
        ApiErrorKind::Denied => StatusCode::FORBIDDEN,
        ApiErrorKind::Fenced => StatusCode::GONE,
        ApiErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        ApiErrorKind::Io | ApiErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (status_of(self.0.kind), Json(self.0)).into_response()
    }
}
