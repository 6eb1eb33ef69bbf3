// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs see of a directory of the host, to compare it with another one.

use rustix::fs::{SeekFrom, lgetxattr, llistxattr, seek};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How much of it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// What a copy has in common with the original.
    Copy,
    /// All that two mounts of one image have in common: also inode numbers, blocks and all times.
    Image,
    /// The same, and where there are holes: that of some types is known to newer kernels only.
    Holes,
}

/// Everything below a directory: a line for each path.
#[derive(Debug, PartialEq, Eq)]
pub struct View(BTreeMap<PathBuf, String>);

/// The unit in which content is compared, in bytes: one of zeroes is as good as a hole.
const UNIT: usize = 4096;
/// How much is read at once, in bytes.
const PIECE: usize = 1 << 20;
/// The most differences that are reported.
const TOLD: usize = 20;

impl View {
    /// Looks at everything below `root`, without `lost+found`.
    pub fn of(root: &Path, scope: Scope) -> Self {
        let mut lines = BTreeMap::new();
        // The first name of each file that has several.
        let mut known: HashMap<(u64, u64), PathBuf> = HashMap::new();
        let mut found = vec![PathBuf::new()];
        while let Some(path) = found.pop() {
            let whole = root.join(&path);
            let metadata = fs::symlink_metadata(&whole).unwrap_or_else(|error| panic!("{whole:?}: {error}"));
            if metadata.is_dir() {
                let mut names: Vec<PathBuf> = fs::read_dir(&whole)
                    .unwrap_or_else(|error| panic!("{whole:?}: {error}"))
                    .map(|entry| path.join(entry.unwrap().file_name()))
                    .filter(|path| path != Path::new("lost+found"))
                    .collect();
                names.sort_by(|one, other| other.cmp(one));
                found.extend(names);
            }
            let mut line = described(&whole, &metadata, scope);
            if metadata.nlink() > 1 && !metadata.is_dir() {
                let twin = known.entry((metadata.dev(), metadata.ino())).or_insert_with(|| path.clone());
                write!(line, " also {twin:?}").unwrap();
            }
            lines.insert(path, line);
        }
        View(lines)
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// # Panics
    /// When the other one differs; tells where.
    pub fn must_equal(&self, other: &View, what: &str) {
        let paths = self.0.keys().chain(other.0.keys().filter(|path| !self.0.contains_key(*path)));
        let differing: Vec<String> = paths
            .filter(|path| self.0.get(*path) != other.0.get(*path))
            .map(|path| format!("{path:?}:\n  {:?}\n  {:?}", self.0.get(path), other.0.get(path)))
            .collect();
        let told = differing.iter().take(TOLD).cloned().collect::<Vec<_>>().join("\n");
        assert!(differing.is_empty(), "{what}: {} paths differ\n{told}", differing.len());
    }
}

fn described(path: &Path, metadata: &fs::Metadata, scope: Scope) -> String {
    let (mode, uid, gid) = (metadata.mode(), metadata.uid(), metadata.gid());
    let mut line = format!("{mode:o} {uid}:{gid} changed {}.{}", metadata.mtime(), metadata.mtime_nsec());
    if !metadata.is_dir() || scope != Scope::Copy {
        write!(line, " links {} size {}", metadata.nlink(), metadata.size()).unwrap();
    }
    if scope != Scope::Copy {
        let times = [metadata.atime(), metadata.atime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        write!(line, " ino {} blocks {} times {times:?}", metadata.ino(), metadata.blocks()).unwrap();
    }
    let kind = metadata.file_type();
    if kind.is_block_device() || kind.is_char_device() {
        write!(line, " device {:x}", metadata.rdev()).unwrap();
    } else if kind.is_symlink() {
        write!(line, " to {:?}", fs::read_link(path).unwrap()).unwrap();
    } else if kind.is_file() {
        let file = File::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let ranges = data(&file, metadata.size());
        write!(line, " content {:x}", content(&file, &ranges)).unwrap();
        if scope == Scope::Holes {
            write!(line, " data {ranges:?}").unwrap();
        }
    }
    for (name, value) in attributes(path) {
        write!(line, " {name}={value:x}").unwrap();
    }
    line
}

/// Names and hashes of extended attributes, access control lists among them. Those that XFS shows in its own form too are
/// there once.
fn attributes(path: &Path) -> BTreeMap<String, u64> {
    let mut buffer = vec![0_u8; 1 << 16];
    let length = llistxattr(path, &mut buffer).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let names: Vec<Vec<u8>> = buffer[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty() && !name.starts_with(b"trusted.SGI_ACL_"))
        .map(<[u8]>::to_vec)
        .collect();
    let value = |name: &Vec<u8>| {
        let mut value = vec![0_u8; 1 << 16];
        let length = lgetxattr(path, name.as_slice(), &mut value[..])
            .unwrap_or_else(|error| panic!("{path:?}: {error}"));
        (std::ffi::OsStr::from_bytes(name).display().to_string(), hash(&value[..length]))
    };
    names.iter().map(value).collect()
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Where a file says that it has no holes.
fn data(file: &File, size: u64) -> Vec<(u64, u64)> {
    let (mut ranges, mut place) = (Vec::new(), 0);
    while place < size {
        let Ok(start) = seek(file, SeekFrom::Data(place)) else { break };
        place = seek(file, SeekFrom::Hole(start)).expect("the end of what is there");
        ranges.push((start, place));
    }
    ranges
}

/// A hash of all that is not zero, with its place.
fn content(file: &File, ranges: &[(u64, u64)]) -> u64 {
    let (mut hasher, mut buffer) = (DefaultHasher::new(), vec![0; PIECE]);
    for &(start, end) in ranges {
        let mut place = start - start % UNIT as u64;
        while place < end {
            let wanted = (end - place).min(PIECE as u64) as usize;
            file.read_exact_at(&mut buffer[..wanted], place).expect("what a file has can be read");
            for (number, unit) in buffer[..wanted].chunks(UNIT).enumerate() {
                if let Some(last) = unit.iter().rposition(|&byte| byte != 0) {
                    hasher.write_u64(place + (number * UNIT) as u64);
                    hasher.write(&unit[..=last]);
                }
            }
            place += wanted as u64;
        }
    }
    hasher.finish()
}
