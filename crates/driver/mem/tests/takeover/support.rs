// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of taking over share: a clock that counts, random requests, and a picture of a tree.

use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::{
    Answer, Clock, Credentials, Cx, FileKind, Handle, Inline, LockOwner, Name, Node, Payload, Reply, Request,
    Service, SetAttrs, SetTime, Target, Time, XattrName,
};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A clock on which each look takes a nanosecond.
#[derive(Default)]
pub struct Ticks {
    looks: AtomicU32,
    stopped: AtomicBool,
}

impl Ticks {
    /// From now on it is always the same time.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }
}

impl Clock for Ticks {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.looks.fetch_add(1, Relaxed).into())
    }
    fn wall(&self) -> Time {
        match self.stopped.load(Relaxed) {
            true => Time::new(2000, 0),
            false => Time::new(1000, self.looks.fetch_add(1, Relaxed)),
        }
    }
}

/// The limits of the trees.
pub fn options() -> Options {
    Options { size: 1 << 30, inodes: 10_000, ..Options::default() }
}

/// A tree that answers at once.
pub fn serve(mem: Mem) -> Arc<dyn Service> {
    Arc::new(Inline::new(mem, Arc::new(Threads::new())))
}

/// Asks as the superuser; content comes as bytes.
pub fn call(service: &dyn Service, request: Request) -> Reply {
    match service.call(&Cx::new(1, Credentials::ROOT, "test"), request) {
        Answer::Ready(Reply::Data(data)) => Reply::Data(Payload::Bytes(data.into_bytes().expect("content"))),
        Answer::Ready(reply) => reply,
        Answer::Later(_) => panic!("not prompt"),
    }
}

/// A sequence of numbers that differs by seed.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn name(&mut self) -> Name {
        Name::try_from(self.of(&["a", "b", "c", "d", "a rather long name"])).expect("a name")
    }

    fn xattr(&mut self) -> XattrName {
        XattrName::new(self.of(&["user.a", "user.b"]).as_bytes().to_vec()).expect("a name")
    }
}

/// What a kernel knows of a tree: which nodes it refers to, and how often.
#[derive(Clone, Default)]
pub struct Known(BTreeMap<u64, u64>);

impl Known {
    /// What several know.
    pub fn together(all: Vec<Known>) -> Known {
        Known(all.into_iter().flat_map(|known| known.0).collect())
    }

    /// Counts the references in a reply.
    pub fn count(&mut self, reply: &Reply) {
        let entry = match reply {
            Reply::Entry(entry) => Some(entry),
            Reply::Created(made) => Some(&made.entry),
            _ => None,
        };
        if let Some(entry) = entry {
            *self.0.entry(entry.node.0).or_default() += 1;
        }
    }

    /// A node that is referred to.
    fn node(&self, numbers: &mut Numbers) -> Node {
        let known: Vec<u64> = self.0.keys().copied().chain([1, 1, 1]).collect();
        Node(numbers.of(&known))
    }

    /// All references to one node are returned at once, as a kernel does.
    fn forget(&mut self, numbers: &mut Numbers) -> Request {
        let node = self.node(numbers);
        let count = self.0.remove(&node.0).unwrap_or(0);
        Forget { node, count }.into()
    }

