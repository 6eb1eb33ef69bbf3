// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks as files of one directory: `TREE/NAME`, both numbers; bounded for all processes that use it together.
//!
//! The file `usage` holds how much there is, and is locked to add or remove. Room is noted before it is used, so that
//! a process that dies leaves too much noted and never too little; a process that finds no room left counts what there really is. A
//! block is written under the name `new` and then renamed. Nothing is written through to the disk: the reader of a block finds
//! out whether all of it is there.

use outrigger_core::hash::fnv1a;
use outrigger_core::{Errno as Code, Error, lock};
use outrigger_host::{PrivateDir, own_dir};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, flock,
    fstat, futimens, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, Result, pread, pwrite};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The file with how much there is.
const USAGE: &str = "usage";
/// What a block is called until it is complete.
const NEW: &str = "new";
/// Files take room in units of this, in bytes.
const UNIT: u64 = 4096;
/// One file for so many bytes of room, at most: file systems have about twice as many.
const BYTES_PER_FILE: u64 = 32 << 10;
/// What makes room leaves so much of it, in eighths.
const KEPT: u64 = 7;

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl Usage {
    fn plus(self, other: Usage) -> Usage {
        Usage { bytes: self.bytes.saturating_add(other.bytes), files: self.files.saturating_add(other.files) }
    }

    fn minus(self, other: Usage) -> Usage {
        Usage { bytes: self.bytes.saturating_sub(other.bytes), files: self.files.saturating_sub(other.files) }
    }

    /// What a file of `len` bytes takes.
    fn of_file(len: u64) -> Usage {
        Usage { bytes: len.div_ceil(UNIT).saturating_mul(UNIT), files: 1 }
    }

    fn fits(self, most: Usage) -> bool {
        self.bytes <= most.bytes && self.files <= most.files
    }

    fn eighths(self, count: u64) -> Usage {
        Usage { bytes: self.bytes / 8 * count, files: self.files / 8 * count }
    }
}

/// A file with a block, as found in the directory.
struct Found {
    /// When it was used last, in nanoseconds.
    used: i128,
    tree: u64,
    name: u64,
    len: u64,
}

/// The blocks of one tree in a directory with those of others.
pub(crate) struct Store {
    root: OwnedFd,
    /// The tree's number.
    tree: u64,
    /// Its directory; another one when it was removed.
    own: Mutex<Arc<OwnedFd>>,
    most: Usage,
}

/// The file `usage`, locked as long as this lives.
struct Ledger(OwnedFd);

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

fn number(name: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.len() == 16)?;
    u64::from_str_radix(text, 16).ok().filter(|&number| hex(number) == text)
}

