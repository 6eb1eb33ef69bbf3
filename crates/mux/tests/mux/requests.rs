// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and replies on a connection that works.

use crate::support::{Toy, ask, connected, frame, move_bytes, text, unserved};
use bytes::Bytes;
use outrigger_mux::{Error, Frame, Framed, Limits};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{duplex, split};
use tokio::sync::oneshot;
use tokio::task::yield_now;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn replies_find_those_who_asked_in_any_order() {
    let (mux, mut peer) = connected(Limits::default());
    let server = async {
        let mut asked = Vec::new();
        for _ in 0..3 {
            asked.push(peer.asked().await);
        }
        for (tag, content) in asked.into_iter().rev() {
            peer.answer(tag, &content.to_uppercase()).await;
        }
    };
    let (a, b, c, ()) = tokio::join!(mux.call(ask("a")), mux.call(ask("b")), mux.call(ask("c")), server);
    assert_eq!([text(a), text(b), text(c)], ["A", "B", "C"]);
}

#[tokio::test(start_paused = true)]
async fn every_way_of_asking() {
    let (ours, theirs) = duplex(1 << 16);
    let ((reader, writer), (their_reader, their_writer)) = (split(ours), split(theirs));
    let mut server = Framed::new(Toy, their_reader, their_writer);
    let mut client = Framed::new(Toy, reader, writer);
    client.send(&frame(77, b"hello")).await.expect("sent");
    assert_eq!(server.receive().await.expect("received").expect("a frame")[8..], *b"hello");
    server.send(&frame(78, b"welcome")).await.expect("sent");
    assert_eq!(client.receive().await.expect("received").expect("a frame")[8..], *b"welcome");

    let (mux, connection) = client.start(Limits::default());
    tokio::spawn(connection);
    tokio::spawn(async move {
        while let Ok(Some(request)) = server.receive().await {
            server.send(&request).await.expect("sent");
        }
    });
    mux.send(ask("nobody listens"));
    let (sender, receiver) = oneshot::channel();
    mux.call_then(ask("called back"), |reply| drop(sender.send(reply))).await;
    assert_eq!(text(receiver.await.expect("called")), "called back");
    assert_eq!(text(mux.call(ask("awaited")).await), "awaited");
    let bulk = Frame::bulk(frame(0, b"head "), Bytes::from_static(b"body"), 4);
    let mut whole = bulk;
    whole.head[..4].copy_from_slice(&17_u32.to_be_bytes());
    assert_eq!(text(mux.call(whole).await), "head body");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_disturbs_no_other() {
    let (mux, connection, mut peer) = unserved(Limits::default(), 1 << 16);
    {
        let mut unsent = Box::pin(mux.call(ask("taken back")));
        assert!(tokio::time::timeout(SECOND, &mut unsent).await.is_err());
    }
    tokio::spawn(connection);
    let mut unread = Box::pin(mux.call(ask("unread")));
    assert!(tokio::time::timeout(SECOND, &mut unread).await.is_err());
    drop(unread);
    let (tag, content) = peer.asked().await;
    assert_eq!(content, "unread", "what was taken back is not sent");
    peer.answer(tag, "late").await;
    let server = async {
        let (tag, _) = peer.asked().await;
        peer.answer(tag, "yes").await;
    };
    let (reply, ()) = tokio::join!(mux.call(ask("still there?")), server);
    assert_eq!(text(reply), "yes");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_before_its_turn_is_not_sent() {
    let (mux, connection, mut peer) = unserved(Limits::default(), 1 << 16);
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut wishes = Vec::new();
    for name in ["wanted", "unwanted", "wanted to the end"] {
        let wish = Arc::new(());
        let frame = Frame { wanted: Some(Arc::downgrade(&wish)), ..move_bytes(name, 10) };
        let sender = sender.clone();
        mux.call_then(frame, move |reply| sender.send((name, reply)).expect("it is listened to")).await;
        wishes.push(wish);
    }
    wishes.remove(1);
    tokio::spawn(connection);
    for name in ["wanted", "wanted to the end"] {
        let (tag, content) = peer.asked().await;
        assert_eq!(content, name);
        peer.answer(tag, "yes").await;
    }
    let (name, reply) = told.recv().await.expect("it is told");
    assert_eq!((name, reply.map_err(|error| error.was_sent()).expect_err("unsent")), ("unwanted", false));
    for expected in ["wanted", "wanted to the end"] {
        let (name, reply) = told.recv().await.expect("it is told");
        assert_eq!((name, &*text(reply)), (expected, "yes"));
    }
}

#[tokio::test(start_paused = true)]
async fn small_requests_overtake_large_ones_and_lanes_keep_their_order() {
    let (mux, connection, mut peer) = unserved(Limits::default(), 1 << 16);
    let names = ["bulk 1", "bulk 2", "first 1", "first 2"];
    for name in names {
        let frame = if name.starts_with("bulk") { move_bytes(name, 10) } else { ask(name) };
        mux.call_then(frame, drop).await;
    }
    tokio::spawn(connection);
    for expected in ["first 1", "first 2", "bulk 1", "bulk 2"] {
        assert_eq!(peer.asked().await.1, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_too_much_waits_for_room() {
    let (mux, mut peer) = connected(Limits { requests: 2, bytes: 100, ..Limits::default() });
    let ask_soon = |frame| {
        let mux = mux.clone();
        tokio::spawn(async move { mux.call(frame).await })
    };
    let (one, two, three) = (ask_soon(ask("1")), ask_soon(ask("2")), ask_soon(ask("3")));
    let ((tag, first), (_, second)) = (peer.asked().await, peer.asked().await);
    assert_eq!((&*first, &*second), ("1", "2"));
    assert!(tokio::time::timeout(SECOND, peer.next()).await.is_err(), "there is room for two");
    peer.answer(tag, "done").await;
    assert_eq!(text(one.await.expect("no panic")), "done");
    assert_eq!(peer.asked().await.1, "3");
    drop((two, three));

    let (mux, mut peer) = connected(Limits { bytes: 100, ..Limits::default() });
    for name in ["large", "larger"] {
        let mux = mux.clone();
        tokio::spawn(async move { mux.call(move_bytes(name, 60)).await });
    }
    yield_now().await;
    let (tag, name) = peer.asked().await;
    assert_eq!(name, "large");
    assert!(tokio::time::timeout(SECOND, peer.next()).await.is_err(), "there is room for 100 bytes");
    peer.answer(tag, "done").await;
    assert_eq!(peer.asked().await.1, "larger");
}

#[test]
fn times_in_errors_are_rounded() {
    for (millis, text) in [(30_002, "30 s"), (5000, "5 s"), (1549, "1.5 s")] {
        let error = Error::TimedOut { after: Duration::from_millis(millis), sent: true };
        assert_eq!(error.to_string(), format!("no answer for {text}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_does_not_come_is_not_waited_for() {
    let (mux, mut peer) = connected(Limits { patience: 5 * SECOND, ..Limits::default() });
    let asked = tokio::time::Instant::now();
    assert_eq!(mux.call(ask("usual")).await, Err(Error::TimedOut { after: 5 * SECOND, sent: true }));
    assert_eq!(asked.elapsed().as_secs(), 5);
    assert!(mux.is_open() && mux.silence() >= 5 * SECOND);
    let (tag, _) = peer.asked().await;
    peer.answer(tag, "too late").await;
    let server = async {
        let (tag, _) = peer.asked().await;
        peer.answer(tag, "in time").await;
    };
    let (reply, ()) = tokio::join!(mux.call(ask("again")), server);
    assert_eq!(text(reply), "in time");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_takes_nothing_is_not_waited_for() {
    let (mux, connection, mut peer) = unserved(Limits { patience: 5 * SECOND, ..Limits::default() }, 16);
    tokio::spawn(connection);
    let long = "x".repeat(100);
    let (stuck, behind) = tokio::join!(mux.call(ask(&long)), async {
        yield_now().await;
        yield_now().await;
        mux.call(ask("behind")).await
    });
    assert_eq!(stuck, Err(Error::TimedOut { after: 5 * SECOND, sent: true }));
    assert_eq!(behind, Err(Error::TimedOut { after: 5 * SECOND, sent: false }));
    assert_eq!(peer.asked().await.1, long);
}

#[tokio::test(start_paused = true)]
async fn a_silence_before_a_request_does_not_shorten_its_patience() {
    let (mux, connection, mut peer) = unserved(Limits { patience: 5 * SECOND, ..Limits::default() }, 16);
    tokio::spawn(connection);
    let stuck = mux.call(ask(&"x".repeat(100))).await;
    assert_eq!(stuck, Err(Error::TimedOut { after: 5 * SECOND, sent: true }));
    tokio::time::sleep(20 * SECOND).await;
    // The first one still blocks the way, so this one waits in line for as long as it may.
    let asked = tokio::time::Instant::now();
    let behind = mux.call(ask("behind")).await;
    assert_eq!(behind, Err(Error::TimedOut { after: 5 * SECOND, sent: false }));
    assert_eq!(asked.elapsed(), 5 * SECOND);
    // When the way is free in time, it is answered.
    let server = async {
        tokio::time::sleep(4 * SECOND).await;
        peer.asked().await;
        let (tag, _) = peer.asked().await;
        peer.answer(tag, "in time").await;
    };
    let (reply, ()) = tokio::join!(mux.call(ask("again")), server);
    assert_eq!(text(reply), "in time");
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_never_answered_give_their_room_back() {
    let (mux, mut peer) = connected(Limits { requests: 2, patience: 5 * SECOND, ..Limits::default() });
    let asked = tokio::time::Instant::now();
    let calls: Vec<_> = (0..6)
        .map(|number| {
            let mux = mux.clone();
            tokio::spawn(async move { mux.call(ask(&number.to_string())).await })
        })
        .collect();
    let mut replies = Vec::new();
    for call in calls {
        replies.push(call.await.expect("no panic"));
    }
    let late = Err(Error::TimedOut { after: 5 * SECOND, sent: true });
    assert_eq!(replies[..4], [late.clone(), late.clone(), late.clone(), late]);
    assert!(replies[4..].iter().all(|reply| matches!(reply, Err(Error::Lost { sent: false, .. }))));
    assert_eq!(asked.elapsed(), 10 * SECOND);
    assert!(mux.ended().is_some_and(|why| why.contains("without an answer")));
    assert_eq!(peer.asked().await.1, "0");
}

#[tokio::test(start_paused = true)]
async fn a_slow_connection_is_not_a_dead_one() {
    let (mux, mut peer) = connected(Limits { patience: 5 * SECOND, ..Limits::default() });
    let calls: Vec<_> = (0..20)
        .map(|number| {
            let mux = mux.clone();
            tokio::spawn(async move { mux.call(move_bytes(&number.to_string(), 60 << 10)).await })
        })
        .collect();
    // The window lets one through at a time at first, and each takes nearly all the patience there is.
    tokio::spawn(async move {
        while let Ok((tag, content)) = peer.next().await {
            tokio::time::sleep(4 * SECOND).await;
            peer.answer(tag, &content).await;
        }
    });
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(text(call.await.expect("no panic")), number.to_string());
    }
}
