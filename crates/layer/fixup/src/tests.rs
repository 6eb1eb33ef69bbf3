// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use outrigger_core::ops::{Create, GetAttr, ReadDir};
use outrigger_core::reply::{Attrs, Dirent, Dirents, Entry, Ttl};
use outrigger_core::{Credentials, Generation, Handle, Name, Node, OpCode, Stack};
use outrigger_sim::{Scripted, Sim, Step};

const LARGE: u64 = 0x1234_5678_9abc;

fn asked(fixup: &str, request: Request, reply: fn(OpCode) -> Reply) -> (Reply, Vec<Request>) {
    let driver = Scripted::new(&Sim::new(1), move |_, request| Step::Now(reply(request.op())));
    let stack = Stack::new(driver.clone()).push(Fixup::parse(fixup).unwrap()).unwrap().service();
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let mut answer = std::pin::pin!(stack.call(&cx, request).into_future());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(reply) = answer.as_mut().poll(&mut context) else { panic!("it waits") };
    (reply, driver.started().into_iter().map(|(_, request)| request).collect())
}

#[test]
fn names_are_known_or_refused() {
    assert!(Fixup::parse("ino32,no-exclusive").is_ok());
    for list in ["", "ino31", "ino32,"] {
        assert_eq!(Fixup::parse(list).unwrap_err().errno, Errno::EINVAL, "{list}");
    }
}

#[test]
fn inode_numbers_fit_into_32_bits_and_agree_in_listings() {
    let attr = |ino| Reply::Attrs(Attrs { attr: Attr { ino, ..Attr::default() }, ttl: Ttl::NEVER });
    let (Reply::Attrs(found), _) = asked("ino32", GetAttr { node: Node(2), handle: None }.into(), |_| {
        Reply::Attrs(Attrs { attr: Attr { ino: LARGE, ..Attr::default() }, ttl: Ttl::NEVER })
    }) else {
        panic!("no attributes")
    };
    assert!(found.attr.ino != 0 && found.attr.ino <= u32::MAX.into());
    let list = ReadDir { node: Node(1), handle: Handle::NONE, cookie: 0, size: 100 };
    let (Reply::Dirents(listed), _) = asked("ino32", list.into(), |_| {
        let name = Name::try_from("a").unwrap();
        let entries = vec![Dirent { ino: LARGE, cookie: 1, kind: None, name }];
        Reply::Dirents(Dirents { entries, eof: true })
    }) else {
        panic!("no listing")
    };
    assert_eq!(listed.entries[0].ino, found.attr.ino);
    let small = asked("ino32", GetAttr { node: Node(2), handle: None }.into(), |_| {
        Reply::Attrs(Attrs { attr: Attr { ino: 7, ..Attr::default() }, ttl: Ttl::NEVER })
    });
    assert_eq!(small.0, attr(7));
}

fn create() -> Request {
    let (name, flags) = (Name::try_from("a").unwrap(), OpenFlags::READ_WRITE | OpenFlags::EXCL);
    Create { dir: Node::ROOT, name, mode: 0o644, umask: 0, flags, initial: None }.into()
}

#[test]
fn a_file_that_is_to_be_new_is_looked_for_first() {
    let (_, seen) = asked("no-exclusive", create(), |op| match op {
        OpCode::Lookup => Reply::Error(Errno::ENOENT.into()),
        _ => Reply::Error(Errno::ENOSPC.into()),
    });
    let [Request::Lookup(_), Request::Create(made)] = &seen[..] else { panic!("{seen:?}") };
    assert!(!made.flags.contains(OpenFlags::EXCL));
    let (reply, seen) = asked("no-exclusive", create(), |_| {
        let (attr, generation) = (Attr::default(), Generation(0));
        let (entry_ttl, attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
        Reply::Entry(Entry { node: Node(9), generation, attr, entry_ttl, attr_ttl })
    });
    assert_eq!(reply, Reply::Error(Errno::EEXIST.into()));
    assert!(matches!(&seen[..], [Request::Lookup(_), Request::Forget(Forget { node: Node(9), count: 1 })]));
}
