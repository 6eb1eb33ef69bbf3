// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a request failed, when the server says no more than that it did.
//!
//! Servers have one answer for "exists already", "not empty", "is a directory" and "no space", and one for "no such file" and
//! "not a directory". Programs depend on the difference, so after such an answer the state of things is looked at: a few
//! requests, after failures only.

use outrigger_core::{Errno, FileKind};
use std::future::Future;

/// The longest name that file systems of Linux have, in bytes.
const NAME_MAX: usize = 255;

/// What was attempted, by paths at the server.
#[derive(Debug, Clone, Copy)]
pub enum Attempt<'a> {
    /// To open a file, or to read an open one.
    Open {
        /// Its path.
        path: &'a [u8],
        /// Whether for writing.
        writes: bool,
    },
    /// To write to a file.
    Write {
        /// Its path.
        path: &'a [u8],
    },
    /// To make a name.
    Make {
        /// The new path.
        path: &'a [u8],
    },
    /// To give a file another name.
    Link {
        /// The path it has.
        from: &'a [u8],
        /// The new path.
        to: &'a [u8],
    },
    /// To remove a name that is not a directory.
    Remove {
        /// Its path.
        path: &'a [u8],
    },
    /// To remove a directory.
    RmDir {
        /// Its path.
        path: &'a [u8],
    },
    /// To list a directory.
    List {
        /// Its path.
        path: &'a [u8],
    },
    /// To rename.
    Rename {
        /// The old path.
        from: &'a [u8],
        /// The new path.
        to: &'a [u8],
        /// Whether what has the new name may be replaced.
        replaces: bool,
    },
    /// To change the size of a file.
    Resize {
        /// Its path.
        path: &'a [u8],
    },
    /// To change attributes but the size.
    SetAttr,
}

/// Looks at the state of a server. What cannot be found out is `None`.
pub trait Probe: Sync {
    /// The kind of what is at a path; of a symbolic link itself.
    fn kind_at(&self, path: &[u8]) -> impl Future<Output = Option<FileKind>> + Send;

    /// Whether the directory at a path is known to have no names.
    fn is_empty(&self, path: &[u8]) -> impl Future<Output = Option<bool>> + Send;

    /// What the file system at a path lacks: `ENOSPC` or `EROFS`.
    fn lack(&self, path: &[u8]) -> impl Future<Output = Option<Errno>> + Send;

    /// `EXDEV` when two paths are on different file systems.
    fn separate(&self, one: &[u8], other: &[u8]) -> impl Future<Output = Option<Errno>> + Send;
}

/// Why an attempt failed, as far as it shows; `failed` says that the server named no reason at all, not even that something is
/// missing.
pub async fn diagnose(probe: &impl Probe, attempt: Attempt<'_>, failed: bool) -> Option<Errno> {
    match attempt {
        Attempt::Open { path, writes } => why_not_opened(probe, path, writes && failed).await,
        Attempt::Write { path } => probe.lack(path).await,
        Attempt::Make { path } => why_not_made(probe, path, failed).await,
        Attempt::Link { from, to } => match why_not_made(probe, to, failed).await {
            None if failed => Some(probe.separate(from, to).await.unwrap_or(Errno::EPERM)),
            errno => errno,
        },
        Attempt::Remove { path } => match probe.kind_at(path).await {
            Some(FileKind::Directory) => Some(Errno::EISDIR),
            None => missing(probe, path).await,
            _ if failed => probe.lack(path).await,
            _ => None,
        },
        Attempt::RmDir { path } => why_not_removed(probe, path).await,
        Attempt::List { path } => match probe.kind_at(path).await {
            Some(FileKind::Directory) => None,
            Some(_) => Some(Errno::ENOTDIR),
            None => missing(probe, path).await,
        },
        Attempt::Rename { from, to, replaces } => why_not_renamed(probe, from, to, replaces).await,
        Attempt::Resize { path } => match probe.kind_at(path).await? {
            FileKind::Regular if failed => Some(probe.lack(path).await.unwrap_or(Errno::EFBIG)),
            FileKind::Directory => Some(Errno::EISDIR),
            FileKind::Regular => None,
            _ => Some(Errno::EINVAL),
        },
        Attempt::SetAttr => None,
    }
}

/// Why there is no file at a path.
async fn missing(probe: &impl Probe, path: &[u8]) -> Option<Errno> {
    match probe.kind_at(parent(path)).await {
        Some(FileKind::Directory | FileKind::Symlink) => Some(Errno::ENOENT),
        Some(_) => Some(Errno::ENOTDIR),
        None => None,
    }
}

