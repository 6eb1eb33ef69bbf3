// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names, targets of symbolic links, and extended attributes.

use crate::keys::{ID, Id, Keys, new_id};
use base64ct::{Base64UrlUnpadded, Encoding};
use outrigger_core::{Errno, Name, Result, Target, XattrName};
use ring::digest;

/// What the names of the layer's own files begin with: no encrypted name has a dot.
const OWN: &str = "outrigger-crypt.";
/// The configuration, in the root.
pub const CONFIG: &str = "outrigger-crypt.json";
/// Where a new configuration is written.
pub(crate) const NEW_CONFIG: &str = "outrigger-crypt.new";
/// The number of a directory, in it.
pub(crate) const DIRECTORY: &str = "outrigger-crypt.dir";
/// Stands for a name that is too long; its hash follows.
const LONG: &str = "outrigger-crypt.long.";
/// Ends the name of the file that has the long name.
const SIDE: &str = ".name";
/// The longest name of the tree below.
const STORED_MAX: usize = 255;

const DIRECTORY_MAGIC: &[u8; 4] = b"ORD1";
/// The length of the file that has the number of a directory.
pub(crate) const DIRECTORY_LEN: usize = DIRECTORY_MAGIC.len() + ID + 16;
/// What the names of encrypted attributes begin with.
const XATTR: &str = "user.orc.";
/// The namespace whose attributes are encrypted.
const USER: &[u8] = b"user.";

/// How a name is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) name: Name,
    /// The file that has the encrypted name, and that, where it is too long to be a name.
    pub(crate) side: Option<(Name, String)>,
}

/// What a name of the tree below is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// A file of the layer's own, which is not shown.
    Own,
    /// A long name, which is in a file beside it.
    Long,
    /// An encrypted name.
    Encrypted,
}

/// What a name of the tree below is.
pub(crate) fn means(name: &[u8]) -> Means {
    match name.strip_prefix(LONG.as_bytes()) {
        Some(rest) if !rest.contains(&b'.') => Means::Long,
        _ if name.starts_with(OWN.as_bytes()) => Means::Own,
        _ => Means::Encrypted,
    }
}

/// A name of the layer's own.
pub(crate) fn own(name: &'static str) -> Name {
    Name::try_from(name).expect("the names of this module are names")
}

/// The file that has the name which `long` stands for.
pub(crate) fn side_of(long: &Name) -> Result<Name> {
    Name::new([long.as_bytes(), SIDE.as_bytes()].concat())
}

/// The bytes that `text` stands for, if it is how they are written.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let bytes = Base64UrlUnpadded::decode_vec(text).ok()?;
    (Base64UrlUnpadded::encode_string(&bytes) == text).then_some(bytes)
}

impl Keys {
    /// How `name` is stored in the directory `dir`.
    pub(crate) fn stored(&self, dir: &Id, name: &Name) -> Stored {
        let full = Base64UrlUnpadded::encode_string(&self.names.seal(&[b"name", dir], name));
        if full.len() <= STORED_MAX {
            return Stored { name: Name::new(full).expect("base64url has no slash and no dot"), side: None };
        }
        let hash = digest::digest(&digest::SHA256, full.as_bytes());
        let long = format!("{LONG}{}", Base64UrlUnpadded::encode_string(hash.as_ref()));
        let name = Name::new(long).expect("a hash in base64url is short");
        let side = side_of(&name).expect("it is still short");
        Stored { name, side: Some((side, full)) }
    }

    /// The name that is stored as `full` in the directory `dir`; `None` when it is damaged, or of another directory.
    pub(crate) fn name(&self, dir: &Id, full: &[u8]) -> Option<Name> {
        Name::new(self.names.open(&[b"name", dir], &decoded(full)?)?).ok()
    }

    /// The content of the file that has the number of a directory.
    pub(crate) fn directory(&self, id: &Id) -> Vec<u8> {
        let tag = self.directories.seal(&[b"directory", id], b"");
        [&DIRECTORY_MAGIC[..], id, &tag].concat()
    }

    /// The number that such a file has; `None` when it is damaged.
    pub(crate) fn read_directory(&self, content: &[u8]) -> Option<Id> {
        let (id, tag) = content.strip_prefix(DIRECTORY_MAGIC)?.split_first_chunk::<ID>()?;
        self.directories.open(&[b"directory", id], tag).map(|_| *id)
    }

    /// How the target of a symbolic link is stored. It does not depend on the link's name: that changes.
    ///
    /// # Errors
    /// `ENAMETOOLONG` when it does not fit; `EIO` when the system has no random numbers.
    pub(crate) fn stored_target(&self, target: &Target) -> Result<Target> {
        self.target_with(target, &new_id()?)
    }

    pub(crate) fn target_with(&self, target: &Target, nonce: &Id) -> Result<Target> {
        let sealed = self.targets.seal(&[b"target", nonce], target);
        let text = Base64UrlUnpadded::encode_string(&[&nonce[..], &sealed].concat());
        Target::new(text).map_err(|_| {
            let most = target_len(outrigger_core::name::TARGET_MAX as u64);
            Errno::ENAMETOOLONG.because(format!("the target of an encrypted link has at most {most} bytes"))
        })
    }

    /// The target that is stored so; `None` when it is damaged.
    pub(crate) fn target(&self, stored: &[u8]) -> Option<Target> {
        let bytes = decoded(stored)?;
        let (nonce, sealed) = bytes.split_first_chunk::<ID>()?;
        Target::new(self.targets.open(&[b"target", nonce], sealed)?).ok()
    }

    /// How the name of an attribute is stored: those of users are encrypted.
    ///
    /// # Errors
    /// `ERANGE` when it does not fit.
    pub(crate) fn stored_xattr(&self, name: &XattrName) -> Result<XattrName> {
        let Some(own) = name.strip_prefix(USER) else { return Ok(name.clone()) };
        let sealed = self.xattrs.seal(&[b"xattr name"], own);
        XattrName::new(format!("{XATTR}{}", Base64UrlUnpadded::encode_string(&sealed)))
            .map_err(|_| Errno::ERANGE.because("the name of an encrypted attribute has at most 173 bytes"))
    }

    /// The name that is stored so; `None` for a user's attribute that is not ours.
    pub(crate) fn xattr(&self, stored: &XattrName) -> Option<XattrName> {
        if !stored.starts_with(USER) {
            return Some(stored.clone());
        }
        let own = self.xattrs.open(&[b"xattr name"], &decoded(stored.strip_prefix(XATTR.as_bytes())?)?)?;
        XattrName::new([USER, &own].concat()).ok()
    }

    /// How a value is stored.
    ///
    /// # Errors
    /// `EIO` when the system has no random numbers.
    pub(crate) fn stored_value(&self, name: &XattrName, value: &[u8]) -> Result<Vec<u8>> {
        let nonce = new_id()?;
        Ok([&nonce[..], &self.xattrs.seal(&[b"xattr value", name, &nonce], value)].concat())
    }

    /// The value that is stored so; `None` when it is damaged.
    pub(crate) fn value(&self, name: &XattrName, stored: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = stored.split_first_chunk::<ID>()?;
        self.xattrs.open(&[b"xattr value", name, nonce], sealed)
    }
}

/// Whether attributes with this name are encrypted.
pub(crate) fn is_users(name: &XattrName) -> bool {
    name.starts_with(USER)
}

/// The length of the target that is stored in `stored` bytes.
pub(crate) fn target_len(stored: u64) -> u64 {
    (stored * 3 / 4).saturating_sub(2 * ID as u64)
}
