// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens an archive and measures it: `scan ARCHIVE [CACHE_DIR [INDEX_FILE]]`. With a cache directory the index is kept
//! there; with an index file it is saved there too.

use outrigger_core::{BlockingDriver, Credentials, Cx, FileKind, Handle, Node, ops};
use outrigger_driver_archive::{Archive, ArchiveDriver, CacheConfig, Options, Unwatched};
use outrigger_host::HostFile;
use std::{error::Error, fs, path::Path, sync::Arc, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: scan ARCHIVE [CACHE_DIR [INDEX_FILE]]")?;
    let cache = args.next().map(|d| CacheConfig { base: d.into(), max_bytes: 4 << 30 });
    let begun = Instant::now();
    let source = Arc::new(HostFile::open(Path::new(&path))?);
    let archive = Archive::open(source, Options { cache, ..Options::default() }, &Unwatched)?;
    let (inodes, memory) = (archive.inodes(), archive.index_memory());
    println!("{}: {inodes} inodes, opened in {:?}", archive.format().name(), begun.elapsed());
    println!("index: {memory} bytes, {} an inode", memory / inodes as usize);
    for (warning, count, example) in archive.warnings().iter() {
        println!("warning: {count} x {}: {}", warning.text(), String::from_utf8_lossy(example));
    }
    if let Some(to) = args.next() {
        fs::write(to, archive.saved_index())?;
    }
    let driver = ArchiveDriver::new(archive);
    let begun = Instant::now();
    let files = walk(&driver)?;
    println!("walk with attributes: {:?}", begun.elapsed());
    let begun = Instant::now();
    let bytes = files.iter().try_fold(0, |sum, (node, size)| read(&driver, *node, *size).map(|n| sum + n))?;
    println!("read of {} files, {bytes} bytes: {:?}", files.len(), begun.elapsed());
    let begun = Instant::now();
    let mut number = 1usize;
    for _ in 0..files.len().min(1000) {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (node, size) = files[(number >> 33) % files.len()];
        read(&driver, node, size.min(65536))?;
    }
    println!("read of up to 1000 random files: {:?}", begun.elapsed());
    Ok(())
}

/// Every regular file with its size, in archive order.
fn walk(driver: &ArchiveDriver) -> outrigger_core::Result<Vec<(Node, u64)>> {
    let cx = Cx::new(1, Credentials::ROOT, "scan");
    let (mut todo, mut files) = (vec![Node::ROOT], Vec::new());
    while let Some(node) = todo.pop() {
        let mut cookie = 0;
        loop {
            let op = ops::ReadDirPlus { node, handle: Handle(0), cookie, size: 1 << 20 };
            let part = driver.readdirplus(&cx, op)?;
            for e in &part.entries {
                match e.entry.attr.kind() {
                    FileKind::Directory => todo.push(e.entry.node),
                    FileKind::Regular => files.push((e.entry.node, e.entry.attr.size)),
                    _ => {}
                }
                cookie = e.cookie;
            }
            if part.eof {
                break;
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read(driver: &ArchiveDriver, node: Node, size: u64) -> outrigger_core::Result<u64> {
    let cx = Cx::new(1, Credentials::ROOT, "scan");
    let mut offset = 0;
    while offset < size {
        let data = driver.read(&cx, ops::Read { node, handle: Handle(0), offset, len: 1 << 17 })?;
        offset += data.len() as u64;
    }
    Ok(offset)
}
