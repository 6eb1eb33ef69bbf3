// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree of `null:` served by the `fuser` crate: one directory, one file, constant answers, nothing cached.

use anyhow::{Context, Result};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, MountOption, ReplyAttr,
    ReplyEntry, Request,
};
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

const FILE: INodeNo = INodeNo(2);

struct Null;

fn attr(ino: INodeNo) -> FileAttr {
    let directory = ino == INodeNo::ROOT;
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if directory { FileType::Directory } else { FileType::RegularFile },
        perm: if directory { 0o777 } else { 0o666 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

// Opening and closing have a suitable answer in the crate.
impl Filesystem for Null {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == "file" {
            reply.entry(&Duration::ZERO, &attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &attr(ino));
    }
}

/// Serves the tree on `mountpoint` until it is unmounted.
///
/// # Errors
/// When it cannot be mounted.
pub fn serve(mountpoint: &Path) -> Result<()> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("null".to_owned()), MountOption::DefaultPermissions];
    fuser::mount(Null, mountpoint, &config)
        .with_context(|| format!("cannot mount on {}", mountpoint.display()))
}