impl Store {
    /// What is called `tree`, in the directory `what` of this program below `caches` (`$XDG_CACHE_HOME`), which is open to no other
    /// user and where all together take at most `bytes`.
    ///
    /// # Errors
    /// Why there is no such directory, or `EPERM` where others could look into it.
    pub(crate) fn below(caches: &Path, what: &str, tree: &str, bytes: u64) -> outrigger_core::Result<Self> {
        let dir = PrivateDir::open(caches, &["outrigger", what]).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Code::EPERM.because(error.to_string()),
            kind => Error::from(io::Error::from(kind)).errno.because(error.to_string()),
        })?;
        Ok(Store::open(dir.into(), tree, bytes).map_err(io::Error::from)?)
    }

    /// The blocks of what is called `tree`, in the directory `root`, where all together take at most `bytes`.
    pub(super) fn open(root: OwnedFd, tree: &str, bytes: u64) -> Result<Self> {
        let tree = fnv1a(tree.bytes());
        let own = Mutex::new(Arc::new(own_dir(&root, &hex(tree))?));
        // As many as room can be made for, however few bytes there are.
        let files = (bytes / BYTES_PER_FILE).max(8);
        Ok(Store { root, tree, own, most: Usage { bytes, files } })
    }

    /// The size of the largest file that is put there, in bytes.
    pub(crate) fn largest(&self) -> u64 {
        self.most.eighths(KEPT).bytes / UNIT * UNIT
    }

    /// The content of a file of at most `len_max` bytes, if it is there.
    pub(crate) fn read(&self, name: u64, len_max: u64) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(openat(self.own(), hex(name), flags, Mode::empty()).ok()?);
        let stat = fstat(&file).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size as u64 > len_max {
            return None;
        }
        let mut content = Vec::with_capacity(stat.st_size as usize);
        (&file).take(len_max).read_to_end(&mut content).ok()?;
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // One that cannot be marked as used only goes earlier.
        let _ = futimens(&file, &Timestamps { last_access: omit, last_modification: now });
        Some(content)
    }

    /// How long a file is, if it is there.
    pub(crate) fn len(&self, name: u64) -> Option<u64> {
        let stat = statat(self.own(), hex(name), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then_some(stat.st_size as u64)
    }

    /// Puts a file there, in place of one with this name.
    ///
    /// # Errors
    /// `ENOSPC` and `EDQUOT` when the disk is full; room was made then, and what was to be put there is not.
    pub(crate) fn write(&self, name: u64, content: &[u8]) -> Result<()> {
        let cost = Usage::of_file(content.len() as u64);
        if !cost.fits(self.most.eighths(KEPT)) {
            return Ok(());
        }
        let ledger = self.lock()?;
        let mut usage = ledger.read().unwrap_or(self.most);
        if !usage.plus(cost).fits(self.most) {
            usage = self.shrink(&ledger, |now| {
                if now.plus(cost).fits(self.most) { now } else { self.most.eighths(KEPT) }
            })?;
        }
        let replaced = self.len(name).map_or(Usage::default(), Usage::of_file);
        let written = ledger.write(usage.plus(cost)).and_then(|()| match self.put(name, content) {
            // The directory was removed.
            Err(Errno::NOENT) => {
                *lock(&self.own) = Arc::new(own_dir(&self.root, &hex(self.tree))?);
                self.put(name, content)
            }
            Ok(()) => ledger.write(usage.plus(cost).minus(replaced)),
            other => other,
        });
        if let Err(Errno::NOSPC | Errno::DQUOT) = written {
            self.shrink(&ledger, |now| now.eighths(4))?;
        }
        written
    }

    /// Removes all blocks of the tree.
    pub(crate) fn clear(&self) -> Result<()> {
        let ledger = self.lock()?;
        let mut found = Vec::new();
        self.scan_tree(self.tree, &mut found)?;
        found.iter().for_each(|found| self.remove(found));
        let rest = self.scan()?;
        ledger.write(sum(&rest))
    }

    /// A file of the tree beside those that are counted, made if there is none.
    pub(crate) fn beside(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(self.own(), name, flags, Mode::RUSR | Mode::WUSR)
    }

    /// How much there is of all trees, as noted.
    pub(crate) fn usage(&self) -> Usage {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.root, USAGE, flags, Mode::empty());
        file.ok().and_then(|file| Ledger(file).read()).unwrap_or_default()
    }

    fn own(&self) -> Arc<OwnedFd> {
        Arc::clone(&lock(&self.own))
    }

    fn lock(&self) -> Result<Ledger> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.root, USAGE, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(Ledger(file))
    }

    /// Writes a file under another name first.
    fn put(&self, name: u64, content: &[u8]) -> Result<()> {
        let own = self.own();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&*own, NEW, flags, Mode::RUSR | Mode::WUSR)?;
        let written = File::from(file).write_all(content);
        let code = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let put = written.map_err(code).and_then(|()| renameat(&*own, NEW, &*own, hex(name)));
        if put.is_err() {
            let _ = unlinkat(&*own, NEW, AtFlags::empty());
        }
        put
    }

    /// Counts what there is, and removes what was unused for longest until no more is left than `wanted` says of what there is;
    /// answers and notes what is left.
    fn shrink(&self, ledger: &Ledger, wanted: impl Fn(Usage) -> Usage) -> Result<Usage> {
        let mut found = self.scan()?;
        let mut usage = sum(&found);
        let wanted = wanted(usage);
        found.sort_unstable_by_key(|found| found.used);
        for found in &found {
            if usage.fits(wanted) {
                break;
            }
            self.remove(found);
            usage = usage.minus(Usage::of_file(found.len));
        }
        ledger.write(usage)?;
        Ok(usage)
    }

    /// One that cannot be removed is found again.
    fn remove(&self, found: &Found) {
        let _ = unlinkat(&self.root, format!("{}/{}", hex(found.tree), hex(found.name)), AtFlags::empty());
    }

    /// All files with blocks, of all trees.
    fn scan(&self) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.root)? {
            if let Some(tree) = number(entry?.file_name().to_bytes()) {
                self.scan_tree(tree, &mut found)?;
            }
        }
        Ok(found)
    }

    /// The files of one tree. One that was being written when its process died is removed.
    fn scan_tree(&self, tree: u64, found: &mut Vec<Found>) -> Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match openat(&self.root, hex(tree), flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let Some(name) = number(entry.file_name().to_bytes()) else {
                if entry.file_name().to_bytes() == NEW.as_bytes() {
                    let _ = unlinkat(&dir, NEW, AtFlags::empty());
                }
                continue;
            };
            let Ok(stat) = statat(&dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let used = i128::from(stat.st_mtime) * 1_000_000_000 + stat.st_mtime_nsec as i128;
            found.push(Found { used, tree, name, len: stat.st_size as u64 });
        }
        Ok(())
    }
}

