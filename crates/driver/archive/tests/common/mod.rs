// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests share: trees made on disk, archives made by the real tools, and both compared.
#![allow(dead_code, reason = "each test binary uses a part")]

use outrigger_core::{BlockingDriver, Credentials, Cx, FileKind, Handle, Name, Node, ops};
use outrigger_driver_archive::{Archive, ArchiveDriver, MemSource, Options, Source, Unwatched};
use outrigger_host::HostFile;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
    process::Command,
    sync::Arc,
};

/// What a tree looks like: everything about each path that can be compared.
pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// One path of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: (i64, u32),
    pub rdev: u64,
    /// Content of a file or target of a link; long content as its checksum.
    pub content: Vec<u8>,
    /// The first path with the same inode, when there are several.
    pub link: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub fn cx() -> Cx {
    Cx::new(1, Credentials::ROOT, "test")
}

/// Runs `script` with sh in `dir`; `false` (with a loud message) when `tool` is not installed.
pub fn shell(dir: &Path, tool: &str, script: &str) -> bool {
    let there = Command::new("sh").arg("-c").arg(format!("command -v {tool}")).output().expect("sh runs");
    if !there.status.success() {
        eprintln!("SKIPPED: {tool} is not installed");
        return false;
    }
    let out = Command::new("sh")
        .arg("-ec")
        .arg(script)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .output()
        .expect("sh runs");
    let said = [&out.stdout[..], &out.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(out.status.success(), "{script}: {}: {said}", out.status);
    true
}

/// Bytes that compress somewhat, the same for the same seed.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut v = Vec::with_capacity(len + 64);
    while v.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        match x % 4 {
            0 => {
                let from = v.len().saturating_sub((x >> 8) as usize % 5000 + 1);
                v.extend_from_within(from..v.len().min(from + 40));
            }
            _ => v.extend_from_slice(&x.to_le_bytes()),
        }
    }
    v.truncate(len);
    v
}

/// A tree with everything that archives store.
pub fn make_tree(root: &Path, links: bool, special: bool) {
    let d = |p: &str| fs::create_dir_all(root.join(p)).expect("mkdir");
    let f = |p: &[u8], data: &[u8]| fs::write(root.join(OsStr::from_bytes(p)), data).expect("write");
    d("a/b/c");
    d("empty");
    d("many");
    f(b"a/small", b"hello\n");
    f(b"a/nothing", b"");
    f(b"a/b/c/large", &noise(3_000_001, 1));
    f(b"a/block", &noise(512, 2));
    f("a/\u{fc}mlaut".as_bytes(), b"utf-8");
    let long = "n".repeat(255);
    f(long.as_bytes(), b"255 bytes");
    d(&format!("{}/{}", "p".repeat(120), "q".repeat(130)));
    f(format!("{}/{}/{}", "p".repeat(120), "q".repeat(130), "r".repeat(99)).as_bytes(), b"long path");
    for i in 0..200 {
        f(format!("many/file{i:03}").as_bytes(), &noise(i * 37 % 9000, i as u64));
    }
    shell(
        root,
        "sh",
        "chmod 4755 a/small; chmod 0700 a/b; chmod 0400 a/block; touch -d @1000000000.123456789 a/small; touch -d @-5 a/nothing",
    );
    shell(root, "ln", "ln -s small a/link; ln -s /etc/passwd a/absolute; ln -s ../../../outside a/up");
    if links {
        f(b"a/hard1", b"shared content");
        shell(root, "ln", "ln a/hard1 a/b/hard2; ln a/hard1 hard3");
    }
    if special {
        f(b"a/bad\xff\xfename", b"not utf-8");
        shell(root, "mkfifo", "mkfifo pipe");
    }
}

/// The tree below `root` on disk.
pub fn on_disk(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut inodes = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let m = fs::symlink_metadata(&path).expect("lstat");
        let name = path.strip_prefix(root).expect("below").as_os_str().as_bytes().to_vec();
        let mut seen = Seen {
            mode: m.mode(),
            uid: m.uid(),
            gid: m.gid(),
            size: if m.is_dir() { 0 } else { m.size() },
            mtime: (m.mtime(), m.mtime_nsec() as u32),
            rdev: m.rdev(),
            ..Seen::default()
        };
        if m.is_dir() {
            todo.extend(fs::read_dir(&path).expect("readdir").map(|e| e.expect("entry").path()));
        } else if m.file_type().is_symlink() {
            seen.content = fs::read_link(&path).expect("readlink").as_os_str().as_bytes().to_vec();
        } else if m.is_file() {
            seen.content = digest(&fs::read(&path).expect("read"));
        } else {
            assert!(
                m.file_type().is_fifo() || m.file_type().is_char_device() || m.file_type().is_block_device()
            );
        }
        if m.nlink() > 1 && !m.is_dir() {
            inodes.entry(m.ino()).or_insert_with(Vec::new).push(name.clone());
        }
        tree.insert(name, seen);
    }
    name_links(&mut tree, inodes.into_values());
    tree
}

