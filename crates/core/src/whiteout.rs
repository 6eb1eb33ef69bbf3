// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names by which the upper directory of an overlay says what it hides of the lower one: those of aufs and of layers of OCI images (image
//! specification, "Whiteouts").

/// What these names begin with.
const PREFIX: &[u8] = b".wh.";
/// Hides all names of the lower directory.
pub const OPAQUE: &str = ".wh..wh..opq";
/// The directory in which an overlay makes files before they get their names. Tools that make layers of OCI images leave out what begins so.
pub const WORK: &str = ".wh..wh.work";

/// Whether a name is one of the overlay's own.
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The name that hides `name`.
pub fn whiteout(name: &[u8]) -> Vec<u8> {
    [PREFIX, name].concat()
}

/// The name that this one hides; `None` where it is none of the overlay's own.
pub fn hidden_by(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whiteout_hides_one_name() {
        assert_eq!(whiteout(b"a"), b".wh.a");
        assert_eq!((hidden_by(b".wh.a"), hidden_by(b"a"), hidden_by(b".wh")), (Some(&b"a"[..]), None, None));
        assert!([OPAQUE, WORK].iter().all(|name| is_reserved(name.as_bytes())) && !is_reserved(b"wh.a"));
    }
}
