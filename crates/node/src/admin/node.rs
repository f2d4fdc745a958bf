//! Routes about the node itself.
//!
//! Owns: /v1/node, /v1/events, /metrics. Never: touches a volume.
//! Invariant: a scrape asks each pool once and copies counters; it stops no core.

use super::Shared;
use super::errors::Outcome;
use axum::Json;
use axum::response::IntoResponse;
use segue_types::api::{ApiError, IntegrityEvent, NodeInfo};

/// What the node says of itself.
#[utoipa::path(get, path = "/v1/node", responses((status = 200, body = NodeInfo)))]
pub async fn show(state: Shared) -> Json<NodeInfo> {
    Json(NodeInfo { uptime_ns: state.started.elapsed().as_nanos() as u64, ..state.info.clone() })
}

/// Stops the node in order: requests are finished and pools checkpointed. Answers before the process ends.
#[utoipa::path(post, path = "/v1/node/stop", responses((status = 200, description = "stopping")))]
pub async fn stop(state: Shared) -> Json<()> {
    state.stop.send_replace(true);
    Json(())
}

/// Things a person must look at, oldest first; the newest 1024 are kept.
#[utoipa::path(get, path = "/v1/events", responses((status = 200, body = Vec<IntegrityEvent>)))]
pub async fn events(state: Shared) -> Outcome<Vec<IntegrityEvent>> {
    Ok(Json(state.alarms()))
}

/// The metrics, in OpenMetrics text.
#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "application/openmetrics-text", body = String), (status = 500, body = ApiError)))]
pub async fn metrics(state: Shared) -> impl IntoResponse {
    let kind = [("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    (kind, crate::metrics::scrape(&state).await)
}
