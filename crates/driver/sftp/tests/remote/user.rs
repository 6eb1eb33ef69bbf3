// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that uses a tree, as a kernel would pass on what it does.

use crate::line::Simulated;
use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::reply::{Created, DirentPlus, Entry};
use outrigger_core::{
    Attr, Credentials, Cx, Errno, FileKind, Handle, LockOwner, Name, Node, Op, Payload, Result, Serve,
    Service, SetAttrs, SetTime, Stack, Target, Time, ask,
};
use outrigger_driver_sftp::Sftp;
use outrigger_layer_cache::{Cache, Options};
use std::sync::Arc;

/// Asks a tree.
#[derive(Clone)]
pub struct User {
    tree: Arc<dyn Service>,
    cx: Cx,
}

pub fn name(text: &[u8]) -> Name {
    Name::new(Bytes::copy_from_slice(text)).expect("a name")
}

impl User {
    /// Of a driver alone.
    pub fn new(sftp: Sftp) -> Self {
        User::of(Arc::new(Serve(sftp)))
    }

    /// Of a driver below the cache that mounts have.
    pub fn with_cache(sftp: Sftp, options: &[(&str, &str)]) -> Self {
        let mut chosen = Options::default();
        options.iter().for_each(|(key, value)| chosen.set(key, value).expect("an option"));
        let cache = Cache::new(&chosen, Arc::new(Simulated));
        User::of(Stack::new(Arc::new(Serve(sftp))).push(cache).expect("a place").service())
    }

    fn of(tree: Arc<dyn Service>) -> Self {
        User { tree, cx: Cx::new(1, Credentials::new(1000, 1000), "test") }
    }

    pub async fn ask<O: Op>(&self, op: O) -> Result<O::Out> {
        ask(&*self.tree, &self.cx, op).await
    }

    pub async fn lookup(&self, dir: Node, file: &str) -> Result<Entry> {
        self.ask(Lookup { dir, name: name(file.as_bytes()) }).await
    }

    pub async fn list(&self, node: Node) -> Result<Vec<DirentPlus>> {
        let handle = self.open_dir(node).await?;
        self.list_opened(node, handle).await
    }

    pub async fn open_dir(&self, node: Node) -> Result<Handle> {
        Ok(self.ask(OpenDir { node }).await?.handle)
    }