/// The tree of an archive, read through the driver with reads of `step` bytes.
pub fn in_archive(driver: &ArchiveDriver, step: u32) -> Tree {
    let cx = cx();
    let mut tree = Tree::new();
    let mut inodes = BTreeMap::new();
    let mut todo = vec![(Vec::new(), Node::ROOT)];
    while let Some((path, node)) = todo.pop() {
        let attr = driver.getattr(&cx, ops::GetAttr { node, handle: None }).expect("getattr").attr;
        let mut seen = Seen {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            mtime: (attr.mtime.secs, attr.mtime.nanos),
            rdev: attr.rdev.into(),
            ..Seen::default()
        };
        for name in driver.listxattr(&cx, ops::ListXattr { node }).expect("listxattr") {
            let value = driver.getxattr(&cx, ops::GetXattr { node, name: name.clone() }).expect("getxattr");
            seen.xattrs.insert(name.to_vec(), value.to_vec());
        }
        match attr.kind() {
            FileKind::Directory => {
                for (name, child) in list(driver, node) {
                    let mut p = path.clone();
                    if !p.is_empty() {
                        p.push(b'/');
                    }
                    p.extend_from_slice(&name);
                    let found =
                        driver.lookup(&cx, ops::Lookup { dir: node, name: Name::new(name).expect("name") });
                    assert_eq!(found.expect("lookup").node, child);
                    todo.push((p, child));
                }
            }
            FileKind::Symlink => {
                seen.content = driver.readlink(&cx, ops::ReadLink { node }).expect("readlink").to_vec()
            }
            FileKind::Regular => seen.content = digest(&read_all(driver, node, step)),
            _ => {}
        }
        if attr.nlink > 1 && !attr.is_dir() {
            inodes.entry(node).or_insert_with(Vec::new).push(path.clone());
        }
        tree.insert(path, seen);
    }
    name_links(&mut tree, inodes.into_values());
    tree
}

fn name_links(tree: &mut Tree, groups: impl Iterator<Item = Vec<Vec<u8>>>) {
    for mut names in groups {
        names.sort();
        for n in &names {
            tree.get_mut(n).expect("seen").link = Some(names[0].clone());
        }
    }
}

/// All names of a directory with their nodes, in several calls.
pub fn list(driver: &ArchiveDriver, dir: Node) -> Vec<(Vec<u8>, Node)> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let op = ops::ReadDirPlus { node: dir, handle: Handle(0), cookie, size: 1000 };
        let part = driver.readdirplus(&cx(), op).expect("readdirplus");
        cookie = part.entries.last().map_or(cookie, |e| e.cookie);
        all.extend(part.entries.iter().map(|e| (e.name.to_vec(), e.entry.node)));
        if part.eof {
            return all;
        }
    }
}

pub fn read(driver: &ArchiveDriver, node: Node, offset: u64, len: u32) -> outrigger_core::Result<Vec<u8>> {
    let op = ops::Read { node, handle: Handle(0), offset, len };
    driver.read(&cx(), op).and_then(outrigger_core::Payload::into_bytes).map(|b| b.to_vec())
}

pub fn read_all(driver: &ArchiveDriver, node: Node, step: u32) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        let part = read(driver, node, data.len() as u64, step).expect("read");
        if part.is_empty() {
            return data;
        }
        data.extend_from_slice(&part);
    }
}

pub fn digest(data: &[u8]) -> Vec<u8> {
    match data.len() {
        0..=64 => data.to_vec(),
        n => format!("{n} bytes, crc {:08x}", crc32fast::hash(data)).into_bytes(),
    }
}

/// The node at `path`.
pub fn at(driver: &ArchiveDriver, path: &str) -> Node {
    path.split('/').filter(|n| !n.is_empty()).fold(Node::ROOT, |dir, name| {
        let name = Name::try_from(name).expect("name");
        driver.lookup(&cx(), ops::Lookup { dir, name }).unwrap_or_else(|e| panic!("{path}: {e}")).node
    })
}

pub fn open(path: &Path) -> ArchiveDriver {
    open_with(path, Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

pub fn open_with(path: &Path, options: Options) -> outrigger_driver_archive::Result<ArchiveDriver> {
    let source: Arc<dyn Source> = Arc::new(HostFile::open(path).expect("the archive opens"));
    Archive::open(source, options, &Unwatched).map(ArchiveDriver::new)
}

pub fn open_bytes(
    name: &str,
    bytes: Vec<u8>,
    options: Options,
) -> outrigger_driver_archive::Result<ArchiveDriver> {
    let source: Arc<dyn Source> = Arc::new(MemSource::new(name, bytes));
    Archive::open(source, options, &Unwatched).map(ArchiveDriver::new)
}

/// Fails on the first difference, naming the path.
pub fn assert_same(expected: &Tree, found: &Tree) {
    for (path, e) in expected {
        let name = String::from_utf8_lossy(path);
        assert_eq!(Some(e), found.get(path), "{name}");
    }
    let extra: Vec<_> = found.keys().filter(|k| !expected.contains_key(*k)).collect();
    assert!(extra.is_empty(), "not expected: {extra:?}");
}
