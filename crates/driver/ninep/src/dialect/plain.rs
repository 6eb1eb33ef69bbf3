// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of 9P2000, and of 9P2000.u, whose files of other kinds have what they are in an extension.
//!
//! Servers differ in what a name does that is there already. `Tcreate` is refused by those of Plan 9, and takes the file, or even empties
//! it, at some others: so it is looked for first. `Twstat` replaces the file of the new name at u9fs and npfs, as rename(2) does, and is
//! refused by those of Plan 9: there that file gets another name, and is removed when the new one has its own.

use super::stat::{self, DIR, LINK, SYMLINK};
use super::{Listed, New, Opened, Pages, is_directory};
use crate::convert;
use crate::wire::{Fault, Fid, Session, Walked, once};
use bytes::Bytes;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Time};
use outrigger_proto_ninep::{
    Attrs, Dialect, QidKind, SetAttrs, SetMask, Stat, Tcreate, Text, Topen, Tread, Tstat, Twstat, stats,
};
use outrigger_toolkit_remote::unique_name;
use std::sync::Arc;

/// In the mode of an open: the file is emptied.
const TRUNC: u8 = 0x10;
/// What a file is called that is being replaced.
const REPLACED: &str = ".outrigger-replaced-";

/// How to open a file: what is beside reading, writing and emptying is done here, or not at all.
fn mode_of(flags: OpenFlags) -> u8 {
    let access =
        if flags.contains(OpenFlags::READ_WRITE) { 2 } else { flags.contains(OpenFlags::WRITE_ONLY).into() };
    access | if flags.contains(OpenFlags::TRUNC) { TRUNC } else { 0 }
}

fn is(fault: &Fault, errno: Errno) -> bool {
    matches!(fault, Fault::Known(error) if error.errno == errno)
}

impl Session {
    async fn stat(&self, fid: u32) -> Result<Stat, Fault> {
        self.ask(Tstat { fid }).await.map(|told| told.stat)
    }

    pub(super) async fn attrs_plain(&self, fid: u32) -> Result<Attrs, Fault> {
        Ok(stat::attrs(&self.stat(fid).await?, self.dialect, &self.people)?)
    }

    pub(super) async fn open_plain(&self, fid: u32, flags: OpenFlags) -> Result<Opened, Fault> {
        let call = Topen { fid, mode: mode_of(flags) };
        let opened = self.ask_or_change(call, flags.contains(OpenFlags::TRUNC)).await?;
        Ok((opened.qid, opened.iounit))
    }

    pub(super) async fn page_plain(&self, pages: &mut Pages<'_>) -> Result<Vec<Listed>, Fault> {
        let Pages { dir, offset, count } = pages;
        let data = self.ask(Tread { fid: dir.number, offset: *offset, count: *count }).await?.data;
        if data.len() > *count as usize {
            return Err(Errno::EIO
                .because("the server sends more of a listing than it was asked for")
                .into());
        }
        *offset += data.len() as u64;
        let page = stats(data, self.dialect)
            .map_err(|error| Errno::EIO.because(format!("the server's listing: {error}")))?;
        let listed = page.into_iter().map(|told| {
            // An entry whose attributes cannot be decoded is listed without them; asking about that file gives the error.
            let attrs = stat::attrs(&told, self.dialect, &self.people).ok();
            let kind = attrs.as_ref().and_then(|attrs| convert::kind(attrs.mode).ok());
            Listed { name: told.name, ino: told.qid.path, kind, attrs: attrs.map(Box::new) }
        });
        Ok(listed.collect())
    }

