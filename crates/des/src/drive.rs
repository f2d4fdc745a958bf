//! A drive with a volatile write cache, out-of-order completion, and faults.
//!
//! Owns: what is on the medium, what is only in the cache, and what a power cut may leave. Never: keeps time or an event queue.
//! Invariant: after an honest flush completed, every write that completed before it was submitted survives any cut.
//!
//! `submit` tells when the operation completes; put that into the event queue and call `complete` then. A cut leaves,
//! for each 512-byte sector, the durable content or that of any unflushed write to it, completed or in flight.

use crate::{Chance, Image};
use segue_types::{BLOCK_BYTES, Nanos, SECTOR_BYTES};
use std::collections::BTreeMap;

/// errno of every operation after the power went off (ENXIO).
pub const POWER_IS_OFF_ERRNO: i32 = 6;
/// Above this many bytes of unflushed writes the drive writes the oldest ones back by itself.
const CACHE_BYTES_MAX: u64 = 8 << 20;

/// An operation. Offsets and lengths are bytes, multiples of 4096.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DriveOp {
    /// Read the range.
    Read { offset: u64, len: u64 },
    /// Write the bytes.
    Write { offset: u64, data: Vec<u8> },
    /// Make completed writes durable.
    Flush,
    /// The range's content is not needed any more; it reads as zero afterwards, or, after a cut, as before.
    Discard { offset: u64, len: u64 },
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// 0, or the error.
    pub errno: i32,
    /// What a successful read read.
    pub data: Vec<u8>,
}

/// Mean service times, nanoseconds; each operation draws its own around them, so they complete out of order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// A read.
    pub read_ns: u64,
    /// A write into the cache.
    pub write_ns: u64,
    /// A flush.
    pub flush_ns: u64,
    /// One in so many operations takes twenty times as long.
    pub slow_one_in: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Timing { read_ns: 80_000, write_ns: 20_000, flush_ns: 300_000, slow_one_in: 50 }
    }
}

/// What goes wrong. Operations are counted from 1, in order of submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Operations `fail_first..fail_first + fail_count` fail with `errno`. A failed write leaves a mix of sectors;
    /// a failed flush makes nothing durable. 0: none.
    pub fail_first: u64,
    /// How many fail.
    pub fail_count: u64,
    /// The error they fail with.
    pub errno: i32,
    /// The power goes off while this operation is in flight; it and all later ones end in an error. 0: never.
    pub power_off_at: u64,
    /// Flushes succeed and do nothing: a broken drive, to prove that checks notice.
    pub lying_flush: bool,
    /// The write with this number (counting writes alone, from 1) succeeds and is never done. 0: none.
    pub lost_write: u64,
    /// The write with this number lands one block further. 0: none.
    pub misdirected_write: u64,
}

/// What a power cut leaves of unflushed writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// All of them, complete.
    KeepsAll,
    /// None of them.
    KeepsNone,
    /// Any of them, in any part, in any order.
    Chance,
}

/// Operations since the drive was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriveStats {
    /// All operations submitted.
    pub ops: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

enum Content {
    Data(Vec<u8>),
    Zero(u64),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Content::Data(data) => data.len() as u64,
            Content::Zero(len) => *len,
        }
    }

    fn apply(&self, offset: u64, image: &mut Image) {
        match self {
            Content::Data(data) => image.write(offset, data),
            Content::Zero(len) => image.zero(offset, *len),
        }
    }
}

/// A write that a cut may undo.
struct Volatile {
    token: u64,
    offset: u64,
    content: Content,
    /// Place in the order of completions; `None` while in flight.
    done: Option<u64>,
}

enum Pending {
    Read {
        offset: u64,
        len: u64,
    },
    /// Its content waits in the volatile list; `to` is `None` for a write that gets lost.
    Write {
        to: Option<u64>,
    },
    Flush {
        covers: u64,
    },
}

/// A simulated drive.
pub struct Drive {
    durable: Image,
    visible: Image,
    volatile: Vec<Volatile>,
    volatile_bytes: u64,
    in_flight: BTreeMap<u64, (Pending, i32)>,
    done: u64,
    chance: Chance,
    timing: Timing,
    faults: Faults,
    stats: DriveStats,
    powered: bool,
}

impl std::fmt::Debug for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Drive({:?}, {} unflushed writes, {:?})", self.durable, self.volatile.len(), self.stats)
    }
}

