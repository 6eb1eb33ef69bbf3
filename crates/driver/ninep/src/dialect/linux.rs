// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of 9P2000.L.

use super::{Listed, New, Opened, Pages};
use crate::wire::{Fault, Fid, Session};
use bytes::Bytes;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, FileKind};
use outrigger_proto_ninep::{
    AttrMask, Attrs, Call, Entry, QidKind, SetAttrs, Text, Tfsync, Tgetattr, Tlcreate, Tlink, Tlopen, Tmkdir,
    Tmknod, Treaddir, Treadlink, Trename, Trenameat, Tsetattr, Tsymlink, Tunlinkat, entries,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `O_DIRECTORY`.
const DIRECTORY: u32 = 0o200_000;
/// `O_CREAT`.
const CREATE: u32 = 0o100;
/// How a file is opened at the server: what is beside these flags is done here, or not at all.
const SENT: OpenFlags = OpenFlags::WRITE_ONLY
    .union(OpenFlags::READ_WRITE)
    .union(OpenFlags::TRUNC)
    .union(OpenFlags::DSYNC)
    .union(OpenFlags::NOATIME);
/// `O_NOFOLLOW`: symbolic links of the server are followed here, where it can be seen where they lead.
const NO_FOLLOW: u32 = 0o400_000;

/// The flags of open(2) as the server gets them.
fn sent(flags: OpenFlags) -> u32 {
    (flags & SENT).bits() | NO_FOLLOW
}

impl Session {
    /// Asks for a change by names in directories, if the server has such requests: `None` where it does not.
    async fn change_at<C: Call>(&self, call: C) -> Result<Option<C::Reply>, Fault> {
        if self.lacks_at.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match self.change(call).await {
            Err(Fault::Known(error)) if error.errno == Errno::EOPNOTSUPP => {
                self.lacks_at.store(true, Ordering::Relaxed);
                Ok(None)
            }
            changed => changed.map(Some),
        }
    }

    pub(super) async fn attrs_linux(&self, fid: u32) -> Result<Attrs, Fault> {
        self.ask(Tgetattr { fid, mask: AttrMask::BASIC }).await.map(|told| told.attrs)
    }

    pub(super) async fn open_linux(&self, fid: u32, flags: OpenFlags) -> Result<Opened, Fault> {
        let call = Tlopen { fid, flags: sent(flags) };
        let opened = self.ask_or_change(call, flags.contains(OpenFlags::TRUNC)).await?;
        Ok((opened.qid, opened.iounit))
    }

    pub(super) async fn open_dir_linux(&self, fid: u32) -> Result<Opened, Fault> {
        let opened = self.ask(Tlopen { fid, flags: DIRECTORY }).await?;
        Ok((opened.qid, opened.iounit))
    }

    pub(super) async fn page_linux(&self, pages: &mut Pages<'_>) -> Result<Vec<Listed>, Fault> {
        let call = Treaddir { fid: pages.dir.number, offset: pages.offset, count: pages.count };
        let page = entries(self.ask(call).await?.data)
            .map_err(|error| Errno::EIO.because(format!("the server's listing: {error}")))?;
        if let Some(last) = page.last() {
            if last.offset == pages.offset {
                return Err(Errno::EIO.because("the server lists the same names again and again").into());
            }
            pages.offset = last.offset;
        }
        let listed = page.into_iter().map(|entry| Listed {
            kind: kind_of(&entry),
            name: entry.name,
            ino: entry.qid.path,
            attrs: None,
        });
        Ok(listed.collect())
    }

    pub(super) async fn create_linux(
        &self,
        fid: u32,
        name: Text,
        (flags, mode, gid): (OpenFlags, u32, u32),
    ) -> Result<Opened, Fault> {
        // What has the name may be a symbolic link, which the server would follow.
        let flags = sent(flags) | CREATE | OpenFlags::EXCL.bits();
        let made = self.change(Tlcreate { fid, name, flags, mode, gid }).await?;
        Ok((made.qid, made.iounit))
    }

    pub(super) async fn make_linux(&self, dfid: u32, name: Text, new: New, gid: u32) -> Result<(), Fault> {
        match new {
            New::Directory { mode } => self.change(Tmkdir { dfid, name, mode, gid }).await.map(drop),
            New::Symlink { target } => self.change(Tsymlink { dfid, name, target, gid }).await.map(drop),
            New::Node { kind, mode, device: (major, minor) } => {
                let mode = kind.bits() | mode;
                self.change(Tmknod { dfid, name, mode, major, minor, gid }).await.map(drop)
            }
        }
    }

    pub(super) async fn link_linux(&self, dfid: u32, name: Text, file: &Fid) -> Result<(), Fault> {
        self.change(Tlink { dfid, fid: file.number, name }).await.map(drop)
    }

    /// Whether it was done: some servers remove files by their fids only.
    pub(super) async fn remove_linux(&self, dfid: u32, name: Text, flags: u32) -> Result<bool, Fault> {
        self.change_at(Tunlinkat { dfid, name, flags }).await.map(|done| done.is_some())
    }

    pub(super) async fn rename_linux(
        self: &Arc<Self>,
        (old_dfid, old_name): (u32, Text),
        (new_dfid, new_name): (u32, Text),
    ) -> Result<(), Fault> {
        let (from, to) = (old_name.clone(), new_name.clone());
        if self.change_at(Trenameat { old_dfid, old_name, new_dfid, new_name }).await?.is_some() {
            return Ok(());
        }
        let (moved, _) = self.walk_to(old_dfid, &[from]).await?;
        self.change(Trename { fid: moved.number, dfid: new_dfid, name: to }).await.map(drop)
    }

    pub(super) async fn read_link_linux(&self, fid: u32) -> Result<Bytes, Fault> {
        self.ask(Treadlink { fid }).await.map(|told| told.target.into_bytes())
    }

    pub(super) async fn set_attrs_linux(&self, fid: u32, attrs: &SetAttrs) -> Result<(), Fault> {
        self.change(Tsetattr { fid, attrs: attrs.clone() }).await.map(drop)
    }

    pub(super) async fn sync_linux(&self, fid: u32, data_only: bool) -> Result<(), Fault> {
        self.ask(Tfsync { fid, data_only: data_only.into() }).await.map(drop)
    }
}

/// The kind of file that a name leads to, where the server tells it: as readdir(3) does (`DT_*`), but some repeat the kind of the qid.
fn kind_of(entry: &Entry) -> Option<FileKind> {
    let qid = entry.qid.kind;
    if qid.contains(QidKind::DIRECTORY) {
        return Some(FileKind::Directory);
    }
    if qid.contains(QidKind::SYMLINK) {
        return Some(FileKind::Symlink);
    }
    FileKind::of_mode(u32::from(entry.kind) << 12).filter(|_| entry.kind != qid.bits())
}