    /// What has a name in a directory, if anything has.
    async fn present(self: &Arc<Self>, dir: u32, name: &Text) -> Result<Option<(Fid, Walked)>, Fault> {
        match self.walk_to(dir, std::slice::from_ref(name)).await {
            Err(fault) if is(&fault, Errno::ENOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Makes something in the directory of a fid, which stands for that then.
    async fn create_new(
        self: &Arc<Self>,
        dir: &Fid,
        name: Text,
        (perm, mode, extension): (u32, u8, Text),
    ) -> Result<Opened, Fault> {
        if self.present(dir.number, &name).await?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let call = Tcreate { fid: dir.number, name, perm, mode, extension: Some(extension) };
        let made = self.change(call).await?;
        Ok((made.qid, made.iounit))
    }

    pub(super) async fn create_plain(
        self: &Arc<Self>,
        dir: &Fid,
        name: Text,
        (flags, mode): (OpenFlags, u32),
    ) -> Result<Opened, Fault> {
        let perm = stat::permissions(mode, self.dialect)?;
        let mode = mode_of(flags - OpenFlags::TRUNC);
        self.create_new(dir, name, (perm, mode, Text::default())).await
    }

    pub(super) async fn make_plain(self: &Arc<Self>, dir: u32, name: Text, new: New) -> Result<(), Fault> {
        let (perm, extension) = match new {
            New::Directory { mode } => (DIR | stat::permissions(mode, self.dialect)?, Text::default()),
            New::Symlink { target } => (SYMLINK | 0o777, target),
            New::Node { kind, mode, device } => {
                let (bits, extension) = stat::special(kind, device)?;
                (bits | stat::permissions(mode, self.dialect)?, extension)
            }
        };
        let (fid, _) = self.walk_to(dir, &[]).await?;
        let (qid, _) = self.create_new(&fid, name, (perm, 0, extension)).await?;
        // Some servers make a plain file of what they do not know. The kind in the reply is trusted if it is the one that was asked for.
        let is_it = match perm & (DIR | SYMLINK) {
            DIR => qid.kind.contains(QidKind::DIRECTORY),
            SYMLINK if !qid.kind.contains(QidKind::SYMLINK) => {
                self.stat(fid.number).await?.mode & SYMLINK != 0
            }
            _ => !qid.kind.contains(QidKind::DIRECTORY),
        };
        match is_it {
            true => Ok(()),
            false => {
                Err(Errno::EIO.because("the server has made a file of another kind in its place").into())
            }
        }
    }

    pub(super) async fn link_plain(self: &Arc<Self>, dir: u32, name: Text, file: &Fid) -> Result<(), Fault> {
        let extension = Text::new(format!("{}\n", file.number)).unwrap_or_default();
        let (fid, _) = self.walk_to(dir, &[]).await?;
        self.create_new(&fid, name, (LINK | 0o777, 0, extension)).await.map(drop)
    }

    async fn wstat(&self, fid: u32, stat: Stat) -> Result<(), Fault> {
        let len = stat.encode(self.dialect).len() as u16;
        self.change(Twstat { fid, len, stat }).await.map(drop)
    }

    async fn name_is(&self, file: &Fid, name: Text) -> Result<(), Fault> {
        self.wstat(file.number, Stat { name, ..Stat::untouched() }).await
    }

    pub(super) async fn rename_plain(
        self: &Arc<Self>,
        dir: u32,
        name: Text,
        to_name: Text,
    ) -> Result<(), Fault> {
        let (file, walked) = self.walk_to(dir, std::slice::from_ref(&name)).await?;
        let Some((other, replaced)) = self.present(dir, &to_name).await? else {
            return self.name_is(&file, to_name).await;
        };
        if walked
            .to
            .zip(replaced.to)
            .is_some_and(|(one, other)| convert::handle(&one) == convert::handle(&other))
        {
            // Two names of one file: rename(2) leaves both.
            return Ok(());
        }
        match (is_directory(&walked), is_directory(&replaced)) {
            (true, false) => return Err(Errno::ENOTDIR.into()),
            (false, true) => return Err(Errno::EISDIR.into()),
            _ => {}
        }
        match self.name_is(&file, to_name.clone()).await {
            Err(fault) if is(&fault, Errno::EEXIST) => {
                if is_directory(&replaced) && !self.is_empty(dir, &to_name).await? {
                    return Err(Errno::ENOTEMPTY.into());
                }
                self.replace(&file, to_name, &other).await
            }
            renamed => renamed,
        }
    }

    /// Gives a file the name of another one at a server that refuses that: nothing is lost whatever fails, but for a moment nothing has the
    /// name.
    async fn replace(&self, file: &Fid, to_name: Text, other: &Fid) -> Result<(), Fault> {
        let aside = Text::new(unique_name(REPLACED)?.as_bytes().to_vec()).unwrap_or_default();
        let left = |fault: Fault, what: &str| {
            let (Fault::Known(error) | Fault::Lost(error)) = fault;
            let (aside, why) = (aside.escape_ascii(), error.why());
            Errno::EIO
                .because(format!("{what}: the file that had the name is called '{aside}' ({why})"))
                .into()
        };
        self.name_is(other, aside.clone()).await?;
        if let Err(fault) = self.name_is(file, to_name.clone()).await.map_err(once) {
            return match self.name_is(other, to_name).await {
                Ok(()) => Err(fault),
                Err(_) => Err(left(fault, "not renamed")),
            };
        }
        self.remove_file(other).await.map_err(|fault| left(fault, "renamed, and nothing is lost"))
    }

    async fn is_empty(self: &Arc<Self>, dir: u32, name: &Text) -> Result<bool, Fault> {
        let (fid, _) = self.walk_to(dir, std::slice::from_ref(name)).await?;
        let mut pages = self.list(&fid).await?;
        self.page(&mut pages).await.map(|page| page.is_empty())
    }

    pub(super) async fn read_link_plain(&self, fid: u32) -> Result<Bytes, Fault> {
        let stat = self.stat(fid).await?;
        match stat.extension.filter(|_| self.dialect == Dialect::Unix && stat.mode & SYMLINK != 0) {
            Some(target) => Ok(target.into_bytes()),
            None => Err(Errno::EINVAL.because("the server takes it for no symbolic link").into()),
        }
    }

    pub(super) async fn set_attrs_plain(&self, fid: u32, set: &SetAttrs, now: Time) -> Result<(), Fault> {
        // Of what is to be changed, these leave it open how the file is.
        let is_plain =
            SetMask::SIZE | SetMask::MTIME | SetMask::MTIME_SET | SetMask::ATIME | SetMask::ATIME_SET;
        let is = if is_plain.contains(set.valid) { Stat::default() } else { self.stat(fid).await? };
        match stat::changes(set, &is, (self.dialect, &self.people), now)? {
            Some(stat) => self.wstat(fid, stat).await,
            None => Ok(()),
        }
    }

    /// A change of nothing puts the file on stable storage (stat(5) of Plan 9). A server that changes no attributes of the file, or of any,
    /// has no such thing.
    pub(super) async fn sync_plain(&self, fid: u32) -> Result<(), Fault> {
        const NO_WAY: &[Errno] =
            &[Errno::EPERM, Errno::EACCES, Errno::EROFS, Errno::ENOSYS, Errno::EOPNOTSUPP];
        let stat = Stat::untouched();
        let len = stat.encode(self.dialect).len() as u16;
        match self.ask(Twstat { fid, len, stat }).await {
            Err(Fault::Known(error)) if NO_WAY.contains(&error.errno) => Ok(()),
            synced => synced.map(drop),
        }
    }
}
