//! The admin HTTP API: what operators, monitors and `segue` ask of a node.
//!
//! Owns: routes, their description, and finding the pool of a volume. Never: decides about volumes; engines do.
//! Invariant: a route that is served is described in /openapi.json, because both come from one declaration.

mod errors;
mod faults;
mod moves;
mod node;
mod pools;
mod qos;
mod serve;
mod supers;
mod tokens;
mod top;
mod volumes;

pub use faults::sum as recovered;
pub use serve::{Listener, serve};

use crate::events::Events;
use crate::port::{Answer, Port};
use axum::extract::FromRequest;
use axum::http::{Method, StatusCode, Uri};
use axum::response::IntoResponse;
use errors::Refusal;
use segue_types::api::{ApiErrorKind, NodeInfo};
use segue_volume::op::{AdminError, AdminOp, AdminReply, VolumeState};
use std::sync::Arc;
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// What the API serves.
pub struct Api {
    /// The pools; the first is the default.
    pub pools: Vec<Port>,
    /// The memory of alarms; what the runtime has new is taken in when somebody looks.
    pub events: Events,
    /// The cores, to take alarms from.
    pub runtime: segue_runtime::Runtime,
    /// The fixed part of what the node says of itself.
    pub info: NodeInfo,
    /// The configuration lets tasks panic on purpose.
    pub allow_fault_injection: bool,
    /// When it began.
    pub started: std::time::Instant,
    /// Set to true to stop the node in order.
    pub stop: watch::Sender<bool>,
    /// Held while a name is chosen, so that names stay unique across pools.
    pub naming: tokio::sync::Mutex<()>,
    /// Moves of volumes between pools.
    pub moves: crate::moves::Moves,
    /// Counters of the cores, read at each scrape.
    pub counters: crate::metrics::Counters,
}

type Shared = axum::extract::State<Arc<Api>>;

/// The routes and the description of them, as JSON.
pub fn router(api: Arc<Api>) -> axum::Router {
    let (router, mut description) = declared().with_state(api).split_for_parts();
    description.info.title = "Segue node admin API".into();
    description.info.version = "1".into();
    description.info.description = Some("Sizes are bytes, times milliseconds of Unix time.".into());
    let description = description.to_json().expect("the description is plain data");
    let json = [("content-type", "application/json")];
    router.route("/openapi.json", axum::routing::get(move || async move { (json, description) })).fallback(nothing)
}

fn declared() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(node::show))
        .routes(routes!(top::show))
        .routes(routes!(node::stop))
        .routes(routes!(node::events))
        .routes(routes!(faults::inject))
        .routes(routes!(faults::recoveries))
        .routes(routes!(faults::scopes))
        .routes(routes!(node::metrics))
        .routes(routes!(pools::list))
        .routes(routes!(pools::show))
        .routes(routes!(pools::checkpoint))
        .routes(routes!(pools::scrub_start, pools::scrub_status))
        .routes(routes!(volumes::list, volumes::create))
        .routes(routes!(volumes::show, volumes::delete))
        .routes(routes!(pools::bind))
        .routes(routes!(tokens::create, tokens::disable))
        .routes(routes!(tokens::revoke))
        .routes(routes!(volumes::unlock))
        .routes(routes!(volumes::lock))
        .routes(routes!(volumes::resize))
        .routes(routes!(volumes::rename))
        .routes(routes!(volumes::snapshot))
        .routes(routes!(volumes::clone))
        .routes(routes!(volumes::note))
        .routes(routes!(moves::list))
        .routes(routes!(moves::begin, moves::show, moves::cap, moves::abort))
        .routes(routes!(qos::show_volume, qos::set_volume))
        .routes(routes!(qos::show_pool, qos::set_pool))
        .routes(routes!(supers::acquire))
        .routes(routes!(supers::release))
        .routes(routes!(supers::break_lease))
        .routes(routes!(supers::superpose))
        .routes(routes!(supers::collapse))
        .routes(routes!(supers::abort))
}

async fn nothing(method: Method, uri: Uri) -> impl IntoResponse {
    let message = format!("no {method} {}; GET /openapi.json describes what there is", uri.path());
    (StatusCode::NOT_FOUND, Refusal::new(ApiErrorKind::NotFound, message))
}

/// A request's JSON body; a bad one is refused as an `ApiError`.
struct Body<T>(T);

impl<S: Send + Sync, T: serde::de::DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<Self, Refusal> {
        let bytes = axum::body::Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|e| Refusal::new(ApiErrorKind::Invalid, format!("the body cannot be read: {e}")))?;
        let value = serde_json::from_slice(&bytes);
        value
            .map(Body)
            .map_err(|e| Refusal::new(ApiErrorKind::Invalid, format!("the body is not what is asked for: {e}")))
    }
}