impl Drive {
    /// A drive that holds `image`, durably.
    pub fn new(image: Image, timing: Timing, chance: Chance) -> Drive {
        Drive {
            visible: image.clone(),
            durable: image,
            volatile: Vec::new(),
            volatile_bytes: 0,
            in_flight: BTreeMap::new(),
            done: 0,
            chance,
            timing,
            faults: Faults::default(),
            stats: DriveStats::default(),
            powered: true,
        }
    }

    /// Arms faults, in place of those armed before. Counting goes on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Bytes of the drive.
    pub const fn capacity_bytes(&self) -> u64 {
        self.visible.capacity_bytes()
    }

    /// Operations so far.
    pub const fn stats(&self) -> DriveStats {
        self.stats
    }

    /// False after the power went off.
    pub const fn is_powered(&self) -> bool {
        self.powered
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// What a reader sees now.
    pub const fn visible(&self) -> &Image {
        &self.visible
    }

    /// Flips bits of a byte on the medium, as rot does: durable and visible.
    pub fn rot(&mut self, offset: u64, mask: u8) {
        for image in [&mut self.durable, &mut self.visible] {
            image.block_mut(offset / BLOCK_BYTES)[(offset % BLOCK_BYTES) as usize] ^= mask;
        }
    }

    /// Takes an operation; returns when it completes. `token` names it and must not be in flight already.
    ///
    /// # Panics
    /// On misaligned or out-of-range operations and on a token in flight: bugs of the caller.
    pub fn submit(&mut self, now: Nanos, token: u64, op: DriveOp) -> Nanos {
        assert!(!self.in_flight.contains_key(&token), "operation {token} is in flight already");
        self.check(&op);
        self.stats.ops += 1;
        let number = self.stats.ops;
        let mut errno = 0;
        if number.wrapping_sub(self.faults.fail_first) < self.faults.fail_count && self.faults.fail_first > 0 {
            errno = self.faults.errno;
        }
        let lived = self.powered;
        self.powered &= self.faults.power_off_at == 0 || number < self.faults.power_off_at;
        if !self.powered {
            errno = POWER_IS_OFF_ERRNO;
        }
        let (pending, mean_ns) = match op {
            DriveOp::Read { offset, len } => {
                self.stats.reads += 1;
                (Pending::Read { offset, len }, self.timing.read_ns)
            }
            DriveOp::Write { offset, data } => {
                self.stats.writes += 1;
                self.stats.written_bytes += data.len() as u64;
                (self.take_write(token, offset, data, lived), self.timing.write_ns)
            }
            DriveOp::Flush => {
                self.stats.flushes += 1;
                (Pending::Flush { covers: self.done }, self.timing.flush_ns)
            }
            DriveOp::Discard { offset, len } => {
                if lived {
                    self.push_volatile(token, offset, Content::Zero(len));
                }
                (Pending::Write { to: lived.then_some(offset) }, self.timing.write_ns)
            }
        };
        self.in_flight.insert(token, (pending, errno));
        now + self.service_ns(mean_ns)
    }

    /// The operation completes. Its effects on later reads happen here.
    ///
    /// # Panics
    /// When it is not in flight.
    pub fn complete(&mut self, token: u64) -> Ended {
        let (pending, mut errno) = self.in_flight.remove(&token).expect("only what is in flight completes");
        if !self.powered {
            errno = POWER_IS_OFF_ERRNO;
        }
        let mut data = Vec::new();
        match pending {
            Pending::Read { offset, len } if errno == 0 => {
                data.resize(len as usize, 0);
                self.visible.read(offset, &mut data);
            }
            Pending::Write { to: Some(_) } if self.powered => self.write_done(token, errno),
            Pending::Flush { covers } if errno == 0 && !self.faults.lying_flush => self.persist(covers),
            Pending::Read { .. } | Pending::Write { .. } | Pending::Flush { .. } => {}
        }
        Ended { errno, data }
    }

    /// The whole operation at once, for code that blocks.
    pub fn run(&mut self, op: DriveOp) -> Ended {
        self.submit(0, u64::MAX, op);
        self.complete(u64::MAX)
    }

    /// The power goes off now: what the medium holds afterwards. The drive itself is of no more use.
    pub fn cut(&mut self, how: Cut) -> Image {
        self.powered = false;
        let mut image = self.durable.clone();
        let mut left: Vec<(u64, u64, Volatile)> = Vec::new();
        for volatile in self.volatile.drain(..) {
            // Completed writes reach the medium in order, those in flight anywhere after them.
            let place = volatile.done.unwrap_or(u64::MAX);
            left.push((place, self.chance.bits(), volatile));
        }
        left.sort_by_key(|(place, tie, _)| (*place, *tie));
        let mode = match how {
            Cut::KeepsAll => 0,
            Cut::KeepsNone => return image,
            Cut::Chance => self.chance.below(5),
        };
        let kept_first = self.chance.below(left.len() as u64 + 1) as usize;
        let kept_of_8 = *self.chance.pick(&[1, 4, 7]);
        for (i, (_, _, volatile)) in left.iter().enumerate() {
            let whole = match mode {
                0 => true,
                1 => self.chance.odds(kept_of_8, 8),
                2 => i < kept_first,
                _ => false,
            };
            let torn = mode >= 3 || (mode == 2 && i == kept_first);
            if whole {
                volatile.content.apply(volatile.offset, &mut image);
            } else if torn {
                tear(&mut self.chance, kept_of_8, volatile.offset, &volatile.content, &mut image);
            }
        }
        image
    }

    fn check(&self, op: &DriveOp) {
        let (offset, len) = match op {
            DriveOp::Read { offset, len } | DriveOp::Discard { offset, len } => (*offset, *len),
            DriveOp::Write { offset, data } => (*offset, data.len() as u64),
            DriveOp::Flush => return,
        };
        let aligned = offset.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK_BYTES) && len > 0;
        assert!(aligned && offset + len <= self.capacity_bytes(), "misplaced operation at {offset}+{len}");
    }

