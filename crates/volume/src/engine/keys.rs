//! Keys of encrypted volumes, in memory, and their use on the blocks of a request.
//!
//! Owns: which volumes are unlocked. Never: writes a key anywhere, or keeps one that no volume needs.
//! Invariant: an attachment to an encrypted volume has its cipher until its last request is answered.

use super::Engine;
use super::data::BLOCK;
use super::lease::Attach;
use crate::cache::NIL;
use crate::catalog::Volume;
use crate::crypt::{Cipher, NewEncryption, Secret};
use crate::mem::{Buf, Mem};
use crate::op::{AdminError, AdminReply, AttachId};
use std::sync::Arc;

/// A volume's cipher, shared by its clones and snapshots: they have its salt.
pub(crate) struct Key {
    salt: [u8; 16],
    cipher: Arc<Cipher>,
}

/// The key of a volume that moves to another pool, on its way there in memory; wiped with its last holder.
#[derive(Clone)]
pub(crate) struct CarriedKey(Option<Arc<Cipher>>);

impl PartialEq for CarriedKey {
    fn eq(&self, other: &CarriedKey) -> bool {
        self.0.is_some() == other.0.is_some()
    }
}

impl Eq for CarriedKey {}

impl std::fmt::Debug for CarriedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CarriedKey {{ present: {} }}", self.0.is_some())
    }
}

impl Engine {
    /// True when the volume can be read and written: it is not encrypted, or its key is here.
    pub(crate) fn is_unlocked(&self, volume: &Volume) -> bool {
        self.key_of(volume).is_ok()
    }

    /// Which key an attachment to the volume uses; `NIL` for none.
    pub(crate) fn key_of(&self, volume: &Volume) -> Result<u32, AdminError> {
        let Some(encryption) = &volume.settings.encryption else { return Ok(NIL) };
        let held = |key: &Option<Key>| key.as_ref().is_some_and(|k| k.salt == encryption.salt);
        self.keys.iter().position(held).map(|at| at as u32).ok_or(AdminError::Locked)
    }

    /// Takes a key into memory, in a place that no attachment refers to.
    fn keep_key(&mut self, key: Key) {
        match self.keys.iter_mut().find(|k| k.is_none()) {
            Some(free) => *free = Some(key),
            None => self.keys.push(Some(key)),
        }
    }

    /// A new volume's key; the volume is unlocked.
    pub(crate) fn adopt_key(&mut self, new: &NewEncryption) {
        let cipher = new.record().unlock(&new.secret).expect("the record was made from this secret");
        self.keep_key(Key { salt: new.salt, cipher: Arc::from(cipher) });
    }

    pub(crate) fn unlock(&mut self, name: &str, secret: &Secret) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        let volume = &self.catalog.volumes[&id];
        let Some(encryption) = volume.settings.encryption else {
            return Err(AdminError::Conflict("the volume is not encrypted"));
        };
        // A wrong secret is refused also when the right one is here: who asks must learn what he holds.
        let cipher = encryption.unlock(secret).ok_or(AdminError::WrongKey)?;
        if !self.is_unlocked(volume) {
            self.keep_key(Key { salt: encryption.salt, cipher: Arc::from(cipher) });
        }
        self.volume_reply(id)
    }

    pub(crate) fn lock(&mut self, name: &str) -> Result<AdminReply, AdminError> {
        let id = self.volume_id(name)?;
        let volume = &self.catalog.volumes[&id];
        if volume.settings.encryption.is_none() {
            return Err(AdminError::Conflict("the volume is not encrypted"));
        }
        if let Ok(key) = self.key_of(volume) {
            if self.attaches.iter().any(|a| a.uses_key(key)) {
                return Err(AdminError::Conflict(
                    "somebody is attached to it or to a relative with its key; detach first",
                ));
            }
            self.keys[key as usize] = None;
        }
        self.volume_reply(id)
    }

    /// The key of a volume that leaves, if it is here. A locked volume moves too, and stays locked.
    pub(crate) fn carry_key(&self, volume: &Volume) -> CarriedKey {
        let place = self.key_of(volume).ok().filter(|at| *at != NIL);
        CarriedKey(place.and_then(|at| self.keys[at as usize].as_ref()).map(|key| key.cipher.clone()))
    }

    /// Takes in the key that came with a volume.
    pub(crate) fn take_key(&mut self, volume: &Volume, key: &CarriedKey) {
        if let (Some(encryption), CarriedKey(Some(cipher))) = (volume.settings.encryption, key)
            && !self.is_unlocked(volume)
        {
            self.keep_key(Key { salt: encryption.salt, cipher: cipher.clone() });
        }
    }

    /// Drops keys that no volume needs any more.
    pub(crate) fn forget_keys(&mut self) {
        for at in 0..self.keys.len() {
            let Some(key) = &self.keys[at] else { continue };
            let wanted = |v: &Volume| v.settings.encryption.is_some_and(|e| e.salt == key.salt);
            let needed = self.catalog.volumes.values().any(wanted);
            if !needed && !self.attaches.iter().any(|a| a.uses_key(at as u32)) {
                self.keys[at] = None;
            }
        }
    }

    pub(crate) fn cipher(&self, attach: AttachId) -> Option<&Cipher> {
        let key = self.attaches.get(attach.0 as usize).map_or(NIL, Attach::key);
        if key == NIL {
            return None;
        }
        let key = self.keys[key as usize].as_ref().expect("a key in use stays");
        Some(&key.cipher)
    }

    /// Encrypts `count` whole blocks from `first` on in place, if the attachment's volume is encrypted. What is in
    /// `buf` afterwards must not be encrypted again.
    pub(crate) fn encrypt(&self, attach: AttachId, first: u64, buf: Buf, count: usize, mem: &mut Mem) {
        let Some(cipher) = self.cipher(attach) else { return };
        for (i, block) in mem.get_mut(buf.part(0, count * BLOCK)).chunks_exact_mut(BLOCK).enumerate() {
            cipher.encrypt(first + i as u64, block);
        }
    }

    /// Decrypts one block in place, if the attachment's volume is encrypted.
    pub(crate) fn decrypt(&self, attach: AttachId, block: u64, bytes: &mut [u8]) {
        if let Some(cipher) = self.cipher(attach) {
            cipher.decrypt(block, bytes);
        }
    }
}
