//! The outcome of one block request, as a client sees it.
//!
//! Owns: the closed list of outcomes and their errno numbers. Never: carries text or sources.
//! Invariant: every outcome tells the caller what to do, and maps to exactly one errno.

/// Outcome of a block request. The doc of each tells what the caller should do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum IoStatus {
    /// Done as asked.
    Ok,
    /// The drive failed or the block does not match its checksum. Do not trust the range; see the pool's events.
    Io,
    /// The pool is full. Free space (delete, discard) and try again; overwrites that need no space go on.
    NoSpace,
    /// Out of range, misaligned, or malformed. Fix the request.
    Invalid,
    /// The attachment is read-only, or may not do this. Attach for writing.
    ReadOnly,
    /// The attachment's epoch is over: it was fenced, or the volume is going away. Stop using this attachment.
    Fenced,
    /// This request is understood and not offered (for example a fast zero that would not be fast).
    NotSupported,
}

impl IoStatus {
    /// The errno of this outcome: 0, EIO 5, ENOSPC 28, EINVAL 22, EPERM 1, ESHUTDOWN 108, ENOTSUP 95.
    pub const fn errno(self) -> u32 {
        match self {
            IoStatus::Ok => 0,
            IoStatus::Io => 5,
            IoStatus::NoSpace => 28,
            IoStatus::Invalid => 22,
            IoStatus::ReadOnly => 1,
            IoStatus::Fenced => 108,
            IoStatus::NotSupported => 95,
        }
    }

    /// True for [`IoStatus::Ok`].
    pub const fn is_ok(self) -> bool {
        matches!(self, IoStatus::Ok)
    }
}
