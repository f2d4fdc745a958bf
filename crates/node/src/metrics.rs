//! The metrics of a node, in OpenMetrics text.
//!
//! Owns: names, help texts and label sets of all metrics. Never: keeps a counter; engines and cores do.
//! Invariant: names are `segue_<subsystem>_<noun>_<unit>`, and the label sets are closed: pool, nothing else.

use crate::admin::Api;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use segue_volume::op::{AdminOp, AdminReply, PoolState};
use std::sync::atomic::AtomicU64;

type Labels = [(&'static str, String); 1];
type PoolGauge = Family<Labels, Gauge<u64, AtomicU64>>;
type PoolCounter = Family<Labels, Counter>;

/// One metric of a pool: name, help, and where its value is.
type OfPool = (&'static str, &'static str, fn(&PoolState) -> u64);

/// Gauges of each pool.
const POOL_GAUGES: [OfPool; 12] = [
    ("segue_pool_capacity_bytes", "Bytes of the drive", |p| p.capacity_bytes),
    ("segue_pool_free_bytes", "Bytes a write may still allocate", |p| p.free_bytes),
    ("segue_pool_pending_bytes", "Bytes freed but not yet reusable", |p| p.pending_bytes),
    ("segue_pool_volumes", "Volumes and snapshots", |p| p.volumes),
    ("segue_pool_layers", "Layers", |p| p.layers),
    ("segue_pool_journal_used_bytes", "Journal in use", |p| p.journal_used_bytes),
    ("segue_pool_journal_bytes", "Journal region", |p| p.journal_bytes),
    ("segue_pool_cache_used_bytes", "Map pages cached", |p| p.cache_used_bytes),
    ("segue_pool_cache_bytes", "Cap of the map page cache", |p| p.cache_bytes),
    ("segue_pool_bitmap_bytes", "Allocation bitmap held in memory", |p| p.bitmap_bytes),
    ("segue_pool_cleaning_jobs", "Clean-up jobs that still run", |p| p.cleaning),
    ("segue_pool_poisoned", "1 when a drive error made the pool refuse changes", |p| p.poisoned as u64),
];

/// Counters of each pool.
const POOL_COUNTERS: [OfPool; 4] = [
    ("segue_pool_integrity_errors", "Blocks that did not match their checksum since the pool was opened", |p| {
        p.integrity_errors
    }),
    ("segue_pool_commits", "Commits (journal write and drive flush) since the pool was opened", |p| p.commits),
    ("segue_pool_checkpoints", "Checkpoints since the pool was opened", |p| p.checkpoints),
    ("segue_pool_copied_bytes", "Data that the engine itself copied because of super or snapshots", |p| p.bytes_copied),
];

/// All metrics now. A pool whose core does not answer is left out.
pub async fn scrape(api: &Api) -> String {
    let mut pools = Vec::new();
    for pool in &api.pools {
        if let Ok(Ok(AdminReply::Pool(state))) = pool.ask(AdminOp::PoolStatus).await {
            pools.push((pool.name(), state));
        }
    }
    let mut registry = Registry::default();
    let uptime = Gauge::<f64, AtomicU64>::default();
    uptime.set(api.started.elapsed().as_secs_f64());
    registry.register("segue_node_uptime_seconds", "Time since the node started", uptime);
    let label = |pool: &str| [("pool", pool.to_owned())];
    for (name, help, value) in POOL_GAUGES {
        let family = PoolGauge::default();
        for (pool, state) in &pools {
            family.get_or_create(&label(pool)).set(value(state));
        }
        registry.register(name, help, family);
    }
    for (name, help, value) in POOL_COUNTERS {
        let family = PoolCounter::default();
        for (pool, state) in &pools {
            family.get_or_create(&label(pool)).inc_by(value(state));
        }
        registry.register(name, help, family);
    }
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string");
    text
}
