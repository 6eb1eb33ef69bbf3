// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that restart, lose replies, ask for patience, lie, or mean harm.

mod server;

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::{Open, OpenFlags, Write};
use outrigger_core::{Errno, HeapKeep, Keep, Payload, Runtime, Serve};
use outrigger_driver_nfs::{Nfs, Options};
use outrigger_proto_nfs3::nfs::{Call, Reply};
use outrigger_proto_nfs3::results::{
    AttrsFailed, Entries, EntriesPlus, Entry, EntryPlus, ReadOk, WccFailed, WriteOk,
};
use outrigger_proto_nfs3::types::{Content, FileType, Name, Stable, Status, Wcc};
use outrigger_proto_nfs3::xdr::List;
use outrigger_runtime::Threads;
use server::{Does, Server, State, attrs, handle};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A connection to the server as a program has it. The runtime goes last.
struct Near {
    direct: Direct,
    _runtime: Arc<Threads>,
}

fn connect(
    server: &Server,
    path: Option<&[u8]>,
    keep: Option<Arc<dyn Keep>>,
    options: &[(&str, &str)],
) -> Near {
    let mut set = Options { port: Some(server.port), ..Options::default() };
    for (key, value) in options {
        set.set(key, value).unwrap();
    }
    let runtime = Arc::new(Threads::new());
    let connected =
        Nfs::connect("127.0.0.1".to_owned(), path, set, Arc::clone(&runtime) as Arc<dyn Runtime>, keep);
    let nfs = runtime.handle().block_on(connected).unwrap();
    Near { direct: Direct::new(Arc::new(Serve(nfs))), _runtime: runtime }
}

fn near(server: &Server, options: &[(&str, &str)]) -> Near {
    connect(server, Some(b"/"), None, options)
}

fn f() -> &'static Path {
    Path::new("f")
}

fn is_write(stable: Stable) -> impl Fn(&Call) -> bool {
    move |call| matches!(call, Call::Write(args) if args.stable == stable)
}

#[test]
fn what_a_restarted_server_has_lost_is_written_again_in_its_order() {
    let server = Server::start(|_, _| Does::Usual);
    let near = near(&server, &[]);
    let file = near.direct.open(f(), Flags::BOTH, 0).unwrap();
    near.direct.write_at(file, 0, b"first, and long").unwrap();
    near.direct.write_at(file, 0, b"other").unwrap();
    assert_eq!(server.state().count(is_write(Stable::Unstable)), 2);
    server.state().restart();
    near.direct.write_at(file, 15, b"!").unwrap();
    near.direct.fsync(file, false).unwrap();
    assert_eq!(server.state().stored, b"other, and long!");
    let stable = server.state().count(is_write(Stable::FileSync));
    near.direct.fsync(file, false).unwrap();
    assert_eq!(server.state().count(is_write(Stable::FileSync)), stable, "nothing is left to be stored");
    near.direct.close(file).unwrap();
}

/// The connection ends with the server, and everything that is asked on the next one sees what was written.
#[test]
fn nobody_sees_a_file_without_what_was_written_to_it() {
    let dies = AtomicUsize::new(0);
    let server = Server::start(move |state: &mut State, call| match call {
        Call::Read(_) if dies.fetch_add(1, Ordering::Relaxed) == 0 => {
            state.restart();
            Does::Lose
        }
        _ => Does::Usual,
    });
    let near = near(&server, &[]);
    let file = near.direct.open(f(), Flags::BOTH, 0).unwrap();
    near.direct.write_at(file, 0, b"content").unwrap();
    assert_eq!(near.direct.read_at(file, 0, 100).unwrap(), b"content");
    assert_eq!(server.state().stored, b"content");
    near.direct.close(file).unwrap();
}

#[test]
fn a_lost_call_is_made_again_with_its_number() {
    let lost = AtomicUsize::new(0);
    let server = Server::start(move |_, call| match call {
        Call::Write(_) if lost.fetch_add(1, Ordering::Relaxed) == 0 => Does::Lose,
        _ => Does::Usual,
    });
    let near = near(&server, &[]);
    let file = near.direct.open(f(), Flags::BOTH, 0).unwrap();
    near.direct.write_at(file, 0, b"content").unwrap();
    near.direct.close(file).unwrap();
    let state = server.state();
    let numbers: Vec<u32> =
        state.asked.iter().filter(|(_, call)| matches!(call, Call::Write(_))).map(|(xid, _)| *xid).collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "{numbers:?}");
}