    fn take_write(&mut self, token: u64, offset: u64, data: Vec<u8>, lived: bool) -> Pending {
        if !lived || self.stats.writes == self.faults.lost_write {
            return Pending::Write { to: None };
        }
        let mut to = offset;
        if self.stats.writes == self.faults.misdirected_write {
            let further = offset + BLOCK_BYTES;
            to = if further + data.len() as u64 <= self.capacity_bytes() { further } else { offset - BLOCK_BYTES };
        }
        self.push_volatile(token, to, Content::Data(data));
        Pending::Write { to: Some(to) }
    }

    fn push_volatile(&mut self, token: u64, offset: u64, content: Content) {
        self.volatile_bytes += content.len();
        self.volatile.push(Volatile { token, offset, content, done: None });
    }

    fn write_done(&mut self, token: u64, errno: i32) {
        self.done += 1;
        let is_it = |v: &Volatile| v.done.is_none() && v.token == token;
        let at = self.volatile.iter().rposition(is_it).expect("a write in flight is volatile");
        let volatile = &mut self.volatile[at];
        volatile.done = Some(self.done);
        if errno == 0 {
            volatile.content.apply(volatile.offset, &mut self.visible);
        } else {
            tear(&mut self.chance, 4, volatile.offset, &volatile.content, &mut self.visible);
            let mut mixed = vec![0; volatile.content.len() as usize];
            self.visible.read(volatile.offset, &mut mixed);
            volatile.content = Content::Data(mixed);
        }
        if self.volatile_bytes > CACHE_BYTES_MAX && !self.faults.lying_flush {
            self.persist(self.done - self.volatile.len() as u64 / 2);
        }
    }

    fn persist(&mut self, covers: u64) {
        let covered = |v: &Volatile| v.done.is_some_and(|done| done <= covers);
        let (mut durable, rest): (Vec<_>, Vec<_>) = self.volatile.drain(..).partition(covered);
        self.volatile = rest;
        durable.sort_by_key(|v| v.done);
        for volatile in durable {
            volatile.content.apply(volatile.offset, &mut self.durable);
            self.volatile_bytes -= volatile.content.len();
        }
    }

    fn service_ns(&mut self, mean_ns: u64) -> u64 {
        let slow = self.timing.slow_one_in > 0 && self.chance.odds(1, self.timing.slow_one_in);
        let ns = mean_ns / 2 + self.chance.exponential(mean_ns / 2);
        if slow { ns * 20 } else { ns }
    }
}

