// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content that goes where it is meant to, or is an error: servers that open another file for a new one, and that say only at the end that
//! they could not store what was written.

use crate::server::{CONTENT, Does, FILE, Server, attrs, refusal, stat};
use crate::{connect, dialects, f};
use outrigger_conformance::{Flags, Subject};
use outrigger_core::Errno;
use outrigger_proto_ninep::*;
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn a_server_that_cannot_store_what_was_written_when_the_file_is_closed_is_an_error() {
    for dialect in dialects::ALL {
        let was_written = Arc::new(AtomicBool::new(false));
        let server = Server::speaking(dialect, move |request| match request {
            Request::Twrite(_) => {
                was_written.store(true, Ordering::SeqCst);
                Does::Usual
            }
            Request::Tclunk(_) if was_written.load(Ordering::SeqCst) => {
                Does::reply(refusal(dialect, 28, "no space left on device"))
            }
            _ => Does::Usual,
        });
        let near = connect(&server, &[]).unwrap().direct;
        let read = near.open(f(), Flags::READ, 0).unwrap();
        let written = near.open(f(), Flags::BOTH, 0).unwrap();
        assert_eq!(near.write_at(written, 0, b"HELLO"), Ok(5));
        assert_eq!(near.close(written), Err(Errno::ENOSPC), "{dialect:?}");
        assert_eq!(near.close(read), Ok(()), "{dialect:?}: nothing was written by it");
    }
}

#[test]
fn a_server_that_is_gone_when_a_file_is_closed_is_no_error() {
    let was_written = Arc::new(AtomicBool::new(false));
    let server = Server::start(move |request| match request {
        Request::Twrite(_) => {
            was_written.store(true, Ordering::SeqCst);
            Does::Usual
        }
        Request::Tclunk(_) if was_written.load(Ordering::SeqCst) => Does::Cut,
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap().direct;
    let file = near.open(f(), Flags::BOTH, 0).unwrap();
    assert_eq!(near.write_at(file, 0, b"HELLO"), Ok(5));
    assert_eq!(near.close(file), Ok(()));
}

/// What comes of making `new` and of writing to it, at a server that opens a file of this kind, so large and with so many names, and how often
/// it was sent content.
fn make(
    dialect: Dialect,
    (qid, size, nlink): (Qid, u64, u64),
    flags: Flags,
) -> (Result<usize, Errno>, usize) {
    let (writes, is_made) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
    let counted = Arc::clone(&writes);
    let server = Server::speaking(dialect, move |request| match request {
        Request::Tlcreate(_) => {
            is_made.store(true, Ordering::SeqCst);
            Does::reply(Rlcreate { qid, iounit: 0 }.into())
        }
        Request::Tcreate(_) => {
            is_made.store(true, Ordering::SeqCst);
            Does::reply(Rcreate { qid, iounit: 0 }.into())
        }
        Request::Tgetattr(_) if is_made.load(Ordering::SeqCst) => {
            Does::reply(Rgetattr { attrs: Attrs { size, nlink, ..attrs(qid) } }.into())
        }
        Request::Tstat(_) if is_made.load(Ordering::SeqCst) => {
            let stat = Stat { length: size, ..stat(qid) };
            Does::reply(Rstat { len: stat.encode(dialect).len() as u16, stat }.into())
        }
        Request::Twalk(walk) if walk.names.iter().any(|name| **name == *b"new") => {
            Does::reply(refusal(dialect, 2, "file does not exist"))
        }
        Request::Twrite(_) => {
            counted.fetch_add(1, Ordering::SeqCst);
            Does::Usual
        }
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap().direct;
    let made = near.open(Path::new("new"), Flags::BOTH | Flags::CREATE | flags, 0o644);
    (made.and_then(|file| near.write_at(file, 0, b"HELLO")), writes.load(Ordering::SeqCst))
}

#[test]
fn nothing_is_written_to_what_a_server_opens_in_place_of_a_new_file() {
    let (new, dir) = (Qid { path: 7, ..FILE }, Qid { kind: QidKind::DIRECTORY, ..FILE });
    for dialect in dialects::ALL {
        assert_eq!(make(dialect, (new, 0, 1), Flags::EXCL), (Ok(5), 1), "{dialect:?}: what all do");
        assert_eq!(make(dialect, (dir, 0, 1), Flags::EXCL), (Err(Errno::EIO), 0), "{dialect:?}");
        let full = (FILE, CONTENT.len() as u64, 1);
        assert_eq!(make(dialect, full, Flags::EXCL), (Err(Errno::EEXIST), 0), "{dialect:?}");
        assert_eq!(
            make(dialect, full, Flags::empty()),
            (Err(Errno::ENOENT), 0),
            "{dialect:?}: by its name there is none"
        );
    }
    assert_eq!(make(Dialect::Linux, (FILE, 0, 2), Flags::EXCL), (Err(Errno::EEXIST), 0), "of two names");
    let link = Qid { kind: QidKind::SYMLINK, ..FILE };
    assert_eq!(make(Dialect::Linux, (link, 0, 1), Flags::EXCL), (Err(Errno::EIO), 0), "a link");
}

#[test]
fn a_device_that_a_server_does_not_name_is_an_error_and_not_shown_as_another_one() {
    let device = || {
        let extension = Some(Text::new("nonsense").unwrap());
        Stat { mode: 1 << 23 | 0o600, extension, ..stat(FILE) }
    };
    let of_device = Mutex::new(HashSet::new());
    let server = Server::speaking(Dialect::Unix, move |request| match request {
        Request::Twalk(walk) if !walk.names.is_empty() => {
            of_device.lock().unwrap().insert(walk.newfid);
            Does::Usual
        }
        Request::Tstat(asked) if of_device.lock().unwrap().contains(&asked.fid) => {
            let stat = device();
            Does::reply(Rstat { len: stat.encode(Dialect::Unix).len() as u16, stat }.into())
        }
        Request::Tread(asked) if asked.offset == 0 => {
            Does::reply(Rread { data: device().encode(Dialect::Unix).freeze() }.into())
        }
        _ => Does::Usual,
    });
    let near = connect(&server, &[]).unwrap().direct;
    assert_eq!(near.stat(f()).err(), Some(Errno::EIO));
    let dir = near.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0).unwrap();
    let listed = near.read_dir(dir, 0, 1 << 16).unwrap();
    assert!(listed.entries.iter().any(|entry| entry.name == b"f"), "the name is there");
}
