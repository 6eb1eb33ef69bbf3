// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of the changes.

use super::changes::{Became, Change};
use super::overlay::failed;
use super::shown;
use crate::status::Failure;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// What is at or below some paths, with the directories that have to be made for it.
pub struct Only(Vec<PathBuf>);

impl Only {
    /// What is at or below these paths, all if there are none. Symbolic links in them are followed, but in their last names.
    ///
    /// # Errors
    /// A sentence about a path that cannot be looked at.
    pub fn these(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self, Failure> {
        let real = |path: &Path| resolved(path).map_err(|error| failed("cannot look at", path, error));
        let paths = paths.into_iter().map(|path| real(path.as_ref()));
        Ok(Only(paths.collect::<Result<_, _>>()?))
    }

    /// Whether a change is one of them.
    pub fn has(&self, change: &Change) -> bool {
        let makes_dir = change.upper.as_ref().is_some_and(|(_, mine)| mine.is_dir())
            && [Became::Added, Became::Replaced].contains(&change.became);
        let is_above = |path: &Path| makes_dir && path.starts_with(&change.path);
        self.0.is_empty() || self.0.iter().any(|path| change.path.starts_with(path) || is_above(path))
    }

    /// The paths.
    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// Whether a file is at or below one of them.
    pub(super) fn has_below(&self, file: &Path) -> bool {
        self.0.iter().any(|path| file.starts_with(path))
    }

    /// A sentence about each path that nothing was changed at or below.
    pub fn unfound<'a>(&'a self, changes: &'a [Change]) -> impl Iterator<Item = String> + 'a {
        let is_missing = |path: &&PathBuf| !changes.iter().any(|change| change.path.starts_with(path));
        self.0.iter().filter(is_missing).map(|path| format!("no change is at or below '{}'", shown(path)))
    }

    /// Whether there is a change at or below each path.
    ///
    /// # Errors
    /// The sentences of [`Only::unfound`].
    pub fn all_found(&self, changes: &[Change]) -> Result<(), Failure> {
        let unfound: Vec<String> = self.unfound(changes).collect();
        if unfound.is_empty() { Ok(()) } else { Err(Failure::new(unfound.join("; "))) }
    }
}

/// The path by which an overlay knows a file, which need not be there.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let (Some(mut above), Some(name)) = (path.parent(), path.file_name()) else { return path.canonicalize() };
    let mut missing: Vec<OsString> = vec![name.to_owned()];
    loop {
        match (above.canonicalize(), above.parent(), above.file_name()) {
            (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(name.to_owned());
                above = parent;
            }
            (real, ..) => return Ok(missing.iter().rev().fold(real?, |path, name| path.join(name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_is_known_by_its_real_directories_also_where_nothing_is() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir(dir.join("real")).unwrap();
        symlink("real", dir.join("link")).unwrap();
        for (given, known) in [
            ("link/x/y/", "real/x/y"),
            ("link", "link"),
            ("real/../link/.", "link"),
            ("link/../none", "none"),
            ("real", "real"),
        ] {
            assert_eq!(resolved(&dir.join(given)).unwrap(), dir.join(known), "{given}");
        }
        assert_eq!(resolved(Path::new("/")).unwrap(), Path::new("/"));
        assert!(resolved(&dir.join("none/../x")).is_err());
    }
}
