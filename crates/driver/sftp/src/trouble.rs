// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a request failed, when the server says no more than that it did.
//!
//! OpenSSH has one code for "exists already", "not empty", "is a directory", "no space" and most other errors, and one for
//! "no such file", "not a directory" and "too many links in a path". Programs depend on the difference, so after such an answer
//! the state of things is looked at: a few requests, after failures only.

use crate::attr::kind;
use crate::fault::Fault;
use crate::inner::Inner;
use crate::link::Again;
use outrigger_core::{Errno, Error, FileKind};
use outrigger_proto_sftp::{Attrs, Extensions, OpenFlags, Request, StatVfs, StatusCode};

/// Set in [`StatVfs::flag`] when nothing can be changed.
const READ_ONLY: u64 = 1;
/// The longest name that file systems of Linux have, in bytes.
const NAME_MAX: usize = 255;

/// What was attempted, by paths at the server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Attempt<'a> {
    /// To open a file, or to read an open one.
    Open { path: &'a [u8], flags: OpenFlags },
    /// To write to a file.
    Write { path: &'a [u8] },
    /// To make a name.
    Make { path: &'a [u8] },
    /// To give a file another name.
    Link { from: &'a [u8], to: &'a [u8] },
    /// To remove a name that is not a directory.
    Remove { path: &'a [u8] },
    /// To remove a directory.
    RmDir { path: &'a [u8] },
    /// To rename; whether what has the new name may be replaced.
    Rename { from: &'a [u8], to: &'a [u8], replaces: bool },
    /// To change the size of a file.
    Resize { path: &'a [u8] },
    /// To change attributes but the size.
    SetAttr,
}

impl Inner {
    /// The error to report for a failed attempt.
    pub(crate) async fn why(&self, fault: Fault, attempt: Attempt<'_>) -> Error {
        if let (Attempt::SetAttr | Attempt::Resize { .. }, Some(StatusCode::PermissionDenied)) =
            (attempt, fault.code())
        {
            // Permission bits do not matter for these: it is not the owner who asks.
            return Errno::EPERM.into();
        }
        if !fault.is_vague() {
            return fault.into();
        }
        match self.diagnose(&fault, attempt).await {
            Some(errno) => errno.into(),
            None => fault.into(),
        }
    }

    async fn diagnose(&self, fault: &Fault, attempt: Attempt<'_>) -> Option<Errno> {
        let failed = fault.code() == Some(StatusCode::Failure);
        match attempt {
            Attempt::Open { path, flags } => self.why_not_opened(path, flags, failed).await,
            Attempt::Write { path } => self.lack(path).await,
            Attempt::Make { path } => self.why_not_made(path, failed).await,
            Attempt::Link { from, to } => match self.why_not_made(to, failed).await {
                None if failed => Some(self.separate(from, to).await.unwrap_or(Errno::EPERM)),
                errno => errno,
            },
            Attempt::Remove { path } => match self.kind_at(path).await {
                Some(FileKind::Directory) => Some(Errno::EISDIR),
                None => self.missing(path).await,
                _ if failed => self.lack(path).await,
                _ => None,
            },
            Attempt::RmDir { path } => self.why_not_removed(path).await,
            Attempt::Rename { from, to, replaces } => self.why_not_renamed(from, to, replaces).await,
            Attempt::Resize { path } => match self.kind_at(path).await? {
                FileKind::Regular if failed => Some(self.lack(path).await.unwrap_or(Errno::EFBIG)),
                FileKind::Directory => Some(Errno::EISDIR),
                FileKind::Regular => None,
                _ => Some(Errno::EINVAL),
            },
            Attempt::SetAttr => None,
        }
    }

    async fn kind_at(&self, path: &[u8]) -> Option<FileKind> {
        self.attrs_at(path).await.map(|attrs| kind(&attrs))
    }

    /// Attributes of the name itself.
    async fn attrs_at(&self, path: &[u8]) -> Option<Attrs> {
        let request = Request::LStat { path };
        let look = self.link.run(Again::Always, |session| {
            let request = &request;
            async move { session.begin(request).await.attrs().await }
        });
        look.await.ok()
    }

    /// What statvfs(3) says there.
    pub(crate) async fn space(&self, path: &[u8]) -> Result<StatVfs, Fault> {
        let request = Request::StatVfs { path };
        let body = self.link.run(Again::Always, |session| {
            let request = &request;
            async move { session.begin(request).await.extended().await }
        });
        Ok(StatVfs::decode(&body.await?)?)
    }

    /// What the file system at a path lacks, if that is the reason.
    async fn lack(&self, path: &[u8]) -> Option<Errno> {
        if !self.extensions.contains(Extensions::STATVFS) {
            return None;
        }
        let space = self.space(path).await.ok()?;
        match space {
            _ if space.flag & READ_ONLY != 0 => Some(Errno::EROFS),
            _ if space.bavail == 0 || (space.files > 0 && space.favail == 0) => Some(Errno::ENOSPC),
            _ => None,
        }
    }

    /// `EXDEV` when the places are on different file systems.
    async fn separate(&self, one: &[u8], other: &[u8]) -> Option<Errno> {
        let one = self.space(parent(one)).await.ok()?;
        let other = self.space(parent(other)).await.ok()?;
        (one.fsid != other.fsid).then_some(Errno::EXDEV)
    }

    /// Why there is no file at a path.
    async fn missing(&self, path: &[u8]) -> Option<Errno> {
        match self.kind_at(parent(path)).await {
            Some(FileKind::Directory | FileKind::Symlink) => Some(Errno::ENOENT),
            Some(_) => Some(Errno::ENOTDIR),
            None => None,
        }
    }

    async fn why_not_opened(&self, path: &[u8], flags: OpenFlags, failed: bool) -> Option<Errno> {
        match self.kind_at(path).await {
            Some(FileKind::Directory) => Some(Errno::EISDIR),
            Some(FileKind::Symlink) => Some(Errno::ELOOP),
            None => self.missing(path).await,
            _ if failed && flags.contains(OpenFlags::WRITE) => self.lack(path).await,
            _ => None,
        }
    }

    async fn why_not_made(&self, path: &[u8], failed: bool) -> Option<Errno> {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if name.len() > NAME_MAX {
            return Some(Errno::ENAMETOOLONG);
        }
        if self.kind_at(path).await.is_some() {
            return Some(Errno::EEXIST);
        }
        if failed { self.lack(parent(path)).await } else { self.missing(path).await }
    }

    async fn why_not_removed(&self, path: &[u8]) -> Option<Errno> {
        match self.kind_at(path).await {
            Some(FileKind::Directory) => {}
            Some(_) => return Some(Errno::ENOTDIR),
            None => return self.missing(path).await,
        }
        let names = self.link.run(Again::Always, |session| async move {
            let handle = session.begin(&Request::OpenDir { path }).await.handle().await?;
            let names = session.begin(&Request::ReadDir { handle: &handle }).await.names().await;
            session.close(&handle);
            names
        });
        match names.await {
            Ok(names) if names.iter().any(|named| &named.name[..] != b"." && &named.name[..] != b"..") => {
                Some(Errno::ENOTEMPTY)
            }
            Ok(_) => Some(self.lack(path).await.unwrap_or(Errno::EBUSY)),
            // A directory that cannot be read is most likely not empty.
            Err(_) => Some(Errno::ENOTEMPTY),
        }
    }

    async fn why_not_renamed(&self, from: &[u8], to: &[u8], replaces: bool) -> Option<Errno> {
        let Some(moved) = self.kind_at(from).await else { return self.missing(from).await };
        let is_directory = moved == FileKind::Directory;
        if is_directory && is_below(from, to) {
            return Some(Errno::EINVAL);
        }
        match self.kind_at(to).await {
            Some(_) if !replaces => Some(Errno::EEXIST),
            Some(FileKind::Directory) if is_directory => Some(Errno::ENOTEMPTY),
            Some(FileKind::Directory) => Some(Errno::EISDIR),
            Some(_) if is_directory => Some(Errno::ENOTDIR),
            None if self.missing(to).await == Some(Errno::ENOTDIR) => Some(Errno::ENOTDIR),
            _ => match self.separate(from, to).await {
                None => self.lack(parent(to)).await,
                errno => errno,
            },
        }
    }
}

fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        None | Some(0) => b"/",
        Some(slash) => &path[..slash],
    }
}

fn is_below(dir: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_path() {
        for (path, expected) in [("/a/b", "/a"), ("/a", "/"), ("/", "/")] {
            assert_eq!(parent(path.as_bytes()), expected.as_bytes(), "{path}");
        }
        assert!(is_below(b"/a", b"/a/b") && !is_below(b"/a", b"/ab") && !is_below(b"/a", b"/a"));
    }
}
