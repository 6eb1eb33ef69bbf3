// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration: the master key, wrapped with a key that a passphrase or a key file gives.

use crate::format::BLOCK;
use crate::keys::{MASTER, Master, SIV, SivKey, derive, extract, random};
use argon2::{Algorithm, Argon2, Params, Version};
use base64ct::{Base64, Encoding};
use outrigger_core::{Errno, Error, Result};
use ring::digest;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

const FORMAT: &str = "outrigger-crypt";
const VERSION: u32 = 1;
const SALT: usize = 32;
/// The longest configuration in bytes.
pub const CONFIG_MAX: usize = 16 << 10;
/// The most memory that a passphrase may cost: a configuration comes from where the tree does.
const MEMORY_MAX: u32 = 4 << 20;
const PASSES_MAX: u32 = 100;
/// The shortest key file in bytes.
const KEY_FILE_MIN: usize = 32;

/// What opens a tree.
pub enum Secret {
    /// A passphrase, for Argon2id (RFC 9106).
    Passphrase(Zeroizing<Vec<u8>>),
    /// The content of a key file, of at least 32 bytes that cannot be guessed.
    KeyFile(Zeroizing<Vec<u8>>),
}

/// What guessing a passphrase costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
}

impl Default for Cost {
    /// The second recommendation of RFC 9106, section 4, with one lane.
    fn default() -> Self {
        Cost { memory_kib: 64 << 10, passes: 3 }
    }
}

/// How the key follows that wraps the master key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Derivation {
    /// From a passphrase.
    Argon2id(Cost),
    /// From a key file.
    KeyFile {},
}

/// A configuration, as it stands in `outrigger-crypt.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    format: String,
    version: u32,
    block: u32,
    derivation: Derivation,
    salt: String,
    wrapped: String,
    checksum: String,
}

impl Config {
    /// A configuration that wraps `master` with `secret`.
    ///
    /// # Errors
    /// `EINVAL` for a cost that is too high or a key file that is too short; `EIO` when the system has no random numbers.
    pub fn wrap(master: &Master, secret: &Secret, cost: Cost) -> Result<Self> {
        let mut salt = [0; SALT];
        random(&mut salt)?;
        Self::wrap_with(master, secret, cost, &salt)
    }

    /// The same with a salt that was chosen.
    pub(crate) fn wrap_with(master: &Master, secret: &Secret, cost: Cost, salt: &[u8; SALT]) -> Result<Self> {
        let derivation = match secret {
            Secret::Passphrase(_) => Derivation::Argon2id(cost),
            Secret::KeyFile(_) => Derivation::KeyFile {},
        };
        let mut config = Config {
            format: FORMAT.into(),
            version: VERSION,
            block: BLOCK as u32,
            derivation,
            salt: Base64::encode_string(salt),
            wrapped: String::new(),
            checksum: String::new(),
        };
        let sealed = config.wrapping_key(secret)?.seal(&[config.about().as_bytes()], &master.0[..]);
        config.wrapped = Base64::encode_string(&sealed);
        config.checksum = config.sum();
        Ok(config)
    }

    /// The master key.
    ///
    /// # Errors
    /// `EACCES` for a wrong passphrase or key file.
    pub fn unwrap(&self, secret: &Secret) -> Result<Master> {
        let (wrong, right) = match (secret, self.derivation) {
            (Secret::Passphrase(_), Derivation::Argon2id(_)) => ("the passphrase is wrong", true),
            (Secret::KeyFile(_), Derivation::KeyFile {}) => ("the key file is another one", true),
            (Secret::KeyFile(_), _) => ("the tree has a passphrase, not a key file", false),
            (Secret::Passphrase(_), _) => ("the tree has a key file, not a passphrase", false),
        };
        let no = || Errno::EACCES.because(wrong);
        if !right {
            return Err(no());
        }
        let wrapped = Base64::decode_vec(&self.wrapped).map_err(|_| damaged("wrapped"))?;
        let opened = self.wrapping_key(secret)?.open(&[self.about().as_bytes()], &wrapped);
        let opened = Zeroizing::new(opened.ok_or_else(no)?);
        Master::of(&opened).ok_or_else(|| damaged("wrapped"))
    }

