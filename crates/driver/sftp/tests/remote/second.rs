// SPDX-License-Identifier: MIT OR Apache-2.0
//! A second client of the server: what it changes is seen once it was asked for, and what we change is seen at once, whatever
//! was asked for ahead.

use crate::line::Line;
use crate::server::{File, Store};
use crate::user::User;
use outrigger_core::Node;
use outrigger_core::ops::OpenFlags;
use std::sync::Arc;
use std::time::Duration;

const DELAY: Duration = Duration::from_millis(5);
/// How long a file is, and how much is read at once, in bytes.
const SIZE: u64 = 4 << 20;
const READ: u32 = 128 << 10;

async fn connected(store: &Arc<Store>) -> User {
    User::new(Line::new(store, DELAY).connect(&[]).await.expect("connected"))
}

fn put(store: &Arc<Store>, path: &str, content: Vec<u8>) {
    store.state().files.insert(path.as_bytes().to_vec(), File::new(content));
}

/// What the second client does to a file.
#[derive(Debug, Clone, Copy)]
enum Does {
    Replaces,
    Overwrites,
    Truncates,
}

impl Does {
    const ALL: [Does; 3] = [Does::Replaces, Does::Overwrites, Does::Truncates];

    fn to(self, store: &Arc<Store>, path: &str, byte: u8) {
        let len = store.content(path).expect("a file").len();
        match self {
            Does::Replaces => put(store, path, vec![byte; len + 1]),
            Does::Overwrites => store.overwrite(path, byte),
            Does::Truncates => {
                store.overwrite(path, byte);
                store.resize(path, len / 2);
            }
        }
        store.touch(path);
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_change_is_read_by_old_handles_once_it_was_seen() {
    for (does, flags) in Does::ALL
        .into_iter()
        .flat_map(|does| [OpenFlags::empty(), OpenFlags::READ_WRITE].map(|flags| (does, flags)))
    {
        let store = Store::new();
        put(&store, "/home/f", vec![b'A'; SIZE as usize]);
        let user = connected(&store).await;
        let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
        let handle = user.open(file, flags).await.expect("opened");
        for at in (0..SIZE / 4).step_by(READ as usize) {
            let read = user.read_at(file, handle, at, READ).await.expect("read");
            assert!(read.iter().all(|&byte| byte == b'A'));
        }
        // What is read ahead has come meanwhile.
        tokio::time::sleep(100 * DELAY).await;
        does.to(&store, "/home/f", b'B');
        let size = user.size(file, Some(handle)).await.expect("a size");
        assert_eq!(Some(size as usize), store.content("/home/f").map(|content| content.len()), "{does:?}");
        for at in (SIZE / 4..size).step_by(READ as usize) {
            let read = user.read_at(file, handle, at, READ).await.expect("read");
            assert!(read.iter().all(|&byte| byte == b'B'), "{does:?} {flags:?}: stale at {at}");
        }
        user.close(file, handle).await.expect("closed");
        tokio::time::sleep(2 * DELAY).await;
        let counts = store.state().counts.clone();
        assert_eq!(counts["open"], counts["close"], "{does:?} {flags:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_written_by_a_handle_of_a_replaced_file_stays_with_that_file() {
    let store = Store::new();
    put(&store, "/home/f", vec![b'A'; 100]);
    let user = connected(&store).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let handle = user.open(file, OpenFlags::READ_WRITE).await.expect("opened");
    Does::Replaces.to(&store, "/home/f", b'B');
    user.size(file, None).await.expect("seen");
    assert_eq!(user.read_at(file, handle, 0, 1).await.expect("read"), &b"B"[..]);
    user.write_at(file, handle, 0, b"C").await.expect("written");
    assert_eq!(store.content("/home/f"), Some(vec![b'B'; 101]));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_others_removed_is_read_on() {
    let store = Store::new();
    put(&store, "/home/f", vec![b'A'; 100]);
    let user = connected(&store).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let handle = user.open(file, OpenFlags::empty()).await.expect("opened");
    assert_eq!(user.read_at(file, handle, 0, 1).await.expect("read"), &b"A"[..]);
    store.state().files.remove(&b"/home/f"[..]);
    assert_eq!(user.size(file, Some(handle)).await, Ok(100));
    assert_eq!(user.read_at(file, handle, 50, 1).await.expect("read"), &b"A"[..]);
}

/// Changes of ours to `f`, after each of which it has this size.
const OURS: [&str; 5] = ["append", "truncate", "copy", "empty", "behind"];

/// Makes a change of ours in the directory `dir`.
async fn change(user: &User, how: &str, dir: Node, file: Node) -> u64 {
    let flags = if how == "empty" { OpenFlags::READ_WRITE | OpenFlags::TRUNC } else { OpenFlags::READ_WRITE };
    let handle = match how {
        "truncate" => None,
        _ => Some(user.open(file, flags).await.expect("opened")),
    };
    match (how, handle) {
        ("append", Some(handle)) => drop(user.write_at(file, handle, 4, b"more").await.expect("written")),
        ("copy", Some(handle)) => {
            let from = user.lookup(dir, "from").await.expect("found").node;
            let source = user.open(from, OpenFlags::empty()).await.expect("opened");
            assert_eq!(user.copy((from, source), (file, handle), 9).await, Ok(9));
            user.close(from, source).await.expect("closed");
        }
        ("behind", Some(_)) => drop(user.create_async(dir, "new").await.expect("made")),
        ("truncate", _) => user.truncate(file, 2).await.expect("truncated"),
        _ => {}
    }
    if let Some(handle) = handle {
        user.close(file, handle).await.expect("closed");
    }
    match how {
        "append" => 8,
        "copy" => 9,
        "truncate" => 2,
        "empty" => 0,
        _ => 4,
    }
}

/// A listing that was asked for ahead, and one that is open, show nothing older than a change of ours.
#[tokio::test(start_paused = true)]
async fn what_we_change_is_not_hidden_by_a_listing_asked_for_before() {
    for how in OURS {
        let store = Store::new();
        for dir in ["d1", "d2"] {
            store.state().files.insert(format!("/home/{dir}").into_bytes(), File::Dir);
            put(&store, &format!("/home/{dir}/f"), b"old\n".to_vec());
            put(&store, &format!("/home/{dir}/from"), vec![7; 9]);
        }
        let sftp = Line::new(&store, DELAY).connect(&[]).await.expect("connected");
        let user = User::with_cache(sftp, &[]);
        let dirs = user.list(Node::ROOT).await.expect("listed");
        let node = |name: &[u8]| {
            dirs.iter().find(|dir| &dir.name[..] == name).map(|dir| dir.entry.node).expect("a directory")
        };
        // This has the other one listed ahead.
        user.list(node(b"d1")).await.expect("listed");
        tokio::time::sleep(100 * DELAY).await;
        let dir = node(b"d2");
        let file = user.lookup(dir, "f").await.expect("found").node;
        let open = user.open_dir(dir).await.expect("opened");
        let size = change(&user, how, dir, file).await;
        for listed in
            [user.list(dir).await.expect("listed"), user.list_opened(dir, open).await.expect("listed")]
        {
            let entry = listed.iter().find(|entry| &entry.name[..] == b"f").expect("f is there");
            let told = entry.entry.node != Node::default();
            assert!(!told || entry.entry.attr.size == size, "{how}: {} bytes", entry.entry.attr.size);
        }
        assert_eq!(user.size(file, None).await, Ok(size), "{how}");
    }
}

/// As proftpd's: what one handle makes longer stays short for others that are open.
#[tokio::test(start_paused = true)]
async fn what_was_written_by_another_handle_is_read_from_a_server_that_has_not_looked() {
    let store = Store::new();
    store.state().forgetful = true;
    put(&store, "/home/f", vec![b'A'; 50_000]);
    let user = connected(&store).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let reader = user.open(file, OpenFlags::empty()).await.expect("opened");
    let writer = user.open(file, OpenFlags::WRITE_ONLY).await.expect("opened");
    assert_eq!(user.read_at(file, reader, 0, 100).await.expect("read").len(), 100);
    user.write_at(file, writer, 150_000, &[b'B'; 1000]).await.expect("written");
    let read = user.read_at(file, reader, 100_000, 60_000).await.expect("read");
    assert_eq!(read.len(), 51_000);
    assert!(read[..50_000].iter().all(|&byte| byte == 0) && read[50_000..].iter().all(|&byte| byte == b'B'));
    user.truncate(file, 120_000).await.expect("truncated");
    assert_eq!(user.read_at(file, reader, 100_000, 60_000).await.expect("read").len(), 20_000);
}