#[test]
fn removing_twice_because_the_reply_was_lost_is_success_and_otherwise_not() {
    let asked = AtomicUsize::new(0);
    let server = Server::start(move |_, call| match call {
        Call::Remove(_) if asked.fetch_add(1, Ordering::Relaxed) == 0 => Does::Lose,
        Call::Remove(_) => {
            Does::Answer(Reply::Remove(Err(WccFailed { status: Status::NOENT, wcc: Wcc::UNKNOWN })))
        }
        _ => Does::Usual,
    });
    let near = near(&server, &[]);
    assert_eq!(near.direct.unlink(f()), Ok(()));
    assert_eq!(near.direct.unlink(f()), Err(Errno::ENOENT));
}

#[test]
fn a_server_that_wants_to_be_asked_later_is_for_as_long_as_the_user_says() {
    let asked = AtomicUsize::new(0);
    let later = || Does::Answer(Reply::Access(Err(AttrsFailed { status: Status::JUKEBOX, attrs: None })));
    let server = Server::start(move |_, call| match call {
        Call::Access(_) if asked.fetch_add(1, Ordering::Relaxed) < 2 => later(),
        _ => Does::Usual,
    });
    let near_one = near(&server, &[]);
    let file = near_one.direct.open(f(), Flags::READ, 0).unwrap();
    near_one.direct.close(file).unwrap();
    let never =
        Server::start(move |_, call| if matches!(call, Call::Access(_)) { later() } else { Does::Usual });
    let near_never = near(&never, &[("timeo", "10")]);
    assert_eq!(near_never.direct.open(f(), Flags::READ, 0), Err(Errno::ETIMEDOUT));
    assert!(never.state().count(|call| matches!(call, Call::Access(_))) > 2);
}

#[test]
fn a_stale_handle_is_told_and_its_content_is_not_kept_for_ever() {
    let server = Server::start(|state: &mut State, call| match call {
        Call::Commit(_) if state.life == 1 => {
            Does::Answer(Reply::Commit(Err(WccFailed { status: Status::STALE, wcc: Wcc::UNKNOWN })))
        }
        _ => Does::Usual,
    });
    let near = near(&server, &[]);
    let file = near.direct.open(f(), Flags::BOTH, 0).unwrap();
    near.direct.write_at(file, 0, b"content").unwrap();
    server.state().life = 1;
    assert_eq!(near.direct.fsync(file, false), Err(Errno::ESTALE));
    assert_eq!(near.direct.fsync(file, false), Ok(()), "it was told");
}

/// What is kept is looked after on a new connection before anything else is asked, by nobody who could be told.
#[test]
fn content_that_a_new_connection_finds_lost_is_told_by_the_next_fsync() {
    let lost = AtomicUsize::new(0);
    let server = Server::start(move |state: &mut State, call| match call {
        Call::Read(_) if lost.fetch_add(1, Ordering::Relaxed) == 0 => {
            state.restart();
            Does::Lose
        }
        Call::Commit(_) if state.life == 1 => {
            Does::Answer(Reply::Commit(Err(WccFailed { status: Status::STALE, wcc: Wcc::UNKNOWN })))
        }
        _ => Does::Usual,
    });
    let near = near(&server, &[]);
    let file = near.direct.open(f(), Flags::BOTH, 0).unwrap();
    near.direct.write_at(file, 0, b"content").unwrap();
    let connections = server.state().connections;
    assert_eq!(near.direct.read_at(file, 0, 100).unwrap(), b"");
    assert_eq!(server.state().connections, connections + 1);
    assert_eq!(near.direct.fsync(file, false), Err(Errno::ESTALE));
    assert_eq!(near.direct.fsync(file, false), Ok(()), "it was told");
}

#[test]
fn a_server_that_does_not_write_stably_when_it_is_asked_to_is_not_believed() {
    let server = Server::start(|_, call| match call {
        Call::Write(args) => {
            let (count, committed) = (args.count, Stable::Unstable);
            Does::Answer(Reply::Write(Ok(WriteOk { wcc: Wcc::UNKNOWN, count, committed, verifier: [0; 8] })))
        }
        _ => Does::Usual,
    });
    let near = near(&server, &[]);
    let node = near.direct.node_of(f()).unwrap();
    let flags = OpenFlags::READ_WRITE | OpenFlags::DSYNC;
    let handle = near.direct.ask(Open { node, flags }).unwrap().handle;
    let data = Payload::Bytes(b"content"[..].into());
    let write = Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
    assert_eq!(near.direct.ask(write).err(), Some(Errno::EIO));
    assert_eq!(server.state().count(is_write(Stable::FileSync)), 1);
}

