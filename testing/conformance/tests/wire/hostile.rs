// SPDX-License-Identifier: MIT OR Apache-2.0
//! Peers that do not keep to the protocol: they lose their connection or get an error, and nobody else notices.

use crate::support::Far;
use bytes::Bytes;
use outrigger_conformance::Subject;
use outrigger_core::ops::{Forget, GetAttr, Lookup, Read, ReadDirPlus, Resolve};
use outrigger_core::wire::peer::{Offered, Wanted, framed, greeting, unframed};
use outrigger_core::wire::{Body, FRAME_MAX, Frame};
use outrigger_core::{Credentials, Errno, Handle, Name, Node, OpCode, OpSet, Reply, Request};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A peer that says whatever a test wants.
struct Raw(UnixStream);

impl Raw {
    fn connect(far: &Far) -> Raw {
        let stream = UnixStream::connect(far.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Raw(stream)
    }

    /// One that has been agreed with.
    fn begun(far: &Far) -> Raw {
        let mut raw = Raw::connect(far);
        raw.say(&greeting());
        raw.say(&framed(&Wanted::new("test", OpSet::all())).unwrap());
        let mut theirs = [0; 6];
        raw.0.read_exact(&mut theirs).unwrap();
        assert_eq!(unframed::<Offered>(raw.frame().unwrap()).unwrap().refusal, None);
        raw
    }

    fn say(&mut self, bytes: &[u8]) {
        // A server that has hung up is what the test looks for.
        let _ = self.0.write_all(bytes);
    }

    fn frame(&mut self) -> Option<Bytes> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut frame).ok()?;
        Some(frame.into())
    }

    fn send(&mut self, id: u64, request: impl Into<Request>) {
        let body = Body::Request { cred: Credentials::ROOT, within: None, request: request.into() };
        self.say(&Frame { id, body }.encode().unwrap());
    }

    fn ask(&mut self, request: impl Into<Request>) -> Reply {
        self.send(7, request);
        match Frame::decode(self.frame().expect("a reply")).unwrap() {
            Frame { id: 7, body: Body::Reply(reply) } => reply,
            other => panic!("{other:?}"),
        }
    }

    fn ends(mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_ok() || rest.is_empty()
    }
}

fn errno(reply: &Reply) -> Option<Errno> {
    reply.error().map(|error| error.errno)
}

#[test]
fn numbers_that_were_not_given_to_a_connection_mean_nothing_on_it() {
    let far = Far::local();
    std::fs::write(far.at("f"), "content").unwrap();
    let lookup = || Lookup { dir: Node::ROOT, name: Name::try_from("f").unwrap() };
    let (mut one, mut other) = (Raw::begun(&far), Raw::begun(&far));
    let Reply::Entry(entry) = one.ask(lookup()) else { panic!("no entry") };
    let attr = || GetAttr { node: entry.node, handle: None };
    assert_eq!(errno(&other.ask(attr())), Some(Errno::ESTALE));
    let read = Read { node: entry.node, handle: Handle(1), offset: 0, len: 9 };
    assert_eq!(errno(&one.ask(read)), Some(Errno::EBADF));
    for node in [0, 2, 3, u64::MAX].into_iter().filter(|node| *node != entry.node.0) {
        assert_eq!(
            errno(&one.ask(GetAttr { node: Node(node), handle: None })),
            Some(Errno::ESTALE),
            "{node}"
        );
    }
    let resolve = Resolve { node: entry.node, generation: None };
    assert_eq!(errno(&other.ask(resolve)), Some(Errno::ENOSYS), "a number that a client comes with");
    assert_eq!(one.ask(Forget { node: entry.node, count: u64::MAX }), Reply::Done(()));
    assert_eq!(errno(&one.ask(attr())), Some(Errno::ESTALE));
    let Reply::Entry(_) = other.ask(lookup()) else { panic!("others have their own") };
    let list = ReadDirPlus { node: Node::ROOT, handle: Handle::NONE, cookie: 0, size: u32::MAX };
    let Reply::DirentsPlus(list) = other.ask(list) else { panic!("no listing") };
    assert_eq!(list.entries.len(), 1);
}

#[test]
fn what_is_no_message_ends_the_connection_and_no_other_one() {
    let far = Far::local();
    let near = far.direct();
    let request = |id| {
        let request = GetAttr { node: Node::ROOT, handle: None }.into();
        let body = Body::Request { cred: Credentials::ROOT, within: None, request };
        Frame { id, body }.encode().unwrap()
    };
    let long = u32::try_from(FRAME_MAX + 1).unwrap().to_le_bytes();
    let reply = Frame { id: 1, body: Body::Reply(Reply::Done(())) }.encode().unwrap();
    let kind = [&9_u32.to_le_bytes()[..], &[77; 9]].concat();
    let mut trailing = request(1);
    trailing[0] += 1;
    trailing.push(0);
    for (what, bytes) in [
        ("a giant length", &long[..]),
        ("no length", &[0; 4]),
        ("an unknown kind", &kind),
        ("a reply to nothing", &reply),
        ("bytes left over", &trailing),
        ("a kind and no more", &[1, 0, 0, 0, 1]),
    ] {
        let mut raw = Raw::begun(&far);
        raw.say(bytes);
        assert!(raw.ends(), "{what}");
    }
    let mut half = Raw::begun(&far);
    half.say(&request(1)[..20]);
    half.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(half.ends());
    for beginning in [&b"SSH-2.0-x"[..], b"ORIG\x04\x00", b"ORIG\x00\x00\xff\xff\xff\xff"] {
        let mut raw = Raw::connect(&far);
        raw.say(beginning);
        assert!(raw.ends(), "{beginning:?}");
    }
    assert!(near.stat(Path::new("")).is_ok(), "others go on");
}

#[test]
fn a_client_that_speaks_too_little_is_told_why_with_both_releases() {
    let far = Far::local();
    let mut raw = Raw::connect(&far);
    raw.say(&greeting());
    raw.say(&framed(&Wanted::new("0.0.1", OpSet::all().without(OpSet::of(&[OpCode::Walk])))).unwrap());
    let mut theirs = [0; 6];
    raw.0.read_exact(&mut theirs).unwrap();
    let refusal = unframed::<Offered>(raw.frame().unwrap()).unwrap().refusal.expect("refused").to_string();
    assert!(["0.0.1", "test", "walk"].iter().all(|part| refusal.contains(part)), "{refusal}");
}

/// It asks for much and takes nothing: what waits for it is bounded, and others are served.
#[test]
fn a_client_that_takes_no_replies_is_not_in_the_way() {
    let far = Far::local();
    std::fs::write(far.at("f"), vec![7; 1 << 20]).unwrap();
    let mut raw = Raw::begun(&far);
    raw.0.set_nonblocking(true).unwrap();
    let list = || ReadDirPlus { node: Node::ROOT, handle: Handle::NONE, cookie: 0, size: u32::MAX };
    for id in 1..20_000 {
        raw.send(id, list());
    }
    assert!(far.direct().stat(Path::new("f")).is_ok());
}

/// Otherwise whoever may connect would keep others out by silence.
#[test]
fn a_client_that_does_not_begin_is_hung_up_on() {
    let far = Far::local();
    let [silent, mut half] = [Raw::connect(&far), Raw::connect(&far)];
    half.say(&greeting());
    assert!(silent.ends() && half.ends());
}
