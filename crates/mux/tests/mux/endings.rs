// SPDX-License-Identifier: MIT OR Apache-2.0
//! How connections end, and that everybody hears of it.

use crate::support::{FRAME_MAX, Peer, ask, connected, frame, move_bytes, text, unserved};
use outrigger_mux::{Error, Limits, Mux};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn lost(reply: Result<bytes::Bytes, Error>) -> (String, bool) {
    match reply {
        Err(Error::Lost { why, sent }) => (why.to_string(), sent),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_ends_a_connection_releases_everybody() {
    type Ending = fn(&mut Peer, u32) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    let endings: [(&str, Ending); 6] = [
        ("the other side has closed the connection", |peer, _| Box::pin(peer.hang_up())),
        ("in the middle of a message", |peer, _| {
            Box::pin(async {
                peer.send(b"\0\0\0").await;
                peer.hang_up().await;
            })
        }),
        ("a frame of 4294967295 bytes", |peer, _| Box::pin(peer.send(&[0xff; 8]))),
        ("a frame of 1048577 bytes", |peer, _| {
            Box::pin(async {
                peer.send(&(FRAME_MAX as u32 + 1).to_be_bytes()).await;
            })
        }),
        ("an answer to nothing that was asked", |peer, tag| Box::pin(peer.answer(tag + 7, "what?"))),
        ("a message without a number", |peer, _| Box::pin(peer.send(&[0, 0, 0, 5, 1]))),
    ];
    for (expected, ending) in endings {
        let (mux, mut peer) = connected(Limits { requests: 2, ..Limits::default() });
        let end = async {
            let (tag, _) = peer.asked().await;
            peer.asked().await;
            ending(&mut peer, tag).await;
        };
        let (a, b, waits_for_room, ()) =
            tokio::join!(mux.call(ask("a")), mux.call(ask("b")), mux.call(ask("c")), end);
        for (reply, sent) in [(a, true), (b, true), (waits_for_room, false)] {
            let (why, was_sent) = lost(reply);
            assert!(why.contains(expected), "{why}");
            assert_eq!(was_sent, sent, "{expected}");
        }
        assert!(lost(mux.call(ask("later")).await).0.contains(expected));
        assert!(mux.ended().is_some_and(|why| why.contains(expected)) && !mux.is_open());
        let told = Arc::new(AtomicUsize::new(0));
        let tells = Arc::clone(&told);
        mux.call_then(ask("later"), move |reply| {
            assert!(reply.is_err());
            tells.fetch_add(1, Ordering::Relaxed);
        })
        .await;
        assert_eq!(told.load(Ordering::Relaxed), 1);
        mux.send(ask("later"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_given_twice_ends_the_connection() {
    let (mux, mut peer) = connected(Limits::default());
    let server = async {
        let (tag, _) = peer.asked().await;
        peer.answer(tag, "once").await;
        peer.answer(tag, "twice").await;
        peer
    };
    let (reply, _peer) = tokio::join!(mux.call(ask("a")), server);
    assert_eq!(text(reply), "once");
    assert!(lost(mux.call(ask("b")).await).0.contains("an answer to nothing"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_left_says_so() {
    let (mux, connection, peer) = unserved(Limits::default(), 16);
    let waits = {
        let mux = mux.clone();
        tokio::spawn(async move { mux.call(ask("unsent")).await })
    };
    tokio::task::yield_now().await;
    drop(connection);
    assert_eq!(lost(waits.await.expect("no panic")), ("the task of the connection has ended".into(), false));
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn closing_is_told_with_the_reason() {
    let (mux, mut peer) = connected(Limits::default());
    let close = async {
        peer.asked().await;
        mux.close("enough");
    };
    let (reply, ()) = tokio::join!(mux.call(ask("a")), close);
    assert_eq!(lost(reply), ("enough".into(), true));
    assert!(peer.next().await.is_err(), "the other side sees the end");
}

#[tokio::test(start_paused = true)]
async fn finishing_sends_what_is_queued_and_waits_for_the_answers() {
    let (mux, connection, mut peer) = unserved(Limits::default(), 1 << 16);
    let calls: Vec<_> = (0..3)
        .map(|number| {
            let mux = mux.clone();
            tokio::spawn(async move { mux.call(move_bytes(&number.to_string(), 1 << 20)).await })
        })
        .collect();
    tokio::task::yield_now().await;
    mux.finish();
    assert_eq!(lost(mux.call(ask("too late")).await), ("the connection is being closed".into(), false));
    let served = tokio::spawn(connection);
    while let Ok((tag, content)) = peer.next().await {
        peer.answer(tag, &content).await;
    }
    // The peer has seen the end of what it was sent, and everything was answered.
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(text(call.await.expect("no panic")), number.to_string());
    }
    peer.hang_up().await;
    served.await.expect("the connection ends");
    assert_eq!(mux.ended().as_deref(), Some("the other side has closed the connection"));
}

/// One life of a connection: callers of every kind, a peer that answers late, in any order, or ends it in the middle.
async fn life(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let limits = Limits { requests: random.usize(1..6), bytes: 1 << 18, patience: Duration::from_secs(8) };
    let (mux, connection, mut peer) = unserved(limits, random.usize(1..2000));
    tokio::spawn(connection);
    let answered = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..30)
        .map(|number| tokio::spawn(caller(mux.clone(), number, random.fork(), answered.clone())))
        .collect();
    let cut = random.usize(0..40);
    tokio::spawn(async move {
        let mut open = Vec::new();
        for _ in 0..cut {
            if random.bool()
                && let Ok(Ok(asked)) = tokio::time::timeout(Duration::from_secs(1), peer.next()).await
            {
                open.push(asked);
            }
            if !open.is_empty() && random.bool() {
                let (tag, content) = open.swap_remove(random.usize(..open.len()));
                let whole = frame(tag, content.as_bytes());
                tokio::time::sleep(Duration::from_millis(random.u64(0..1500))).await;
                let (head, tail) = whole.split_at(random.usize(..whole.len()));
                peer.send(head).await;
                tokio::task::yield_now().await;
                peer.send(tail).await;
            }
        }
    });
    let mut whole = 0;
    for caller in callers {
        whole += usize::from(caller.await.expect("no panic"));
    }
    assert_eq!(answered.load(Ordering::Relaxed), whole, "seed {seed}");
}

/// Asks once in one of the ways; whether an answer is due.
async fn caller(mux: Mux, number: usize, mut random: fastrand::Rng, answered: Arc<AtomicUsize>) -> bool {
    tokio::time::sleep(Duration::from_millis(random.u64(0..3000))).await;
    let content = format!("request {number}");
    let frame = if random.bool() { ask(&content) } else { move_bytes(&content, random.usize(1..100_000)) };
    let check = move |reply: Result<bytes::Bytes, Error>| {
        if let Ok(reply) = reply {
            assert_eq!(reply[8..], *content.as_bytes());
        }
        answered.fetch_add(1, Ordering::Relaxed);
    };
    match random.u8(0..4) {
        0 => {
            mux.send(frame);
            false
        }
        1 => {
            let _ = tokio::time::timeout(Duration::from_millis(500), mux.call(frame)).await;
            false
        }
        2 => {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let then = move |reply| {
                check(reply);
                let _ = sender.send(());
            };
            mux.call_then(frame, then).await;
            receiver.await.expect("called");
            true
        }
        _ => {
            check(mux.call(frame).await);
            true
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_any_life_everybody_is_answered_exactly_once() {
    for seed in 0..300 {
        // No caller waits for ever, whatever the peer does: time is simulated, so this limit costs nothing.
        let limit = Duration::from_secs(3600);
        assert!(tokio::time::timeout(limit, life(seed)).await.is_ok(), "somebody still waits, seed {seed}");
    }
}