#[test]
fn the_next_process_has_the_files_and_knows_whether_content_is_lost() {
    for (restarts, expected) in [(false, Ok(())), (true, Err(Errno::EIO))] {
        let server = Server::start(|_, _| Does::Usual);
        let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
        let first = connect(&server, Some(b"/"), Some(Arc::clone(&keep)), &[]);
        let node = first.direct.node_of(f()).unwrap();
        let file = first.direct.open(f(), Flags::BOTH, 0).unwrap();
        first.direct.write_at(file, 0, b"content").unwrap();
        let opened = first.direct.opened(file).unwrap();
        if restarts {
            server.state().restart();
        }
        std::mem::forget(first);
        let mounts = server.state().asked.len();
        let next = connect(&server, Some(b"/"), Some(keep), &[]);
        use outrigger_core::ops::{FSync, GetAttr};
        let attrs = next.direct.ask(GetAttr { node, handle: None }).unwrap();
        assert_eq!(attrs.attr.ino, 2, "the node means the same file");
        let state = server.state();
        assert_eq!(
            state.asked[mounts..].iter().filter(|(_, call)| matches!(call, Call::Lookup(_))).count(),
            0,
            "its handle was kept"
        );
        drop(state);
        let synced = FSync { node, handle: opened.1, data_only: false };
        assert_eq!(next.direct.ask(synced.clone()), expected, "{restarts}");
        assert_eq!(next.direct.ask(synced), Ok(()), "it is told once");
    }
}

#[test]
fn exports_are_shown_with_the_directories_above_them() {
    let server = Server::start(|_, _| Does::Usual);
    let near = connect(&server, None, None, &[]);
    let names = |path: &str| {
        let dir = near.direct.open(Path::new(path), Flags::READ | Flags::DIRECTORY, 0).unwrap();
        let listing = near.direct.read_dir(dir, 0, 1 << 16).unwrap();
        let mut names: Vec<_> = listing.entries.into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), [b"a", b"b"]);
    assert_eq!(names("a"), [b"one", b"two"]);
    assert_eq!(near.direct.stat(Path::new("a/one/f")).unwrap().ino, 2);
    assert_eq!(near.direct.mkdir(Path::new("a/new"), 0o755), Err(Errno::EROFS));
}

/// MOUNT is for directories.
#[test]
fn a_file_in_the_root_of_a_server_that_does_not_tell_its_exports_is_found() {
    let server = Server::start(|_, _| Does::Usual);
    server.state().is_untold = true;
    let near = connect(&server, None, None, &[]);
    assert_eq!(near.direct.stat(Path::new("f")).unwrap().ino, 2);
    assert_eq!(near.direct.stat(Path::new("g")).err(), Some(Errno::ENOTDIR), "as the server says");
}

#[test]
fn the_list_of_exports_is_asked_for_once_a_second_and_not_for_each_of_them() {
    let server = Server::start(|_, _| Does::Usual);
    server.state().exports = (0..50).map(|number| format!("/many/{number}")).collect();
    let begun = Instant::now();
    let near = connect(&server, None, None, &[]);
    let dir = near.direct.open(Path::new("many"), Flags::READ | Flags::DIRECTORY, 0).unwrap();
    let listing = near.direct.read_dir(dir, 0, 1 << 16).unwrap();
    assert_eq!(listing.entries.len(), 50);
    for number in 0..50 {
        near.direct.stat(Path::new(&format!("many/{number}"))).unwrap();
    }
    let most = begun.elapsed().as_secs() as usize + 1;
    assert!(server.state().lists <= most, "{} in {most} s", server.state().lists);
}

fn listed(name: &[u8]) -> EntryPlus {
    let attrs = Some(attrs(FileType::Regular, 1));
    EntryPlus {
        fileid: 7,
        name: Name::new(name.to_vec()).unwrap(),
        cookie: 1,
        attrs,
        object: Some(handle("x")),
    }
}

