// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that hang up, are silent, speak something else, lie, or mean harm.

mod dialects;
mod late;
mod made;
mod refused;
mod server;

use bytes::Bytes;
use outrigger_conformance::{Direct, Flags, Subject, range_lock};
use outrigger_core::ops::{Lookup, OpenFlags, Read};
use outrigger_core::{Credentials, Cx, Driver, Errno, FileKind, Name, Node, OpCode, Runtime, Serve, ops};
use outrigger_driver_ninep::{NineP, Options};
use outrigger_proto_ninep::*;
use outrigger_runtime::Threads;
use server::{CONTENT, Does, FILE, Server, attrs, listing};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// A connection to the server as a program has it. The runtime goes last.
struct Near {
    direct: Direct,
    nine: NineP,
    runtime: Arc<Threads>,
}

fn connect(server: &Server, options: &[(&str, &str)]) -> outrigger_core::Result<Near> {
    let mut set = Options::default();
    for (key, value) in options {
        set.set(key, value).unwrap();
    }
    connect_at(format!("127.0.0.1:{}", server.port), set)
}

fn connect_at(at: String, set: Options) -> outrigger_core::Result<Near> {
    let runtime = Arc::new(Threads::new());
    let connected = NineP::connect(at, set, Arc::clone(&runtime) as Arc<dyn Runtime>, None);
    let nine = runtime.handle().block_on(connected)?;
    Ok(Near { direct: Direct::new(Arc::new(Serve(nine.clone()))), nine, runtime })
}

fn f() -> &'static Path {
    Path::new("f")
}

/// What all of it comes to: attributes, content, a write, a listing.
fn use_all(near: &Direct) -> Result<(), Errno> {
    let file = near.open(f(), Flags::BOTH, 0)?;
    let used = near.read_at(file, 0, 100).and_then(|data| {
        assert_eq!(data, CONTENT);
        near.write_at(file, 0, b"xyz").map(|count| assert_eq!(count, 3))
    });
    let closed = near.close(file);
    used.and(closed)?;
    let dir = near.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0)?;
    let listed = near.read_dir(dir, 0, 1 << 16);
    near.close(dir)?;
    assert_eq!(listed?.entries.len(), 1);
    Ok(())
}

#[test]
fn a_server_that_answers_is_used() {
    let server = Server::start(|_| Does::Usual);
    assert_eq!(use_all(&connect(&server, &[]).unwrap().direct), Ok(()));
}

