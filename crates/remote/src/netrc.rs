// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logins in `~/.netrc`, as ftp(1) and curl(1) read them.

use crate::login::Secret;
use outrigger_core::{Errno, Result};
use outrigger_host::private_file;
use std::io::ErrorKind;
use std::path::Path;

/// The longest file that is read, in bytes.
const FILE_MAX: usize = 1 << 20;

/// One `machine`, or `default`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetrcEntry {
    /// The host; `None` for all others (`default`).
    pub machine: Option<String>,
    /// The user.
    pub login: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

/// The entries of a file in their order. What it does not understand it passes over, as other programs do.
pub fn parse_netrc(text: &str) -> Vec<NetrcEntry> {
    let mut entries: Vec<NetrcEntry> = Vec::new();
    let mut rest = text;
    while let Some((word, after)) = token(rest) {
        rest = after;
        let mut value = || {
            let (value, after) = token(rest)?;
            rest = after;
            Some(value)
        };
        match (&*word, entries.last_mut()) {
            ("machine", _) => {
                let machine = value();
                entries
                    .push(NetrcEntry { machine: Some(machine.unwrap_or_default()), ..NetrcEntry::default() });
            }
            ("default", _) => entries.push(NetrcEntry::default()),
            ("login", Some(entry)) => entry.login = value(),
            ("password", Some(entry)) => entry.password = value().map(Secret::new),
            ("login" | "password" | "account", _) => drop(value()),
            // A macro ends with an empty line.
            ("macdef", _) => rest = rest.find("\n\n").map_or("", |end| &rest[end..]),
            _ => {}
        }
    }
    entries
}

/// The next word of a text and what follows it: plain, or in quotes with `\` before a quote, as curl(1) has it.
fn token(text: &str) -> Option<(String, &str)> {
    let mut text = text.trim_ascii_start();
    while text.starts_with('#') {
        text = text.split_once('\n').map_or("", |(_, rest)| rest).trim_ascii_start();
    }
    if text.is_empty() {
        return None;
    }
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c: char| c.is_ascii_whitespace()).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let (mut word, mut chars) = (String::new(), quoted.char_indices());
    while let Some((at, next)) = chars.next() {
        match next {
            '"' => return Some((word, &quoted[at + 1..])),
            '\\' => word.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => word.push(next),
        }
    }
    Some((word, ""))
}

/// The first entry of the file at `path` for `host`, and for `user` where one is wanted. No file has none.
///
/// # Errors
/// Those of reading the file; `EACCES` when others may read it.
pub fn find_in_netrc(path: &Path, host: &str, user: Option<&str>) -> Result<Option<NetrcEntry>> {
    let fits = |entry: &NetrcEntry| {
        entry.machine.as_deref().is_none_or(|machine| machine.eq_ignore_ascii_case(host))
            && user.is_none_or(|user| entry.login.as_deref() == Some(user))
    };
    Ok(private_text(path)?.and_then(|text| parse_netrc(&text).into_iter().find(fits)))
}

/// The content of a file with secrets; `None` where there is no file.
///
/// # Errors
/// `EACCES` when others can read the file, as ftp(1) has it, or it cannot be read; `EFBIG` for one longer than 1 MiB.
pub fn private_text(path: &Path) -> Result<Option<String>> {
    let errno = |kind| match kind {
        ErrorKind::InvalidInput => Errno::EINVAL,
        ErrorKind::FileTooLarge => Errno::EFBIG,
        _ => Errno::EACCES,
    };
    match private_file(path, FILE_MAX) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(errno(error.kind()).because(format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    const TEXT: &str = "# mine\nmachine a login u password p\nmachine b\n  login \"x y\" password \"q\\\"\\\\\"\n\
                        macdef init\nmachine c\n\nmachine d password only\ndefault login anonymous password me@";

    fn entry(machine: Option<&str>, login: Option<&str>, password: &str) -> NetrcEntry {
        NetrcEntry {
            machine: machine.map(str::to_owned),
            login: login.map(str::to_owned),
            password: Some(Secret::new(password.to_owned())),
        }
    }

    #[test]
    fn entries_are_read_in_their_order() {
        let expected = [
            entry(Some("a"), Some("u"), "p"),
            entry(Some("b"), Some("x y"), "q\"\\"),
            entry(Some("d"), None, "only"),
            entry(None, Some("anonymous"), "me@"),
        ];
        assert_eq!(parse_netrc(TEXT), expected);
    }

    #[test]
    fn the_first_that_fits_is_found_and_a_file_that_others_read_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("netrc");
        assert_eq!(find_in_netrc(&path, "a", None), Ok(None));
        fs::write(&path, TEXT).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("permissions");
        assert_eq!(find_in_netrc(&path, "a", None).unwrap_err().errno, Errno::EACCES);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permissions");
        let found = |host, user| find_in_netrc(&path, host, user).expect("readable");
        assert_eq!(found("A", None), Some(entry(Some("a"), Some("u"), "p")));
        assert_eq!(found("a", Some("v")), None);
        assert_eq!(found("z", None), Some(entry(None, Some("anonymous"), "me@")));
    }

    proptest! {
        #[test]
        fn any_text_has_entries(text: String) {
            let _ = parse_netrc(&text);
        }
    }
}
