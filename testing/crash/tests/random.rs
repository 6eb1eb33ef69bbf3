// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random operations in a world with random deaths, and in one without.

mod support;

use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::{Handle, LockOwner, Node, Payload, Reply, Request, SetAttrs};
use outrigger_crash::{Death, essence, snapshot};
use outrigger_runtime::Threads;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::sync::Arc;
use support::{Hand, Kind, name, xattr};

/// One step: which operation, on what, how, and the deaths.
type Step = [u8; 8];

/// A world, and what was seen in it. Two worlds that agree have seen the same in the same order.
struct Seen {
    hand: Hand,
    nodes: Vec<Node>,
    dirs: Vec<Node>,
    files: Vec<(Node, Handle)>,
}

fn pick<T: Copy>(from: &[T], number: u8) -> T {
    from[usize::from(number) % from.len()]
}

fn flags(number: u8) -> OpenFlags {
    let all = [
        OpenFlags::empty(),
        OpenFlags::EXCL,
        OpenFlags::TRUNC,
        OpenFlags::APPEND,
        OpenFlags::EXCL | OpenFlags::APPEND,
        OpenFlags::APPEND | OpenFlags::TRUNC,
    ];
    OpenFlags::READ_WRITE | pick(&all, number)
}

impl Seen {
    fn new(kind: Kind, threads: &Arc<Threads>) -> Self {
        Seen {
            hand: Hand::new(kind, threads),
            nodes: vec![Node::ROOT],
            dirs: vec![Node::ROOT],
            files: vec![],
        }
    }

    fn request(&self, [op, one, two, three, four, how, ..]: Step) -> Request {
        let (node, dir) = (pick(&self.nodes, one), pick(&self.dirs, one));
        let name = |number: u8| name(pick(&["a", "b", "c"], number));
        match op % 24 {
            0 | 1 => MkDir { dir, name: name(two), mode: 0o755, umask: 0, initial: None }.into(),
            2 => MkNod { dir, name: name(two), mode: 0o010_644, umask: 0, rdev: 0, initial: None }.into(),
            3 | 4 => Create { dir, name: name(two), mode: 0o644, umask: 0, flags: flags(how), initial: None }
                .into(),
            5 => Link { node, dir: pick(&self.dirs, three), name: name(two) }.into(),
            6 | 7 => Unlink { dir, name: name(two) }.into(),
            8 => RmDir { dir, name: name(two) }.into(),
            9..=11 => {
                let to_dir = pick(&self.dirs, three);
                let flags = RenameFlags::from_bits_retain(u32::from(how % 3));
                Rename { dir, name: name(two), to_dir, to_name: name(four), flags }.into()
            }
            12 => SetXattr {
                node,
                name: xattr(pick(&["user.a", "user.b"], two)),
                value: Bytes::copy_from_slice(&[three]),
                flags: XattrFlags::from_bits_retain(u32::from(how % 3)),
            }
            .into(),
            13 => RemoveXattr { node, name: xattr(pick(&["user.a", "user.b"], two)) }.into(),
            14 => {
                let attrs = SetAttrs { mode: Some(0o600 | u32::from(how % 8)), ..SetAttrs::default() };
                SetAttr { node, handle: None, attrs }.into()
            }
            _ if self.files.is_empty() => Lookup { dir, name: name(two) }.into(),
            _ => self.on_a_file([op, one, two, three, four, how, 0, 0]),
        }
    }

    fn on_a_file(&self, [op, one, two, three, four, how, ..]: Step) -> Request {
        let (node, handle) = pick(&self.files, one);
        let (offset, len) = (u64::from(two) * 64, u64::from(three) + 1);
        match op % 24 {
            15..=18 => {
                let data = Payload::from(vec![four; len as usize]);
                Write { node, handle, offset, data, cached: how % 8 == 0, kill_setid: false }.into()
            }
            19 => {
                let modes = [
                    FallocateMode::empty(),
                    FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
                    FallocateMode::COLLAPSE_RANGE,
                    FallocateMode::INSERT_RANGE,
                ];
                let mode = pick(&modes, how);
                Fallocate { node, handle, offset: u64::from(two % 3) * 4096, len: 4096, mode }.into()
            }
            20 => {
                let attrs = SetAttrs { size: Some(offset), ..SetAttrs::default() };
                SetAttr { node, handle: Some(handle), attrs }.into()
            }
            21 => Open { node, flags: flags(how) - OpenFlags::EXCL }.into(),
            22 => Read { node, handle, offset, len: 4096 }.into(),
            _ => {
                let flags = OpenFlags::READ_WRITE;
                Release { node, handle, flags, owner: LockOwner(1), flock_release: false }.into()
            }
        }
    }

    /// Does the step, and tells what it came to.
    fn step(&mut self, step: Step, deaths: &[Death]) -> String {
        let request = self.request(step);
        let reply = self.hand.world.ask(request.clone(), deaths);
        match &reply {
            Reply::Entry(entry) if !self.nodes.contains(&entry.node) => {
                self.nodes.push(entry.node);
                self.dirs.extend(entry.attr.is_dir().then_some(entry.node));
            }
            Reply::Created(created) => {
                if !self.nodes.contains(&created.entry.node) {
                    self.nodes.push(created.entry.node);
                }
                self.files.push((created.entry.node, created.opened.handle));
            }
            Reply::Opened(opened) => {
                if let Request::Open(op) = &request {
                    self.files.push((op.node, opened.handle));
                }
            }
            _ => {}
        }
        if let Request::Release(op) = &request {
            let place = self.files.iter().position(|file| *file == (op.node, op.handle));
            place.map(|place| self.files.remove(place));
        }
        format!("{}: {}", request.op().name(), essence(&reply))
    }
}

/// The deaths of a step: none in every other step, else one process or two in a row.
fn deaths([.., first, second]: Step) -> Vec<Death> {
    let all = Death::all(3);
    match first % 4 {
        0 | 1 => vec![],
        2 => vec![pick(&all, second)],
        _ => vec![pick(&all, second), pick(&all, second / 16)],
    }
}

/// Whether both worlds agree after each step.
fn compare(kind: Kind, threads: &Arc<Threads>, steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut mortal, mut immortal) = (Seen::new(kind, threads), Seen::new(kind, threads));
    for step in steps {
        let disturbed = mortal.step(*step, &deaths(*step));
        let undisturbed = immortal.step(*step, &[]);
        prop_assert_eq!(&disturbed, &undisturbed, "{:?} with {:?}", step, deaths(*step));
        let (one, other) = (snapshot(mortal.hand.world.driver()), snapshot(immortal.hand.world.driver()));
        prop_assert_eq!(one, other, "{} with {:?}", undisturbed, deaths(*step));
        if step[7] % 16 == 0 {
            mortal.hand.tick();
            immortal.hand.tick();
        }
    }
    Ok(())
}

fn explore(kind: Kind, cases: u32) {
    let threads = Arc::new(Threads::new());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let steps = proptest::collection::vec(any::<Step>(), 1..60);
    let result = TestRunner::new(config).run(&steps, |steps| compare(kind, &threads, &steps));
    result.unwrap_or_else(|failure| panic!("{kind:?}: {failure}"));
}

#[test]
fn in_memory() {
    explore(Kind::Mem, 500);
}

#[test]
fn in_memory_in_one_tick() {
    explore(Kind::MemInATick, 500);
}

#[test]
fn in_a_directory() {
    explore(Kind::LocalInATick, 60);
}
