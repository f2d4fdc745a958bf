//! The pool's records of volumes and layers, and their bytes.
//!
//! Owns: what a volume and a layer are, and their encoding. Never: decides who may write, or moves blocks.
//! Invariant: a layer's parent is always older than the layer, so chains end.

use crate::codec::{Malformed, Reader, Writer};
use crate::entry::Entry;
use crate::moving::Stage;
use crate::op::{ObservationRule, VolumeKind};
use crate::settings::Settings;
use crate::superposition::{Phase, Race};
use segue_types::{LayerId, LeaseId, SuperId, VolumeId, check_volume_name};
use std::collections::BTreeMap;

/// Longest holder and note, bytes.
pub(crate) const NOTE_BYTES_MAX: usize = 1024;
pub(crate) const HOLDER_BYTES_MAX: usize = 256;
/// Most volumes in a group.
pub(crate) const GROUP_MAX: usize = 16;
/// Bit of a record's kind: settings follow at its end. Version 1 never sets it.
const KIND_SETTINGS: u8 = 2;
/// Largest volume, bytes: four map levels of 256 entries.
pub const VOLUME_BYTES_MAX: u64 = 1 << 44;

/// The right to write one version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) holder: String,
    pub(crate) since_unix_ms: u64,
    pub(crate) durable: bool,
}

/// One version of a volume: its top layer, its size, who may write it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Branch {
    pub(crate) head: LayerId,
    pub(crate) size_bytes: u64,
    pub(crate) lease: Option<Lease>,
}

/// A volume or snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) name: String,
    pub(crate) kind: VolumeKind,
    pub(crate) rule: ObservationRule,
    pub(crate) token_sha256: Option<[u8; 32]>,
    pub(crate) epoch: u64,
    pub(crate) note: String,
    pub(crate) primary: Branch,
    /// The child's version while a race runs.
    pub(crate) child: Option<Branch>,
    /// The race the volume takes part in, or the last one it took part in.
    pub(crate) race: Option<RaceRef>,
    pub(crate) settings: Settings,
}

impl Volume {
    /// The copy of a volume that is still moving here: nobody sees it.
    pub(crate) fn is_incoming(&self) -> bool {
        self.settings.moving.is_some_and(|m| matches!(m.stage, Stage::Incoming { .. }))
    }

    /// Closed for good unless its move fails: the volume may be another pool's already.
    pub(crate) fn is_sealed(&self) -> bool {
        self.settings.moving.is_some_and(|m| matches!(m.stage, Stage::Sealed { .. }))
    }
}

/// A volume's part in a race: equal in every member of the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RaceRef {
    pub(crate) race: Race,
    pub(crate) members: Vec<VolumeId>,
}

/// A sparse map of blocks over a parent layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layer {
    pub(crate) id: LayerId,
    pub(crate) parent: Option<LayerId>,
    /// Its blocks and records move into the parent; writes of a head in this state go to the parent.
    pub(crate) merging: bool,
    /// Nobody needs it any more; its blocks are given back.
    pub(crate) dropping: bool,
    /// Data blocks it holds.
    pub(crate) blocks: u64,
    /// Where its topmost map page lies, as of the last checkpoint.
    pub(crate) root: Entry,
}

/// All records of a pool.
#[derive(Default)]
pub(crate) struct Catalog {
    pub(crate) volumes: BTreeMap<VolumeId, Volume>,
    pub(crate) layers: BTreeMap<LayerId, Layer>,
    pub(crate) next_volume: u64,
    pub(crate) next_layer: u64,
    pub(crate) next_super: u64,
}

