// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file system with one file and nothing to do, to measure the transport: every attribute request reaches the
//! server, reads give zeroes, or the content of a host file.
//!
//! `null MOUNTPOINT [OPTIONS [HOSTFILE]]` serves until unmounted; `null --measure FILE N` times fstat and open+close there.
use outrigger_core::ops::{self, OpCode, Request};
use outrigger_core::reply::{Attrs, Entry, Opened, Ttl};
use outrigger_core::{
    Abilities, Answer, Attr, BoxFuture, Clock, Cx, Errno, FileKind, FileSlice, Generation, Node, Notify,
    OpSet, Payload, ReadAt, Reply, Runtime, Service, Time,
};
use outrigger_door_fuse::{Options, Session};
use std::error::Error;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The only file.
const FILE: Node = Node(2);
/// Its size in bytes.
const SIZE: u64 = 256 << 20;

struct Null {
    zeroes: bytes::Bytes,
    host: Option<Arc<Host>>,
}

/// A host file, so that replies can be spliced from it.
struct Host(File);

impl ReadAt for Host {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, outrigger_core::Error> {
        Ok(self.0.read_at(buf, offset)?)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

fn attr(node: Node) -> Attr {
    let (mode, size) = match node {
        FILE => (FileKind::Regular.bits() | 0o644, SIZE),
        _ => (FileKind::Directory.bits() | 0o755, 4096),
    };
    Attr { ino: node.0, mode, size, nlink: 1, blksize: 4096, ..Attr::default() }
}

impl Null {
    fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Lookup(ops::Lookup { name, .. }) if name.as_bytes() == b"file" => Reply::Entry(Entry {
                node: FILE,
                generation: Generation(0),
                attr: attr(FILE),
                entry_ttl: Ttl::SECOND,
                attr_ttl: Ttl::NEVER,
            }),
            Request::Lookup(_) => Reply::Error(Errno::ENOENT.into()),
            Request::GetAttr(get) => Reply::Attrs(Attrs { attr: attr(get.node), ttl: Ttl::NEVER }),
            Request::Open(_) => Reply::Opened(Opened::default()),
            Request::Read(ops::Read { offset, len, .. }) if let Some(host) = &self.host => {
                Reply::Data(Payload::File(FileSlice { file: Arc::clone(host) as _, offset, len }))
            }
            Request::Read(read) => {
                let len = u64::from(read.len).min(SIZE.saturating_sub(read.offset)) as usize;
                Reply::Data(Payload::Bytes(self.zeroes.slice(..len.min(self.zeroes.len()))))
            }
            Request::Write(write) => Reply::Count(outrigger_core::reply::Count(write.data.len() as u64)),
            Request::Release(_) | Request::Forget(_) => Reply::Done(()),
            _ => Reply::Error(Errno::ENOSYS.into()),
        }
    }
}

impl Service for Null {
    fn call<'a>(&'a self, _: &'a Cx, request: Request) -> Answer<'a> {
        Answer::Ready(self.answer(request))
    }

    fn abilities(&self) -> Abilities {
        use OpCode::{Forget, GetAttr, Lookup, Open, Read, Release, Write};
        Abilities::new("null", "null:", OpSet::of(&[Lookup, GetAttr, Open, Read, Write, Release, Forget]))
    }

    fn attach(&self, _: Arc<dyn Notify>) {}
}

/// Nothing is ever late here, so no task is ever run.
struct NoTasks(Instant);

impl Clock for NoTasks {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
    fn wall(&self) -> Time {
        Time::default()
    }
}

impl Runtime for NoTasks {
    fn spawn(&self, _: BoxFuture<'static, ()>) {}
    fn sleep_until(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

fn measure(path: &Path, count: u32) -> Result<(), Box<dyn Error>> {
    let file = File::open(path)?;
    let start = Instant::now();
    for _ in 0..count {
        rustix::fs::fstat(&file)?;
    }
    println!("fstat {:.2} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    let start = Instant::now();
    for _ in 0..count / 4 {
        drop(File::open(path)?);
    }
    println!("open+close {:.2} us", start.elapsed().as_secs_f64() * 4e6 / f64::from(count));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--measure", file, count] => measure(file.as_ref(), count.parse()?),
        [mountpoint, rest @ ..] => {
            let (options, _) = Options::parse(rest.first().unwrap_or(&""))?;
            let host = rest.get(1).map(File::open).transpose()?.map(|file| Arc::new(Host(file)));
            let service = Arc::new(Null { zeroes: vec![0; 1 << 20].into(), host });
            let session =
                Session::mount(mountpoint.as_ref(), service, Arc::new(NoTasks(Instant::now())), options)?;
            session.wait_ready(Duration::from_secs(5))?;
            println!("{:?}", session.wait());
            for count in session.status().counts {
                println!("{count:?}");
            }
            Ok(())
        }
        [] => Err("usage: null MOUNTPOINT [OPTIONS] | null --measure FILE N".into()),
    }
}
