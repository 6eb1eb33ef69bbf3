// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver `9p` on our own door.

use crate::support::{Running, callers, checked, mem, serve};
use outrigger_conformance::{Direct, Fd, Flags, Subject, range_lock};
use outrigger_core::ops::LockKind::{Read, Unlock, Write};
use outrigger_core::ops::XattrFlags;
use outrigger_core::{Errno, Runtime, Serve};
use outrigger_driver_ninep::{NineP, Options};
use outrigger_runtime::Threads;
use std::path::Path;
use std::sync::Arc;
use std::thread;

fn connect(server: &Running) -> Direct {
    let runtime = Arc::new(Threads::new());
    let connected = NineP::connect(
        server.address.to_string(),
        Options::default(),
        Arc::clone(&runtime) as Arc<dyn Runtime>,
        None,
    );
    Direct::new(Arc::new(Serve(runtime.handle().block_on(connected).unwrap())))
}

#[test]
fn an_empty_attribute_is_kept() {
    let server = serve(vec![("", checked(mem()))], &callers());
    let (near, f) = (connect(&server), Path::new("f"));
    let file = near.open(f, Flags::NEW, 0o644).unwrap();
    near.close(file).unwrap();
    let (any, create, replace) = (XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE);
    assert_eq!(near.set_xattr(f, "user.new", b"", replace), Err(Errno::ENODATA));
    assert_eq!(near.set_xattr(f, "user.new", b"", create), Ok(()));
    assert_eq!(near.set_xattr(f, "user.new", b"", create), Err(Errno::EEXIST));
    for flags in [any, replace] {
        near.set_xattr(f, "user.old", b"value", any).unwrap();
        assert_eq!(near.set_xattr(f, "user.old", b"", flags), Ok(()));
        assert_eq!(near.get_xattr(f, "user.old"), Ok(vec![]));
    }
    assert_eq!(near.list_xattrs(f).unwrap().len(), 2);
    near.remove_xattr(f, "user.old").unwrap();
    assert_eq!(near.get_xattr(f, "user.old"), Err(Errno::ENODATA));
}

fn both(near: &Direct) -> Fd {
    near.open(Path::new("f"), Flags::BOTH, 0).unwrap()
}

#[test]
fn two_clients_lock_ranges_of_a_file() {
    let server = serve(vec![("", checked(mem()))], &callers());
    let (one, other) = (connect(&server), connect(&server));
    let made = one.open(Path::new("f"), Flags::NEW, 0o644).unwrap();
    one.close(made).unwrap();
    let (mine, again, theirs) = (both(&one), both(&one), both(&other));
    let lock = |near: &Direct, file, kind, start, end| near.lock(file, range_lock(kind, start, end), false);
    assert_eq!(lock(&one, mine, Write, 0, 9), Ok(()));
    assert_eq!(lock(&one, again, Read, 20, 29), Ok(()));
    assert_eq!(lock(&other, theirs, Write, 10, 19), Ok(()), "ranges that do not meet");
    assert_eq!(lock(&other, theirs, Read, 20, 29), Ok(()), "readers share");
    for (start, end) in [(9, 9), (25, 25), (0, u64::MAX)] {
        assert_eq!(lock(&other, theirs, Write, start, end), Err(Errno::EAGAIN), "{start} to {end}");
    }
    let found = other.test_lock(theirs, range_lock(Write, 5, 9)).unwrap().unwrap();
    assert_eq!((found.kind, found.start, found.end), (Write, 0, 9));
    assert_eq!(other.test_lock(theirs, range_lock(Write, 10, 19)), Ok(None), "its own");
    assert_eq!(lock(&one, mine, Unlock, 0, 4), Ok(()));
    assert_eq!(lock(&other, theirs, Write, 0, 4), Ok(()));
    assert_eq!(lock(&other, theirs, Write, 5, 5), Err(Errno::EAGAIN), "the rest stays");
    one.close(again).unwrap();
    assert_eq!(lock(&other, theirs, Write, 25, 25), Ok(()), "closing it ends its locks");
    thread::scope(|scope| {
        let waits = scope.spawn(|| other.lock(theirs, range_lock(Write, 5, 9), true));
        one.close(mine).unwrap();
        assert_eq!(waits.join().unwrap(), Ok(()), "also for one who waits");
    });
}
