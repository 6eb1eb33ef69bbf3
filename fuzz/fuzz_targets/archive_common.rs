// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens bytes as an archive and reads a bit of everything in it.

use outrigger_core::{BlockingDriver, Credentials, Cx, FileKind, Handle, Node, ops, ops::Whence};
use outrigger_driver_archive::{Archive, ArchiveDriver, Limits, MemSource, Options, Source, Unwatched};
use std::sync::Arc;

/// Small enough for thousands of runs a second.
pub fn options(partial: bool) -> Options {
    let limits = Limits {
        entries: 5000,
        name_bytes: 1 << 20,
        ratio: 100,
        free_output: 1 << 20,
        decoder_memory: 16 << 20,
        block_cache: 1 << 20,
        ..Limits::default()
    };
    Options { limits, partial, cache: None }
}

/// Opens `data` both ways and walks what opened.
#[allow(dead_code, reason = "not every target opens archives from bytes alone")]
pub fn open_and_read(name: &str, data: &[u8]) {
    for partial in [false, true] {
        let source: Arc<dyn Source> = Arc::new(MemSource::new(name, data.to_vec()));
        if let Ok(archive) = Archive::open(source, options(partial), &Unwatched) {
            walk(&ArchiveDriver::new(archive), true);
        }
    }
}

/// Reads names, attributes and a bit of content of the first hundred nodes. In a `sound` index every name that is
/// listed is found; one that was tampered with may list a name twice.
pub fn walk(driver: &ArchiveDriver, sound: bool) {
    let cx = Cx::new(1, Credentials::ROOT, "fuzz");
    let mut todo = vec![Node::ROOT];
    for _ in 0..100 {
        let Some(node) = todo.pop() else { break };
        let Ok(attrs) = driver.getattr(&cx, ops::GetAttr { node, handle: None }) else { continue };
        let _ = driver.listxattr(&cx, ops::ListXattr { node });
        let _ = driver.locate(&cx, ops::Locate { node });
        match attrs.attr.kind() {
            FileKind::Directory => {
                let list = ops::ReadDirPlus { node, handle: Handle(0), cookie: 0, size: 20_000 };
                for e in driver.readdirplus(&cx, list).map(|d| d.entries).unwrap_or_default() {
                    let found = driver.lookup(&cx, ops::Lookup { dir: node, name: e.name });
                    assert!(!sound || found == Ok(e.entry.clone()));
                    todo.push(e.entry.node);
                }
            }
            FileKind::Symlink => drop(driver.readlink(&cx, ops::ReadLink { node })),
            FileKind::Regular => read(driver, &cx, node, attrs.attr.size),
            _ => {}
        }
    }
}

fn read(driver: &ArchiveDriver, cx: &Cx, node: Node, size: u64) {
    for whence in [Whence::Data, Whence::Hole] {
        let _ = driver.lseek(cx, ops::Seek { node, handle: Handle(0), offset: size / 3, whence });
    }
    // Reading far into a claimed size decodes all before it.
    for offset in [0, size.saturating_sub(100).min(2 << 20), size / 2 % (2 << 20)] {
        let op = ops::Read { node, handle: Handle(0), offset, len: 3000 };
        if let Ok(data) = driver.read(cx, op) {
            assert!(data.len() as u64 <= size.saturating_sub(offset).min(3000));
        }
    }
}