    /// Whether a passphrase opens it, not a key file.
    pub fn has_passphrase(&self) -> bool {
        matches!(self.derivation, Derivation::Argon2id(_))
    }

    /// What guessing the passphrase costs, where there is one.
    pub fn cost(&self) -> Cost {
        match self.derivation {
            Derivation::Argon2id(cost) => cost,
            Derivation::KeyFile {} => Cost::default(),
        }
    }

    /// Reads a configuration.
    ///
    /// # Errors
    /// `EBADMSG` when it is damaged; `EOPNOTSUPP` for one of a later version.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let unfit = |why: String| Errno::EBADMSG.because(format!("{}: {why}", crate::CONFIG));
        if text.len() > CONFIG_MAX {
            return Err(unfit("it is too long".into()));
        }
        let config: Config = serde_json::from_slice(text).map_err(|error| unfit(error.to_string()))?;
        if config.format != FORMAT {
            return Err(damaged("format"));
        }
        if config.version != VERSION || config.block != BLOCK as u32 {
            let Config { version, block, .. } = config;
            let why = format!("{}: version {version} with blocks of {block} bytes", crate::CONFIG);
            return Err(Errno::EOPNOTSUPP.because(why));
        }
        if config.sum() != config.checksum {
            return Err(damaged("checksum"));
        }
        Ok(config)
    }

    /// What [`Config::parse`] reads.
    pub fn print(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a configuration has no map with other keys");
        text.push(b'\n');
        text
    }

    /// What is authenticated besides the key: all that is there.
    pub(crate) fn about(&self) -> String {
        let Config { format, version, block, salt, .. } = self;
        let derivation = match self.derivation {
            Derivation::Argon2id(Cost { memory_kib, passes }) => format!("argon2id {memory_kib} {passes}"),
            Derivation::KeyFile {} => "key-file".to_owned(),
        };
        format!("{format} {version} {block} {derivation} {salt}")
    }

    /// Tells damage from a wrong passphrase. It authenticates nothing.
    fn sum(&self) -> String {
        let text = format!("{} {}", self.about(), self.wrapped);
        Base64::encode_string(&digest::digest(&digest::SHA256, text.as_bytes()).as_ref()[..12])
    }

    fn wrapping_key(&self, secret: &Secret) -> Result<SivKey> {
        let salt = Base64::decode_vec(&self.salt).map_err(|_| damaged("salt"))?;
        if salt.len() != SALT {
            return Err(damaged("salt"));
        }
        match (secret, self.derivation) {
            (Secret::Passphrase(passphrase), Derivation::Argon2id(cost)) => {
                stretched(passphrase, &salt, cost)
            }
            (Secret::KeyFile(content), _) if content.len() < KEY_FILE_MIN => {
                Err(Errno::EINVAL.because(format!("a key file has at least {KEY_FILE_MIN} random bytes")))
            }
            (Secret::KeyFile(text) | Secret::Passphrase(text), _) => {
                Ok(SivKey(derive(&extract(&salt, text), &[b"key file"])))
            }
        }
    }
}

/// The key that follows from a passphrase.
fn stretched(passphrase: &[u8], salt: &[u8], cost: Cost) -> Result<SivKey> {
    let Cost { memory_kib, passes } = cost;
    let unfit =
        || Errno::EINVAL.because(format!("{memory_kib} KiB and {passes} passes are no cost of Argon2id"));
    if memory_kib > MEMORY_MAX || passes > PASSES_MAX {
        return Err(unfit());
    }
    let params = Params::new(memory_kib, passes, 1, Some(SIV)).map_err(|_| unfit())?;
    let mut key = Zeroizing::new([0; SIV]);
    let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon.hash_password_into(passphrase, salt, &mut key[..]).map_err(|error| {
        Errno::ENOMEM.because(format!("the passphrase needs {memory_kib} KiB of memory: {error}"))
    })?;
    Ok(SivKey(key))
}

fn damaged(what: &str) -> Error {
    Errno::EBADMSG.because(format!("{} is damaged: {what}", crate::CONFIG))
}

const _: () = assert!(MASTER == 32, "the format says so");
