// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that make names in a directory which is theirs for a while, and others that ask about it.

use super::trips;
use crate::far_away::{self, Line, Site, TRIP, User, name};
use outrigger_core::ops::{FSync, GetAttr, OpenFlags, RmDir, Unlink};
use outrigger_core::reply::OpenHow;
use outrigger_core::{Errno, HeapKeep, Node, OpCode, OpSet};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the door waits for a lease that is to be given back.
const RECALL: Duration = Duration::from_secs(3);
/// A client asks again for a lease that it gave back for others after a pause of ten seconds.
const AFTER_PAUSE: Duration = Duration::from_secs(11);
const EXCLUSIVE: OpenFlags = OpenFlags::WRITE_ONLY.union(OpenFlags::EXCL);

/// A directory that was made by a client, which has begun to make files there and goes on without waiting.
async fn leased(site: &Site) -> (User, Node) {
    let user = site.user(&[("write", "behind")]).await;
    let dir = user.mkdir(Node::ROOT, "dir").await.unwrap().node;
    user.unpack(dir, "first", b"1").await.unwrap();
    user.control.as_ref().unwrap().written().await;
    (user, dir)
}

/// Makes some more, and looks that they have not arrived yet.
async fn unpack_more(site: &Site, user: &User, dir: Node) -> Vec<String> {
    let begin = Instant::now();
    let names: Vec<String> = (0..8).map(|number| format!("f{number}")).collect();
    for name in &names {
        user.unpack(dir, name, b"2").await.unwrap();
    }
    assert!(trips(begin) < 0.01, "nothing was waited for");
    assert_eq!(fs::read_dir(site.path().join("dir")).unwrap().count(), 1, "none of them is there yet");
    names
}

#[tokio::test(start_paused = true)]
async fn an_archive_is_unpacked_in_a_fifth_of_a_round_trip_for_each_file() {
    let site = Site::new();
    let user = site.user(&[("write", "behind")]).await;
    let begin = Instant::now();
    for number in 0..25 {
        let dir = user.mkdir(Node::ROOT, &format!("d{number}")).await.unwrap().node;
        for file in 0..20 {
            user.unpack(dir, &format!("f{file}"), &[7; 4096]).await.unwrap();
        }
    }
    user.control.as_ref().unwrap().end().await;
    assert!(trips(begin) <= 0.2 * 500.0, "{} round trips", trips(begin));
    assert!(user.control.as_ref().unwrap().lost().is_empty());
    for file in (0..500).map(|file| site.path().join(format!("d{}/f{}", file / 20, file % 20))) {
        assert_eq!(fs::read(&file).unwrap(), [7; 4096]);
        assert_eq!(far_away::mode_and_time(&file), far_away::UNPACKED);
    }
}

#[tokio::test(start_paused = true)]
async fn the_number_of_a_file_stays_what_was_answered() {
    let site = Site::new();
    let (user, dir) = leased(&site).await;
    let made = user.create(dir, "new", EXCLUSIVE).await.unwrap();
    assert!(!site.path().join("dir/new").exists());
    user.control.as_ref().unwrap().written().await;
    let (node, handle) = (made.entry.node, made.opened.handle);
    let attr = user.ask(GetAttr { node, handle: Some(handle) }).await.unwrap().attr;
    let on_host = std::os::unix::fs::MetadataExt::ino(&fs::metadata(site.path().join("dir/new")).unwrap());
    assert_eq!((made.entry.attr.ino, attr.ino), (on_host, on_host));
    assert_eq!((attr.nlink, attr.mtime), (1, made.entry.attr.mtime));
    let other = site.direct().await;
    let listed = other.list(other.lookup(Node::ROOT, "dir").await.unwrap().node).await.unwrap();
    assert_eq!(listed.len(), 2, "files that wait for a name are not seen");
}

