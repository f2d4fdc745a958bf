//! The blocking drive interface used while a pool is formatted, opened or checked.
//!
//! Owns: the trait and its error. Never: used on the data path, where I/O is commands and completions.
//! Invariant: after `flush` returns, every `write` that returned before it survives a power cut.

/// A drive I/O failed. The kind is kept as an errno so that simulated drives can make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("drive error. errno=`{errno}`")]
pub struct DriveError {
    /// The operating system's error number.
    pub errno: i32,
}

/// A drive, used synchronously. Offsets and lengths are multiples of 4096; buffers are 4096-aligned.
pub trait BlockDev {
    /// Bytes of the drive.
    fn capacity_bytes(&self) -> u64;
    /// Fills `buf` from byte `offset`.
    ///
    /// # Errors
    /// [`DriveError`]; the content of `buf` is then unspecified.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), DriveError>;
    /// Writes `buf` at byte `offset`. Durable only after the next [`BlockDev::flush`].
    ///
    /// # Errors
    /// [`DriveError`]; the range then holds any mix of old and new sectors.
    fn write(&mut self, offset: u64, buf: &[u8]) -> Result<(), DriveError>;
    /// Makes every write that returned before durable.
    ///
    /// # Errors
    /// [`DriveError`]; nothing may be assumed durable, and the caller must stop using the drive.
    fn flush(&mut self) -> Result<(), DriveError>;
}
