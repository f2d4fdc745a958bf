//! Journal records: what changed, in the order it changed, as bytes.
//!
//! Owns: the encoding of records and entries. Never: applies one or does I/O.
//! Invariant: a record is taken whole or not at all: one CRC32C covers it.

use crate::catalog::{Volume, decode_volume, encode_volume};
use crate::codec::{Malformed, Reader, Writer};
use crate::crc::plain_crc;
use crate::entry::FANOUT;
use segue_types::{LayerId, VolumeId};

/// Bytes of a record's header.
pub(crate) const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"SEGUEJR\x01";

/// A record's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) uuid: [u8; 16],
    pub(crate) sequence: u64,
    /// Records up to this number were durable, with their data, when this one was written.
    pub(crate) durable_sequence: u64,
    /// Bytes of entries after the header.
    pub(crate) body_bytes: u32,
}

impl Header {
    /// Bytes of the whole record on the drive.
    pub(crate) fn record_bytes(&self) -> u64 {
        (HEADER_BYTES as u64 + u64::from(self.body_bytes)).next_multiple_of(4096)
    }

    /// Finishes a record whose body already stands at `record[HEADER_BYTES..]`; the tail is zeroed.
    pub(crate) fn seal(&self, record: &mut [u8]) {
        let end = HEADER_BYTES + self.body_bytes as usize;
        assert_eq!(record.len() as u64, self.record_bytes());
        record[end..].fill(0);
        record[..8].copy_from_slice(MAGIC);
        record[8..24].copy_from_slice(&self.uuid);
        record[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        record[32..40].copy_from_slice(&self.durable_sequence.to_le_bytes());
        record[40..44].copy_from_slice(&self.body_bytes.to_le_bytes());
        record[44..60].fill(0);
        let crc = plain_crc(&record[..60]) ^ plain_crc(&record[HEADER_BYTES..end]).rotate_left(7);
        record[60..64].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header. The record may still be torn: see [`Header::verify`].
    pub(crate) fn peek(record: &[u8]) -> Option<Header> {
        if record.len() < HEADER_BYTES || &record[..8] != MAGIC {
            return None;
        }
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
        Some(Header {
            uuid: record[8..24].try_into().expect("sixteen bytes"),
            sequence: word(24),
            durable_sequence: word(32),
            body_bytes: u32::from_le_bytes(record[40..44].try_into().expect("four bytes")),
        })
    }

    /// True when the record arrived whole; `record` has at least header and body.
    pub(crate) fn verify(&self, record: &[u8]) -> bool {
        let end = HEADER_BYTES + self.body_bytes as usize;
        let stored = u32::from_le_bytes(record[60..64].try_into().expect("four bytes"));
        record.len() >= end && stored == plain_crc(&record[..60]) ^ plain_crc(&record[HEADER_BYTES..end]).rotate_left(7)
    }
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Blocks of one leaf now lie in a run on the drive.
    Map { layer: LayerId, block: u64, at: u64, generation: u64, crcs: Vec<u32> },
    /// Blocks of one leaf read as zero.
    Punch { layer: LayerId, block: u64, count: u32 },
    /// A leaf of a merging layer moved into its parent.
    MergeLeaf { layer: LayerId, leaf: u64 },
    /// A leaf of a dropped layer was given back.
    DropLeaf { layer: LayerId, leaf: u64 },
    /// A volume's record.
    PutVolume(Box<Volume>),
    /// A volume is gone.
    DeleteVolume(VolumeId),
    /// A layer's shape.
    PutLayer { layer: LayerId, parent: Option<LayerId>, merging: bool, dropping: bool },
    /// A dropped layer is empty and gone.
    DeleteLayer(LayerId),
    /// A merged layer is empty: whatever stood on it stands on its parent.
    MergeDone(LayerId),
    /// From here on this slice may use the blocks of these extents of the drive.
    Lease { first: u32, count: u32 },
    /// From here on it may not: none of their blocks is in use.
    Return { first: u32, count: u32 },
}

const MAP: u8 = 1;
const PUNCH: u8 = 2;
const MERGE_LEAF: u8 = 3;
const DROP_LEAF: u8 = 4;
const PUT_VOLUME: u8 = 5;
const DELETE_VOLUME: u8 = 6;
const PUT_LAYER: u8 = 7;
const DELETE_LAYER: u8 = 8;
const MERGE_DONE: u8 = 9;
const LEASE: u8 = 10;
const RETURN: u8 = 11;

/// Appends a `Map` without building a [`Change`]: the hot path.
pub(crate) fn put_map(
    out: &mut Vec<u8>,
    layer: LayerId,
    block: u64,
    at: u64,
    generation: u64,
    crcs: impl ExactSizeIterator<Item = u32>,
) {
    out.put_u8(MAP);
    out.put_u8(0);
    out.put_u16(crcs.len() as u16);
    out.put_u32(block as u32);
    out.put_u64(layer.0);
    out.put_u64(at);
    out.put_u64(generation);
    for crc in crcs {
        out.put_u32(crc);
    }
}

/// Appends a `Punch`.
pub(crate) fn put_punch(out: &mut Vec<u8>, layer: LayerId, block: u64, count: u32) {
    out.put_u8(PUNCH);
    out.put_u64(layer.0);
    out.put_u32(block as u32);
    out.put_u32(count);
}

/// Appends any other change.
pub(crate) fn put_change(out: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Map { layer, block, at, generation, crcs } => {
            put_map(out, *layer, *block, *at, *generation, crcs.iter().copied());
        }
        Change::Punch { layer, block, count } => put_punch(out, *layer, *block, *count),
        Change::MergeLeaf { layer, leaf } => put_leaf(out, MERGE_LEAF, *layer, *leaf),
        Change::DropLeaf { layer, leaf } => put_leaf(out, DROP_LEAF, *layer, *leaf),
        Change::PutVolume(volume) => {
            out.put_u8(PUT_VOLUME);
            encode_volume(volume, out);
        }
        Change::DeleteVolume(id) => {
            out.put_u8(DELETE_VOLUME);
            out.put_u64(id.0);
        }
        Change::PutLayer { layer, parent, merging, dropping } => {
            out.put_u8(PUT_LAYER);
            out.put_u64(layer.0);
            out.put_u64(parent.map_or(0, |p| p.0));
            out.put_u8(u8::from(*merging) | u8::from(*dropping) << 1);
        }
        Change::DeleteLayer(id) => {
            out.put_u8(DELETE_LAYER);
            out.put_u64(id.0);
        }
        Change::MergeDone(id) => {
            out.put_u8(MERGE_DONE);
            out.put_u64(id.0);
        }
        Change::Lease { first, count } => put_extents(out, LEASE, *first, *count),
        Change::Return { first, count } => put_extents(out, RETURN, *first, *count),
    }
}

fn put_leaf(out: &mut Vec<u8>, kind: u8, layer: LayerId, leaf: u64) {
    out.put_u8(kind);
    out.put_u64(layer.0);
    out.put_u32(leaf as u32);
}

fn put_extents(out: &mut Vec<u8>, kind: u8, first: u32, count: u32) {
    out.put_u8(kind);
    out.put_u32(first);
    out.put_u32(count);
}

/// Reads the next change of a body.
pub(crate) fn read_change(r: &mut Reader<'_>) -> Result<Change, Malformed> {
    Ok(match r.u8()? {
        MAP => {
            r.u8()?;
            let count = r.u16()?;
            let block = u64::from(r.u32()?);
            let (layer, at, generation) = (LayerId(r.u64()?), r.u64()?, r.u64()?);
            if count == 0 || block % FANOUT + u64::from(count) > FANOUT || at >= 1 << 40 || generation >= 1 << 56 {
                return Err(Malformed::Bytes);
            }
            let crcs = (0..count).map(|_| r.u32()).collect::<Result<Vec<_>, _>>()?;
            Change::Map { layer, block, at, generation, crcs }
        }
        PUNCH => {
            let (layer, block, count) = (LayerId(r.u64()?), u64::from(r.u32()?), r.u32()?);
            if count == 0 || block % FANOUT + u64::from(count) > FANOUT {
                return Err(Malformed::Bytes);
            }
            Change::Punch { layer, block, count }
        }
        kind @ (MERGE_LEAF | DROP_LEAF) => {
            let (layer, leaf) = (LayerId(r.u64()?), u64::from(r.u32()?));
            if leaf >= 1 << 24 {
                return Err(Malformed::Bytes);
            }
            if kind == MERGE_LEAF { Change::MergeLeaf { layer, leaf } } else { Change::DropLeaf { layer, leaf } }
        }
        PUT_VOLUME => Change::PutVolume(Box::new(decode_volume(r)?)),
        DELETE_VOLUME => Change::DeleteVolume(VolumeId(r.u64()?)),
        PUT_LAYER => {
            let (layer, parent, flags) = (LayerId(r.u64()?), r.u64()?, r.u8()?);
            let parent = (parent != 0).then_some(LayerId(parent));
            if parent.is_some_and(|p| p >= layer) {
                return Err(Malformed::Bytes);
            }
            Change::PutLayer { layer, parent, merging: flags & 1 != 0, dropping: flags & 2 != 0 }
        }
        DELETE_LAYER => Change::DeleteLayer(LayerId(r.u64()?)),
        MERGE_DONE => Change::MergeDone(LayerId(r.u64()?)),
        LEASE => Change::Lease { first: r.u32()?, count: r.u32()? },
        RETURN => Change::Return { first: r.u32()?, count: r.u32()? },
        _ => return Err(Malformed::Bytes),
    })
}

/// Reads a whole record and tells its sequence number and how many changes it has, or `None` when it is not
/// a valid record: for fuzzing and tools that must not see the inside.
pub fn probe_record(bytes: &[u8]) -> Option<(u64, usize)> {
    let header = Header::peek(bytes)?;
    if HEADER_BYTES as u64 + u64::from(header.body_bytes) > bytes.len() as u64 || !header.verify(bytes) {
        return None;
    }
    let mut r = Reader::new(&bytes[HEADER_BYTES..HEADER_BYTES + header.body_bytes as usize]);
    let mut n = 0;
    while !r.is_empty() {
        read_change(&mut r).ok()?;
        n += 1;
    }
    Some((header.sequence, n))
}

/// Reads changes from arbitrary bytes until one is malformed and tells how many there were: for fuzzing.
pub fn probe_changes(bytes: &[u8]) -> usize {
    let mut r = Reader::new(bytes);
    let mut n = 0;
    while !r.is_empty() && read_change(&mut r).is_ok() {
        n += 1;
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_round_trip_and_every_torn_record_is_seen() {
        let changes = [
            Change::Map { layer: LayerId(1), block: 511, at: 99, generation: 7, crcs: vec![5] },
            Change::Map { layer: LayerId(1), block: 256, at: 99, generation: 7, crcs: vec![1, 2, 3] },
            Change::Punch { layer: LayerId(2), block: 3, count: 253 },
            Change::MergeLeaf { layer: LayerId(3), leaf: 77 },
            Change::DropLeaf { layer: LayerId(3), leaf: 78 },
            Change::PutLayer { layer: LayerId(4), parent: Some(LayerId(3)), merging: false, dropping: true },
            Change::DeleteLayer(LayerId(4)),
            Change::MergeDone(LayerId(5)),
            Change::DeleteVolume(VolumeId(6)),
            Change::Lease { first: 7, count: 3 },
            Change::Return { first: 8, count: 1 },
        ];
        let mut body = Vec::new();
        for change in &changes {
            put_change(&mut body, change);
        }
        let header = Header { uuid: [9; 16], sequence: 3, durable_sequence: 2, body_bytes: body.len() as u32 };
        let mut record = vec![0xaa; header.record_bytes() as usize];
        record[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(&body);
        header.seal(&mut record);
        assert_eq!(Header::peek(&record), Some(header));
        assert_eq!(probe_record(&record), Some((3, changes.len())));
        let mut r = Reader::new(&body);
        for change in &changes {
            assert_eq!(read_change(&mut r).as_ref(), Ok(change));
        }
        for at in 0..HEADER_BYTES + body.len() {
            record[at] ^= 0x40;
            assert_eq!(probe_record(&record), None, "byte {at}");
            record[at] ^= 0x40;
        }
    }
}
