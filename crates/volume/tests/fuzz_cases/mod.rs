//! Arbitrary bytes where a drive's bytes are decoded: one driver for libFuzzer and for the tests on stable.
//!
//! Owns: the rules no input may break. Never: panics on bad bytes, or lets them take memory without bound.
//! Invariant: what decodes, encodes to something that decodes to the same.

#![allow(dead_code)] // each target uses its own part

use segue_volume::{FORMAT_VERSION, probe_changes, probe_record, superblock_round_trip};

const HEADER_BYTES: usize = 64;

/// Arbitrary bytes as a journal record: as they are, and as the body of a record whose checksum is right. Returns how
/// many changes it held.
pub fn record(data: &[u8]) -> usize {
    let _ = probe_record(data);
    let mut sealed = vec![0; HEADER_BYTES];
    sealed[..8].copy_from_slice(b"SEGUEJR\x01");
    sealed[24..32].copy_from_slice(&7u64.to_le_bytes());
    sealed[40..44].copy_from_slice(&(data.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c(&sealed[..60]) ^ crc32c::crc32c(data).rotate_left(7);
    sealed[60..64].copy_from_slice(&crc.to_le_bytes());
    sealed.extend_from_slice(data);
    let changes = probe_changes(data);
    match probe_record(&sealed) {
        Some((sequence, n)) => {
            assert_eq!((sequence, n), (7, changes), "a record that is whole holds what its body holds")
        }
        None => assert!(!data.is_empty() || changes == 0),
    }
    // A header that promises more than there is, or less.
    for lie in [0u32, 1, data.len() as u32 + 1, u32::MAX] {
        sealed[40..44].copy_from_slice(&lie.to_le_bytes());
        let _ = probe_record(&sealed);
    }
    changes
}

/// Arbitrary bytes as a superblock: as they are, and with magic, version and checksum made right. True when it decoded.
pub fn superblock(data: &[u8]) -> bool {
    let mut block = [0u8; 4096];
    let n = data.len().min(4096);
    block[..n].copy_from_slice(&data[..n]);
    let _ = superblock_round_trip(&block);
    seal_superblock(&mut block);
    match superblock_round_trip(&block) {
        Ok(once) => {
            assert_eq!(superblock_round_trip(&once).as_ref(), Ok(&once), "what decodes encodes to the same");
            true
        }
        Err(_) => false,
    }
}

/// Makes magic, version and checksum of a superblock right.
pub fn seal_superblock(block: &mut [u8; 4096]) {
    block[..8].copy_from_slice(b"SEGUEPL\x01");
    block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    let crc = crc32c::crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&crc.to_le_bytes());
}
