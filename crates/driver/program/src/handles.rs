// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles of the program, and those that are given out for them.
//!
//! A handle that is given out says how the file was opened, and nothing else: so the next process of the program, or of this
//! driver, can open the file again when the handle is used.

use crate::life::{Life, Lost};
use outrigger_core::ops::{OpenFlags, Release, ReleaseDir};
use outrigger_core::paths::subjects;
use outrigger_core::rebind::{Numbers, reopen};
use outrigger_core::reply::Opened;
use outrigger_core::{Cx, Handle, LockOwner, Node, OpCode, OpSet, Reply, Request, Traverse, Visit, lock};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// Set in handles of directories; the others have the flags of open(2).
const DIRECTORY: u64 = 1 << 61;
/// Flags that decide what can be done by a handle.
const KEPT: OpenFlags = OpenFlags::WRITE_ONLY
    .union(OpenFlags::READ_WRITE)
    .union(OpenFlags::APPEND)
    .union(OpenFlags::DSYNC)
    .union(OpenFlags::DIRECT);

/// An open file of the program.
#[derive(Debug, Clone, Copy)]
struct Theirs {
    /// Of which life it is.
    life: u64,
    handle: Handle,
    /// How many have it open.
    count: u32,
}

/// What is open.
#[derive(Debug)]
pub(crate) struct Handles {
    /// The program opens files, and directories; else its handles mean nothing.
    opens: (bool, bool),
    /// By node and the handle that was given out.
    open: Mutex<HashMap<(Node, Handle), Theirs>>,
}

/// Puts another handle in its place.
struct Put(Handle);

impl Visit for Put {
    fn handle(&mut self, handle: &mut Handle) {
        *handle = self.0;
    }
}

/// The handle that is given out for a file that is opened like this, or for a directory.
fn given(flags: Option<OpenFlags>) -> Handle {
    Handle(flags.map_or(DIRECTORY, |flags| u64::from(flags.intersection(KEPT).bits())))
}

/// The node and the handle of a request that has one.
fn key(request: &mut Request) -> Option<(Node, Handle)> {
    let handle = *Numbers::of(request).handles.first()?;
    Some((subjects(request).first()?.node, handle))
}

impl Handles {
    /// Nothing is open of a program that does these operations.
    pub(crate) fn new(ops: OpSet) -> Self {
        let opens = (ops.has(OpCode::Open), ops.has(OpCode::OpenDir));
        Handles { opens, open: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Node, Handle), Theirs>> {
        lock(&self.open)
    }

    /// Whether the program knows a handle for what was given out as this one.
    fn has(&self, given: Handle) -> bool {
        if given.0 & DIRECTORY == 0 { self.opens.0 } else { self.opens.1 }
    }

    /// Makes a request one that the program understands: with its handle, which is opened if this life has none. The reply, if
    /// opening fails.
    pub(crate) async fn translate(
        &self,
        life: &Life,
        cx: &Cx,
        request: &mut Request,
    ) -> Result<Result<(), Reply>, Lost> {
        let Some(key) = key(request).filter(|key| self.has(key.1)) else { return Ok(Ok(())) };
        let known =
            self.lock().get(&key).filter(|theirs| theirs.life == life.number).map(|theirs| theirs.handle);
        let handle = match known {
            Some(handle) => handle,
            None => match life.ask(cx, open(key)).await? {
                Reply::Opened(opened) => self.note(life, key, opened.handle, 0).unwrap_or(opened.handle),
                other => return Ok(Err(other)),
            },
        };
        request.traverse(&mut Put(handle));
        Ok(Ok(()))
    }

    /// Notes what the reply to a request opened, and puts the handle that is given out in its place.
    pub(crate) async fn opened(&self, life: &Life, cx: &Cx, request: &Request, mut reply: Reply) -> Reply {
        let made = match &reply {
            Reply::Created(created) => Some(created.entry.node),
            _ => None,
        };
        let opens = request.opens().filter(|opens| self.has(given(opens.flags)));
        let (Some(opens), Some(Opened { handle, .. })) = (opens, opened_by(&mut reply)) else { return reply };
        let key = (opens.node.or(made).unwrap_or_default(), given(opens.flags));
        let theirs = std::mem::replace(handle, key.1);
        if self.note(life, key, theirs, 1).is_some() {
            // One is enough. That the program has lost it is found out by the next request.
            let _ = life.ask(cx, close((key.0, theirs), key.1)).await;
        }
        reply
    }

    /// Notes a handle of the program, which `count` more have open; the one that is used instead, if there is one.
    fn note(&self, life: &Life, key: (Node, Handle), handle: Handle, count: u32) -> Option<Handle> {
        let mut all = self.lock();
        let theirs = all.entry(key).or_insert(Theirs { life: life.number, handle, count: 0 });
        theirs.count += count;
        if theirs.life != life.number {
            (theirs.life, theirs.handle) = (life.number, handle);
        }
        (theirs.handle != handle).then_some(theirs.handle)
    }

    /// Someone closes a handle: whether the program is to close its own, which is in the request then.
    pub(crate) fn close(&self, life: &Life, request: &mut Request) -> bool {
        let Some(key) = key(request) else { return false };
        let mut all = self.lock();
        let Some(theirs) = all.get_mut(&key) else { return false };
        theirs.count = theirs.count.saturating_sub(1);
        if theirs.count > 0 {
            return false;
        }
        let Theirs { life: of, handle, .. } = *theirs;
        all.remove(&key);
        request.traverse(&mut Put(handle));
        of == life.number
    }
}

fn opened_by(reply: &mut Reply) -> Option<&mut Opened> {
    match reply {
        Reply::Opened(opened) => Some(opened),
        Reply::Created(created) => Some(&mut created.opened),
        _ => None,
    }
}

/// Opens what a handle that was given out stands for.
fn open((node, handle): (Node, Handle)) -> Request {
    let is_file = handle.0 & DIRECTORY == 0;
    reopen(node, is_file.then(|| OpenFlags::from_bits_retain(handle.0 as u32)))
}

/// Closes a handle of the program that was given out like this.
fn close((node, handle): (Node, Handle), given: Handle) -> Request {
    let (flags, owner) = (OpenFlags::from_bits_retain(given.0 as u32), LockOwner::default());
    match given.0 & DIRECTORY {
        0 => Release { node, handle, flags, owner, flock_release: false }.into(),
        _ => ReleaseDir { node, handle }.into(),
    }
}
