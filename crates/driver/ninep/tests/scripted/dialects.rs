// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers of 9P2000 and 9P2000.u.

use crate::server::{CONTENT, Does, FILE, Server, refusal, stat};
use crate::{Near, connect, f, use_all};
use outrigger_conformance::{Flags, Subject};
use outrigger_core::ops::{self, Create, Lookup, OpenDir, OpenFlags, ReadDirPlus, Write};
use outrigger_core::{Credentials, Cx, Driver, Errno, Name, Node, OpCode, Payload};
use outrigger_proto_ninep::*;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub const ALL: [Dialect; 3] = [Dialect::Linux, Dialect::Unix, Dialect::Plain];
const OTHERS: [Dialect; 2] = [Dialect::Unix, Dialect::Plain];
/// Another file beside `f`.
const OTHER: Qid = Qid { path: 5, ..FILE };

fn text(text: &str) -> Text {
    Text::new(text.to_owned()).unwrap()
}

fn cx() -> Cx {
    Cx::new(1, Credentials::ROOT, "test")
}

fn name(name: &str) -> Name {
    Name::try_from(name).unwrap()
}

#[test]
fn a_server_of_each_dialect_is_used() {
    for dialect in ALL {
        let server = Server::speaking(dialect, |_| Does::Usual);
        let near = connect(&server, &[]).unwrap();
        assert_eq!(use_all(&near.direct), Ok(()), "{dialect:?}");
        let has = |op| near.nine.abilities().ops.has(op);
        let ops =
            [OpCode::StatFs, OpCode::GetXattr, OpCode::SetLock, OpCode::Link, OpCode::SymLink, OpCode::MkNod];
        let expected = match dialect {
            Dialect::Linux => [true; 6],
            Dialect::Unix => [false, false, false, true, true, true],
            Dialect::Plain => [false; 6],
        };
        assert_eq!(ops.map(has), expected, "{dialect:?}");
    }
}

/// What comes of a server that answers `refused` to all versions but one, and the versions that it was asked for.
fn asked(spoken: Dialect, refused: Option<Reply>, options: &[(&str, &str)]) -> (Result<(), Errno>, String) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let server = Server::speaking(spoken, move |request| {
        let Request::Tversion(version) = request else { return Does::Usual };
        let wanted = String::from_utf8(version.version.to_vec()).unwrap();
        let is_spoken = wanted == spoken.name();
        noted.lock().unwrap().push(wanted);
        match &refused {
            Some(refused) if !is_spoken => Does::reply(refused.clone()),
            _ => Does::Usual,
        }
    });
    let used = connect(&server, options).map_err(|error| error.errno).and_then(|near| use_all(&near.direct));
    let asked = asked.lock().unwrap().join(" ");
    (used, asked)
}

#[test]
fn a_server_is_asked_for_less_until_it_agrees() {
    let unknown = || Some(Reply::from(Rversion { msize: 0, version: text("unknown") }));
    let error = || Some(Reply::from(Rerror { ename: text("unsupported 9P version"), errno: None }));
    for refused in [unknown, error] {
        for (dialect, versions) in
            [(Dialect::Unix, "9P2000.L 9P2000.u"), (Dialect::Plain, "9P2000.L 9P2000.u 9P2000")]
        {
            assert_eq!(asked(dialect, refused(), &[]), (Ok(()), versions.to_owned()));
        }
    }
    let (used, versions) = asked(Dialect::Plain, None, &[]);
    assert_eq!((used, &*versions), (Ok(()), "9P2000.L 9P2000.u"), "u9fs answers 9P2000 to everything");
    let plain = || Some(Reply::from(Rversion { msize: 8192, version: text("9P2000") }));
    let (used, versions) = asked(Dialect::Unix, plain(), &[]);
    assert_eq!(
        (used, &*versions),
        (Ok(()), "9P2000.L 9P2000.u"),
        "npfs and py9p have more when asked for it"
    );
}

#[test]
fn what_the_user_wants_is_spoken_or_nothing() {
    for (dialect, option) in
        [(Dialect::Linux, "9p2000.L"), (Dialect::Unix, "9p2000.u"), (Dialect::Plain, "9p2000")]
    {
        assert_eq!(asked(dialect, None, &[("dialect", option)]).0, Ok(()), "{option}");
        let other = if dialect == Dialect::Plain { Dialect::Unix } else { Dialect::Plain };
        let server = Server::speaking(other, |_| Does::Usual);
        let refused = connect(&server, &[("dialect", option)]).err().unwrap();
        assert_eq!(refused.errno, Errno::EPROTO, "{option}");
        assert!(refused.to_string().contains(other.name()), "{refused}");
    }
    let server = Server::speaking(Dialect::Plain, |_| Does::Usual);
    let refused = connect(&server, &[("locks", "server")]).err().unwrap();
    assert!(refused.errno == Errno::EINVAL && refused.to_string().contains("9P2000"), "{refused}");
}