fn sum(found: &[Found]) -> Usage {
    found.iter().fold(Usage::default(), |sum, found| sum.plus(Usage::of_file(found.len)))
}

impl Ledger {
    /// What is noted; `None` for what was not written whole.
    fn read(&self) -> Option<Usage> {
        let mut stored = [0; 16];
        let whole = pread(&self.0, &mut stored, 0).ok()? == stored.len();
        let noted = u128::from_le_bytes(stored);
        whole.then_some(Usage { bytes: noted as u64, files: (noted >> 64) as u64 })
    }

    fn write(&self, usage: Usage) -> Result<()> {
        let noted = u128::from(usage.files) << 64 | u128::from(usage.bytes);
        match pwrite(&self.0, &noted.to_le_bytes(), 0)? {
            16 => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, SystemTime};
    use tempfile::TempDir;

    const ROOM: u64 = 64 * BYTES_PER_FILE;

    fn store(dir: &TempDir, tree: &str, bytes: u64) -> Store {
        let root = rustix::fs::open(dir.path(), OFlags::DIRECTORY, Mode::empty()).expect("the directory");
        Store::open(root, tree, bytes).expect("a store")
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        let trees = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
        let files = trees.filter(|path| path.is_dir()).flat_map(|tree| fs::read_dir(tree).expect("a tree"));
        files.map(|entry| entry.expect("an entry").path()).collect()
    }

    /// What there is indeed, and the bound.
    fn must_fit(dir: &TempDir, store: &Store) {
        let found = store.scan().expect("a scan");
        assert_eq!(found.len(), files(dir.path()).len());
        assert!(
            sum(&found).fits(store.most) && sum(&found).bytes <= store.usage().bytes,
            "{:?}",
            sum(&found)
        );
    }

    #[test]
    fn what_was_unused_for_longest_goes_first_in_whatever_tree() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (store(&dir, "one", ROOM), store(&dir, "two", ROOM));
        one.write(7, b"used").expect("written");
        for name in 0..1000 {
            let store = if name % 3 == 0 { &one } else { &two };
            store.write(name + 100, &[1; 5000]).expect("written");
            // Clocks of file systems count in steps: in the order of use.
            let age = Duration::from_secs(100_000 - name);
            let path = dir.path().join(hex(store.tree)).join(hex(name + 100));
            File::open(path).and_then(|file| file.set_modified(SystemTime::now() - age)).expect("older");
            assert_eq!(one.read(7, 100).as_deref(), Some(&b"used"[..]));
            must_fit(&dir, store);
        }
        assert_eq!((one.read(100, 9000), two.read(101, 9000)), (None, None));
        assert!(one.read(100 + 999, 9000).is_some() && two.read(100 + 998, 9000).is_some());
    }

