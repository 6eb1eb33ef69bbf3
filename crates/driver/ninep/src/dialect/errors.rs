// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of 9P2000, which are sentences, and those of 9P2000.u, which have a number of Unix beside them.

use crate::convert;
use outrigger_core::{Errno, Error};

/// What separates the reason from what it is about: `'x' file does not exist`, `create/wstat -- file exists`, `open x: permission denied`.
const BEFORE_REASONS: &[&str] = &["' ", " -- ", ":"];
/// What separates it from an explanation, as of our own server: `No such file or directory: nothing is exported by that name`.
const BEFORE_EXPLANATION: &str = ": ";

/// What sentences mean: those of the C library of Linux (strerror(3)), of Plan 9 and its file servers, of 9front, plan9port and u9fs. In small
/// letters.
const SENTENCES: &[(&str, Errno)] = &[
    ("access permission denied", Errno::EACCES),
    ("argument list too long", Errno::E2BIG),
    ("authentication failed", Errno::EACCES),
    ("authentication required", Errno::EACCES),
    ("bad attach specifier", Errno::ENOENT),
    ("bad character in directory name", Errno::EINVAL),
    ("bad character in file name", Errno::EINVAL),
    ("bad file descriptor", Errno::EBADF),
    ("bad use of fid", Errno::EBADF),
    ("broken pipe", Errno::EPIPE),
    ("cannot allocate memory", Errno::ENOMEM),
    ("connection timed out", Errno::ETIMEDOUT),
    ("create in non-directory", Errno::ENOTDIR),
    ("create prohibited", Errno::EPERM),
    ("device or object already in use", Errno::EBUSY),
    ("device or resource busy", Errno::EBUSY),
    ("directory entry not found", Errno::ENOENT),
    ("directory is not empty", Errno::ENOTEMPTY),
    ("directory not empty", Errno::ENOTEMPTY),
    ("disk is full", Errno::ENOSPC),
    ("disk quota exceeded", Errno::EDQUOT),
    ("exclusive lock", Errno::EBUSY),
    ("exclusive use file already open", Errno::EBUSY),
    ("fid unknown or out of range", Errno::EBADF),
    ("file already exists", Errno::EEXIST),
    ("file does not exist", Errno::ENOENT),
    ("file exists", Errno::EEXIST),
    ("file has been removed", Errno::ESTALE),
    ("file in use", Errno::EBUSY),
    ("file is a directory", Errno::EISDIR),
    ("file is in use", Errno::EBUSY),
    ("file is locked", Errno::EBUSY),
    ("file name syntax", Errno::EINVAL),
    ("file name too long", Errno::ENAMETOOLONG),
    ("file not found", Errno::ENOENT),
    ("file or directory already exists", Errno::EEXIST),
    ("file system full", Errno::ENOSPC),
    ("file system read only", Errno::EROFS),
    ("file too large", Errno::EFBIG),
    ("function not implemented", Errno::EOPNOTSUPP),
    ("illegal file name", Errno::EINVAL),
    ("illegal mode", Errno::EINVAL),
    ("illegal name", Errno::EINVAL),
    ("inappropriate use of fd", Errno::EBADF),
    ("input/output error", Errno::EIO),
    ("interrupted", Errno::EINTR),
    ("interrupted system call", Errno::EINTR),
    ("invalid argument", Errno::EINVAL),
    ("invalid cross-device link", Errno::EXDEV),
    ("i/o error", Errno::EIO),
    ("is a directory", Errno::EISDIR),
    ("it's a directory", Errno::EISDIR),
    ("mounted directory forbids creation", Errno::EPERM),
    ("name too long", Errno::ENAMETOOLONG),
    ("no access to special file", Errno::EPERM),
    ("no creates", Errno::EPERM),
    ("no free disk space", Errno::ENOSPC),
    ("no locks available", Errno::ENOLCK),
    ("no space left on device", Errno::ENOSPC),
    ("no such device", Errno::ENODEV),
    ("no such device or address", Errno::ENXIO),
    ("no such file or directory", Errno::ENOENT),
    ("no wstat of root", Errno::EPERM),
    ("not a directory", Errno::ENOTDIR),
    ("not a member of proposed group", Errno::EPERM),
    ("not owner", Errno::EPERM),
    ("only owner can change group in wstat", Errno::EPERM),
    ("operation not permitted", Errno::EPERM),
    ("operation not supported", Errno::EOPNOTSUPP),
    ("out of memory", Errno::ENOMEM),
    ("permission denied", Errno::EACCES),
    ("read only", Errno::EROFS),
    ("read only file system", Errno::EROFS),
    ("read-only file server", Errno::EROFS),
    ("read-only file system", Errno::EROFS),
    ("remove prohibited", Errno::EPERM),
    ("resource temporarily unavailable", Errno::EAGAIN),
    ("stale file handle", Errno::ESTALE),
    ("stat prohibited", Errno::EPERM),
    ("text file busy", Errno::ETXTBSY),
    ("too many levels of symbolic links", Errno::ELOOP),
    ("too many links", Errno::EMLINK),
    ("too many open files", Errno::EMFILE),
    ("too many open files in system", Errno::ENFILE),
    ("unknown fid", Errno::EBADF),
    ("unknown group", Errno::EINVAL),
    ("unknown user", Errno::EACCES),
    ("walk in a non-directory", Errno::ENOTDIR),
    ("walk in non-directory", Errno::ENOTDIR),
    ("wstat can't convert between files and directories", Errno::EINVAL),
    ("wstat prohibited", Errno::EPERM),
];

