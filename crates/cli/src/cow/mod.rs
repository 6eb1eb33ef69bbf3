// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of a program that are kept apart from the real files (`outrigger run --cow`), and what becomes of them.
//!
//! | module | what it holds |
//! |---|---|
//! | `overlay.rs` | the directory that an overlay is in, and its lock |
//! | `origin.rs` | which version of a real file was hidden, so that later changes of it are noticed |
//! | `changes.rs` | what differs between the overlay and the real files |
//! | `alike.rs` | whether two files are the same, and in what they differ |
//! | `commit.rs` | making the real files what the program saw |
//! | `discard.rs` | giving up a part of the changes |
//! | `notes.rs` | what a commit notes before it does it |
//! | `place.rs` | names of real files, reached without symbolic links |
//! | `only.rs` | a part of the changes |
//! | `opened.rs` | directories that get permissions for a while |
//! | `make.rs` | copying one file of the overlay |

mod alike;
mod changes;
mod commit;
mod discard;
mod make;
mod notes;
mod only;
mod opened;
mod origin;
mod overlay;
mod preflight;
mod remove;

pub use changes::{Change, Changes};
pub use commit::Commit;
pub use discard::discard;
pub use only::Only;
pub use overlay::Overlay;

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A path as a word of a line.
fn written(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for &byte in path {
        match byte {
            b'%' | 0..=b' ' | 0x7f.. => text.push_str(&format!("%{byte:02X}")),
            byte => text.push(char::from(byte)),
        }
    }
    text
}

/// The path that a word stands for.
fn read(word: &str) -> Option<PathBuf> {
    let mut parts = word.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

/// A path for a message.
pub fn shown(path: &Path) -> Cow<'_, str> {
    path.to_string_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn every_path_is_one_word() {
        for path in [&b"/a b%/c\n"[..], b"/\xff%41", b"/plain"] {
            let word = written(path);
            assert!(!word.contains(char::is_whitespace), "{word}");
            assert_eq!(read(&word).unwrap().as_os_str().as_bytes(), path);
        }
        assert_eq!((read("/%"), read("/%zz")), (None, None));
    }
}
