//! From settings as people give them to settings as the runtime takes them, and back.
//!
//! Owns: the translation. Never: keeps state.
//! Invariant: a drive that nobody measured is not governed and promises nothing by the numbers.

use segue_runtime::{Sharing, VolumeSharing};
use segue_sched::qos::{CostModel, GovernorParams, PolicyKind, READ_4K, Reason};
use segue_types::qos::{DriveProfile, SharePolicy, VolumeQos};

/// The runtime's word for a policy.
pub fn kind_of(policy: SharePolicy) -> PolicyKind {
    match policy {
        SharePolicy::Fifo => PolicyKind::Fifo,
        SharePolicy::Strict => PolicyKind::Strict,
        SharePolicy::Drr => PolicyKind::Drr,
        SharePolicy::Slo => PolicyKind::Slo,
        SharePolicy::Mclock => PolicyKind::Mclock,
    }
}

/// How the runtime is to share a drive of this profile.
pub fn sharing_of(policy: SharePolicy, profile: &DriveProfile, memory: bool) -> Sharing {
    let mut model = if memory { CostModel::MEMORY } else { CostModel::DRIVE };
    if profile.write_cost_percent > 0 {
        model.write_base = profile.write_cost_percent.saturating_sub(model.read_block).max(1);
        model.write_block = model.read_block * profile.write_cost_percent / 100;
    }
    let knee = profile.knee_depth as u64 * READ_4K;
    let governor = if knee == 0 || profile.latency_target_us == 0 {
        GovernorParams::OPEN
    } else {
        let target_ns = profile.latency_target_us as u64 * 1000;
        GovernorParams { target_ns, window_min: (knee / 2).max(READ_4K), window_max: knee * 3 }
    };
    Sharing { policy: kind_of(policy), model, governor, capacity: profile.capacity_iops.saturating_mul(READ_4K) }
}

/// An attached volume's figures.
pub fn volume_qos(pool: &str, volume: VolumeSharing) -> VolumeQos {
    let VolumeSharing { name, share, stats, .. } = volume;
    let waited = Reason::ALL.iter().zip(stats.waited_ns).filter(|(_, ns)| *ns > 0);
    VolumeQos {
        volume: name,
        pool: pool.to_owned(),
        share,
        attached: true,
        ops: stats.ops,
        bytes: stats.bytes,
        queued: stats.queued as u64,
        throttled_by: stats.reason.label().to_owned(),
        waited_us: waited.map(|(reason, ns)| (reason.label().to_owned(), ns / 1000)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use segue_sched::qos::Kind;

    #[test]
    fn a_profile_becomes_costs_window_and_capacity() {
        let profile =
            DriveProfile { capacity_iops: 50_000, latency_target_us: 200, knee_depth: 16, write_cost_percent: 300 };
        let sharing = sharing_of(SharePolicy::Drr, &profile, false);
        assert_eq!((sharing.policy, sharing.capacity), (PolicyKind::Drr, 5_000_000));
        assert_eq!(sharing.governor.target_ns, 200_000);
        assert_eq!((sharing.governor.window_min, sharing.governor.window_max), (800, 4800));
        let write = sharing.model.charge(Kind::Write, 4096, true).cost;
        assert!((295..=380).contains(&write), "{write}");
        let unknown = sharing_of(SharePolicy::Mclock, &DriveProfile::default(), false);
        assert_eq!((unknown.governor, unknown.capacity), (GovernorParams::OPEN, 0));
    }
}
