// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which mount a path means, and whether it lives. Nothing here waits for a server.

use outrigger_host::MountEntry;
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most symbolic links at the end of a path that are followed, as in Linux.
const LINKS_MAX: usize = 40;

/// What asking a mount for its size shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It answers, with success or any error of its own.
    Alive,
    /// Its server has gone: every use fails with `ENOTCONN`.
    Dead,
    /// No answer before the deadline.
    Silent,
}

/// Asks on a thread of its own: a server that hangs must not hang us.
pub fn probe(mountpoint: &Path) -> Health {
    let (sender, receiver) = mpsc::channel();
    let path = mountpoint.to_owned();
    thread::spawn(move || sender.send(rustix::fs::statfs(&path).map(drop)));
    match receiver.recv_timeout(PATIENCE) {
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Health::Dead,
        Ok(_) => Health::Alive,
        Err(_) => Health::Silent,
    }
}

/// What the mount table shows as the server of mounts by NFS. Names that end in `.localhost` are this machine's (RFC 6761).
pub const NFS_HOST: &str = "outrigger.localhost";

/// Whether the mount table shows a mount of this program.
pub fn is_ours(entry: &MountEntry) -> bool {
    entry.fstype.starts_with("fuse.outrigger.") || is_by_nfs(entry)
}

/// Whether it is one by the kernel's NFS client.
pub fn is_by_nfs(entry: &MountEntry) -> bool {
    let path = entry.source.as_bytes().strip_prefix(NFS_HOST.as_bytes());
    entry.fstype == "nfs" && path.is_some_and(|path| path.starts_with(b":"))
}

/// Whether the mount table shows the mount of this program with this number: that of the FUSE connection, or of another superblock. The
/// number alone is not enough: it is a minor number, which a block device may have, too.
pub fn is_connection(entry: &MountEntry, connection: u32) -> bool {
    entry.minor == connection && is_ours(entry)
}

/// The absolute path a mount at `path` has in the mount table: without symbolic links, and without asking the mount.
///
/// # Errors
/// When a directory above it cannot be reached.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        // `.` and `..` at the end have no name and are left to the system.
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
        let found = fs::canonicalize(parent)?.join(name);
        if MountEntry::at(&found)?.is_some() {
            return Ok(found);
        }
        match fs::read_link(&found) {
            Ok(target) => path = found.with_file_name(target),
            Err(_) => return Ok(found),
        }
    }
    fs::canonicalize(path)
}

/// A mount namespace other than ours in which a connection is mounted.
pub struct Copy {
    /// A process in it.
    pub pid: u32,
    /// The number of the mount.
    pub id: u32,
}

/// Where the connection with this number is mounted, other than in our mount namespace, as far as we may look.
pub fn copies(number: u32) -> Vec<Copy> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let elsewhere = pids.filter(|pid| namespace(&pid.to_string()).is_some_and(|found| seen.insert(found)));
    let copy = |pid| {
        let mounts = MountEntry::seen_by(pid).ok()?;
        let is_it = |entry: &&MountEntry| (entry.is_fuse() || is_by_nfs(entry)) && entry.minor == number;
        let mount = mounts.iter().find(is_it)?;
        Some(Copy { pid, id: mount.id })
    };
    elsewhere.filter_map(copy).collect()
}

/// Whether the connection with this number is mounted in a mount namespace other than ours.
pub fn is_mounted_elsewhere(number: u32) -> bool {
    let is_here = || MountEntry::all().is_ok_and(|all| all.iter().any(|entry| is_connection(entry, number)));
    !copies(number).is_empty() || inode(&shown(number)).is_some() && !is_here()
}

/// Where the host shows a connection.
pub fn shown(number: u32) -> PathBuf {
    format!("/sys/fs/fuse/connections/{number}").into()
}

/// Where the host shows that a superblock is in use whose type is not FUSE.
pub fn superblock(number: u32) -> PathBuf {
    format!("/sys/class/bdi/0:{number}").into()
}

/// The number of the inode at `path`.
pub fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_to_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        symlink("/proc", dir.join("one")).unwrap();
        symlink("one", dir.join("two")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        for (given, found) in
            [("one", Path::new("/proc")), ("two", Path::new("/proc")), ("new", &dir.join("new"))]
        {
            assert_eq!(resolve(&dir.join(given)).unwrap(), found, "{given}");
        }
        assert!(resolve(&dir.join("loop")).is_err());
        assert!(resolve(&dir.join("no/thing")).is_err());
        assert_eq!(resolve(Path::new("/proc/..")).unwrap(), Path::new("/"));
    }

    #[test]
    fn what_answers_is_alive() {
        assert_eq!(probe(Path::new("/proc")), Health::Alive);
    }
}
