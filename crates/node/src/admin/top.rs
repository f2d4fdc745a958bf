//! The route of `segue top`: what cores, drives and volumes do now.
//!
//! Owns: gathering counters that are kept elsewhere. Never: counts anything itself, or stops a core.
//! Invariant: every number either only grows while its subject lives, or is the state at one moment.

use super::errors::Outcome;
use super::{Api, Shared};
use crate::port::{CoreGone, Port};
use axum::Json;
use segue_runtime::{LATENCY_BUCKETS, Snapshot, latency_bucket_ns_max};
use segue_types::api::{ApiError, SuperPhase, TopCore, TopInfo, TopPool, TopVolume};
use segue_volume::op::{AdminOp, AdminReply};
use std::fs;

/// Counters of cores, pools and volumes; two of these make rates.
#[utoipa::path(get, path = "/v1/top", responses((status = 200, body = TopInfo), (status = 500, body = ApiError)))]
pub async fn show(state: Shared) -> Outcome<TopInfo> {
    let times = core_cpu_ns();
    let cores = (state.counters)().iter().enumerate().map(|(n, c)| core(n, c, &times)).collect();
    let (mut pools, mut volumes) = (Vec::new(), Vec::new());
    for port in &state.pools {
        let (pool, mut of_pool) = look(&state, port).await?;
        pools.push(pool);
        volumes.append(&mut of_pool);
    }
    let latency_ns_max = (0..LATENCY_BUCKETS).filter_map(latency_bucket_ns_max).collect();
    Ok(Json(TopInfo { uptime_ns: state.started.elapsed().as_nanos() as u64, latency_ns_max, cores, pools, volumes }))
}

fn core(number: usize, counters: &Snapshot, times: &[(String, u64)]) -> TopCore {
    let name = format!("segue-core-{number}");
    let sum = |value: fn(&segue_runtime::OpCounters) -> u64| counters.ops.iter().map(value).sum();
    let latency = (0..LATENCY_BUCKETS).map(|n| counters.ops.iter().map(|op| op.latency[n]).sum()).collect();
    TopCore {
        core: number as u32,
        cpu_ns: times.iter().find(|(thread, _)| *thread == name).map(|(_, ns)| *ns),
        requests: sum(|op| op.requests),
        errors: sum(|op| op.errors),
        bytes: sum(|op| op.bytes),
        connections: counters.connections,
        in_flight: counters.requests_in_flight,
        latency,
    }
}

/// Processor time of every thread of this process, by name. `schedstat` counts in nanoseconds.
fn core_cpu_ns() -> Vec<(String, u64)> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let read = |thread: fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?.trim_end().to_owned();
        let times = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some((name, times.split_whitespace().next()?.parse().ok()?))
    };
    threads.filter_map(|thread| read(thread.ok()?)).collect()
}

async fn look(api: &Api, port: &Port) -> Result<(TopPool, Vec<TopVolume>), CoreGone> {
    let sharing = port.sharing(None).await?;
    let state = match port.ask(AdminOp::PoolStatus).await? {
        Ok(AdminReply::Pool(state)) => state,
        _ => return Err(CoreGone),
    };
    let all = match port.ask(AdminOp::List).await? {
        Ok(AdminReply::Volumes(all)) => all,
        _ => return Err(CoreGone),
    };
    let places = api.runtime.pools();
    let pool = TopPool {
        pool: port.name().to_owned(),
        core: places.iter().find(|p| p.name == port.name()).map_or(0, |p| p.core as u32),
        policy: sharing.drive.policy.label().to_owned(),
        outstanding: sharing.drive.outstanding,
        window: sharing.drive.window,
        queued: sharing.drive.queued,
        drive_p95_ns: sharing.drive.p95_ns,
        free_bytes: state.free_bytes + port.shared_free_bytes(),
        capacity_bytes: state.capacity_bytes,
        cleaning: state.cleaning,
        racing: all.iter().filter(|v| v.phase != SuperPhase::None).count() as u64,
        locked: all.iter().filter(|v| v.locked).count() as u64,
        integrity_errors: state.integrity_errors,
        poisoned: state.poisoned,
    };
    let volumes = sharing.volumes.into_iter().map(|v| TopVolume {
        volume: v.name,
        pool: port.name().to_owned(),
        requests: v.stats.ops,
        bytes: v.stats.bytes,
        waited: v.stats.waited,
        queued: u64::from(v.stats.queued),
        reason: v.stats.reason.label().to_owned(),
        latency: v.latency.to_vec(),
    });
    Ok((pool, volumes.collect()))
}
