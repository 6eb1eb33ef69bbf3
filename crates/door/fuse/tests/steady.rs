// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a request costs once everything is warm: one read, one write, no allocation.
mod support;

use bytes::Bytes;
use outrigger_core::ops::{self, OpCode, Request};
use outrigger_core::reply::{Attrs, Entry, Opened, Ttl};
use outrigger_core::{
    Abilities, Answer, Attr, Cx, Errno, FileKind, Generation, Node, Notify, OpSet, Payload, Reply, Service,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use support::{Fixture, can_mount, within};

/// Allocations of the whole process.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory came from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One file, always in the same state.
struct OneFile(Bytes);

fn attr(node: Node) -> Attr {
    let mode = if node == Node::ROOT { FileKind::Directory.bits() } else { FileKind::Regular.bits() };
    Attr { ino: node.0, mode: mode | 0o755, size: 1 << 20, nlink: 1, ..Attr::default() }
}

impl Service for OneFile {
    fn call<'a>(&'a self, _: &'a Cx, request: Request) -> Answer<'a> {
        Answer::Ready(match request {
            Request::Lookup(_) => Reply::Entry(Entry {
                node: Node(2),
                generation: Generation(0),
                attr: attr(Node(2)),
                entry_ttl: Ttl::FOREVER,
                attr_ttl: Ttl::NEVER,
            }),
            Request::GetAttr(get) => Reply::Attrs(Attrs { attr: attr(get.node), ttl: Ttl::NEVER }),
            Request::Open(_) => Reply::Opened(Opened::default()),
            Request::Read(ops::Read { len, .. }) => Reply::Data(Payload::Bytes(self.0.slice(..len as usize))),
            Request::Release(_) | Request::Forget(_) => Reply::Done(()),
            _ => Reply::Error(Errno::ENOSYS.into()),
        })
    }

    fn abilities(&self) -> Abilities {
        use OpCode::{Forget, GetAttr, Lookup, Open, Read, Release};
        Abilities::new("one", "one:", OpSet::of(&[Lookup, GetAttr, Open, Read, Release, Forget]))
    }

    fn attach(&self, _: Arc<dyn Notify>) {}
}

/// Read and write calls of the reader threads so far.
fn reader_calls() -> (u64, u64) {
    let mut calls = (0, 0);
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        if fs::read_to_string(task.join("comm")).unwrap().trim() != "fuse-reader" {
            continue;
        }
        let io = fs::read_to_string(task.join("io")).unwrap();
        let field = |name: &str| -> u64 {
            io.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
        };
        calls = (calls.0 + field("syscr:"), calls.1 + field("syscw:"));
    }
    calls
}

#[test]
fn one_read_one_write_and_no_allocation_for_a_request() {
    if !can_mount() {
        return;
    }
    const COUNT: u64 = 2000;
    const TURNS: u64 = 10;
    // One reader: another one, hired on a busy machine, would have to be set up first.
    let fixture = Fixture::new(Arc::new(OneFile(vec![7; 1 << 20].into())), "max_readers=1");
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(fixture.path("file")).unwrap();
    let mut block = vec![0; 4096];
    let mut one_of_each = || {
        rustix::fs::fstat(&file).unwrap();
        file.read_exact_at(&mut block, 0).unwrap();
    };
    (0..100).for_each(|_| one_of_each());
    let requests = || -> u64 { fixture.session.status().counts.iter().map(|count| count.requests).sum() };
    let (requests_before, calls) = (requests(), reader_calls());
    // Threads of the session that start late on a busy machine allocate too, but only once.
    let allocations = (0..TURNS).map(|_| {
        let before = ALLOCATIONS.load(Relaxed);
        (0..COUNT / TURNS).for_each(|_| one_of_each());
        ALLOCATIONS.load(Relaxed) - before
    });
    assert_eq!(allocations.min(), Some(0), "allocations");
    // Reading may ask for attributes too.
    let requests = requests() - requests_before;
    assert!(requests >= 2 * COUNT);
    // The system counts a call when it returns, which may be after the program has its reply.
    within(|| reader_calls() == (calls.0 + requests, calls.1 + requests));
}