#[test]
fn attributes_that_a_server_tells_before_it_has_walked_are_not_those_of_the_file() {
    let asked = AtomicUsize::new(0);
    // The first is about the root, the second about the file `f`, to which the walk has not come yet.
    let server = Server::start(move |request| match request {
        Request::Tgetattr(_) if asked.fetch_add(1, Ordering::SeqCst) == 1 => {
            let above = Qid { kind: QidKind::DIRECTORY, version: 0, path: 1 };
            Does::reply(Rgetattr { attrs: Attrs { mode: 0o040_755, ..attrs(above) } }.into())
        }
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap().direct;
    assert_eq!(near.stat(f()).unwrap().kind(), FileKind::Regular);
    assert_eq!(use_all(&near), Ok(()));
}

/// From the root, each of the directories would cost as many names as are above it.
#[test]
fn a_walk_begins_at_the_nearest_directory_that_is_known() {
    const LEVELS: usize = 60;
    let walked = Arc::new(AtomicUsize::new(0));
    let names = Arc::clone(&walked);
    let server = Server::start(move |request| {
        if let Request::Twalk(walk) = request {
            names.fetch_add(walk.names.len(), Ordering::SeqCst);
        }
        Does::Usual
    });
    let near = connect(&server, &[]).unwrap().direct;
    let deep = vec!["d"; LEVELS].join("/");
    near.stat(Path::new(&deep)).unwrap();
    let first = walked.swap(0, Ordering::SeqCst);
    near.stat(Path::new(&deep)).unwrap();
    let second = walked.load(Ordering::SeqCst);
    // What was found long ago is found again from the root: that may happen a few times on a machine that has much to do.
    assert!((LEVELS..5 * LEVELS).contains(&first), "{first} names");
    assert!((LEVELS..5 * LEVELS).contains(&second), "{second} names");
}

#[test]
fn a_socket_of_this_machine_leads_to_a_server() {
    let (server, dir) = (Server::start(|_| Does::Usual), tempfile::tempdir().unwrap());
    let path = dir.path().join("a socket");
    server::listen_at(&path, server.port);
    let at = format!("unix:{}", path.display().to_string().replace('/', "%2F").replace(' ', "%20"));
    assert_eq!(use_all(&connect_at(at, Options::default()).unwrap().direct), Ok(()));
}

#[test]
fn a_server_of_another_dialect_is_refused_with_its_name() {
    for (version, expected) in
        [(&b"9P2000.e"[..], "speaks 9P2000.e,"), (b"unknown", "speaks unknown,"), (b"\x1b[2J", "\\u{1b}")]
    {
        let version = Text::new(version.to_vec()).unwrap();
        let server =
            Server::start(move |_| Does::reply(Rversion { msize: 8192, version: version.clone() }.into()));
        let refused = connect(&server, &[]).err().unwrap();
        assert_eq!(refused.errno, Errno::EPROTO);
        assert!(refused.to_string().contains(expected), "{refused}");
    }
    for msize in [0, 23, 4095, u32::MAX] {
        let version = Text::new("9P2000.L").unwrap();
        let server = Server::start(move |_| Does::reply(Rversion { msize, version: version.clone() }.into()));
        assert_eq!(connect(&server, &[]).err().unwrap().errno, Errno::EPROTO, "{msize}");
    }
    let greeting = Server::start(|_| Does::Raw(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()));
    assert!(connect(&greeting, &[]).err().unwrap().to_string().contains("9P"));
}

/// Each answer that makes no sense, in place of each answer there is: an error, never other content, and no hang.
#[test]
fn answers_that_make_no_sense_are_errors() {
    let qids = List::new(vec![FILE; 16]).unwrap();
    let forged: Vec<(&str, Vec<u8>)> = vec![
        ("a length of 4 GiB", b"\xff\xff\xff\xff\x19\0\0".to_vec()),
        ("no length", b"\x03\0\0\0\x19\0\0".to_vec()),
        ("an unknown kind", b"\x07\0\0\0\xfe\0\0".to_vec()),
        ("a request", Request::from(Tclunk { fid: 1 }).encode(0, Dialect::Linux).to_vec()),
        ("fields that are missing", b"\x07\0\0\0\x19\0\0".to_vec()),
        ("more walked than asked", Reply::from(Rwalk { qids }).encode(0, Dialect::Linux).to_vec()),
        (
            "more content than asked",
            Reply::from(Rread { data: vec![0; 60_000].into() }).encode(0, Dialect::Linux).to_vec(),
        ),
        ("content that is not there", b"\x0b\0\0\0\x75\0\0\xff\xff\xff\x7f".to_vec()),
        (
            "more written than sent",
            Reply::from(Rwrite { count: u32::MAX }).encode(0, Dialect::Linux).to_vec(),
        ),
        ("nothing written", Reply::from(Rwrite { count: 0 }).encode(0, Dialect::Linux).to_vec()),
        (
            "half an entry",
            Reply::from(Rreaddir { data: listing(1, b"f").slice(..9) }).encode(0, Dialect::Linux).to_vec(),
        ),
        (
            "an error that there is not",
            Reply::from(Rlerror { ecode: u32::MAX }).encode(0, Dialect::Linux).to_vec(),
        ),
        (
            "no kind of file",
            Reply::from(Rgetattr { attrs: Attrs { mode: 0, ..attrs(FILE) } })
                .encode(0, Dialect::Linux)
                .to_vec(),
        ),
    ];
    let kinds: [fn(&Request) -> bool; 5] = [
        |request| matches!(request, Request::Twalk(walk) if !walk.names.is_empty()),
        |request| matches!(request, Request::Tgetattr(_)),
        |request| matches!(request, Request::Tread(_)),
        |request| matches!(request, Request::Twrite(_)),
        |request| matches!(request, Request::Treaddir(_)),
    ];
    for (number, is_asked) in kinds.into_iter().enumerate() {
        for (what, bytes) in &forged {
            let (lies, bytes) = (Arc::new(AtomicBool::new(false)), bytes.clone());
            let begun = Arc::clone(&lies);
            let server =
                Server::start(move |request| match is_asked(request) && begun.load(Ordering::SeqCst) {
                    true => Does::Bytes(bytes.clone()),
                    false => Does::Usual,
                });
            let near = connect(&server, &[("timeout", "5")]).unwrap();
            lies.store(true, Ordering::SeqCst);
            let used = use_all(&near.direct);
            assert!(matches!(used, Err(Errno::EIO | Errno::EPROTO)), "{what} for request {number}: {used:?}");
        }
    }
}

#[test]
fn an_answer_to_nothing_ends_the_connection_and_another_one_goes_on() {
    let once = AtomicBool::new(true);
    let server = Server::start(move |request| match request {
        Request::Tread(_) if once.swap(false, Ordering::SeqCst) => {
            Does::Raw(Reply::from(Rclunk {}).encode(0x7777, Dialect::Linux).to_vec())
        }
        _ => Does::Usual,
    });
    assert_eq!(use_all(&connect(&server, &[]).unwrap().direct), Ok(()));
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn directories_without_an_end_are_bounded() {
    let count = AtomicUsize::new(1);
    let server = Server::start(move |request| match request {
        Request::Treaddir(_) => {
            let number = count.fetch_add(1, Ordering::SeqCst) as u64;
            Does::reply(Rreaddir { data: listing(number, format!("f{number}").as_bytes()) }.into())
        }
        _ => Does::Usual,
    });
    let near = connect(&server, &[("max_listing", "64k")]).unwrap();
    let opened = near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0);
    assert_eq!(opened, Err(Errno::EFBIG));
    for (offset, name) in [(0, &b"f"[..]), (7, b"f")] {
        let name = name.to_vec();
        let server = Server::start(move |request| match request {
            Request::Treaddir(_) => Does::reply(Rreaddir { data: listing(offset, &name) }.into()),
            _ => Does::Usual,
        });
        let near = connect(&server, &[]).unwrap();
        let opened = near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0);
        assert_eq!(opened, Err(Errno::EIO), "the same again and again");
    }
}

#[test]
fn names_that_are_none_are_not_shown_and_not_kept_silent() {
    for name in [&b"a/b"[..], b"", b"nul\0"] {
        let name = name.to_vec();
        let server = Server::start(move |request| match request {
            Request::Treaddir(asked) if asked.offset == 0 => {
                Does::reply(Rreaddir { data: listing(1, &name) }.into())
            }
            _ => Does::Usual,
        });
        let near = connect(&server, &[]).unwrap();
        let dir = near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0).unwrap();
        assert_eq!(near.direct.read_dir(dir, 0, 1 << 16).err(), Some(Errno::EIO));
    }
}

