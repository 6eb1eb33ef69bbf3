// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that needs handles does the same under `closesim`, for callers that have none, as one that needs none: random
//! operations on two trees in memory, of which one refuses what has no handle.

use outrigger_core::ops::*;
use outrigger_core::reply::{Entry, Opened};
use outrigger_core::{
    Abilities, Answer, Clock, Credentials, Cx, Errno, Handle, Inline, Layer, Name, Node, OpCode, OpSet,
    Payload, Place, Reply, Request, Runtime, Service, Stack, Time, Traverse, Visit, lock,
};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_closesim::CloseSim;
use outrigger_sim::{Sim, explore};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A clock that stands still, so that both trees have the same times.
struct Still;

impl Clock for Still {
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
    fn wall(&self) -> Time {
        Time::new(1_000_000_000, 0)
    }
}

fn mem(sim: &Arc<Sim>) -> Stack {
    let options = Options { size: 64 << 20, inodes: 10_000, ..Options::default() };
    Stack::new(Arc::new(Inline::new(Mem::new(options, Arc::new(Still)), sim.clone())))
}

/// Gives out handles above a driver that has none, and insists on them.
#[derive(Clone, Default)]
struct Handles(Arc<Mutex<Given>>);

#[derive(Default)]
struct Given {
    open: HashMap<Handle, (Node, OpenFlags)>,
    last: u64,
}

/// Takes the handles out of a request.
#[derive(Default)]
struct Take(Vec<Handle>);

impl Visit for Take {
    fn handle(&mut self, handle: &mut Handle) {
        self.0.push(std::mem::replace(handle, Handle::NONE));
    }
}

impl Layer for Handles {
    fn place(&self) -> Place {
        Place::anywhere("handles")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let mut given = lock(&self.0);
        if let Some(opening) = request.opens() {
            given.last += 1;
            let (handle, flags) = (Handle(given.last), opening.flags.unwrap_or_default());
            given.open.insert(handle, (opening.node.expect("it exists"), flags));
            return Answer::Ready(Reply::Opened(Opened { handle, ..Opened::default() }));
        }
        if let Some((node, handle)) = request.ends() {
            let ended = given.open.remove(&handle).is_some_and(|(of, _)| of == node);
            assert!(ended, "{request:?} ends what is not open");
            return Answer::Ready(Reply::Done(()));
        }
        let (mut taken, writes) = (Take::default(), request.changes_tree());
        request.traverse(&mut taken);
        // The last one is written to.
        let known = taken.0.iter().rev().enumerate().all(|(place, handle)| {
            given.open.get(handle).is_some_and(|(_, flags)| !writes || place > 0 || flags.writes())
        });
        match known {
            true => next.call(cx, request),
            false => Answer::error(Errno::EBADF.because(format!("{request:?} has no good handle"))),
        }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let ops =
            below.ops.union(OpSet::of(&[OpCode::Open, OpCode::OpenDir, OpCode::Release, OpCode::ReleaseDir]));
        let needs = Abilities { stateless_files: false, stateless_dirs: false, anonymous_io: false, ..below };
        Abilities { ops, lasting_cookies: false, ..needs }
    }
}

/// One of the two trees.
struct Tree {
    sim: Arc<Sim>,
    top: Arc<dyn Service>,
}

impl Tree {
    fn ask(&self, request: Request) -> Reply {
        let (top, cx) = (Arc::clone(&self.top), Cx::new(1, Credentials::new(1000, 100), "test"));
        self.sim.block_on(async move { top.call(&cx, request).await })
    }