    #[test]
    fn what_a_process_left_that_died_is_found_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = store(&dir, "one", ROOM);
        own.write(1, b"abc").expect("written");
        let tree = dir.path().join(hex(own.tree));
        for noted in [&b""[..], b"torn", &[0xff; 16], &[0xff; 100]] {
            fs::write(dir.path().join(USAGE), noted).expect("noted");
            fs::write(tree.join(NEW), b"half of a").expect("left behind");
            own.write(2, b"def").expect("written");
            must_fit(&dir, &own);
            assert_eq!(own.usage(), Usage { bytes: 2 * UNIT, files: 2 });
            assert!(!tree.join(NEW).exists());
            assert_eq!(
                (own.read(1, 9).as_deref(), own.read(2, 9).as_deref()),
                (Some(&b"abc"[..]), Some(&b"def"[..]))
            );
            fs::remove_file(tree.join(hex(2))).expect("removed");
        }
    }

    #[test]
    fn a_file_that_takes_the_place_of_another_one_counts_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = store(&dir, "one", ROOM);
        for len in [10, 9000, 5000] {
            own.write(1, &vec![1; len]).expect("written");
            assert_eq!(own.usage(), sum(&own.scan().expect("a scan")), "{len} bytes");
        }
    }

    #[test]
    fn what_is_no_block_is_neither_read_nor_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = store(&dir, "one", ROOM);
        let (tree, secret) = (dir.path().join(hex(own.tree)), dir.path().join("secret"));
        fs::write(&secret, b"secret").expect("written");
        std::os::unix::fs::symlink(&secret, tree.join(hex(1))).expect("a link");
        fs::create_dir(tree.join(hex(2))).expect("a directory");
        std::os::unix::fs::symlink(dir.path(), dir.path().join(hex(9))).expect("a link");
        assert!(own.read(1, 100).is_none() && own.read(2, 100).is_none());
        own.write(1, b"abc").expect("the link is replaced");
        assert_eq!((own.read(1, 100).as_deref(), own.read(1, 2)), (Some(&b"abc"[..]), None));
        assert!(own.write(2, b"abc").is_err());
        assert_eq!(fs::read(&secret).expect("still there"), b"secret");
        own.shrink(&own.lock().expect("locked"), |_| Usage::default()).expect("emptied");
        assert!(fs::read(&secret).is_ok() && own.read(1, 100).is_none());
    }

    #[test]
    fn one_tree_is_emptied_and_the_other_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (store(&dir, "one", ROOM), store(&dir, "two", ROOM));
        one.write(1, b"abc").expect("written");
        two.write(1, b"def").expect("written");
        one.clear().expect("emptied");
        assert_eq!((one.read(1, 9), two.read(1, 9).as_deref()), (None, Some(&b"def"[..])));
        assert_eq!(two.usage(), Usage { bytes: UNIT, files: 1 });
        fs::remove_dir_all(dir.path().join(hex(one.tree))).expect("removed by somebody");
        one.write(1, b"abc").expect("it is made again");
        assert_eq!(one.read(1, 9).as_deref(), Some(&b"abc"[..]));
    }

    #[test]
    fn several_who_write_at_once_keep_the_bound() {
        let dir = tempfile::tempdir().expect("a directory");
        std::thread::scope(|scope| {
            for writer in 0..4_u64 {
                let dir = &dir;
                scope.spawn(move || {
                    let store = store(dir, ["one", "two"][writer as usize % 2], ROOM);
                    for name in 0..300 {
                        store.write(writer * 1000 + name, &[1; 9000]).expect("written");
                    }
                });
            }
        });
        must_fit(&dir, &store(&dir, "one", ROOM));
    }
}
