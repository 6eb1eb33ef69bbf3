// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which trees the user names, and where: `--map`, and the file `mounts`.

use super::Shown;
use crate::status::Failure;
use outrigger_core::Error;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// `PREFIX=LOCATION`.
pub(super) fn split(map: &OsStr) -> Result<(PathBuf, OsString), Failure> {
    let bytes = map.as_bytes();
    let Some(at) = bytes.iter().position(|&byte| byte == b'=') else {
        return Err(Failure::serious(format!("--map {}: PREFIX=LOCATION expected", map.display())));
    };
    let (prefix, location) = (OsStr::from_bytes(&bytes[..at]), OsString::from_vec(bytes[at + 1..].to_vec()));
    Ok((PathBuf::from(prefix), location))
}

/// A prefix, if programs can find it.
pub(super) fn checked(prefix: &Path) -> Result<PathBuf, Failure> {
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !prefix.is_absolute() || prefix == Path::new("/") || !prefix.components().all(is_plain) {
        return Err(Failure::serious(format!(
            "'{}': a prefix is an absolute path without '..', and not the root",
            prefix.display()
        )));
    }
    // Without what does not count, as two slashes.
    Ok(prefix.components().collect())
}

/// The file, if it is there. Where this user may not look, there is no file of this user's. With another error it may be there, and without
/// it the program would work on other files than the user means.
pub(super) fn there(file: PathBuf) -> Result<Option<PathBuf>, Failure> {
    match file.try_exists() {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
            Err(Failure::serious(format!("'{}': {}", file.display(), Error::from(error))))
        }
        found => Ok(found.unwrap_or(false).then_some(file)),
    }
}

/// The lines of a file with prefixes.
pub(super) fn read(file: &Path) -> Result<Vec<Shown>, Failure> {
    let shown = file.display();
    let text = fs::read_to_string(file)
        .map_err(|error| Failure::serious(format!("'{shown}': {}", Error::from(error))))?;
    let mut lines: Vec<Shown> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let origin = format!("{shown}:{}", number + 1);
        let wrong = |why: String| Failure::serious(format!("{origin}: {why}"));
        let words = shell_words::split(line).map_err(|error| wrong(error.to_string()))?;
        let (prefix, location, options) = match &words[..] {
            [] => continue,
            [prefix, location] => (prefix, location, String::new()),
            [prefix, location, options] => (prefix, location, options.clone()),
            _ => return Err(wrong("PREFIX LOCATION [OPTION,...] expected".to_owned())),
        };
        let prefix = checked(Path::new(prefix)).map_err(|failure| wrong(failure.to_string()))?;
        if lines.iter().any(|line| line.prefix == prefix) {
            return Err(wrong(format!("a second '{}'", prefix.display())));
        }
        lines.push(Shown { prefix, location: location.into(), options, origin });
    }
    Ok(lines)
}
