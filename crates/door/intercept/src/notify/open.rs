// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening files of trees: the program gets a descriptor of the copy.

use super::content::{Content, open_whole};
use super::mirror::open;
use super::names::Found;
use super::process::Process;
use super::say;
use super::server::{Reply, Server};
use super::source::{Call, Refused};
use libc::{O_ACCMODE, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_RDONLY, O_TMPFILE, O_TRUNC};
use outrigger_client::{File, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Error, FileKind, Node, Result, lock};
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Flags that are no more when the file is open, or that the file system of the mirror may not know.
const SPENT: i32 = O_CREAT | O_EXCL | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_DIRECTORY | libc::O_DIRECT;

/// How a program opens a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) flags: i32,
    pub(crate) mode: u32,
}

impl Opening {
    pub(crate) fn has(self, flag: i32) -> bool {
        self.flags & flag == flag
    }

    pub(crate) fn writes(self) -> bool {
        self.flags & O_ACCMODE != O_RDONLY
    }

    /// The flags for the copy.
    pub(crate) fn of_copy(self) -> OFlags {
        OFlags::from_bits_retain((self.flags & !SPENT).cast_unsigned())
    }

    /// The flags for the file in the tree, to which the server writes.
    fn of_file(self) -> OpenFlags {
        let access = if self.writes() { OpenFlags::WRITE_ONLY } else { OpenFlags::empty() };
        let empties = self.has(O_TRUNC) && self.writes();
        let exclusive = if self.has(O_EXCL) { OpenFlags::EXCL } else { OpenFlags::empty() };
        access | exclusive | if empties { OpenFlags::TRUNC } else { OpenFlags::empty() }
    }

    pub(crate) fn reply(self, file: OwnedFd) -> Reply {
        Reply::File(file, self.has(O_CLOEXEC))
    }
}

impl Server {
    /// Opens a file of a tree.
    pub(crate) fn open(&self, call: &Call, found: &Found, how: Opening) -> Result<Reply> {
        let process = Process { thread: call.pid.cast_signed() };
        if how.has(O_TMPFILE) {
            // Programs make one with a name then.
            return Err(Errno::EOPNOTSUPP.into());
        }
        // Nothing may have changed in the tree when the program gets no descriptor.
        let changes = how.flags & (O_CREAT | O_TRUNC) != 0;
        let can_give = self.source.can_give(call, self.mirror.dir(), changes);
        can_give.map_err(|why| self.cannot_give(process, why))?;
        if changes && !process.has_room()? {
            return Err(Errno::EMFILE.into());
        }
        let Some(inode) = &found.inode else {
            if found.tree.is_none() {
                let real = self.mirror.between(&found.path, &self.names)?;
                return self.directory(&real, how);
            }
            return self.create(process, found, how);
        };
        if found.slash && how.has(O_CREAT) {
            return Err(Errno::EISDIR.into());
        }
        if how.has(O_CREAT | O_EXCL) {
            return Err(Errno::EEXIST.into());
        }
        match inode.kind() {
            FileKind::Directory => {
                if how.writes() || how.has(O_CREAT) {
                    return Err(Errno::EISDIR.into());
                }
                self.settle_in(&found.path);
                self.directory(&self.mirror.list(&found.path, inode, &self.names)?, how)
            }
            _ if found.slash || how.has(O_DIRECTORY) => Err(Errno::ENOTDIR.into()),
            FileKind::Symlink => Err(Errno::ELOOP.into()),
            FileKind::Fifo => {
                let real = self.mirror.copy(&found.path, inode)?;
                Ok(how.reply(open(&real, how.of_copy())?))
            }
            FileKind::Regular => self.file(found, how),
            FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => Err(Errno::ENXIO.into()),
        }
    }

    /// The error of opening a file for a program that cannot be given one; why is said once where programs expect no such error.
    pub(crate) fn cannot_give(&self, process: Process, why: Refused) -> Error {
        match why {
            Refused::Gone => Errno::EIO.into(),
            Refused::Memory(errno) => Errno(errno as i32).into(),
            Refused::Privileges => {
                Errno::EACCES.because("traced, a program with less privileges opens nothing")
            }
            Refused::Root => {
                self.told_of_another_root.call_once(|| {
                    say(format_args!(
                        "process {} has another root directory, in which '{}' is not what it is here: traced, it cannot open files of trees, and of the overlay",
                        process.thread,
                        self.mirror.dir().display()
                    ));
                });
                Errno::EACCES.into()
            }
        }
    }

    /// The copy of a file that a program opens without its content (`O_PATH`).
    pub(crate) fn place_of(&self, found: &Found, flags: i32) -> Result<PathBuf> {
        self.gives_directories()?;
        let Some(inode) = &found.inode else {
            return match found.tree {
                None => self.mirror.between(&found.path, &self.names),
                Some(_) => Err(Errno::ENOENT.into()),
            };
        };
        if !inode.is_dir() && (found.slash || flags & O_DIRECTORY != 0) {
            return Err(Errno::ENOTDIR.into());
        }
        self.mirror.copy(&found.path, inode)
    }

