// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server that is only read implements reading, and its tree refuses every change.

mod support;

use bytes::{Bytes, BytesMut};
use outrigger_core::ops::*;
use outrigger_core::{
    Credentials, Cx, Driver, Errno, FileKind, Handle, HeapKeep, Keep, Name, Node, Notice, Notify, Result,
    SetAttrs, Target,
};
use outrigger_runtime::Threads;
use outrigger_toolkit_remote::{
    Asked, Begun, Fault, FileOptions, FileServer, FileTree, Found, Listing, Readings, Version,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use support::Missing;

const CONTENT: &[u8] = b"content";

/// A server with the file `page`, which tells of which version it is.
#[derive(Default)]
struct Page {
    readings: Readings<usize>,
    version: Arc<AtomicU64>,
}

fn page() -> Found {
    let size = Some(CONTENT.len() as u64);
    Found { name: Bytes::from_static(b"page"), size, ..Found::new(FileKind::Regular) }
}

impl FileServer for Page {
    const READ_ONLY: bool = true;
    const TELLS_VERSIONS: bool = true;
    /// How much was received.
    type Transfer = usize;
    type Refusal = Missing;

    fn driver(&self) -> &'static str {
        "page"
    }

    fn shown(&self) -> String {
        "a page".to_owned()
    }

    fn readings(&self) -> &Readings<usize> {
        &self.readings
    }

    async fn stat(&self, path: &[u8]) -> Asked<Found, Self> {
        match path {
            b"/" => Ok(Found::new(FileKind::Directory)),
            b"/page" => Ok(Found { modified: Some(self.version.load(Relaxed) as i64), ..page() }),
            _ => Err(Fault::Refused(Missing)),
        }
    }

    async fn list(&self, _: &[u8]) -> Asked<Listing, Self> {
        Ok(Listing { names: vec![page()], odd: None })
    }

    async fn begin(&self, _: &[u8], _: u64) -> Asked<Begun<usize>, Self> {
        let version = Version {
            size: Some(CONTENT.len() as u64),
            modified: Some(self.version.load(Relaxed) as i64),
            tag: None,
        };
        Ok(Begun { transfer: Some(0), at: 0, version })
    }

    async fn receive(&self, received: &mut usize, buffer: &mut BytesMut) -> Asked<usize, Self> {
        let rest = &CONTENT[std::mem::replace(received, CONTENT.len())..];
        buffer.extend_from_slice(rest);
        Ok(rest.len())
    }
}

/// The outcomes of all changes, of the file with this node and handle.
async fn changes(tree: &FileTree<Page>, cx: &Cx, node: Node, handle: Handle) -> Vec<Result<()>> {
    let (dir, name) = (Node::ROOT, Name::try_from("page").expect("a name"));
    let (mode, umask, rdev, flags) = (0o644, 0, 0, OpenFlags::WRITE_ONLY);
    let (to_dir, to_name, none) = (dir, name.clone(), RenameFlags::empty());
    let target = Target::new(b"page".to_vec()).expect("a target");
    let attrs = SetAttrs { size: Some(0), ..SetAttrs::default() };
    let data = b"x".to_vec().into();
    let writing = Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
    let renaming = Rename { dir, name: name.clone(), to_dir, to_name, flags: none };
    let making = Create { dir, name: name.clone(), mode, umask, flags, initial: None };
    vec![
        tree.setattr(cx, SetAttr { node, handle: None, attrs }).await.map(drop),
        tree.mknod(cx, MkNod { dir, name: name.clone(), mode, umask, rdev, initial: None }).await.map(drop),
        tree.mkdir(cx, MkDir { dir, name: name.clone(), mode, umask, initial: None }).await.map(drop),
        tree.symlink(cx, SymLink { dir, name: name.clone(), target, initial: None }).await.map(drop),
        tree.link(cx, Link { node, dir, name: name.clone() }).await.map(drop),
        tree.unlink(cx, Unlink { dir, name: name.clone() }).await,
        tree.rmdir(cx, RmDir { dir, name }).await,
        tree.rename(cx, renaming).await,
        tree.open(cx, Open { node, flags }).await.map(drop),
        tree.create(cx, making).await.map(drop),
        tree.write(cx, writing).await.map(drop),
    ]
}

