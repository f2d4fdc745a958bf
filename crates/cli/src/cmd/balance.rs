//! `segue node balance`: looks at what the node does, and makes the one move that helps most.
//!
//! Owns: turning counters of two moments into the policy's facts, and carrying its answer out. Never: decides; `sched::balance` does.
//! Invariant: with `--dry-run` nothing changes.

use crate::Global;
use crate::exit::ExitCode;
use crate::out::fields;
use segue_sched::balance::{BalanceOptions, DriveFacts, Proposal, Reason, VolumeFacts, propose};
use segue_types::BLOCK_BYTES;
use segue_types::api::{MoveRequest, PoolInfo, SuperPhase, TopInfo, VolumeInfo, VolumeKind};
use std::time::Duration;

/// Arguments of `segue node balance`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Seconds to watch before deciding.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Bytes per second at which a volume's data is copied at most, with unit; 0 for no limit.
    #[arg(long, default_value = "100MiB", value_parser = super::moves::parse_rate)]
    rate: u64,
}

/// The one thing to do.
#[derive(serde::Serialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case", tag = "do")]
enum Plan {
    /// A core works much more than another: hand one of its pools over. No data moves.
    BindPool { pool: String, core: u32 },
    /// A drive runs full or works much more than another: move a volume's data.
    MoveVolume { volume: String, pool: String, reason: &'static str },
    /// Nothing would help enough to be worth it.
    Nothing,
}

/// What was seen: two moments of the counters, and what there is.
struct Facts {
    before: TopInfo,
    after: TopInfo,
    pools: Vec<PoolInfo>,
    volumes: Vec<VolumeInfo>,
}

fn request(pool: &str, rate: u64) -> MoveRequest {
    MoveRequest { pool: pool.to_owned(), rate_bytes_per_s: Some(rate) }
}

/// What tells a pool's drive from others.
fn key(pool: &PoolInfo) -> String {
    if pool.drive == "memory" { format!("memory of {}", pool.name) } else { pool.drive.clone() }
}

/// Runs it.
///
/// # Errors
/// Those of the admin API; a move that the node refuses changes nothing.
pub fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client();
    let before = client.top()?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let facts = Facts { before, after: client.top()?, pools: client.pools()?, volumes: client.volumes()? };
    let plan = facts.plan();
    if !args.dry_run {
        match &plan {
            Plan::BindPool { pool, core } => {
                client.bind_pool(pool, *core)?;
            }
            Plan::MoveVolume { volume, pool, .. } => {
                client.begin_move(volume, &request(pool, args.rate))?;
            }
            Plan::Nothing => {}
        }
    }
    let busy: Vec<u64> = facts.cores().iter().map(|core| core.load / 10).collect();
    let value = serde_json::json!({ "plan": plan, "done": !args.dry_run, "core_busy_percent": busy });
    global.print("node.balance", &value, || {
        let words = match &plan {
            Plan::BindPool { pool, core } => format!("pool {pool} to core {core}"),
            Plan::MoveVolume { volume, pool, reason } => format!("volume {volume} to pool {pool} ({reason})"),
            Plan::Nothing => "nothing: no move would help enough".to_owned(),
        };
        let busy = busy.iter().map(|b| format!("{b} %")).collect::<Vec<_>>().join(", ");
        let done = if args.dry_run { "would do" } else { "done" };
        fields(&[("cores busy", busy), (done, words)])
    });
    Ok(ExitCode::Yes)
}

impl Facts {
    /// First what costs nothing but a pause, then what copies data.
    fn plan(&self) -> Plan {
        let (cores, pools) = (self.cores(), self.pools_of_cores());
        if let Some(Proposal { volume, to, .. }) = propose(&cores, &pools, &BalanceOptions::default()) {
            return Plan::BindPool { pool: self.pools[volume].name.clone(), core: to as u32 };
        }
        match propose(&self.drives(), &self.volumes_of_drives(), &BalanceOptions::default()) {
            Some(Proposal { volume, to, reason }) => {
                let reason = if reason == Reason::Space { "space" } else { "load" };
                Plan::MoveVolume {
                    volume: self.volumes[volume].name.clone(),
                    pool: self.roomiest(&self.drive_keys()[to]),
                    reason,
                }
            }
            None => Plan::Nothing,
        }
    }

