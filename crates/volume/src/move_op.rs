//! What the move of a volume to another pool asks of the two engines.
//!
//! Owns: the operations, their answers, and what travels between the pools. Never: decides their order (see `migrate`).
//! Invariant: every operation may be asked again after a crash and then changes nothing that it had done already.

use crate::catalog::Volume;
use crate::engine::keys::CarriedKey;
use segue_types::MoveId;
use std::fmt;
use std::sync::Arc;

pub use crate::moving::END_BLOCK;

/// Most blocks of data in one chunk: 256 KiB.
pub const CHUNK_BLOCKS: usize = 64;
/// Most runs of holes in one chunk.
pub(crate) const CHUNK_HOLES: usize = 64;

/// An operation on a move. The source is the pool that has the volume, the destination the one that gets it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveOp {
    /// Source: may the volume be moved, and how much is it? Changes nothing. Reply: `Measured`.
    Measure { name: String },
    /// Destination: make the hidden volume that the copy goes into, if `blocks` more have room. Reply: `Done`.
    Expect { id: MoveId, name: String, peer: [u8; 16], size_bytes: u64, blocks: u64 },
    /// Source: freeze all there is, durably, as round 0. Reply: `Frozen`.
    Begin { id: MoveId, name: String, peer: [u8; 16] },
    /// Source: what the round has from this block on. Reply: `Chunk`.
    Read { id: MoveId, round: u32, from_block: u64 },
    /// Destination: write, read back, compare with the source's checksums, put into the map. With `durable` the reply
    /// waits for a commit. Reply: `Done`.
    Write { id: MoveId, round: u32, chunk: Chunk, durable: bool },
    /// Source: freeze what was written since the last round, durably, as this round. Reply: `Frozen`.
    Freeze { id: MoveId, round: u32 },
    /// Source: the same, and nobody may use the volume from now on, across restarts. Refused while a request is in
    /// flight. Reply: `Sealed`.
    Seal { id: MoveId, round: u32 },
    /// Source: open the sealed volume again. Only when the destination certainly has not committed. Reply: `Done`.
    Unseal { id: MoveId },
    /// Destination: become the volume, durably. This record is the moment at which the volume changes its place.
    /// Refused unless the whole of `round` is here. Reply: `Done`.
    Commit { id: MoveId, round: u32, passport: Passport },
    /// Source: the destination has committed; forget the volume. Reply: `Done`.
    Finish { id: MoveId },
    /// Destination: the source has forgotten it; forget the move. Reply: `Done`.
    Settle { id: MoveId },
    /// Either, the source first: give the move up. Refused by a destination that has committed. Reply: `Done`.
    Abort { id: MoveId },
    /// Every move that this pool takes part in. Reply: `Moves`.
    List,
}

/// Answers to operations on moves; `Done` is the plain one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveReply {
    /// The volume may be moved.
    Measured {
        /// Identity of the pool.
        pool: [u8; 16],
        /// Size of the volume, bytes.
        size_bytes: u64,
        /// Blocks its layers hold: at most so many will be copied in round 0.
        blocks: u64,
    },
    /// A round is frozen, durably.
    Frozen {
        /// At most so many blocks will be copied in it.
        blocks: u64,
    },
    /// The last round is frozen and the volume closed.
    Sealed {
        /// At most so many blocks will be copied in it.
        blocks: u64,
        /// What the destination needs to become the volume.
        passport: Passport,
    },
    /// A part of a round.
    Chunk(Chunk),
    /// The moves of a pool.
    Moves {
        /// Identity of the pool.
        pool: [u8; 16],
        /// Its moves.
        moves: Vec<MoveState>,
    },
}

/// A block on its way: where it belongs, and the source's generation and checksum of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Block of the volume.
    pub block: u64,
    /// Generation in the source's map.
    pub generation: u64,
    /// CRC32C in the source's map, bound to block and generation.
    pub crc32c: u32,
}

/// Part of a round: blocks with their bytes, as they are on the source's drive, and holes.
#[derive(Clone, PartialEq, Eq)]
pub struct Chunk {
    /// In rising order, at most [`CHUNK_BLOCKS`].
    pub pieces: Vec<Piece>,
    /// Runs that read as zero now: first block, count.
    pub holes: Vec<(u64, u64)>,
    /// Bytes of the pieces, 4096 each, in their order. Shared, because an engine keeps an operation that it carries out.
    pub data: Arc<Vec<u8>>,
    /// First block that is not covered; [`END_BLOCK`] when the round is.
    pub next_block: u64,
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pieces, holes, next) = (self.pieces.len(), self.holes.len(), self.next_block);
        write!(f, "Chunk {{ pieces: {pieces}, holes: {holes}, next_block: {next} }}")
    }
}

/// A volume's record on its way from one pool to another: name, lease, epoch, note, token, settings, and its key if it
/// is encrypted and unlocked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passport {
    pub(crate) volume: Box<Volume>,
    pub(crate) key: CarriedKey,
}

impl Passport {
    /// Name of the volume at the moment it was sealed.
    pub fn name(&self) -> &str {
        &self.volume.name
    }
}

/// A pool's part in a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoveState {
    /// The move.
    pub id: MoveId,
    /// The volume's name (of a copy: its name when the move began).
    pub name: String,
    /// Identity of the other pool.
    pub peer: [u8; 16],
    /// The round being copied, from 0.
    pub round: u32,
    /// How far it is.
    pub stage: MoveStage,
}

/// How far a move is, seen from one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveStage {
    /// Source: being copied; the round has at most so many blocks.
    Leaving {
        /// Blocks of the round.
        blocks: u64,
    },
    /// Source: closed; the destination may have committed.
    Sealed,
    /// Destination: the copy, whole up to this block of the round.
    Incoming {
        /// First block that is missing, or [`END_BLOCK`].
        cursor_block: u64,
    },
    /// Destination: the volume; the source may not know it yet.
    Arrived,
}
