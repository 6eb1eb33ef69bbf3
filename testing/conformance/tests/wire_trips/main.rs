// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many round trips things take. Time is simulated, so that it counts them exactly.

mod far_away;
mod leases;

use bytes::Bytes;
use far_away::{Site, TRIP, User};
use outrigger_core::ops::{GetAttr, OpenFlags, SetAttr};
use outrigger_core::{Node, SetAttrs, SetTime, Time};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// What a kernel reads and writes at once, in bytes.
const PIECE: u32 = 128 << 10;
/// The length of a large file.
const LARGE: u64 = 64 << 20;

/// How many round trips have passed.
fn trips(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() / TRIP.as_secs_f64()
}

fn content(at: u64) -> Bytes {
    (at..at + u64::from(PIECE)).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// 4000 files in 211 directories: ten in the root, twenty in each of these.
fn tree(root: &Path) -> usize {
    let mut dirs = vec![root.to_owned()];
    for upper in 0..10 {
        let upper = root.join(format!("d{upper}"));
        dirs.push(upper.clone());
        dirs.extend((0..20).map(|lower| upper.join(format!("e{lower}"))));
    }
    dirs.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    for file in 0..4000 {
        fs::write(dirs[file % dirs.len()].join(format!("file{file:04}")), [b'x'; 100]).unwrap();
    }
    4000 + 210
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_walked_in_one_round_trip_for_each_level() {
    let site = Site::new();
    let names = tree(site.path());
    let user = site.user(&[]).await;
    let begin = Instant::now();
    assert_eq!(user.list_all(Node::ROOT).await, Ok(names));
    assert!(trips(begin) <= 3.01, "{} round trips for three levels", trips(begin));
}

#[tokio::test(start_paused = true)]
async fn without_looking_ahead_each_directory_takes_its_time() {
    let site = Site::new();
    tree(site.path());
    let user = site.user(&[("ahead", "0")]).await;
    let begin = Instant::now();
    user.list_all(Node::ROOT).await.unwrap();
    assert!(trips(begin) >= 210.0, "the test above would hold without any effort");
}

/// A file is created, and everything else is done before close(2) returns; or all of that is done behind.
#[tokio::test(start_paused = true)]
async fn files_are_unpacked_in_two_round_trips_each_or_in_few_for_all() {
    for (write, most) in [("close", 2.0), ("behind", 0.2)] {
        let site = Site::new();
        let user = site.user(&[("write", write)]).await;
        let begin = Instant::now();
        let dir = user.mkdir(Node::ROOT, "dir").await.unwrap().node;
        for number in 0..100 {
            user.unpack(dir, &format!("f{number}"), &[7; 4096]).await.unwrap();
        }
        user.control.as_ref().unwrap().written().await;
        assert!(trips(begin) <= most * 100.0 + 2.01, "write={write}: {}", trips(begin));
        for number in 0..100 {
            let file = site.path().join(format!("dir/f{number}"));
            assert_eq!(fs::read(&file).unwrap(), [7; 4096]);
            assert_eq!(far_away::mode_and_time(&file), far_away::UNPACKED, "set after what was written");
        }
    }
}

/// Nothing waits for an answer, and all is done in the order in which it was asked.
#[tokio::test(start_paused = true)]
async fn what_is_set_by_a_handle_is_set_after_what_was_written_and_before_what_is() {
    let site = Site::new();
    let user = site.direct().await;
    let made = user.create(Node::ROOT, "f", OpenFlags::WRITE_ONLY).await.unwrap();
    let (node, handle) = (made.entry.node, Some(made.opened.handle));
    let cut = |size| {
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        user.ask(SetAttr { node, handle, attrs })
    };
    let mtime = Some(SetTime::To(Time::new(77, 0)));
    let set = user.ask(SetAttr { node, handle, attrs: SetAttrs { mtime, ..SetAttrs::default() } });
    let write = |at: u64| user.write_at(node, made.opened.handle, at, content(at));
    let begin = Instant::now();
    // They are polled in this order.
    let (first, shorter, second, longer, set) =
        tokio::join!(write(0), cut(10), write(u64::from(PIECE)), cut(1 << 20), set);
    first.and(second).unwrap();
    assert_eq!((shorter.unwrap().attr.size, longer.unwrap().attr.size), (10, 1 << 20));
    assert_eq!(set.unwrap().attr.mtime, Time::new(77, 0));
    assert!(trips(begin) <= 4.01, "{} round trips", trips(begin));
    let attr = user.ask(GetAttr { node, handle }).await.unwrap().attr;
    assert_eq!((attr.size, attr.mtime), (1 << 20, Time::new(77, 0)));
    let written = fs::read(site.path().join("f")).unwrap();
    assert_eq!(written[..10], content(0)[..10]);
    assert!(written[10..PIECE as usize].iter().all(|&byte| byte == 0), "what was cut off does not come back");
    assert_eq!(written[PIECE as usize..2 * PIECE as usize], content(u64::from(PIECE)));
}

/// So little that the line is what takes the time: 64 MiB are many windows of any protocol.
#[tokio::test(start_paused = true)]
async fn large_files_are_read_and_written_in_few_round_trips() {
    let site = Site::new();
    let user = site.user(&[("write", "close")]).await;
    let begin = Instant::now();
    write_large(&user).await;
    assert!(trips(begin) <= 20.0, "{} round trips to write", trips(begin));
    let written = fs::read(site.path().join("large")).unwrap();
    assert_eq!(written.len() as u64, LARGE);
    let whole = written.chunks(PIECE as usize).zip((0..).step_by(PIECE as usize));
    assert!(whole.into_iter().all(|(piece, at)| piece == content(at)));
    let user = site.user(&[]).await;
    let begin = Instant::now();
    read_large(&user).await;
    assert!(trips(begin) <= 20.0, "{} round trips to read", trips(begin));
}

async fn write_large(user: &User) {
    let made = user.create(Node::ROOT, "large", OpenFlags::WRITE_ONLY).await.unwrap();
    let (node, handle) = (made.entry.node, made.opened.handle);
    for at in (0..LARGE).step_by(PIECE as usize) {
        user.write_at(node, handle, at, content(at)).await.unwrap();
    }
    user.close(node, handle, OpenFlags::WRITE_ONLY).await.unwrap();
}

async fn read_large(user: &User) {
    let node = user.lookup(Node::ROOT, "large").await.unwrap().node;
    let handle = user.open(node, OpenFlags::empty()).await.unwrap();
    for at in (0..LARGE).step_by(PIECE as usize) {
        assert!(user.read_at(node, handle, at, PIECE).await.unwrap() == content(at), "at {at}");
    }
    user.close(node, handle, OpenFlags::empty()).await.unwrap();
}

/// At 10 Mbit/s a listing does not wait for much more than what is on its way already.
#[tokio::test(start_paused = true)]
async fn a_slow_line_is_full_and_quick_for_what_is_small() {
    const SIZE: u64 = 12 << 20;
    let (rate, mut site) = (1.25e6, Site::new());
    site.rate = Some(rate);
    let whole: Vec<u8> = (0..SIZE).step_by(PIECE as usize).flat_map(content).collect();
    fs::write(site.path().join("f"), whole).unwrap();
    fs::create_dir(site.path().join("dir")).unwrap();
    let user = site.user(&[("ahead", "0")]).await;
    let node = user.lookup(Node::ROOT, "f").await.unwrap().node;
    let other = user.clone();
    let listing = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(111)).await;
            let begin = Instant::now();
            let dir = other.lookup(Node::ROOT, "dir").await.unwrap().node;
            other.list(dir).await.unwrap();
            longest = longest.max(begin.elapsed());
        }
        longest
    });
    let handle = user.open(node, OpenFlags::empty()).await.unwrap();
    let begin = Instant::now();
    for at in (0..SIZE).step_by(PIECE as usize) {
        assert!(user.read_at(node, handle, at, PIECE).await.unwrap() == content(at), "at {at}");
    }
    let reached = SIZE as f64 / begin.elapsed().as_secs_f64();
    assert!(reached > 0.9 * rate, "{reached:.0} of {rate} bytes a second");
    let longest = listing.await.unwrap();
    assert!(longest <= 3 * TRIP + Duration::from_millis(120), "{longest:?} for a lookup and a listing");
}
