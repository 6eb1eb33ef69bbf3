// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that a client does not want answered any more, and those that take their time.

use crate::support::*;
use outrigger_core::ops::Read;
use outrigger_core::{Abilities, Answer, Cx, Errno, Notify, Reply as Answered, Request as Asked, Service};
use outrigger_proto_ninep::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A tree whose file hangs when it is read at 666, until it is cancelled, or at 777, until it may go on.
struct Hanging(Arc<dyn Service>, Arc<AtomicBool>);

impl Service for Hanging {
    fn call<'a>(&'a self, cx: &'a Cx, request: Asked) -> Answer<'a> {
        match request {
            Asked::Read(Read { offset: 666, .. }) => Answer::later(async move {
                cx.cancel.raised().await;
                Answered::Error(Errno::EINTR.into())
            }),
            Asked::Read(Read { offset: 777, .. }) => Answer::later(async move {
                while !self.1.load(Ordering::Relaxed) {
                    tokio::task::yield_now().await;
                }
                Answered::Error(Errno::EIO.into())
            }),
            request => self.0.call(cx, request),
        }
    }
    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}

/// A tree that has no room for what was written, and tells when a file is closed.
struct Full(Arc<dyn Service>);

impl Service for Full {
    fn call<'a>(&'a self, cx: &'a Cx, request: Asked) -> Answer<'a> {
        let closes = matches!(request, Asked::Release(_));
        let answer = self.0.call(cx, request);
        Answer::later(async move {
            let reply = answer.await;
            if closes { Answered::Error(Errno::ENOSPC.into()) } else { reply }
        })
    }
    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}

fn start() -> (Running, Client, Arc<AtomicBool>) {
    let over = Arc::new(AtomicBool::new(false));
    let tree = Arc::new(Hanging(mem(), over.clone()));
    let running = serve(vec![("/", checked(tree))], &callers());
    let mut client = Client::new(running.address);
    client.create(0, 1, "f").unwrap();
    (running, client, over)
}

fn read(offset: u64) -> Tread {
    Tread { fid: 1, offset, count: 1 }
}

#[test]
fn a_flushed_request_stops_and_is_answered_before_the_flush() {
    let (_running, mut client, _) = start();
    for _ in 0..50 {
        client.begin(1000, read(666));
        client.begin(1001, Tflush { oldtag: 1000 });
        client.begin(1002, Tflush { oldtag: 1000 });
        client.begin(1003, Tflush { oldtag: 1001 });
        let replies: Vec<(u16, Reply)> = (0..4).map(|_| client.receive().unwrap()).collect();
        assert_eq!(replies[0], (1000, Rlerror { ecode: 4 }.into()));
        let mut flushes: Vec<u16> = replies[1..].iter().map(|(tag, _)| *tag).collect();
        assert!(flushes.iter().position(|tag| *tag == 1001) < flushes.iter().position(|tag| *tag == 1003));
        flushes.sort();
        assert_eq!(flushes, [1001, 1002, 1003]);
    }
}

#[test]
fn a_flush_waits_for_what_cannot_be_stopped_and_not_for_what_is_over() {
    let (_running, mut client, over) = start();
    client.begin(1000, read(777));
    client.begin(1001, Tflush { oldtag: 1000 });
    // Of a tag that nothing has, of its own, and what has nothing to do with it.
    client.call(Tflush { oldtag: 5 }).unwrap();
    client.begin(1002, Tflush { oldtag: 1002 });
    assert_eq!(client.receive().unwrap(), (1002, Rflush {}.into()));
    client.call(Tgetattr { fid: 1, mask: AttrMask::BASIC }).unwrap();
    over.store(true, Ordering::Relaxed);
    let replies = [client.receive().unwrap(), client.receive().unwrap()];
    assert_eq!(replies, [(1000, Rlerror { ecode: 5 }.into()), (1001, Rflush {}.into())]);
}

#[test]
fn a_file_that_hangs_delays_no_other_and_its_connection_can_end() {
    let (running, mut client, over) = start();
    (0..20).for_each(|tag| client.begin(1000 + tag, read(777)));
    client.call(Tgetattr { fid: 1, mask: AttrMask::BASIC }).unwrap();
    // It is given back when they have ended, and its number is free at once.
    client.begin(2000, Tclunk { fid: 1 });
    client.create(0, 1, "g").unwrap();
    client.write(1, 0, b"x").unwrap();
    over.store(true, Ordering::Relaxed);
    let mut late: Vec<(u16, Reply)> = (0..21).map(|_| client.receive().unwrap()).collect();
    late.sort_by_key(|(tag, _)| *tag);
    assert_eq!(late.pop(), Some((2000, Rclunk {}.into())));
    assert!(late.iter().all(|(_, reply)| *reply == Rlerror { ecode: 5 }.into()));
    over.store(false, Ordering::Relaxed);
    client.begin(1000, read(666));
    drop(client);
    let mut other = Client::new(running.address);
    assert!(other.walk(0, 1, &["f"]).is_ok());
}

#[test]
fn a_new_agreement_stops_what_runs() {
    let (_running, mut client, _) = start();
    client.begin(1000, read(666));
    let version = Tversion { msize: 8192, version: text("9P2000.L") };
    client.begin(NO_TAG, version);
    assert_eq!(client.receive().unwrap(), (1000, Rlerror { ecode: 4 }.into()));
    assert_eq!(client.receive().unwrap().0, NO_TAG);
}

#[test]
fn a_tag_that_is_in_use_ends_the_connection() {
    let (_running, mut client, _) = start();
    client.begin(1000, read(666));
    client.begin(1000, Tgetattr { fid: 1, mask: AttrMask::BASIC });
    assert_eq!(client.receive(), Some((1000, Rlerror { ecode: 4 }.into())), "what runs is stopped");
    assert_eq!(client.receive(), None);
}

#[test]
fn what_closing_a_written_file_answers_reaches_the_client() {
    let running = serve(vec![("/", Arc::new(Full(checked(mem()))))], &callers());
    let mut client = Client::new(running.address);
    client.create(0, 1, "f").unwrap();
    client.write(1, 0, b"content").unwrap();
    assert_eq!(client.clunk(1), Err(28));
    client.create(0, 1, "not written").unwrap();
    client.clunk(1).unwrap();
}