#[test]
fn names_that_lead_elsewhere_are_not_shown_and_not_passed_over() {
    for name in [&b"../../etc"[..], b"a\0b", b"", b"/etc", &[b'x'; 300]] {
        let server = Server::start(move |_, call| match call {
            Call::ReadDirPlus(_) => {
                let entries = List(vec![listed(b"."), listed(b".."), listed(b"good"), listed(name)]);
                let page = EntriesPlus { dir_attrs: None, verifier: [0; 8], entries, eof: true };
                Does::Answer(Reply::ReadDirPlus(Ok(page)))
            }
            _ => Does::Usual,
        });
        let near = near(&server, &[]);
        let dir = near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0).unwrap();
        let listing = near.direct.read_dir(dir, 0, 1 << 16).unwrap();
        assert!(listing.entries.len() == 1 && listing.entries[0].name == b"good" && !listing.eof);
        let rest = near.direct.read_dir(dir, listing.entries[0].cookie, 1 << 16);
        assert_eq!(rest, Err(Errno::EIO), "{}", name.escape_ascii());
    }
}

/// The names in the root.
fn names(near: &Near) -> Vec<Vec<u8>> {
    let dir = near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0).unwrap();
    let listing = near.direct.read_dir(dir, 0, 1 << 16).unwrap();
    assert!(listing.eof);
    near.direct.close(dir).unwrap();
    listing.entries.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_server_without_readdirplus_is_asked_for_names_alone() {
    for is_program in [false, true] {
        let server = Server::start(move |_, call| match call {
            Call::ReadDirPlus(_) if is_program => Does::Unavailable,
            Call::ReadDirPlus(_) => {
                Does::Answer(Reply::ReadDirPlus(Err(AttrsFailed { status: Status::NOTSUPP, attrs: None })))
            }
            Call::ReadDir(args) => {
                let entry = |(cookie, name): (u64, &str)| Entry {
                    fileid: cookie + 1,
                    name: Name::new(name.as_bytes().to_vec()).unwrap(),
                    cookie,
                };
                let all = [(1, "f"), (2, "g"), (3, "h")].into_iter();
                let entries = List(all.filter(|(at, _)| *at > args.cookie).take(2).map(entry).collect());
                let (verifier, eof) = ([0; 8], args.cookie > 0);
                Does::Answer(Reply::ReadDir(Ok(Entries { dir_attrs: None, verifier, entries, eof })))
            }
            _ => Does::Usual,
        });
        let near = near(&server, &[]);
        for _ in 0..2 {
            let mut names = names(&near);
            names.sort();
            assert_eq!(names, [b"f", b"g", b"h"], "{is_program}");
        }
        let count = |is: fn(&Call) -> bool| server.state().count(is);
        assert_eq!(count(|call| matches!(call, Call::ReadDirPlus(_))), 1, "that is remembered");
        assert_eq!(count(|call| matches!(call, Call::ReadDir(_))), 4);
        assert_eq!(count(|call| matches!(call, Call::Lookup(_))), 0, "nobody wants to know more");
        assert_eq!(near.direct.stat(f()).unwrap().ino, 2);
    }
}

/// Its cookies are none of READDIR's.
#[test]
fn a_server_that_loses_readdirplus_within_a_listing_is_asked_from_the_beginning() {
    let server = Server::start(|_, call| match call {
        Call::ReadDirPlus(args) if args.cookie > 0 => Does::Unavailable,
        Call::ReadDirPlus(_) => {
            let page = EntriesPlus {
                dir_attrs: None,
                verifier: [0; 8],
                entries: List(vec![listed(b"f")]),
                eof: false,
            };
            Does::Answer(Reply::ReadDirPlus(Ok(page)))
        }
        Call::ReadDir(args) => {
            assert_eq!(args.cookie, 0);
            let entry = Entry { fileid: 2, name: Name::new(b"f".to_vec()).unwrap(), cookie: 1 };
            let entries = List(vec![entry]);
            Does::Answer(Reply::ReadDir(Ok(Entries {
                dir_attrs: None,
                verifier: [0; 8],
                entries,
                eof: true,
            })))
        }
        _ => Does::Usual,
    });
    assert_eq!(names(&near(&server, &[])), [b"f"]);
}

