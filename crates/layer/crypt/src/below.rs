// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree below, as one request sees it: the layer's own files, the numbers of directories, and what a damaged file is called.

use crate::keys::{Id, new_id};
use crate::names::{DIRECTORY, DIRECTORY_LEN, Means, means, own, side_of};
use crate::state::Inner;
use bytes::{Bytes, BytesMut};
use outrigger_core::ops::{
    Create, FSync, Flush, Forget, Locate, Lookup, Open, OpenDir, OpenFlags, Read, ReadDir, Release,
    ReleaseDir, Unlink, Write,
};
use outrigger_core::reply::{Created, Dirent, Entry};
use outrigger_core::{
    Abilities, Cx, Errno, Error, FileSlice, Handle, LockOwner, Name, Node, Op, OpCode, Payload, Result,
    Service, ask,
};
use std::sync::Arc;

/// How much of a directory is asked for at once, in bytes.
const LISTED: u32 = 64 << 10;
/// The most bytes that a file of the layer's own has.
const OWN_MAX: u32 = 16 << 10;

/// The tree below on behalf of one request.
pub(crate) struct Below<'a> {
    pub(crate) inner: &'a Inner,
    next: &'a Arc<dyn Service>,
    cx: Cx,
    /// Whether writes go to the end, where the door says so of each.
    pub(crate) appends: Option<bool>,
}

impl<'a> Below<'a> {
    pub(crate) fn new(inner: &'a Inner, next: &'a Arc<dyn Service>, cx: &Cx) -> Self {
        // Attributes around a change would have sizes of the tree below, and its requests go where they say.
        let own = Cx { wcc: None, appends: Some(false), more_to_follow: false, ..cx.clone() };
        Below { inner, next, cx: own, appends: cx.appends }
    }

    pub(crate) async fn ask<O: Op>(&self, op: O) -> Result<O::Out> {
        ask(&**self.next, &self.cx, op).await
    }

    pub(crate) fn abilities(&self) -> &Abilities {
        self.inner.below.get_or_init(|| self.next.abilities())
    }

    pub(crate) fn has(&self, op: OpCode) -> bool {
        self.abilities().ops.has(op)
    }

