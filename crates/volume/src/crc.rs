//! Checksums that bind a block's bytes to its place and generation.
//!
//! Owns: how a CRC32C is seeded. Never: stores one.
//! Invariant: the same bytes at another block number or of another generation have another checksum.

/// Seed from a generation and a place. Two CRCs of equal bytes with different seeds always differ, because
/// CRC is linear in its start value; so only a collision of the 32-bit seeds themselves can hide a mix-up.
fn seed(generation: u64, place: u64) -> u32 {
    let mut x = generation.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (x ^ (x >> 32)) as u32
}

/// Checksum of a block of data at `block` of its volume, written as `generation`.
pub(crate) fn data_crc(generation: u64, block: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed(generation, block), bytes)
}

/// Checksum of a map page.
pub(crate) fn page_crc(generation: u64, level: u8, index: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed(generation, (1 << 63) | (u64::from(level) << 56) | index), bytes)
}

/// Plain checksum, for records that carry their own identity.
pub(crate) fn plain_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_and_generation_are_bound() {
        let bytes = [7u8; 4096];
        let one = data_crc(1, 1, &bytes);
        assert_ne!(one, data_crc(2, 1, &bytes));
        assert_ne!(one, data_crc(1, 2, &bytes));
        assert_ne!(data_crc(1, 3, &bytes), page_crc(1, 0, 3, &bytes));
    }
}