async fn why_not_opened(probe: &impl Probe, path: &[u8], may_lack: bool) -> Option<Errno> {
    match probe.kind_at(path).await {
        Some(FileKind::Directory) => Some(Errno::EISDIR),
        Some(FileKind::Symlink) => Some(Errno::ELOOP),
        None => missing(probe, path).await,
        _ if may_lack => probe.lack(path).await,
        _ => None,
    }
}

async fn why_not_made(probe: &impl Probe, path: &[u8], failed: bool) -> Option<Errno> {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if name.len() > NAME_MAX {
        return Some(Errno::ENAMETOOLONG);
    }
    if probe.kind_at(path).await.is_some() {
        return Some(Errno::EEXIST);
    }
    if failed { probe.lack(parent(path)).await } else { missing(probe, path).await }
}

async fn why_not_removed(probe: &impl Probe, path: &[u8]) -> Option<Errno> {
    match probe.kind_at(path).await {
        Some(FileKind::Directory) => {}
        Some(_) => return Some(Errno::ENOTDIR),
        None => return missing(probe, path).await,
    }
    match probe.is_empty(path).await {
        Some(true) => Some(probe.lack(path).await.unwrap_or(Errno::EBUSY)),
        // A directory that cannot be read is most likely not empty.
        Some(false) | None => Some(Errno::ENOTEMPTY),
    }
}

async fn why_not_renamed(probe: &impl Probe, from: &[u8], to: &[u8], replaces: bool) -> Option<Errno> {
    let Some(moved) = probe.kind_at(from).await else { return missing(probe, from).await };
    let is_directory = moved == FileKind::Directory;
    if is_directory && is_below(from, to) {
        return Some(Errno::EINVAL);
    }
    match probe.kind_at(to).await {
        Some(_) if !replaces => Some(Errno::EEXIST),
        Some(FileKind::Directory) if is_directory => Some(Errno::ENOTEMPTY),
        Some(FileKind::Directory) => Some(Errno::EISDIR),
        Some(_) if is_directory => Some(Errno::ENOTDIR),
        None if missing(probe, to).await == Some(Errno::ENOTDIR) => Some(Errno::ENOTDIR),
        _ => match probe.separate(from, to).await {
            None => probe.lack(parent(to)).await,
            errno => errno,
        },
    }
}

/// The directory of a path.
pub fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        None | Some(0) => b"/",
        Some(slash) => &path[..slash],
    }
}

/// Whether `path` is below the directory at `dir`.
pub fn is_below(dir: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"))
}

/// What strerror(3) says for errors that servers report as a mere failure; some servers send it along.
const TOLD: &[Errno] = &[
    Errno::EEXIST,
    Errno::ENOTDIR,
    Errno::EISDIR,
    Errno::ENOTEMPTY,
    Errno::ENOSPC,
    Errno::EDQUOT,
    Errno::EROFS,
    Errno::EXDEV,
    Errno::EBUSY,
    Errno::EFBIG,
    Errno::EMLINK,
    Errno::EMFILE,
    Errno::ETXTBSY,
    Errno::ELOOP,
    Errno::ENAMETOOLONG,
    Errno::EPERM,
    Errno::ESTALE,
];

/// The error that a server means whose words are those of strerror(3).
pub fn errno_of(words: &[u8]) -> Option<Errno> {
    let words = words.trim_ascii();
    TOLD.iter().copied().find(|errno| words.eq_ignore_ascii_case(errno.message().as_bytes()))
}

/// The error that a server means whose words end with those of strerror(3), as in `name: File exists`.
pub fn errno_at_end(words: &[u8]) -> Option<Errno> {
    let words = words.trim_ascii();
    let ends = |errno: &Errno| {
        let message = errno.message().as_bytes();
        words.len() >= message.len() && words[words.len() - message.len()..].eq_ignore_ascii_case(message)
    };
    TOLD.iter().copied().chain([Errno::ENOENT, Errno::EACCES]).find(ends)
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

    #[test]
    fn words_of_servers_are_errors() {
        assert_eq!(errno_of(b" no space left on device\r"), Some(Errno::ENOSPC));
        assert_eq!(errno_of(b"Failure"), None);
        assert_eq!(errno_at_end(b"/a/b: no such file or directory"), Some(Errno::ENOENT));
        assert_eq!(
            (errno_of(b"x: File exists"), errno_at_end(b"x: File exists")),
            (None, Some(Errno::EEXIST))
        );
    }
}
