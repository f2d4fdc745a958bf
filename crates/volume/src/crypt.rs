//! Encryption of blocks: AES-256-XTS, and the way from a secret to a volume's key.
//!
//! Owns: the mode, the derivation of keys and the value that tells a wrong secret. Never: stores a key, or draws chance.
//! Invariant: a block's ciphertext depends on the key, its number in the volume and its bytes, and has their length.

use crate::settings::Encryption;
use aes::Aes256;
use aes::cipher::consts::U16;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::{Zeroize, Zeroizing};

/// Fewest bytes of a secret: as many as the cipher's strength.
pub const SECRET_BYTES_MIN: usize = 32;
/// Most bytes of a secret.
pub const SECRET_BYTES_MAX: usize = 4096;

type Block = Array<u8, U16>;
/// Cipher blocks worked on at a time: enough for the processor to overlap them.
const LANES: usize = 16;

/// What a volume's key is made from. Wiped when dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes random bytes; a passphrase is not enough, because nothing here makes guessing slow.
    ///
    /// # Errors
    /// When there are fewer than [`SECRET_BYTES_MIN`] or more than [`SECRET_BYTES_MAX`] bytes, says so.
    pub fn new(bytes: Vec<u8>) -> Result<Secret, &'static str> {
        let bytes = Zeroizing::new(bytes);
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err("an encryption key is 32 to 4096 random bytes: head -c 64 /dev/urandom > FILE");
        }
        Ok(Secret(bytes))
    }

    /// The bytes, to send them to the node.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// How a new volume is to be encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEncryption {
    /// What the key is made from.
    pub secret: Secret,
    /// Drawn by the caller for this volume alone: volumes of one secret have different keys through it.
    pub salt: [u8; 16],
}

/// HKDF with SHA-256 (RFC 5869). `out` is at most 255 * 32 bytes.
fn hkdf(salt: &[u8], secret: &[u8], info: &[u8], out: &mut [u8]) {
    let mac = |key: &[u8]| <Hmac<Sha256> as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    let mut extract = mac(salt);
    extract.update(secret);
    let key: Zeroizing<[u8; 32]> = Zeroizing::new(extract.finalize().into_bytes().into());
    let mut block = Zeroizing::new([0u8; 32]);
    for (i, chunk) in out.chunks_mut(32).enumerate() {
        let mut expand = mac(&*key);
        if i > 0 {
            expand.update(&*block);
        }
        expand.update(info);
        expand.update(&[i as u8 + 1]);
        *block = expand.finalize().into_bytes().into();
        chunk.copy_from_slice(&block[..chunk.len()]);
    }
}

impl NewEncryption {
    /// What the volume's record keeps of it.
    pub(crate) fn record(&self) -> Encryption {
        Encryption { salt: self.salt, check: check_value(&self.salt, &self.secret) }
    }
}

fn check_value(salt: &[u8; 16], secret: &Secret) -> [u8; 32] {
    let mut check = [0; 32];
    hkdf(salt, &secret.0, b"segue check v1", &mut check);
    check
}

impl Encryption {
    /// The cipher, if this is the volume's secret.
    pub(crate) fn unlock(&self, secret: &Secret) -> Option<Box<Cipher>> {
        if !same(&check_value(&self.salt, secret), &self.check) {
            return None;
        }
        let mut key = Zeroizing::new([0; 64]);
        hkdf(&self.salt, &secret.0, b"segue aes-256-xts v1", &mut *key);
        Some(Box::new(Cipher::new(&key)))
    }
}

/// Compares without telling by its time where the first difference is.
pub(crate) fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

/// AES-256 in XTS mode (IEEE 1619), for data units of whole cipher blocks.
pub(crate) struct Cipher {
    data: Aes256,
    tweak: Aes256,
}

impl Drop for Cipher {
    fn drop(&mut self) {
        let zero = [0; 32].into();
        (self.data, self.tweak) = (Aes256::new(&zero), Aes256::new(&zero));
        // Or the stores would be left out as dead.
        std::hint::black_box(self);
    }
}

impl Cipher {
    pub(crate) fn new(key: &[u8; 64]) -> Cipher {
        let mut halves: [[u8; 32]; 2] = [key[..32].try_into().expect("a half"), key[32..].try_into().expect("a half")];
        let cipher = Cipher { data: Aes256::new(&halves[0].into()), tweak: Aes256::new(&halves[1].into()) };
        halves.zeroize();
        cipher
    }

