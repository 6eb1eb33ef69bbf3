// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small tree that every type can hold.

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::RenameFlags;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The tree in an image.
pub struct Tree<'a>(&'a Direct);

/// Names and sizes of the regular files, in bytes.
fn files() -> Vec<(PathBuf, usize)> {
    let mut files: Vec<(PathBuf, usize)> =
        (0..40).map(|number| (format!("many/file {number}").into(), number * 37)).collect();
    files.extend([("dir/file".into(), 300_000), ("dir/empty".into(), 0), ("dir/sub/moved".into(), 5_000)]);
    files
}

/// What is in the file of this size at this path.
fn content(path: &Path, size: usize) -> Vec<u8> {
    let first = path.as_os_str().len();
    (0..size).map(|at| ((first + at * 7) >> 3) as u8).collect()
}

impl<'a> Tree<'a> {
    /// The tree of `direct`.
    pub fn new(direct: &'a Direct) -> Self {
        Tree(direct)
    }

    fn write(&self, path: &Path, data: &[u8]) {
        let file = self.0.open(path, Flags::NEW, 0o644).expect("create");
        assert_eq!(self.0.write_at(file, 0, data), Ok(data.len()), "{}", path.display());
        self.0.close(file).expect("close");
    }

    /// Makes it, with detours: what is made is also renamed, cut and removed.
    pub fn make(&self) {
        for dir in ["dir", "dir/sub", "many", "gone"] {
            self.0.mkdir(Path::new(dir), 0o755).expect("mkdir");
        }
        for (path, size) in files().into_iter().filter(|(path, _)| !path.ends_with("moved")) {
            self.write(&path, &content(&path, size));
        }
        let moved = Path::new("dir/sub/moved");
        self.write(Path::new("gone/first"), &[content(moved, 5_000), vec![9; 3_000]].concat());
        self.0.truncate(Path::new("gone/first"), 5_000).expect("truncate");
        self.0.rename(Path::new("gone/first"), moved, RenameFlags::empty()).expect("rename");
        self.write(Path::new("gone/second"), b"not for long");
        self.0.unlink(Path::new("gone/second")).expect("unlink");
        self.0.rmdir(Path::new("gone")).expect("rmdir");
    }

    /// All of it is there and nothing else is in its directories.
    pub fn must_be_there(&self) {
        for (path, size) in files() {
            let file = self.0.open(&path, Flags::READ, 0).expect("open");
            assert!(self.0.read_at(file, 0, size + 1) == Ok(content(&path, size)), "{}", path.display());
            self.0.close(file).expect("close");
        }
        for dir in ["dir", "dir/sub", "many"] {
            let mut names = self.names(Path::new(dir));
            names.sort();
            let inside = files().into_iter().map(|(path, _)| path).chain(["dir/sub".into()]);
            let mut expected: Vec<PathBuf> =
                inside.filter(|path| path.parent() == Some(Path::new(dir))).collect();
            expected.sort();
            assert_eq!(names, expected);
        }
        assert!(self.0.stat(Path::new("gone")).is_err());
    }

    fn names(&self, dir: &Path) -> Vec<PathBuf> {
        let Ok(open) = self.0.open(dir, Flags::READ | Flags::DIRECTORY, 0) else { return Vec::new() };
        let (mut names, mut cookie) = (Vec::new(), 0);
        while let Ok(listing) = self.0.read_dir(open, cookie, 4096) {
            let name = |bytes: &[u8]| dir.join(std::ffi::OsStr::from_bytes(bytes));
            names.extend(listing.entries.iter().map(|entry| name(&entry.name)));
            match listing.entries.last() {
                Some(last) if !listing.eof => cookie = last.cookie,
                _ => break,
            }
        }
        let _ = self.0.close(open);
        names
    }
}
