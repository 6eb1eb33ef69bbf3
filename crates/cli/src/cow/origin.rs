// SPDX-License-Identifier: MIT OR Apache-2.0
//! Versions of real files that the overlay hides, a line each:
//!
//! ```text
//! copy|hide INODE MODE LINKS UID GID SIZE MTIME CTIME PATH [SYSTEM]
//! ```
//!
//! SYSTEM is the number of the file system (`f_fsid`, statvfs(3)) that a directory is on; it is missing where the system gives none. A commit
//! refuses a directory that is on another file system.
//!
//! A copy counts in the version it was made of last. What has no copy counts in the version that was hidden first. A line that a power
//! failure took leaves a file of unknown version, which is a conflict.

use super::{read, written};
use outrigger_core::{Attr, Name, Result, Time, lock};
use outrigger_layer_union::Hides;
use rustix::fs::{major, minor, statvfs};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What tells one version of a file from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    ino: u64,
    mode: u32,
    nlink: u64,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

/// What is known of a real file that was hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    version: Version,
    /// Whether there is a copy of it, or was.
    pub copied: bool,
    /// The number of the file system, of a directory.
    system: Option<u64>,
}

impl Version {
    fn of_attr(attr: &Attr) -> Self {
        let time = |time: Time| (time.secs, time.nanos);
        Version {
            ino: attr.ino,
            mode: attr.mode,
            nlink: attr.nlink.into(),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            mtime: time(attr.mtime),
            ctime: time(attr.ctime),
        }
    }

    /// That of a file.
    pub fn of(found: &Metadata) -> Self {
        Version {
            ino: found.ino(),
            mode: found.mode(),
            nlink: found.nlink(),
            uid: found.uid(),
            gid: found.gid(),
            size: found.size(),
            mtime: (found.mtime(), found.mtime_nsec() as u32),
            ctime: (found.ctime(), found.ctime_nsec() as u32),
        }
    }

    fn line(&self) -> String {
        let Version { ino, mode, nlink, uid, gid, size, mtime, ctime } = self;
        let time = |(secs, nanos): &(i64, u32)| format!("{secs}.{nanos:09}");
        format!("{ino} {mode:o} {nlink} {uid} {gid} {size} {} {}", time(mtime), time(ctime))
    }

    fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut word = || words.next();
        let time = |text: &str| {
            let (secs, nanos) = text.split_once('.')?;
            Some((secs.parse().ok()?, nanos.parse().ok()?))
        };
        Some(Version {
            ino: word()?.parse().ok()?,
            mode: u32::from_str_radix(word()?, 8).ok()?,
            nlink: word()?.parse().ok()?,
            uid: word()?.parse().ok()?,
            gid: word()?.parse().ok()?,
            size: word()?.parse().ok()?,
            mtime: time(word()?)?,
            ctime: time(word()?)?,
        })
    }
}

impl Origin {
    /// The inode number of a file that was copied, and has no other names.
    pub fn copied_alone(&self) -> Option<u64> {
        (self.copied && self.version.nlink == 1).then_some(self.version.ino)
    }

    /// Whether a real file is still what it was. Names in a directory count for themselves. Where a file has several names, taking
    /// one changes its time.
    pub fn is_still(&self, now: &Metadata) -> bool {
        let (then, now) = (&self.version, Version::of(now));
        let same = (then.mode, then.uid, then.gid) == (now.mode, now.uid, now.gid);
        if now.mode & KIND == DIRECTORY {
            return same;
        }
        let links = then.nlink > 1 || (then.nlink == now.nlink && then.ctime == now.ctime);
        same && links && (then.ino, then.size, then.mtime) == (now.ino, now.size, now.mtime)
    }

    /// Whether this is the file itself, in whatever version.
    pub fn is_file(&self, now: &Metadata) -> bool {
        self.version.ino == now.ino()
    }