/// The dialect is the tree's: what it can do must not change while it is mounted.
#[test]
fn a_server_that_speaks_another_dialect_after_the_connection_was_lost_is_refused() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let server = Server::speaking(Dialect::Unix, move |request| match request {
        Request::Tversion(_) => match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Does::Usual,
            _ => Does::reply(Rversion { msize: 8192, version: text("9P2000") }.into()),
        },
        Request::Tread(_) => Does::Cut,
        _ => Does::Usual,
    });
    let near = connect(&server, &[("timeout", "1")]).unwrap();
    let file = near.direct.open(f(), Flags::READ, 0).unwrap();
    assert_eq!(near.direct.read_at(file, 0, 5), Err(Errno::EPROTO));
}

#[test]
fn answers_of_these_dialects_that_make_no_sense_are_errors() {
    let kinds: [fn(&Request) -> bool; 5] = [
        |request| matches!(request, Request::Twalk(walk) if !walk.names.is_empty()),
        |request| matches!(request, Request::Tstat(_)),
        |request| matches!(request, Request::Tread(_)),
        |request| matches!(request, Request::Twrite(_)),
        |request| matches!(request, Request::Topen(_)),
    ];
    for dialect in OTHERS {
        let reply = |reply: Reply| reply.encode(0, dialect).to_vec();
        let half = stat(FILE).encode(dialect).freeze().slice(..9);
        let forged = [
            ("a length of 4 GiB", b"\xff\xff\xff\xff\x19\0\0".to_vec()),
            ("a reply of Linux", reply(Rlerror { ecode: u32::MAX }.into())),
            ("no fields", b"\x07\0\0\0\x7d\0\0".to_vec()),
            ("attributes longer than the message", b"\x0b\0\0\0\x7d\0\0\xff\xff\xff\xff".to_vec()),
            ("more walked than asked", reply(Rwalk { qids: List::new(vec![FILE; 16]).unwrap() }.into())),
            ("more content than asked", reply(Rread { data: vec![0; 60_000].into() }.into())),
            ("half an entry", reply(Rread { data: half }.into())),
            ("more written than sent", reply(Rwrite { count: u32::MAX }.into())),
            ("an unknown error", reply(refusal(dialect, 0, "the dog ate it"))),
        ];
        for (number, is_asked) in kinds.iter().enumerate() {
            for (what, bytes) in &forged {
                let (lies, bytes, is_asked) = (Arc::new(AtomicBool::new(false)), bytes.clone(), *is_asked);
                let begun = Arc::clone(&lies);
                let server = Server::speaking(dialect, move |request| {
                    let lies = is_asked(request) && begun.load(Ordering::SeqCst);
                    if lies { Does::Bytes(bytes.clone()) } else { Does::Usual }
                });
                let near = connect(&server, &[("timeout", "5")]).unwrap();
                lies.store(true, Ordering::SeqCst);
                let used = use_all(&near.direct);
                // Half an entry is content like any other where a file is read.
                assert!(
                    matches!(used, Err(Errno::EIO | Errno::EPROTO))
                        || (number, *what) == (2, "half an entry"),
                    "{what} for request {number} of {dialect:?}: {used:?}"
                );
            }
        }
    }
}

#[test]
fn listings_without_an_end_or_with_odd_names_are_bounded_and_told() {
    for dialect in OTHERS {
        let entry = move |name: String| Stat { name: text(&name), ..stat(FILE) }.encode(dialect).freeze();
        let count = AtomicUsize::new(1);
        let server = Server::speaking(dialect, move |request| match request {
            Request::Tread(_) => {
                let number = count.fetch_add(1, Ordering::SeqCst);
                Does::reply(Rread { data: entry(format!("f{number}")) }.into())
            }
            _ => Does::Usual,
        });
        let near = connect(&server, &[("max_listing", "64k")]).unwrap();
        let list = |near: &Near| near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0);
        assert_eq!(list(&near), Err(Errno::EFBIG));
        for odd in ["a/b", "", "nul\0"] {
            let server = Server::speaking(dialect, move |request| match request {
                Request::Tread(asked) if asked.offset == 0 => {
                    Does::reply(Rread { data: entry(odd.to_owned()) }.into())
                }
                Request::Tread(_) => Does::reply(Rread { data: Default::default() }.into()),
                _ => Does::Usual,
            });
            let near = connect(&server, &[]).unwrap();
            let dir = list(&near).unwrap();
            assert_eq!(near.direct.read_dir(dir, 0, 1 << 16).err(), Some(Errno::EIO), "{odd:?}");
        }
    }
}

