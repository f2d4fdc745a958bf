//! What a volume's record says of its move to another pool.
//!
//! Owns: the stages of a move and their bytes. Never: decides when one follows another (see `engine/moves`).
//! Invariant: at every moment the two pools' records together name exactly one of them the volume.

use crate::codec::{Malformed, Reader, Writer};
use segue_types::{LayerId, MoveId};

/// How far the move is, seen from this pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The volume is here and is being copied: of the layers from `frozen` down to `base` (not included; `None`: to
    /// the bottom) nothing changes any more, and they are what this round copies.
    Leaving { frozen: LayerId, base: Option<LayerId> },
    /// The same, and nobody may use the volume here: the other pool may have become its place.
    Sealed { frozen: LayerId, base: Option<LayerId> },
    /// The copy: hidden, and whole up to this block of the round ([`END_BLOCK`]: all of it).
    Incoming { cursor: u64 },
    /// The volume is here; the other pool has not yet confirmed that its record is gone.
    Arrived,
}

/// Where a cursor stands that has passed every block.
pub const END_BLOCK: u64 = u64::MAX;

/// A volume's part in a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moving {
    pub(crate) id: MoveId,
    /// Identity of the other pool.
    pub(crate) peer: [u8; 16],
    /// The round being copied, from 0.
    pub(crate) round: u32,
    pub(crate) stage: Stage,
}

impl Moving {
    /// The layers whose difference a round copies: the cleaner must keep them apart.
    pub(crate) fn pins(&self) -> [Option<LayerId>; 2] {
        match self.stage {
            Stage::Leaving { frozen, base } | Stage::Sealed { frozen, base } => [Some(frozen), base],
            Stage::Incoming { .. } | Stage::Arrived => [None, None],
        }
    }

    /// A layer was merged into its parent: whoever meant it means the parent now.
    pub(crate) fn merged(&mut self, layer: LayerId, parent: Option<LayerId>) {
        if let Stage::Leaving { frozen, base } | Stage::Sealed { frozen, base } = &mut self.stage {
            if *frozen == layer {
                *frozen = parent.unwrap_or(layer);
            }
            if *base == Some(layer) {
                *base = parent;
            }
        }
    }

    /// Appends the field's bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.id.0);
        out.extend_from_slice(&self.peer);
        out.put_u32(self.round);
        let (stage, a, b) = match self.stage {
            Stage::Leaving { frozen, base } => (1, frozen.0, base.map_or(0, |l| l.0)),
            Stage::Sealed { frozen, base } => (2, frozen.0, base.map_or(0, |l| l.0)),
            Stage::Incoming { cursor } => (3, cursor, 0),
            Stage::Arrived => (4, 0, 0),
        };
        out.put_u8(stage);
        out.put_u64(a);
        out.put_u64(b);
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`Malformed::Bytes`].
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Moving, Malformed> {
        let (id, peer, round) = (MoveId(r.u64()?), r.array()?, r.u32()?);
        let (stage, a, b) = (r.u8()?, r.u64()?, r.u64()?);
        let (frozen, base) = (LayerId(a), (b != 0).then_some(LayerId(b)));
        let stage = match stage {
            1 if a != 0 => Stage::Leaving { frozen, base },
            2 if a != 0 => Stage::Sealed { frozen, base },
            3 if b == 0 => Stage::Incoming { cursor: a },
            4 if a == 0 && b == 0 => Stage::Arrived,
            _ => return Err(Malformed::Bytes),
        };
        Ok(Moving { id, peer, round, stage })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_round_trip_and_nonsense_is_refused() {
        let (frozen, base) = (LayerId(7), Some(LayerId(3)));
        for stage in [
            Stage::Leaving { frozen, base },
            Stage::Leaving { frozen, base: None },
            Stage::Sealed { frozen, base },
            Stage::Incoming { cursor: END_BLOCK },
            Stage::Arrived,
        ] {
            let moving = Moving { id: MoveId(5), peer: [9; 16], round: 2, stage };
            let mut bytes = Vec::new();
            moving.encode(&mut bytes);
            assert_eq!(Moving::decode(&mut Reader::new(&bytes)), Ok(moving));
            bytes[28] = 9;
            assert_eq!(Moving::decode(&mut Reader::new(&bytes)), Err(Malformed::Bytes));
        }
    }
}