    fn directory(&self, real: &Path, how: Opening) -> Result<Reply> {
        if how.writes() {
            return Err(Errno::EISDIR.into());
        }
        self.gives_directories()?;
        Ok(how.reply(open(real, how.of_copy() | OFlags::DIRECTORY)?))
    }

    /// Opens a regular file that is there.
    fn file(&self, found: &Found, how: Opening) -> Result<Reply> {
        if let Some(reply) = self.file_as(&found.path, &*self.settled(found)?, how, false)? {
            return Ok(reply);
        }
        let inode = self.names.inode(&found.path)?;
        Ok(self.file_as(&found.path, &inode, how, true)?.ok_or(Errno::ESTALE)?)
    }

    /// Opens a regular file that was found as `inode`. `None` where it is opened for writing and has changed since, but if it is looked at
    /// `again`: some trees tell a name and an open file different times.
    fn file_as(&self, path: &[u8], inode: &Inode, how: Opening, again: bool) -> Result<Option<Reply>> {
        let (real, content) = self.copied(path, inode)?;
        let mut guard = lock(&content);
        if guard.is_here() && (guard.is_written() || !how.writes()) {
            // Whether it may be opened is asked for each time, as permissions change.
            drop(inode.open(how.of_file() & !(OpenFlags::EXCL | OpenFlags::TRUNC))?);
        }
        if !how.writes() {
            self.mirror.fill(&real, inode, &mut guard)?;
            return Ok(Some(how.reply(open(&real, how.of_copy())?)));
        }
        if guard.is_written() {
            // The copy is what programs see until it is stored.
            return written(&real, how).map(Some);
        }
        let open = || open_whole(inode, how.of_file() & !OpenFlags::EXCL);
        if how.has(O_TRUNC) {
            return self.write(&real, (&content, &mut guard), how, || Ok((open()?, inode.node()))).map(Some);
        }
        let file = open()?;
        let now = file.fresh_attr()?;
        if !again && !guard.is_of(&now) {
            // Programs may be reading the copy of what it was.
            return Ok(None);
        }
        guard.become_of(&now);
        // From `write` on, half of it would pass for what was written, should the server be killed.
        self.mirror.fill(&real, inode, &mut guard)?;
        self.write(&real, (&content, &mut guard), how, || Ok((file, inode.node()))).map(Some)
    }

    /// The copy of a regular file. That of another one, which had the name before, is stored until then.
    fn copied(&self, path: &[u8], inode: &Inode) -> Result<(PathBuf, Arc<Mutex<Content>>)> {
        loop {
            let real = self.mirror.copy(path, inode)?;
            let content = self.mirror.content(&real)?;
            if !lock(&content).is_other(inode.node()) {
                return Ok((real, content));
            }
        }
    }

    /// Makes a file.
    fn create(&self, process: Process, found: &Found, how: Opening) -> Result<Reply> {
        if !how.has(O_CREAT) {
            return Err(Errno::ENOENT.into());
        }
        if found.slash || how.has(O_DIRECTORY) {
            return Err(Errno::EISDIR.into());
        }
        let (parent, name) = found.place()?;
        let mode = how.mode & 0o7777 & !process.umask()?;
        self.mirror.changes();
        let (inode, file) = parent.create(&name, mode, how.of_file())?;
        self.mirror.changes();
        let (real, content) = self.copied(&found.path, &inode)?;
        let mut guard = lock(&content);
        if !how.writes() {
            self.mirror.fill(&real, &inode, &mut guard)?;
            return Ok(how.reply(open(&real, how.of_copy())?));
        }
        if guard.is_written() {
            return written(&real, how);
        }
        // Another program may have made it meanwhile.
        if inode.attr().size > 0 && !how.has(O_TRUNC) {
            self.mirror.fill(&real, &inode, &mut guard)?;
        }
        self.write(&real, (&content, &mut guard), how, || Ok((file, inode.node())))
    }

    /// Gives the program a descriptor of a copy that is stored when it is closed. Everything that takes something of this machine comes
    /// before `begin`, which opens the file in the tree, and may empty it.
    fn write(
        &self,
        real: &Path,
        (content, guard): (&Arc<Mutex<Content>>, &mut Content),
        how: Opening,
        begin: impl FnOnce() -> Result<(File, Node)>,
    ) -> Result<Reply> {
        debug_assert!(how.writes());
        let copy = open(real, OFlags::RDONLY)?;
        let given = open(real, how.of_copy())?;
        self.mirror.contents.begin(content, guard, (copy, real), |guard| {
            let opened = begin()?;
            if how.has(O_TRUNC) {
                guard.empty(&given)?;
            }
            Ok(opened)
        })?;
        Ok(how.reply(given))
    }
}

/// Opens a copy that programs write to.
fn written(real: &Path, how: Opening) -> Result<Reply> {
    let file = open(real, how.of_copy())?;
    if how.has(O_TRUNC) {
        super::mirror::os(rustix::fs::ftruncate(&file, 0))?;
    }
    Ok(how.reply(file))
}