/// Each message in turn is the last one of its connection: what only looks goes on, and a change is made once at most.
#[test]
fn a_connection_that_is_cut_after_any_message_costs_nothing_and_no_change_is_made_twice() {
    for (dialect, last) in (0..120).map(|case| (dialects::ALL[case % 3], case / 3 + 1)) {
        let count = AtomicUsize::new(0);
        let server = Server::speaking(dialect, move |request| {
            let is_last =
                !matches!(request, Request::Tclunk(_)) && count.fetch_add(1, Ordering::SeqCst) == last;
            if is_last { Does::Cut } else { Does::Usual }
        });
        let near = match connect(&server, &[]) {
            Ok(near) => near,
            // A server that never was there is tried once.
            Err(_) => continue,
        };
        let made = near.direct.mkdir(Path::new("new"), 0o755);
        assert!(matches!(made, Ok(()) | Err(Errno::EIO)), "{dialect:?} {last}: {made:?}");
        assert_eq!(server.mkdirs.load(Ordering::SeqCst), 1, "{dialect:?} {last}: made once");
        assert_eq!(use_all(&near.direct), Ok(()), "{dialect:?} {last}");
    }
}

#[test]
fn a_file_that_became_another_one_while_the_connection_was_away_is_not_read() {
    let (lost, once) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(true));
    let is_lost = Arc::clone(&lost);
    let server = Server::start(move |request| match request {
        Request::Tread(_) if once.swap(false, Ordering::SeqCst) => {
            is_lost.store(true, Ordering::SeqCst);
            Does::Cut
        }
        Request::Twalk(walk) if !walk.names.is_empty() && is_lost.load(Ordering::SeqCst) => {
            let qids = List::new(vec![Qid { path: 99, ..FILE }]).unwrap();
            Does::reply(Rwalk { qids }.into())
        }
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap();
    let file = near.direct.open(f(), Flags::READ, 0).unwrap();
    assert_eq!(near.direct.read_at(file, 0, 10), Err(Errno::ESTALE));
}

#[test]
fn a_silent_server_is_waited_for_once_for_as_long_as_the_user_says() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let server = Server::start(move |request| match request {
        Request::Tread(_) => {
            counted.fetch_add(1, Ordering::SeqCst);
            Does::Silence
        }
        _ => Does::Usual,
    });
    let near = connect(&server, &[("timeout", "1")]).unwrap();
    let file = near.direct.open(f(), Flags::READ, 0).unwrap();
    assert_eq!(near.direct.read_at(file, 0, 10), Err(Errno::ETIMEDOUT));
    assert_eq!(reads.load(Ordering::SeqCst), 1);
}

