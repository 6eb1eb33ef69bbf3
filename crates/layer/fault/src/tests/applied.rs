// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is handed out in a reply that an error takes the place of.

use super::*;
use outrigger_core::ops::{Create, OpenDir, ReadDirPlus, TmpFile, Walk};
use outrigger_core::reply::{Created, DirentPlus, DirentsPlus};

const FLAGS: OpenFlags = OpenFlags::WRITE_ONLY;

fn entry(node: u64) -> Entry {
    let (attr, generation) = (Attr::default(), Generation(0));
    Entry { node: Node(node), generation, attr, entry_ttl: Ttl::NEVER, attr_ttl: Ttl::NEVER }
}

fn opened() -> Opened {
    Opened { handle: Handle(9), ..Opened::default() }
}

/// Names nothing with node 0, as a listing does of which an entry has gone.
fn hand_out(_: &Cx, request: &Request) -> Step {
    Step::Now(match request {
        Request::Lookup(_) | Request::MkDir(_) => Reply::Entry(entry(5)),
        Request::Walk(_) => Reply::Entries(vec![entry(5), entry(6)]),
        Request::ReadDirPlus(_) => {
            let dirent = |node| DirentPlus { cookie: node + 1, name: name("n"), entry: entry(node) };
            Reply::DirentsPlus(DirentsPlus { entries: [5, 0, 6].map(dirent).into(), eof: true })
        }
        Request::Open(_) | Request::OpenDir(_) => Reply::Opened(opened()),
        Request::Create(_) | Request::TmpFile(_) => {
            Reply::Created(Created { entry: entry(5), opened: opened() })
        }
        _ => Reply::Done(()),
    })
}

fn forget(node: u64) -> Request {
    Forget { node: Node(node), count: 1 }.into()
}

fn release(node: u64) -> Request {
    let (node, handle, owner) = (Node(node), Handle(9), LockOwner(0));
    Release { node, handle, flags: FLAGS, owner, flock_release: false }.into()
}

#[test]
fn what_an_applied_error_takes_the_place_of_is_given_back_below() {
    let (dir, mode, umask, flags) = (Node(1), 0o600, 0, FLAGS);
    let opendir = OpenDir { node: dir };
    let closedir = ReleaseDir { node: dir, handle: Handle(9) };
    let list = ReadDirPlus { node: dir, handle: Handle(9), cookie: 0, size: 4096 };
    for (request, expected) in [
        (lookup(1, "n"), vec![forget(5)]),
        (mkdir(), vec![forget(5)]),
        (Walk { dir, names: vec![name("n"), name("n")] }.into(), vec![forget(5), forget(6)]),
        (list.into(), vec![forget(5), forget(6)]),
        (Open { node: Node(5), flags }.into(), vec![release(5)]),
        (opendir.into(), vec![closedir.into()]),
        (
            Create { dir, name: name("n"), mode, umask, flags, initial: None }.into(),
            vec![release(5), forget(5)],
        ),
        (TmpFile { dir, mode, umask, flags }.into(), vec![release(5), forget(5)]),
        (read(5), vec![]),
    ] {
        // The second rule has the layer note what a power cut is to undo, which is another way down.
        for rules in [&["error=EIO,applied"][..], &["error=EIO,applied", "op=poll,cut"]] {
            let bench = Bench::over(rules, 0, hand_out);
            let reply = bench.ask(request.clone());
            assert_eq!(reply.error().map(|error| error.errno), Some(Errno::EIO), "{request:?}");
            let asked = bench.driver.started().into_iter().map(|(_, asked)| asked);
            let wanted: Vec<Request> = [request.clone()].into_iter().chain(expected.clone()).collect();
            assert_eq!(asked.collect::<Vec<_>>(), wanted);
        }
    }
}