/// Writes some sectors of `content`, each with the odds of `kept_of_8` in 8.
fn tear(chance: &mut Chance, kept_of_8: u64, offset: u64, content: &Content, image: &mut Image) {
    let sector = SECTOR_BYTES as usize;
    for at in (0..content.len() as usize).step_by(sector) {
        if chance.odds(kept_of_8, 8) {
            match content {
                Content::Data(data) => image.write(offset + at as u64, &data[at..at + sector]),
                Content::Zero(_) => image.zero(offset + at as u64, SECTOR_BYTES),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = BLOCK_BYTES;

    fn drive(seed: u64) -> Drive {
        Drive::new(Image::new(64 * B), Timing::default(), Chance::new(seed))
    }

    fn write(drive: &mut Drive, block: u64, byte: u8) {
        assert_eq!(drive.run(DriveOp::Write { offset: block * B, data: vec![byte; B as usize] }).errno, 0);
    }

    #[test]
    fn flushed_writes_survive_and_others_may_be_torn() {
        let (mut torn, mut lost, mut kept) = (0, 0, 0);
        for seed in 0..200 {
            let mut drive = drive(seed);
            write(&mut drive, 3, 1);
            assert_eq!(drive.run(DriveOp::Flush).errno, 0);
            write(&mut drive, 3, 2);
            write(&mut drive, 4, 3);
            drive.submit(0, 9, DriveOp::Write { offset: 5 * B, data: vec![4; B as usize] });
            let image = drive.cut(Cut::Chance);
            let block = image.block(3);
            assert!(block.iter().all(|b| *b == 1 || *b == 2), "seed {seed}");
            for sector in block.chunks(512) {
                assert!(sector.iter().all(|b| *b == sector[0]), "sectors are atomic. seed {seed}");
            }
            match block.iter().filter(|b| **b == 2).count() {
                0 => lost += 1,
                4096 => kept += 1,
                _ => torn += 1,
            }
            assert!(image.block(5).iter().all(|b| *b == 0 || *b == 4));
        }
        assert!(torn > 20 && lost > 20 && kept > 20, "torn {torn} lost {lost} kept {kept}");
    }

    #[test]
    fn a_flush_covers_what_completed_before_it_was_submitted() {
        let mut drive = drive(1);
        drive.submit(0, 1, DriveOp::Write { offset: 0, data: vec![1; B as usize] });
        drive.submit(0, 2, DriveOp::Flush);
        drive.complete(1);
        drive.complete(2);
        assert_eq!(drive.cut(Cut::KeepsNone).block(0)[0], 0);
    }

    #[test]
    fn a_lying_flush_keeps_nothing() {
        let mut drive = drive(1);
        drive.set_faults(Faults { lying_flush: true, ..Faults::default() });
        write(&mut drive, 0, 1);
        assert_eq!(drive.run(DriveOp::Flush).errno, 0);
        assert_eq!(drive.visible().block(0)[0], 1);
        assert_eq!(drive.cut(Cut::KeepsNone).block(0)[0], 0);
    }

    #[test]
    fn fault_the_operation_of_that_number_fails_and_no_other() {
        for k in 1..=3 {
            let mut drive = drive(k);
            drive.set_faults(Faults { fail_first: k, fail_count: 1, errno: 5, ..Faults::default() });
            let ops = [
                DriveOp::Write { offset: 0, data: vec![1; B as usize] },
                DriveOp::Flush,
                DriveOp::Read { offset: 0, len: B },
            ];
            let errnos: Vec<i32> = ops.into_iter().map(|op| drive.run(op).errno).collect();
            let expect: Vec<i32> = (1..=3).map(|n| if n == k { 5 } else { 0 }).collect();
            assert_eq!(errnos, expect);
        }
    }

    #[test]
    fn power_goes_off_with_the_operation_in_flight() {
        let mut seen = [false; 2];
        for seed in 0..50 {
            let mut drive = drive(seed);
            drive.set_faults(Faults { power_off_at: 2, ..Faults::default() });
            write(&mut drive, 0, 1);
            let ended = drive.run(DriveOp::Write { offset: B, data: vec![2; B as usize] });
            assert_eq!(ended.errno, POWER_IS_OFF_ERRNO);
            assert_eq!(
                drive.run(DriveOp::Write { offset: 2 * B, data: vec![3; B as usize] }).errno,
                POWER_IS_OFF_ERRNO
            );
            let image = drive.cut(Cut::Chance);
            seen[usize::from(image.block(1)[0] == 2)] = true;
            assert_eq!(image.block(2)[0], 0, "submitted without power");
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn lost_and_misdirected_writes_report_success() {
        let mut drive = drive(1);
        drive.set_faults(Faults { lost_write: 1, misdirected_write: 2, ..Faults::default() });
        write(&mut drive, 0, 1);
        write(&mut drive, 4, 2);
        assert_eq!((drive.visible().block(0)[0], drive.visible().block(4)[0], drive.visible().block(5)[0]), (0, 0, 2));
    }

    #[test]
    fn completion_is_out_of_order_and_the_same_for_a_seed() {
        let times = |seed| {
            let mut drive = drive(seed);
            (0..50).map(|n| drive.submit(0, n, DriveOp::Read { offset: 0, len: B })).collect::<Vec<_>>()
        };
        assert_eq!(times(4), times(4));
        assert!(!times(4).is_sorted());
    }
}