#[tokio::test(start_paused = true)]
async fn others_see_all_that_was_closed_before_they_asked() {
    for cached in [true, false] {
        let site = Site::new();
        let (user, dir) = leased(&site).await;
        let other = if cached { site.user(&[]).await } else { site.direct().await };
        let theirs = other.lookup(Node::ROOT, "dir").await.unwrap().node;
        assert_eq!(other.list(theirs).await.unwrap().len(), 1);
        // The lease that was given back for this is asked for again when some time has passed.
        tokio::time::sleep(AFTER_PAUSE).await;
        user.unpack(dir, "second", b"1").await.unwrap();
        user.unpack(dir, "third", b"1").await.unwrap();
        user.control.as_ref().unwrap().written().await;
        let before = other.list(theirs).await.unwrap().len();
        assert_eq!(before, 3);
    }
    for looks_up in [true, false] {
        let site = Site::new();
        let (user, dir) = leased(&site).await;
        let other = site.direct().await;
        let names = unpack_more(&site, &user, dir).await;
        let begin = Instant::now();
        let theirs = other.lookup(Node::ROOT, "dir").await.unwrap().node;
        if looks_up {
            for name in &names {
                assert!(other.lookup(theirs, name).await.is_ok(), "{name}");
            }
        } else {
            assert_eq!(other.list(theirs).await.unwrap().len(), names.len() + 1);
        }
        assert!(begin.elapsed() < RECALL / 10, "it is given back at once: {:?}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_exclusive_creations_one_fails() {
    let site = Site::new();
    let (user, dir) = leased(&site).await;
    let other = site.direct().await;
    let theirs = other.lookup(Node::ROOT, "dir").await.unwrap().node;
    tokio::time::sleep(AFTER_PAUSE).await;
    user.unpack(dir, "a", b"1").await.unwrap();
    user.unpack(dir, "b", b"1").await.unwrap();
    user.control.as_ref().unwrap().written().await;
    let begin = Instant::now();
    user.unpack(dir, "lock", b"mine").await.unwrap();
    assert!(trips(begin) < 0.01, "the lease is held");
    assert_eq!(
        other.create(theirs, "lock", EXCLUSIVE).await.map_err(|error| error.errno),
        Err(Errno::EEXIST)
    );
    other.create(theirs, "other", EXCLUSIVE).await.unwrap();
    let refused = user.create(dir, "other", EXCLUSIVE).await.map_err(|error| error.errno);
    assert_eq!(refused.map(drop), Err(Errno::EEXIST));
    user.control.as_ref().unwrap().written().await;
    assert_eq!(fs::read(site.path().join("dir/lock")).unwrap(), b"mine");
    assert!(user.control.as_ref().unwrap().lost().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_hangs_delays_others_once_and_overwrites_nothing_later() {
    let site = Site::new();
    let (user, dir) = leased(&site).await;
    let other = site.direct().await;
    user.line.send_replace(Line::Hangs);
    let begin = Instant::now();
    let theirs = other.lookup(Node::ROOT, "dir").await.unwrap().node;
    let made = other.create(theirs, "x", EXCLUSIVE).await.unwrap();
    other.write_at(made.entry.node, made.opened.handle, 0, "theirs".into()).await.unwrap();
    let passed = begin.elapsed();
    assert!((RECALL..RECALL + 5 * TRIP).contains(&passed), "{passed:?}");
    user.unpack(dir, "x", b"mine").await.unwrap();
    user.unpack(dir, "y", b"mine").await.unwrap();
    user.line.send_replace(Line::Works);
    let control = user.control.as_ref().unwrap();
    control.end().await;
    let lost = control.lost();
    let names: Vec<_> =
        lost.iter().filter_map(|lost| lost.unmade.as_ref()).map(|lost| &lost.name[..]).collect();
    assert_eq!((names, lost[0].error.errno), (vec![&b"x"[..]], Errno::EEXIST));
    assert_eq!(fs::read(site.path().join("dir/x")).unwrap(), b"theirs");
    assert_eq!(fs::read(site.path().join("dir/y")).unwrap(), b"mine");
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_with_its_connection() {
    let site = Site::new();
    let (user, _) = leased(&site).await;
    let other = site.direct().await;
    user.line.send_replace(Line::IsCut);
    let begin = Instant::now();
    let theirs = other.lookup(Node::ROOT, "dir").await.unwrap().node;
    assert_eq!(other.list(theirs).await.unwrap().len(), 1);
    assert!(begin.elapsed() < RECALL / 10, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_program_of_the_host_keeps_its_file_and_the_loss_is_told() {
    let site = Site::new();
    let (user, dir) = leased(&site).await;
    for name in ["x", "y"] {
        fs::write(site.path().join("dir").join(name), "of the host").unwrap();
    }
    let made = user.create(dir, "x", EXCLUSIVE).await.unwrap();
    let (node, handle) = (made.entry.node, made.opened.handle);
    user.write_at(node, handle, 0, "mine".into()).await.unwrap();
    let synced = user.ask(FSync { node, handle, data_only: false }).await.map_err(|error| error.errno);
    assert_eq!(synced, Err(Errno::EEXIST));
    user.unpack(dir, "y", b"mine").await.unwrap();
    let control = user.control.as_ref().unwrap();
    control.end().await;
    let lost = control.lost();
    assert!(lost.iter().any(|lost| lost.unmade.as_ref().is_some_and(|lost| &lost.name[..] == b"y")));
    for name in ["x", "y"] {
        assert_eq!(fs::read(site.path().join("dir").join(name)).unwrap(), b"of the host");
    }
}

/// So it is with a server that grants no leases, as one of an older release.
#[tokio::test(start_paused = true)]
async fn without_files_that_have_no_name_each_creation_is_waited_for() {
    let site = Site::with(OpSet::all().without(OpSet::of(&[OpCode::TmpFile])));
    let user = site.user(&[("write", "behind")]).await;
    let dir = user.mkdir(Node::ROOT, "dir").await.unwrap().node;
    let begin = Instant::now();
    for number in 0..20 {
        let name = format!("f{number}");
        user.create(dir, &name, EXCLUSIVE).await.unwrap();
        assert!(site.path().join("dir").join(&name).exists());
    }
    assert!((20.0..20.1).contains(&trips(begin)), "{} round trips", trips(begin));
}

/// Without `write=behind` a creation is asked of the other side, whatever is leased.
#[tokio::test(start_paused = true)]
async fn only_who_chose_it_is_answered_before_a_file_is_made() {
    let site = Site::new();
    let user = site.user(&[("write", "close")]).await;
    let dir = user.mkdir(Node::ROOT, "dir").await.unwrap().node;
    for number in 0..20 {
        let name = format!("f{number}");
        user.create(dir, &name, EXCLUSIVE).await.unwrap();
        assert!(site.path().join("dir").join(&name).exists());
    }
}

/// What a process has answered that died before it could send it, the next one does; also where it was sent.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_answered_is_made_by_the_next_process() {
    for arrives in [true, false] {
        let (site, keep) = (Site::new(), Arc::new(HeapKeep::default()));
        let user = site.kept(&keep).await;
        let dir = user.mkdir(Node::ROOT, "dir").await.unwrap().node;
        let flags = EXCLUSIVE | OpenFlags::ASYNC_CREATE;
        user.create(dir, "first", flags).await.unwrap();
        tokio::time::sleep(2 * TRIP).await;
        user.line.send_replace(if arrives { Line::Works } else { Line::Hangs });
        let made = user.create(dir, "f", flags).await.unwrap();
        assert!(made.opened.how.contains(OpenHow::PENDING_CREATE));
        let (node, handle) = (made.entry.node, made.opened.handle);
        if arrives {
            tokio::time::sleep(2 * TRIP).await;
        }
        user.line.send_replace(Line::Hangs);
        assert_eq!(site.path().join("dir/f").exists(), arrives);
        // The process is dead, and gives nothing back.
        std::mem::forget(user);
        let next = site.kept(&keep).await;
        next.write_at(node, handle, 0, "content".into()).await.unwrap();
        assert_eq!(fs::read(site.path().join("dir/f")).unwrap(), b"content", "arrives: {arrives}");
        next.ask(GetAttr { node, handle: Some(handle) }).await.unwrap();
    }
}

/// A directory that others may take for empty is not empty for who made something there.
#[tokio::test(start_paused = true)]
async fn a_directory_in_which_something_was_made_is_not_removed() {
    let site = Site::new();
    let (user, dir) = leased(&site).await;
    let other = site.direct().await;
    let first = name("first");
    user.ask(Unlink { dir, name: first }).await.unwrap();
    user.unpack(dir, "f", b"1").await.unwrap();
    assert_eq!(fs::read_dir(site.path().join("dir")).unwrap().count(), 0);
    let removed = other.ask(RmDir { dir: Node::ROOT, name: name("dir") }).await;
    assert_eq!(removed.map_err(|error| error.errno), Err(Errno::ENOTEMPTY));
    user.control.as_ref().unwrap().end().await;
    assert_eq!(fs::read(site.path().join("dir/f")).unwrap(), b"1");
}
