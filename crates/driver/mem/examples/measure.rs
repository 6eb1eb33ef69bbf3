// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each operation costs on a tree in memory, without a door: `cargo run --release -p outrigger-driver-mem --example
//! measure`.

use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::{Answer, Credentials, Cx, Handle, Inline, Name, Node, Payload, Reply, Service};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// The service and one context that every request uses.
struct Bench {
    service: Arc<dyn Service>,
    cx: Cx,
}

impl Bench {
    fn call(&self, request: impl Into<Request>) -> Reply {
        match self.service.call(&self.cx, request.into()) {
            Answer::Ready(Reply::Error(error)) => panic!("{error}"),
            Answer::Ready(reply) => reply,
            Answer::Later(_) => panic!("not prompt"),
        }
    }

    /// Prints nanoseconds for each of `count` calls of `body`.
    fn time(&self, what: &str, count: u64, mut body: impl FnMut(u64)) {
        let start = Instant::now();
        (0..count).for_each(&mut body);
        let each = start.elapsed().as_nanos() as f64 / count as f64;
        println!("{what:<34} {each:>10.0} ns");
    }
}

fn name(number: u64) -> Name {
    Name::try_from(format!("file-{number:07}").as_str()).expect("a name")
}

fn create(bench: &Bench, dir: Node, number: u64) -> Node {
    match bench.call(Create { dir, name: name(number), mode: 0o644, flags: OpenFlags::READ_WRITE }) {
        Reply::Created(made) => made.entry.node,
        other => panic!("{other:?}"),
    }
}

fn names(bench: &Bench, count: u64) {
    bench.time("create", count, |i| {
        let node = create(bench, Node::ROOT, i);
        bench.call(Forget { node, count: 1 });
    });
    bench.time("lookup and forget", count, |i| {
        if let Reply::Entry(entry) = bench.call(Lookup { dir: Node::ROOT, name: name(i) }) {
            bench.call(Forget { node: entry.node, count: 1 });
        }
    });
    let list = || {
        let (mut cookie, mut seen) = (0, 0);
        loop {
            match bench.call(ReadDir { node: Node::ROOT, handle: Handle(0), cookie, size: 32 << 10 }) {
                Reply::Dirents(piece) => {
                    seen += piece.entries.len() as u64;
                    cookie = piece.entries.last().map_or(cookie, |entry| entry.cookie);
                    if piece.eof {
                        return seen;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let start = Instant::now();
    let seen = list();
    println!("{:<34} {:>10.0} ns", "readdir, each name", start.elapsed().as_nanos() as f64 / seen as f64);
    bench.time("unlink", count, |i| {
        bench.call(Unlink { dir: Node::ROOT, name: name(i) });
    });
}

fn content(bench: &Bench, file: Node) {
    let handle = Handle(0);
    let write = |offset, data: &Bytes| Write {
        node: file,
        handle,
        offset,
        data: Payload::Bytes(data.clone()),
        cached: false,
        kill_setid: false,
    };
    let (page, large) = (Bytes::from(vec![1; 4096]), Bytes::from(vec![1; 1 << 20]));
    bench.time("write 1 MiB, new", 1000, |i| drop(bench.call(write(i << 20, &large))));
    bench.time("write 1 MiB, over", 1000, |i| drop(bench.call(write(i << 20, &large))));
    bench.time("write 4 KiB, over", 200_000, |i| drop(bench.call(write((i * 7919 % 200_000) << 12, &page))));
    bench.time("read 4 KiB", 500_000, |i| {
        bench.call(Read { node: file, handle, offset: (i * 7919 % 200_000) << 12, len: 4096 });
    });
    bench.time("read 1 MiB, not looked at", 10_000, |i| {
        bench.call(Read { node: file, handle, offset: (i % 1000) << 20, len: 1 << 20 });
    });
}

fn main() {
    let threads = Arc::new(Threads::new());
    let service = Arc::new(Inline::new(Mem::new(Options::default(), threads.clone()), threads));
    let bench = Bench { service, cx: Cx::new(1, Credentials::ROOT, "measure") };
    let file = create(&bench, Node::ROOT, u64::MAX);
    bench.time("getattr", 2_000_000, |_| drop(bench.call(GetAttr { node: file, handle: None })));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                bench.time("getattr, two threads, one file", 1_000_000, |_| {
                    drop(bench.call(GetAttr { node: file, handle: None }));
                });
            });
        }
    });
    content(&bench, file);
    names(&bench, 1_000_000);
}
