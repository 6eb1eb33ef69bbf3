// SPDX-License-Identifier: MIT OR Apache-2.0
//! In what two files differ.

use super::origin::Origin;
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// How much content is compared at once, in bytes.
const PIECE: usize = 64 << 10;
/// The longest value of an extended attribute, and the longest list of names, in bytes (xattr(7)).
const ATTRIBUTE_MAX: usize = 64 << 10;

/// What is compared.
pub struct Pair<'a> {
    /// The file in the overlay.
    pub upper: (&'a Path, &'a Metadata),
    /// The real file, of the same kind.
    pub real: (&'a Path, &'a Metadata),
    /// The version of the real file that was hidden, where that is known.
    pub origin: Option<&'a Origin>,
}

/// The extended attributes of a file which the overlay can keep.
///
/// # Errors
/// Those of llistxattr(2) and lgetxattr(2).
pub fn attributes(path: &Path) -> io::Result<BTreeMap<CString, Vec<u8>>> {
    let names = match given(|buffer| llistxattr(path, buffer)) {
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(BTreeMap::new()),
        names => names?,
    };
    let names =
        names.split_inclusive(|&byte| byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    let mut all = BTreeMap::new();
    for name in names.filter(|name| counts(name.to_bytes())) {
        match given(|buffer| lgetxattr(path, name, buffer)) {
            Ok(value) => drop(all.insert(name.to_owned(), value)),
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(all)
}

/// Labels of the system are made anew for a new file, and users without privileges set none.
fn counts(name: &[u8]) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    match name.split(|&byte| byte == b'.').next() {
        Some(b"user" | b"system") => !name.starts_with(b"user.overlay."),
        Some(b"trusted") => is_root && !name.starts_with(b"trusted.overlay."),
        Some(b"security") => is_root && name == b"security.capability",
        _ => false,
    }
}

/// What one of the calls gives.
fn given(ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; ATTRIBUTE_MAX];
    let length = ask(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

impl Pair<'_> {
    /// The names of what differs.
    ///
    /// # Errors
    /// Those of reading the files.
    pub fn differences(&self) -> io::Result<Vec<&'static str>> {
        let (upper, real) = (self.upper.1, self.real.1);
        let (is_dir, is_link) = (upper.is_dir(), upper.is_symlink());
        let mut all = Vec::new();
        if !is_dir && self.content_differs()? {
            all.push("content");
        }
        // The program did not change a directory that is as it was copied.
        let is_as_copied = is_dir && self.origin.is_some_and(|origin| origin.is_dir_of(upper));
        let is_of_others = is_of_others(upper, real);
        let differ = |mine: fn(&Metadata) -> u32| mine(upper) != mine(real) && !is_as_copied;
        if !is_link
            && differ(|found| found.mode() & 0o7777)
            && !(is_dir && upper.uid() != real.uid() && is_of_others)
        {
            all.push("mode");
        }
        if (differ(Metadata::uid) || differ(Metadata::gid)) && !is_of_others {
            all.push("owner");
        }
        if attributes(self.upper.0)? != attributes(self.real.0)? {
            all.push("xattr");
        }
        let time = |found: &Metadata| (found.mtime(), found.mtime_nsec());
        if !is_dir && !is_link && time(upper) != time(real) {
            all.push("time");
        }
        Ok(all)
    }

    fn content_differs(&self) -> io::Result<bool> {
        let ((upper, mine), (real, theirs)) = (self.upper, self.real);
        let kind = mine.file_type();
        if kind.is_symlink() {
            return Ok(fs::read_link(upper)? != fs::read_link(real)?);
        }
        if kind.is_char_device() || kind.is_block_device() {
            return Ok(mine.rdev() != theirs.rdev());
        }
        if !kind.is_file() {
            return Ok(false);
        }
        if mine.size() != theirs.size() {
            return Ok(true);
        }
        match (File::open(upper), File::open(real)) {
            (Ok(upper), Ok(real)) => Ok(!is_same(upper, real)?),
            // Users may replace what they cannot read.
            (Err(error), _) | (_, Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Ok(true),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

/// Whether a file belongs to a user or a group that this user, who has no privileges, cannot give files to: its copy belongs to this user
/// instead.
pub fn is_of_others(upper: &Metadata, real: &Metadata) -> bool {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() || upper.uid() != user.as_raw() {
        return false;
    }
    let is_mine = |gid| {
        let groups = rustix::process::getgroups().unwrap_or_default();
        gid == group.as_raw() || groups.iter().any(|known| known.as_raw() == gid)
    };
    real.uid() != upper.uid() || (upper.gid() == group.as_raw() && !is_mine(real.gid()))
}

fn is_same(one: File, other: File) -> io::Result<bool> {
    let (mut one, mut other) =
        (io::BufReader::with_capacity(PIECE, one), io::BufReader::with_capacity(PIECE, other));
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let length = left.len().min(right.len());
        if left[..length] != right[..length] {
            return Ok(false);
        }
        if length == 0 {
            return Ok(left.len() == right.len());
        }
        one.consume(length);
        other.consume(length);
    }
}
