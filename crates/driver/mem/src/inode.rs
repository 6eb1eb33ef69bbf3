// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file of any kind: what never changes, and its state under one lock.
//!
//! # Order of locks
//! First `Mem::topology`, then states of directories, then states of files that are no directories, by their numbers,
//! then advisory locks, then the log, then the table. Only the holder of the first may hold the states of two
//! directories: so no cycle is possible. What an operation changes stays locked until its group is in the log.

use crate::content::{Content, PAGE};
use crate::locks::Locks;
use crate::names::Names;
use crate::record::{Facts, Record};
use crate::xattr::Xattrs;
use outrigger_core::attr::{MODE_PERMISSIONS, SET_GID, without_set_id};
use outrigger_core::survive::{Log, Records};
use outrigger_core::{
    Around, Attr, Before, Cx, Errno, Error, FileKind, Node, Result, SetAttrs, SetTime, Target, Time,
};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Set in `Inode::lookups` while a door also refers to the inode as often as a former process knew.
const INHERITED: u64 = 1 << 63;
/// `Inode::read_at` when nothing was read since the access time was last set.
const NOT_READ: i64 = i64::MIN;
/// What a directory's size grows by with each name, in bytes.
const ENTRY_SIZE: u64 = 32;

/// The user id of a request whose sender the kernel keeps to itself, as it does on mounts that may be idmapped. It has
/// checked by then whatever needs the sender.
const UNTOLD: u32 = u32::MAX;

/// Whether a request has the rights of the superuser, or comes from where these were decided.
pub(crate) fn is_privileged(cx: &Cx) -> bool {
    matches!(cx.cred.uid, 0 | UNTOLD)
}

/// A file of any kind.
pub(crate) struct Inode {
    pub ino: u64,
    pub kind: FileKind,
    rdev: u32,
    btime: Time,
    /// References that doors hold: the inode lives while it has one of these or a name.
    lookups: AtomicU64,
    /// For a directory, the number of the one it is in; changes only under `Mem::topology`. For others, the one they
    /// were made in or last moved to.
    pub parent: AtomicU64,
    /// Nanoseconds since the epoch of the last read: readers need no exclusive lock to leave their time.
    read_at: AtomicI64,
    /// Advisory locks.
    pub locks: Mutex<Locks>,
    pub state: RwLock<State>,
}

/// What changes about an inode.
pub(crate) struct State {
    /// Permission bits, without the kind.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Removed from the table: it must not be given a name again.
    pub dead: bool,
    /// Made without a name, so it may be given the first one.
    pub unnamed: bool,
    pub xattrs: Xattrs,
    pub body: Body,
}

/// What a file holds, by kind.
pub(crate) enum Body {
    File(Content),
    Dir(Names),
    Link(Target),
    /// Pipes, sockets and devices.
    Special,
}

impl Body {
    /// Where a symbolic link leads.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Body::Link(target) => Some(target),
            _ => None,
        }
    }
}

/// What a new inode starts with.
pub(crate) struct NewInode {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub parent: u64,
    /// Whether it may be given a first name later.
    pub unnamed: bool,
    /// References its maker holds.
    pub references: u64,
    pub time: Time,
    pub xattrs: Xattrs,
    pub body: Body,
}

impl Inode {
    /// A new inode.
    pub fn new(ino: u64, birth: NewInode) -> Self {
        let NewInode { kind, mode, uid, gid, nlink, rdev, parent, unnamed, references, time, xattrs, body } =
            birth;
        let state = State {
            mode,
            uid,
            gid,
            nlink,
            atime: time,
            mtime: time,
            ctime: time,
            dead: false,
            unnamed,
            xattrs,
            body,
        };
        Inode {
            ino,
            kind,
            rdev,
            btime: time,
            lookups: AtomicU64::new(references),
            parent: AtomicU64::new(parent),
            read_at: AtomicI64::new(NOT_READ),
            locks: Mutex::default(),
            state: RwLock::new(state),
        }
    }

