// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content on disk, which is there for the next process.

use crate::client::{Client, pass_time};
use crate::content::{open, pattern, read, read_all, rewrite, with_file};
use bytes::Bytes;
use outrigger_core::ops::{GetAttr, OpenFlags};
use outrigger_core::{Node, OpCode, Service};
use outrigger_layer_cache::{Disk, OnDisk};
use outrigger_sim::Sim;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const ROOM: u64 = 1 << 30;

/// A directory for caches, and a tree with a file that was made long ago.
struct Bench {
    sim: Arc<Sim>,
    caches: TempDir,
    tree: Arc<dyn Service>,
    node: Node,
    data: Bytes,
}

impl Bench {
    fn new(len: usize) -> Self {
        let sim = Sim::new(len as u64);
        let (client, node, data) = with_file(&sim, len, &[]);
        Bench { sim, caches: tempfile::tempdir().expect("a directory"), tree: client.tree, node, data }
    }

    /// A process that has just mounted the tree, and keeps at most so much on disk.
    fn mounted(&self, options: &[(&str, &str)], room: u64) -> Client {
        let disk = Disk::open(self.caches.path(), "the tree", room, self.sim.clone()).expect("a disk");
        let disk = OnDisk { content: Some(disk), metadata: None };
        let client = Client::with(&self.sim, &self.tree, options, disk);
        let node = client.lookup(Node::ROOT, "file").expect("the file").node;
        assert_eq!(node, self.node);
        client.passed();
        client
    }

    fn must_read(&self, client: &Client) {
        assert!(read_all(client, self.node, 128 << 10).0 == self.data);
        self.sim.run();
    }

    /// How often content is asked for when all of the file is read by a new process.
    fn reads_anew(&self) -> u64 {
        let client = self.mounted(&[], ROOM);
        self.must_read(&client);
        client.count(OpCode::Read)
    }

    /// All files with blocks.
    fn blocks(&self) -> Vec<PathBuf> {
        let entries = |dir: &Path| {
            let entries = fs::read_dir(dir).expect("a directory");
            entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
        };
        let trees = entries(&self.caches.path().join("outrigger/content"));
        trees.into_iter().filter(|path| path.is_dir()).flat_map(|tree| entries(&tree)).collect()
    }
}

#[test]
fn twenty_five_megabytes_that_were_read_once_are_not_asked_for_after_the_next_mount() {
    let bench = Bench::new(25_000_000);
    assert!(bench.reads_anew() > 0);
    let client = bench.mounted(&[], ROOM);
    bench.must_read(&client);
    assert_eq!((client.count(OpCode::Read), client.count(OpCode::GetAttr)), (0, 0));
    let disk = client.control.usage().disk.expect("a disk");
    assert!(disk.hits > 0 && (disk.misses, disk.kept, disk.dropped) == (0, 0, 0), "{disk:?}");
    assert!((25_000_000..26_500_000).contains(&disk.bytes) && disk.files == 191, "{disk:?}");
}

#[test]
fn other_content_is_asked_for() {
    let mut bench = Bench::new(1_000_000);
    assert!(bench.reads_anew() > 0);
    let other = Client::new(&bench.sim, &bench.tree, &[]);
    bench.data = pattern(1_000_000, 9);
    rewrite(&other, bench.node, &bench.data);
    assert!(bench.reads_anew() > 0);
    pass_time(&bench.sim, Duration::from_secs(60));
    assert!(bench.reads_anew() > 0, "what was new then could have been changed without a trace");
    assert_eq!(bench.reads_anew(), 0);
}

#[test]
fn content_of_which_the_attributes_are_not_told_again_is_not_kept() {
    let bench = Bench::new(1_000_000);
    let client = bench.mounted(&[], ROOM);
    client.ask(GetAttr { node: bench.node, handle: None }).expect("attributes");
    client.stall(OpCode::GetAttr, 0);
    let (handle, _) = open(&client, bench.node, OpenFlags::empty());
    read(&client, bench.node, handle, 0, 1_000_000);
    let other = Client::new(&bench.sim, &bench.tree, &[]);
    rewrite(&other, bench.node, &pattern(1_000_000, 9));
    client.go_on();
    client.close(bench.node, handle, OpenFlags::empty());
    bench.sim.run();
    assert_eq!(bench.blocks().len(), 0);
}

#[test]
fn damage_is_found_out_and_mended() {
    let bench = Bench::new(1_000_000);
    bench.reads_anew();
    let blocks = bench.blocks();
    assert_eq!(blocks.len(), 8);
    for (number, path) in blocks.iter().enumerate() {
        let mut file = fs::read(path).expect("a block");
        match number % 4 {
            0 => file[number * 9000 + 500] ^= 4,
            1 => file.truncate(number * 10_000),
            2 => file.clear(),
            _ => file.extend_from_slice(b"more"),
        }
        fs::write(path, file).expect("damaged");
    }
    assert!(bench.reads_anew() > 0);
    assert_eq!(bench.reads_anew(), 0);
}

#[test]
fn what_is_never_believed_is_not_kept_either() {
    let bench = Bench::new(1_000_000);
    bench.reads_anew();
    let client = bench.mounted(&[("cache", "never")], ROOM);
    bench.must_read(&client);
    assert!(client.count(OpCode::Read) > 0);
    assert_eq!(client.control.usage().disk.map(|disk| disk.hits), Some(0));
}

#[test]
fn the_bound_holds_while_a_larger_file_is_read() {
    let bench = Bench::new(10_000_000);
    let room = 2 << 20;
    for _ in 0..3 {
        let client = bench.mounted(&[], room);
        bench.must_read(&client);
        let len: u64 = bench.blocks().iter().map(|path| fs::metadata(path).expect("a block").len()).sum();
        assert!(len > room / 2 && len <= room, "{len}");
    }
}

#[test]
fn who_flushes_asks_again() {
    let bench = Bench::new(1_000_000);
    let client = bench.mounted(&[], ROOM);
    bench.must_read(&client);
    client.control.flush();
    client.passed();
    bench.must_read(&client);
    assert!(client.count(OpCode::Read) > 0);
    client.control.flush();
    bench.sim.run();
    assert_eq!(bench.blocks().len(), 0);
    assert!(bench.reads_anew() > 0);
}

#[test]
fn a_directory_that_is_removed_meanwhile_is_an_error_to_nobody() {
    let bench = Bench::new(1_000_000);
    let client = bench.mounted(&[], ROOM);
    fs::remove_dir_all(bench.caches.path().join("outrigger")).expect("removed");
    bench.must_read(&client);
    let disk = client.control.usage().disk.expect("a disk");
    assert!(disk.kept == 0 && disk.dropped > 0, "{disk:?}");
}
