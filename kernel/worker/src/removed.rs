// SPDX-License-Identifier: GPL-2.0-only
//! Files that lose their last name while they are open. The next process could not find them when this one dies, so each
//! keeps a name in a hidden directory at the root. The process that keeps the mount's state says which files are open,
//! and when a name is not needed any more (`crates/succession`).

use crate::listing::Listing;
use crate::task::{Fd, Task};
use crate::tree::{Tree, c_string};
use outrigger_core::ops::{Link, Rename, Unlink};
use outrigger_core::reply::Entry;
use outrigger_core::{Credentials, Effect, Errno, Error, Name, Node, Reply, Request, Result};
use outrigger_succession::place::REMOVED_NAME;
use std::cell::Cell;
use std::ffi::CStr;

/// The directory in the root.
const DIRECTORY: &CStr = c".outrigger-removed";
/// How much of it is listed at once, in bytes.
const PORTION: u32 = 32 << 10;

/// The directory, if there is one.
pub struct Removed(Cell<Option<Fd>>);

impl Removed {
    /// What the process before has left.
    pub fn find(task: &Task, root: Fd) -> Self {
        Removed(Cell::new(open(task, root).ok()))
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.0.get().is_some()
    }

    /// The descriptor, to be closed.
    pub fn take(&self) -> Option<Fd> {
        self.0.take()
    }

    /// The directory, which is made when it is needed.
    fn directory(&self, task: &Task, root: Fd) -> Result<Fd> {
        if let Some(fd) = self.0.get() {
            return Ok(fd);
        }
        let found = match open(task, root) {
            Err(error) if error.errno == Errno::ENOENT => {
                unnoticed(task, root, || match task.mkdir(root, DIRECTORY, 0o700) {
                    // Another job has made it meanwhile.
                    Err(error) if error.errno == Errno::EEXIST => Ok(()),
                    made => made,
                })?;
                open(task, root)?
            }
            found => found?,
        };
        match self.0.get() {
            Some(other) => {
                task.close(found);
                Ok(other)
            }
            None => {
                self.0.set(Some(found));
                Ok(found)
            }
        }
    }
}

fn open(task: &Task, root: Fd) -> Result<Fd> {
    task.open(root, DIRECTORY, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
}

/// Changes the root, which keeps its times.
fn unnoticed(task: &Task, root: Fd, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = task.stat(root, c"")?;
    change()?;
    let [accessed, modified] = [before.stx_atime, before.stx_mtime]
        .map(|time| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec.into() });
    task.set_times(root, &[accessed, modified])
}

/// Of the links to the root, those that programs see: the directory has one. Types that do not count them say 1.
pub fn visible_links(links: u32) -> u32 {
    if links > 2 { links - 1 } else { links }
}

/// Whether that is the directory, as any type spells it.
fn is_hidden((dir, name): (Node, &Name)) -> bool {
    dir == Node::ROOT && name.strip_suffix(b".").unwrap_or(name).eq_ignore_ascii_case(REMOVED_NAME.as_bytes())
}

/// How the name of a file is kept while the file is replaced.
enum Kept {
    /// By a link.
    Linked,
    /// The file was moved away, for its type has no links.
    Moved,
    /// Not at all.
    Lost,
}

impl Tree {
    /// Why a request is not answered: programs are not shown the directory.
    pub(crate) fn refuses(&self, request: &Request) -> Option<Error> {
        self.removed.as_ref()?;
        let (mut sought, mut made) = (None, None);
        if let Request::Lookup(op) = request {
            sought = Some((op.dir, &op.name));
        }
        for effect in request.effects() {
            match effect {
                Effect::Adds { dir, name, .. } => made = Some((dir, name)),
                Effect::Removes { dir, name, .. } => sought = Some((dir, name)),
                Effect::Moves { dir, name, to_dir, to_name, .. } => {
                    (sought, made) = (Some((dir, name)), Some((to_dir, to_name)));
                }
                _ => {}
            }
        }
        if sought.is_some_and(is_hidden) {
            return Some(Errno::ENOENT.into());
        }
        let taken = || Errno::EPERM.because(format!("'{REMOVED_NAME}' is for removed files that are open"));
        made.is_some_and(is_hidden).then(taken)
    }

    fn removed(&self, task: &Task) -> Result<Fd> {
        let removed = self.removed.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        removed.directory(task, self.node(Node::ROOT)?)
    }

    /// Answers a change by which an open file loses a name, or that makes one without a name: the file keeps this one, if
    /// that can be. Or one by which a file that has kept a name would get another one.
    pub fn answer_keeping(&self, task: &Task, cred: &Credentials, kept: &Name, request: Request) -> Reply {
        let writable = self.refuses(&request).map_or(Ok(()), Err).and_then(|()| self.make_writable(task));
        let kept = match writable.and_then(|()| c_string(kept)) {
            Ok(kept) => kept,
            Err(error) => return Reply::Error(error),
        };
        match request {
            Request::Unlink(op) => self.unlink_keeping(task, &kept, &op).into(),
            Request::Rename(op) => self.rename_keeping(task, &kept, &op).into(),
            Request::Link(op) => self.link_another(task, &op).into(),
            Request::TmpFile(op) => self.tmpfile(task, cred, &op, Some(&kept)).into(),
            other => self.answer(task, cred, other),
        }
    }