impl Api {
    /// All alarms that are kept, oldest first.
    fn alarms(&self) -> Vec<segue_types::api::IntegrityEvent> {
        for raised in self.runtime.take_alarms() {
            let drive = self.pools.iter().find(|p| p.name() == raised.pool).map_or("", Port::drive);
            self.events.keep(drive, &raised);
        }
        for recovery in self.runtime.take_recoveries() {
            let drive = self.pools.iter().find(|p| p.name() == recovery.pool).map_or("", Port::drive);
            self.events.keep_recovery(drive, &recovery);
        }
        self.events.all()
    }

    fn pool(&self, name: &str) -> Result<&Port, Refusal> {
        let pool = self.pools.iter().find(|p| p.name() == name);
        pool.ok_or_else(|| {
            let why = if self.pools.iter().any(|p| p.is_slice_of(name)) {
                format!("pool {name:?} is divided into slices; name one of them, as in \"{name}/0\"")
            } else {
                format!("no pool {name:?}; `segue pool list` shows all")
            };
            Refusal::new(ApiErrorKind::NotFound, why)
        })
    }

    /// The pool for a new volume: the one named, or the first. Of a divided pool the slice with the fewest volumes.
    async fn pool_for_new(&self, name: Option<&str>) -> Result<&Port, Refusal> {
        let first = self.pools[0].name();
        let name = name.unwrap_or_else(|| if self.pools[0].is_slice() { first.trim_end_matches("/0") } else { first });
        let mut best = None;
        for slice in self.pools.iter().filter(|p| p.is_slice_of(name)) {
            if let Ok(AdminReply::Pool(state)) = slice.ask(AdminOp::PoolStatus).await?
                && best.is_none_or(|(volumes, _)| state.volumes < volumes)
            {
                best = Some((state.volumes, slice));
            }
        }
        best.map_or_else(|| self.pool(name), |(_, slice)| Ok(slice))
    }

    /// The pool that has the volume.
    async fn pool_of(&self, volume: &str) -> Result<&Port, Refusal> {
        if let [only] = &self.pools[..] {
            return Ok(only);
        }
        // While a volume changes its pool, for a moment both have it: the later epoch is its place.
        let mut best: Option<(u64, &Port)> = None;
        for pool in &self.pools {
            let op = AdminOp::Show { name: volume.to_owned() };
            let epoch = match pool.ask(op).await? {
                Err(AdminError::NotFound) => continue,
                Ok(AdminReply::Volume(state)) => state.epoch,
                _ => 0,
            };
            if best.is_none_or(|(known, _)| known < epoch) {
                best = Some((epoch, pool));
            }
        }
        let missing = || Refusal::engine(&volume_subject(volume), &AdminError::NotFound);
        best.map(|(_, pool)| pool).ok_or_else(missing)
    }

    /// Refuses a name that is malformed or taken in any pool. Call with `naming` held.
    async fn check_new_name(&self, name: &str) -> Result<(), Refusal> {
        let subject = volume_subject(name);
        segue_types::check_volume_name(name)
            .map_err(|e| Refusal::new(ApiErrorKind::Invalid, format!("{subject}: {e}")))?;
        if self.pools.len() > 1 && self.pool_of(name).await.is_ok() {
            return Err(Refusal::engine(&subject, &AdminError::Exists));
        }
        Ok(())
    }
}

fn volume_subject(name: &str) -> String {
    format!("volume {name:?}")
}

/// The answer of an engine about a volume, or the refusal that names it.
fn about(volume: &str, answer: Answer) -> Result<AdminReply, Refusal> {
    answer.map_err(|e| Refusal::engine(&volume_subject(volume), &e))
}

fn done(reply: AdminReply) -> Result<(), Refusal> {
    if matches!(reply, AdminReply::Done) { Ok(()) } else { Err(Refusal::shape()) }
}

fn volume_info(pool: &Port, v: VolumeState) -> segue_types::api::VolumeInfo {
    segue_types::api::VolumeInfo {
        name: v.name,
        pool: pool.name().to_owned(),
        kind: v.kind,
        size_bytes: v.size_bytes,
        own_bytes: v.own_bytes,
        depth: v.depth,
        epoch: v.epoch,
        observation: v.rule,
        token_required: v.token_sha256.is_some() || v.access.is_some(),
        lease: v.lease.map(|l| segue_types::api::LeaseInfo {
            holder: l.holder,
            since_unix_ms: l.since_unix_ms,
            durable: l.durable,
        }),
        super_phase: v.phase,
        super_id: v.super_id.map(|id| id.0),
        note: v.note,
        cleaning: v.cleaning,
        encrypted: v.encrypted,
        locked: v.locked,
    }
}
