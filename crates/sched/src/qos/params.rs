//! Why settings are refused, and the names of the policies and of the reasons to wait.
//!
//! Owns: the refusals and the words. Never: schedules; the settings themselves are [`segue_types::Share`].
//! Invariant: every word parses back to what it names.

/// Why a volume's settings were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShareError {
    /// The values cannot be carried out together, whatever the drive.
    #[error("{0}")]
    Invalid(&'static str),
    /// Ask for less, or take reservations from other volumes.
    #[error(
        "the drive cannot promise this; lower a reservation. asked_iops=`{asked_iops}` \
         reserved_for_others_iops=`{reserved_iops}` reservable_iops=`{capacity_iops}`"
    )]
    Admission {
        /// What was asked for, 4 KiB reads per second.
        asked_iops: u64,
        /// What other volumes have.
        reserved_iops: u64,
        /// What can be promised in all.
        capacity_iops: u64,
    },
    /// Calibrate the drive first.
    #[error("nobody measured what this drive can do, so nothing can be promised; run `segue drive calibrate` first")]
    Uncalibrated,
}

/// A way to share a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PolicyKind {
    /// In order of arrival: no isolation.
    Fifo,
    /// Time slices: nobody feels a neighbour, and idle slices are lost.
    Strict,
    /// Deficit round robin: shares by weight.
    Drr,
    /// Reservations with latency targets first, by deadline.
    Slo,
    /// Reservation, weight and limit together.
    #[default]
    Mclock,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [PolicyKind; 5] =
        [PolicyKind::Fifo, PolicyKind::Strict, PolicyKind::Drr, PolicyKind::Slo, PolicyKind::Mclock];

    /// Its word in settings and output.
    pub const fn label(self) -> &'static str {
        match self {
            PolicyKind::Fifo => "fifo",
            PolicyKind::Strict => "strict",
            PolicyKind::Drr => "drr",
            PolicyKind::Slo => "slo",
            PolicyKind::Mclock => "mclock",
        }
    }

    /// The policy of a word.
    pub fn parse(word: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.label() == word)
    }
}

/// Why a volume's next request waits, or waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reason {
    /// It does not wait.
    #[default]
    None = 0,
    /// Its own limit of requests.
    LimitIops = 1,
    /// Its own limit of bytes.
    LimitBytes = 2,
    /// Others have their turn by weight.
    Share = 3,
    /// The drive has as much outstanding as it takes at its target latency.
    Governor = 4,
    /// Reservations of others come first.
    Reservation = 5,
    /// It pays for the drive time of its flushes.
    FlushCharge = 6,
    /// Another volume's time slice.
    Slice = 7,
    /// The core has other work in this turn.
    Core = 8,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Reason; 9] = [
        Reason::None,
        Reason::LimitIops,
        Reason::LimitBytes,
        Reason::Share,
        Reason::Governor,
        Reason::Reservation,
        Reason::FlushCharge,
        Reason::Slice,
        Reason::Core,
    ];

    /// Its word in output.
    pub const fn label(self) -> &'static str {
        match self {
            Reason::None => "none",
            Reason::LimitIops => "limit_iops",
            Reason::LimitBytes => "limit_bytes",
            Reason::Share => "share",
            Reason::Governor => "governor",
            Reason::Reservation => "reservation_of_others",
            Reason::FlushCharge => "flush_charge",
            Reason::Slice => "slice",
            Reason::Core => "core",
        }
    }
}