    /// A change or a question about known nodes. With `whole`, only what happens as a whole or not at all if the process
    /// dies: content is never changed in place, locks are not converted.
    pub fn request(&mut self, numbers: &mut Numbers, whole: bool) -> Request {
        let (dir, node) = (self.node(numbers), self.node(numbers));
        let (name, mode) = (numbers.name(), numbers.of(&[0o644, 0o4755, 0o700]));
        let flags = OpenFlags::READ_WRITE;
        match numbers.below(26) {
            0..=2 => Create { dir, name, mode, umask: 0, flags, initial: None }.into(),
            3 | 4 => MkDir { dir, name, mode, umask: 0, initial: None }.into(),
            5 => SymLink {
                dir,
                name,
                target: Target::new(&b"nowhere/at/all"[..]).expect("a target"),
                initial: None,
            }
            .into(),
            6 => MkNod { dir, name, mode: FileKind::Fifo.bits() | mode, umask: 0, rdev: 0, initial: None }
                .into(),
            7 => TmpFile { dir, mode, umask: 0, flags: numbers.of(&[flags, flags | OpenFlags::EXCL]) }.into(),
            8 => Link { node, dir, name }.into(),
            9 | 10 => Unlink { dir, name }.into(),
            11 => RmDir { dir, name }.into(),
            12..=14 => {
                let (to_dir, to_name) = (self.node(numbers), numbers.name());
                let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::WHITEOUT];
                Rename { dir, name, to_dir, to_name, flags: numbers.of(&flags) }.into()
            }
            15 => self.forget(numbers),
            16 | 17 => Lookup { dir, name }.into(),
            18 => xattr(numbers, node),
            19 => lock(numbers, node, whole),
            20 => ReadDir { node, handle: Handle(0), cookie: 0, size: 4096 }.into(),
            _ => self.content(numbers, node, whole),
        }
    }

    fn content(&self, numbers: &mut Numbers, node: Node, whole: bool) -> Request {
        let place = |numbers: &mut Numbers| match whole {
            true => numbers.below(10) * 4096,
            false => numbers.below(20) * 2048 + numbers.below(3),
        };
        let (offset, len) = (place(numbers), place(numbers) + 4096);
        let handle = Handle(0);
        match numbers.below(8) {
            0..=2 => {
                let data = vec![numbers.below(255) as u8 + 1; (1 + len % 30_000) as usize];
                // Appending writes only behind the end of the file.
                let handle = if whole { opened(OpenFlags::APPEND | OpenFlags::READ_WRITE) } else { handle };
                Write { node, handle, offset, data: data.into(), cached: false, kill_setid: false }.into()
            }
            3 => {
                let size = Some(offset + numbers.below(3));
                let atime = numbers.of(&[None, Some(SetTime::To(Time::new(-5, 7)))]);
                let attrs = SetAttrs { size, atime, mode: Some(0o600), ..SetAttrs::default() };
                SetAttr { node, handle: None, attrs }.into()
            }
            4 | 5 => {
                use FallocateMode as Mode;
                let modes = [
                    Mode::empty(),
                    Mode::KEEP_SIZE,
                    Mode::PUNCH_HOLE | Mode::KEEP_SIZE,
                    Mode::ZERO_RANGE,
                    Mode::COLLAPSE_RANGE,
                    Mode::INSERT_RANGE,
                ];
                Fallocate { node, handle, offset, len, mode: numbers.of(&modes) }.into()
            }
            6 => {
                let (to_node, to_handle, mut to_offset) = (self.node(numbers), handle, place(numbers));
                let (mut handle, mut len) = (handle, len);
                if whole {
                    // One step, and not over anything.
                    handle = opened(OpenFlags::NOATIME);
                    (to_offset, len) = ((1 << 20) + (numbers.below(200) << 12), 4096);
                }
                CopyRange { node, handle, offset, to_node, to_handle, to_offset, len }.into()
            }
            _ => Read { node, handle, offset, len: len as u32 }.into(),
        }
    }
}

fn xattr(numbers: &mut Numbers, node: Node) -> Request {
    let (name, flags) = (numbers.xattr(), XattrFlags::empty());
    match numbers.below(3) {
        0 => RemoveXattr { node, name }.into(),
        _ => {
            let value = Bytes::from(vec![numbers.below(255) as u8; numbers.below(300) as usize]);
            SetXattr { node, name, value, flags }.into()
        }
    }
}