    /// Reads a directory that is open, and closes it.
    pub async fn list_opened(&self, node: Node, handle: Handle) -> Result<Vec<DirentPlus>> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        let listed = loop {
            let read = ReadDirPlus { node, handle, cookie, size: 64 << 10 };
            match self.ask(read).await {
                Ok(piece) => {
                    cookie = piece.entries.last().map_or(cookie, |last| last.cookie);
                    all.extend(piece.entries);
                    if piece.eof {
                        break Ok(all);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.ask(ReleaseDir { node, handle }).await?;
        listed
    }

    /// Opens a directory, reads its beginning and closes it; whether that was all.
    pub async fn list_some(&self, node: Node) -> Result<bool> {
        let handle = self.ask(OpenDir { node }).await?.handle;
        let read = ReadDirPlus { node, handle, cookie: 0, size: 4096 };
        let read = self.ask(read).await;
        self.ask(ReleaseDir { node, handle }).await?;
        Ok(read?.eof)
    }

    /// What `ls -lR` does: every directory after the one before it. How many names there are.
    pub async fn list_all(&self, root: Node) -> Result<usize> {
        let (mut todo, mut names) = (vec![root], 0);
        while let Some(dir) = todo.pop() {
            let entries = self.list(dir).await?;
            names += entries.len();
            let dirs = entries.iter().filter(|entry| entry.entry.attr.kind() == FileKind::Directory);
            todo.extend(dirs.map(|dir| dir.entry.node).collect::<Vec<_>>().into_iter().rev());
        }
        Ok(names)
    }

    pub async fn open(&self, node: Node, flags: OpenFlags) -> Result<Handle> {
        Ok(self.ask(Open { node, flags }).await?.handle)
    }

    pub async fn close(&self, node: Node, handle: Handle) -> Result<()> {
        let (flags, owner) = (OpenFlags::empty(), LockOwner(0));
        self.ask(Release { node, handle, flags, owner, flock_release: false }).await
    }

    pub async fn read_at(&self, node: Node, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        self.ask(Read { node, handle, offset, len }).await?.into_bytes()
    }

    pub async fn read_file(&self, node: Node, len: u32) -> Result<Bytes> {
        let handle = self.open(node, OpenFlags::empty()).await?;
        let read = self.read_at(node, handle, 0, len).await;
        self.close(node, handle).await?;
        read
    }

    pub async fn create(&self, dir: Node, file: &str) -> Result<(Node, Handle)> {
        self.create_for(dir, file, OpenFlags::READ_WRITE).await
    }

    pub async fn create_for(&self, dir: Node, file: &str, flags: OpenFlags) -> Result<(Node, Handle)> {
        let flags = flags | OpenFlags::EXCL;
        let create = Create { dir, name: name(file.as_bytes()), mode: 0o644, umask: 0, flags, initial: None };
        let made = self.ask(create).await?;
        Ok((made.entry.node, made.opened.handle))
    }

    /// Makes a file that is known not to exist, and does not wait for it if that can be foretold.
    pub async fn create_async(&self, dir: Node, file: &str) -> Result<Created> {
        let flags = OpenFlags::WRITE_ONLY | OpenFlags::TRUNC | OpenFlags::ASYNC_CREATE;
        let create = Create { dir, name: name(file.as_bytes()), mode: 0o644, umask: 0, flags, initial: None };
        self.ask(create).await
    }

    pub async fn write_at(&self, node: Node, handle: Handle, offset: u64, data: &[u8]) -> Result<u64> {
        let data = Payload::from(data.to_vec());
        let write = Write { node, handle, offset, data, cached: false, kill_setid: false };
        Ok(self.ask(write).await?.0)
    }

    pub async fn write_file(&self, dir: Node, file: &str, content: &[u8]) -> Result<Node> {
        let (node, handle) = self.create(dir, file).await?;
        let written = self.write_at(node, handle, 0, content).await;
        self.close(node, handle).await?;
        match written? {
            count if count == content.len() as u64 => Ok(node),
            _ => Err(Errno::EIO.because("a short write")),
        }
    }

    pub async fn copy(&self, from: (Node, Handle), to: (Node, Handle), len: u64) -> Result<u64> {
        let ((node, handle), (to_node, to_handle)) = (from, to);
        let copy = CopyRange { node, handle, offset: 0, to_node, to_handle, to_offset: 0, len };
        Ok(self.ask(copy).await?.0)
    }

    pub async fn fsync(&self, node: Node, handle: Handle) -> Result<()> {
        self.ask(FSync { node, handle, data_only: false }).await
    }

    pub async fn truncate(&self, node: Node, size: u64) -> Result<()> {
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.ask(SetAttr { node, handle: None, attrs }).await.map(drop)
    }

    /// Makes an open file so long.
    pub async fn truncate_open(&self, node: Node, handle: Handle, size: u64) -> Result<()> {
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.ask(SetAttr { node, handle: Some(handle), attrs }).await.map(drop)
    }

    pub async fn set_group(&self, node: Node, gid: u32) -> Result<Attr> {
        let attrs = SetAttrs { gid: Some(gid), ..SetAttrs::default() };
        Ok(self.ask(SetAttr { node, handle: None, attrs }).await?.attr)
    }

    /// Sets the time of modification.
    pub async fn touch(&self, node: Node) -> Result<Attr> {
        let attrs = SetAttrs { mtime: Some(SetTime::Now), ..SetAttrs::default() };
        Ok(self.ask(SetAttr { node, handle: None, attrs }).await?.attr)
    }

    /// Sets the time of modification of an open file, in seconds.
    pub async fn set_mtime(&self, node: Node, handle: Handle, secs: i64) -> Result<Attr> {
        let mtime = Some(SetTime::To(Time::new(secs, 0)));
        let attrs = SetAttrs { mtime, ..SetAttrs::default() };
        Ok(self.ask(SetAttr { node, handle: Some(handle), attrs }).await?.attr)
    }

    pub async fn symlink(&self, dir: Node, file: &str, target: &'static str) -> Result<Entry> {
        let target = Target::new(target)?;
        self.ask(SymLink { dir, name: name(file.as_bytes()), target, initial: None }).await
    }

    pub async fn attr(&self, node: Node, handle: Option<Handle>) -> Result<Attr> {
        Ok(self.ask(GetAttr { node, handle }).await?.attr)
    }

    pub async fn size(&self, node: Node, handle: Option<Handle>) -> Result<u64> {
        Ok(self.attr(node, handle).await?.size)
    }

    pub async fn mkdir(&self, dir: Node, file: &str) -> Result<Node> {
        let make = MkDir { dir, name: name(file.as_bytes()), mode: 0o755, umask: 0, initial: None };
        Ok(self.ask(make).await?.node)
    }

    pub async fn unlink(&self, dir: Node, file: &str) -> Result<()> {
        self.ask(Unlink { dir, name: name(file.as_bytes()) }).await
    }

    pub async fn rmdir(&self, dir: Node, file: &str) -> Result<()> {
        self.ask(RmDir { dir, name: name(file.as_bytes()) }).await
    }

    pub async fn rename(&self, dir: Node, from: &str, to_dir: Node, to: &str) -> Result<()> {
        let (name, to_name) = (name(from.as_bytes()), name(to.as_bytes()));
        let flags = RenameFlags::empty();
        self.ask(Rename { dir, name, to_dir, to_name, flags }).await
    }

    pub async fn walk(&self, names: &[&str]) -> Result<Vec<Entry>> {
        let names = names.iter().map(|text| name(text.as_bytes())).collect();
        self.ask(Walk { dir: Node::ROOT, names }).await
    }
}
