// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is asked of a server, in each dialect.
//!
//! The rest of the driver knows attributes, flags and changes as 9P2000.L has them. Here they become requests of the dialect that the
//! server speaks: `linux.rs` has those of 9P2000.L, `plain.rs` those of 9P2000 and 9P2000.u.

mod errors;
mod linux;
mod people;
mod plain;
mod stat;
pub(crate) mod version;

pub(crate) use errors::error_in;
pub(crate) use people::People;

use crate::ops::{LOCKS, XATTRS};
use crate::wire::{Fault, Fid, Session, Walked};
use bytes::Bytes;
use outrigger_core::Errno;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{FileKind, OpCode, OpSet, Time};
use outrigger_proto_ninep::{Attrs, Call, Dialect, Qid, QidKind, SetAttrs, Text, Tremove, UNLINK_DIRECTORY};
use std::sync::Arc;

/// All dialects, the richest first.
pub(crate) const ALL: [Dialect; 3] = [Dialect::Linux, Dialect::Unix, Dialect::Plain];

/// What only 9P2000.L has.
const OF_LINUX: OpSet = XATTRS.union(LOCKS).union(OpSet::of(&[OpCode::StatFs]));
/// What 9P2000 does not have either.
const OF_UNIX: OpSet = OpSet::of(&[OpCode::Link, OpCode::SymLink, OpCode::ReadLink, OpCode::MkNod]);

/// The operations that a dialect has no requests for.
pub(crate) fn lacks(dialect: Dialect) -> OpSet {
    match dialect {
        Dialect::Linux => OpSet::of(&[]),
        Dialect::Unix => OF_LINUX,
        Dialect::Plain => OF_LINUX.union(OF_UNIX),
    }
}

/// Something new that is not opened.
#[derive(Debug, Clone)]
pub(crate) enum New {
    Directory {
        mode: u32,
    },
    Symlink {
        target: Text,
    },
    /// A file of another kind, with the numbers of a device.
    Node {
        kind: FileKind,
        mode: u32,
        device: (u32, u32),
    },
}

/// A file that a server has opened, and how much content one message can have, or 0.
pub(crate) type Opened = (Qid, u32);

/// A name in a listing.
pub(crate) struct Listed {
    pub(crate) name: Text,
    pub(crate) ino: u64,
    pub(crate) kind: Option<FileKind>,
    /// What else the listing tells.
    pub(crate) attrs: Option<Box<Attrs>>,
}

/// Where a listing goes on.
pub(crate) struct Pages<'a> {
    dir: &'a Fid,
    offset: u64,
    count: u32,
}

impl Session {
    fn is_linux(&self) -> bool {
        self.dialect == Dialect::Linux
    }

    /// Whether a file can be opened so that what is written is on stable storage at once.
    pub(crate) fn knows_sync_writes(&self) -> bool {
        self.is_linux()
    }

    /// Asks for what may be a change.
    async fn ask_or_change<C: Call>(&self, call: C, is_change: bool) -> Result<C::Reply, Fault> {
        if is_change { self.change(call).await } else { self.ask(call).await }
    }

    /// What is known of the file of a fid.
    pub(crate) async fn attrs(&self, fid: u32) -> Result<Attrs, Fault> {
        if self.is_linux() { self.attrs_linux(fid).await } else { self.attrs_plain(fid).await }
    }

    /// Opens a file; emptying it is a change.
    pub(crate) async fn open(&self, fid: u32, flags: OpenFlags) -> Result<Opened, Fault> {
        if self.is_linux() { self.open_linux(fid, flags).await } else { self.open_plain(fid, flags).await }
    }

