// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in a file, and what is known of it.

use crate::answer::Asking;
use crate::convert::{self, SIZE_MAX};
use crate::export::Held;
use crate::fids::{File, Found, Grip};
use bytes::{Bytes, BytesMut};
use outrigger_core::ops::{
    FSync, FSyncDir, GetAttr, Parent, Read, ReadDir, ReadLink, SetAttr, StatFs, Write,
};
use outrigger_core::reply::Dirent;
use outrigger_core::{Attr, Errno, FileKind, Handle, Node, OpCode, Payload, Result, SetAttrs};
use outrigger_proto_ninep::{
    Entry, IO_HEAD, Qid, QidKind, Rgetattr, Rread, Rreaddir, Rreadlink, Rsetattr, Rstatfs, Rwrite, Space,
    Text, Tgetattr, Tread, Treaddir, Tsetattr, Twrite, put_entry,
};
use outrigger_toolkit_serve::dots::{DOT_DOT, below, dots};
use std::sync::atomic::Ordering::Relaxed;

/// The type of a file system of 9P in statfs(2) (`V9FS_MAGIC`).
const MAGIC: u32 = 0x0102_1997;
/// Bytes of an entry of a listing beside its name.
const ENTRY: usize = 24;
/// The longest name where the tree does not say.
const NAME_MAX: u32 = 255;

impl Asking {
    /// How much content one message of a file can have, where that is less than `msize` says.
    pub(crate) fn iounit(&self, at: &Found) -> u32 {
        let fits = self.session.msize - IO_HEAD;
        if at.export.io_max() < fits { at.export.io_max() } else { 0 }
    }

    /// The most that a reply has room for.
    fn room(&self, count: u32) -> u32 {
        count.min(self.session.msize - IO_HEAD)
    }

    pub(crate) async fn attr(&self, file: &File) -> Result<Attr> {
        let (node, handle) = (file.held().node, file.handle());
        let cx = self.cx(&file.at.who.cred);
        Ok(file.at.export.ask(&cx, GetAttr { node, handle }).await?.attr)
    }

    pub(crate) async fn getattr(&self, call: &Tgetattr, file: &File) -> Result<Rgetattr> {
        let attr = self.attr(file).await?;
        let owner = file.at.export.callers.shown((attr.uid, attr.gid));
        let attrs = convert::attrs(&attr, file.held().generation, owner, call.mask);
        Ok(Rgetattr { attrs })
    }

    pub(crate) async fn setattr(&self, call: &Tsetattr, file: &File) -> Result<Rsetattr> {
        let attrs = file.at.export.callers.meant(convert::set_attrs(&call.attrs)?)?;
        self.set(file, attrs).await?;
        Ok(Rsetattr {})
    }

    /// Changes attributes: the size by the handle where that may write, as ftruncate(2).
    pub(crate) async fn set(&self, file: &File, attrs: SetAttrs) -> Result<()> {
        if attrs == SetAttrs::default() {
            return Ok(());
        }
        let handle = file.handle().filter(|_| file.open.as_ref().is_some_and(|open| open.flags.writes()));
        let set = SetAttr { node: file.held().node, handle, attrs };
        file.at.export.ask(&self.cx(&file.at.who.cred), set).await.map(drop)
    }

    pub(crate) async fn readlink(&self, file: &File) -> Result<Rreadlink> {
        if file.at.kind != FileKind::Symlink {
            return Err(Errno::EINVAL.because("it is no symbolic link"));
        }
        let read = ReadLink { node: file.held().node };
        let target = file.at.export.ask(&self.cx(&file.at.who.cred), read).await?;
        let target = Text::new(target.into_bytes()).ok_or(Errno::ENAMETOOLONG)?;
        Ok(Rreadlink { target })
    }

    pub(crate) async fn read(&self, call: &Tread, grip: &Grip) -> Result<Rread> {
        let count = self.room(call.count);
        if let Some(value) = grip.value() {
            let start = usize::try_from(call.offset).unwrap_or(usize::MAX).min(value.len());
            let end = start.saturating_add(count as usize).min(value.len());
            return Ok(Rread { data: value.slice(start..end) });
        }
        let file = grip.file()?;
        let open = file.opened()?;
        match file.at.kind {
            FileKind::Directory => self.read_names(file, call.offset, count).await,
            _ if !open.flags.reads() => Err(Errno::EBADF.because("the file is open for writing only")),
            _ => self.content(file, open.handle, call.offset, count).await,
        }
    }

    async fn content(&self, file: &File, handle: Handle, offset: u64, count: u32) -> Result<Rread> {
        // There is nothing beyond the largest file.
        let len = match offset.checked_add(count.into()) {
            Some(end) if end <= SIZE_MAX => count.min(file.at.export.io_max()),
            _ => 0,
        };
        let read = Read { node: file.held().node, handle, offset, len };
        let data = file.at.export.ask(&self.cx(&file.at.who.cred), read).await?.into_bytes()?;
        if data.len() > len as usize {
            return Err(Errno::EIO.because(format!("{len} bytes were asked for, and {} came", data.len())));
        }
        Ok(Rread { data })
    }

