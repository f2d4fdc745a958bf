//! Anonymous memory as a drive: every I/O is a copy and completes at once.
//!
//! Owns: one mapping. Never: survives the process, or backs a run of 64 KiB in which nobody wrote.
//! Invariant: a range never written, or discarded in whole pages, reads as zero.

use super::{DriveOpenError, MIN_DRIVE_BYTES};
use segue_volume::device::{BlockDev, DriveError};
use std::io;

/// Ranges shorter than this are not given back to the system: the call costs more than the pages.
const DISCARD_MIN_BYTES: u64 = 64 << 10;
/// Memory is backed in runs of this size when first written: one call in place of sixteen page faults.
const RUN_SHIFT: u32 = 16;

/// A drive in anonymous memory, lazily backed.
pub struct MemoryDrive {
    base: *mut u8,
    bytes: u64,
    /// One bit per run: it was backed before.
    backed: Vec<u64>,
}

// The mapping belongs to this value alone.
unsafe impl Send for MemoryDrive {}

impl MemoryDrive {
    /// A drive of `bytes`, rounded down to 4096. Takes address space only.
    ///
    /// # Errors
    /// [`DriveOpenError::TooSmall`] or [`DriveOpenError::NoAddressSpace`].
    pub fn new(bytes: u64) -> Result<MemoryDrive, DriveOpenError> {
        let bytes = bytes & !4095;
        if bytes < MIN_DRIVE_BYTES {
            return Err(DriveOpenError::TooSmall { bytes });
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(DriveOpenError::NoAddressSpace { bytes, source: io::Error::last_os_error() });
        }
        let backed = vec![0; (bytes >> RUN_SHIFT) as usize / 64 + 1];
        Ok(MemoryDrive { base: base.cast(), bytes, backed })
    }

    /// Copies from the drive. Returns an errno, 0 on success.
    #[inline]
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> i32 {
        if !self.covers(offset, buf.len() as u64) {
            return libc::EINVAL;
        }
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(offset as usize), buf.as_mut_ptr(), buf.len()) };
        0
    }

    /// Copies to the drive. Returns an errno, 0 on success.
    #[inline]
    pub fn write_at(&mut self, offset: u64, buf: &[u8]) -> i32 {
        if !self.covers(offset, buf.len() as u64) {
            return libc::EINVAL;
        }
        let (first, end) = (offset >> RUN_SHIFT, (offset + buf.len() as u64).div_ceil(1 << RUN_SHIFT));
        for run in first..end {
            if self.backed[run as usize / 64] & 1 << (run % 64) == 0 {
                self.back(run);
            }
        }
        unsafe { std::ptr::copy_nonoverlapping(buf.as_ptr(), self.base.add(offset as usize), buf.len()) };
        0
    }

    /// Gives long ranges back to the system; they then read as zero. Returns an errno, 0 on success.
    pub fn discard_at(&mut self, offset: u64, len: u64) -> i32 {
        if !self.covers(offset, len) || offset & 4095 != 0 || len & 4095 != 0 {
            return libc::EINVAL;
        }
        if len >= DISCARD_MIN_BYTES {
            for run in offset >> RUN_SHIFT..(offset + len).div_ceil(1 << RUN_SHIFT) {
                self.backed[run as usize / 64] &= !(1 << (run % 64));
            }
            let at = unsafe { self.base.add(offset as usize) };
            unsafe { libc::madvise(at.cast(), len as usize, libc::MADV_DONTNEED) };
        }
        0
    }

    /// Has the system back a run. Where it cannot in one call, page faults do it, one by one.
    #[cold]
    fn back(&mut self, run: u64) {
        self.backed[run as usize / 64] |= 1 << (run % 64);
        let start = run << RUN_SHIFT;
        let len = (self.bytes - start).min(1 << RUN_SHIFT);
        unsafe { libc::madvise(self.base.add(start as usize).cast(), len as usize, libc::MADV_POPULATE_WRITE) };
    }

    fn covers(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes)
    }
}

impl BlockDev for MemoryDrive {
    fn capacity_bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        result_of(self.read_at(offset, buf))
    }

    fn write(&mut self, offset: u64, buf: &[u8]) -> Result<(), DriveError> {
        result_of(self.write_at(offset, buf))
    }

    fn flush(&mut self) -> Result<(), DriveError> {
        Ok(())
    }
}

impl Drop for MemoryDrive {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.base.cast(), self.bytes as usize) };
    }
}

fn result_of(errno: i32) -> Result<(), DriveError> {
    if errno == 0 { Ok(()) } else { Err(DriveError { errno }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conform_a_tebibyte_of_memory_is_free_until_written() {
        let mut drive = MemoryDrive::new(1 << 40).unwrap();
        let mut page = vec![1u8; 4096];
        assert_eq!(drive.read_at((1 << 40) - 4096, &mut page), 0);
        assert!(page.iter().all(|b| *b == 0));
        page.fill(9);
        assert_eq!(drive.write_at(1 << 39, &page), 0);
        page.fill(0);
        assert_eq!(drive.read_at(1 << 39, &mut page), 0);
        assert!(page.iter().all(|b| *b == 9));
        assert_eq!(drive.discard_at(1 << 39, 1 << 20), 0);
        assert_eq!(drive.read_at(1 << 39, &mut page), 0);
        assert!(page.iter().all(|b| *b == 0));
        assert_eq!(drive.read_at(1 << 40, &mut page), libc::EINVAL);
        assert_eq!(drive.write_at(u64::MAX - 10, &page), libc::EINVAL);
    }
}