    /// An inode of a former process.
    pub fn restored(facts: Facts, referenced: bool, xattrs: Xattrs, body: Body, locks: Locks) -> Self {
        let state = State {
            mode: facts.mode & MODE_PERMISSIONS,
            uid: facts.uid,
            gid: facts.gid,
            nlink: facts.nlink,
            atime: facts.atime,
            mtime: facts.mtime,
            ctime: facts.ctime,
            dead: false,
            unnamed: facts.unnamed,
            xattrs,
            body,
        };
        Inode {
            ino: facts.ino,
            kind: facts.kind,
            rdev: facts.rdev,
            btime: facts.btime,
            lookups: AtomicU64::new(if referenced { INHERITED } else { 0 }),
            parent: AtomicU64::new(facts.parent),
            read_at: AtomicI64::new(NOT_READ),
            locks: Mutex::new(locks),
            state: RwLock::new(state),
        }
    }

    /// The attributes as the log has them.
    pub fn facts(&self, state: &State) -> Facts {
        Facts {
            ino: self.ino,
            kind: self.kind,
            mode: state.mode,
            uid: state.uid,
            gid: state.gid,
            nlink: state.nlink,
            rdev: self.rdev,
            parent: self.parent.load(Relaxed),
            size: state.content().map_or(0, |content| content.size),
            unnamed: state.unnamed,
            btime: self.btime,
            atime: self.atime(state),
            mtime: state.mtime,
            ctime: state.ctime,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Counts one reference. The caller holds the lock of a directory that names the inode, or a reference.
    pub fn reference(&self, log: Option<&Log>) {
        let more = |held: u64| (held > 0 || log.is_none()).then(|| held + 1);
        if self.lookups.fetch_update(Relaxed, Relaxed, more).is_err() {
            // The first and the last are in the log, in the right order.
            let _order = self.locks.lock();
            if self.lookups.fetch_add(1, Relaxed) == 0 {
                self.note_reference(log, true);
            }
        }
    }

    /// Returns references; answers whether none is left.
    ///
    /// A door returns all it has at once, except one it has only just been given. So when more are returned than were
    /// counted by this process, those of the former ones are among them.
    pub fn unreference(&self, count: u64, log: Option<&Log>) -> bool {
        let rest = |held: u64| if count > held & !INHERITED { 0 } else { held - count };
        let some_left = |held: u64| Some(rest(held)).filter(|&rest| rest > 0);
        if self.lookups.fetch_update(Relaxed, Relaxed, some_left).is_ok() {
            return false;
        }
        let _order = self.locks.lock();
        let held = self.lookups.fetch_update(Relaxed, Relaxed, |held| Some(rest(held))).unwrap_or(0);
        let is_last = rest(held) == 0;
        if is_last && held > 0 {
            self.note_reference(log, false);
        }
        is_last
    }

    fn note_reference(&self, log: Option<&Log>, yes: bool) {
        if let Some(log) = log {
            log.note(Records::of(&Record::Referenced { ino: self.ino, yes }).words());
        }
    }

    pub fn is_referenced(&self) -> bool {
        self.lookups.load(Relaxed) > 0
    }

    /// Remembers that the content was read at `now`. The caller holds the state.
    pub fn mark_read(&self, now: Time, log: Option<&Log>) {
        let nanos = now.secs.saturating_mul(1_000_000_000).saturating_add(now.nanos.into());
        self.read_at.store(nanos, Relaxed);
        if let Some(log) = log {
            log.note(Records::of(&Record::Read { ino: self.ino, nanos }).words());
        }
    }

    /// Sets the access time. The caller holds the state exclusively.
    pub fn set_atime(&self, state: &mut State, time: Time) {
        self.read_at.store(NOT_READ, Relaxed);
        state.atime = time;
    }

    fn atime(&self, state: &State) -> Time {
        match self.read_at.load(Relaxed) {
            NOT_READ => state.atime,
            nanos => time_of_nanos(nanos),
        }
    }

    /// Changes all attributes but the size. The caller holds the state exclusively.
    pub fn apply(&self, cx: &Cx, state: &mut State, attrs: &SetAttrs, now: Time) {
        set_owner_and_mode(cx, self, state, attrs);
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        if let Some(set) = attrs.atime {
            self.set_atime(state, time(set));
        }
        if let Some(set) = attrs.mtime {
            state.mtime = time(set);
        }
        if *attrs != SetAttrs::default() {
            state.ctime = attrs.ctime.unwrap_or(now);
        }
    }

    /// What the directory or file is before a change, where the caller asks. The caller holds the state exclusively.
    pub fn before(&self, cx: &Cx, state: &State) -> Option<Before> {
        cx.wcc.as_ref().map(|_| Before::from(&self.attr(state)))
    }

    /// Answers [`Inode::before`] together with what it is after the change. The state was held all the time.
    pub fn note_change(&self, cx: &Cx, before: Option<Before>, state: &State) {
        if let (Some(wcc), Some(before)) = (&cx.wcc, before) {
            wcc.add(Around { node: Node(self.ino), before, after: self.attr(state) });
        }
    }

    /// The attributes as of `state`.
    pub fn attr(&self, state: &State) -> Attr {
        let (size, pages) = match &state.body {
            Body::File(content) => (content.size, content.pages()),
            Body::Dir(names) => (names.len() as u64 * ENTRY_SIZE, 0),
            Body::Link(target) => (target.len() as u64, 0),
            Body::Special => (0, 0),
        };
        Attr {
            ino: self.ino,
            size,
            blocks: pages * (PAGE / 512),
            atime: self.atime(state),
            mtime: state.mtime,
            ctime: state.ctime,
            btime: Some(self.btime),
            mode: self.kind.bits() | state.mode,
            nlink: state.nlink,
            uid: state.uid,
            gid: state.gid,
            rdev: self.rdev,
            blksize: PAGE as u32,
            ..Attr::default()
        }
    }
}

/// Changes owner and permissions. A new owner or an unprivileged truncation clears the set-id bits (chown(2)),
/// unless the same request sets the permissions. Of who is not known to be in the group, a new owner clears set-group-ID also where it
/// does not run programs (Linux since 6.2).
fn set_owner_and_mode(cx: &Cx, inode: &Inode, state: &mut State, attrs: &SetAttrs) {
    let chowned = (attrs.uid.is_some() || attrs.gid.is_some()) && !inode.is_dir();
    let truncated = attrs.size.is_some() && !is_privileged(cx);
    if chowned || truncated || attrs.kill_setid {
        state.kill_setid();
    }
    if chowned && !is_privileged(cx) && !cx.cred.in_group(state.gid) {
        state.mode &= !SET_GID;
    }
    state.uid = attrs.uid.unwrap_or(state.uid);
    state.gid = attrs.gid.unwrap_or(state.gid);
    if let Some(mode) = attrs.mode {
        state.mode = mode & MODE_PERMISSIONS;
    }
}

impl State {
    /// The content of a regular file.
    pub fn content(&self) -> Result<&Content> {
        match &self.body {
            Body::File(content) => Ok(content),
            other => Err(not_a_file(other)),
        }
    }

    /// The content of a regular file, to be changed.
    pub fn content_mut(&mut self) -> Result<&mut Content> {
        match &mut self.body {
            Body::File(_) if self.dead => Err(Errno::ESTALE.because("the file was removed")),
            Body::File(content) => Ok(content),
            other => Err(not_a_file(other)),
        }
    }

    /// The names in a directory.
    pub fn names(&self) -> Result<&Names> {
        match &self.body {
            Body::Dir(names) => Ok(names),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    /// The names in a directory that is about to get or lose one; `ENOENT` once it was removed itself.
    pub fn names_mut(&mut self) -> Result<&mut Names> {
        match &mut self.body {
            Body::Dir(_) if self.nlink == 0 => Err(Errno::ENOENT.because("the directory was removed")),
            Body::Dir(names) => Ok(names),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    /// Content or names changed.
    pub fn touch(&mut self, now: Time) {
        self.mtime = now;
        self.ctime = now;
    }

    /// Counts one name less of a file that is no directory.
    pub fn lose_name(&mut self, now: Time) {
        self.nlink = self.nlink.saturating_sub(1);
        self.ctime = now;
    }

    /// Takes an empty directory out of use. The caller holds `Mem::topology` and removes its name.
    pub fn bury(&mut self, now: Time) -> Result<()> {
        if !self.names()?.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.nlink = 0;
        self.ctime = now;
        Ok(())
    }

    /// Clears the set-id bits as a write by an unprivileged user does: set-group-id only where it does not stand
    /// for mandatory locking (no execute permission for the group).
    pub fn kill_setid(&mut self) {
        self.mode = without_set_id(self.mode);
    }
}

/// The time `nanos` nanoseconds after the epoch.
pub(crate) fn time_of_nanos(nanos: i64) -> Time {
    Time::new(nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000) as u32)
}

fn not_a_file(body: &Body) -> Error {
    match body {
        Body::Dir(_) => Errno::EISDIR.into(),
        _ => Errno::EINVAL.because("not a regular file"),
    }
}
