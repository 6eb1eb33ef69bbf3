// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extensions that follow some requests (7.38): supplementary groups and security contexts.
use crate::layout::{DecodeError, layout};

layout! {
    /// Head of each extension (`fuse_ext_header`).
    pub struct ExtHeader: 8 {
        /// Bytes of this extension with its head.
        size: u32 = 0,
        /// Kind: up to 31 the number of security contexts, 32 supplementary groups.
        kind: u32 = 4,
    }
}

/// Kind of the supplementary groups (`FUSE_EXT_GROUPS`).
const EXT_GROUPS: u32 = 32;
/// Largest number of security contexts (`FUSE_MAX_NR_SECCTX`).
const MAX_SECURITY_CONTEXTS: u32 = 31;
/// Extensions are padded to this many bytes.
const ALIGN: usize = 8;

/// One extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension<'a> {
    /// Supplementary groups of the caller that matter for the request.
    Groups(Groups<'a>),
    /// Security contexts of the new node: their number and their bytes.
    Security {
        /// How many contexts there are.
        count: u32,
        /// The contexts as `fuse_secctx` records.
        bytes: &'a [u8],
    },
    /// A kind this version does not know.
    Unknown(u32),
}

/// Group ids, read one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Groups<'a>(&'a [u8]);

impl Iterator for Groups<'_> {
    type Item = u32;
    fn next(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*head))
    }
}

/// The extensions of a request; checked when the request was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extensions<'a>(&'a [u8]);

impl<'a> Extensions<'a> {
    /// Takes the extension area of a message after checking every record in it.
    ///
    /// # Errors
    /// [`DecodeError::Extension`] when a record is malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = split(rest)?.1;
        }
        Ok(Self(bytes))
    }

    /// The supplementary groups, empty when none were sent.
    #[must_use]
    pub fn groups(self) -> Groups<'a> {
        self.into_iter()
            .find_map(|extension| match extension {
                Extension::Groups(groups) => Some(groups),
                _ => None,
            })
            .unwrap_or_default()
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Extension<'a>;
    fn next(&mut self) -> Option<Extension<'a>> {
        let (extension, rest) = split(self.0).ok()?;
        self.0 = rest;
        Some(extension)
    }
}

/// Reads the first record and gives what follows its padding.
fn split(bytes: &[u8]) -> Result<(Extension<'_>, &[u8]), DecodeError> {
    let (head, _) = ExtHeader::decode(bytes).map_err(|_| DecodeError::Extension)?;
    let size = head.size as usize;
    let body = bytes.get(ExtHeader::SIZE..size).ok_or(DecodeError::Extension)?;
    let rest = bytes.get(size.next_multiple_of(ALIGN)..).unwrap_or_default();
    let extension = match head.kind {
        EXT_GROUPS => {
            let (count, groups) = body.split_first_chunk::<4>().ok_or(DecodeError::Extension)?;
            let wanted =
                (u32::from_ne_bytes(*count) as usize).checked_mul(4).ok_or(DecodeError::Extension)?;
            Extension::Groups(Groups(groups.get(..wanted).ok_or(DecodeError::Extension)?))
        }
        count @ 0..=MAX_SECURITY_CONTEXTS => Extension::Security { count, bytes: body },
        kind => Extension::Unknown(kind),
    };
    Ok((extension, rest))
}
