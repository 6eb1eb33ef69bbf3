// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content between holes, also of a tree that says what cannot be.

use outrigger_client::{Client, File, Settings};
use outrigger_core::ops::{OpenFlags, Whence};
use outrigger_core::reply::Offset;
use outrigger_core::{Answer, Cx, Errno, Inline, Layer, Name, Place, Reply, Request, Result, Service, Stack};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::sync::Arc;

/// Answers each question for content and for holes as `self.0` does.
struct Tells(fn(u64, Whence) -> Result<u64>);

impl Layer for Tells {
    fn place(&self) -> Place {
        Place::anywhere("tells")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        match &request {
            Request::Seek(seek) => Answer::Ready(match (self.0)(seek.offset, seek.whence) {
                Ok(found) => Reply::Offset(Offset(found)),
                Err(error) => Reply::Error(error),
            }),
            _ => next.call(cx, request),
        }
    }
}

/// A file of such a tree.
fn file(tells: fn(u64, Whence) -> Result<u64>) -> File {
    let runtime = Arc::new(Threads::new());
    let mem = Inline::new(Mem::new(Options::default(), runtime.clone()), runtime.clone());
    let stack = Stack::new(Arc::new(mem)).push(Tells(tells)).unwrap();
    let client = Client::new(stack.service(), runtime, Settings::default());
    let root = client.root().unwrap();
    root.create(&Name::try_from("file").unwrap(), 0o644, OpenFlags::READ_WRITE).unwrap().1
}

#[test]
fn an_answer_before_what_was_asked_for_is_an_error() {
    let back = file(|_, _| Ok(0));
    assert_eq!(back.seek(0, Whence::Data), Ok(Some(0)));
    for whence in [Whence::Data, Whence::Hole] {
        let error = back.seek(4096, whence).unwrap_err();
        assert_eq!(error.errno, Errno::EIO);
        assert!(error.to_string().contains("from byte 4096 on, the tree answers 0"), "{error}");
    }
}

#[test]
fn a_byte_that_is_content_and_a_hole_is_an_error() {
    let stands = file(|offset, _| Ok(offset));
    let error = stands.data(0, 100).unwrap_err();
    assert_eq!(error.errno, Errno::EIO);
    assert!(error.to_string().contains("content, and that it is a hole"), "{error}");
}

#[test]
fn content_ends_at_the_hole_after_it_or_with_the_file() {
    let once = file(|offset, whence| match whence {
        Whence::Data if offset <= 10 => Ok(10),
        Whence::Hole if offset < 20 => Ok(20),
        _ => Err(Errno::ENXIO.into()),
    });
    assert_eq!(once.data(0, 100), Ok(Some((10, 20))));
    assert_eq!(once.data(20, 100), Ok(None));
    let endless = file(|offset, whence| match whence {
        Whence::Data => Ok(offset),
        Whence::Hole => Err(Errno::ENXIO.into()),
    });
    assert_eq!(endless.data(30, 100), Ok(Some((30, 100))));
    assert_eq!(endless.data(100, 100), Ok(None), "it has become shorter");
}
