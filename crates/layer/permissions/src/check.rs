// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a caller may do, decided from what is known so far; or the question that has to be asked first.
//!
//! Rules and order of errors are those of Linux' `fs/namei.c`, `fs/attr.c` and `fs/xattr.c`.

use crate::known::{Known, List, Owner};
use crate::question::{Fact, Facts, Lists, Question};
use outrigger_core::attr::{R_OK, W_OK, X_OK};
use outrigger_core::ops::{OpenFlags, RenameFlags};
use outrigger_core::{
    Added, Credentials, Effect, Errno, Error, FileKind, Handle, Name, Node, Opening, Request, Result,
    SetAttrs, SetTime, XattrName,
};

/// In a directory with this bit names can be taken away by the owners of files (`S_ISVTX`, inode(7)).
const STICKY: u32 = 0o1000;
/// To add or remove names.
pub(crate) const CHANGE_NAMES: u32 = W_OK | X_OK;

/// Why there is no decision that permits a request.
#[derive(Debug)]
pub(crate) enum Stop {
    Refused(Error),
    Unknown(Question),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Refused(errno.into())
    }
}

type Checked<T = ()> = Result<T, Stop>;

/// One request of one caller.
pub(crate) struct Check<'a> {
    pub cred: &'a Credentials,
    pub facts: &'a Facts,
    pub known: &'a Known,
    pub lists: Lists,
    pub lenient_owner: bool,
}

