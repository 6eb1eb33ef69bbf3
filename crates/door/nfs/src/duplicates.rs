// SPDX-License-Identifier: MIT OR Apache-2.0
//! The duplicate-request cache: a call that a client repeats because it did not get the reply happens once.
//!
//! See RFC 1813, section 4.5, and C. Juszczak, "Improving the Performance and Correctness of an NFS Server" (USENIX 1989). Clients
//! repeat a call with the same number, perhaps on a new connection.

use bytes::Bytes;
use outrigger_core::hash::siphash13;
use outrigger_core::lock;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Replies that are remembered at most.
const REPLIES: usize = 8192;
/// For how long. A client that has waited for longer gives up, or numbers its calls anew.
const LIFE: Duration = Duration::from_secs(120);
/// Bytes of a call that tell it from another one with the same number: all but most of what a write writes.
const CHECKED: usize = 4096;

/// What makes a call the same as an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    client: IpAddr,
    sum: u64,
    len: usize,
}

impl Key {
    /// Of a whole call, as it came.
    pub(crate) fn of(client: IpAddr, message: &[u8]) -> Self {
        let head = &message[..message.len().min(CHECKED)];
        Key { client: client.to_canonical(), sum: siphash13(head), len: message.len() }
    }
}

/// The replies to calls whose repetition is not harmless.
#[derive(Default)]
pub(crate) struct Duplicates(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    known: HashMap<Key, Known>,
    /// Those that have replies, the oldest first, with when they began.
    replied: VecDeque<(Key, Instant)>,
}

struct Known {
    began: Instant,
    /// `None` in the channel while the call runs.
    reply: watch::Receiver<Option<Bytes>>,
}

impl Known {
    fn is_too_old(&self) -> bool {
        self.reply.borrow().is_some() && self.began.elapsed() > LIFE
    }
}

/// What a call is.
pub(crate) enum Seen<'a> {
    /// New: it is to be carried out, and its reply remembered.
    First(First<'a>),
    /// A repetition of one that was answered so, or will be.
    Again(watch::Receiver<Option<Bytes>>),
}

/// A call that runs. If it is dropped without a reply, a repetition is carried out.
pub(crate) struct First<'a> {
    all: &'a Duplicates,
    key: Key,
    began: Instant,
    reply: watch::Sender<Option<Bytes>>,
    is_kept: bool,
}

impl Duplicates {
    pub(crate) fn see(&self, key: Key) -> Seen<'_> {
        let mut calls = lock(&self.0);
        if let Some(known) = calls.known.get(&key).filter(|known| !known.is_too_old()) {
            return Seen::Again(known.reply.clone());
        }
        let ((reply, receiver), began) = (watch::channel(None), Instant::now());
        calls.known.insert(key, Known { began, reply: receiver });
        Seen::First(First { all: self, key, began, reply, is_kept: false })
    }
}

impl First<'_> {
    /// Gives the reply to repetitions that wait for it, and to later ones if it `is_kept`.
    pub(crate) fn replied(mut self, reply: Bytes, is_kept: bool) {
        self.reply.send_replace(Some(reply));
        if !is_kept {
            return;
        }
        self.is_kept = true;
        let mut calls = lock(&self.all.0);
        calls.replied.push_back((self.key, self.began));
        if calls.replied.len() > REPLIES
            && let Some((key, began)) = calls.replied.pop_front()
            && calls.known.get(&key).is_some_and(|known| known.began == began)
        {
            calls.known.remove(&key);
        }
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            lock(&self.all.0).known.remove(&self.key);
        }
    }
}

/// The reply to a call that is repeated; `None` when the first one ended without.
pub(crate) async fn reply_of(mut first: watch::Receiver<Option<Bytes>>) -> Option<Bytes> {
    first.wait_for(Option::is_some).await.ok().and_then(|reply| reply.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(message: &[u8]) -> Key {
        Key::of("192.0.2.1".parse().unwrap(), message)
    }

    fn again(all: &Duplicates, key: Key) -> Option<watch::Receiver<Option<Bytes>>> {
        match all.see(key) {
            Seen::Again(reply) => Some(reply),
            Seen::First(_) => None,
        }
    }

    fn first(all: &Duplicates, key: Key) -> First<'_> {
        match all.see(key) {
            Seen::First(first) => first,
            Seen::Again(_) => panic!("it was seen before"),
        }
    }

    #[tokio::test]
    async fn a_repeated_call_gets_the_reply_of_the_first_one_also_while_that_runs() {
        let all = Duplicates::default();
        let running = first(&all, key(b"one"));
        let repeated = again(&all, key(b"one")).unwrap();
        running.replied(Bytes::from_static(b"reply"), true);
        assert_eq!(reply_of(repeated).await.unwrap(), b"reply"[..]);
        assert_eq!(reply_of(again(&all, key(b"one")).unwrap()).await.unwrap(), b"reply"[..]);
        assert!(again(&all, key(b"two")).is_none());
        assert!(again(&all, Key::of("192.0.2.2".parse().unwrap(), b"one")).is_none());
    }

    #[tokio::test]
    async fn a_call_that_ended_without_a_reply_is_carried_out_when_it_is_repeated() {
        let all = Duplicates::default();
        let running = first(&all, key(b"one"));
        let repeated = again(&all, key(b"one")).unwrap();
        drop(running);
        assert_eq!(reply_of(repeated).await, None);
        assert!(again(&all, key(b"one")).is_none());
    }

    #[tokio::test]
    async fn a_call_that_may_be_repeated_is_known_while_it_runs_only() {
        let all = Duplicates::default();
        let running = first(&all, key(b"one"));
        let repeated = again(&all, key(b"one")).unwrap();
        running.replied(Bytes::from_static(b"reply"), false);
        assert_eq!(reply_of(repeated).await.unwrap(), b"reply"[..]);
        assert!(again(&all, key(b"one")).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let all = Duplicates::default();
        for number in 0..REPLIES + 10 {
            first(&all, key(&number.to_be_bytes())).replied(Bytes::new(), true);
        }
        assert_eq!(lock(&all.0).known.len(), REPLIES);
        assert!(again(&all, key(&0_usize.to_be_bytes())).is_none());
        assert!(again(&all, key(&(REPLIES + 9).to_be_bytes())).is_some());
    }
}