    /// Opens a directory, and begins to list it.
    pub(crate) async fn list<'a>(&self, dir: &'a Fid) -> Result<Pages<'a>, Fault> {
        let opened = match self.is_linux() {
            true => self.open_dir_linux(dir.number).await,
            false => self.open_plain(dir.number, OpenFlags::empty()).await,
        };
        Ok(Pages { dir, offset: 0, count: self.io_size(opened?.1) })
    }

    /// Some more names of a directory; none at its end.
    pub(crate) async fn page(&self, pages: &mut Pages<'_>) -> Result<Vec<Listed>, Fault> {
        if self.is_linux() { self.page_linux(pages).await } else { self.page_plain(pages).await }
    }

    /// Makes a regular file in the directory of a fid, which stands for the open file then. What has the name already stays as it is.
    pub(crate) async fn create(
        self: &Arc<Self>,
        dir: &Fid,
        name: Text,
        (flags, mode, gid): (OpenFlags, u32, u32),
    ) -> Result<Opened, Fault> {
        match self.is_linux() {
            true => self.create_linux(dir.number, name, (flags, mode, gid)).await,
            false => self.create_plain(dir, name, (flags, mode)).await,
        }
    }

    /// Makes something else in the directory of a fid, which still stands for that then.
    pub(crate) async fn make(
        self: &Arc<Self>,
        dir: u32,
        name: Text,
        new: New,
        gid: u32,
    ) -> Result<(), Fault> {
        if self.is_linux() {
            self.make_linux(dir, name, new, gid).await
        } else {
            self.make_plain(dir, name, new).await
        }
    }

    /// Gives a file another name.
    pub(crate) async fn link(self: &Arc<Self>, dir: u32, name: Text, file: &Fid) -> Result<(), Fault> {
        if self.is_linux() {
            self.link_linux(dir, name, file).await
        } else {
            self.link_plain(dir, name, file).await
        }
    }

    /// Removes a name; `flags` as [`outrigger_proto_ninep::Tunlinkat`] has them.
    pub(crate) async fn remove(self: &Arc<Self>, dir: u32, name: Text, flags: u32) -> Result<(), Fault> {
        if self.is_linux() && self.remove_linux(dir, name.clone(), flags).await? {
            return Ok(());
        }
        let (file, walked) = self.walk_to(dir, &[name]).await?;
        match (is_directory(&walked), flags & UNLINK_DIRECTORY != 0) {
            (true, false) => return Err(Errno::EISDIR.into()),
            (false, true) => return Err(Errno::ENOTDIR.into()),
            _ => {}
        }
        self.remove_file(&file).await
    }

    /// Removes the file of a fid.
    async fn remove_file(&self, file: &Fid) -> Result<(), Fault> {
        // Whatever is answered, the fid is gone.
        file.forget();
        self.change(Tremove { fid: file.number }).await.map(drop)
    }

    /// Moves a name; what has the new one is replaced.
    pub(crate) async fn rename(
        self: &Arc<Self>,
        (dir, name): (&Fid, Text),
        (to_dir, to_name): (&Fid, Text),
        is_same_dir: bool,
    ) -> Result<(), Fault> {
        match self.is_linux() {
            true => self.rename_linux((dir.number, name), (to_dir.number, to_name)).await,
            false if is_same_dir => self.rename_plain(dir.number, name, to_name).await,
            false => {
                let why = format!("{} moves files within a directory only", self.dialect.name());
                Err(Errno::EXDEV.because(why).into())
            }
        }
    }

    /// The target of a symbolic link.
    pub(crate) async fn read_link(&self, fid: u32) -> Result<Bytes, Fault> {
        if self.is_linux() { self.read_link_linux(fid).await } else { self.read_link_plain(fid).await }
    }

    /// Changes attributes; `now` is the time of day.
    pub(crate) async fn set_attrs(&self, fid: u32, set: &SetAttrs, now: Time) -> Result<(), Fault> {
        if self.is_linux() {
            self.set_attrs_linux(fid, set).await
        } else {
            self.set_attrs_plain(fid, set, now).await
        }
    }

    /// Puts a file on stable storage.
    pub(crate) async fn sync(&self, fid: u32, data_only: bool) -> Result<(), Fault> {
        if self.is_linux() { self.sync_linux(fid, data_only).await } else { self.sync_plain(fid).await }
    }

    /// Puts the names in a directory on stable storage.
    pub(crate) async fn sync_dir(&self, dir: u32) -> Result<(), Fault> {
        match self.is_linux() {
            true => {
                self.open_dir_linux(dir).await?;
                self.sync_linux(dir, false).await
            }
            false => self.sync_plain(dir).await,
        }
    }
}

fn is_directory(walked: &Walked) -> bool {
    walked.to.is_some_and(|qid| qid.kind.contains(QidKind::DIRECTORY))
}