    /// Whether the directory at its path is on another file system. What is not known is the same. Numbers that are made of that of the disk
    /// (XFS, F2FS, FAT) may be others after a restart: there the number of the directory counts, too.
    pub fn is_elsewhere(&self, path: &Path) -> bool {
        let (Some(then), Some(system), Ok(now)) = (self.system, system_of(path), path.metadata()) else {
            return false;
        };
        is_another_system(then, system, now.dev()) || system != then && !self.is_file(&now)
    }

    /// Whether a directory in the overlay has the permissions and the owner it was copied with.
    pub fn is_dir_of(&self, copy: &Metadata) -> bool {
        let then = &self.version;
        (then.mode, then.uid, then.gid) == (copy.mode(), copy.uid(), copy.gid())
    }
}

/// Which word of a line is the path.
const PATH_AT: usize = 9;
/// The bits of a mode that say the kind of file.
const KIND: u32 = 0o170_000;

const DIRECTORY: u32 = 0o040_000;

/// All that is known of hidden files. A line that was not completed does not count.
pub fn load(path: &Path) -> io::Result<HashMap<PathBuf, Origin>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let mut known: HashMap<PathBuf, Origin> = HashMap::new();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let mut words = line.split(' ');
        let (Some(how), Some(version)) = (words.next(), Version::parse(&mut words)) else { continue };
        let Some(path) = words.next().and_then(read) else { continue };
        let copied = how == "copy";
        if copied || !known.contains_key(&path) {
            let system = words.next().and_then(|number| u64::from_str_radix(number, 16).ok());
            known.insert(path, Origin { version, copied, system });
        }
    }
    Ok(known)
}

/// The number of the file system of a directory; 0 is that of those that have none.
fn system_of(path: &Path) -> Option<u64> {
    statvfs(path).ok().map(|found| found.f_fsid).filter(|&number| number != 0)
}

/// Whether the number of a file system on this device says that it is another one.
fn is_another_system(then: u64, now: u64, device: u64) -> bool {
    now != then && now != encoded(device)
}

/// The number of a device as Linux writes it into `f_fsid` (`huge_encode_dev`).
fn encoded(device: u64) -> u64 {
    let (major, minor) = (u64::from(major(device)), u64::from(minor(device)));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Takes out what is known of some files, in one step.
pub fn forget(path: &Path, is_one: impl Fn(&Path) -> bool) -> io::Result<()> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text?,
    };
    let file_of = |line: &str| line.split(' ').nth(PATH_AT).and_then(read);
    let stays = |line: &&str| !file_of(line.trim_end()).is_some_and(|file| is_one(&file));
    let part = path.with_extension("part");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text.split_inclusive('\n').filter(stays).collect::<String>().as_bytes())?;
    file.sync_all()?;
    fs::rename(part, path)
}

/// Writes versions down.
pub struct Recorder(Mutex<File>);

impl Recorder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        // A line that was not completed must not take the next one with it.
        if file.seek(SeekFrom::End(0))? > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Recorder(Mutex::new(file)))
    }

    /// Notes that a file in the overlay is a copy of the real one, as it is now.
    ///
    /// # Errors
    /// Those of writing the file.
    pub(super) fn record_copy(&self, path: &Path, real: &Metadata) -> Result<()> {
        self.line("copy", path.as_os_str().as_bytes(), &Version::of(real))
    }

    fn add(&self, how: &str, path: &[Name], attr: &Attr) -> Result<()> {
        let path: Vec<u8> = path.iter().flat_map(|name| [b"/", &name[..]].concat()).collect();
        self.line(how, &path, &Version::of_attr(attr))
    }

    fn line(&self, how: &str, path: &[u8], version: &Version) -> Result<()> {
        let is_dir = version.mode & KIND == DIRECTORY;
        let system = is_dir.then(|| system_of(Path::new(OsStr::from_bytes(path)))).flatten();
        let system = system.map_or_else(String::new, |number| format!(" {number:x}"));
        let line = format!("{how} {} {}{system}\n", version.line(), written(path));
        let mut file = lock(&self.0);
        let before = file.metadata().map_err(because)?.len();
        file.write_all(line.as_bytes()).map_err(|error| {
            // Without space there may be a part of the line.
            let _ = file.set_len(before);
            because(error)
        })
    }
}

