// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that fail, files that change while they are copied, and trees that say little.

use super::dying::large;
use super::tree::{list, populate, read, write};
use super::{at, mem, union};
use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::{OpenFlags, RenameFlags};
use outrigger_core::{Abilities, Answer, Cx, Errno, FileKind, Notify, OpCode, Reply, Request, Service};
use outrigger_runtime::Threads;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Sees each request first, and answers it with an error or not.
type Hook = Box<dyn FnMut(&Request) -> Option<Errno> + Send>;

/// A tree with a hook.
struct Hooked {
    tree: Arc<dyn Service>,
    hook: Mutex<Hook>,
    lookups: AtomicUsize,
    /// Whether listings say what kind of file a name leads to.
    tells_kinds: bool,
}

impl Hooked {
    fn new(tells_kinds: bool) -> Arc<Self> {
        let (hook, lookups): (Hook, _) = (Box::new(|_| None), AtomicUsize::new(0));
        let tree = mem(&Arc::new(Threads::new()));
        Arc::new(Hooked { tree, hook: Mutex::new(hook), lookups, tells_kinds })
    }

    /// Replaces the hook.
    fn on(&self, hook: impl FnMut(&Request) -> Option<Errno> + Send + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(hook);
    }

    /// The tree without the hook.
    fn direct(&self) -> Direct {
        Direct::new(Arc::clone(&self.tree))
    }
}

impl Service for Hooked {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let failed = (self.hook.lock().unwrap_or_else(PoisonError::into_inner))(&request);
        if let Some(errno) = failed {
            return Answer::error(errno);
        }
        if request.op() == OpCode::Lookup {
            self.lookups.fetch_add(1, Ordering::Relaxed);
        }
        let answer = self.tree.call(cx, request);
        if self.tells_kinds {
            return answer;
        }
        answer.map(|mut reply| {
            if let Reply::Dirents(listed) = &mut reply {
                listed.entries.iter_mut().for_each(|entry| entry.kind = None);
            }
            reply
        })
    }
    fn abilities(&self) -> Abilities {
        self.tree.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.tree.attach(notify);
    }
}

/// Two trees whose requests can fail, and both as one.
struct World {
    upper: Arc<Hooked>,
    lower: Arc<Hooked>,
    both: Direct,
}

impl World {
    fn new() -> Self {
        let (upper, lower) = (Hooked::new(true), Hooked::new(true));
        populate(&lower.direct());
        write(&lower.direct(), "large", &large());
        lower.direct().mkdir(at("emptied"), 0o755).expect("a directory");
        write(&lower.direct(), "emptied/inside", b"inside");
        let both = Direct::new(union(upper.clone(), lower.clone(), None));
        World { upper, lower, both }
    }

    /// Nothing of a copy is there.
    fn has_no_copy(&self, name: &str) {
        let upper = self.upper.direct();
        assert_eq!(upper.stat(at(name)).map(drop), Err(Errno::ENOENT), "a copy of {name}");
        assert_eq!(list(&upper, ".wh..wh.work"), Vec::<String>::new(), "temporary files");
    }
}

/// Does something in the lower tree when so much of a file was read.
fn while_copied(world: &World, change: impl Fn(&Direct) + Send + 'static) {
    let (lower, mut reads) = (world.lower.direct(), 0);
    world.lower.on(move |request| {
        reads += usize::from(request.op() == OpCode::Read);
        if request.op() == OpCode::Read && reads == 3 {
            change(&lower);
        }
        None
    });
}

#[test]
fn a_file_that_shrinks_while_it_is_copied_is_not_copied() {
    let world = World::new();
    while_copied(&world, |lower| lower.truncate(at("large"), 300_000).expect("a size"));
    assert_eq!(world.both.chmod(at("large"), 0o600), Err(Errno::ESTALE));
    world.has_no_copy("large");
    world.both.chmod(at("large"), 0o600).expect("a copy of what it is now");
    assert!(read(&world.both, "large") == large()[..300_000]);
}

#[test]
fn a_file_whose_content_changes_while_it_is_copied_is_not_copied() {
    let world = World::new();
    while_copied(&world, |lower| {
        let fd = lower.open(at("large"), Flags::WRITE, 0).expect("an open file");
        lower.write_at(fd, 0, b"changed").expect("a write");
        lower.close(fd).expect("a close");
    });
    assert_eq!(world.both.chmod(at("large"), 0o600), Err(Errno::ESTALE));
    world.has_no_copy("large");
    world.both.chmod(at("large"), 0o600).expect("a copy of what it is now");
    assert!(read(&world.both, "large") == read(&world.lower.direct(), "large"));
}

