//! The metrics of a node, in OpenMetrics text.
//!
//! Owns: names, help texts and label sets of all metrics. Never: keeps a counter; engines and cores do.
//! Invariant: names are `segue_<subsystem>_<noun>_<unit>`, and the label sets are closed: pool, kind of request, kind of task and level.

use crate::admin::Api;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use segue_runtime::{OpClass, OpCounters, Snapshot, latency_bucket_ns_max};
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

/// Reads the counters of all cores.
pub type Counters = Box<dyn Fn() -> Vec<Snapshot> + Send + Sync>;

/// One metric of the cores: name, help, and where its value is.
type OfCore = (&'static str, &'static str, fn(&Snapshot) -> u64);
/// One metric per kind of request.
type OfClass = (&'static str, &'static str, fn(&OpCounters) -> u64);

/// Gauges, summed over cores.
const CORE_GAUGES: [OfCore; 3] = [
    ("segue_nbd_connections", "Connections now", |c| c.connections),
    ("segue_nbd_in_flight_requests", "Requests in flight now", |c| c.requests_in_flight),
    ("segue_core_memory_used_bytes", "I/O memory in use now, caches of the engines included", |c| c.mem_used_bytes),
];

/// Counters, summed over cores.
const CORE_COUNTERS: [OfCore; 7] = [
    ("segue_nbd_handshakes_elsewhere", "Steps of TLS handshakes that helpers did for the core", |c| {
        c.handshakes_elsewhere
    }),
    ("segue_nbd_accepted_connections", "Connections accepted", |c| c.accepted),
    ("segue_nbd_refused_connections", "Connections turned away because there were too many", |c| c.refused),
    ("segue_nbd_cut_connections", "Connections cut: broken protocol, slow handshake, stalled", |c| c.cut),
    ("segue_core_turns", "Turns of the loops", |c| c.turns),
    ("segue_core_kernel_calls", "Calls into the kernel for drives and sockets", |c| c.kernel_calls),
    ("segue_core_memory_waits", "Times that a connection had to wait for I/O memory", |c| c.mem_waits),
];

/// Counters per kind of request, summed over cores.
const CLASS_COUNTERS: [OfClass; 3] = [
    ("segue_nbd_requests", "Requests answered", |c| c.requests),
    ("segue_nbd_failed_requests", "Requests answered with an error", |c| c.errors),
    ("segue_nbd_transferred_bytes", "Bytes read, written or trimmed with success", |c| c.bytes),
];

/// Name and help of the latency histogram.
const LATENCY: (&str, &str) =
    ("segue_nbd_latency_seconds", "Time from parsing a request to queueing its reply, by kind of request");

/// Recoveries from panics, by kind of task and level, and their times.
const RECOVERIES: (&str, &str) = ("segue_core_recoveries", "Recoveries from panics, by kind of task and level");
const RECOVERY_SUM: (&str, &str) = ("segue_core_recovery_seconds", "Time spent in recoveries from panics");
const RECOVERY_MAX: (&str, &str) = ("segue_core_recovery_longest_seconds", "The longest recovery from a panic");

/// The counters of the cores, at one moment, as metrics.
#[derive(Debug)]
struct OfCores(Vec<Snapshot>);

impl OfCores {
    fn sum(&self, value: fn(&Snapshot) -> u64) -> u64 {
        self.0.iter().map(value).sum()
    }

    fn latency(&self, class: OpClass) -> (f64, Vec<(f64, u64)>) {
        let ops = || self.0.iter().map(|core| &core.ops[class as usize]);
        let sum_ns: u64 = ops().map(|op| op.latency_ns_sum).sum();
        let buckets = (0..segue_runtime::LATENCY_BUCKETS).map(|bucket| {
            let bound_s = latency_bucket_ns_max(bucket).map_or(f64::MAX, |ns| ns as f64 / 1e9);
            (bound_s, ops().map(|op| op.latency[bucket]).sum())
        });
        (sum_ns as f64 / 1e9, buckets.collect())
    }
}

impl Collector for OfCores {
    fn encode(&self, mut out: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for (name, help, value) in CORE_GAUGES {
            ConstGauge::new(self.sum(value)).encode(out.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        for (name, help, value) in CORE_COUNTERS {
            ConstCounter::new(self.sum(value)).encode(out.encode_descriptor(
                name,
                help,
                None,
                MetricType::Counter,
            )?)?;
        }
        for (name, help, value) in CLASS_COUNTERS {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            for class in OpClass::ALL {
                let sum: u64 = self.0.iter().map(|core| value(&core.ops[class as usize])).sum();
                ConstCounter::new(sum).encode(family.encode_family(&[("op", class.label())])?)?;
            }
        }
        let mut family = out.encode_descriptor(RECOVERIES.0, RECOVERIES.1, None, MetricType::Counter)?;
        let recovered = crate::admin::recovered(&self.0);
        for c in &recovered.counts {
            let labels = [("task", c.task.name()), ("level", c.level.name())];
            ConstCounter::new(c.count).encode(family.encode_family(&labels)?)?;
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        let sum = ConstCounter::new(seconds(recovered.took_ns_sum));
        sum.encode(out.encode_descriptor(RECOVERY_SUM.0, RECOVERY_SUM.1, None, MetricType::Counter)?)?;
        let max = ConstGauge::new(seconds(recovered.took_ns_max));
        max.encode(out.encode_descriptor(RECOVERY_MAX.0, RECOVERY_MAX.1, None, MetricType::Gauge)?)?;
        let mut family = out.encode_descriptor(LATENCY.0, LATENCY.1, None, MetricType::Histogram)?;
        for class in OpClass::ALL {
            let (sum_s, buckets) = self.latency(class);
            let count = buckets.iter().map(|(_, n)| n).sum();
            let labels = [("op", class.label())];
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum_s, count, &buckets, None)?;
        }
        Ok(())
    }
}

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
    registry.register_collector(Box::new(OfCores((api.counters)())));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string");
    text
}
