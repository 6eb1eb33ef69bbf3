// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short forms of what the tests ask for.

#![allow(dead_code, reason = "each test program uses its own part")]

use outrigger_core::ops::{
    Create, GetAttr, Lookup, MkDir, Open, OpenDir, OpenFlags, Read, ReadDir, Release, ReleaseDir, Write,
};
use outrigger_core::reply::{Created, Dirent, Entry};
use outrigger_core::{Attr, BlockingDriver, Credentials, Cx, Handle, LockOwner, Name, Node, Payload, Result};
use outrigger_driver_local::{Local, LocalOptions};
use std::path::Path;

/// A name.
pub fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

/// A request of root.
pub fn cx() -> Cx {
    Cx::new(1, Credentials::ROOT, "test")
}

/// Whether this process may do what root may.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A tree without caching.
pub fn open(path: &Path) -> Local {
    Local::open(path, LocalOptions::default()).expect("the directory opens")
}

/// What `path`, relative to the root, leads to.
pub fn find(local: &Local, path: &str) -> Result<Entry> {
    let mut node = Node::ROOT;
    let mut entry = None;
    for part in path.split('/') {
        let found = local.lookup(&cx(), Lookup { dir: node, name: name(part) })?;
        node = found.node;
        entry = Some(found);
    }
    Ok(entry.expect("split gives one part at least"))
}

/// Attributes of a node.
pub fn stat(local: &Local, node: Node) -> Result<Attr> {
    local.getattr(&cx(), GetAttr { node, handle: None }).map(|attrs| attrs.attr)
}

/// Makes and opens a file for reading and writing.
pub fn create(local: &Local, dir: Node, file: &str) -> Result<Created> {
    let flags = OpenFlags::READ_WRITE | OpenFlags::EXCL;
    local.create(&cx(), Create { dir, name: name(file), mode: 0o640, umask: 0, flags, initial: None })
}

/// Makes a directory.
pub fn mkdir(local: &Local, dir: Node, new: &str) -> Result<Entry> {
    local.mkdir(&cx(), MkDir { dir, name: name(new), mode: 0o755, umask: 0, initial: None })
}

/// Writes at `offset`.
pub fn write(local: &Local, node: Node, handle: Handle, offset: u64, data: &[u8]) -> Result<u64> {
    let data = Payload::from(data.to_vec());
    let op = Write { node, handle, offset, data, cached: false, kill_setid: false };
    local.write(&cx(), op).map(|count| count.0)
}

/// Reads up to `len` bytes at `offset`.
pub fn read(local: &Local, node: Node, handle: Handle, offset: u64, len: u32) -> Result<Vec<u8>> {
    let data = local.read(&cx(), Read { node, handle, offset, len })?;
    data.into_bytes().map(|bytes| bytes.to_vec())
}

/// The whole of a file.
pub fn read_all(local: &Local, node: Node) -> Result<Vec<u8>> {
    let opened = local.open(&cx(), Open { node, flags: OpenFlags::empty() })?;
    let data = read(local, node, opened.handle, 0, 1 << 20);
    release(local, node, opened.handle)?;
    data
}

/// Closes a file.
pub fn release(local: &Local, node: Node, handle: Handle) -> Result<()> {
    let op = Release {
        node,
        handle,
        flags: OpenFlags::empty(),
        owner: LockOwner::default(),
        flock_release: false,
    };
    local.release(&cx(), op)
}

/// All entries of a directory, asked for in pieces of `size`.
pub fn list(local: &Local, node: Node, size: u32) -> Result<Vec<Dirent>> {
    let handle = local.opendir(&cx(), OpenDir { node })?.handle;
    let mut all = Vec::new();
    let mut cookie = 0;
    loop {
        let piece = local.readdir(&cx(), ReadDir { node, handle, cookie, size })?;
        all.extend(piece.entries);
        cookie = all.last().map_or(0, |dirent: &Dirent| dirent.cookie);
        if piece.eof {
            local.releasedir(&cx(), ReleaseDir { node, handle })?;
            return Ok(all);
        }
    }
}
