// SPDX-License-Identifier: MIT OR Apache-2.0
//! What follows the colon of a scheme.

use crate::drivers::{self, declared};
use outrigger_core::registry::Follows;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;

/// What follows the colon of a scheme.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// A path in the only tree of the scheme.
    Path,
    /// `//`, the authority that serves the tree, and a path in it; also for a scheme that is not known.
    Authority,
    /// What says which tree is meant, to a driver program or to a driver; a path in the tree follows `::`.
    Argument,
}

impl Syntax {
    /// That of a scheme by its name.
    pub fn of(scheme: &str) -> Self {
        if declared(scheme).is_some() {
            return Syntax::Argument;
        }
        match drivers::scheme(scheme).map(|scheme| scheme.follows) {
            Some(Follows::Path) => Syntax::Path,
            Some(Follows::Argument) => Syntax::Argument,
            Some(Follows::Authority) | None => Syntax::Authority,
        }
    }
}

/// What follows `://` as the tree of an authority, and the path in it. A path begins at the root of the host after two slashes,
/// and where the login leads after one.
pub fn split_authority(mut rest: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let Some(slash) = rest.iter().position(|&byte| byte == b'/') else { return (rest, Vec::new()) };
    let path = decoded(&rest.split_off(slash));
    match path.strip_prefix(b"/") {
        Some(at_root) if at_root.starts_with(b"/") => ([&rest[..], b"//"].concat(), at_root.to_vec()),
        _ => (rest, path),
    }
}

/// As the authority of a tree, and a path in it: what follows `SCHEME:unix:` is a socket of this machine, or something in the tree that
/// is served there.
pub fn socket(path: &[u8]) -> Vec<u8> {
    let is_socket = |end: &usize| {
        let kind = std::fs::metadata(OsStr::from_bytes(&path[..*end])).map(|found| found.file_type());
        kind.is_ok_and(|kind| kind.is_socket())
    };
    let ends = (0..path.len()).filter(|&at| path[at] == b'/').chain([path.len()]);
    let end = ends.filter(|&end| end > 0).find(is_socket).unwrap_or(path.len());
    let encode = |bytes: &[u8], kept: &[u8]| -> Vec<u8> {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || kept.contains(byte);
        let one = |byte: &u8| if plain(byte) { vec![*byte] } else { format!("%{byte:02X}").into_bytes() };
        bytes.iter().flat_map(one).collect()
    };
    [&b"unix:"[..], &encode(&path[..end], b""), &encode(&path[end..], b"/")].concat()
}

/// What follows `://`, with stars for the password of a host: it is shown in messages, and as the source of a mount.
pub fn without_password<'a>(scheme: &str, rest: &'a [u8]) -> Cow<'a, [u8]> {
    let authority = rest.split(|&byte| byte == b'/').next().unwrap_or_default();
    let at = authority.iter().rposition(|&byte| byte == b'@').unwrap_or(0);
    let colon = authority[..at].iter().position(|&byte| byte == b':');
    let known = drivers::scheme(scheme).is_some_and(|scheme| scheme.follows == Follows::Authority);
    match colon.filter(|_| known) {
        Some(colon) => [&rest[..colon], b":***", &rest[at..]].concat().into(),
        None => rest.into(),
    }
}

/// What follows the colon of a scheme, as a user writes it, with odd bytes replaced, and with stars for a password.
pub fn shown(scheme: &str, rest: &[u8]) -> String {
    let has_authority = Syntax::of(scheme) == Syntax::Authority;
    // An authority has no slashes: those of a socket are encoded in it.
    let (slashes, text) = match rest.starts_with(b"unix:") {
        true if has_authority => ("", decoded(rest).into()),
        _ if has_authority => ("//", without_password(scheme, rest)),
        _ => ("", without_password(scheme, rest)),
    };
    format!("{slashes}{}", String::from_utf8_lossy(&text))
}

/// With `%` and two hexadecimal digits replaced by the byte they mean.
pub fn decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(meant) => {
                out.push(meant);
                rest = &tail[2..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_this_machine_is_an_authority_and_what_follows_it_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a b");
        let _listener = std::os::unix::net::UnixListener::bind(&at).unwrap();
        let encoded = format!("unix:{}%2Fa%20b", dir.path().display().to_string().replace('/', "%2F"));
        for (path, inside) in [("", ""), ("/d/50%", "/d/50%")] {
            let text = socket(format!("{}{path}", at.display()).as_bytes());
            assert_eq!(split_authority(text), (encoded.clone().into_bytes(), inside.as_bytes().to_vec()));
        }
        assert_eq!(socket(b"/nowhere/s"), b"unix:%2Fnowhere%2Fs");
    }
}
