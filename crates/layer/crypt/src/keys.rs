// SPDX-License-Identifier: MIT OR Apache-2.0
//! The master key and what follows from it.

use aes_siv::KeyInit;
use aes_siv::siv::Aes256Siv;
use outrigger_core::{Errno, Result};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{aead, hkdf};
use zeroize::Zeroizing;

/// The length of a master key in bytes.
pub const MASTER: usize = 32;
/// The length of a key for AES-256-SIV in bytes.
pub(crate) const SIV: usize = 64;
/// The length of the number of a file or a directory in bytes.
pub const ID: usize = 16;

/// The number of a file or a directory.
pub type Id = [u8; ID];

/// The salt of all derivations: keys of another format differ.
const SALT: &[u8] = b"outrigger-crypt v1";

/// The key that everything follows from.
#[derive(Clone)]
pub struct Master(pub(crate) Zeroizing<[u8; MASTER]>);

impl Master {
    /// A new one.
    ///
    /// # Errors
    /// `EIO` when the system has no random numbers.
    pub fn random() -> Result<Self> {
        let mut key = Zeroizing::new([0; MASTER]);
        random(&mut key[..])?;
        Ok(Master(key))
    }

    /// The one with these bytes; `None` when there are too few or too many.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Some(Master(Zeroizing::new(bytes.try_into().ok()?)))
    }
}

/// Fills `bytes` from the system's generator. It is asked each time: a generator of our own would give the same numbers to two
/// processes of which one is a clone of the other, as a worker and its successor are.
///
/// # Errors
/// `EIO` when it fails.
pub(crate) fn random(bytes: &mut [u8]) -> Result<()> {
    SystemRandom::new().fill(bytes).map_err(|_| Errno::EIO.because("the system has no random numbers"))
}

/// A new number.
///
/// # Errors
/// Those of [`random`].
pub(crate) fn new_id() -> Result<Id> {
    let mut id = [0; ID];
    random(&mut id)?;
    Ok(id)
}

/// How many bytes a derivation gives.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// `N` bytes of HKDF-SHA256 (RFC 5869) from `key` for the purpose that the parts of `info` name.
pub(crate) fn derive<const N: usize>(key: &hkdf::Prk, info: &[&[u8]]) -> Zeroizing<[u8; N]> {
    let mut out = Zeroizing::new([0; N]);
    let filled = key.expand(info, Length(N)).and_then(|bytes| bytes.fill(&mut out[..]));
    filled.expect("fewer than 255 times 32 bytes are asked for");
    out
}

/// The first step of HKDF: a key of uniform bits.
pub(crate) fn extract(salt: &[u8], secret: &[u8]) -> hkdf::Prk {
    hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret)
}

/// A key for short texts: AES-256-SIV (RFC 5297). The same text gives the same bytes, unless a number is among the headers.
pub(crate) struct SivKey(pub(crate) Zeroizing<[u8; SIV]>);

impl SivKey {
    /// The text, encrypted: 16 bytes that authenticate it and `headers`, then as many bytes as it has.
    pub(crate) fn seal(&self, headers: &[&[u8]], text: &[u8]) -> Vec<u8> {
        let mut siv = Aes256Siv::new((&*self.0).into());
        siv.encrypt(headers, text).expect("there are fewer than 127 headers")
    }

    /// The text again; `None` when it or a header is another one.
    pub(crate) fn open(&self, headers: &[&[u8]], sealed: &[u8]) -> Option<Vec<u8>> {
        let mut siv = Aes256Siv::new((&*self.0).into());
        siv.decrypt(headers, sealed).ok()
    }
}

/// The keys of a tree.
pub struct Keys {
    pub(crate) names: SivKey,
    pub(crate) targets: SivKey,
    pub(crate) xattrs: SivKey,
    pub(crate) directories: SivKey,
    files: hkdf::Prk,
}

impl Keys {
    /// Those that follow from `master`.
    pub fn of(master: &Master) -> Self {
        let key = extract(SALT, &master.0[..]);
        let siv = |purpose: &str| SivKey(derive(&key, &[purpose.as_bytes()]));
        let [names, targets, xattrs, directories] = ["names", "targets", "xattrs", "directories"].map(siv);
        Keys { names, targets, xattrs, directories, files: key }
    }

    /// The key of the file with this number.
    pub(crate) fn file(&self, id: Id) -> FileKey {
        let bytes = derive::<32>(&self.files, &[b"file", &id]);
        let key = aead::UnboundKey::new(&aead::AES_256_GCM, &bytes[..]);
        FileKey { id, key: aead::LessSafeKey::new(key.expect("the key has the length of the algorithm")) }
    }
}

/// The key of one file.
pub(crate) struct FileKey {
    pub(crate) id: Id,
    key: aead::LessSafeKey,
}

/// The length of a nonce in bytes.
pub(crate) const NONCE: usize = 12;
/// The length of what authenticates a block in bytes.
pub(crate) const TAG: usize = 16;

impl FileKey {
    /// Encrypts what is between the room for the nonce and the room for the tag of `slot`.
    pub(crate) fn seal(&self, about: &[u8], nonce: [u8; NONCE], slot: &mut [u8]) {
        let (place, rest) = slot.split_at_mut(NONCE);
        let (text, tag) = rest.split_at_mut(rest.len() - TAG);
        place.copy_from_slice(&nonce);
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        let made = self.key.seal_in_place_separate_tag(nonce, aead::Aad::from(about), text);
        tag.copy_from_slice(made.expect("a block is shorter than 64 GiB").as_ref());
    }

    /// Decrypts `slot` where it stands: the text begins after the nonce, and has the length that is answered. `None` when anything is
    /// not as it was.
    pub(crate) fn open(&self, about: &[u8], slot: &mut [u8]) -> Option<usize> {
        let (nonce, rest) = slot.split_first_chunk_mut::<NONCE>()?;
        let nonce = aead::Nonce::assume_unique_for_key(*nonce);
        Some(self.key.open_in_place(nonce, aead::Aad::from(about), rest).ok()?.len())
    }
}
