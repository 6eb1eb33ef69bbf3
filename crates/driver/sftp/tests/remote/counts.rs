// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many round trips and requests things take. Time is simulated, so that it counts round trips exactly.

use crate::line::Line;
use crate::server::{File, Store};
use crate::user::User;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Handle, Node};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const DELAY: Duration = Duration::from_millis(5);

/// 4000 files in 211 directories: ten in the root, twenty in each of these.
fn tree(store: &Arc<Store>) -> usize {
    let mut state = store.state();
    let mut dirs = vec![b"/home".to_vec()];
    for upper in 0..10 {
        let upper = format!("/home/d{upper}").into_bytes();
        dirs.push(upper.clone());
        dirs.extend((0..20).map(|lower| [&upper[..], format!("/e{lower}").as_bytes()].concat()));
    }
    for file in 0..4000 {
        let dir = &dirs[file % dirs.len()];
        let path = [&dir[..], format!("/file{file:04}").as_bytes()].concat();
        state.files.insert(path, File::new(vec![b'x'; 4096]));
    }
    state.files.extend(dirs.iter().map(|dir| (dir.clone(), File::Dir)));
    4000 + 210
}

/// A mount with these options of the cache.
async fn mounted(line: &Line, options: &[(&str, &str)]) -> User {
    ready(line, User::with_cache(line.connect(&[]).await.expect("connected"), options)).await
}

async fn connected(line: &Line) -> User {
    ready(line, User::new(line.connect(&[]).await.expect("connected"))).await
}

async fn ready(line: &Line, user: User) -> User {
    // What is asked about the server itself does not count.
    tokio::time::sleep(10 * DELAY).await;
    let mut state = line.store.state();
    state.counts.clear();
    state.requests = 0;
    drop(state);
    user
}