    pub(crate) async fn write(&self, call: Twrite, grip: &Grip) -> Result<Rwrite> {
        if let Some(setting) = grip.setting() {
            return setting.write(call.offset, &call.data);
        }
        let file = grip.file()?;
        let open = file.opened()?;
        if !open.flags.writes() {
            return Err(Errno::EBADF.because("the file is not open for writing"));
        }
        if call.offset.checked_add(call.data.len() as u64).is_none_or(|end| end > SIZE_MAX) {
            return Err(Errno::EFBIG.into());
        }
        open.is_written.store(true, Relaxed);
        let most = call.data.len().min(file.at.export.io_max() as usize);
        let data = Payload::Bytes(call.data.slice(..most));
        let (node, handle, offset) = (file.held().node, open.handle, call.offset);
        let write = Write { node, handle, offset, data, cached: false, kill_setid: false };
        let written = file.at.export.ask(&self.cx(&file.at.who.cred), write).await?.0;
        Ok(Rwrite { count: written.min(most as u64) as u32 })
    }

    pub(crate) async fn fsync(&self, file: &File, data_only: bool) -> Result<()> {
        let (node, ops) = (file.held().node, file.at.export.abilities.ops);
        let handle = file.open.as_ref().map_or(Handle::NONE, |open| open.handle);
        let cx = self.cx(&file.at.who.cred);
        // What a tree without it has accepted is where it can be.
        match file.at.kind {
            FileKind::Directory if ops.has(OpCode::FSyncDir) => {
                file.at.export.ask(&cx, FSyncDir { node, handle, data_only }).await.map(drop)
            }
            FileKind::Regular if ops.has(OpCode::FSync) => {
                file.at.export.ask(&cx, FSync { node, handle, data_only }).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn statfs(&self, file: &File) -> Result<Rstatfs> {
        let export = &file.at.export;
        let stat = export.ask(&self.cx(&file.at.who.cred), StatFs { node: file.held().node }).await?;
        let space = Space {
            kind: MAGIC,
            // There is one unit, and it is that of the counts.
            bsize: stat.frsize,
            blocks: stat.blocks,
            bfree: stat.bfree,
            bavail: stat.bavail,
            files: stat.files,
            ffree: stat.ffree,
            fsid: export.fsid,
            namelen: if stat.namelen == 0 { NAME_MAX } else { stat.namelen },
        };
        Ok(Rstatfs { space })
    }

    pub(crate) async fn readdir(&self, call: &Treaddir, file: &File) -> Result<Rreaddir> {
        if file.at.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let handle = file.opened()?.handle;
        let mut list = List { data: BytesMut::new(), room: self.room(call.count) as usize };
        for &(name, offset) in dots(call.offset) {
            let path = self.dot(file, offset).await?;
            if !list.takes(path, Some(FileKind::Directory), offset, name) {
                return list.end();
            }
        }
        let size = (list.room - list.data.len()) as u32;
        let read = ReadDir { node: file.held().node, handle, cookie: below(call.offset), size };
        let listed = file.at.export.ask(&self.cx(&file.at.who.cred), read).await?;
        for Dirent { ino, cookie, kind, name } in &listed.entries {
            if !list.takes(convert::path(*ino, file.at.dev), *kind, *cookie, name) {
                return list.end();
            }
        }
        match listed.entries.is_empty() && !listed.eof {
            true => list.end(),
            false => Ok(list.reply()),
        }
    }

    /// The number that `.` or `..` shows.
    async fn dot(&self, dir: &File, offset: u64) -> Result<u64> {
        let (export, node) = (&dir.at.export, dir.held().node);
        if offset == DOT_DOT && node != Node::ROOT && export.abilities.ops.has(OpCode::Parent) {
            // Who may list a directory may perhaps not search it.
            if let Ok(entry) = export.ask(&self.cx(&dir.at.who.cred), Parent { dir: node }).await {
                drop(Held::of(export, &entry));
                return Ok(convert::path(entry.attr.ino, entry.attr.dev));
            }
        }
        let attr = self.attr(dir).await?;
        Ok(convert::path(attr.ino, attr.dev))
    }
}

/// A listing as it grows.
struct List {
    data: BytesMut,
    room: usize,
}

impl List {
    /// Adds a name; false where it does not fit.
    fn takes(&mut self, path: u64, kind: Option<FileKind>, offset: u64, name: &[u8]) -> bool {
        let fits = self.data.len() + ENTRY + name.len() <= self.room;
        if fits && let Some(name) = Text::new(Bytes::copy_from_slice(name)) {
            let qid_kind = kind.map_or(QidKind::empty(), convert::qid_kind);
            let qid = Qid { kind: qid_kind, version: 0, path };
            let kind = kind.map_or(0, FileKind::dirent_type);
            put_entry(&mut self.data, &Entry { qid, offset, kind, name });
        }
        fits
    }

    /// The listing, which goes on.
    ///
    /// # Errors
    /// `EINVAL` where not even one name fits: an empty listing would be the end of the directory.
    fn end(self) -> Result<Rreaddir> {
        if self.data.is_empty() { Err(Errno::EINVAL.because("no room for a name")) } else { Ok(self.reply()) }
    }

    fn reply(self) -> Rreaddir {
        Rreaddir { data: self.data.freeze() }
    }
}
