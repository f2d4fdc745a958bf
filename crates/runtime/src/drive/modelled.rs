//! Memory with the service times of a drive: what isolation is measured on where no drive is steady enough.
//!
//! Owns: the model's channels and the ends that are to come. Never: reads a clock, or reorders what one channel serves.
//! Invariant: every command ends once, at the time that its channel is done with it.
//!
//! The bytes move at once; only the ends wait. A command takes the channel that is free first, so the drive serves as
//! many at a time as it has channels, and what comes beyond waits: that is the knee of its latency curve.

use super::{DriveOpenError, MemoryDrive};
use segue_types::Nanos;
use segue_volume::op::{IoKind, Ticket};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Service times of a modelled drive, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveTiming {
    /// Commands that it serves at a time.
    pub channels: u32,
    /// A read of 4 KiB.
    pub read_ns: u64,
    /// A write of 4 KiB.
    pub write_ns: u64,
    /// Each further 4 KiB of either.
    pub block_ns: u64,
    /// A flush; it takes one channel.
    pub flush_ns: u64,
    /// A discard, whatever its length; it takes one channel.
    pub discard_ns: u64,
}

impl Default for DriveTiming {
    /// About a cloud drive: 50,000 reads or 33,000 writes per second, 1.8 GB/s.
    fn default() -> DriveTiming {
        DriveTiming {
            channels: 16,
            read_ns: 320_000,
            write_ns: 480_000,
            block_ns: 30_000,
            flush_ns: 1_000_000,
            discard_ns: 300_000,
        }
    }
}

/// A drive in memory that takes its time.
pub struct ModelledDrive {
    pub(crate) memory: MemoryDrive,
    timing: DriveTiming,
    free_at: Vec<Nanos>,
    ends: BinaryHeap<Reverse<(Nanos, u32, i32)>>,
}

impl ModelledDrive {
    /// A drive of `bytes`.
    ///
    /// # Errors
    /// As [`MemoryDrive::new`].
    pub fn new(bytes: u64, timing: DriveTiming) -> Result<ModelledDrive, DriveOpenError> {
        let channels = timing.channels.max(1) as usize;
        let memory = MemoryDrive::new(bytes)?;
        Ok(ModelledDrive { memory, timing, free_at: vec![0; channels], ends: BinaryHeap::with_capacity(4096) })
    }

    /// A command was carried out; its end comes when a channel is done with it.
    pub(crate) fn took(&mut self, now: Nanos, ticket: Ticket, kind: &IoKind, errno: i32) {
        let blocks = |bytes: usize| (bytes as u64).div_ceil(4096).saturating_sub(1) * self.timing.block_ns;
        let service_ns = match kind {
            IoKind::Read { buf, .. } => self.timing.read_ns + blocks(buf.len()),
            IoKind::Write { buf, .. } => self.timing.write_ns + blocks(buf.len()),
            IoKind::Flush => self.timing.flush_ns,
            IoKind::Discard { .. } => self.timing.discard_ns,
        };
        let channel = self.free_at.iter_mut().min().expect("a drive has a channel");
        *channel = now.max(*channel) + service_ns;
        self.ends.push(Reverse((*channel, ticket.0, errno)));
    }

    /// When the next command ends.
    pub(crate) fn next_end(&self) -> Option<Nanos> {
        self.ends.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes a command that has ended by now.
    pub(crate) fn pop_end(&mut self, now: Nanos) -> Option<(Ticket, i32)> {
        if self.next_end()? > now {
            return None;
        }
        self.ends.pop().map(|Reverse((_, ticket, errno))| (Ticket(ticket), errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conform_commands_end_when_a_channel_is_done_with_them() {
        let timing = DriveTiming { channels: 2, read_ns: 100, ..DriveTiming::default() };
        let mut drive = ModelledDrive::new(1 << 20, timing).unwrap();
        for ticket in 0..5 {
            let buf = segue_volume::mem::Buf::EMPTY;
            drive.took(10, Ticket(ticket), &IoKind::Read { offset: 0, buf }, 0);
        }
        assert_eq!(drive.pop_end(109), None);
        let mut ends = Vec::new();
        while let Some(at) = drive.next_end() {
            ends.push((at, drive.pop_end(at).unwrap().0.0));
        }
        assert_eq!(ends, [(110, 0), (110, 1), (210, 2), (210, 3), (310, 4)]);
    }
}
