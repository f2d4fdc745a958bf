//! From two looks at a node's counters to what happened between them.
//!
//! Owns: the differences and the percentiles. Never: asks the node.
//! Invariant: a counter that went back (a volume was detached and attached again) counts from zero.

use segue_types::api::{TopCore, TopInfo, TopPool, TopVolume};
use serde::Serialize;

/// What happened between two looks.
#[derive(Clone, Debug, Serialize)]
pub struct Rates {
    /// Time between the looks, seconds.
    pub interval_s: f64,
    /// Time since the node started, seconds.
    pub uptime_s: f64,
    pub cores: Vec<CoreRates>,
    pub pools: Vec<TopPool>,
    pub volumes: Vec<VolumeRates>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CoreRates {
    pub core: u32,
    /// Part of the interval that its thread used a processor, percent.
    pub busy_percent: Option<f64>,
    /// Processor time per request, microseconds.
    pub cpu_us_per_request: Option<f64>,
    pub iops: f64,
    pub bytes_per_s: f64,
    pub errors_per_s: f64,
    pub connections: u64,
    pub in_flight: u64,
    /// Upper bounds of the buckets in which the percentiles fall, microseconds.
    pub latency_us_p50: Option<f64>,
    pub latency_us_p99: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct VolumeRates {
    pub volume: String,
    pub pool: String,
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Part of the requests that had to wait, percent.
    pub waited_percent: f64,
    pub queued: u64,
    pub reason: String,
    pub latency_us_p50: Option<f64>,
    pub latency_us_p99: Option<f64>,
}

/// How much a counter grew. One that went back was begun anew.
fn grown(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// The upper bound of the bucket in which a percentile (0 to 1) lies, microseconds; `None` of nothing. What lies above
/// the last bound is told as that bound.
fn percentile_us(before: &[u64], now: &[u64], bounds_ns: &[u64], p: f64) -> Option<f64> {
    let zero = vec![0; now.len()];
    let restarted = before.len() != now.len() || before.iter().zip(now).any(|(b, n)| n < b);
    let before = if restarted { &zero } else { before };
    let counts: Vec<u64> = before.iter().zip(now).map(|(b, n)| n - b).collect();
    let total: u64 = counts.iter().sum();
    if total == 0 || bounds_ns.is_empty() {
        return None;
    }
    let rank = ((total as f64 * p).ceil() as u64).clamp(1, total);
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= rank
    });
    Some(bounds_ns[bucket.unwrap_or(counts.len()).min(bounds_ns.len() - 1)] as f64 / 1e3)
}

impl Rates {
    /// What happened from `before` to `now`.
    pub fn between(before: &TopInfo, now: &TopInfo) -> Rates {
        let interval_s = (grown(before.uptime_ns, now.uptime_ns) as f64 / 1e9).max(1e-9);
        let bounds = &now.latency_ns_max;
        let core = |c: &TopCore| {
            let old = before.cores.iter().find(|b| b.core == c.core);
            let delta = |value: fn(&TopCore) -> u64| grown(old.map_or(0, value), value(c));
            let requests = delta(|c| c.requests);
            let cpu_ns = c.cpu_ns.map(|ns| grown(old.and_then(|o| o.cpu_ns).unwrap_or(0), ns) as f64);
            let old_latency = old.map_or(&[][..], |o| &o.latency);
            CoreRates {
                core: c.core,
                busy_percent: cpu_ns.map(|ns| ns / 1e7 / interval_s),
                cpu_us_per_request: cpu_ns.filter(|_| requests > 0).map(|ns| ns / 1e3 / requests as f64),
                iops: requests as f64 / interval_s,
                bytes_per_s: delta(|c| c.bytes) as f64 / interval_s,
                errors_per_s: delta(|c| c.errors) as f64 / interval_s,
                connections: c.connections,
                in_flight: c.in_flight,
                latency_us_p50: percentile_us(old_latency, &c.latency, bounds, 0.5),
                latency_us_p99: percentile_us(old_latency, &c.latency, bounds, 0.99),
            }
        };
        let volume = |v: &TopVolume| {
            let old = before.volumes.iter().find(|b| b.volume == v.volume && b.pool == v.pool);
            let delta = |value: fn(&TopVolume) -> u64| grown(old.map_or(0, value), value(v));
            let requests = delta(|v| v.requests);
            let old_latency = old.map_or(&[][..], |o| &o.latency);
            VolumeRates {
                volume: v.volume.clone(),
                pool: v.pool.clone(),
                iops: requests as f64 / interval_s,
                bytes_per_s: delta(|v| v.bytes) as f64 / interval_s,
                waited_percent: 100.0 * delta(|v| v.waited) as f64 / requests.max(1) as f64,
                queued: v.queued,
                reason: v.reason.clone(),
                latency_us_p50: percentile_us(old_latency, &v.latency, bounds, 0.5),
                latency_us_p99: percentile_us(old_latency, &v.latency, bounds, 0.99),
            }
        };
        Rates {
            interval_s,
            uptime_s: now.uptime_ns as f64 / 1e9,
            cores: now.cores.iter().map(core).collect(),
            pools: now.pools.clone(),
            volumes: now.volumes.iter().map(volume).collect(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A node with a core and two volumes, `n` intervals after its start.
    pub fn look(n: u64) -> TopInfo {
        let latency = |fast: u64, slow: u64| vec![fast * n, slow * n, 0, 0];
        let volume = |name: &str, requests: u64, reason: &str| TopVolume {
            volume: name.into(),
            pool: "p".into(),
            requests: requests * n,
            bytes: requests * n * 4096,
            waited: requests * n / 4,
            queued: 3,
            reason: reason.into(),
            latency: latency(requests - 1, 1),
        };
        TopInfo {
            uptime_ns: n * 2_000_000_000,
            latency_ns_max: vec![1000, 2000, 4000],
            cores: vec![TopCore {
                core: 0,
                cpu_ns: Some(n * 1_000_000_000),
                requests: 1000 * n,
                errors: 0,
                bytes: 4_096_000 * n,
                connections: 2,
                in_flight: 5,
                latency: latency(900, 100),
            }],
            pools: vec![TopPool {
                pool: "p".into(),
                core: 0,
                policy: "mclock".into(),
                outstanding: 10,
                window: 64,
                queued: 3,
                drive_p95_ns: 80_000,
                free_bytes: 1 << 30,
                capacity_bytes: 2 << 30,
                cleaning: 1,
                racing: 1,
                locked: 0,
                integrity_errors: 0,
                poisoned: false,
            }],
            volumes: vec![volume("busy", 800, "limit_iops"), volume("calm", 200, "none")],
        }
    }

    #[test]
    fn counters_become_rates() {
        let rates = Rates::between(&look(3), &look(4));
        let core = &rates.cores[0];
        assert_eq!((rates.interval_s, core.iops, core.busy_percent), (2.0, 500.0, Some(50.0)));
        assert_eq!(core.cpu_us_per_request, Some(1000.0));
        assert_eq!((core.latency_us_p50, core.latency_us_p99), (Some(1.0), Some(2.0)));
        assert_eq!((rates.volumes[0].iops, rates.volumes[0].waited_percent), (400.0, 25.0));
    }

    #[test]
    fn what_begins_anew_counts_from_zero() {
        let (before, now) = (look(4), look(1));
        let rates = Rates::between(&before, &TopInfo { uptime_ns: before.uptime_ns + 1_000_000_000, ..now.clone() });
        assert_eq!((rates.volumes[0].iops, rates.volumes[0].latency_us_p50), (800.0, Some(1.0)));
        let fresh = TopInfo { volumes: vec![], ..before };
        assert_eq!(Rates::between(&fresh, &look(5)).volumes[1].iops, 500.0);
        let idle = Rates::between(&now, &now);
        assert_eq!(idle.volumes[0].latency_us_p99, None);
        assert_eq!(percentile_us(&[], &[0, 0, 0, 7], &[1000, 2000, 4000], 0.5), Some(4.0), "beyond the last bound");
    }
}