    /// Cores as places of work: parts per thousand of the time their threads ran.
    fn cores(&self) -> Vec<DriveFacts> {
        let elapsed_ns = (self.after.uptime_ns - self.before.uptime_ns).max(1);
        let busy = |core: usize| {
            let at = |top: &TopInfo| top.cores.get(core).and_then(|c| c.cpu_ns).unwrap_or(0);
            (at(&self.after).saturating_sub(at(&self.before)) * 1000 / elapsed_ns).min(1000)
        };
        let fact =
            |core| DriveFacts { capacity_bytes: 1, free_bytes: 1, load: busy(core), load_max: 1000, closed: false };
        (0..self.after.cores.len()).map(fact).collect()
    }

    /// Pools as work of their cores: a core's time, by the requests of its pools.
    fn pools_of_cores(&self) -> Vec<VolumeFacts> {
        let cores = self.cores();
        let done: Vec<u64> = self.pools.iter().map(|pool| self.work(|v| v.pool == pool.name)).collect();
        let of_core = |core: u32| -> u64 {
            self.pools.iter().zip(&done).filter(|(pool, _)| pool.core == core).map(|(_, done)| done).sum()
        };
        let fact = |(pool, done): (&PoolInfo, &u64)| {
            let core = pool.core as usize;
            let load = (cores[core].load * done).checked_div(of_core(pool.core)).unwrap_or(0);
            VolumeFacts { drive: core, data_bytes: 0, load, pinned: false }
        };
        self.pools.iter().zip(&done).map(fact).collect()
    }

    /// The drives: slices of one drive are one, each memory pool is one.
    fn drive_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.pools.iter().map(key).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// The pool of a drive that has the most room.
    fn roomiest(&self, drive: &str) -> String {
        let of = self.pools.iter().filter(|pool| key(pool) == drive && !pool.poisoned);
        of.max_by_key(|pool| pool.free_bytes).map_or_else(String::new, |pool| pool.name.clone())
    }

    fn drives(&self) -> Vec<DriveFacts> {
        let fact = |drive: &String| {
            let of = || self.pools.iter().filter(|pool| key(pool) == *drive);
            let most = |value: fn(&PoolInfo) -> u64| of().map(value).max().unwrap_or(0);
            let own: u64 = of().map(|pool| pool.free_bytes + pool.pending_bytes).sum();
            DriveFacts {
                capacity_bytes: most(|pool| pool.capacity_bytes),
                free_bytes: own + most(|pool| pool.shared_free_bytes),
                load: of().map(|pool| self.work(|v| v.pool == pool.name)).sum(),
                load_max: 0,
                closed: of().all(|pool| pool.poisoned),
            }
        };
        self.drive_keys().iter().map(fact).collect()
    }

    fn volumes_of_drives(&self) -> Vec<VolumeFacts> {
        let keys = self.drive_keys();
        let place = |volume: &VolumeInfo| {
            let pool = self.pools.iter().find(|pool| pool.name == volume.pool);
            pool.and_then(|pool| keys.iter().position(|drive| *drive == key(pool))).unwrap_or(0)
        };
        let fact = |volume: &VolumeInfo| VolumeFacts {
            drive: place(volume),
            data_bytes: volume.own_bytes,
            load: self.work(|v| v.name == volume.name),
            pinned: volume.kind == VolumeKind::Snapshot || volume.super_phase != SuperPhase::None || volume.locked,
        };
        self.volumes.iter().map(fact).collect()
    }

