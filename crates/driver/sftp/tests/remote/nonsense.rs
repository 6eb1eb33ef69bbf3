// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that answer nonsense, lack extensions, or refuse.

use crate::line::{Fate, Line};
use crate::server::{File, Store};
use crate::user::User;
use bytes::Bytes;
use outrigger_core::ops::{OpenFlags, ReadDirPlus};
use outrigger_core::{Errno, FileKind, Node};
use outrigger_proto_sftp::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DELAY: Duration = Duration::from_millis(5);

async fn connected(store: &Arc<Store>, options: &[(&str, &str)]) -> (Line, User) {
    let line = Line::new(store, DELAY);
    let user = User::new(line.connect(options).await.expect("connected"));
    (line, user)
}

/// Uses everything, whatever comes of it.
async fn use_everything(user: &User) {
    let _ = user.list_all(Node::ROOT).await;
    let _ = user.walk(&["dir", "file"]).await;
    if let Ok((file, handle)) = user.create(Node::ROOT, "new").await {
        let _ = user.write_at(file, handle, 0, &[1; 100_000]).await;
        let _ = user.read_at(file, handle, 0, 200_000).await;
        let _ = user.fsync(file, handle).await;
        let _ = user.size(file, Some(handle)).await;
        let _ = user.unlink(Node::ROOT, "new").await;
        let _ = user.close(file, handle).await;
    }
    if let Ok(file) = user.lookup(Node::ROOT, "file").await {
        let _ = user.read_file(file.node, 1000).await;
        let _ = user.truncate(file.node, 10).await;
        let _ = user.rename(Node::ROOT, "file", Node::ROOT, "moved").await;
    }
    let _ = user.mkdir(Node::ROOT, "made").await;
    let _ = user.rmdir(Node::ROOT, "made").await;
}

fn store_with_files() -> Arc<Store> {
    let store = Store::new();
    store.state().files.insert(b"/home/dir".to_vec(), File::Dir);
    store.state().files.insert(b"/home/file".to_vec(), File::new(vec![5; 50_000]));
    store
}

