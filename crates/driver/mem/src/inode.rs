// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file of any kind: what never changes, and its state behind one lock.
//!
//! # Order of locks
//! First `Mem::topology`, then states of directories, then the state of one file that is no directory.
//! Only the holder of the first may hold the states of two directories: so no cycle is possible.

use crate::content::{Content, PAGE};
use crate::locks::Locks;
use crate::names::Names;
use crate::xattr::Xattrs;
use outrigger_core::{Attr, Cx, Errno, Error, FileKind, Result, Target, Time};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Set-user-id bit of a mode.
const SET_UID: u32 = 0o4000;
/// Set-group-id bit of a mode.
pub(crate) const SET_GID: u32 = 0o2000;
/// Execute permission of the group.
const GROUP_EXEC: u32 = 0o0010;
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

/// What a new inode starts with.
pub(crate) struct Birth {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub parent: u64,
    pub time: Time,
    pub body: Body,
}

impl Inode {
    /// A new inode that one reference is held to.
    pub fn new(ino: u64, birth: Birth) -> Self {
        let Birth { kind, mode, uid, gid, nlink, rdev, parent, time, body } = birth;
        let state = State {
            mode,
            uid,
            gid,
            nlink,
            atime: time,
            mtime: time,
            ctime: time,
            dead: false,
            unnamed: nlink == 0,
            xattrs: Xattrs::default(),
            body,
        };
        Inode {
            ino,
            kind,
            rdev,
            btime: time,
            lookups: AtomicU64::new(1),
            parent: AtomicU64::new(parent),
            read_at: AtomicI64::new(NOT_READ),
            locks: Mutex::default(),
            state: RwLock::new(state),
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Counts one reference. The caller holds the lock of a directory that names the inode, or a reference.
    pub fn reference(&self) {
        self.lookups.fetch_add(1, Relaxed);
    }

    /// Returns references; answers whether none is left.
    pub fn unreference(&self, count: u64) -> bool {
        let rest = |held: u64| Some(held.saturating_sub(count));
        let held = self.lookups.fetch_update(Relaxed, Relaxed, rest).unwrap_or(0);
        held <= count
    }

    pub fn is_referenced(&self) -> bool {
        self.lookups.load(Relaxed) > 0
    }

    /// Remembers that the content was read at `now`.
    pub fn mark_read(&self, now: Time) {
        let nanos = now.secs.saturating_mul(1_000_000_000).saturating_add(now.nanos.into());
        self.read_at.store(nanos, Relaxed);
    }

    /// Sets the access time. The caller holds the state exclusively.
    pub fn set_atime(&self, state: &mut State, time: Time) {
        self.read_at.store(NOT_READ, Relaxed);
        state.atime = time;
    }

    fn atime(&self, state: &State) -> Time {
        match self.read_at.load(Relaxed) {
            NOT_READ => state.atime,
            nanos => Time::new(nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000) as u32),
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
        }
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

    /// Clears the set-id bits as a write by an unprivileged user does: set-group-id only where it does not stand
    /// for mandatory locking (no execute permission for the group).
    pub fn kill_setid(&mut self) {
        self.mode &= !SET_UID;
        if self.mode & GROUP_EXEC != 0 {
            self.mode &= !SET_GID;
        }
    }
}

fn not_a_file(body: &Body) -> Error {
    match body {
        Body::Dir(_) => Errno::EISDIR.into(),
        _ => Errno::EINVAL.because("not a regular file"),
    }
}
