// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes for umount(8) in `/run/mount/utab`, the table of libmount beside the kernel's.
//!
//! For the absolute path of a mount point the superuser's umount(8) asks statfs(2) for the type, which is "fuse" for every FUSE
//! mount, and so finds no helper `umount.fuse.outrigger`. It does not ask where this table has a line for the path. The format
//! and the lock are those of libmount (`libmount/src/tab_update.c`, `lock.c` in util-linux).

use outrigger_host::MountEntry;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Where libmount keeps its table.
const DIRECTORY: &str = "/run/mount";
/// What marks our lines: the helper of umount(8).
const MARK: &[u8] = b"OPTS=uhelper=fuse.outrigger";

/// Notes that `entry` was mounted by us. Nothing depends on it but which helper umount(8) runs, so errors are only logged.
pub(crate) fn note(entry: &MountEntry) {
    report(change(Path::new(DIRECTORY), |table| with(table, entry, &mounted())));
}

/// Notes that nothing of ours is mounted on `mountpoint` any more.
pub(crate) fn forget(mountpoint: &Path) {
    if rustix::process::geteuid().is_root() {
        report(change(Path::new(DIRECTORY), |table| without(table, mountpoint)));
    }
}

fn report(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "umount(8) gets no note about this mount");
    }
}

/// What this process sees mounted, as the table writes it.
fn mounted() -> Vec<Vec<u8>> {
    let entries = MountEntry::all().unwrap_or_default();
    entries.iter().map(|entry| escaped(entry.mountpoint.as_os_str().as_bytes())).collect()
}

/// Makes the directory as libmount does. One in which others could plant links is closed to them first.
fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("{} is not ours", directory.display())));
    }
    match found.mode() & 0o022 {
        0 => Ok(()),
        _ => fs::set_permissions(directory, fs::Permissions::from_mode(0o755)),
    }
}

/// Replaces the table under its lock, if `edit` makes another one of it.
fn change(directory: &Path, edit: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let table = directory.join("utab");
    make(directory)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o644).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let lock = options.clone().create(true).truncate(false).open(directory.join("utab.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let before = match fs::read(&table) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let after = edit(&before);
    if after == before {
        return Ok(());
    }
    let new = directory.join(format!("utab.outrigger-{}", std::process::id()));
    // A process that had this number may have left one.
    let _ = fs::remove_file(&new);
    let mut file = options.create_new(true).open(&new)?;
    file.write_all(&after)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    fs::rename(&new, &table).inspect_err(|_| _ = fs::remove_file(&new))
}

/// The table with a line for `entry`, without lines of ours for what is not in `mounted`.
fn with(table: &[u8], entry: &MountEntry, mounted: &[Vec<u8>]) -> Vec<u8> {
    let target = escaped(entry.mountpoint.as_os_str().as_bytes());
    let mut after = kept(table, |ours| ours != target && mounted.iter().any(|there| ours == *there));
    after.extend_from_slice(b"SRC=");
    after.extend(escaped(entry.source.as_bytes()));
    after.extend_from_slice(b" TARGET=");
    after.extend(target);
    after.extend_from_slice(b" ROOT=/ ");
    after.extend_from_slice(MARK);
    after.push(b'\n');
    after
}

/// The table without our line for `mountpoint`.
fn without(table: &[u8], mountpoint: &Path) -> Vec<u8> {
    let target = escaped(mountpoint.as_os_str().as_bytes());
    kept(table, |ours| ours != target)
}

/// All lines of others, and those of ours whose target `keep` accepts.
fn kept(table: &[u8], keep: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let lines = table.split_inclusive(|byte| *byte == b'\n');
    let lines = lines.filter(|line| target_of_ours(line).is_none_or(&keep));
    lines.flatten().copied().collect()
}

/// The target of a line, if it is one of ours.
fn target_of_ours(line: &[u8]) -> Option<&[u8]> {
    let fields = || line.trim_ascii_end().split(|byte| *byte == b' ');
    fields().any(|field| field == MARK).then_some(())?;
    fields().find_map(|field| field.strip_prefix(b"TARGET="))
}

/// As libmount writes a value: what ends fields and lines in octal.
fn escaped(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for &byte in value {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => out.extend(format!("\\{byte:03o}").bytes()),
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn entry(source: &str, mountpoint: &str) -> MountEntry {
        MountEntry {
            id: 1,
            major: 0,
            minor: 50,
            mountpoint: mountpoint.into(),
            fstype: "fuse.outrigger.mem".into(),
            source: source.into(),
        }
    }

    #[test]
    fn lines_of_others_stay_and_ours_are_replaced() {
        let theirs = "SRC=host: TARGET=/mnt ROOT=/ OPTS=user=me\n";
        let (a, b) = (entry("mem:", "/mnt"), entry("/a b#", "/m\\n"));
        let one = with(theirs.as_bytes(), &a, &[b"/mnt".to_vec()]);
        let first = "SRC=mem: TARGET=/mnt ROOT=/ OPTS=uhelper=fuse.outrigger\n";
        assert_eq!(String::from_utf8(one.clone()).unwrap(), format!("{theirs}{first}"));
        assert_eq!(with(&one, &a, &[b"/mnt".to_vec()]), one, "one line for one place");
        let two = with(&one, &b, &[b"/mnt".to_vec()]);
        let second = "SRC=/a\\040b\\043 TARGET=/m\\134n ROOT=/ OPTS=uhelper=fuse.outrigger\n";
        assert_eq!(String::from_utf8(two.clone()).unwrap(), format!("{theirs}{first}{second}"));
        assert_eq!(with(&two, &b, &[]), [theirs.as_bytes(), second.as_bytes()].concat(), "not mounted");
        assert_eq!(without(&two, Path::new("/mnt")), [theirs.as_bytes(), second.as_bytes()].concat());
        assert_eq!(without(theirs.as_bytes(), Path::new("/mnt")), theirs.as_bytes());
    }

    #[test]
    fn the_table_is_replaced_as_a_whole() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("mount");
        change(&directory, |_| b"new\n".to_vec()).unwrap();
        change(&directory, |before| [before, b"more\n"].concat()).unwrap();
        assert_eq!(fs::read(directory.join("utab")).unwrap(), b"new\nmore\n");
        let names = fs::read_dir(&directory).unwrap().count();
        assert_eq!(names, 2, "the table and its lock");
    }

    #[test]
    fn links_in_the_directory_are_not_followed_and_others_cannot_make_any() {
        let temp = tempfile::tempdir().unwrap();
        let (directory, victim) = (temp.path().join("mount"), temp.path().join("victim"));
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(&victim, "dear").unwrap();
        symlink(&victim, directory.join(format!("utab.outrigger-{}", std::process::id()))).unwrap();
        change(&directory, |_| b"new\n".to_vec()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "dear");
        assert_eq!(fs::symlink_metadata(&directory).unwrap().mode() & 0o7777, 0o755);
        fs::remove_file(directory.join("utab.lock")).unwrap();
        symlink(temp.path().join("none"), directory.join("utab.lock")).unwrap();
        change(&directory, |_| b"newer\n".to_vec()).unwrap_err();
        assert!(!temp.path().join("none").exists());
    }
}