impl Check<'_> {
    pub fn owner(&self, node: Node) -> Checked<Owner> {
        let question = Question::Attr(node);
        match self.facts.get(&question) {
            Some(Fact::Attr(owner)) => Ok(owner),
            _ => self.known.owner(node).ok_or(Stop::Unknown(question)),
        }
    }

    fn entry(&self, dir: Node, name: &Name) -> Checked<Option<(Node, Owner)>> {
        let question = Question::Entry(dir, name.clone());
        match self.facts.get(&question) {
            Some(Fact::Entry(entry)) => Ok(entry),
            _ => Err(Stop::Unknown(question)),
        }
    }

    fn list(&self, node: Node) -> Checked<List> {
        let question = Question::List(node);
        match self.facts.get(&question) {
            Some(Fact::List(list)) => Ok(list),
            _ => self.known.list(node).ok_or(Stop::Unknown(question)),
        }
    }

    /// Which of the permissions `wanted` the caller has.
    pub fn grants(&self, node: Node, wanted: u32) -> Checked<u32> {
        if self.lists == Lists::Asked {
            let question = Question::Granted(node, wanted);
            return match self.facts.get(&question) {
                Some(Fact::Granted(granted)) => Ok(granted & wanted),
                _ => Err(Stop::Unknown(question)),
            };
        }
        let owner = self.owner(node)?;
        let decides_mode = self.lists == Lists::None || self.cred.uid == 0 || self.owns(owner);
        // A symbolic link has no list.
        if decides_mode || FileKind::of_mode(owner.mode) == Some(FileKind::Symlink) {
            return Ok(owner.granted(self.cred) & wanted);
        }
        match self.list(node)? {
            None => Ok(owner.granted(self.cred) & wanted),
            Some(list) => Ok(list.granted(self.cred, owner.gid, wanted)),
        }
    }

    pub fn granted(&self, node: Node, mask: u32) -> Checked<bool> {
        self.grants(node, mask).map(|granted| granted == mask)
    }

    fn owns(&self, owner: Owner) -> bool {
        owner.uid == self.cred.uid
    }

    pub fn need(&self, node: Node, mask: u32) -> Checked {
        if self.granted(node, mask)? { Ok(()) } else { self.denied(node, mask) }
    }

    /// What is searched has to be a directory first.
    fn denied(&self, node: Node, mask: u32) -> Checked {
        if mask & X_OK != 0 && !self.owner(node)?.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        Err(Errno::EACCES.into())
    }

    fn need_owner(&self, node: Node) -> Checked {
        if self.owns(self.owner(node)?) { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    /// Decides about a request. Where it is permitted, tells whether its reply may say nothing about the files of the directory that is
    /// listed but their names.
    pub fn decide(&self, request: &Request) -> Checked<bool> {
        let (mut listed, mut finds) = (None, false);
        for effect in request.effects() {
            self.permit(effect)?;
            match effect {
                Effect::Needs { node, mask: R_OK, .. } => listed = Some(node),
                Effect::References => finds = true,
                _ => {}
            }
        }
        match listed.filter(|_| finds) {
            Some(dir) => self.granted(dir, X_OK).map(|searches| !searches),
            None => Ok(false),
        }
    }

    fn permit(&self, effect: Effect<'_>) -> Checked {
        match effect {
            Effect::Needs { node, handle: Handle::NONE, mask } => self.uses(node, mask),
            Effect::ReadsXattr { node, name } => self.xattr(node, name, R_OK),
            Effect::SetsXattr { node, name, .. } | Effect::RemovesXattr { node, name } => {
                self.xattr(node, name, W_OK)
            }
            Effect::Adds { dir, name, file } => self.adds(dir, name, file),
            Effect::Removes { dir, name, .. } => self.removes(dir, name),
            Effect::Moves { dir, name, to_dir, to_name, flags } => {
                self.moves((dir, name), (to_dir, to_name), flags)
            }
            Effect::Makes { dir, .. } => self.need(dir, CHANGE_NAMES),
            Effect::Attributes { node, attrs: Some(attrs) } => self.sets(node, attrs),
            Effect::Anything { node } => self.need_owner(node),
            Effect::Opens(Opening { node: Some(node), flags: Some(flags) }) => self.opens(node, flags),
            Effect::Opens(Opening { node: Some(node), flags: None }) => self.lists(node),
            // By a handle, or what another effect of the same request is about.
            Effect::Needs { .. }
            | Effect::Opens(Opening { node: None, .. })
            | Effect::Attributes { attrs: None, .. }
            | Effect::Writes { .. }
            | Effect::Appends { .. }
            | Effect::Shifts { .. }
            | Effect::Locks { .. }
            | Effect::Syncs(_)
            | Effect::Flushes { .. }
            | Effect::Locates { .. }
            | Effect::WantsToChange
            | Effect::Ends { .. }
            | Effect::References
            | Effect::Returns { .. }
            | Effect::Waits => Ok(()),
        }
    }

    /// What needs permission each time, because there is no handle that tells of an open.
    fn uses(&self, node: Node, mask: u32) -> Checked {
        if self.granted(node, mask)? {
            return Ok(());
        }
        if self.lenient_owner && mask & X_OK == 0 {
            let owner = self.owner(node)?;
            let executes = mask == R_OK && !owner.is_dir() && self.granted(node, X_OK)?;
            if !owner.is_dir() && (self.owns(owner) || executes) {
                return Ok(());
            }
        }
        self.denied(node, mask)
    }

    pub fn opens(&self, node: Node, flags: OpenFlags) -> Checked {
        // Both bits of the access mode are for a descriptor that neither reads nor writes, and need both permissions (open(2)).
        let both = flags.contains(OpenFlags::WRITE_ONLY | OpenFlags::READ_WRITE);
        let writes = flags.writes() || flags.contains(OpenFlags::TRUNC);
        let mask = if flags.reads() || both { R_OK } else { 0 } | if writes { W_OK } else { 0 };
        if !self.granted(node, mask)? {
            let is_dir = writes && self.owner(node)?.is_dir();
            return Err(if is_dir { Errno::EISDIR } else { Errno::EACCES }.into());
        }
        if flags.contains(OpenFlags::NOATIME) { self.need_owner(node) } else { Ok(()) }
    }

    fn lists(&self, dir: Node) -> Checked {
        if self.granted(dir, R_OK)? {
            return Ok(());
        }
        Err(if self.owner(dir)?.is_dir() { Errno::EACCES } else { Errno::ENOTDIR }.into())
    }

    /// A name that exists is told before a directory that may not be changed (`filename_create`).
    fn adds(&self, dir: Node, name: &Name, file: Added) -> Checked {
        if !self.granted(dir, CHANGE_NAMES)? {
            if self.granted(dir, X_OK)? && self.entry(dir, name)?.is_some() {
                return Err(Errno::EEXIST.into());
            }
            return self.denied(dir, CHANGE_NAMES);
        }
        match file {
            Added::New { kind: FileKind::CharDevice | FileKind::BlockDevice, .. } => Err(Errno::EPERM.into()),
            _ => Ok(()),
        }
    }

    /// `may_delete`, after the name was found.
    fn removes(&self, dir: Node, name: &Name) -> Checked {
        if !self.granted(dir, CHANGE_NAMES)? {
            if self.granted(dir, X_OK)? && self.entry(dir, name)?.is_none() {
                return Err(Errno::ENOENT.into());
            }
            return self.denied(dir, CHANGE_NAMES);
        }
        self.sticky(dir, name)
    }

    /// In a sticky directory a name can be taken away by the owner of the file or of the directory.
    fn sticky(&self, dir: Node, name: &Name) -> Checked {
        let owner = self.owner(dir)?;
        if owner.mode & STICKY == 0 || self.owns(owner) {
            return Ok(());
        }
        match self.entry(dir, name)? {
            Some((_, file)) if !self.owns(file) => Err(Errno::EPERM.into()),
            _ => Ok(()),
        }
    }

    /// Whether the names exist is told before what may be done with them (`do_renameat2`, `vfs_rename`).
    fn moves(&self, from: (Node, &Name), to: (Node, &Name), flags: RenameFlags) -> Checked {
        match self.may_move(from, to, flags) {
            Err(Stop::Refused(error)) => {
                self.need(from.0, X_OK)?;
                self.need(to.0, X_OK)?;
                let exchanges = flags.contains(RenameFlags::EXCHANGE);
                if self.entry(from.0, from.1)?.is_none() {
                    return Err(Errno::ENOENT.into());
                }
                if exchanges || flags.contains(RenameFlags::NOREPLACE) {
                    match self.entry(to.0, to.1)? {
                        Some(_) if !exchanges => return Err(Errno::EEXIST.into()),
                        None if exchanges => return Err(Errno::ENOENT.into()),
                        _ => {}
                    }
                }
                Err(Stop::Refused(error))
            }
            checked => checked,
        }
    }

    fn may_move(&self, from: (Node, &Name), to: (Node, &Name), flags: RenameFlags) -> Checked {
        for (dir, name) in [from, to] {
            self.need(dir, CHANGE_NAMES)?;
            self.sticky(dir, name)?;
        }
        if from.0 != to.0 {
            self.leaves(from.0, from.1)?;
            if flags.contains(RenameFlags::EXCHANGE) {
                self.leaves(to.0, to.1)?;
            }
        }
        Ok(())
    }

    /// A directory that gets another parent is itself changed.
    fn leaves(&self, dir: Node, name: &Name) -> Checked {
        match self.entry(dir, name)? {
            Some((node, file)) if file.is_dir() => self.need(node, W_OK),
            _ => Ok(()),
        }
    }

    fn sets(&self, node: Node, attrs: &SetAttrs) -> Checked {
        let SetAttrs { mode, uid, gid, size, atime, mtime, ctime, .. } = attrs;
        let touches = [atime, mtime].iter().all(|time| **time == Some(SetTime::Now));
        let stamps = ctime.is_some()
            || [atime, mtime].iter().any(|time| matches!(time, Some(SetTime::To(_))))
            // Another permission is needed for the size anyway.
            || (!touches && size.is_none() && (atime.is_some() || mtime.is_some()));
        if [*mode, *uid, *gid].iter().all(Option::is_none) && !stamps && !touches {
            return Ok(());
        }
        let owner = self.owner(node)?;
        let owns = self.owns(owner);
        let gives_away = uid.is_some_and(|uid| uid != owner.uid);
        let leaves_group = gid.is_some_and(|gid| gid != owner.gid && !self.cred.in_group(gid));
        let needs_owner = mode.is_some() || uid.is_some() || gid.is_some() || stamps;
        if gives_away || leaves_group || (needs_owner && !owns) {
            return Err(Errno::EPERM.into());
        }
        if touches && !owns && size.is_none() { self.need(node, W_OK) } else { Ok(()) }
    }

    /// `xattr_permission`, what file systems add to it for `system`, and the capabilities for `security`.
    fn xattr(&self, node: Node, name: &XattrName, mask: u32) -> Checked {
        let writes = mask == W_OK;
        if name.starts_with(b"trusted.") {
            return Err(if writes { Errno::EPERM } else { Errno::ENODATA }.into());
        }
        if name.starts_with(b"security.") {
            return if writes { Err(Errno::EPERM.into()) } else { Ok(()) };
        }
        if name.starts_with(b"system.") {
            return if writes { self.need_owner(node) } else { Ok(()) };
        }
        let owner = self.owner(node)?;
        if name.starts_with(b"user.") {
            match FileKind::of_mode(owner.mode) {
                Some(FileKind::Regular) => {}
                Some(FileKind::Directory) if writes && owner.mode & STICKY != 0 && !self.owns(owner) => {
                    return Err(Errno::EPERM.into());
                }
                Some(FileKind::Directory) => {}
                _ => return Err(if writes { Errno::EPERM } else { Errno::ENODATA }.into()),
            }
        }
        self.need(node, mask)
    }
}
