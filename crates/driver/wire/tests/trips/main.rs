// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many round trips things take. Time is simulated, so that it counts them exactly.

mod far_away;

use bytes::Bytes;
use far_away::{Site, TRIP};
use outrigger_core::Node;
use outrigger_core::ops::OpenFlags;
use std::fs;
use std::path::Path;
use tokio::time::Instant;

/// How many round trips have passed.
fn trips(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() / TRIP.as_secs_f64()
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
async fn unpacking() {
    for (write, flags) in
        [("close", OpenFlags::EXCL), ("behind", OpenFlags::EXCL), ("behind", OpenFlags::TRUNC)]
    {
        let site = Site::new();
        let user = site.user(&[("write", write)]).await;
        let begin = Instant::now();
        let dir = user.mkdir(Node::ROOT, "dir").await.unwrap().node;
        for number in 0..500 {
            user.unpack(dir, &format!("f{number}"), flags, &[7; 4096]).await.unwrap();
        }
        println!("{write} {flags:?} {}", trips(begin));
        user.control.written().await;
        println!("{write} {flags:?} {}", trips(begin));
    }
}

#[tokio::test(start_paused = true)]
async fn bulk() {
    let site = Site::new();
    let size = 64_u64 << 20;
    fs::write(site.path().join("f"), vec![7; size as usize]).unwrap();
    let user = site.user(&[("write", "close")]).await;
    let file = user.lookup(Node::ROOT, "f").await.unwrap().node;
    let handle = user.open(file, OpenFlags::empty()).await.unwrap();
    let begin = Instant::now();
    for at in (0..size).step_by(128 << 10) {
        assert_eq!(user.read_at(file, handle, at, 128 << 10).await.unwrap().len(), 128 << 10);
    }
    println!("read {}", trips(begin));
    let begin = Instant::now();
    let made = user.create(Node::ROOT, "g", OpenFlags::WRITE_ONLY).await.unwrap();
    for at in (0..size).step_by(128 << 10) {
        user.write_at(made.entry.node, made.opened.handle, at, Bytes::from(vec![7; 128 << 10]))
            .await
            .unwrap();
    }
    user.close(made.entry.node, made.opened.handle, OpenFlags::WRITE_ONLY).await.unwrap();
    println!("write {}", trips(begin));
}
