// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each operation costs on a tree in memory, without a door: `cargo run --release -p outrigger-driver-mem --example
//! measure`, with `-- kept` on one that survives its process, and
//! with `-- takeover` what taking it over costs; `-- files` is what files cost in memory without a log.

use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::{
    Answer, Credentials, Cx, Handle, HeapKeep, Inline, Name, Node, Payload, Reply, Service,
};
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

    /// Prints nanoseconds for each of `count` calls of `body`: of this thread's processor time and of time.
    fn time(&self, what: &str, count: u64, mut body: impl FnMut(u64)) {
        let (start, processor) = (Instant::now(), processor_time());
        (0..count).for_each(&mut body);
        let each = |nanos: f64| nanos / count as f64;
        let processor = each((processor_time() - processor) * 1e9);
        println!("{what:<34} {processor:>10.0} ns {:>10.0} ns", each(start.elapsed().as_nanos() as f64));
    }
}

/// Seconds this thread has run.
fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn name(number: u64) -> Name {
    Name::try_from(format!("file-{number:07}").as_str()).expect("a name")
}

fn create(bench: &Bench, dir: Node, number: u64) -> Node {
    match bench.call(Create {
        dir,
        name: name(number),
        mode: 0o644,
        umask: 0,
        flags: OpenFlags::READ_WRITE,
        initial: None,
    }) {
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

/// The tree as it is without anything to outlive the process, or with a log (`kept`).
fn tree(kept: bool, threads: &Arc<Threads>) -> Arc<dyn Service> {
    let (options, clock) = (Options::default(), threads.clone());
    let mem = match kept {
        true => Mem::with_keep(options, clock, Arc::new(HeapKeep::default())).expect("a tree"),
        false => Mem::new(options, clock),
    };
    Arc::new(Inline::new(mem, threads.clone()))
}

/// Bytes of memory this process has that are in no file.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib * 1024)
}

/// Makes `count` files of 1000 bytes; prints what each takes beside its page.
fn populate(service: Arc<dyn Service>, count: u64) {
    let before = resident();
    let bench = Bench { service, cx: Cx::new(1, Credentials::ROOT, "measure") };
    let (handle, data) = (Handle(0), Bytes::from(vec![1; 1000]));
    for number in 0..count {
        let node = create(&bench, Node::ROOT, number);
        let data = Payload::Bytes(data.clone());
        bench.call(Write { node, handle, offset: 0, data, cached: false, kill_setid: false });
        bench.call(Forget { node, count: 1 });
    }
    println!("{:<34} {:>10} bytes", "memory for each file", (resident() - before) / count);
}

/// What it costs to take over a tree of `count` small files.
fn takeover(count: u64, threads: &Arc<Threads>) {
    let keep = Arc::new(HeapKeep::default());
    let mem = || {
        let mem = Mem::with_keep(Options::default(), threads.clone(), keep.clone());
        Arc::new(Inline::new(mem.expect("a tree"), threads.clone()))
    };
    populate(mem(), count);
    let start = Instant::now();
    let taken = mem();
    println!("{:<34} {:>10.0} ms", format!("taking over {count} files"), start.elapsed().as_secs_f64() * 1e3);
    drop(taken);
}

fn main() {
    let kept = std::env::args().any(|argument| argument == "kept");
    let threads = Arc::new(Threads::new());
    match std::env::args().nth(1).as_deref() {
        Some("takeover") => return takeover(100_000, &threads),
        Some("files") => return populate(tree(false, &threads), 100_000),
        _ => {}
    }
    let bench = Bench { service: tree(kept, &threads), cx: Cx::new(1, Credentials::ROOT, "measure") };
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
    thread::scope(|scope| {
        for thread in 0..2 {
            let bench = &bench;
            scope.spawn(move || {
                bench.time("create, two threads", 200_000, |i| {
                    let node = create(bench, Node::ROOT, (thread + 1) * 10_000_000 + i);
                    bench.call(Forget { node, count: 1 });
                });
            });
        }
    });
}
