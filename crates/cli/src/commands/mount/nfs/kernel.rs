// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's side of a mount by NFS: the call of mount(2), and whether the mount is still there.

use crate::control::{self, NFS_HOST, is_by_nfs, is_connection};
use crate::mounted;
use crate::status::Failure;
use outrigger_core::Error;
use outrigger_host::MountEntry;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use std::ffi::CString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long the kernel may take to mount.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether a mount is still in use that the mount table does not show.
const PERIOD: Duration = Duration::from_millis(20);

/// The options of the kernel (nfs(5)): it asks no other program for a port, and keeps locks itself.
pub fn data(port: u16, options: &[String]) -> String {
    let here = "127.0.0.1";
    let mut list = format!(
        "addr={here},vers=3,proto=tcp,port={port},mountaddr={here},mountvers=3,mountproto=tcp,mountport={port},nolock,hard"
    );
    for option in options {
        list.push(',');
        list.push_str(option);
    }
    list
}

/// Mounts what listens at this machine, with the options `list`; `tree` is the name it is exported by. The kernel asks for the root
/// itself, so the server runs already.
///
/// # Errors
/// Why not, and what to do.
pub fn mount(tree: &str, place: &Path, flags: MountFlags, list: &str) -> Result<Superblock, Failure> {
    let failed = |why: String| Failure::new(format!("cannot mount on '{}' by NFS: {why}", place.display()));
    let source = format!("{NFS_HOST}:/{}", tree.trim_start_matches('/'));
    let list = CString::new(list).map_err(|error| failed(error.to_string()))?;
    let (sender, receiver) = mpsc::channel();
    let target = place.to_owned();
    // The call waits for the server, whose tree may hang.
    let call = move || {
        // It may be waited for no more.
        let _ = sender.send(rustix::mount::mount(source, target, "nfs", flags, &*list));
    };
    let spawned = thread::Builder::new().name("mount".into()).spawn(call);
    spawned.map_err(|error| failed(Error::from(error).to_string()))?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(())) => {}
        Ok(Err(errno)) => return Err(failed(why(errno))),
        Err(_) => return Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
    let entry = MountEntry::at(place).ok().flatten().filter(is_by_nfs);
    let entry = entry.ok_or_else(|| failed("the mount table does not show it".to_owned()))?;
    Ok(Superblock::known(entry.minor, control::inode(&control::superblock(entry.minor))))
}

fn why(errno: Errno) -> String {
    let instead = "without door=nfs it is mounted by FUSE";
    match errno {
        Errno::NODEV => {
            format!("this kernel has no NFS client (`modprobe nfs` loads it where there is one); {instead}")
        }
        Errno::PROTONOSUPPORT => format!(
            "the NFS client of this kernel has no version 3 (`modprobe nfsv3` loads it where there is one); {instead}"
        ),
        Errno::PERM => format!("the kernel lets only the superuser of the system do so; {instead}"),
        errno => Error::from(std::io::Error::from(errno)).to_string(),
    }
}

/// A file system that the kernel's NFS client has mounted, at one place or several.
#[derive(Debug, Clone)]
pub struct Superblock {
    number: u32,
    inode: Option<u64>,
}

impl Superblock {
    /// The one with this number; `inode` is that of [`control::superblock`], if the system shows it.
    pub fn known(number: u32, inode: Option<u64>) -> Self {
        Superblock { number, inode }
    }

    /// The minor number of its device.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What tells it from others that get its number later.
    pub fn inode(&self) -> Option<u64> {
        self.inode
    }

    /// Where it is mounted now, if it was mounted at `given`.
    pub fn place(&self, given: &Path) -> PathBuf {
        mounted::place(given, Some(self.number))
    }

    /// Whether the mount table shows it.
    pub fn is_mounted(&self) -> bool {
        // A table that cannot be read says nothing.
        MountEntry::all().map_or(true, |all| all.iter().any(|entry| is_connection(entry, self.number)))
    }

    /// Whether it is in use: mounted here or elsewhere, or detached with files that are open.
    fn is_there(&self) -> bool {
        match self.inode {
            Some(inode) => control::inode(&control::superblock(self.number)) == Some(inode),
            None => self.is_mounted(),
        }
    }

    /// Waits until nothing uses it any more, and all that was written is written.
    pub fn wait_until_gone(&self) {
        // Reads as having something urgent when the table has changed (proc_pid_mountinfo(5)).
        let table = File::open("/proc/self/mountinfo");
        while self.is_there() {
            let shown = table.as_ref().ok().filter(|_| self.is_mounted());
            let changed = shown.map(|table| poll(&mut [PollFd::new(table, PollFlags::PRI)], None));
            if !matches!(changed, Some(Ok(_) | Err(Errno::INTR))) {
                thread::sleep(PERIOD);
            }
        }
    }

    /// Takes it out of the mount table at `given` or where it is now: what programs have written is written first; those that use it keep
    /// it until they are done.
    pub fn unmount(&self, given: &Path) {
        let place = self.place(given);
        let is_it = |entry: MountEntry| is_connection(&entry, self.number);
        for flags in [UnmountFlags::empty(), UnmountFlags::DETACH] {
            // Another mount may hide it.
            if !MountEntry::at(&place).is_ok_and(|entry| entry.is_some_and(is_it)) {
                return;
            }
            match unmount(&place, flags | UnmountFlags::NOFOLLOW) {
                Ok(()) => return,
                Err(error) => tracing::info!(%error, "unmounting '{}'", place.display()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_everything_that_it_would_ask_other_programs_for() {
        let list = data(50_000, &["soft".to_owned(), "timeo=9".to_owned()]);
        for item in ["addr=127.0.0.1", "port=50000", "mountport=50000", "mountaddr=127.0.0.1", "nolock"] {
            assert!(list.split(',').any(|found| found == item), "{item} in {list}");
        }
        assert!(list.ends_with(",hard,soft,timeo=9"), "{list}");
    }

    #[test]
    fn what_is_not_there_is_not_waited_for() {
        let gone = Superblock::known(u32::MAX, Some(1));
        assert!(!gone.is_mounted());
        gone.wait_until_gone();
        Superblock::known(u32::MAX, None).wait_until_gone();
    }
}