#[test]
fn a_listing_without_an_end_is_given_up() {
    let server = Server::start(|_, call| match call {
        Call::ReadDirPlus(args) => {
            let entry = |number| EntryPlus { cookie: args.cookie + number, ..listed(b"name") };
            let entries = List((1..100).map(entry).collect());
            let page = EntriesPlus { dir_attrs: None, verifier: [0; 8], entries, eof: false };
            Does::Answer(Reply::ReadDirPlus(Ok(page)))
        }
        _ => Does::Usual,
    });
    let near = near(&server, &[("max_listing", "1m")]);
    let opened = near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0);
    assert_eq!(opened, Err(Errno::EFBIG));
}

#[test]
fn a_listing_that_does_not_go_on_is_given_up() {
    let server = Server::start(|_, call| match call {
        Call::ReadDirPlus(_) => {
            let entries = List(vec![listed(b"name")]);
            let page = EntriesPlus { dir_attrs: None, verifier: [0; 8], entries, eof: false };
            Does::Answer(Reply::ReadDirPlus(Ok(page)))
        }
        _ => Does::Usual,
    });
    let near = near(&server, &[]);
    assert_eq!(near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0), Err(Errno::EIO));
}

#[test]
fn open_directories_share_the_memory_for_their_names() {
    let server = Server::start(|_, call| match call {
        Call::ReadDirPlus(args) => {
            let entry = |number: u64| EntryPlus {
                cookie: args.cookie + number,
                ..listed(format!("{}", args.cookie + number).as_bytes())
            };
            let entries = List((1..=100).map(entry).collect());
            let page = EntriesPlus { dir_attrs: None, verifier: [0; 8], entries, eof: args.cookie >= 900 };
            Does::Answer(Reply::ReadDirPlus(Ok(page)))
        }
        _ => Does::Usual,
    });
    let near = near(&server, &[("max_listing", "1m")]);
    let open = || near.direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0);
    let first = open().unwrap();
    assert_eq!(open(), Err(Errno::ENOMEM));
    for _ in 0..2 {
        assert!(!near.direct.read_dir(first, 0, 4096).unwrap().entries.is_empty(), "from the beginning");
    }
    near.direct.close(first).unwrap();
    open().unwrap();
}

#[test]
fn a_server_that_lies_about_how_much_it_has_read_or_written_is_not_believed() {
    let lies: [fn(u32) -> ReadOk; 3] = [
        |count| ReadOk {
            attrs: None,
            count,
            eof: false,
            data: Content::new(vec![0; count as usize + 4]).unwrap(),
        },
        |_| ReadOk { attrs: None, count: 9, eof: true, data: Content::new(vec![0; 3]).unwrap() },
        |_| ReadOk { attrs: None, count: 0, eof: false, data: Content::default() },
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let server = Server::start(move |_, call| match call {
            Call::Read(args) => Does::Answer(Reply::Read(Ok(lie(args.count)))),
            Call::Write(args) => {
                let count = if number == 0 { args.count + 1 } else { 0 };
                let written =
                    WriteOk { wcc: Wcc::UNKNOWN, count, committed: Stable::FileSync, verifier: [0; 8] };
                Does::Answer(Reply::Write(Ok(written)))
            }
            _ => Does::Usual,
        });
        let near = near(&server, &[]);
        let file = near.direct.open(f(), Flags::BOTH, 0).unwrap();
        assert_eq!(near.direct.read_at(file, 0, 10), Err(Errno::EIO), "{number}");
        assert_eq!(near.direct.write_at(file, 0, b"content"), Err(Errno::EIO), "{number}");
    }
}

#[test]
fn nonsense_and_silence_end_in_an_error_in_time() {
    let long = [&0x8fff_ffff_u32.to_be_bytes()[..], &[0; 64]].concat();
    let short = [&0x8000_0004_u32.to_be_bytes()[..], &[1, 2, 3, 4]].concat();
    for answer in [Some(long), Some(short), Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), None] {
        let said = answer.clone();
        let server = Server::start(move |_, call| match (call, &said) {
            (Call::Access(_), Some(bytes)) => Does::Bytes(bytes.clone()),
            (Call::Access(_), None) => Does::Silence,
            _ => Does::Usual,
        });
        let near = near(&server, &[("timeo", "20"), ("retrans", "1")]);
        let begun = Instant::now();
        let errno = near.direct.open(f(), Flags::READ, 0).unwrap_err();
        assert!(matches!(errno, Errno::EIO | Errno::ETIMEDOUT), "{errno:?}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{answer:?}");
        assert!(near.direct.stat(f()).is_ok(), "the next connection is as good as any");
    }
}