#[test]
fn errors_are_what_their_sentences_mean_and_others_are_told() {
    for (said, expected) in [
        ("permission denied", Errno::EACCES),
        ("'f' file does not exist", Errno::ENOENT),
        ("the dog ate it", Errno::EIO),
    ] {
        let server = Server::speaking(Dialect::Plain, move |request| match request {
            Request::Topen(_) => Does::reply(refusal(Dialect::Plain, 0, said)),
            _ => Does::Usual,
        });
        let near = connect(&server, &[]).unwrap();
        let refused = near.runtime.handle().block_on(async {
            let node =
                near.nine.lookup(&cx(), Lookup { dir: Node::ROOT, name: name("f") }).await.unwrap().node;
            near.nine.open(&cx(), ops::Open { node, flags: OpenFlags::empty() }).await.unwrap_err()
        });
        assert_eq!(refused.errno, expected, "{said}");
        assert!(expected != Errno::EIO || refused.to_string().contains("dog"), "{refused}");
    }
}

/// `g` is there, too. Gives what came of renaming `f` to it, and what the server was asked to do.
fn replace(does: impl Fn(usize) -> Option<Does> + Send + Sync + 'static) -> (Result<(), Errno>, Vec<String>) {
    let done = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&done);
    let server = Server::speaking(Dialect::Plain, move |request| match request {
        Request::Twalk(walk) if walk.names.iter().any(|name| **name == *b"g") => {
            Does::reply(Rwalk { qids: List::new(vec![OTHER]).unwrap() }.into())
        }
        Request::Twstat(asked) => {
            let mut noted = noted.lock().unwrap();
            let name = String::from_utf8(asked.stat.name.to_vec()).unwrap();
            noted.push(if name.starts_with(".outrigger-replaced-") { "aside".to_owned() } else { name });
            does(noted.len()).unwrap_or(Does::Usual)
        }
        Request::Tremove(_) => {
            noted.lock().unwrap().push("remove".to_owned());
            Does::Usual
        }
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap();
    let renamed = near.direct.rename(f(), Path::new("g"), Default::default());
    let done = done.lock().unwrap().clone();
    (renamed, done)
}

#[test]
fn a_file_that_a_rename_replaces_is_removed_when_the_new_one_has_its_name_and_never_before() {
    let exists = || Does::reply(refusal(Dialect::Plain, 0, "file already exists"));
    let refused = || Does::reply(refusal(Dialect::Plain, 0, "permission denied"));
    let (renamed, done) = replace(|_| None);
    assert_eq!((renamed, done.join(" ")), (Ok(()), "g".to_owned()), "the server replaces it");
    let (renamed, done) = replace(move |number| (number == 1).then(exists));
    assert_eq!((renamed, done.join(" ")), (Ok(()), "g aside g remove".to_owned()));
    let (renamed, done) = replace(move |number| (number == 1).then(refused));
    assert_eq!((renamed, done.join(" ")), (Err(Errno::EACCES), "g".to_owned()));
    let (renamed, done) = replace(move |number| {
        [exists as fn() -> Does, refused].into_iter().nth(number.checked_sub(1)?).map(|does| does())
    });
    assert_eq!((renamed, done.join(" ")), (Err(Errno::EACCES), "g aside".to_owned()));
    let (renamed, done) = replace(move |number| match number {
        1 => Some(exists()),
        3 => Some(refused()),
        _ => None,
    });
    assert_eq!((renamed, done.join(" ")), (Err(Errno::EACCES), "g aside g g".to_owned()), "put back");
    let (renamed, done) = replace(move |number| match number {
        1 => Some(exists()),
        3 => Some(Does::Cut),
        _ => None,
    });
    assert_eq!((renamed, done.join(" ")), (Err(Errno::EIO), "g aside g".to_owned()), "nothing is removed");
}

#[test]
fn files_are_not_moved_between_directories() {
    for dialect in OTHERS {
        let server = Server::speaking(dialect, |request| match request {
            Request::Twstat(_) => panic!("a change"),
            _ => Does::Usual,
        });
        let near = connect(&server, &[]).unwrap();
        assert_eq!(near.direct.rename(f(), Path::new("d/g"), Default::default()), Err(Errno::EXDEV));
    }
}

/// Some servers do not know the bits of other kinds, and make a plain file: a program that moves one there would remove its source.
#[test]
fn a_plain_file_in_place_of_a_directory_or_link_is_an_error() {
    let server = Server::speaking(Dialect::Unix, |request| match request {
        Request::Tcreate(_) => Does::reply(Rcreate { qid: FILE, iounit: 0 }.into()),
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap();
    assert_eq!(near.direct.mkdir(Path::new("new"), 0o755), Err(Errno::EIO));
    assert_eq!(near.direct.symlink(b"target", Path::new("new")), Err(Errno::EIO));
}

/// Some servers take `Tcreate` of what is there for opening it, and even empty it.
#[test]
fn what_is_there_is_not_made_anew() {
    for dialect in OTHERS {
        let server = Server::speaking(dialect, |request| match request {
            Request::Tcreate(_) => Does::reply(Rcreate { qid: FILE, iounit: 0 }.into()),
            _ => Does::Usual,
        });
        let near = connect(&server, &[]).unwrap();
        let flags = OpenFlags::EXCL | OpenFlags::WRITE_ONLY;
        let make = Create { dir: Node::ROOT, name: name("f"), mode: 0o644, umask: 0, flags, initial: None };
        let made = near.runtime.handle().block_on(near.nine.create(&cx(), make));
        assert_eq!(made.err().map(|error| error.errno), Some(Errno::EEXIST), "{dialect:?}");
    }
}

/// A file that the server only appends to, of which a part of a write is lost after so many writes. Gives what was written, and the outcomes.
fn append(lost: usize, flags: OpenFlags) -> (usize, Result<u64, Errno>) {
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&writes);
    let log = Qid { kind: QidKind::APPEND, ..FILE };
    let server = Server::speaking(Dialect::Plain, move |request| match request {
        Request::Topen(_) => Does::reply(Ropen { qid: log, iounit: 2 }.into()),
        Request::Twrite(_) if counted.fetch_add(1, Ordering::SeqCst) == lost => Does::Cut,
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap();
    let written = near.runtime.handle().block_on(async {
        let node = near.nine.lookup(&cx(), Lookup { dir: Node::ROOT, name: name("f") }).await?.node;
        let handle = near.nine.open(&cx(), ops::Open { node, flags }).await?.handle;
        let data = Payload::from(bytes::Bytes::from_static(b"abcdef"));
        near.nine
            .write(&cx(), Write { node, handle, offset: 0, data, cached: false, kill_setid: false })
            .await
            .map(|count| count.0)
    });
    (writes.load(Ordering::SeqCst), written.map_err(|error| error.errno))
}

#[test]
fn what_is_appended_at_the_server_is_sent_in_order_and_once() {
    let at_end = OpenFlags::WRITE_ONLY | OpenFlags::APPEND;
    assert_eq!(
        append(99, OpenFlags::WRITE_ONLY),
        (0, Err(Errno::EPERM)),
        "it would not go where it is meant to"
    );
    assert_eq!(append(99, at_end), (3, Ok(6)));
    assert_eq!(append(0, at_end), (1, Err(Errno::EIO)), "whether it was done is not known");
    assert_eq!(append(1, at_end), (2, Ok(2)), "the rest is not sent");
}

#[test]
fn attributes_in_a_listing_are_used_until_something_is_changed_here() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let server = Server::speaking(Dialect::Unix, move |request| {
        counted.fetch_add(usize::from(matches!(request, Request::Tstat(_))), Ordering::SeqCst);
        Does::Usual
    });
    let near = connect(&server, &[]).unwrap();
    near.runtime.handle().block_on(async {
        let open = async || near.nine.opendir(&cx(), OpenDir { node: Node::ROOT }).await.unwrap().handle;
        let list = async |handle| {
            let list = ReadDirPlus { node: Node::ROOT, handle, cookie: 0, size: 1 << 16 };
            asked.store(0, Ordering::SeqCst);
            let listed = near.nine.readdirplus(&cx(), list).await.unwrap();
            (listed, asked.load(Ordering::SeqCst))
        };
        let mut handle = open().await;
        let (mut listed, mut count) = list(handle).await;
        // On a machine that has much to do, a listing may be old before it is read.
        for _ in 0..100 {
            if count == 0 {
                break;
            }
            handle = open().await;
            (listed, count) = list(handle).await;
        }
        assert_eq!(count, 0);
        let attr = &listed.entries[0].entry.attr;
        assert_eq!((attr.size, attr.uid), (CONTENT.len() as u64, 7));
        let (node, attrs) =
            (listed.entries[0].entry.node, outrigger_core::SetAttrs { size: Some(3), ..Default::default() });
        handle = open().await;
        near.nine.setattr(&cx(), ops::SetAttr { node, handle: None, attrs }).await.unwrap();
        assert_eq!(list(handle).await.1, 1, "it may be another size by now");
    });
}
