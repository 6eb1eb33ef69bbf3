// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `simulate` supplies does the same as what a complete driver has: random operations on two trees in memory, one
//! of which may only use the operations the others are made from.

use outrigger_core::ops::*;
use outrigger_core::reply::{DirentPlus, DirentsPlus, Opened};
use outrigger_core::{Abilities, Clock, Inline};
use outrigger_core::{
    Credentials, Cx, Errno, Error, Handle, Layer, LockOwner, Name, Node, OpCode, OpSet, Payload, Place,
    Reply, Request, Service, Stack, Time,
};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_simulate::Simulate;
use outrigger_sim::{Sim, explore};
use std::sync::Arc;
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

/// Takes operations away from a driver.
struct Without(OpSet);

impl Layer for Without {
    fn place(&self) -> Place {
        Place::anywhere("without")
    }
    fn refusal(&self, request: &Request) -> Option<Error> {
        self.0.has(request.op()).then(|| Errno::ENOSYS.into())
    }
    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { ops: below.ops.without(self.0), ..below }
    }
}

fn mem(sim: &Arc<Sim>) -> Stack {
    let options = Options { size: 64 << 20, inodes: 10_000, ..Options::default() };
    Stack::new(Arc::new(Inline::new(Mem::new(options, Arc::new(Still)), sim.clone())))
}

/// A tree, and the nodes seen in it.
struct Tree {
    sim: Arc<Sim>,
    top: Arc<dyn Service>,
}

impl Tree {
    fn ask(&self, request: Request) -> Reply {
        let (top, cx) = (Arc::clone(&self.top), Cx::new(1, Credentials::new(1000, 100), "test"));
        self.sim.block_on(async move { top.call(&cx, request).await })
    }

    /// The whole of a directory as one reply, however it came in pieces.
    fn list(&self, node: Node, size: u32) -> Reply {
        let (mut cookie, handle, mut entries) = (0, Handle(0), Vec::<DirentPlus>::new());
        loop {
            match self.ask(ReadDirPlus { node, handle, cookie, size }.into()) {
                Reply::DirentsPlus(piece) => {
                    entries.extend(piece.entries);
                    match entries.last() {
                        Some(last) if !piece.eof => cookie = last.cookie,
                        _ => return Reply::DirentsPlus(DirentsPlus { entries, eof: true }),
                    }
                }
                other => return other,
            }
        }
    }
}

/// Random operations on a few names, and on the nodes that were seen.
struct Program {
    random: fastrand::Rng,
    nodes: Vec<Node>,
    /// Those that are regular files; doors copy between nothing else.
    files: Vec<Node>,
}

impl Program {
    fn node(&mut self) -> Node {
        self.nodes[self.random.usize(..self.nodes.len())]
    }

    fn name(&mut self) -> Name {
        let text = ["a", "b", "c", "long-name", "d"][self.random.usize(..5)];
        Name::try_from(text).expect("a good name")
    }

    fn next(&mut self) -> Request {
        let (node, dir, name, handle) = (self.node(), self.node(), self.name(), Handle(0));
        let (offset, mode) = (self.random.u64(..5000), 0o100_600 | (self.random.u32(..) & 0o7));
        let all = [
            OpenFlags::empty(),
            OpenFlags::READ_WRITE,
            OpenFlags::EXCL,
            OpenFlags::READ_WRITE | OpenFlags::TRUNC,
        ];
        let flags = all[self.random.usize(..4)];
        match self.random.u8(..11) {
            0 => MkDir { dir, name, mode: 0o755, umask: 0, initial: None }.into(),
            1 | 2 => Create { dir, name, mode: mode & 0o777, umask: 0, flags, initial: None }.into(),
            3 => Lookup { dir, name }.into(),
            4 => Walk { dir, names: (0..self.random.usize(..4)).map(|_| self.name()).collect() }.into(),
            5 => {
                let data = Payload::from(vec![self.random.u8(..); self.random.usize(..3000)]);
                Write { node, handle, offset, data, cached: false, kill_setid: false }.into()
            }
            6 => Read { node, handle, offset, len: 4096 }.into(),
            7 if !self.files.is_empty() => {
                let mut file = || self.files[self.random.usize(..self.files.len())];
                let (node, to_node) = (file(), file());
                let (to_handle, to_offset) = (handle, self.random.u64(..5000));
                let len = self.random.u64(..4000);
                CopyRange { node, handle, offset, to_node, to_handle, to_offset, len }.into()
            }
            8 => Unlink { dir, name }.into(),
            9 => Access { node, mask: self.random.u32(..8) }.into(),
            _ => Flush { node, handle, owner: LockOwner(1) }.into(),
        }
    }

    fn learn(&mut self, reply: &Reply) {
        let entry = match reply {
            Reply::Entry(entry) => entry,
            Reply::Created(created) => &created.entry,
            _ => return,
        };
        if !self.nodes.contains(&entry.node) {
            self.nodes.push(entry.node);
            self.files.extend((!entry.attr.is_dir()).then_some(entry.node));
        }
    }
}

/// Without handles, whose numbers a stateless driver chooses as it likes, and without the reasons of errors.
fn essence(reply: Reply) -> Reply {
    match reply {
        Reply::Created(mut created) => {
            created.opened = Opened::default();
            Reply::Created(created)
        }
        Reply::Error(error) => Reply::Error(error.errno.into()),
        other => other,
    }
}

fn compare(sim: &Arc<Sim>, missing: &[OpCode]) {
    let complete = Tree { sim: Arc::clone(sim), top: mem(sim).service() };
    let stack = mem(sim).push(Without(OpSet::of(missing))).and_then(|stack| stack.push(Simulate::new()));
    let supplied = Tree { sim: Arc::clone(sim), top: stack.expect("any order is good").service() };
    let random = fastrand::Rng::with_seed(sim.seed());
    let mut program = Program { random, nodes: vec![Node::ROOT], files: vec![] };
    for _ in 0..300 {
        let request = program.next();
        sim.log(format!("{request:?}"));
        let reply = complete.ask(request.clone());
        program.learn(&reply);
        assert_eq!(essence(supplied.ask(request.clone())), essence(reply), "{request:?}");
    }
    for node in program.nodes.clone() {
        let size = 300 + program.random.u32(..5000);
        assert_eq!(essence(supplied.list(node, size)), essence(complete.list(node, size)), "{node:?}");
    }
}

#[test]
fn supplied_operations_do_what_a_complete_driver_does() {
    use OpCode::{
        Access, CopyRange, Create, Flush, Lookup, Open, OpenDir, ReadDir, ReadDirPlus, Release, Walk,
    };
    for missing in [
        &[Walk, ReadDirPlus, Create, CopyRange, Access, Flush][..],
        &[Lookup, ReadDirPlus, Create, Open, OpenDir, Release],
        &[ReadDir, Walk],
    ] {
        explore(0..20, |sim| compare(sim, missing));
    }
}