    /// Whether the caller does not want the answer any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cx.cancel.is_raised()
    }

    /// Returns a reference. The tree has nothing to say about that.
    pub(crate) async fn forget(&self, node: Node) {
        let _ = self.ask(Forget { node, count: 1 }).await;
    }

    /// Opens a file; where there is nothing to open, no handle does.
    pub(crate) async fn open_for(&self, node: Node, flags: OpenFlags) -> Result<Handle> {
        open_for(&**self.next, &self.cx, node, flags).await
    }

    pub(crate) async fn close(&self, node: Node, handle: Handle, flags: OpenFlags) {
        close(&**self.next, &self.cx, node, handle, flags).await;
    }

    /// The bytes of a file of the tree below, where they can be changed; fewer at its end.
    pub(crate) async fn raw(&self, node: Node, handle: Handle, offset: u64, len: usize) -> Result<BytesMut> {
        raw(&**self.next, &self.cx, node, handle, offset, len).await
    }

    /// Writes all of `data`; the answer is how much of it is there when the rest finds no room.
    pub(crate) async fn write_all(&self, op: Write, data: Bytes) -> (usize, Result<()>) {
        write_all(&**self.next, &self.cx, op, data).await
    }

    /// The content of a file of the layer's own; `None` when there is no such file.
    pub(crate) async fn read_own(&self, dir: Node, name: Name) -> Result<Option<Bytes>> {
        read_file(&**self.next, &self.cx, dir, name).await
    }

    /// Makes a file of the layer's own with this content, or puts it into the one that is there.
    pub(crate) async fn write_own(&self, dir: Node, name: Name, content: Vec<u8>) -> Result<()> {
        write_file(&**self.next, &self.cx, dir, name, content, false).await
    }

    /// All names of a directory of the tree below.
    pub(crate) async fn names_of(&self, dir: Node) -> Result<Vec<Dirent>> {
        let opens = self.has(OpCode::OpenDir) && !self.abilities().stateless_dirs;
        let handle = match opens {
            true => self.ask(OpenDir { node: dir }).await?.handle,
            false => Handle::NONE,
        };
        let listed = self.list_all(dir, handle).await;
        if opens {
            let _ = self.ask(ReleaseDir { node: dir, handle }).await;
        }
        listed
    }

    async fn list_all(&self, node: Node, handle: Handle) -> Result<Vec<Dirent>> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let piece = self.ask(ReadDir { node, handle, cookie, size: LISTED }).await?;
            match piece.entries.last() {
                Some(last) => cookie = last.cookie,
                None => return Ok(all),
            }
            all.extend(piece.entries);
            if piece.eof {
                return Ok(all);
            }
        }
    }

    /// The number of a directory; `None` when it has none yet, since nothing was ever in it.
    pub(crate) async fn dir(&self, node: Node) -> Result<Option<Id>> {
        if let Some(id) = self.inner.dir(node) {
            return Ok(Some(id));
        }
        let content = self.read_own(node, own(DIRECTORY)).await?;
        if let Some(content) = content.as_ref().filter(|content| content.len() == DIRECTORY_LEN)
            && let Some(id) = self.inner.keys.read_directory(content)
        {
            self.inner.set_dir(node, Some(id));
            return Ok(Some(id));
        }
        let is_ours = |entry: &Dirent| means(&entry.name) == Means::Own;
        match content {
            // Who made the directory, or its number, did not come any further.
            None => {}
            Some(content) if content.is_empty() => {}
            Some(_) => return Err(self.damaged_dir(node, "the number of the directory is damaged").await),
        }
        match self.names_of(node).await?.iter().all(is_ours) {
            true => Ok(None),
            false => Err(self.damaged_dir(node, "the number of the directory is missing").await),
        }
    }

    /// The number of a directory that is to get a name; it gets a number first if it has none.
    pub(crate) async fn dir_for_names(&self, node: Node) -> Result<Id> {
        if let Some(id) = self.dir(node).await? {
            return Ok(id);
        }
        let _turn = self.inner.names.change().await;
        if let Some(id) = self.dir(node).await? {
            return Ok(id);
        }
        let id = new_id()?;
        self.write_own(node, own(DIRECTORY), self.inner.keys.directory(&id)).await?;
        self.inner.set_dir(node, Some(id));
        Ok(id)
    }

    /// Takes the layer's own files out of a directory that has no others.
    ///
    /// # Errors
    /// `ENOTEMPTY` when it has.
    pub(crate) async fn clear(&self, node: Node) -> Result<()> {
        let names = self.names_of(node).await?;
        if names.iter().any(|entry| means(&entry.name) != Means::Own) {
            return Err(Errno::ENOTEMPTY.into());
        }
        for entry in names {
            self.ask(Unlink { dir: node, name: entry.name }).await?;
        }
        Ok(())
    }

    /// Puts the number back into a directory that stays.
    pub(crate) async fn restore(&self, node: Node, id: Option<Id>) {
        if let Some(id) = id {
            let restored = self.write_own(node, own(DIRECTORY), self.inner.keys.directory(&id)).await;
            if let Err(error) = restored {
                tracing::warn!(?node, %error, "an empty directory has lost its number");
                self.inner.set_dir(node, None);
            }
        }
    }

    /// The name that an entry found in a directory of the tree below stands for; `None` for what is not shown.
    pub(crate) async fn shown(&self, dir: Node, id: &Id, stored: &Name) -> Option<Name> {
        let name = self.meant(dir, id, stored).await;
        if name.is_none() && !matches!(means(stored), Means::Own) {
            tracing::warn!(?dir, stored = %stored, "a name is damaged, or was not made by this tree");
            if let Some(strangers) = &self.inner.strangers {
                strangers.add(dir, stored.clone());
            }
        }
        name
    }

    /// What such a name stands for.
    async fn meant(&self, dir: Node, id: &Id, stored: &Name) -> Option<Name> {
        match means(stored) {
            Means::Own => None,
            Means::Encrypted => self.inner.keys.name(id, stored),
            Means::Long => match side_of(stored) {
                Ok(side) => match self.read_own(dir, side).await {
                    Ok(Some(full)) => {
                        let name = self.inner.keys.name(id, &full);
                        name.filter(|name| self.inner.keys.stored(id, name).name == *stored)
                    }
                    _ => None,
                },
                Err(_) => None,
            },
        }
    }

    /// A path of a file, as far as the tree knows one.
    pub(crate) async fn path(&self, node: Node) -> Result<Vec<u8>> {
        let stored = self.ask(Locate { node }).await?;
        let (mut at, mut path, mut held) = (Node::ROOT, Vec::new(), None);
        let mut result = Ok(());
        for part in stored.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            let step = self.step(at, part).await;
            if let Some(node) = held.take() {
                self.forget(node).await;
            }
            match step {
                Ok((name, entry)) => {
                    path.push(b'/');
                    path.extend_from_slice(&name);
                    (at, held) = (entry.node, Some(entry.node));
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if let Some(node) = held {
            self.forget(node).await;
        }
        result.map(|()| if path.is_empty() { b"/".to_vec() } else { path })
    }

    /// What a part of a path below is called, and where it leads.
    async fn step(&self, dir: Node, part: &[u8]) -> Result<(Name, Entry)> {
        let stored = Name::new(part.to_vec())?;
        let id = self.dir(dir).await?.ok_or(Errno::ENOENT)?;
        // What a path says is not what was found in the directory.
        let name = self.meant(dir, &id, &stored).await.ok_or(Errno::ENOENT)?;
        Ok((name, self.ask(Lookup { dir, name: stored }).await?))
    }

    /// That `what` of a file: `EBADMSG`.
    pub(crate) async fn damaged(&self, node: Node, what: &str) -> Error {
        bad_message(node, self.path(node).await.ok(), what)
    }

    /// The same of a directory without number, which is called what it is called below: its path would be looked for by its number.
    async fn damaged_dir(&self, node: Node, what: &str) -> Error {
        bad_message(node, self.ask(Locate { node }).await.ok().map(|path| path.to_vec()), what)
    }
}

fn bad_message(node: Node, path: Option<Vec<u8>>, what: &str) -> Error {
    let path = path.unwrap_or_else(|| format!("node {}", node.0).into_bytes());
    Errno::EBADMSG.because(format!("{}: {what}", path.escape_ascii()))
}

/// Opens a file; where there is nothing to open, no handle does.
async fn open_for(service: &dyn Service, cx: &Cx, node: Node, flags: OpenFlags) -> Result<Handle> {
    let abilities = service.abilities();
    if abilities.stateless_files || abilities.anonymous_io {
        return Ok(Handle::NONE);
    }
    Ok(ask(service, cx, Open { node, flags }).await?.handle)
}

async fn close(service: &dyn Service, cx: &Cx, node: Node, handle: Handle, flags: OpenFlags) {
    if handle != Handle::NONE {
        let owner = LockOwner::default();
        let _ = ask(service, cx, Release { node, handle, flags, owner, flock_release: false }).await;
    }
}

async fn raw(
    service: &dyn Service,
    cx: &Cx,
    node: Node,
    handle: Handle,
    offset: u64,
    len: usize,
) -> Result<BytesMut> {
    let len = u32::try_from(len).map_err(|_| Errno::EINVAL)?;
    changeable(ask(service, cx, Read { node, handle, offset, len }).await?)
}

fn changeable(content: Payload) -> Result<BytesMut> {
    match content {
        Payload::Bytes(bytes) => Ok(bytes.try_into_mut().unwrap_or_else(|shared| shared[..].into())),
        Payload::File(slice) => filled(&slice),
        chunks => Ok(chunks.into_bytes()?[..].into()),
    }
}

async fn write_all(service: &dyn Service, cx: &Cx, mut op: Write, data: Bytes) -> (usize, Result<()>) {
    let (mut done, start) = (0, op.offset);
    while done < data.len() {
        op.offset = start + done as u64;
        op.data = Payload::Bytes(data.slice(done..));
        match ask(service, cx, op.clone()).await {
            Ok(count) if count.0 > 0 => done += count.0 as usize,
            Ok(_) => return (done, Err(Errno::ENOSPC.into())),
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

/// The content of a small file; `None` when there is no such file.
pub(crate) async fn read_file(
    service: &dyn Service,
    cx: &Cx,
    dir: Node,
    name: Name,
) -> Result<Option<Bytes>> {
    Ok(content_of(service, cx, dir, name, changeable).await?.map(BytesMut::freeze))
}

/// What `take` makes of the content of a small file while that is open.
pub(crate) async fn content_of<T>(
    service: &dyn Service,
    cx: &Cx,
    dir: Node,
    name: Name,
    take: fn(Payload) -> Result<T>,
) -> Result<Option<T>> {
    let node = match ask(service, cx, Lookup { dir, name }).await {
        Ok(entry) => entry.node,
        Err(error) if error.errno == Errno::ENOENT => return Ok(None),
        Err(error) => return Err(error),
    };
    let flags = OpenFlags::empty();
    let content = match open_for(service, cx, node, flags).await {
        Ok(handle) => {
            let (offset, len) = (0, OWN_MAX + 1);
            let content = ask(service, cx, Read { node, handle, offset, len }).await.and_then(take);
            close(service, cx, node, handle, flags).await;
            content
        }
        Err(error) => Err(error),
    };
    let _ = ask(service, cx, Forget { node, count: 1 }).await;
    Ok(Some(content?))
}

/// Makes a file with this content, or puts it into the one that is there; `sync` puts it on stable storage.
pub(crate) async fn write_file(
    service: &dyn Service,
    cx: &Cx,
    dir: Node,
    name: Name,
    content: Vec<u8>,
    sync: bool,
) -> Result<()> {
    let flags = OpenFlags::WRITE_ONLY | OpenFlags::TRUNC;
    let create = Create { dir, name, mode: 0o644, umask: 0, flags, initial: None };
    let Created { entry, opened } = ask(service, cx, create).await?;
    let (node, handle) = (entry.node, opened.handle);
    let write = Write { node, handle, offset: 0, data: Payload::EMPTY, cached: false, kill_setid: false };
    let (_, mut written) = write_all(service, cx, write, content.into()).await;
    let ops = service.abilities().ops;
    if sync && written.is_ok() && ops.has(OpCode::FSync) {
        written = ask(service, cx, FSync { node, handle, data_only: false }).await;
    }
    if written.is_ok() && ops.has(OpCode::Flush) {
        // A server of whole files stores them when they are closed.
        written = ask(service, cx, Flush { node, handle, owner: LockOwner::default() }).await;
    }
    close(service, cx, node, handle, flags).await;
    let _ = ask(service, cx, Forget { node, count: 1 }).await;
    written
}

/// The bytes of a piece of a file of the host.
fn filled(slice: &FileSlice) -> Result<BytesMut> {
    let mut bytes = BytesMut::zeroed(slice.len as usize);
    let mut done = 0;
    while done < bytes.len() {
        match slice.file.read_at(slice.offset + done as u64, &mut bytes[done..])? {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}