fn odd_reply(random: &mut fastrand::Rng) -> Reply {
    let bytes = |random: &mut fastrand::Rng| {
        Bytes::from((0..random.usize(0..600)).map(|_| random.u8(..)).collect::<Vec<_>>())
    };
    let attrs = |random: &mut fastrand::Rng| Attrs {
        size: random.bool().then(|| random.u64(..)),
        permissions: random.bool().then(|| random.u32(..)),
        owner: None,
        times: random.bool().then(|| Times { atime: random.u32(..), mtime: random.u32(..) }),
    };
    match random.u8(0..6) {
        0 => Reply::status(StatusCode::of(random.u32(0..12))),
        1 => Reply::Handle(bytes(random)),
        2 => Reply::Data(bytes(random)),
        3 => Reply::Names(
            (0..random.usize(0..5))
                .map(|_| Named { name: bytes(random), line: bytes(random), attrs: attrs(random) })
                .collect(),
        ),
        4 => Reply::Attrs(attrs(random)),
        _ => Reply::Extended(bytes(random)),
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_a_server_answers_nothing_panics_and_no_request_waits_for_ever() {
    for seed in 0..300 {
        let store = store_with_files();
        let (line, user) = connected(&store, &[]).await;
        let mut random = fastrand::Rng::with_seed(seed);
        line.decide(move |_, request| {
            let packet = request.encode(0);
            match random.u8(0..8) {
                0 => Fate::Instead(odd_reply(&mut random)),
                1 => {
                    let mut bytes = odd_reply(&mut random).encode(random.u32(0..50)).to_vec();
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                    Fate::Misunderstood(bytes)
                }
                2 => Fate::Misunderstood(packet.to_vec()),
                3 => Fate::Ignored,
                _ => Fate::Answered,
            }
        });
        let limit = Duration::from_secs(100_000);
        assert!(tokio::time::timeout(limit, use_everything(&user)).await.is_ok(), "seed {seed}");
        // And afterwards everything is well again.
        line.decide(|_, _| Fate::Answered);
        tokio::time::sleep(Duration::from_secs(200)).await;
        let _ = user.lookup(Node::ROOT, "dir").await;
        assert_eq!(
            user.lookup(Node::ROOT, "dir").await.map(|dir| dir.attr.is_dir()),
            Ok(true),
            "seed {seed}"
        );
    }
}

/// Answers requests of one kind with something else.
fn instead(kind: &'static str, reply: Reply) -> impl FnMut(usize, &Request<'_>) -> Fate + Send + 'static {
    move |_, request| match crate::server::name(request) == kind {
        true => Fate::Instead(reply.clone()),
        false => Fate::Answered,
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_sets_attributes_by_path_only_is_asked_so_after_what_was_written() {
    let store = store_with_files();
    let (line, user) = connected(&store, &[]).await;
    let (file, handle) = user.create(Node::ROOT, "new").await.expect("made");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    line.decide(move |_, request| {
        seen.lock().expect("a lock").push(format!("{request:?}"));
        match request {
            Request::FSetStat { .. } => Fate::Instead(Reply::status(StatusCode::OpUnsupported)),
            _ => Fate::Answered,
        }
    });
    let write = user.write_at(file, handle, 0, b"content");
    let (written, set) = tokio::join!(write, user.set_mtime(file, handle, 77));
    assert_eq!((written, set.map(|attr| attr.size)), (Ok(7), Ok(7)));
    let asked = asked.lock().expect("a lock");
    assert!(asked.iter().any(|request| request.starts_with("SetStat")), "{asked:?}");
}

/// As of a directory that may be read and not searched. Without a number, readdir(3) passes them over.
#[tokio::test(start_paused = true)]
async fn names_whose_attributes_are_refused_are_listed_with_a_number() {
    let store = store_with_files();
    store.state().bare = true;
    let (line, user) = connected(&store, &[]).await;
    line.decide(instead("lstat", Reply::status(StatusCode::PermissionDenied)));
    let listed = user.list(Node::ROOT).await.expect("names");
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|name| name.entry.node == Node(0) && name.entry.attr.ino != 0), "{listed:?}");
}

#[tokio::test(start_paused = true)]
async fn answers_that_do_not_fit_are_errors() {
    let long = Reply::Data(Bytes::from(vec![1; 5000]));
    let empty = Reply::Names(vec![]);
    let huge = Reply::Handle(Bytes::from(vec![1; 300]));
    for (kind, reply) in [("read", long), ("read", empty.clone()), ("open", huge), ("open", empty)] {
        let store = store_with_files();
        let (line, user) = connected(&store, &[]).await;
        let file = user.lookup(Node::ROOT, "file").await.expect("found").node;
        line.decide(instead(kind, reply));
        let error = user.read_file(file, 1000).await.expect_err("nonsense");
        assert!(matches!(error.errno, Errno::EPROTO | Errno::EIO), "{kind}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_are_none_are_not_listed() {
    let store = store_with_files();
    let named = |name: &'static [u8]| Named {
        name: Bytes::from_static(name),
        line: Bytes::new(),
        attrs: Attrs { permissions: Some(0o100_644), ..Attrs::NONE },
    };
    let long: &'static [u8] = Vec::leak(vec![b'x'; 256]);
    let names = [&b"../escape"[..], b"a/b", b"", b"nul\0", b"..", b".", long, b"good"].map(named).to_vec();
    let (line, user) = connected(&store, &[]).await;
    let mut listed = false;
    line.decide(move |_, request| match request {
        Request::ReadDir { .. } if !std::mem::replace(&mut listed, true) => {
            Fate::Instead(Reply::Names(names.clone()))
        }
        Request::ReadDir { .. } => Fate::Instead(Reply::status(StatusCode::Eof)),
        _ => Fate::Answered,
    });
    let handle = user.open_dir(Node::ROOT).await.expect("opened");
    let part =
        user.ask(ReadDirPlus { node: Node::ROOT, handle, cookie: 0, size: 4096 }).await.expect("listed");
    let shown: Vec<_> = part.entries.iter().map(|entry| entry.name.to_vec()).collect();
    assert_eq!((shown, part.eof), (vec![b"good".to_vec()], false));
    let cookie = part.entries[0].cookie;
    let error = user
        .ask(ReadDirPlus { node: Node::ROOT, handle, cookie, size: 4096 })
        .await
        .expect_err("it is not all");
    assert!(error.errno == Errno::EIO && error.to_string().contains("../escape"), "{error}");
}

/// What is no name counts as names do, or such a listing would have no bound.
#[tokio::test(start_paused = true)]
async fn a_listing_of_what_is_no_name_ends_too() {
    let store = store_with_files();
    let names = vec![Named { name: Bytes::from_static(b"a/b"), line: Bytes::new(), attrs: Attrs::NONE }; 100];
    let (line, user) = connected(&store, &[("max_listing", "100k")]).await;
    line.decide(move |_, request| match request {
        Request::ReadDir { .. } => Fate::Instead(Reply::Names(names.clone())),
        _ => Fate::Answered,
    });
    let error = user.list(Node::ROOT).await.expect_err("it has no end");
    assert_eq!(error.errno, Errno::EFBIG, "{error}");
}

/// Programs that insist on fsync(2) work there if the user says so.
#[tokio::test(start_paused = true)]
async fn fsync_without_the_extension_succeeds_if_that_is_permitted() {
    for (options, expected) in [(&[][..], Err(Errno::EINVAL)), (&[("no_fsync", "")], Ok(()))] {
        let store = store_with_files();
        store.state().extensions = Extensions::empty();
        let (_, user) = connected(&store, options).await;
        let (file, handle) = user.create(Node::ROOT, "new").await.expect("made");
        user.write_at(file, handle, 0, b"content").await.expect("written");
        assert_eq!(user.fsync(file, handle).await.map_err(|error| error.errno), expected);
        assert_eq!(store.content("/home/new"), Some(b"content".to_vec()));
        // The same goes for each write to a file that is opened for that.
        let handle = user.open(file, OpenFlags::WRITE_ONLY | OpenFlags::DSYNC).await.expect("opened");
        let written = user.write_at(file, handle, 0, b"CONTENT").await.map(drop);
        assert_eq!(written.map_err(|error| error.errno), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn servers_without_extensions_do_what_they_can() {
    for missing in Extensions::all().iter().chain([Extensions::all()]) {
        let store = store_with_files();
        store.state().extensions = Extensions::all() - missing;
        let (_, user) = connected(&store, &[]).await;
        let file = user.write_file(Node::ROOT, "new", &[3; 100_000]).await.expect("written");
        let handle = user.open(file, OpenFlags::READ_WRITE).await.expect("opened");
        let synced = user.fsync(file, handle).await.map_err(|error| error.errno);
        let honest = if missing.contains(Extensions::FSYNC) { Err(Errno::EINVAL) } else { Ok(()) };
        assert_eq!(synced, honest, "{missing:?}");
        assert_eq!(
            user.read_at(file, handle, 0, 200_000).await.map(|data| data.len()),
            Ok(100_000),
            "{missing:?}"
        );
        user.close(file, handle).await.expect("closed");
        user.rename(Node::ROOT, "new", Node::ROOT, "file").await.expect("replaced");
        assert_eq!(user.size(file, None).await, Ok(100_000), "{missing:?}");
        assert_eq!(user.list(Node::ROOT).await.map(|names| names.len()), Ok(2), "{missing:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn attributes_that_a_listing_leaves_out_are_asked_for_at_once() {
    let store = store_with_files();
    store.state().bare = true;
    let (_, user) = connected(&store, &[]).await;
    let begin = tokio::time::Instant::now();
    let names = user.list(Node::ROOT).await.expect("listed");
    assert!(begin.elapsed() <= 3 * DELAY + Duration::from_millis(1), "{:?}", begin.elapsed());
    let sizes: Vec<u64> = names.iter().map(|entry| entry.entry.attr.size).collect();
    assert_eq!(sizes, [4096, 50_000]);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_distinguished() {
    let store = store_with_files();
    let (_, user) = connected(&store, &[]).await;
    let errno = |result: outrigger_core::Result<()>| result.expect_err("refused").errno;
    assert_eq!(errno(user.mkdir(Node::ROOT, "dir").await.map(drop)), Errno::EEXIST);
    assert_eq!(errno(user.create(Node::ROOT, "file").await.map(drop)), Errno::EEXIST);
    assert_eq!(errno(user.rmdir(Node::ROOT, "file").await), Errno::ENOTDIR);
    assert_eq!(errno(user.unlink(Node::ROOT, "dir").await), Errno::EISDIR);
    assert_eq!(errno(user.unlink(Node::ROOT, "nothing").await), Errno::ENOENT);
    let dir = user.lookup(Node::ROOT, "dir").await.expect("found").node;
    user.write_file(dir, "inside", b"x").await.expect("written");
    assert_eq!(errno(user.rmdir(Node::ROOT, "dir").await), Errno::ENOTEMPTY);
    let file = user.lookup(Node::ROOT, "file").await.expect("found").node;
    let handle = user.open(file, OpenFlags::READ_WRITE).await.expect("opened");
    store.state().full = true;
    assert_eq!(errno(user.write_at(file, handle, 0, b"x").await.map(drop)), Errno::ENOSPC);
}

#[tokio::test(start_paused = true)]
async fn a_followed_link_is_one_file_however_it_is_asked_about() {
    let store = store_with_files();
    for (name, target) in
        [("to_file", "/home/file"), ("to_dir", "/home/dir"), ("up", "/home"), ("to_nothing", "/none")]
    {
        store
            .state()
            .files
            .insert(format!("/home/{name}").into_bytes(), File::Link(target.as_bytes().to_vec()));
    }
    for bare in [false, true] {
        store.state().bare = bare;
        let (_, user) = connected(&store, &[("follow_symlinks", "")]).await;
        for (name, kind, size) in [
            ("to_file", FileKind::Regular, 50_000),
            ("to_dir", FileKind::Directory, 4096),
            // It leads nowhere, and can be removed all the same.
            ("to_nothing", FileKind::Symlink, 5),
        ] {
            let found = user.lookup(Node::ROOT, name).await.expect("found");
            let walked = user.walk(&[name]).await.expect("walked").remove(0);
            let listed = user.list(Node::ROOT).await.expect("listed");
            let listed = listed.into_iter().find(|entry| &entry.name[..] == name.as_bytes()).expect("listed");
            assert_eq!((found.attr.kind(), found.attr.size), (kind, size), "{name}");
            for (way, entry) in [("walked", walked), ("listed", listed.entry)] {
                assert_eq!((entry.node, &entry.attr), (found.node, &found.attr), "{way} {name}");
            }
        }
        let file = user.lookup(Node::ROOT, "to_file").await.expect("found");
        let set = user.touch(file.node).await.expect("set");
        assert_eq!((set.kind(), set.ino), (FileKind::Regular, file.attr.ino));
    }
    let (_, user) = connected(&store, &[("follow_symlinks", "")]).await;
    user.unlink(Node::ROOT, "to_nothing").await.expect("removed");
    let made = user.symlink(Node::ROOT, "made", "/home/file").await.expect("made");
    assert_eq!(made.attr.kind(), FileKind::Symlink, "kernels insist");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_listed_ahead_where_links_that_lead_up_are_followed() {
    let store = store_with_files();
    for dir in ["/home/dir", "/home/dir/below"] {
        store.state().files.insert(dir.as_bytes().to_vec(), File::Dir);
        store.state().files.insert(format!("{dir}/up").into_bytes(), File::Link(b"/home".to_vec()));
    }
    let sftp = Line::new(&store, DELAY).connect(&[("follow_symlinks", "")]).await.expect("connected");
    let user = User::with_cache(sftp, &[]);
    user.list(Node::ROOT).await.expect("listed");
    let dir = user.lookup(Node::ROOT, "dir").await.expect("found").node;
    user.list(dir).await.expect("listed");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(store.state().counts["opendir"], 2, "those that were opened");
}

#[tokio::test(start_paused = true)]
async fn a_file_is_copied_to_the_one_that_took_its_name() {
    let store = store_with_files();
    let (_line, user) = connected(&store, &[]).await;
    let first = user.create(Node::ROOT, "name").await.expect("made");
    user.write_at(first.0, first.1, 0, b"content").await.expect("written");
    user.unlink(Node::ROOT, "name").await.expect("removed");
    for name in ["name", "other"] {
        let second = user.create(Node::ROOT, name).await.expect("made");
        assert_eq!(user.copy(first, second, 7).await, Ok(7), "{name}");
        assert_eq!(store.content(&format!("/home/{name}")).as_deref(), Some(&b"content"[..]), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_names_of_one_directory_have_a_bound() {
    let store = Store::new();
    for number in 0..3000 {
        store.state().files.insert(format!("/home/{number}").into_bytes(), File::new(Vec::new()));
    }
    let (_line, user) = connected(&store, &[("max_listing", "100k")]).await;
    let refused = user.list_all(Node::ROOT).await.expect_err("too many names");
    assert_eq!(refused.errno, Errno::EFBIG);
    assert!(refused.to_string().contains("max_listing="), "{refused}");
    let (_line, user) = connected(&store, &[("max_listing", "1m")]).await;
    assert_eq!(user.list_all(Node::ROOT).await, Ok(3000));
}

#[tokio::test(start_paused = true)]
async fn a_link_is_made_also_where_the_server_tells_of_what_it_leads_to() {
    let store = store_with_files();
    let (line, user) = connected(&store, &[]).await;
    let target = Attrs { size: Some(7), permissions: Some(0o100_644), ..Attrs::NONE };
    line.decide(instead("lstat", Reply::Attrs(target)));
    let made = user.symlink(Node::ROOT, "made", "file").await.expect("made");
    assert_eq!((made.attr.kind(), made.attr.size), (FileKind::Symlink, 4));
    assert!(matches!(store.state().files.get(&b"/home/made"[..]), Some(File::Link(_))));
}
