//! A volume's share of its drive: what it is promised, what it may take at most.
//!
//! Owns: the values and their ranges. Never: schedules anything.
//! Invariant: a share that passed `check` asks for nothing a scheduler could not carry out.

use serde::{Deserialize, Serialize};

/// Largest weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// Longest burst, milliseconds.
pub const BURST_MS_MAX: u32 = 60_000;

/// What a volume is promised and what it may take. A volume without a share has [`Share::default`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Requests per second (of 4 KiB) that it gets whatever its neighbours do; 0: none.
    #[serde(default)]
    pub reserve_iops: u64,
    /// Its part of what nobody has reserved, against the weights of the others: 1 to 10,000.
    #[serde(default = "weight_default")]
    pub weight: u32,
    /// Most requests per second; 0: no limit.
    #[serde(default)]
    pub limit_iops: u64,
    /// Most bytes per second; 0: no limit.
    #[serde(default)]
    pub limit_bytes_per_s: u64,
    /// How long it may go above its limits after a pause, milliseconds: at most 60,000.
    #[serde(default)]
    pub burst_ms: u32,
    /// The 95th percentile of latency it asks for, microseconds; 0: none.
    #[serde(default)]
    pub latency_target_us: u32,
}

fn weight_default() -> u32 {
    Share::default().weight
}

impl Default for Share {
    fn default() -> Share {
        Share { reserve_iops: 0, weight: 100, limit_iops: 0, limit_bytes_per_s: 0, burst_ms: 100, latency_target_us: 0 }
    }
}

impl Share {
    /// Whether the values can be carried out together.
    ///
    /// # Errors
    /// Says which value to change.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.weight == 0 || self.weight > WEIGHT_MAX {
            return Err("a weight is 1 to 10000");
        }
        if self.limit_iops > 0 && self.reserve_iops > self.limit_iops {
            return Err("the reservation is above the limit: lower reserve_iops or raise limit_iops");
        }
        if self.burst_ms > BURST_MS_MAX {
            return Err("a burst is at most 60000 ms");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_checked() {
        let share = Share::default();
        assert_eq!(share.check(), Ok(()));
        assert!(Share { weight: 0, ..share }.check().is_err());
        assert!(Share { reserve_iops: 11, limit_iops: 10, ..share }.check().is_err());
        assert_eq!(Share { reserve_iops: 11, ..share }.check(), Ok(()));
        assert!(Share { burst_ms: BURST_MS_MAX + 1, ..share }.check().is_err());
    }
}