    /// Encrypts data unit `unit` in place.
    pub(crate) fn encrypt(&self, unit: u64, bytes: &mut [u8]) {
        self.each(unit, bytes, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// Decrypts data unit `unit` in place.
    pub(crate) fn decrypt(&self, unit: u64, bytes: &mut [u8]) {
        self.each(unit, bytes, |blocks| self.data.decrypt_blocks(blocks));
    }

    /// Masks, works, masks again, [`LANES`] cipher blocks at a time.
    #[inline]
    fn each(&self, unit: u64, bytes: &mut [u8], work: impl Fn(&mut [Block])) {
        let (blocks, rest) = Array::slice_as_chunks_mut(bytes);
        assert!(rest.is_empty(), "a data unit has whole cipher blocks");
        let mut first: Block = u128::from(unit).to_le_bytes().into();
        self.tweak.encrypt_block(&mut first);
        let mut mask = u128::from_le_bytes(first.into());
        let mut masks = [0u128; LANES];
        for run in blocks.chunks_mut(LANES) {
            for (m, block) in masks.iter_mut().zip(run.iter_mut()) {
                *m = mask;
                xor(block, mask);
                // Times x in the field of x^128 + x^7 + x^2 + x + 1.
                mask = (mask << 1) ^ ((mask >> 127) * 0x87);
            }
            work(run);
            for (m, block) in masks.iter().zip(run.iter_mut()) {
                xor(block, *m);
            }
        }
    }
}

#[inline]
fn xor(block: &mut Block, mask: u128) {
    let word = u128::from_le_bytes((*block).into()) ^ mask;
    *block = word.to_le_bytes().into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        let digit = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal");
        (0..text.len()).step_by(2).map(digit).collect()
    }

    /// IEEE 1619-2007, annex B, vector 10: 512 bytes, AES-256.
    #[test]
    fn conform_ieee_1619_vector_10() {
        let key = hex(concat!(
            "2718281828459045235360287471352662497757247093699959574966967627",
            "3141592653589793238462643383279502884197169399375105820974944592"
        ));
        let plain: Vec<u8> = (0..=255).chain(0..=255).collect();
        let cipher = Cipher::new(&key.try_into().expect("64 bytes"));
        let mut bytes = plain.clone();
        cipher.encrypt(0xff, &mut bytes);
        let want = hex(concat!(
            "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b",
            "5d31e276f8fe4a8d66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd",
            "5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0",
            "c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca",
            "2a3e7a7d7df7b10355165c8b9a6d0a7de8b062c4500dc4cd120c0f7418dae3d0",
            "b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f",
            "93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec",
            "583e9645e07b8d9670655ba5bbcfecc6dc3966380ad8fecb17b6ba02469a020a",
            "84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1",
            "505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae",
            "9be69a2ffeceb1bec9de244fbe15992b11b77c040f12bd8f6a975a44a0f90c29",
            "a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac",
            "6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f",
            "645e8b7e9bfdef33943054ff84011493c27b3429eaedb4ed5376441a77ed4385",
            "1ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa",
            "773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151"
        ));
        assert!(bytes == want, "{bytes:02x?}");
        cipher.decrypt(0xff, &mut bytes);
        assert!(bytes == plain);
    }

    /// RFC 5869, appendix A, test case 1.
    #[test]
    fn conform_rfc_5869_case_1() {
        let mut out = [0; 42];
        let salt: Vec<u8> = (0..13).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        hkdf(&salt, &[0x0b; 22], &info, &mut out);
        let want = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865";
        assert_eq!(out[..], hex(want));
    }

    #[test]
    fn the_right_secret_opens_and_no_other() {
        let secret = |b: u8| Secret::new(vec![b; 32]).expect("long enough");
        let one = NewEncryption { secret: secret(1), salt: [7; 16] };
        assert!(one.record().unlock(&secret(1)).is_some());
        assert!(one.record().unlock(&secret(2)).is_none());
        assert!(Encryption { salt: [8; 16], ..one.record() }.unlock(&secret(1)).is_none());
        assert!(Secret::new(vec![0; 31]).is_err() && Secret::new(vec![0; 4097]).is_err());
        assert_eq!(format!("{:?}", secret(3)), "Secret");
    }

    #[test]
    fn volumes_of_one_secret_have_different_keys() {
        let secret = Secret::new(vec![1; 32]).expect("long enough");
        let encrypt = |salt: u8| {
            let new = NewEncryption { secret: secret.clone(), salt: [salt; 16] };
            let mut bytes = [0; 4096];
            new.record().unlock(&secret).expect("its own").encrypt(5, &mut bytes);
            bytes
        };
        assert!(encrypt(1) == encrypt(1) && encrypt(1) != encrypt(2));
    }

    proptest! {
        /// The naive twin works one cipher block at a time.
        #[test]
        fn model_xts_agrees_with_the_twin(key: [u8; 32], tweak_key: [u8; 32], unit: u64, seed: u8, n in 1usize..70) {
            let twin = xts_mode::Xts128::new(Aes256::new(&key.into()), Aes256::new(&tweak_key.into()));
            let cipher = Cipher::new(&[key, tweak_key].concat().try_into().expect("64 bytes"));
            let plain: Vec<u8> = (0..n * 16).map(|i| (i as u8).wrapping_mul(seed)).collect();
            let (mut ours, mut theirs) = (plain.clone(), plain.clone());
            cipher.encrypt(unit, &mut ours);
            twin.encrypt_sector(&mut theirs, xts_mode::get_tweak_default(u128::from(unit)));
            prop_assert!(ours == theirs);
            cipher.decrypt(unit, &mut ours);
            prop_assert!(ours == plain);
        }
    }
}