impl Catalog {
    pub(crate) fn new() -> Catalog {
        Catalog { next_volume: 1, next_layer: 1, next_super: 1, ..Catalog::default() }
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Volume> {
        // Names are looked up by operators and at attach, never on the data path.
        // A copy on its way in is not a volume yet, whatever its name.
        self.volumes.values().find(|v| v.name == name && !v.is_incoming())
    }

    /// Records a volume and moves the counters past everything it names.
    pub(crate) fn put_volume(&mut self, volume: Volume) {
        self.next_volume = self.next_volume.max(volume.id.0 + 1);
        if let Some(r) = &volume.race {
            self.next_super = self.next_super.max(r.race.sid().0 + 1);
        }
        self.volumes.insert(volume.id, volume);
    }

    /// Records a layer's shape; its root and count stay as they are when it exists.
    pub(crate) fn put_layer(&mut self, id: LayerId, parent: Option<LayerId>, merging: bool, dropping: bool) {
        self.next_layer = self.next_layer.max(id.0 + 1);
        let layer =
            self.layers.entry(id).or_insert(Layer { id, parent, merging, dropping, blocks: 0, root: Entry::ABSENT });
        (layer.parent, layer.merging, layer.dropping) = (parent, merging, dropping);
    }

    /// Layers from this one down to its base.
    pub(crate) fn depth(&self, id: LayerId) -> u32 {
        let mut depth = 0;
        let mut at = Some(id);
        while let Some(layer) = at.and_then(|id| self.layers.get(&id)) {
            depth += 1;
            at = layer.parent;
        }
        depth
    }

    /// Writes everything, for a checkpoint.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for n in
            [self.next_volume, self.next_layer, self.next_super, self.volumes.len() as u64, self.layers.len() as u64]
        {
            out.put_u64(n);
        }
        for volume in self.volumes.values() {
            encode_volume(volume, out);
        }
        for layer in self.layers.values() {
            out.put_u64(layer.id.0);
            out.put_u64(layer.parent.map_or(0, |p| p.0));
            out.put_u64(u64::from(layer.merging) | u64::from(layer.dropping) << 1);
            out.put_u64(layer.blocks);
            let (low, high) = layer.root.words();
            out.put_u64(low);
            out.put_u64(high);
        }
    }

    /// Reads what `encode` wrote.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Catalog, Malformed> {
        let (next_volume, next_layer, next_super) = (r.u64()?, r.u64()?, r.u64()?);
        let (volumes, layers) = (r.u64()?, r.u64()?);
        let mut catalog = Catalog { next_volume, next_layer, next_super, ..Catalog::default() };
        for _ in 0..volumes {
            let volume = decode_volume(r)?;
            catalog.volumes.insert(volume.id, volume);
        }
        for _ in 0..layers {
            let id = LayerId(r.u64()?);
            let parent = r.u64()?;
            let flags = r.u64()?;
            let blocks = r.u64()?;
            let root = Entry::from_words(r.u64()?, r.u64()?);
            let parent = (parent != 0).then_some(LayerId(parent));
            if parent.is_some_and(|p| p >= id) {
                return Err(Malformed::Bytes);
            }
            let (merging, dropping) = (flags & 1 != 0, flags & 2 != 0);
            catalog.layers.insert(id, Layer { id, parent, merging, dropping, blocks, root });
        }
        Ok(catalog)
    }
}

fn encode_branch(branch: &Branch, out: &mut Vec<u8>) {
    out.put_u64(branch.head.0);
    out.put_u64(branch.size_bytes);
    // Ephemeral leases end with the process, so they are not written.
    match branch.lease.as_ref().filter(|l| l.durable) {
        None => out.put_u8(0),
        Some(lease) => {
            out.put_u8(1);
            out.put_u128(lease.id.0);
            out.put_u64(lease.since_unix_ms);
            out.put_text(&lease.holder);
        }
    }
}

fn decode_branch(r: &mut Reader<'_>) -> Result<Branch, Malformed> {
    let (head, size_bytes) = (LayerId(r.u64()?), r.u64()?);
    let lease = match r.u8()? {
        0 => None,
        1 => {
            let (id, since_unix_ms) = (LeaseId(r.u128()?), r.u64()?);
            Some(Lease { id, since_unix_ms, holder: r.text()?, durable: true })
        }
        _ => return Err(Malformed::Bytes),
    };
    if size_bytes > VOLUME_BYTES_MAX || size_bytes % 4096 != 0 {
        return Err(Malformed::Bytes);
    }
    Ok(Branch { head, size_bytes, lease })
}