fn because(error: io::Error) -> outrigger_core::Error {
    let error = outrigger_core::Error::from(error);
    error.errno.because("the overlay cannot note which version of the file is hidden")
}

impl Hides for Recorder {
    fn copies(&self, path: &[Name], from: &Attr) -> Result<()> {
        self.add("copy", path, from)
    }

    fn hides(&self, path: &[Name], lower: &Attr) -> Result<()> {
        self.add("hide", path, lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Name {
        Name::try_from(name).unwrap()
    }

    #[test]
    fn the_last_copy_and_the_first_hiding_count() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("origins");
        let path = [name("a b"), name("c")];
        let of = |size| Attr { size, mode: 0o100_644, ..Attr::default() };
        let recorder = Recorder::open(&file).unwrap();
        recorder.copies(&path, &of(1)).unwrap();
        recorder.copies(&path, &of(2)).unwrap();
        recorder.hides(&path, &of(3)).unwrap();
        recorder.hides(&path[..1], &of(4)).unwrap();
        recorder.hides(&path[..1], &of(5)).unwrap();
        fs::write(&file, fs::read_to_string(&file).unwrap() + "copy 1 100644 1").unwrap();
        Recorder::open(&file).unwrap().hides(&[name("d")], &of(6)).unwrap();
        let known = load(&file).unwrap();
        let size = |path: &str| (known[Path::new(path)].version.size, known[Path::new(path)].copied);
        assert_eq!((size("/a b/c"), size("/a b"), size("/d")), ((2, true), (4, false), (6, false)));
        assert_eq!(known.len(), 3);
    }

    #[test]
    fn numbers_of_disks_do_not_tell_file_systems_apart() {
        let disk = |major, minor| rustix::fs::makedev(major, minor);
        assert_eq!((encoded(disk(7, 1)), encoded(disk(259, 0x123))), (0x701, 0x11_0323));
        assert!(
            !is_another_system(0x801, 0x811, disk(8, 0x11)),
            "XFS whose disk has another number after a restart"
        );
        assert!(is_another_system(0x801, 0x9a1d_a62d_873e_bd99, disk(8, 1)));
        assert!(!is_another_system(0x9a1d, 0x9a1d, disk(8, 1)));
        let dir = tempfile::tempdir().unwrap();
        let version = Version::of(&dir.path().metadata().unwrap());
        let origin = |version, system| Origin { version, copied: false, system };
        let now = system_of(dir.path());
        assert!(!origin(version.clone(), now).is_elsewhere(dir.path()));
        let another = Version { ino: version.ino + 1, ..version };
        assert!(now.is_none_or(|now| origin(another, Some(now ^ 1)).is_elsewhere(dir.path())));
    }

    #[test]
    fn a_version_ends_with_each_change() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("f"), dir.path().join("l"));
        fs::write(&file, "one").unwrap();
        let origin = |path: &Path| {
            let version = Version::of(&fs::symlink_metadata(path).unwrap());
            assert_eq!(Version::parse(version.line().split(' ')), Some(version.clone()));
            Origin { version, copied: true, system: None }
        };
        let before = origin(&file);
        assert!(before.is_still(&fs::metadata(&file).unwrap()));
        fs::hard_link(&file, &link).unwrap();
        assert!(!before.is_still(&fs::metadata(&file).unwrap()));
        let of_two = origin(&file);
        fs::remove_file(&link).unwrap();
        assert!(of_two.is_still(&fs::metadata(&file).unwrap()), "a name that goes is no change of the other");
        fs::write(&file, "other").unwrap();
        assert!(!of_two.is_still(&fs::metadata(&file).unwrap()));
        let of_dir = origin(dir.path());
        fs::write(dir.path().join("new"), "").unwrap();
        assert!(of_dir.is_still(&fs::metadata(dir.path()).unwrap()));
    }
}
