// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two worlds must have in common.

use outrigger_core::ops::{
    GetXattr, ListXattr, Lookup, Open, OpenDir, OpenFlags, Read, ReadDir, ReadLink, Release, ReleaseDir,
};
use outrigger_core::reply::{Dirent, Entry};
use outrigger_core::{
    Attr, Credentials, Cx, FileKind, Handle, LockOwner, Node, Op, Reply, Result, Service, ask,
};
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park};

/// The most bytes of a file or a directory that a snapshot reads.
const READ_MAX: u32 = 1 << 20;

/// A reply without what two trees cannot have in common: numbers of nodes and handles, times, and reasons of errors.
pub fn essence(reply: &Reply) -> String {
    match reply {
        Reply::Entry(entry) => format!("entry {}", about(&entry.attr)),
        Reply::Created(created) => format!("created {}", about(&created.entry.attr)),
        Reply::Attrs(attrs) => format!("attributes {}", about(&attrs.attr)),
        Reply::Opened(_) => "opened".to_owned(),
        Reply::Error(error) => format!("{:?}", error.errno),
        Reply::Data(data) => {
            data.clone().into_bytes().map_or_else(|error| error.to_string(), |data| runs(&data))
        }
        other => format!("{other:?}"),
    }
}

/// Content, with how often each byte follows itself.
fn runs(content: &[u8]) -> String {
    let runs = content.chunk_by(|a, b| a == b);
    runs.map(|run| format!("{}*{} ", run[0].escape_ascii(), run.len())).collect()
}

fn about(attr: &Attr) -> String {
    let size = if attr.is_dir() { 0 } else { attr.size };
    format!(
        "{:o} links {} size {size} owner {} {} device {}",
        attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev
    )
}

/// Everything below the root, one line a name: attributes, content, targets, extended attributes, and which names lead to
/// the same file.
///
/// # Errors
/// Why the tree cannot be read.
pub fn snapshot(driver: &Arc<dyn Service>) -> Result<Vec<String>> {
    let mut reader = Reader { driver, lines: Vec::new(), seen: HashMap::new() };
    reader.directory(Node::ROOT, "")?;
    Ok(reader.lines)
}

struct Reader<'a> {
    driver: &'a Arc<dyn Service>,
    lines: Vec<String>,
    /// The first path of each inode.
    seen: HashMap<u64, String>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => park(),
        }
    }
}

impl Reader<'_> {
    fn ask<O: Op>(&self, op: O) -> Result<O::Out> {
        block_on(ask(&**self.driver, &Cx::new(u64::MAX, Credentials::ROOT, "snapshot"), op))
    }

    fn directory(&mut self, node: Node, path: &str) -> Result<()> {
        let mut names = self.list(node)?;
        names.sort_by(|a, b| a.name[..].cmp(&b.name[..]));
        for dirent in names {
            let entry = self.ask(Lookup { dir: node, name: dirent.name.clone() })?;
            let path = format!("{path}/{:?}", dirent.name);
            let first = self.seen.entry(entry.attr.ino).or_insert_with(|| path.clone()).clone();
            let content = self.content(&entry)?;
            let attributes = self.attributes(entry.node);
            self.lines.push(format!("{path} is {first}: {} {content} {attributes}", about(&entry.attr)));
            if entry.attr.is_dir() {
                self.directory(entry.node, &path)?;
            }
        }
        Ok(())
    }

    fn list(&self, node: Node) -> Result<Vec<Dirent>> {
        let handle = self.ask(OpenDir { node })?.handle;
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let piece = self.ask(ReadDir { node, handle, cookie, size: READ_MAX })?;
            cookie = piece.entries.last().map_or(cookie, |last| last.cookie);
            all.extend(piece.entries);
            if piece.eof {
                self.ask(ReleaseDir { node, handle })?;
                return Ok(all);
            }
        }
    }

    fn content(&self, entry: &Entry) -> Result<String> {
        let node = entry.node;
        match entry.attr.kind() {
            FileKind::Symlink => Ok(format!("{:?}", self.ask(ReadLink { node })?)),
            FileKind::Regular => {
                let flags = OpenFlags::empty();
                let handle: Handle = self.ask(Open { node, flags })?.handle;
                let data = self.ask(Read { node, handle, offset: 0, len: READ_MAX })?.into_bytes()?;
                self.ask(Release { node, handle, flags, owner: LockOwner(0), flock_release: false })?;
                Ok(runs(&data))
            }
            _ => Ok(String::new()),
        }
    }

    fn attributes(&self, node: Node) -> String {
        let mut names = self.ask(ListXattr { node }).unwrap_or_default();
        names.sort_by(|a, b| a[..].cmp(&b[..]));
        let value = |name| self.ask(GetXattr { node, name }).map_err(|error| error.errno);
        names.into_iter().map(|name| format!("{name:?}={:?} ", value(name.clone()))).collect()
    }
}