fn lock(numbers: &mut Numbers, node: Node, whole: bool) -> Request {
    let owner = LockOwner(numbers.below(3));
    if numbers.below(4) == 0 {
        return Flush { node, handle: Handle(0), owner }.into();
    }
    let kind = numbers.of(&[LockKind::Read, LockKind::Write, LockKind::Unlock]);
    let start = numbers.below(100);
    let lock = Lock { start, end: start + numbers.below(100), kind, pid: owner.0 as u32 };
    let flock = numbers.below(3) == 0 && !whole;
    SetLock { node, handle: Handle(0), owner, lock, wait: false, flock }.into()
}

/// The handle this driver gives for a file opened with `flags`.
fn opened(flags: OpenFlags) -> Handle {
    Handle(1 << 32 | u64::from(flags.bits()))
}

/// Everything one can learn about a tree: from the root on, and about `known` nodes that have no name.
pub fn picture(service: &dyn Service, known: &Known) -> String {
    let mut text = format!("{:?}\n", call(service, StatFs { node: Node::ROOT }.into()));
    let mut described = BTreeSet::from([Node::ROOT.0]);
    let mut todo = vec![Node::ROOT];
    describe(service, Node::ROOT, &mut text);
    while let Some(dir) = todo.pop() {
        let listing = ReadDir { node: dir, handle: Handle(0), cookie: 0, size: 1 << 20 };
        let Reply::Dirents(listing) = call(service, listing.into()) else { continue };
        for entry in listing.entries {
            let _ = writeln!(text, "{} {entry:?}", dir.0);
            let node = Node(entry.ino);
            if described.insert(node.0) {
                describe(service, node, &mut text);
            }
            if entry.kind == Some(FileKind::Directory) {
                todo.push(node);
            }
        }
    }
    for &node in known.0.keys().filter(|node| !described.contains(node)) {
        describe(service, Node(node), &mut text);
    }
    text
}

fn describe(service: &dyn Service, node: Node, text: &mut String) {
    let mut ask = |request| {
        let reply = call(service, request);
        let _ = writeln!(text, "{} {reply:?}", node.0);
        reply
    };
    let attr = match ask(GetAttr { node, handle: None }.into()) {
        Reply::Attrs(attrs) => attrs.attr,
        _ => return,
    };
    if let Reply::Names(names) = ask(ListXattr { node }.into()) {
        for name in names {
            ask(GetXattr { node, name }.into());
        }
    }
    for owner in 0..4 {
        let whole = |start| Lock { start, end: start + 9, kind: LockKind::Write, pid: 0 };
        for start in (0..200).step_by(10) {
            let (owner, lock) = (LockOwner(owner), whole(start));
            ask(GetLock { node, handle: Handle(0), owner, lock }.into());
        }
    }
    match attr.kind() {
        FileKind::Symlink => drop(ask(ReadLink { node }.into())),
        FileKind::Regular => describe_content(service, node, attr.size, text),
        _ => {}
    }
}

fn describe_content(service: &dyn Service, node: Node, size: u64, text: &mut String) {
    let (handle, mut offset) = (Handle(0), 0);
    for whence in [Whence::Data, Whence::Hole].into_iter().cycle().take(40) {
        match call(service, Seek { node, handle, offset, whence }.into()) {
            Reply::Offset(found) => offset = found.0,
            _ => break,
        }
        let _ = write!(text, " {offset}");
    }
    let mut at = 0;
    while at < size.min(4 << 20) {
        let read = Read {
            node,
            handle: Handle(1 << 32 | u64::from(OpenFlags::NOATIME.bits())),
            offset: at,
            len: 4096,
        };
        match call(service, read.into()) {
            Reply::Data(Payload::Bytes(bytes)) => {
                let sum =
                    bytes.iter().fold(0_u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                let _ = write!(text, " {sum:x}");
            }
            other => panic!("{other:?}"),
        }
        at += 4096;
    }
    text.push('\n');
}

/// The lines of two pictures that differ.
pub fn difference(found: &str, expected: &str) -> String {
    let lines = found.lines().zip(expected.lines()).filter(|(found, expected)| found != expected);
    lines.map(|(found, expected)| format!("found    {found}\nexpected {expected}\n")).collect()
}
