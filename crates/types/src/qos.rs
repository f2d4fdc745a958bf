//! The admin API's data about shares of a drive.
//!
//! Owns: the JSON shapes. Never: schedules.
//! Invariant: fields are added, never renamed or removed, within one version of the API.

use crate::Share;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How volumes share a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum SharePolicy {
    /// In order of arrival: no isolation.
    Fifo,
    /// Time slices by weight: nobody feels a neighbour, and idle slices are lost.
    Strict,
    /// Deficit round robin: shares by weight.
    Drr,
    /// Reservations with latency targets first, by deadline.
    Slo,
    /// Reservation, weight and limit together.
    #[default]
    Mclock,
}

/// What is known of a drive, measured by `segue drive calibrate`. Zero: not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DriveProfile {
    /// 4 KiB random reads per second that it sustains; nine tenths of it may be reserved.
    #[serde(default)]
    pub capacity_iops: u64,
    /// p95 of a 4 KiB read at the knee of its latency curve, microseconds: the governor keeps it there.
    #[serde(default)]
    pub latency_target_us: u32,
    /// 4 KiB reads in flight at the knee.
    #[serde(default)]
    pub knee_depth: u32,
    /// Cost of a 4 KiB write, in hundredths of a 4 KiB read.
    #[serde(default)]
    pub write_cost_percent: u32,
}

/// A change of how a pool's drive is shared; what is missing stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetPoolQos {
    /// The policy.
    #[serde(default)]
    pub policy: Option<SharePolicy>,
    /// What is known of the drive.
    #[serde(default)]
    pub profile: Option<DriveProfile>,
}

/// A volume's share of its drive and how it fares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeQos {
    /// The volume.
    pub volume: String,
    /// Its pool.
    pub pool: String,
    /// The settings in force.
    pub share: Share,
    /// Somebody is attached. The figures below are since the first of those attached, and 0 without any.
    pub attached: bool,
    /// Requests that passed, as the tenant issued them.
    pub ops: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Requests, or pieces of large ones, that wait now.
    pub queued: u64,
    /// Why the first of them waits: `none`, `limit_iops`, `limit_bytes`, `share`, `governor`, `reservation_of_others`,
    /// `flush_charge`, `slice`, `core`.
    pub throttled_by: String,
    /// Time that requests waited, microseconds, by reason.
    pub waited_us: BTreeMap<String, u64>,
}

/// How a pool's drive is shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolQos {
    /// The pool.
    pub pool: String,
    /// The policy in force.
    pub policy: SharePolicy,
    /// What is known of the drive.
    pub profile: DriveProfile,
    /// Requests, or pieces, that wait now.
    pub queued: u64,
    /// Cost of what the drive has now, in 4 KiB reads.
    pub outstanding_reads: u64,
    /// The most it may have now, in 4 KiB reads.
    pub window_reads: u64,
    /// p95 that the governor saw last, microseconds.
    pub p95_us: u64,
    /// Volumes that somebody is attached to.
    pub volumes: Vec<VolumeQos>,
}