#[test]
fn a_tree_that_is_only_read_is_read_and_refuses_every_change() {
    let runtime = Arc::new(Threads::new());
    let tree = FileTree::open(Page::default(), Vec::new(), FileOptions::default(), runtime.clone(), None);
    let tree = tree.expect("a tree");
    assert!(tree.abilities().read_only);
    runtime.handle().block_on(async move {
        let (cx, name) = (Cx::new(1, Credentials::ROOT, "test"), Name::try_from("page").expect("a name"));
        let node = tree.lookup(&cx, Lookup { dir: Node::ROOT, name }).await.expect("a page").node;
        let flags = OpenFlags::empty();
        let handle = tree.open(&cx, Open { node, flags }).await.expect("opened").handle;
        let data = tree.read(&cx, Read { node, handle, offset: 0, len: 100 }).await.expect("read");
        assert_eq!(data.into_bytes().expect("bytes"), CONTENT);
        for (number, outcome) in changes(&tree, &cx, node, handle).await.into_iter().enumerate() {
            assert_eq!(outcome.map_err(|error| error.errno), Err(Errno::EROFS), "{number}");
        }
    });
}

/// Counts notices of changed files.
struct Counted(Arc<AtomicU64>);

impl Notify for Counted {
    fn notify(&self, notice: Notice) {
        assert!(matches!(notice, Notice::InvalidateNode { offset: 0, len: 0, .. }), "{notice:?}");
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn what_is_read_of_an_open_file_is_of_one_version_also_after_a_takeover() {
    let (runtime, version) = (Arc::new(Threads::new()), Arc::new(AtomicU64::new(1)));
    let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
    let open = || {
        let page = Page { version: Arc::clone(&version), ..Page::default() };
        let (options, keep) = (FileOptions::default(), Some(Arc::clone(&keep)));
        FileTree::open(page, Vec::new(), options, runtime.clone(), keep).expect("a tree")
    };
    runtime.handle().block_on(async {
        // Of a program: what layers open for themselves ends with the process.
        let cx = Cx { slot: 1, ..Cx::new(1, Credentials::ROOT, "test") };
        let (flags, name) = (OpenFlags::empty(), Name::try_from("page").expect("a name"));
        let (tree, told) = (open(), Arc::new(AtomicU64::new(0)));
        tree.attach(Arc::new(Counted(Arc::clone(&told))));
        let look = async || {
            let op = Lookup { dir: Node::ROOT, name: name.clone() };
            tree.lookup(&cx, op).await.expect("a page").node
        };
        let node = look().await;
        let read = async |tree: &FileTree<Page>, handle| {
            let data = tree.read(&cx, Read { node, handle, offset: 0, len: 100 }).await;
            data.map(|data| data.into_bytes().expect("bytes") == CONTENT).map_err(|error| error.errno)
        };
        let before = tree.open(&cx, Open { node, flags }).await.expect("opened").handle;
        assert_eq!(read(&tree, before).await, Ok(true));
        version.store(2, Relaxed);
        look().await;
        let after = tree.open(&cx, Open { node, flags }).await.expect("opened").handle;
        assert_eq!((read(&tree, after).await, read(&tree, before).await), (Ok(true), Err(Errno::ESTALE)));
        // Others may still have content of the version that they were told of.
        look().await;
        assert_eq!(read(&tree, after).await, Ok(true));
        let again = tree.open(&cx, Open { node, flags }).await.expect("opened").handle;
        assert_eq!(read(&tree, again).await, Ok(true));
        version.store(3, Relaxed);
        let unaware = tree.open(&cx, Open { node, flags }).await.expect("opened").handle;
        let before_that = told.load(Relaxed);
        for _ in 0..2 {
            assert_eq!(read(&tree, unaware).await, Err(Errno::ESTALE));
        }
        assert!(told.load(Relaxed) > before_that, "they are told");
        let aware = tree.open(&cx, Open { node, flags }).await.expect("opened").handle;
        assert_eq!(read(&tree, aware).await, Ok(true));
        version.store(2, Relaxed);
        let tree = open();
        assert_eq!((read(&tree, before).await, read(&tree, after).await), (Err(Errno::ESTALE), Ok(true)));
    });
}