/// How many round trips have passed.
fn trips(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() / DELAY.as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_walked_in_a_few_round_trips_for_each_level() {
    let store = Store::new();
    let names = tree(&store);
    let line = Line::new(&store, DELAY);
    let user = mounted(&line, &[]).await;
    let begin = Instant::now();
    assert_eq!(user.list_all(Node::ROOT).await, Ok(names));
    let (trips, state) = (trips(begin), store.state());
    let asked = |kind| state.counts.get(kind).copied().unwrap_or(0);
    println!("{trips:.1} round trips, {} requests: {:?}", state.requests, state.counts);
    assert!(trips <= 30.0, "{trips} round trips for three levels");
    assert_eq!((asked("lstat"), asked("other")), (0, 0), "nothing is asked for single files");
    assert_eq!(asked("opendir"), 211);
    assert_eq!(asked("readdir"), 2 * 211, "one for the names, one for the end");
}

#[tokio::test(start_paused = true)]
async fn no_directory_is_listed_twice_in_one_walk() {
    let store = Store::new();
    for dir in std::iter::once("/home/d".to_owned()).chain((0..300).map(|dir| format!("/home/d/e{dir}"))) {
        store.state().files.insert(dir.into_bytes(), File::Dir);
    }
    let line = Line::new(&store, DELAY);
    let user = mounted(&line, &[]).await;
    assert_eq!(user.list_all(Node::ROOT).await, Ok(301));
    tokio::time::sleep(100 * DELAY).await;
    assert_eq!(store.state().counts["opendir"], 302);
}

/// Handles are given out again: what is asked about one must not arrive after its end.
#[tokio::test(start_paused = true)]
async fn every_name_of_many_large_directories_is_listed() {
    const DIRS: usize = 150;
    const FILES: usize = 1500;
    let store = Store::new();
    for dir in 0..DIRS {
        let dir = format!("/home/d{dir:03}");
        let files = (0..FILES).map(|file| (format!("{dir}/f{file:04}").into_bytes(), File::new(Vec::new())));
        let mut state = store.state();
        state.files.extend(files);
        state.files.insert(dir.into_bytes(), File::Dir);
    }
    let line = Line::new(&store, DELAY).at(1e6);
    let user = mounted(&line, &[]).await;
    assert_eq!(user.list_all(Node::ROOT).await, Ok(DIRS + DIRS * FILES));
}

#[tokio::test(start_paused = true)]
async fn without_looking_ahead_each_directory_takes_its_time() {
    let store = Store::new();
    tree(&store);
    let line = Line::new(&store, DELAY);
    let user = mounted(&line, &[("ahead", "0")]).await;
    let begin = Instant::now();
    user.list_all(Node::ROOT).await.expect("listed");
    assert!(trips(begin) >= 400.0, "the test above would hold without any effort");
}

#[tokio::test(start_paused = true)]
async fn listing_one_directory_asks_for_no_other() {
    let store = Store::new();
    tree(&store);
    let line = Line::new(&store, DELAY);
    let user = connected(&line).await;
    let begin = Instant::now();
    user.list(Node::ROOT).await.expect("listed");
    assert!(trips(begin) <= 2.1, "{}", trips(begin));
    tokio::time::sleep(100 * DELAY).await;
    assert_eq!(store.state().counts["opendir"], 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_listed_ahead_is_forgotten_when_it_changes_or_grows_old() {
    let store = Store::new();
    tree(&store);
    let line = Line::new(&store, DELAY);
    let user = mounted(&line, &[("cache", "5")]).await;
    let dirs = user.list(Node::ROOT).await.expect("listed");
    let dirs: Vec<Node> =
        dirs.iter().filter(|dir| dir.entry.attr.is_dir()).map(|dir| dir.entry.node).collect();
    user.list(dirs[0]).await.expect("listed");
    tokio::time::sleep(100 * DELAY).await;
    let before = user.list(dirs[1]).await.expect("listed").len();
    user.mkdir(dirs[2], "new").await.expect("made");
    let with_new = user.list(dirs[2]).await.expect("listed");
    assert!(with_new.iter().any(|entry| &entry.name[..] == b"new"), "made by us after it was listed ahead");
    store.state().files.insert(b"/home/d3/others".to_vec(), File::Dir);
    tokio::time::sleep(Duration::from_secs(6)).await;
    let with_others = user.list(dirs[3]).await.expect("listed");
    assert!(with_others.iter().any(|entry| &entry.name[..] == b"others"), "made by others, long ago");
    assert_eq!(user.list(dirs[1]).await.expect("listed").len(), before);
}

#[tokio::test(start_paused = true)]
async fn long_listings_that_no_program_reads_come_to_an_end() {
    let store = Store::new();
    for dir in ["a", "b"] {
        let dir = format!("/home/{dir}").into_bytes();
        let names = (0..30_000).map(|file| [&dir[..], format!("/{file:05}").as_bytes()].concat());
        let files: Vec<_> = names.map(|path| (path, File::new(Vec::new()))).collect();
        store.state().files.extend(files);
        store.state().files.insert(dir, File::Dir);
    }
    let line = Line::new(&store, DELAY);
    let user = mounted(&line, &[]).await;
    let dirs = user.list(Node::ROOT).await.expect("listed");
    // Of one only the beginning is read; the other one is listed ahead meanwhile.
    assert_eq!(user.list_some(dirs[0].entry.node).await, Ok(false));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let counts = store.state().counts.clone();
    assert_eq!((counts["opendir"], counts["close"]), (3, 3), "all were begun, and all have ended");
    for dir in dirs {
        assert_eq!(user.list(dir.entry.node).await.expect("listed").len(), 30_000);
    }
}

#[tokio::test(start_paused = true)]
async fn small_files_are_read_in_two_round_trips_and_written_in_two() {
    let store = Store::new();
    tree(&store);
    let line = Line::new(&store, DELAY);
    let user = connected(&line).await;
    let entries = user.list(Node::ROOT).await.expect("listed");
    let files: Vec<Node> =
        entries.iter().filter(|file| !file.entry.attr.is_dir()).map(|file| file.entry.node).collect();
    let begin = Instant::now();
    for &file in &files {
        assert_eq!(user.read_file(file, 8192).await.expect("read").len(), 4096);
    }
    assert!(trips(begin) <= 2.01 * files.len() as f64, "{} for {} files", trips(begin), files.len());
    let begin = Instant::now();
    for number in 0..100 {
        user.write_file(Node::ROOT, &format!("new{number}"), &[7; 4096]).await.expect("written");
    }
    assert!(trips(begin) <= 2.01 * 100.0, "{} for 100 files", trips(begin));
    tokio::time::sleep(DELAY).await;
    let state = store.state();
    assert_eq!(state.counts["open"] + state.counts["opendir"], state.counts["close"]);
    drop(state);
    assert_eq!(store.content("/home/new99"), Some(vec![7; 4096]));
}

/// What is set by the handle that wrote goes out after what was written, while that is on its way.
#[tokio::test(start_paused = true)]
async fn times_are_set_in_the_flight_of_what_was_written() {
    let store = Store::new();
    let line = Line::new(&store, DELAY);
    let user = connected(&line).await;
    for size in [3 << 20, 10] {
        let name = format!("new{size}");
        let made = user.create_for(Node::ROOT, &name, OpenFlags::WRITE_ONLY).await;
        let (file, handle) = made.expect("made");
        let begin = Instant::now();
        let content = vec![7; size];
        // In this order they are polled first.
        let write = user.write_at(file, handle, 0, &content);
        let (written, set) = tokio::join!(write, user.set_mtime(file, handle, 77));
        written.expect("written");
        assert!(size > 10 || trips(begin) <= 1.1, "{}", trips(begin));
        assert_eq!(set.expect("set").size, size as u64, "as it is after both");
        user.close(file, handle).await.expect("closed");
    }
    assert_eq!(store.state().counts["lstat"], 2, "of the new files; nothing is asked by path");
}

#[tokio::test(start_paused = true)]
async fn opening_a_file_that_can_be_read_waits_for_nothing() {
    let store = Store::new();
    store.state().files.insert(b"/home/f".to_vec(), File::new(b"content".to_vec()));
    let line = Line::new(&store, DELAY);
    let user = connected(&line).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let begin = Instant::now();
    let handle = user.open(file, OpenFlags::empty()).await.expect("opened");
    user.close(file, handle).await.expect("closed");
    assert!(trips(begin) < 0.1, "{}", trips(begin));
    tokio::time::sleep(2 * DELAY).await;
    assert_eq!(store.state().counts["close"], 1, "closed when the answer came");
}

#[tokio::test(start_paused = true)]
async fn a_path_is_walked_in_one_round_trip() {
    let store = Store::new();
    tree(&store);
    let line = Line::new(&store, DELAY);
    let user = connected(&line).await;
    let begin = Instant::now();
    assert_eq!(user.walk(&["d0", "e0", "no", "more"]).await.expect("walked").len(), 2);
    assert!(trips(begin) <= 1.1, "{}", trips(begin));
}

/// How much a kernel reads at once, in bytes.
const READ: u64 = 128 << 10;

/// Reads a file front to back as a kernel does; the rate in bytes a second.
async fn read_through(user: &User, node: Node, size: u64) -> f64 {
    let handle = user.open(node, OpenFlags::empty()).await.expect("opened");
    let begin = Instant::now();
    for at in (0..size).step_by(READ as usize) {
        read_one(user, (node, handle), at, size).await;
    }
    let rate = size as f64 / begin.elapsed().as_secs_f64();
    user.close(node, handle).await.expect("closed");
    rate
}

async fn read_one(user: &User, (node, handle): (Node, Handle), at: u64, size: u64) {
    let data = user.read_at(node, handle, at, READ as u32).await.expect("read");
    assert!(data.iter().enumerate().all(|(index, &byte)| byte == pattern(at + index as u64)), "at {at}");
    assert_eq!(data.len() as u64, READ.min(size - at), "at {at}");
}

/// The same, with several reads at once, which arrive in another order.
async fn read_through_in_disorder(user: &User, node: Node, size: u64) -> f64 {
    let handle = user.open(node, OpenFlags::empty()).await.expect("opened");
    let begin = Instant::now();
    for start in (0..size).step_by(3 * READ as usize) {
        let read = |number| async move {
            let at = start + number * READ;
            if at < size {
                read_one(user, (node, handle), at, size).await;
            }
        };
        tokio::join!(read(1), read(2), read(0));
    }
    let rate = size as f64 / begin.elapsed().as_secs_f64();
    user.close(node, handle).await.expect("closed");
    rate
}

fn pattern(at: u64) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

#[tokio::test(start_paused = true)]
async fn a_large_file_is_read_as_fast_as_the_line_carries_it() {
    for (rate, delay) in [(1.25e6, 5), (100e6, 5), (20e6, 50)] {
        let store = Store::new();
        let size = (rate as u64 * 4).min(64 << 20);
        store.state().files.insert(b"/home/f".to_vec(), File::new((0..size).map(pattern).collect()));
        let line = Line::new(&store, Duration::from_millis(delay)).at(rate);
        let user = mounted(&line, &[]).await;
        let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
        let reached = read_through(&user, file, size).await;
        assert!(reached > rate / 1.15, "{reached:.0} of {rate} bytes a second");
        let reached = read_through_in_disorder(&user, file, size).await;
        assert!(reached > rate / 1.15, "{reached:.0} of {rate} bytes a second in disorder");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_read_leaves_the_line_to_others() {
    let store = Store::new();
    let size = 32 << 20;
    store.state().files.insert(b"/home/f".to_vec(), File::new((0..size).map(pattern).collect()));
    let rate = 1.25e6;
    let line = Line::new(&store, DELAY).at(rate);
    let user = mounted(&line, &[]).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let handle = user.open(file, OpenFlags::empty()).await.expect("opened");
    for number in 0..32 {
        read_one(&user, (file, handle), number * READ, size).await;
    }
    user.close(file, handle).await.expect("closed");
    let other = user.open(file, OpenFlags::empty()).await.expect("opened");
    let begin = Instant::now();
    read_one(&user, (file, other), 24 << 20, size).await;
    let most = Duration::from_secs_f64(3.0 * READ as f64 / rate);
    assert!(begin.elapsed() < most, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn no_more_is_read_ahead_than_is_allowed() {
    let size = 4_u64 << 20;
    for allowed in [0, 64 << 10, 512 << 10] {
        let store = Store::new();
        store.state().files.insert(b"/home/f".to_vec(), File::new((0..size).map(pattern).collect()));
        let line = Line::new(&store, DELAY);
        let user = mounted(&line, &[("read_ahead", &allowed.to_string())]).await;
        let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
        let handle = user.open(file, OpenFlags::empty()).await.expect("opened");
        for number in 0..8 {
            read_one(&user, (file, handle), number * READ, size).await;
            tokio::time::sleep(4 * DELAY).await;
            let ahead = store.state().read_to - (number + 1) * READ;
            assert!(ahead <= allowed, "{ahead} bytes");
        }
        assert_eq!(store.state().read_to > 8 * READ, allowed > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn listing_is_quick_during_a_transfer() {
    let store = Store::new();
    let size = 12 << 20;
    store.state().files.insert(b"/home/f".to_vec(), File::new((0..size).map(pattern).collect()));
    store.state().files.insert(b"/home/dir".to_vec(), File::Dir);
    let rate = 1.25e6;
    let line = Line::new(&store, DELAY).at(rate);
    let user = mounted(&line, &[("ahead", "0")]).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let other = user.clone();
    let listing = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(111)).await;
            let begin = Instant::now();
            let dir = other.lookup(Node::ROOT, "dir").await.expect("found").node;
            other.list(dir).await.expect("listed");
            longest = longest.max(begin.elapsed());
        }
        longest
    });
    let reached = read_through(&user, file, size).await;
    let longest = listing.await.expect("no panic");
    assert!(reached > 0.9 * rate, "{reached:.0} of {rate} bytes a second");
    assert!(longest <= 3 * DELAY + Duration::from_millis(100), "{longest:?} for lookup and listing");
}

#[tokio::test(start_paused = true)]
async fn what_was_read_ahead_is_not_given_out_after_a_write() {
    let store = Store::new();
    store.state().files.insert(b"/home/f".to_vec(), File::new(vec![b'a'; 4 << 20]));
    let line = Line::new(&store, DELAY);
    let user = mounted(&line, &[]).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let reader = user.open(file, OpenFlags::empty()).await.expect("opened");
    let writer = user.open(file, OpenFlags::WRITE_ONLY).await.expect("opened");
    let step = 64 << 10;
    for at in (0..16).map(|number| number * step) {
        user.read_at(file, reader, at, step as u32).await.expect("read");
    }
    tokio::time::sleep(10 * DELAY).await;
    user.write_at(file, writer, 16 * step, b"b").await.expect("written");
    let data = user.read_at(file, reader, 16 * step, 10).await.expect("read");
    assert_eq!(&data[..], b"baaaaaaaaa");
    user.truncate(file, 17 * step).await.expect("truncated");
    assert_eq!(
        user.read_at(file, reader, 16 * step + 10, 1 << 20).await.expect("read").len(),
        step as usize - 10
    );
}

/// Nothing is remembered by the driver, nor asked for ahead: that is the cache's part.
#[tokio::test(start_paused = true)]
async fn what_is_read_again_is_what_it_is_then() {
    const LEN: u64 = 4096;
    let store = Store::new();
    store.state().files.insert(b"/home/f".to_vec(), File::new(vec![0; 64 << 10]));
    let line = Line::new(&store, DELAY);
    let user = connected(&line).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let handle = user.open(file, OpenFlags::empty()).await.expect("opened");
    let places = [
        (0, true),
        (1, false),
        (2, false),
        (2, true),
        (1, true),
        (2, true),
        (4, false),
        (3, false),
        (3, true),
    ];
    for (byte, (number, again)) in (1..=64).zip(places.into_iter().cycle()) {
        store.overwrite("/home/f", byte);
        let data = user.read_at(file, handle, number * LEN, LEN as u32).await.expect("read");
        assert!(!again || data[0] == byte, "{number}: {} in place of {byte}", data[0]);
    }
}

/// As kernels do that read ahead themselves: several reads at once, the last one of them at the end of the file.
#[tokio::test(start_paused = true)]
async fn a_read_that_meets_the_end_takes_nothing_from_readers_elsewhere() {
    const LEN: u32 = 64 << 10;
    let content: Vec<u8> = (0..4_000_000_u32).map(|number| (number / 1000) as u8).collect();
    let store = Store::new();
    store.state().files.insert(b"/home/large".to_vec(), File::new(content.clone()));
    let line = Line::new(&store, DELAY);
    let user = connected(&line).await;
    let file = user.lookup(Node::ROOT, "large").await.expect("found").node;
    let handle = user.open(file, OpenFlags::empty()).await.expect("opened");
    let read = |offset: u64| user.read_at(file, handle, offset, LEN);
    let (last, first, second) = tokio::join!(read(3_990_000), read(0), read(LEN.into()));
    assert!(last.expect("read") == content[3_990_000..]);
    assert!(first.expect("read") == content[..LEN as usize]);
    assert!(second.expect("read") == content[LEN as usize..2 * LEN as usize]);
    for number in 2..10 {
        let start = number * LEN as usize;
        let got = read(start as u64).await.expect("read");
        assert!(got == content[start..start + LEN as usize], "{} bytes at {start}", got.len());
    }
}
