// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is mounted where, read from `/proc/self/mountinfo` (proc_pid_mountinfo(5)): never asks the mount itself,
//! whose server may hang.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number in the mount table, which another mount may get once it has gone.
    pub id: u32,
    /// Device number: major part.
    pub major: u32,
    /// Device number: minor part. For FUSE this is the number of the connection.
    pub minor: u32,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Type with subtype, as in `fuse.outrigger.mem`.
    pub fstype: String,
    /// What is mounted, as the mount table shows it.
    pub source: OsString,
}

/// Types of file systems that are on disks, or in memory.
const LOCAL: &[&str] = &[
    "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "nilfs2",
    "ntfs3", "overlay", "ramfs", "reiserfs", "squashfs", "tmpfs", "udf", "vfat", "xfs", "zfs",
];

impl MountEntry {
    /// Whether this is a FUSE mount.
    #[must_use]
    pub fn is_fuse(&self) -> bool {
        self.fstype == "fuse" || self.fstype.starts_with("fuse.") || self.fstype.starts_with("fuseblk")
    }

    /// All mounts this process sees, in the order they were made.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn all() -> io::Result<Vec<Self>> {
        read("/proc/self/mountinfo")
    }

    /// All mounts in the mount namespace of another process.
    ///
    /// # Errors
    /// When that has ended or may not be looked at (ptrace(2), `PTRACE_MODE_READ`).
    pub fn seen_by(pid: u32) -> io::Result<Vec<Self>> {
        read(&format!("/proc/{pid}/mountinfo"))
    }

    /// The topmost mount on exactly this absolute path without symbolic links.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn at(mountpoint: &Path) -> io::Result<Option<Self>> {
        Ok(Self::all()?.into_iter().rev().find(|entry| entry.mountpoint == mountpoint))
    }

    /// Whether all of a directory, with what is mounted in it now, is on disks and in memory of this machine: calls to it wait for no
    /// server.
    ///
    /// # Errors
    /// When `/proc` cannot be read, or there is no such directory.
    pub fn all_local(dir: &Path) -> io::Result<bool> {
        let dir = fs::canonicalize(dir)?;
        if !dir.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let all = Self::all()?;
        let above = all.iter().filter(|entry| dir.starts_with(&entry.mountpoint));
        // Of two on one directory the later one is seen.
        let holds = above.max_by_key(|entry| entry.mountpoint.components().count());
        let below = all.iter().filter(|entry| entry.mountpoint.starts_with(&dir));
        Ok(holds.is_some() && below.chain(holds).all(|entry| LOCAL.contains(&&*entry.fstype)))
    }
}

fn read(table: &str) -> io::Result<Vec<MountEntry>> {
    Ok(fs::read(table)?.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// One line: `id parent major:minor root mountpoint options [tags] - type source options`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = std::str::from_utf8(fields.nth(1)?).ok()?;
    let mountpoint = unescape(fields.nth(1)?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (fstype, source) = (fields.next()?, fields.next()?);
    let (major, minor) = device.split_once(':')?;
    Some(MountEntry {
        id,
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        mountpoint: OsString::from_vec(mountpoint).into(),
        fstype: String::from_utf8_lossy(fstype).into_owned(),
        source: OsString::from_vec(unescape(source)),
    })
}

/// Resolves `\040` and its like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [byte, tail @ ..] = rest {
        let code = tail.get(..3).filter(|_| *byte == b'\\').and_then(octal);
        out.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    out
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::ffi::OsStr::from_bytes(digits).to_str()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line =
            br"36 35 0:98 / /mnt/a\040b\134c rw,noatime shared:1 master:2 - fuse.outrigger.mem mem:\011x rw";
        let entry = parse(line).unwrap();
        assert_eq!((entry.id, entry.major, entry.minor), (36, 0, 98));
        assert_eq!(entry.mountpoint, Path::new(r"/mnt/a b\c"));
        assert_eq!(entry.source, "mem:\tx");
        assert!(entry.is_fuse());
        for broken in [
            "",
            "1 2 3",
            "x 35 0:98 / /mnt rw - fuse a b",
            "36 35 0:98 / /mnt rw",
            "36 35 x / /mnt rw - fuse a b",
        ] {
            assert_eq!(parse(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(MountEntry::at(Path::new("/")).unwrap().is_some());
    }
}