    /// The names in a directory, however they come in pieces.
    fn names(&self, node: Node, size: u32) -> Result<Vec<(Name, u64)>, Errno> {
        let (mut cookie, handle, mut names) = (0, Handle::NONE, Vec::new());
        loop {
            match self.ask(ReadDir { node, handle, cookie, size }.into()) {
                Reply::Dirents(piece) => {
                    cookie = piece.entries.last().map_or(cookie, |last| last.cookie);
                    names.extend(piece.entries.into_iter().map(|dirent| (dirent.name, dirent.ino)));
                    if piece.eof {
                        return Ok(names);
                    }
                }
                Reply::Error(error) => return Err(error.errno),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Random operations of a caller that knows neither open nor close.
struct Program {
    random: fastrand::Rng,
    files: Vec<Node>,
}

impl Program {
    fn next(&mut self) -> Request {
        let names = ["a", "b", "c", "d", "e", "f"];
        let name = Name::try_from(names[self.random.usize(..6)]).expect("a good name");
        let to_name = Name::try_from(names[self.random.usize(..6)]).expect("a good name");
        let (dir, to_dir, handle) = (Node::ROOT, Node::ROOT, Handle::NONE);
        let make = MkNod { dir, name: name.clone(), mode: 0o100_644, umask: 0, rdev: 0, initial: None };
        if self.files.is_empty() {
            return make.into();
        }
        let mut file = || self.files[self.random.usize(..self.files.len())];
        let (node, to_node) = (file(), file());
        let (offset, len) = (self.random.u64(..5000), self.random.u32(1..3000));
        match self.random.u8(..12) {
            0 => make.into(),
            1 => Unlink { dir, name }.into(),
            2 => Rename { dir, name, to_dir, to_name, flags: RenameFlags::empty() }.into(),
            3..6 => Read { node, handle, offset, len }.into(),
            6..8 => {
                let data = Payload::from(vec![self.random.u8(..); len as usize]);
                Write { node, handle, offset, data, cached: false, kill_setid: false }.into()
            }
            8 => FSync { node, handle, data_only: true }.into(),
            9 => {
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                Fallocate { node, handle, offset, len: len.into(), mode }.into()
            }
            10 => Seek { node, handle, offset, whence: Whence::Hole }.into(),
            _ => {
                let (to_handle, to_offset) = (handle, self.random.u64(5000..10_000));
                CopyRange { node, handle, offset, to_node, to_handle, to_offset, len: len.into() }.into()
            }
        }
    }
}

fn compare(sim: &Arc<Sim>) {
    let handles = Handles::default();
    let plain = Tree { sim: Arc::clone(sim), top: mem(sim).service() };
    let layer = CloseSim::new(outrigger_layer_closesim::Options::default(), sim.clone());
    let stack = mem(sim).push(handles.clone()).and_then(|stack| stack.push(layer));
    let closed = Tree { sim: Arc::clone(sim), top: stack.expect("any order is good").service() };
    assert!(closed.top.abilities().anonymous_io);
    let mut program = Program { random: fastrand::Rng::with_seed(sim.seed()), files: vec![] };
    for _ in 0..400 {
        let request = program.next();
        sim.log(format!("{request:?}"));
        let without_reason = |reply| match reply {
            Reply::Error(error) => Reply::Error(error.errno.into()),
            other => other,
        };
        let reply = without_reason(plain.ask(request.clone()));
        if let Reply::Entry(Entry { node, .. }) = &reply {
            program.files.push(*node);
        }
        assert_eq!(without_reason(closed.ask(request.clone())), reply, "{request:?}");
        let (own, pause) = (Arc::clone(sim), Duration::from_millis(program.random.u64(..4000)));
        sim.block_on(async move { own.sleep_until(own.monotonic() + pause).await });
    }
    let size = 30 + program.random.u32(..100);
    assert_eq!(closed.names(Node::ROOT, size), plain.names(Node::ROOT, size));
    let opened = lock(&handles.0).last;
    assert!(opened > 50, "files are closed and opened again: {opened}");
    drop(closed);
    assert_eq!(sim.run(), 0);
    assert!(lock(&handles.0).open.is_empty(), "everything is closed");
}

#[test]
fn a_caller_without_handles_finds_the_same_in_a_tree_that_needs_them() {
    explore(0..20, compare);
}