#[test]
fn a_tree_that_is_refused_is_asked_for_once_also_by_the_next_connection() {
    let (asked, once) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(true));
    let counted = Arc::clone(&asked);
    let server = Server::start(move |request| match request {
        Request::Tattach(attach) if *attach.aname != *b"/srv/tree" => {
            counted.fetch_add(usize::from(*attach.aname == *b"/srv"), Ordering::SeqCst);
            Does::reply(Rlerror { ecode: 1 }.into())
        }
        Request::Tread(_) if once.swap(false, Ordering::SeqCst) => Does::Cut,
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap();
    let file = near.direct.open(Path::new("srv/tree/f"), Flags::READ, 0).unwrap();
    assert_eq!(near.direct.read_at(file, 0, 100).unwrap(), CONTENT);
    assert_eq!(near.direct.stat(Path::new("srv/tree/f")).unwrap().size, CONTENT.len() as u64);
    let (connections, asked) = (server.connections.load(Ordering::SeqCst), asked.load(Ordering::SeqCst));
    assert_eq!((connections, asked), (2, 1));
}

#[test]
fn a_request_that_is_given_up_is_taken_back() {
    let (asked, mut is_asked) = mpsc::unbounded_channel();
    let (flushed, mut is_flushed) = mpsc::unbounded_channel();
    let server = Server::start(move |request| match request {
        Request::Tread(_) => {
            asked.send(()).unwrap();
            Does::Silence
        }
        Request::Tflush(_) => {
            flushed.send(()).unwrap();
            Does::Usual
        }
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap();
    near.runtime.handle().block_on(async {
        let cx = Cx::new(1, Credentials::ROOT, "test");
        let name = Name::new(Bytes::from_static(b"f")).unwrap();
        let node = near.nine.lookup(&cx, Lookup { dir: Node::ROOT, name }).await.unwrap().node;
        let handle = near.nine.open(&cx, ops::Open { node, flags: OpenFlags::empty() }).await.unwrap().handle;
        tokio::select! {
            read = near.nine.read(&cx, Read { node, handle, offset: 0, len: 5 }) => panic!("{read:?}"),
            _ = is_asked.recv() => {}
        }
        is_flushed.recv().await.unwrap();
        let attrs = near.nine.getattr(&cx, ops::GetAttr { node, handle: Some(handle) }).await.unwrap();
        assert_eq!(attrs.attr.size, CONTENT.len() as u64, "the connection goes on");
    });
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn locks_hold_here_where_the_server_keeps_none_unless_the_user_wants_them_there() {
    let server = Server::start(|_| Does::Usual);
    let lock = |near: &Near| {
        let [one, other] = [(); 2].map(|()| near.direct.open(f(), Flags::BOTH, 0).unwrap());
        let lock = |file| near.direct.lock(file, range_lock(ops::LockKind::Write, 0, 9), false);
        (lock(one), lock(other))
    };
    assert_eq!(lock(&connect(&server, &[]).unwrap()), (Ok(()), Err(Errno::EAGAIN)));
    let near = connect(&server, &[("locks", "server")]).unwrap();
    assert_eq!(lock(&near), (Err(Errno::ENOLCK), Err(Errno::ENOLCK)));
    let near = connect(&server, &[("locks", "local")]).unwrap();
    assert!(!near.nine.abilities().ops.has(OpCode::SetLock), "the door keeps them");
}

/// Who holds a lock may do nothing else with the file.
#[test]
fn a_lock_is_taken_again_when_the_connection_is_lost_and_nobody_asks_for_the_file() {
    let (locked, is_locked) = std::sync::mpsc::channel();
    let server = Server::start(move |request| match request {
        Request::Tlock(_) => {
            locked.send(()).unwrap();
            Does::reply(Rlock { status: LockStatus::Success.number() }.into())
        }
        Request::Tmkdir(_) => Does::Cut,
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap();
    let file = near.direct.open(f(), Flags::BOTH, 0).unwrap();
    near.direct.flock(file, ops::LockKind::Write, false).unwrap();
    is_locked.recv().unwrap();
    assert_eq!(near.direct.mkdir(Path::new("new"), 0o755), Err(Errno::EIO));
    is_locked.recv_timeout(std::time::Duration::from_secs(60)).expect("locked again");
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn a_lock_that_another_client_has_got_meanwhile_is_lost_and_nothing_is_done_without_it() {
    let locks = AtomicUsize::new(0);
    let server = Server::start(move |request| match request {
        Request::Tlock(_) => {
            let is_free = locks.fetch_add(1, Ordering::SeqCst) != 1;
            let status = if is_free { LockStatus::Success } else { LockStatus::Blocked };
            Does::reply(Rlock { status: status.number() }.into())
        }
        Request::Tmkdir(_) => Does::Cut,
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap().direct;
    let file = near.open(f(), Flags::BOTH, 0).unwrap();
    near.flock(file, ops::LockKind::Write, false).unwrap();
    assert_eq!(near.mkdir(Path::new("new"), 0o755), Err(Errno::EIO));
    assert_eq!(near.write_at(file, 0, b"HACK"), Err(Errno::ESTALE));
    assert_eq!(near.read_at(file, 0, 3), Err(Errno::ESTALE));
    let anew = near.open(f(), Flags::BOTH, 0).unwrap();
    assert_eq!(near.read_at(anew, 0, 3).unwrap(), CONTENT[..3]);
    assert_eq!(near.flock(anew, ops::LockKind::Write, false), Ok(()), "nothing of the lost lock is left");
}