    /// Blocks asked for per second while it was watched, requests smaller than a block counted as one.
    fn work(&self, of: impl Fn(&VolumeInfo) -> bool) -> u64 {
        let elapsed_ms = ((self.after.uptime_ns - self.before.uptime_ns) / 1_000_000).max(1);
        let of = |name: &str| self.volumes.iter().any(|v| v.name == name && of(v));
        let sum = |top: &TopInfo| -> u64 {
            top.volumes.iter().filter(|v| of(&v.volume)).map(|v| v.requests.max(v.bytes / BLOCK_BYTES)).sum()
        };
        // A volume that nobody is attached to any more has no counters.
        sum(&self.after).saturating_sub(sum(&self.before)) * 1000 / elapsed_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, drive: &str, core: u32, free_bytes: u64) -> PoolInfo {
        PoolInfo { name: name.into(), drive: drive.into(), core, free_bytes, ..empty_pool() }
    }

    fn empty_pool() -> PoolInfo {
        serde_json::from_value(serde_json::json!({
            "name": "", "drive": "", "core": 0, "capacity_bytes": 1000, "free_bytes": 0, "shared_free_bytes": 0,
            "pending_bytes": 0, "volumes": 0, "layers": 0, "journal_used_bytes": 0, "journal_bytes": 0,
            "cache_used_bytes": 0, "cache_bytes": 0, "bitmap_bytes": 0, "poisoned": false, "integrity_errors": 0,
            "cleaning": 0
        }))
        .expect("a pool")
    }

    fn top(uptime_ns: u64, cpu_ns: [u64; 2], requests: &[(&str, u64)]) -> TopInfo {
        let core = |core: usize| {
            serde_json::json!({ "core": core, "cpu_ns": cpu_ns[core], "requests": 0, "errors": 0, "bytes": 0,
                "connections": 0, "in_flight": 0, "latency": [] })
        };
        let volume = |(name, requests): &(&str, u64)| {
            serde_json::json!({ "volume": name, "pool": "", "requests": requests, "bytes": 0, "waited": 0, "queued": 0,
                "reason": "none", "latency": [] })
        };
        serde_json::from_value(serde_json::json!({
            "uptime_ns": uptime_ns, "latency_ns_max": [], "cores": [core(0), core(1)], "pools": [],
            "volumes": requests.iter().map(volume).collect::<Vec<_>>()
        }))
        .expect("counters")
    }

    fn volume(name: &str, pool: &str, own_bytes: u64) -> VolumeInfo {
        serde_json::from_value(serde_json::json!({
            "name": name, "pool": pool, "kind": "volume", "size_bytes": own_bytes, "own_bytes": own_bytes, "depth": 1,
            "epoch": 1, "observation": "flush", "token_required": false, "lease": null, "super_phase": "none",
            "super_id": null, "note": "", "cleaning": false
        }))
        .expect("a volume")
    }

    #[test]
    fn a_busy_core_gives_a_pool_to_an_idle_one() {
        let facts = Facts {
            before: top(0, [0, 0], &[("a", 0), ("b", 0)]),
            after: top(1_000_000_000, [900_000_000, 10_000_000], &[("a", 60_000), ("b", 40_000)]),
            pools: vec![pool("p", "x", 0, 900), pool("q", "y", 0, 900)],
            volumes: vec![volume("a", "p", 10), volume("b", "q", 10)],
        };
        assert!(matches!(facts.plan(), Plan::BindPool { core: 1, .. }), "{:?}", facts.plan());
    }

    #[test]
    fn a_full_drive_gives_a_volume_to_another_drive_not_to_its_own_slices() {
        let facts = |pools| Facts {
            before: top(0, [0, 0], &[]),
            after: top(1_000_000_000, [0, 0], &[]),
            pools,
            volumes: vec![volume("a", "p/0", 300), volume("b", "p/0", 100)],
        };
        let slices = vec![pool("p/0", "x", 0, 20), pool("p/1", "x", 1, 30)];
        assert_eq!(facts(slices.clone()).plan(), Plan::Nothing);
        let more = slices.into_iter().chain([pool("q", "y", 1, 900)]).collect();
        let plan = Plan::MoveVolume { volume: "b".into(), pool: "q".into(), reason: "space" };
        assert_eq!(facts(more).plan(), plan);
    }
}
