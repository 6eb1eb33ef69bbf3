// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files under test: those of a repository that git does not ignore, or a few made up by a unit test.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use ignore::WalkBuilder;

/// Files over this size are data (fuzz corpora, archives), not text that a rule could judge.
const TEXT_LIMIT: u64 = 1 << 20;
/// Where inputs that fuzzing found are kept: data, even when they happen to be text.
const CORPUS: &str = "fuzz/corpus/";

/// A set of files, by path relative to the repository, with their text where they have one.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Reads every file below `root` that no `.gitignore` excludes, hidden ones included.
    ///
    /// # Errors
    /// When a directory or file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        let walk = WalkBuilder::new(root)
            .hidden(false)
            .require_git(false)
            .git_global(false)
            .git_exclude(false)
            .parents(false)
            .filter_entry(|entry| entry.file_name() != ".git")
            .build();
        for entry in walk {
            let entry = entry?;
            let is_dir = entry.file_type().is_some_and(|kind| kind.is_dir());
            let Some(path) = entry.path().strip_prefix(root)?.to_str().filter(|_| !is_dir) else { continue };
            let text = if path.starts_with(CORPUS) {
                None
            } else {
                read_text(entry.path()).with_context(|| format!("cannot read {path}"))?
            };
            tree.files.insert(path.to_owned(), text);
        }
        Ok(tree)
    }

    /// A tree of the given paths and texts.
    #[cfg(test)]
    pub fn from_files(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect();
        Self { files }
    }

    /// How many files there are, text or not.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// The text of `path`, if there is such a file and it is text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Whether `path` is a file, or a directory with a file below it. The empty path is the repository itself.
    pub fn exists(&self, path: &str) -> bool {
        let below = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.keys().any(|known| known.starts_with(&below))
    }

    /// Every text file as (path, text), sorted by path.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The text files whose name ends in `.` + `extension`.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts()
            .filter(move |(path, _)| Path::new(path).extension().is_some_and(|found| found == extension))
    }
}

/// The text of a file, or `None` for what is no text: symlinks, big files, bytes that are not UTF-8.
fn read_text(path: &Path) -> Result<Option<String>> {
    let metadata = path.symlink_metadata()?;
    if !metadata.is_file() || metadata.len() > TEXT_LIMIT {
        return Ok(None);
    }
    Ok(String::from_utf8(std::fs::read(path)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_hidden_files_and_respects_gitignore() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            (".gitignore", "target/\n"),
            (".ci/run", "#!/bin/sh\n"),
            ("target/debug/junk.rs", "junk"),
            ("docs/A.md", "text"),
            ("fuzz/corpus/wire/1", "data"),
            (".git/config", "junk"),
        ] {
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        std::fs::write(dir.path().join("docs/data.bin"), [0xff, 0xfe]).unwrap();
        let tree = Tree::read(dir.path()).unwrap();
        let paths: Vec<&str> = tree.files.keys().map(String::as_str).collect();
        assert_eq!(paths, [".ci/run", ".gitignore", "docs/A.md", "docs/data.bin", "fuzz/corpus/wire/1"]);
        assert_eq!(tree.text("fuzz/corpus/wire/1"), None);
        assert_eq!(tree.text("docs/data.bin"), None);
        assert_eq!(tree.text("docs/A.md"), Some("text"));
    }

    #[test]
    fn directories_exist_when_a_file_is_below() {
        let tree = Tree::from_files(&[("docs/img/a.svg", "")]);
        for (path, expected) in
            [("docs", true), ("docs/img", true), ("docs/im", false), ("", true), ("doc", false)]
        {
            assert_eq!(tree.exists(path), expected, "{path}");
        }
    }
}
