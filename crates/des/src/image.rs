//! The content of a drive: sparse, cheap to copy.
//!
//! Owns: blocks by number; a missing one is all zero. Never: grows past its capacity.
//! Invariant: copies share blocks until one of them writes.

use crate::TraceHash;
use segue_types::BLOCK_BYTES;
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: usize = BLOCK_BYTES as usize;

/// What a drive holds. Cloning copies references, not blocks.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    capacity_bytes: u64,
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} of {} bytes written, hash {:016x})", self.written_bytes(), self.capacity_bytes, self.hash())
    }
}

impl Image {
    /// All zero. The capacity is in bytes, a multiple of 4096.
    pub fn new(capacity_bytes: u64) -> Image {
        assert!(capacity_bytes.is_multiple_of(BLOCK_BYTES), "capacity {capacity_bytes} is not whole blocks");
        Image { capacity_bytes, blocks: BTreeMap::new() }
    }

    /// Bytes of the drive.
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes of the blocks that were ever written.
    pub fn written_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    /// Numbers of the blocks that are not known to be zero, in order.
    pub fn written_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }

    /// One block.
    pub fn block(&self, number: u64) -> &[u8; BLOCK] {
        static ZERO: [u8; BLOCK] = [0; BLOCK];
        self.blocks.get(&number).map_or(&ZERO, |b| b)
    }

    /// One block, to change.
    pub fn block_mut(&mut self, number: u64) -> &mut [u8; BLOCK] {
        assert!(number < self.capacity_bytes / BLOCK_BYTES, "block {number} is past the end");
        Arc::make_mut(self.blocks.entry(number).or_insert_with(|| Arc::new([0; BLOCK])))
    }

    /// Fills `buf` from byte `offset`; any alignment.
    ///
    /// # Panics
    /// Past the end.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        self.check(offset, buf.len() as u64);
        let mut done = 0;
        for (number, start, len) in pieces(offset, buf.len()) {
            buf[done..done + len].copy_from_slice(&self.block(number)[start..start + len]);
            done += len;
        }
    }

    /// Writes `data` at byte `offset`; any alignment.
    ///
    /// # Panics
    /// Past the end.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.check(offset, data.len() as u64);
        let mut done = 0;
        for (number, start, len) in pieces(offset, data.len()) {
            self.block_mut(number)[start..start + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
    }

    /// Zeroes a range; any alignment.
    ///
    /// # Panics
    /// Past the end.
    pub fn zero(&mut self, offset: u64, len: u64) {
        self.check(offset, len);
        let whole = offset.div_ceil(BLOCK_BYTES)..(offset + len) / BLOCK_BYTES;
        if whole.start >= whole.end {
            return self.write(offset, &vec![0; len as usize]);
        }
        let gone: Vec<u64> = self.blocks.range(whole.clone()).map(|(number, _)| *number).collect();
        for number in gone {
            self.blocks.remove(&number);
        }
        let head = whole.start * BLOCK_BYTES - offset;
        let tail = offset + len - whole.end * BLOCK_BYTES;
        self.write(offset, &vec![0; head as usize]);
        self.write(whole.end * BLOCK_BYTES, &vec![0; tail as usize]);
    }

    /// A hash of the whole content; blocks of zeros and missing blocks are the same.
    pub fn hash(&self) -> u64 {
        let mut trace = TraceHash::new();
        for (number, block) in self.blocks.iter().filter(|(_, b)| b.iter().any(|x| *x != 0)) {
            trace.number(*number).bytes(&block[..]);
        }
        trace.value()
    }

    fn check(&self, offset: u64, len: u64) {
        let end = offset.checked_add(len).expect("offset and length fit 64 bits");
        assert!(end <= self.capacity_bytes, "{offset}+{len} is past the end {}", self.capacity_bytes);
    }
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = offset;
    let end = offset + len as u64;
    std::iter::from_fn(move || {
        let start = (at % BLOCK_BYTES) as usize;
        let len = (BLOCK - start).min((end - at) as usize);
        let piece = (at / BLOCK_BYTES, start, len);
        at += len as u64;
        (len > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chance;

    #[test]
    fn model_agrees_with_a_flat_array() {
        const BYTES: u64 = 16 * BLOCK_BYTES;
        let mut chance = Chance::new(5);
        let mut image = Image::new(BYTES);
        let mut flat = vec![0u8; BYTES as usize];
        for round in 0..2_000 {
            let offset = chance.below(BYTES);
            let len = chance.below((BYTES - offset).min(3 * BLOCK_BYTES) + 1);
            let range = offset as usize..(offset + len) as usize;
            match chance.below(3) {
                0 => {
                    let data: Vec<u8> = (0..len).map(|i| (i + round) as u8).collect();
                    image.write(offset, &data);
                    flat[range].copy_from_slice(&data);
                }
                1 => {
                    image.zero(offset, len);
                    flat[range].fill(0);
                }
                _ => {
                    let mut got = vec![1; len as usize];
                    image.read(offset, &mut got);
                    assert_eq!(got, flat[range]);
                }
            }
        }
        let copy = image.clone();
        image.write(0, &[0xee]);
        assert_ne!(copy, image);
        assert_ne!(copy.hash(), image.hash());
    }
}