/// How much of a sentence is shown, in bytes.
const SHOWN: usize = 200;

/// The error that a server means: by its number where it has one that there is, else by its sentence; `EIO` for one that is not known here.
pub(crate) fn error_in(ename: &[u8], number: Option<u32>) -> Error {
    let told = number.filter(|number| (1..=convert::ERRNO_MAX).contains(number));
    let known = told.map(|number| Errno(number as i32)).or_else(|| meant(ename));
    match known {
        Some(errno) => errno.into(),
        None => {
            let said = ename[..ename.len().min(SHOWN)].escape_ascii();
            Errno::EIO.because(format!("the server says '{said}'"))
        }
    }
}

/// What a sentence means, with or without what is before its reason, or behind it.
fn meant(ename: &[u8]) -> Option<Errno> {
    let ename = std::str::from_utf8(ename).ok()?.trim();
    let reasons =
        BEFORE_REASONS.iter().filter_map(|before| ename.rsplit_once(before)).map(|(_, reason)| reason.trim());
    let explained = ename.split_once(BEFORE_EXPLANATION).map(|(reason, _)| reason);
    std::iter::once(ename).chain(reasons).chain(explained).find_map(|reason| {
        let found = SENTENCES.iter().find(|(sentence, _)| reason.eq_ignore_ascii_case(sentence));
        found.map(|(_, errno)| *errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_of_known_servers_are_their_errors() {
        for (said, expected) in [
            ("No such file or directory", Errno::ENOENT),
            ("file does not exist", Errno::ENOENT),
            ("'/n/x' file does not exist", Errno::ENOENT),
            ("create/wstat -- file exists", Errno::EEXIST),
            ("remove -- directory not empty", Errno::ENOTEMPTY),
            ("cannot open x: Permission denied", Errno::EACCES),
            ("server error:No such file or directory", Errno::ENOENT),
            ("fid unknown or out of range", Errno::EBADF),
            ("No such file or directory: nothing is exported by that name", Errno::ENOENT),
            ("file not found: permission denied", Errno::EACCES),
        ] {
            assert_eq!(error_in(said.as_bytes(), None), expected.into(), "{said}");
        }
    }

    #[test]
    fn a_number_counts_more_than_a_sentence_unless_there_is_no_such_error() {
        assert_eq!(error_in(b"permission denied", Some(1)), Errno::EPERM.into());
        for none in [0, 4096, u32::MAX] {
            assert_eq!(error_in(b"permission denied", Some(none)), Errno::EACCES.into());
        }
    }

    #[test]
    fn what_is_not_known_is_told_and_cannot_draw_on_a_terminal() {
        let odd = error_in(b"the \x1b[2J dog ate it\xff", None);
        assert_eq!(odd.errno, Errno::EIO);
        assert!(odd.to_string().contains("dog ate it\\xff") && !odd.to_string().contains('\x1b'), "{odd}");
        assert!(error_in(&[b'x'; 60_000], Some(0)).to_string().len() < 400);
        assert_eq!(error_in(b"", None).errno, Errno::EIO);
    }
}
