// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are answered before they have been made.

use crate::line::{Fate, Line};
use crate::server::{File, Store};
use crate::user::User;
use outrigger_core::reply::{Created, OpenHow};
use outrigger_core::{Errno, Handle, Node};
use outrigger_proto_sftp::{OpenFlags as Flags, Reply, Request, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const DELAY: Duration = Duration::from_millis(5);

/// A user of a directory in which a file was made before: it is known what new ones look like.
async fn accustomed(store: &Arc<Store>) -> (Line, User) {
    let line = Line::new(store, DELAY);
    let user = User::new(line.connect(&[]).await.expect("connected"));
    user.write_file(Node::ROOT, "first", b"1").await.expect("written");
    (line, user)
}

fn handle_of(made: &Created) -> (Node, Handle) {
    (made.entry.node, made.opened.handle)
}

fn is_making(request: &Request<'_>) -> bool {
    matches!(request, Request::Open { flags, .. } if flags.contains(Flags::CREAT))
}

#[tokio::test(start_paused = true)]
async fn no_program_waits_for_a_file_that_looks_like_the_one_before() {
    let store = Store::new();
    let line = Line::new(&store, DELAY);
    let user = User::new(line.connect(&[]).await.expect("connected"));
    let first = user.create_async(Node::ROOT, "first").await.expect("made");
    assert!(!first.opened.how.contains(OpenHow::PENDING_CREATE), "it is not known what it will look like");
    tokio::time::sleep(10 * DELAY).await;
    store.state().counts.clear();
    let begin = Instant::now();
    let mut made = Vec::new();
    for number in 0..50 {
        made.push(user.create_async(Node::ROOT, &format!("file{number}")).await.expect("made"));
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
    for one in &made {
        let (node, handle) = handle_of(one);
        assert!(one.opened.how.contains(OpenHow::PENDING_CREATE));
        let mut told = one.entry.attr.clone();
        let known = user.attr(node, Some(handle)).await.expect("made");
        (told.mtime, told.ctime, told.atime) = (known.mtime, known.ctime, known.atime);
        assert_eq!(known, told);
        assert_eq!(user.write_at(node, handle, 0, b"content").await, Ok(7));
        user.close(node, handle).await.expect("closed");
    }
    tokio::time::sleep(2 * DELAY).await;
    let counts = store.state().counts.clone();
    assert_eq!((counts["open"], counts["lstat"], counts["write"], counts["close"]), (50, 50, 50, 50));
    assert_eq!(counts.get("fstat"), None, "how it looks was asked with it");
    assert_eq!(store.content("/home/file49"), Some(b"content".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_refused_stays_refused() {
    let store = Store::new();
    let (line, user) = accustomed(&store).await;
    line.decide(|_, request| match is_making(request) {
        true => Fate::Instead(Reply::status(StatusCode::PermissionDenied)),
        false => Fate::Answered,
    });
    let (node, handle) = handle_of(&user.create_async(Node::ROOT, "new").await.expect("answered"));
    let refused = user.attr(node, Some(handle)).await.map_err(|error| error.errno);
    assert_eq!(refused, Err(Errno::EACCES));
    line.decide(|_, _| Fate::Answered);
    store.state().files.remove(&b"/home/new"[..]);
    for _ in 0..2 {
        let written = user.write_at(node, handle, 0, b"lost").await.map_err(|error| error.errno);
        assert_eq!(written, Err(Errno::EACCES));
        let synced = user.fsync(node, handle).await.map_err(|error| error.errno);
        assert_eq!(synced, Err(Errno::EACCES));
    }
    user.close(node, handle).await.expect("closed");
    assert_eq!(
        user.lookup(Node::ROOT, "new").await.map(drop).map_err(|error| error.errno),
        Err(Errno::ENOENT)
    );
    let again = user.create_async(Node::ROOT, "new").await.expect("made");
    assert!(!again.opened.how.contains(OpenHow::PENDING_CREATE), "what new files look like is in doubt");
    assert_ne!(again.entry.node, node, "another file");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_another_client_made_first_is_opened_and_emptied_as_open_would() {
    let store = Store::new();
    let (_, user) = accustomed(&store).await;
    store.state().files.insert(b"/home/new".to_vec(), File::new(b"theirs, and longer".to_vec()));
    let (node, handle) = handle_of(&user.create_async(Node::ROOT, "new").await.expect("answered"));
    assert_eq!(user.size(node, Some(handle)).await, Ok(0));
    assert_eq!(user.write_at(node, handle, 0, b"ours").await, Ok(4));
    assert_eq!(store.content("/home/new"), Some(b"ours".to_vec()));
    store.state().files.insert(b"/home/dir".to_vec(), File::Dir);
    let (node, handle) = handle_of(&user.create_async(Node::ROOT, "dir").await.expect("answered"));
    assert_eq!(user.size(node, Some(handle)).await.map_err(|error| error.errno), Err(Errno::EISDIR));
    user.write_file(Node::ROOT, "second", b"2").await.expect("written");
    store.state().files.insert(b"/home/link".to_vec(), File::Link(b"/home/first".to_vec()));
    let (node, handle) = handle_of(&user.create_async(Node::ROOT, "link").await.expect("answered"));
    assert_eq!(user.write_at(node, handle, 0, b"x").await.map_err(|error| error.errno), Err(Errno::ELOOP));
    assert_eq!(store.content("/home/first"), Some(b"1".to_vec()));
}

/// The connection ends before the file was made, or after; then another client writes into it.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_meanwhile_neither_loses_the_file_nor_what_others_wrote() {
    for after in [false, true] {
        let store = Store::new();
        let (line, user) = accustomed(&store).await;
        let mut cut = false;
        line.decide(move |_, request| match is_making(request) && !std::mem::replace(&mut cut, true) {
            true if after => Fate::CutAfter,
            true => Fate::Cut,
            false => Fate::Answered,
        });
        let (node, handle) = handle_of(&user.create_async(Node::ROOT, "new").await.expect("answered"));
        tokio::time::sleep(10 * DELAY).await;
        if after {
            store.state().files.insert(b"/home/new".to_vec(), File::new(b"by another client".to_vec()));
        }
        assert_eq!(user.write_at(node, handle, 0, b"BY US").await, Ok(5));
        user.fsync(node, handle).await.expect("on stable storage");
        let expected: &[u8] = if after { b"BY USother client" } else { b"BY US" };
        assert_eq!(store.content("/home/new").as_deref(), Some(expected));
        user.close(node, handle).await.expect("closed");
    }
}