#[test]
fn names_of_an_emptied_directory_stay_away_when_its_replacement_or_removal_fails() {
    type Change = fn(&Direct) -> Result<(), Errno>;
    let cases: [(OpCode, Change); 2] = [
        (OpCode::Rename, |fs| fs.rename(at("made"), at("emptied"), RenameFlags::empty())),
        (OpCode::RmDir, |fs| fs.rmdir(at("emptied"))),
    ];
    for (failing, change) in cases {
        let world = World::new();
        world.both.unlink(at("emptied/inside")).expect("a removal");
        world.both.mkdir(at("made"), 0o755).expect("a directory");
        // Who has it open keeps what is known of it.
        let open = world.both.open(at("emptied"), Flags::READ | Flags::DIRECTORY, 0).expect("a directory");
        world.upper.on(move |request| (request.op() == failing).then_some(Errno::EIO));
        assert_eq!(change(&world.both), Err(Errno::EIO));
        world.upper.on(|_| None);
        let fresh = Direct::new(union(world.upper.clone(), world.lower.clone(), None));
        for both in [&world.both, &fresh] {
            assert_eq!(list(both, "emptied"), Vec::<String>::new(), "{failing:?}");
            assert_eq!(both.stat(at("emptied/inside")).map(drop), Err(Errno::ENOENT), "{failing:?}");
        }
        world.both.close(open).expect("a close");
        change(&world.both).expect("a change");
        assert_eq!(world.both.stat(at("emptied/inside")).map(drop), Err(Errno::ENOENT), "{failing:?}");
    }
}

/// Whether a request shortens a file for the caller: the layer's own ones have handles.
fn cuts(request: &Request) -> bool {
    match request {
        Request::Open(open) => open.flags.contains(OpenFlags::TRUNC),
        Request::SetAttr(set) => set.attrs.size.is_some() && set.handle.is_none(),
        _ => false,
    }
}

#[test]
fn a_file_that_cannot_be_shortened_stays_as_it_is() {
    type Change = fn(&Direct) -> Result<(), Errno>;
    let cases: [(Change, usize); 2] = [
        (
            |fs| {
                let fd = fs.open(at("large"), Flags::WRITE | Flags::TRUNC, 0)?;
                fs.close(fd)
            },
            0,
        ),
        (|fs| fs.truncate(at("large"), 5000), 5000),
    ];
    for (change, size) in cases {
        let world = World::new();
        world.upper.on(|request| cuts(request).then_some(Errno::EMFILE));
        assert_eq!(change(&world.both), Err(Errno::EMFILE));
        assert!(read(&world.both, "large") == large(), "the file is as it was");
        world.has_no_copy("large");
        world.upper.on(|request| (request.op() == OpCode::Rename).then_some(Errno::EIO));
        assert_eq!(change(&world.both), Err(Errno::EIO));
        assert!(read(&world.both, "large") == large(), "the file is as it was");
        world.upper.on(|_| None);
        change(&world.both).expect("a change");
        assert!(read(&world.both, "large") == large()[..size]);
    }
}

#[test]
fn a_copy_that_finds_no_room_leaves_the_room_to_others() {
    let world = World::new();
    let mut writes = 0;
    world.upper.on(move |request| {
        writes += usize::from(request.op() == OpCode::Write);
        (writes >= 3 && request.op() == OpCode::Write).then_some(Errno::ENOSPC)
    });
    assert_eq!(world.both.chmod(at("large"), 0o600), Err(Errno::ENOSPC));
    world.has_no_copy("large");
    world.upper.on(|_| None);
    world.both.chmod(at("large"), 0o600).expect("a copy");
    assert!(read(&world.both, "large") == large());
}

#[test]
fn a_copy_that_was_shortened_meanwhile_has_no_hole() {
    for most in [0, 1000] {
        let world = World::new();
        let mut writes = 0;
        world.upper.on(move |request| {
            writes += usize::from(request.op() == OpCode::Write);
            (writes == 3).then_some(Errno::EIO)
        });
        assert_eq!(world.both.chmod(at("large"), 0o600), Err(Errno::EIO));
        // The shorter copy gets as far as its permissions.
        world.upper.on(|request| match request {
            Request::SetAttr(set) => set.attrs.mode.map(|_| Errno::EIO),
            _ => None,
        });
        assert_eq!(world.both.truncate(at("large"), most), Err(Errno::EIO));
        world.upper.on(|_| None);
        world.both.chmod(at("large"), 0o600).expect("a copy");
        assert!(read(&world.both, "large") == large(), "all of it, after one of {most} bytes");
    }
}

#[test]
fn a_name_is_looked_up_once_for_a_listing_without_kinds() {
    const COUNT: u32 = 34_000;
    let (upper, lower) = (Hooked::new(false), Hooked::new(true));
    let root = outrigger_core::Node::ROOT;
    let direct = upper.direct();
    for number in 0..COUNT {
        let name = outrigger_core::Name::try_from(&*format!("{number}")).expect("a name");
        let (mode, umask, rdev, initial) = (FileKind::Regular.bits() | 0o644, 0, 0, None);
        direct
            .ask(outrigger_core::ops::MkNod { dir: root, name, mode, umask, rdev, initial })
            .expect("a file");
    }
    let both = Direct::new(union(upper.clone(), lower, None));
    upper.lookups.store(0, Ordering::Relaxed);
    assert_eq!(list(&both, "").len(), COUNT as usize);
    let lookups = upper.lookups.load(Ordering::Relaxed);
    assert!(lookups < COUNT as usize + 100, "{lookups} lookups for {COUNT} names");
}