/// Writes one volume's record.
pub(crate) fn encode_volume(v: &Volume, out: &mut Vec<u8>) {
    out.put_u64(v.id.0);
    out.put_text(&v.name);
    let settings = if v.settings.is_empty() { 0 } else { KIND_SETTINGS };
    out.put_u8(matches!(v.kind, VolumeKind::Snapshot) as u8 | settings);
    out.put_u8(matches!(v.rule, ObservationRule::Flush) as u8);
    out.put_u64(v.epoch);
    out.put_text(&v.note);
    out.put_u8(v.token_sha256.is_some() as u8);
    if let Some(token) = &v.token_sha256 {
        out.extend_from_slice(token);
    }
    encode_branch(&v.primary, out);
    out.put_u8(v.child.is_some() as u8);
    if let Some(child) = &v.child {
        encode_branch(child, out);
    }
    match &v.race {
        None => out.put_u8(0),
        Some(r) => {
            out.put_u8(r.race.phase() as u8);
            out.put_u64(r.race.sid().0);
            out.put_u8(r.members.len() as u8);
            for member in &r.members {
                out.put_u64(member.0);
            }
        }
    }
    if !v.settings.is_empty() {
        v.settings.encode(out);
    }
}

/// Reads one volume's record.
pub(crate) fn decode_volume(r: &mut Reader<'_>) -> Result<Volume, Malformed> {
    let id = VolumeId(r.u64()?);
    let name = r.text()?;
    check_volume_name(&name).map_err(|_| Malformed::Bytes)?;
    let kind_byte = r.u8()?;
    let kind = match kind_byte & !KIND_SETTINGS {
        0 => VolumeKind::Volume,
        1 => VolumeKind::Snapshot,
        _ => return Err(Malformed::Bytes),
    };
    let rule = if flag(r)? { ObservationRule::Flush } else { ObservationRule::Write };
    let epoch = r.u64()?;
    let note = r.text()?;
    let token_sha256 = match flag(r)? {
        true => Some(r.bytes(32)?.try_into().expect("thirty-two bytes")),
        false => None,
    };
    let primary = decode_branch(r)?;
    let child = if flag(r)? { Some(decode_branch(r)?) } else { None };
    let race = match r.u8()? {
        0 => None,
        phase => {
            let phase = Phase::from_u8(phase).ok_or(Malformed::Bytes)?;
            let sid = SuperId(r.u64()?);
            let count = r.u8()? as usize;
            if count == 0 || count > GROUP_MAX {
                return Err(Malformed::Bytes);
            }
            let members = (0..count).map(|_| r.u64().map(VolumeId)).collect::<Result<Vec<_>, _>>()?;
            Some(RaceRef { race: Race::recover(sid, phase), members })
        }
    };
    let settings = if kind_byte & KIND_SETTINGS != 0 { Settings::decode(r)? } else { Settings::default() };
    Ok(Volume { settings, id, name, kind, rule, token_sha256, epoch, note, primary, child, race })
}

fn flag(r: &mut Reader<'_>) -> Result<bool, Malformed> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_round_trip() {
        let lease = Lease { id: LeaseId(9), holder: "me".into(), since_unix_ms: 5, durable: true };
        let primary = Branch { head: LayerId(3), size_bytes: 8192, lease: Some(lease) };
        let race = RaceRef { race: Race::recover(SuperId(4), Phase::Observed), members: vec![VolumeId(1)] };
        let volume = Volume {
            id: VolumeId(1),
            name: "a".into(),
            kind: VolumeKind::Volume,
            rule: ObservationRule::Flush,
            token_sha256: Some([3; 32]),
            epoch: 11,
            note: "n".into(),
            child: Some(Branch { lease: None, ..primary.clone() }),
            primary,
            race: Some(race),
            settings: Settings { share: Some(segue_types::Share::default()), ..Settings::default() },
        };
        let mut catalog = Catalog::new();
        catalog.put_volume(volume.clone());
        catalog.put_layer(LayerId(2), None, false, false);
        catalog.put_layer(LayerId(3), Some(LayerId(2)), true, false);
        let mut bytes = Vec::new();
        catalog.encode(&mut bytes);
        let back = Catalog::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(back.volumes[&VolumeId(1)], volume);
        assert_eq!(back.layers, catalog.layers);
        assert_eq!(back.next_super, 5);
        for cut in 0..bytes.len() {
            assert!(Catalog::decode(&mut Reader::new(&bytes[..cut])).is_err());
        }
    }
}
