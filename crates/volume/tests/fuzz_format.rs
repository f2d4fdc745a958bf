//! Random and mutated journal records, superblocks and whole pools, on stable, from seeds.
//!
//! Owns: the generators of nearly honest bytes. Never: judges what decodes; the shared driver asserts the rules.
//! Invariant: every case comes from a printed seed.

mod fuzz_cases;
mod sim;

use segue_des::{Chance, Cut, Faults, Image};
use segue_types::BLOCK_BYTES;
use segue_volume::op::{AdminOp, AttachMode};
use sim::scene::{SCENE, scene, setup};
use sim::{Sim, for_seeds};

const BINARY: &str = "fuzz_format";

/// Real bytes to start from: the blocks of the scene's drive that begin like this.
fn blocks_with(image: &Image, magic: &[u8]) -> Vec<Vec<u8>> {
    let all = image.written_blocks().filter(|b| image.block(*b).starts_with(magic));
    all.map(|b| image.block(b).to_vec()).collect()
}

fn mutate(chance: &mut Chance, bytes: &mut Vec<u8>) {
    for _ in 0..chance.between(1, 6) {
        if bytes.is_empty() {
            return bytes.extend((0..chance.below(200)).map(|n| n as u8));
        }
        let at = chance.below(bytes.len() as u64) as usize;
        match chance.below(6) {
            0 => bytes[at] ^= 1 << chance.below(8),
            1 => bytes[at] = *chance.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => bytes.truncate(at),
            3 => {
                let from = chance.below(bytes.len() as u64) as usize;
                let n = (bytes.len() - at.max(from)).min(16);
                bytes.copy_within(from..from + n, at);
            }
            4 => {
                let word = *chance.pick(&[0, 1, u64::MAX, 1 << 32, 1 << 40, 1 << 52, 4096]);
                let n = (bytes.len() - at).min(8);
                bytes[at..at + n].copy_from_slice(&word.to_le_bytes()[..n]);
            }
            _ => bytes.insert(at, chance.bits() as u8),
        }
    }
}

#[test]
fn fuzz_journal_records_of_any_bytes() {
    let records = blocks_with(&scene(), b"SEGUEJR\x01");
    let mut held = 0;
    for_seeds("fuzz_journal_records_of_any_bytes", BINARY, 60_000, |seed| {
        let mut chance = Chance::new(seed);
        let mut bytes = match chance.odds(1, 8) {
            true => (0..chance.below(300)).map(|_| chance.bits() as u8).collect(),
            false => {
                let record = chance.pick(&records).clone();
                let body = u32::from_le_bytes(record[40..44].try_into().expect("four bytes")) as usize;
                record[64..(64 + body).min(4096)].to_vec()
            }
        };
        mutate(&mut chance, &mut bytes);
        fuzz_cases::record(&bytes);
    });
    for record in &records {
        let body = u32::from_le_bytes(record[40..44].try_into().expect("four bytes")) as usize;
        held += fuzz_cases::record(&record[64..(64 + body).min(4096)]);
    }
    assert!(held > 10, "the honest records hold only {held} changes");
}

#[test]
fn fuzz_superblocks_of_any_bytes() {
    let blocks = blocks_with(&scene(), b"SEGUEPL\x01");
    assert_eq!(blocks.len(), 2);
    for_seeds("fuzz_superblocks_of_any_bytes", BINARY, 30_000, |seed| {
        let mut chance = Chance::new(seed);
        let mut bytes = chance.pick(&blocks).clone();
        mutate(&mut chance, &mut bytes);
        fuzz_cases::superblock(&bytes);
    });
    assert!(blocks.iter().all(|b| fuzz_cases::superblock(b)));
}

/// A pool with damage anywhere, half of the time in a superblock whose checksum is right: opening ends in an error or
/// in a pool that answers; nothing panics.
#[test]
fn fuzz_opening_a_damaged_pool() {
    let image = scene();
    let metadata: Vec<u64> = image.written_blocks().collect();
    for_seeds("fuzz_opening_a_damaged_pool", BINARY, 1_500, |seed| {
        let mut chance = Chance::new(seed);
        let mut image = image.clone();
        if chance.odds(1, 2) {
            for copy in 0..2 {
                let block = image.block_mut(copy);
                let at = 32 + 8 * chance.below(13) as usize;
                let old = u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
                let new = *chance.pick(&[0, 1, old ^ 1, old + 1, old.wrapping_sub(1), old << 8, 1 << 32, u64::MAX]);
                block[at..at + 8].copy_from_slice(&new.to_le_bytes());
                fuzz_cases::seal_superblock(block);
            }
        } else {
            for _ in 0..chance.between(1, 4) {
                let block = image.block_mut(*chance.pick(&metadata));
                block[chance.below(BLOCK_BYTES) as usize] ^= 1 << chance.below(8);
            }
        }
        let Ok(mut sim) = Sim::boot(&setup(seed), image, Faults::default(), "damaged") else { return };
        sim.admin(AdminOp::List).expect("a list");
        for (name, number, _) in SCENE {
            if let Ok(state) = sim.attach(name, AttachMode::ReadOnly) {
                let _ = sim.read(state.attach, number * BLOCK_BYTES, BLOCK_BYTES as u32);
            }
        }
        sim.cut(Cut::KeepsAll);
    });
}
