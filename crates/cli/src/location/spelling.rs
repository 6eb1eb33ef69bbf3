// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of files in LOCATIONs that commands print.

use super::ESCAPED;

/// How names are written in a LOCATION.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// As they are: a file of this machine.
    Plain,
    /// With four colons for two.
    Escaped,
    /// As [`Spelling::Escaped`], with `%25` for `%`: the path of a URL is decoded.
    Encoded,
}

impl Spelling {
    /// The name as it is written.
    pub fn write(self, name: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(name.len());
        let mut rest = name;
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            match byte {
                b'%' if self == Spelling::Encoded => out.extend_from_slice(b"%25"),
                b':' if self != Spelling::Plain && tail.first() == Some(&b':') => {
                    out.extend_from_slice(ESCAPED);
                    rest = &tail[1..];
                }
                byte => out.push(byte),
            }
        }
        out
    }
}