    fn unlink_keeping(&self, task: &Task, kept: &CStr, op: &Unlink) -> Result<()> {
        let (dir, name) = (self.node(op.dir)?, c_string(&op.name)?);
        let moved = self.removed(task).and_then(|removed| task.rename((dir, &name), (removed, kept), 0));
        // A full file system, a quota: the file is removed all the same.
        moved.or_else(|_| self.remove(task, op.dir, &op.name, 0))
    }

    fn rename_keeping(&self, task: &Task, kept: &CStr, op: &Rename) -> Result<()> {
        let (dir, name) = (self.node(op.to_dir)?, c_string(&op.to_name)?);
        let how = self.keep(task, (dir, &name), kept);
        let renamed = self.rename(task, op);
        if let (Err(_), Ok(removed)) = (&renamed, self.removed(task)) {
            // What cannot be undone either shows in what was the error.
            match how {
                Kept::Linked => drop(task.unlink(removed, kept, 0)),
                Kept::Moved => drop(task.rename((removed, kept), (dir, &name), 0)),
                Kept::Lost => {}
            }
        }
        renamed
    }

    /// Keeps the name of what is about to be replaced. A link leaves the file where it is, so that a process that loses all of this
    /// finds either the old file or the new one.
    fn keep(&self, task: &Task, place: (Fd, &CStr), kept: &CStr) -> Kept {
        let Ok(removed) = self.removed(task) else { return Kept::Lost };
        let Ok(file) = task.open(place.0, place.1, libc::O_PATH | libc::O_NOFOLLOW, 0) else {
            return Kept::Lost;
        };
        let linked = task.link(file, removed, kept);
        task.close(file);
        match linked {
            Ok(()) => Kept::Linked,
            Err(error) if [Errno::EPERM, Errno::EOPNOTSUPP].contains(&error.errno) => {
                task.rename(place, (removed, kept), 0).map_or(Kept::Lost, |()| Kept::Moved)
            }
            Err(_) => Kept::Lost,
        }
    }

    /// link(2) of a file that has kept a name: without another one nothing may name it.
    fn link_another(&self, task: &Task, op: &Link) -> Result<Entry> {
        match task.stat(self.node(op.node)?, c"")?.stx_nlink {
            0 | 1 => Err(Errno::ENOENT.because("the file has lost its last name")),
            _ => self.link(task, op),
        }
    }

    /// A file that was just made without a name gets this one, if that can be.
    pub(crate) fn link_kept(&self, task: &Task, file: Fd, kept: &CStr) {
        // Without it the file is lost when this process dies.
        drop(self.removed(task).and_then(|removed| task.link(file, removed, kept)));
    }

    /// Removes a name that is not needed any more. It may not be there: see [`Tree::answer_keeping`].
    pub(crate) fn remove_kept(&self, task: &Task, name: &Name) -> Result<()> {
        match task.unlink(self.removed(task)?, &c_string(name)?, 0) {
            Err(error) if error.errno == Errno::ENOENT => Ok(()),
            removed => removed,
        }
    }

    /// Removes all that is kept, and the directory: nothing is open.
    ///
    /// # Errors
    /// When it cannot be; then some of it is still there.
    pub fn remove_leftovers(&self, task: &Task) -> Result<()> {
        let Some(removed) = self.removed.as_ref().and_then(Removed::take) else { return Ok(()) };
        let swept = self.make_writable(task).and_then(|()| empty(task, removed));
        task.close(removed);
        let root = self.node(Node::ROOT)?;
        swept.and_then(|()| unnoticed(task, root, || task.unlink(root, DIRECTORY, libc::AT_REMOVEDIR)))
    }
}

/// Removes what [`Tree::answer_keeping`] has put there, and nothing else.
fn empty(task: &Task, removed: Fd) -> Result<()> {
    let listed = task.reopen(removed, (libc::O_RDONLY | libc::O_DIRECTORY) as u32)?;
    let mut listing = Listing::new(listed, 0, None);
    let (mut names, mut cookie) = (Vec::new(), 0);
    let read = loop {
        match listing.take(task, cookie, PORTION, 0) {
            Ok((entries, ended)) => {
                cookie = entries.last().map_or(cookie, |entry| entry.cookie);
                names.extend(entries.into_iter().map(|entry| entry.name));
                if ended {
                    break Ok(());
                }
            }
            Err(error) => break Err(error),
        }
    };
    task.close(listed);
    read?;
    let is_number = |name: &&Name| name.iter().all(u8::is_ascii_digit);
    names.iter().filter(is_number).try_for_each(|name| task.unlink(removed, &c_string(name)?, 0))
}
