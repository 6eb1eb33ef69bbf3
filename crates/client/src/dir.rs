// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing a directory with what each name leads to.

use crate::inode::{Held, Inode, UNTOLD};
use outrigger_core::listing::Circle;
use outrigger_core::ops::{Lookup, OpCode, OpenDir, ReadDir, ReadDirPlus, ReleaseDir};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, Entry, Ttl};
use outrigger_core::{Attr, Errno, Error, FileKind, Generation, Handle, Name, Result};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::vec;

/// Roughly how many bytes of entries are asked for at once.
const BATCH: u32 = 256 << 10;

/// How many names of which no more is known are looked up at once, at most: one at first, then twice as many each time.
const LOOKUPS: usize = 64;

/// The entries of a directory, in the order the tree gives them, without `.` and `..`.
///
/// A name removed while the directory is being listed may be missing. One that leads to nothing and is listed still at the end comes last: as
/// `ENOENT`, unless it leads to a file by then. After an error without a name nothing more follows.
pub struct Entries {
    held: Arc<Held>,
    handle: Handle,
    cookie: u64,
    batch: vec::IntoIter<DirentPlus>,
    /// What the next names lead to of which no more is known, as far as they were looked up.
    looked_up: VecDeque<Result<Entry>>,
    /// Names that led to nothing: removed meanwhile, unless they are still listed in the end.
    missing: Vec<Name>,
    /// Whether only those are left in `missing` that are still listed.
    is_relisted: bool,
    lookups: usize,
    /// What a name of a known kind leads to is not looked up.
    bare: bool,
    ended: bool,
    circle: Circle,
}

impl Entries {
    pub(crate) fn open(held: &Arc<Held>, bare: bool) -> Result<Self> {
        let Held { client, node } = &**held;
        let opens = client.has(OpCode::OpenDir) && !client.abilities().stateless_dirs;
        let handle = if opens { client.call(OpenDir { node: *node })?.handle } else { Handle(0) };
        let (held, batch) = (Arc::clone(held), Vec::new().into_iter());
        let (looked_up, circle) = (VecDeque::new(), Circle::default());
        let bare = bare && held.client.has(OpCode::ReadDir);
        let (missing, is_relisted) = (Vec::new(), false);
        Ok(Entries {
            held,
            handle,
            cookie: 0,
            batch,
            looked_up,
            missing,
            is_relisted,
            lookups: 1,
            bare,
            ended: false,
            circle,
        })
    }

