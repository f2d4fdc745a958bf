//! Content that tells who wrote it: every sector carries its write's number and its place.
//!
//! Owns: making and recognising sectors. Never: knows which write ought to be there.
//! Invariant: a sector is either all zero, or exactly what `fill` makes of one (write, block, sector), or foreign.

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Sectors in a block.
pub const SECTORS: usize = 8;

/// Who wrote each sector of a block; 0 is zeros.
pub type Marks = [u32; SECTORS];

/// Marks of a block that reads as zero.
pub const ZERO: Marks = [0; SECTORS];

fn word(write: u32, block: u64, sector: usize, i: usize) -> u64 {
    let x = (u64::from(write) << 32) ^ (block << 9) ^ ((sector as u64) << 6) ^ i as u64;
    x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ x
}

/// What write `write` puts into a sector.
pub fn fill(write: u32, block: u64, sector: usize, out: &mut [u8]) {
    assert!(write != 0 && out.len() == SECTOR);
    out[..4].copy_from_slice(&write.to_le_bytes());
    out[4..8].copy_from_slice(&(block as u32).to_le_bytes());
    for (i, chunk) in out.chunks_exact_mut(8).enumerate().skip(1) {
        chunk.copy_from_slice(&word(write, block, sector, i).to_le_bytes());
    }
}

/// Who wrote a sector that was read at this place; `None` when nobody wrote it there whole.
pub fn recognise(block: u64, sector: usize, bytes: &[u8]) -> Option<u32> {
    let write = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    if write == 0 {
        return bytes.iter().all(|b| *b == 0).then_some(0);
    }
    let mut expect = [0; SECTOR];
    fill(write, block, sector, &mut expect);
    (expect == bytes).then_some(write)
}