    /// The names there are now; none where the directory is gone.
    fn names_now(&self) -> Result<HashSet<Name>> {
        let listed = Entries::open(&self.held, true).and_then(|mut again| {
            let mut names = HashSet::new();
            while !again.ended {
                again.fill()?;
                for DirentPlus { name, entry, .. } in again.batch.by_ref() {
                    if entry.node != UNTOLD {
                        self.held.client.forget(entry.node);
                    }
                    names.insert(name);
                }
            }
            Ok(names)
        });
        match listed {
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ESTALE) => Ok(HashSet::new()),
            listed => listed,
        }
    }

    fn fill(&mut self) -> Result<()> {
        let (node, handle, cookie) = (self.held.node, self.handle, self.cookie);
        if self.held.client.has(OpCode::ReadDirPlus) && !self.bare {
            let piece = self.held.client.call(ReadDirPlus { node, handle, cookie, size: BATCH })?;
            return self.accept(piece.entries, piece.eof, cookie);
        }
        let Dirents { entries, eof } =
            self.held.client.call(ReadDir { node, handle, cookie, size: BATCH })?;
        self.accept(entries.into_iter().map(name_only).collect(), eof, cookie)
    }

    /// Takes a batch in. Fails when the tree makes no progress, which would never end.
    fn accept(&mut self, entries: Vec<DirentPlus>, eof: bool, before: u64) -> Result<()> {
        if let Some(last) = entries.last() {
            self.cookie = last.cookie;
        }
        self.ended = eof;
        let closes = entries.iter().any(|entry| self.circle.closes(entry.cookie));
        self.batch = entries.into_iter();
        if closes {
            self.ended = true;
            return Err(Errno::EIO.because("the directory listing goes in a circle"));
        }
        if !eof && self.cookie == before {
            self.ended = true;
            return Err(Errno::EIO.because("the directory listing does not move on"));
        }
        Ok(())
    }

    /// Looks a name up of which no more is known, together with those that follow it: another host takes as long for all as for one.
    fn look_up(&mut self, name: &Name) -> Result<Entry> {
        if self.looked_up.is_empty() {
            let dir = self.held.node;
            let next = self.batch.as_slice().iter().take(self.lookups - 1);
            let next = next.filter(|next| self.is_unknown(&next.entry)).map(|next| &next.name);
            let names = std::iter::once(name).chain(next);
            let all = names.map(|name| Lookup { dir, name: name.clone() });
            self.looked_up = self.held.client.call_all(all).into();
            self.lookups = (2 * self.lookups).min(LOOKUPS);
        }
        self.looked_up.pop_front().unwrap_or_else(|| Err(Errno::EIO.into()))
    }

    /// Whether what a name leads to has to be looked up.
    fn is_unknown(&self, listed: &Entry) -> bool {
        listed.node == UNTOLD && !(self.bare && FileKind::of_mode(listed.attr.mode).is_some())
    }

    /// What a name leads to; `None` when it leads to nothing.
    fn inode(&mut self, name: &Name, listed: Entry) -> Result<Option<Inode>> {
        let entry = if self.is_unknown(&listed) {
            match self.look_up(name) {
                Err(error) if error.errno == Errno::ENOENT => {
                    self.missing.push(name.clone());
                    return Ok(None);
                }
                found => found?,
            }
        } else {
            listed
        };
        Ok(Some(Inode::held(self.held.client.clone(), entry)))
    }

    /// A name that led to nothing and is still listed now: it is there again, or the server lists what it does not have.
    fn still_listed(&mut self) -> Option<std::result::Result<(Name, Inode), Unreadable>> {
        if !std::mem::replace(&mut self.is_relisted, true) && !self.missing.is_empty() {
            match self.names_now() {
                Ok(names) => self.missing.retain(|name| names.contains(name)),
                Err(error) => {
                    self.missing.clear();
                    return Some(Err(Unreadable { name: None, error }));
                }
            }
        }
        let name = self.missing.pop()?;
        let client = &self.held.client;
        Some(match client.call(Lookup { dir: self.held.node, name: name.clone() }) {
            Ok(entry) => Ok((name, Inode::held(client.clone(), entry))),
            Err(error) => Err(Unreadable { name: Some(name), error }),
        })
    }
}

fn name_only(dirent: Dirent) -> DirentPlus {
    let entry = Entry {
        node: UNTOLD,
        generation: Generation(0),
        attr: Attr { ino: dirent.ino, mode: dirent.kind.map_or(0, FileKind::bits), ..Attr::default() },
        entry_ttl: Ttl::NEVER,
        attr_ttl: Ttl::NEVER,
    };
    DirentPlus { cookie: dirent.cookie, name: dirent.name, entry }
}

/// What of a directory cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The name whose inode cannot be read (it is damaged, for example); none when the directory itself cannot be read
    /// any further.
    pub name: Option<Name>,
    /// Why.
    pub error: Error,
}

impl From<Unreadable> for Error {
    fn from(unreadable: Unreadable) -> Self {
        unreadable.error
    }
}

impl Iterator for Entries {
    type Item = std::result::Result<(Name, Inode), Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(DirentPlus { name, entry, .. }) = self.batch.next() {
                match self.inode(&name, entry) {
                    Ok(Some(inode)) => return Some(Ok((name, inode))),
                    Ok(None) => continue,
                    Err(error) => return Some(Err(Unreadable { name: Some(name), error })),
                }
            }
            if self.ended {
                return self.still_listed();
            }
            if let Err(error) = self.fill() {
                self.ended = true;
                self.missing.clear();
                return Some(Err(Unreadable { name: None, error }));
            }
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        for rest in self.batch.by_ref().filter(|rest| rest.entry.node != UNTOLD) {
            self.held.client.forget(rest.entry.node);
        }
        for entry in self.looked_up.drain(..).flatten() {
            self.held.client.forget(entry.node);
        }
        if self.handle != Handle(0) {
            self.held.client.finish(ReleaseDir { node: self.held.node, handle: self.handle });
        }
    }
}
